//! State and counts of a job.

use base::Result;
use serde::{Deserialize, Serialize};

use super::DuplicateOptions;
use super::store::DuplicateStore;

/// State of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DuplicateState {
    /// The job runs, or ran when the server ended. The same request continues it.
    #[default]
    Running,
    /// All points were compared.
    Done,
    /// The job was cancelled. The same request continues it.
    Cancelled,
    /// The job ended with an error.
    Failed,
}

/// Progress of a job, kept in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DuplicateProgress {
    /// Options of the job.
    pub options: DuplicateOptions,
    /// State of the job.
    pub state: DuplicateState,
    /// Error of a failed job.
    pub error: Option<String>,
    /// Points visited. Points that a merge moves are visited again and count again.
    pub done: u64,
    /// Live points when the job began or was continued.
    pub total: u64,
    /// Pairs with a similarity above the threshold. A pair that keypoints refuse may count twice.
    pub candidates: u64,
    /// Candidates that the keypoints refused.
    pub refused: u64,
    /// Pairs found.
    pub pairs: u64,
    /// Points or records that could not be read.
    pub unreadable: u64,
    /// Seconds of work, over all starts.
    pub seconds: f64,
}

impl DuplicateProgress {
    /// Creates the progress of a job that has not begun.
    #[must_use]
    pub fn new(options: DuplicateOptions) -> DuplicateProgress {
        DuplicateProgress {
            options,
            state: DuplicateState::Running,
            error: None,
            done: 0,
            total: 0,
            candidates: 0,
            refused: 0,
            pairs: 0,
            unreadable: 0,
            seconds: 0.0,
        }
    }

    /// Reads the progress of a collection's job. Returns `None` if there was none.
    ///
    /// # Errors
    /// `DataLoss` for a damaged file. Otherwise the error of the file system.
    pub fn read(store: &DuplicateStore) -> Result<Option<DuplicateProgress>> {
        store.state()
    }

    /// Returns true if a job with these options continues this one.
    #[must_use]
    pub fn continues(&self, options: &DuplicateOptions) -> bool {
        let same =
            self.options.threshold == options.threshold && self.options.accept == options.accept;
        same && self.state != DuplicateState::Done
    }

    /// Begins or continues the job with `options` on `total` live points.
    pub fn start(&mut self, options: DuplicateOptions, total: u64) {
        self.options = options;
        self.state = DuplicateState::Running;
        self.error = None;
        self.total = total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_continues_with_the_same_threshold_and_score() {
        let options =
            DuplicateOptions { threshold: 0.9, accept: None, points_per_second: 0, threads: 2 };
        let mut progress = DuplicateProgress::new(options);
        progress.state = DuplicateState::Failed;
        assert!(progress.continues(&DuplicateOptions { points_per_second: 5, ..options }));
        assert!(!progress.continues(&DuplicateOptions { accept: Some(1.0), ..options }));
        assert!(!progress.continues(&DuplicateOptions { threshold: 0.8, ..options }));
        progress.error = Some("why".to_owned());
        progress.start(options, 7);
        assert_eq!((progress.state, progress.error.as_ref()), (DuplicateState::Running, None));
        assert_eq!(progress.total, 7);
        progress.state = DuplicateState::Done;
        assert!(!progress.continues(&options));
    }
}
