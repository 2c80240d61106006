//! Counters of the scheduler over the last seconds.

use std::collections::VecDeque;

use schedule::{BATCH_SIZE_BOUNDS, ModelSnapshot};
use serde::Serialize;

/// Seconds over which batch sizes, padding and refusals are summed.
const WINDOW_SECONDS: usize = 10;

/// Counters of the scheduler over the last [`WINDOW_SECONDS`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct SchedulerWindow {
    pub(crate) seconds: usize,
    pub(crate) requests: u64,
    pub(crate) batches: u64,
    pub(crate) items: u64,
    /// Runs by batch size, in the buckets of [`BATCH_SIZE_BOUNDS`].
    pub(crate) batch_sizes: Vec<u64>,
    pub(crate) real_elements: u64,
    pub(crate) padding_elements: u64,
    pub(crate) refused: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) reruns: u64,
}

impl SchedulerWindow {
    /// Returns the differences from `before` to `after`. A counter that decreased (a model that was
    /// removed and added again) gives 0.
    fn between(before: &ModelSnapshot, after: &ModelSnapshot, seconds: usize) -> SchedulerWindow {
        let sizes = after.batch_sizes.iter().zip(&before.batch_sizes);
        SchedulerWindow {
            seconds,
            requests: after.requests.saturating_sub(before.requests),
            batches: after.batches.saturating_sub(before.batches),
            items: after.items.saturating_sub(before.items),
            batch_sizes: sizes.map(|(after, before)| after.saturating_sub(*before)).collect(),
            real_elements: after.real_elements.saturating_sub(before.real_elements),
            padding_elements: after.padding_elements.saturating_sub(before.padding_elements),
            refused: after.refused.saturating_sub(before.refused),
            expired: after.expired.saturating_sub(before.expired),
            cancelled: after.cancelled.saturating_sub(before.cancelled),
            reruns: after.reruns.saturating_sub(before.reruns),
        }
    }
}

/// Adds the counters of a second. Keeps the counters of the window.
pub(crate) fn push(totals: &mut VecDeque<ModelSnapshot>, counters: &ModelSnapshot) {
    if totals.is_empty() {
        // Counts from before the first scan belong to the second that ends now.
        let model = counters.model.clone();
        totals.push_back(ModelSnapshot { model, ..ModelSnapshot::default() });
    }
    if let Some(last) = totals.back_mut() {
        last.classes = Vec::new();
    }
    totals.push_back(counters.clone());
    while totals.len() > WINDOW_SECONDS + 1 {
        totals.pop_front();
    }
}

/// Returns the counters over the window, and the newest; `None` before the first.
pub(crate) fn of(totals: &VecDeque<ModelSnapshot>) -> Option<(SchedulerWindow, &ModelSnapshot)> {
    let first = totals.front()?;
    let last = totals.back()?;
    Some((SchedulerWindow::between(first, last, totals.len() - 1), last))
}

/// Returns the labels of the buckets of [`SchedulerWindow::batch_sizes`].
pub(crate) fn batch_size_names() -> Vec<String> {
    let mut below = 0;
    let mut names: Vec<String> = Vec::with_capacity(BATCH_SIZE_BOUNDS.len() + 1);
    for bound in BATCH_SIZE_BOUNDS {
        let only = below + 1 == bound;
        names.push(if only { bound.to_string() } else { format!("{}\u{2013}{bound}", below + 1) });
        below = bound;
    }
    names.push(format!("> {below}"));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(requests: u64, padding: u64) -> ModelSnapshot {
        let mut found = ModelSnapshot { model: "m".into(), ..ModelSnapshot::default() };
        (found.requests, found.padding_elements, found.queued) = (requests, padding, 3);
        found.batch_sizes[2] = requests;
        found
    }

    #[test]
    fn counters_are_of_the_last_seconds() {
        let mut totals = VecDeque::new();
        push(&mut totals, &counters(5, 5));
        let first = of(&totals).map(|(window, _)| window.requests);
        assert_eq!(first, Some(5), "the first scan counts the requests before it");
        for step in 1..=30 {
            push(&mut totals, &counters(5 + 2 * step, 5 + 2 * step));
        }
        let (seen, now) = of(&totals).unwrap();
        assert_eq!((seen.seconds, seen.requests, seen.padding_elements), (10, 20, 20));
        assert_eq!((seen.batch_sizes[2], now.requests), (20, 65));
        push(&mut totals, &counters(1, 1));
        assert_eq!(of(&totals).map(|(seen, _)| seen.requests), Some(0));
    }

    #[test]
    fn buckets_have_names() {
        let names = batch_size_names();
        assert_eq!(&names[..4], ["1", "2", "3\u{2013}4", "5\u{2013}8"]);
        assert_eq!(names.len(), BATCH_SIZE_BOUNDS.len() + 1);
        assert_eq!(names.last().map(String::as_str), Some("> 2048"));
    }
}
