//! Signatures of a SavedModel, and the order of their feeds and fetches.

use std::collections::BTreeMap;

use base::{Dim, Error, Result, Signature, TensorSpec};
use bytes::Bytes;
use engine::{DEFAULT_SIGNATURE, NamedSignature};

use crate::element;
use crate::generated::{MetaGraphDef, SignatureDef, TensorInfo, TensorShape};
use crate::model_file::{self, OWN_SIGNATURES};

/// The signatures that requests can run.
#[derive(Debug)]
pub(crate) struct ReadSignatures {
    /// Signatures, in the order of their names.
    pub(crate) signatures: Vec<NamedSignature>,
    /// Values of inputs that a request may omit, as TensorFlow's messages, by signature and input.
    pub(crate) defaults: Vec<BTreeMap<String, Bytes>>,
    /// Position of the signature that runs if a request names none.
    pub(crate) default: usize,
    /// Name of each signature that cannot be run, with the reason.
    pub(crate) skipped: Vec<String>,
}

/// Reads the signatures of a graph.
///
/// # Errors
/// `InvalidArgument` if there is none that a request can run.
pub(crate) fn read(meta: &MetaGraphDef) -> Result<ReadSignatures> {
    let mut read = ReadSignatures {
        signatures: Vec::new(),
        defaults: Vec::new(),
        default: 0,
        skipped: Vec::new(),
    };
    for (name, definition) in &meta.signature_def {
        if OWN_SIGNATURES.contains(&name.as_str()) {
            continue;
        }
        match read_signature(name, definition) {
            Ok(signature) => {
                read.signatures.push(signature);
                read.defaults.push(definition.defaults.clone());
            }
            Err(reason) => read.skipped.push(format!("{name}: {reason}")),
        }
    }
    if read.signatures.is_empty() {
        let skipped = read.skipped.join("; ");
        return Err(Error::invalid(format!(
            "the SavedModel has no signature to run ({skipped}): pass signatures= to tf.saved_model.save"
        )));
    }
    read.default =
        read.signatures.iter().position(|named| &*named.name == DEFAULT_SIGNATURE).unwrap_or(0);
    Ok(read)
}

/// Reads one signature. Otherwise returns the reason that it cannot be run.
fn read_signature(name: &str, definition: &SignatureDef) -> Result<NamedSignature, String> {
    let mut inputs = specs(&definition.inputs)?;
    for input in &mut inputs {
        input.optional = definition.defaults.contains_key(&input.name);
    }
    let signature = Signature { inputs, outputs: specs(&definition.outputs)? };
    if signature.outputs.is_empty() {
        return Err("it has no output".to_owned());
    }
    let tensors = |infos: &BTreeMap<String, TensorInfo>| {
        infos.values().map(|info| info.name.clone()).collect::<Vec<String>>()
    };
    let mut fed = tensors(&definition.inputs);
    fed.sort();
    if let Some(twice) = fed.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two inputs are the tensor {}", twice[0]));
    }
    Ok(NamedSignature {
        name: name.into(),
        method: definition.method_name.clone(),
        signature,
        input_tensors: tensors(&definition.inputs),
        output_tensors: tensors(&definition.outputs),
    })
}

/// Returns the inputs or outputs in the order of their names.
fn specs(infos: &BTreeMap<String, TensorInfo>) -> Result<Vec<TensorSpec>, String> {
    let spec = |(name, info): (&String, &TensorInfo)| {
        if !model_file::is_plain(info) {
            return Err(format!("\"{name}\" is a sparse or composite tensor"));
        }
        let dtype = element::from_tensorflow(info.dtype)
            .ok_or_else(|| format!("\"{name}\" has element type {} of TensorFlow", info.dtype))?;
        let shape = shape(info.tensor_shape.as_ref());
        Ok(TensorSpec { name: name.clone(), dtype, shape, optional: false })
    };
    infos.iter().map(spec).collect()
}

/// Returns the axes; `None` for an unknown rank.
fn shape(shape: Option<&TensorShape>) -> Option<Vec<Dim>> {
    let shape = shape.filter(|shape| !shape.unknown_rank)?;
    let axis = |dim: &crate::generated::tensor_shape::Dim| match usize::try_from(dim.size) {
        Ok(size) => Dim::Fixed(size),
        Err(_) => Dim::Dynamic(None),
    };
    Some(shape.dim.iter().map(axis).collect())
}
