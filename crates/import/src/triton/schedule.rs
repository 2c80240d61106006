//! Triton's batching as a section `[schedule]`.

use std::time::Duration;

use engine::{BATCH_MAX, ModeText, PRIORITY_LEVELS_MAX, PriorityText, QUEUE_DELAY_MAX};
use protocol::inference as pb;
use protocol::inference::model_queue_policy::TimeoutAction;

use super::convert::ConvertedModel;

/// Notes that a model without `dynamic_batching` has no bound on the batch of one request.
pub(crate) fn note_unbatched(max_batch_size: i32, model: &mut ConvertedModel) {
    if max_batch_size > 1 {
        model.note(format!(
            "max_batch_size = {max_batch_size} without dynamic_batching: a request's batch has no limit here; as in \
             Triton, requests are not merged (mode = \"async\" in [schedule] merges them)"
        ));
    }
}

/// Converts `dynamic_batching`.
pub(crate) fn batching(
    batching: &pb::ModelDynamicBatching,
    max_batch_size: i32,
    model: &mut ConvertedModel,
) {
    let wanted = usize::try_from(max_batch_size).unwrap_or(0);
    if wanted == 0 {
        model.note("dynamic_batching with max_batch_size = 0: Triton refuses it, and nothing is merged here");
        return;
    }
    let max_batch = wanted.min(BATCH_MAX);
    if max_batch < wanted {
        model.note(format!("max_batch_size = {wanted}: batches have at most {BATCH_MAX} items"));
    }
    model.schedule.mode = Some(ModeText::Async);
    model.schedule.max_batch = Some(max_batch);
    let micros = batching.max_queue_delay_microseconds;
    let delay = Duration::from_micros(micros);
    if delay > QUEUE_DELAY_MAX {
        model.note(format!(
            "max_queue_delay_microseconds = {micros}: requests wait at most {} s for others",
            QUEUE_DELAY_MAX.as_secs()
        ));
    }
    model.schedule.max_queue_delay = (micros > 0).then_some(delay.min(QUEUE_DELAY_MAX));
    let sizes = batching.preferred_batch_size.iter().filter_map(|size| usize::try_from(*size).ok());
    let mut sizes: Vec<usize> = sizes.filter(|size| (1..=max_batch).contains(size)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    model.schedule.preferred_batch_sizes = (!sizes.is_empty()).then_some(sizes);
    if batching.preserve_ordering {
        model.note("preserve_ordering: responses are sent as they are ready");
    }
    let limits = limits("default_queue_policy", batching.default_queue_policy.as_ref(), model);
    model.schedule.queue = limits.queue;
    model.schedule.timeout = limits.timeout;
    priorities(batching, model);
}

/// Converts the priority levels and their queue policies.
fn priorities(batching: &pb::ModelDynamicBatching, model: &mut ConvertedModel) {
    let wanted = usize::try_from(batching.priority_levels).unwrap_or(usize::MAX);
    if wanted == 0 {
        return;
    }
    let levels = wanted.min(PRIORITY_LEVELS_MAX);
    if levels < wanted {
        model.note(format!("priority_levels = {wanted}: at most {PRIORITY_LEVELS_MAX}"));
    }
    let level = |level: usize| {
        let policy = batching.priority_queue_policy.get(&(level as u64));
        limits(&format!("priority_queue_policy {level}"), policy, model)
    };
    let texts = (1..=levels).map(level).collect();
    model.schedule.priorities = Some(texts);
    let default = usize::try_from(batching.default_priority_level).unwrap_or(levels);
    model.schedule.default_priority = Some(default.clamp(1, levels));
}

/// Returns the limits of a queue.
fn limits(
    name: &str,
    policy: Option<&pb::ModelQueuePolicy>,
    model: &mut ConvertedModel,
) -> PriorityText {
    let Some(policy) = policy else { return PriorityText::default() };
    let micros = policy.default_timeout_microseconds;
    let is_delay = policy.timeout_action() == TimeoutAction::Delay;
    if micros > 0 && is_delay {
        model.note(format!(
            "{name} timeout_action DELAY: here, a request past its timeout is refused; the timeout was left out"
        ));
    } else if micros > 0 && !policy.allow_timeout_override {
        model.note(format!(
            "{name} allow_timeout_override = false: requests may set a timeout of their own"
        ));
    }
    PriorityText {
        queue: (policy.max_queue_size > 0).then_some(policy.max_queue_size as usize),
        timeout: (micros > 0 && !is_delay).then(|| Duration::from_micros(micros)),
    }
}
