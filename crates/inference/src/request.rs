//! Decoded requests, their responses, and their sizes.

use std::sync::Arc;
use std::time::Duration;

use base::{Data, Dim, Error, ErrorKind, NamedTensor, VersionId};
use engine::{BatchPlan, Servable};
use lifecycle::RolloutPart;

/// Maximum inputs that a message about batch sizes lists.
const SIZES_SHOWN_MAX: usize = 8;

/// A decoded request.
pub struct InferenceRequest {
    /// The version that runs it.
    pub servable: Arc<Servable>,
    /// Inputs, in any order.
    pub inputs: Vec<NamedTensor>,
    /// Names of the wanted outputs; empty for all of them.
    pub outputs: Vec<Arc<str>>,
    /// The client's own deadline.
    pub timeout: Option<Duration>,
    /// Priority level, 1 first; 0 is the model's default.
    pub priority: usize,
    /// Part of the request in a rollout, as [`crate::InferenceService::route`] returned it with the
    /// version.
    pub rollout: Option<RolloutPart>,
}

/// Outputs, and the version that made them.
pub struct InferenceResponse {
    /// Version that ran the request.
    pub id: VersionId,
    /// The wanted outputs, by name.
    pub outputs: Vec<NamedTensor>,
}

/// Returns the number of bytes that `tensors` take in memory.
pub fn tensor_bytes(tensors: &[NamedTensor]) -> u64 {
    let bytes = |tensor: &NamedTensor| match tensor.tensor.data() {
        Data::Bytes(bytes) => bytes.len(),
        Data::Strings(strings) => strings.iter().map(|text| size_of_val(text) + text.len()).sum(),
    };
    tensors.iter().map(bytes).sum::<usize>() as u64
}

/// Returns the number of items: the size of axis 0 of the first input that has the batch there.
pub(crate) fn items(call: &InferenceRequest) -> usize {
    items_of(call.servable.plan(), &call.inputs)
}

/// Returns the number of items of `inputs` under `plan`, as [`items`] does.
pub(crate) fn items_of(plan: &BatchPlan, inputs: &[NamedTensor]) -> usize {
    let batched = |input: &&NamedTensor| !plan.is_shared(&input.name);
    let batch = inputs.iter().find(batched).and_then(|input| input.tensor.shape().first().copied());
    batch.filter(|_| plan.batchable).unwrap_or(1)
}

/// Returns a list for a message if inputs with a dynamic axis 0 differ in size there. A model may
/// accept that (queries against documents), so the request runs.
pub(crate) fn uneven(call: &InferenceRequest) -> Option<String> {
    let specs = &call.servable.signature().inputs;
    let free = |input: &&NamedTensor| {
        let spec = specs.iter().find(|spec| *spec.name == *input.name);
        let dims = spec.and_then(|spec| spec.shape.as_ref());
        dims.is_some_and(|dims| matches!(dims.first(), Some(Dim::Dynamic(_))))
    };
    let first = call.inputs.iter().find(free)?.tensor.shape().first()?;
    let sizes = || {
        let free = call.inputs.iter().filter(free);
        free.filter_map(|input| Some((&input.name, input.tensor.shape().first()?)))
    };
    if sizes().all(|(_, size)| size == first) {
        return None;
    }
    let shown = sizes().take(SIZES_SHOWN_MAX).map(|(name, size)| format!("\"{name}\" {size}"));
    Some(shown.collect::<Vec<_>>().join(", "))
}

/// Turns a failure of the engine into an error of the client, whose inputs differ in batch size.
/// Keeps errors of other kinds.
pub(crate) fn blame_sizes(error: Error, sizes: &str) -> Error {
    match error.kind() {
        ErrorKind::Internal | ErrorKind::InvalidArgument => {
            let text = format!("{}; the inputs differ in batch size: {sizes}", error.message());
            Error::invalid(text).with_source(error)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_sizes_keeps_its_cause() {
        let failed = Error::internal("shapes do not match");
        let blamed = blame_sizes(failed.clone(), "\"a\" 1, \"b\" 2");
        assert_eq!(blamed.kind(), ErrorKind::InvalidArgument);
        let source = std::error::Error::source(&blamed);
        assert_eq!(source.and_then(|source| source.downcast_ref::<Error>()), Some(&failed));
        let late = Error::deadline("late");
        assert_eq!(blame_sizes(late.clone(), ""), late);
    }
}
