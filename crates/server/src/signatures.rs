//! Signatures of a version as TensorFlow Serving's API shows and names them.

use std::sync::Arc;

use base::{Error, Result};
use engine::{NamedSignature, Servable};
use protocol::tfs::{self, SignatureInfo};

/// Returns all signatures of a version, for its metadata.
pub(crate) fn infos(servable: &Servable) -> Vec<SignatureInfo<'_>> {
    if servable.signatures().is_empty() {
        return vec![SignatureInfo::only(servable.signature())];
    }
    servable.signatures().iter().map(info).collect()
}

fn info(named: &NamedSignature) -> SignatureInfo<'_> {
    SignatureInfo {
        name: &named.name,
        method: &named.method,
        signature: &named.signature,
        input_tensors: &named.input_tensors,
        output_tensors: &named.output_tensors,
    }
}

/// Returns the version under its signature `name`, or its default one if the name is empty.
///
/// # Errors
/// `FailedPrecondition` if there is no such signature.
pub(crate) fn select(servable: Arc<Servable>, name: &str) -> Result<Arc<Servable>> {
    match name {
        "" => Ok(servable),
        name => servable.with_signature(name),
    }
}

/// Returns the version under a signature as [`select`] does, for Predict. If `check_method` is set,
/// the signature's method must be one of TensorFlow Serving's.
///
/// # Errors
/// `FailedPrecondition` if there is no such signature; `InvalidArgument` for another method.
pub(crate) fn for_predict(
    servable: Arc<Servable>,
    name: &str,
    check_method: bool,
) -> Result<Arc<Servable>> {
    let servable = select(servable, name)?;
    let known = [tfs::PREDICT_METHOD, tfs::CLASSIFY_METHOD, tfs::REGRESS_METHOD];
    let named =
        servable.signatures().iter().find(|named| *named.name == *servable.signature_name());
    match named {
        Some(named) if check_method && !known.contains(&named.method.as_str()) => {
            Err(Error::invalid(format!(
                "Expected prediction signature method_name to be one of {{{}}}. Was: {}",
                known.join(", "),
                named.method
            )))
        }
        _ => Ok(servable),
    }
}
