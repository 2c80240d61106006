//! Groups of copies that may run together.
//!
//! A run of one copy reads all parameters of the model, and takes the memory's bandwidth and the
//! processor's cache from the runs of clients. Copies that run together read them once.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

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
}

impl CopyGroups {
    pub(super) fn new(jobs: Receiver<ShadowJob>) -> CopyGroups {
        CopyGroups { jobs, next: None }
    }

    /// Waits for a copy, and for others for the same outputs of the same candidate, until they fill
    /// a batch of it. Returns `None` if the sender is dropped and no copy is left.
    pub(super) fn next(&mut self) -> Option<Vec<ShadowJob>> {
        let first = self.next.take().or_else(|| self.jobs.recv().ok())?;
        let items_max = first.request.candidate.schedule().max_batch;
        let mut items = first.items();
        let mut group = vec![first];
        if !may_join(&group[0]) {
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

    /// Passes the groups on until one side ends. Waits while the receiver runs a group.
    pub(super) fn pass_on(mut self, groups: &SyncSender<Vec<ShadowJob>>) {
        while let Some(group) = self.next() {
            if groups.send(group).is_err() {
                return;
            }
        }
    }
}

fn may_join(job: &ShadowJob) -> bool {
    let candidate = &job.request.candidate;
    candidate.plan().batchable
        && !candidate.mixes_items()
        && !job.request.measures.copies_run_alone()
}

/// Returns true if two copies are for the same outputs of the same candidate.
fn is_same_question(a: &ShadowJob, b: &ShadowJob) -> bool {
    Arc::ptr_eq(&a.request.candidate, &b.request.candidate)
        && Arc::ptr_eq(&a.request.measures, &b.request.measures)
        && a.request.outputs == b.request.outputs
}
