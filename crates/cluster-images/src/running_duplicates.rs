//! Searches for duplicates that run on this node.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use search::duplicates::DuplicateProgress;
use tokio::sync::watch;
use transport::{UploadPermit, UploadPermits};

/// Maximum jobs that a root runs, and answers with groups that it writes, at the same time.
const JOBS_MAX: usize = 4;

/// Jobs that run on this node, by the id of the collection.
pub(super) struct RunningDuplicates {
    jobs: Mutex<HashMap<String, Arc<JobControl>>>,
    permits: Arc<UploadPermits>,
}

impl Default for RunningDuplicates {
    fn default() -> RunningDuplicates {
        RunningDuplicates { jobs: Mutex::default(), permits: UploadPermits::new(JOBS_MAX) }
    }
}

/// Connection between a running job and the requests of clients.
pub(super) struct JobControl {
    /// Token of this run.
    pub(super) run: String,
    stop: watch::Sender<bool>,
    progress: Mutex<Option<DuplicateProgress>>,
}

impl JobControl {
    /// Returns the progress; `None` before the first page.
    pub(super) fn progress(&self) -> Option<DuplicateProgress> {
        self.progress.lock().clone()
    }

    pub(super) fn publish(&self, progress: &DuplicateProgress) {
        *self.progress.lock() = Some(progress.clone());
    }

    /// Cancels the job.
    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits until the job is cancelled.
    pub(super) async fn stopped(&self) {
        // The sender is a part of this, so the wait ends with a value.
        let _ = self.stop.subscribe().wait_for(|stop| *stop).await;
    }
}

/// Entry of a job in the list of running jobs, until it is dropped.
pub(super) struct RegisteredJob {
    pub(super) control: Arc<JobControl>,
    collection: String,
    running: Arc<RunningDuplicates>,
}

impl Drop for RegisteredJob {
    fn drop(&mut self) {
        self.running.jobs.lock().remove(&self.collection);
    }
}

impl RunningDuplicates {
    /// Registers a job of a collection. Returns `None` if one runs.
    pub(super) fn insert(self: &Arc<Self>, collection: &str, run: &str) -> Option<RegisteredJob> {
        let mut jobs = self.jobs.lock();
        if jobs.contains_key(collection) {
            return None;
        }
        let control = Arc::new(JobControl {
            run: run.to_owned(),
            stop: watch::Sender::new(false),
            progress: Mutex::default(),
        });
        jobs.insert(collection.to_owned(), control.clone());
        let collection = collection.to_owned();
        let running = self.clone();
        Some(RegisteredJob { control, collection, running })
    }

    /// Returns the running job of a collection.
    pub(super) fn find(&self, collection: &str) -> Option<Arc<JobControl>> {
        self.jobs.lock().get(collection).cloned()
    }

    /// Returns a permit for a job or its groups; `None` if all are taken.
    pub(super) async fn permit(&self) -> Option<UploadPermit> {
        self.permits.acquire().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_has_one_job_on_a_node() {
        let running = Arc::new(RunningDuplicates::default());
        let job = running.insert("c", "1").unwrap();
        assert!(running.insert("c", "2").is_none());
        assert!(running.insert("d", "2").is_some());
        assert!(!job.control.is_stopped());
        running.find("c").unwrap().stop();
        assert!(job.control.is_stopped());
        drop(job);
        assert!(running.find("c").is_none() && running.insert("c", "2").is_some());
    }
}
