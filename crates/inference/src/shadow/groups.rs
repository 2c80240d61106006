//! Groups of copies that may run together.
//!
//! A run of one copy reads all parameters of the model, and takes the memory's bandwidth and the
//! processor's cache from the runs of clients. Copies that run together read them once.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use lifecycle::RolloutMeasures;

use super::ShadowJob;

/// Maximum number of copies in a group.
pub(super) const GROUP_MAX: usize = 16;
/// Longest time that a copy waits for others. The latency of copies is not judged.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// The copies that wait.
pub(super) struct CopyGroups {
    jobs: Receiver<ShadowJob>,
    /// First copy of the next group.
    next: Option<ShadowJob>,
    /// Last rollout whose copies must not be joined.
    separate: Option<Arc<RolloutMeasures>>,
}

impl CopyGroups {
    pub(super) fn new(jobs: Receiver<ShadowJob>) -> CopyGroups {
        CopyGroups { jobs, next: None, separate: None }
    }

    /// Waits for a copy, and for others for the same outputs of the same candidate, until they fill
    /// a batch of it. Returns `None` if the sender is dropped and no copy is left.
    pub(super) fn next(&mut self) -> Option<Vec<ShadowJob>> {
        let first = self.next.take().or_else(|| self.jobs.recv().ok())?;
        let items_max = first.request.candidate.schedule().max_batch;
        let mut items = first.items();
        let mut group = vec![first];
        if !self.may_join(&group[0]) {
            return Some(group);
        }
        let until = Instant::now() + WAIT_MAX;
        while group.len() < GROUP_MAX && items < items_max {
            let wait = until.saturating_duration_since(Instant::now());
            let Ok(job) = self.jobs.recv_timeout(wait) else { break };
            items = items.saturating_add(job.items());
            if !is_same_question(&group[0], &job) || items > items_max {
                self.next = Some(job);
                break;
            }
            group.push(job);
        }
        Some(group)
    }

    /// Runs the later copies of the group's rollout one by one.
    pub(super) fn separate(&mut self, group: &[ShadowJob]) {
        self.separate = group.first().map(|job| job.request.measures.clone());
    }

    fn may_join(&self, job: &ShadowJob) -> bool {
        let candidate = &job.request.candidate;
        let is_separate = |rollout| Arc::ptr_eq(rollout, &job.request.measures);
        candidate.plan().batchable
            && !candidate.mixes_items()
            && !self.separate.as_ref().is_some_and(is_separate)
    }
}

/// Returns true if two copies are for the same outputs of the same candidate.
fn is_same_question(a: &ShadowJob, b: &ShadowJob) -> bool {
    Arc::ptr_eq(&a.request.candidate, &b.request.candidate)
        && Arc::ptr_eq(&a.request.measures, &b.request.measures)
        && a.request.outputs == b.request.outputs
}
