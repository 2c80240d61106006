//! Requests for work on backups, and their states.

use std::sync::Arc;

use base::Result;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::create::BackupExtent;
use crate::list::BackupId;
use crate::policy::RetentionPolicy;
use crate::restore::RestoreTarget;
use crate::transfer::BackupProgress;

/// Request for work on backups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupRequest {
    /// Backs up a collection.
    Backup {
        /// Name or alias of the collection.
        collection: String,
        /// Extent of the backup.
        extent: BackupExtent,
    },
    /// Makes a collection from a backup.
    Restore {
        /// Name of the collection that was backed up.
        collection: String,
        /// Id of the backup; `None` is the newest.
        backup: Option<BackupId>,
        /// Collection that is made.
        target: RestoreTarget,
    },
    /// Copies a collection within this machine.
    Clone {
        /// Name or alias of the collection.
        collection: String,
        /// Name of the copy.
        to: String,
    },
    /// Compares objects with their checksums.
    Verify {
        /// Name of the collection that was backed up.
        collection: String,
        /// Id of the backup; `None` is all of the collection.
        backup: Option<BackupId>,
    },
    /// Removes backups by a policy.
    Prune {
        /// Name of the collection that was backed up.
        collection: String,
        /// Policy that chooses the backups that stay.
        policy: RetentionPolicy,
    },
    /// Removes a backup.
    Delete {
        /// Name of the collection that was backed up.
        collection: String,
        /// Id of the backup.
        backup: BackupId,
    },
}

impl BackupRequest {
    /// Returns the name of the work.
    pub fn work(&self) -> &'static str {
        match self {
            BackupRequest::Backup { .. } => "backup",
            BackupRequest::Restore { .. } => "restore",
            BackupRequest::Clone { .. } => "clone",
            BackupRequest::Verify { .. } => "verify",
            BackupRequest::Prune { .. } => "prune",
            BackupRequest::Delete { .. } => "delete",
        }
    }

    /// Returns the name of the collection.
    pub fn collection(&self) -> &str {
        match self {
            BackupRequest::Backup { collection, .. }
            | BackupRequest::Restore { collection, .. }
            | BackupRequest::Clone { collection, .. }
            | BackupRequest::Verify { collection, .. }
            | BackupRequest::Prune { collection, .. }
            | BackupRequest::Delete { collection, .. } => collection,
        }
    }
}

/// Progress of a queued request.
#[derive(Clone, Debug)]
pub enum BackupJobState {
    /// The job waits for the thread.
    Waiting,
    /// The job is being worked on.
    Running,
    /// The job has ended with this report or error.
    Ended(Result<Value>),
}

/// A request and its state.
#[derive(Clone, Debug)]
pub struct BackupJob {
    /// Number since the start of the server, from 1.
    pub number: u64,
    /// Work that the client requested.
    pub request: BackupRequest,
    /// Step that the job has reached, with its report at the end.
    pub state: BackupJobState,
    /// Bytes copied so far, and the flag that stops the job.
    pub progress: Arc<BackupProgress>,
}

/// An accepted request.
pub struct SubmittedJob {
    /// Number, for [`BackupService::job`](super::BackupService::job).
    pub number: u64,
    /// Receives the outcome. The work continues if this is dropped.
    pub outcome: oneshot::Receiver<Result<Value>>,
}
