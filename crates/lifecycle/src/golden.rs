//! Golden requests: requests with expected answers, which a version must give before it serves.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, ErrorKind, NamedTensor, Result};
use engine::Servable;

use crate::WarmupCall;
use crate::warmup::WarmupSource;
use ::rollout::compare_answers;

/// Maximum number of golden requests of a model.
const CASES_MAX: usize = 1000;

/// A request and its expected answer.
#[derive(Clone, Debug)]
pub struct GoldenCase {
    /// The request.
    pub call: WarmupCall,
    /// The outputs that are compared. The version may have others.
    pub expected: Vec<NamedTensor>,
}

/// File of a model's golden requests.
#[derive(Clone, Debug)]
pub(crate) struct GoldenFile {
    pub(crate) path: PathBuf,
    pub(crate) tolerance: f64,
}

/// Checks that `servable` gives the expected answers.
///
/// # Errors
/// `FailedPrecondition` with the first request that is answered differently or not at all.
/// `Cancelled` after `stop`. Also the errors of the file.
pub(crate) fn check(
    servable: &Servable,
    source: &dyn WarmupSource,
    file: &GoldenFile,
    stop: &AtomicBool,
) -> Result<()> {
    let named = |error: Error| error.context("golden requests");
    let cases = source.golden(&file.path, servable).map_err(named)?;
    if cases.is_empty() || cases.len() > CASES_MAX {
        let message = format!(
            "golden requests: {} has {}; it must have 1 to {CASES_MAX}",
            file.path.display(),
            cases.len()
        );
        return Err(Error::invalid(message));
    }
    for (number, case) in cases.into_iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::cancelled("the load was stopped"));
        }
        let wrong = |reason: &dyn std::fmt::Display| {
            Error::precondition(format!("golden request {number}: {reason}"))
        };
        let GoldenCase { call, expected } = case;
        let answered = run(servable, source, call).map_err(|error| match error.kind() {
            // The stop may have ended the worker process of the run.
            _ if stop.load(Ordering::Relaxed) => Error::cancelled("the load was stopped"),
            // The engine aborted in its worker, or memory is short, so another try may help.
            ErrorKind::Unavailable | ErrorKind::ResourceExhausted => named(error),
            _ => wrong(&error),
        })?;
        if let Some(difference) = compare_answers(&expected, &answered, file.tolerance) {
            return Err(wrong(&format_args!("{difference} (tolerance {})", file.tolerance)));
        }
    }
    Ok(())
}

/// Runs the request `call` on the signature that it names, as the server runs a client's request.
fn run(
    servable: &Servable,
    source: &dyn WarmupSource,
    mut call: WarmupCall,
) -> Result<Vec<NamedTensor>> {
    let servable = match call.signature.as_str() {
        "" => servable,
        name => servable.signature_servable(name)?,
    };
    let signature = servable.signature();
    signature.check_inputs(&call.inputs)?;
    signature.check_outputs(call.outputs.iter().map(|name| &**name))?;
    source.complete(servable, &mut call.inputs)?;
    source.run(servable, &call.inputs, &call.outputs)
}
