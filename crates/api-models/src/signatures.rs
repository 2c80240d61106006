//! Versions and signatures that requests name, most of them as TensorFlow Serving's API does.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use engine::{DEFAULT_SIGNATURE, NamedSignature, Servable};
use inference::InferenceService;
use lifecycle::{Catalog, LifecycleState, RequestKey, Route};
use protocol::tfs::{self, SignatureInfo};

/// Number that OpenVINO's clients send for the latest version.
const LATEST: u64 = 0;

/// Parses the number of a version.
///
/// # Errors
/// `InvalidArgument` for a text that is not a number.
pub fn parse_version(text: &str) -> Result<u64> {
    text.parse::<u64>().map_err(|error| {
        Error::invalid(format!("\"{text}\" is not a version number")).with_source(error)
    })
}

/// Returns the number of the requested version; `None` is the latest. Version 0 also means the
/// latest if the model has no version 0.
pub fn version(catalog: &Catalog, model: &str, requested: Option<u64>) -> Option<u64> {
    let known = || catalog.status(model).is_some_and(|status| status.version(LATEST).is_some());
    requested.filter(|&number| number != LATEST || known())
}

/// Finds a version by its number or label.
///
/// # Errors
/// Returns the errors of [`InferenceService::find`], in TensorFlow Serving's words: clients search
/// for them to detect that a server runs.
pub fn find(
    inference: &InferenceService,
    model: &str,
    requested: Option<u64>,
    label: Option<&str>,
) -> Result<Arc<Servable>> {
    let number = version(inference.catalog(), model, requested);
    let found = inference.find(model, number, label);
    found.map_err(|error| not_found(inference.catalog(), error, model, number, label))
}

/// Finds the version that runs a request, as [`find`] does. Without number and label, a running
/// rollout chooses by `key`.
///
/// # Errors
/// As [`find`].
pub fn route(
    inference: &InferenceService,
    model: &str,
    requested: Option<u64>,
    label: Option<&str>,
    key: Option<&RequestKey>,
) -> Result<Route> {
    let number = version(inference.catalog(), model, requested);
    let found = inference.route(model, number, label, key);
    found.map_err(|error| not_found(inference.catalog(), error, model, number, label))
}

/// Adds the request to an error in the words of TensorFlow Serving. A version that a newer one has
/// replaced becomes `NotFound`.
fn not_found(
    catalog: &Catalog,
    error: Error,
    model: &str,
    number: Option<u64>,
    label: Option<&str>,
) -> Error {
    let request = match number {
        Some(number) => format!("Specific({model}, {number})"),
        None => format!("Latest({model})"),
    };
    let error = match number {
        // No wait brings it back. An answer that means "unavailable" would be tried again, and
        // balancers would count it as a failure of the server.
        Some(number) if is_replaced(catalog, model, number) => error.with_kind(ErrorKind::NotFound),
        _ => error,
    };
    match label {
        Some(_) => error,
        None => error.context(format!("Servable not found for request: {request}")),
    }
}

/// Returns true if the version has served, and the model's policy does not select it any more.
fn is_replaced(catalog: &Catalog, model: &str, number: u64) -> bool {
    catalog.status(model).is_some_and(|status| {
        let state = status.version(number).map(|version| version.state);
        !status.unloaded && state == Some(LifecycleState::Released)
    })
}

/// Returns all signatures of a version, for its metadata.
pub fn infos(servable: &Servable) -> Vec<SignatureInfo<'_>> {
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
fn select(servable: Arc<Servable>, name: &str) -> Result<Arc<Servable>> {
    match name {
        "" => Ok(servable),
        name => servable.with_signature(name),
    }
}

/// Returns the version that runs a decoded request, under its signature `name`. `found` is the
/// version that decoded it. If the request did not name it, a running rollout chooses by `key`.
///
/// # Errors
/// `FailedPrecondition` if there is no such signature; the errors of [`InferenceService::route`].
pub fn assign(
    inference: &InferenceService,
    found: &Arc<Servable>,
    version: Option<u64>,
    key: Option<&RequestKey>,
    name: &str,
) -> Result<Route> {
    let route = match version {
        Some(_) => Route { servable: found.clone(), rollout: None },
        None => inference.route(&found.id.model, None, None, key)?,
    };
    Ok(Route { servable: select(route.servable, name)?, ..route })
}

/// Returns the name of the signature that a request of TensorFlow Serving's API means if it names
/// none. Another signature could change the model's state or give an answer of another meaning.
pub(crate) fn default_name(servable: &Servable) -> &str {
    if servable.is_default_signature() { servable.signature_name() } else { DEFAULT_SIGNATURE }
}

/// Returns the version under its signature `name`, or its default one if the name is empty, for
/// Predict. If `check_method` is set, the signature's method must be one of TensorFlow Serving's.
///
/// # Errors
/// `FailedPrecondition` if there is no such signature, also without a name if the version has
/// several signatures and none is the default one; `InvalidArgument` for another method.
pub fn for_predict(
    servable: Arc<Servable>,
    name: &str,
    check_method: bool,
) -> Result<Arc<Servable>> {
    let servable = match name {
        "" => servable.with_signature(default_name(&servable))?,
        name => servable.with_signature(name)?,
    };
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
