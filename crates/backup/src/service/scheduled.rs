//! The backups of the schedule.

use std::sync::Arc;
use std::time::Duration;

use base::{ErrorKind, Result};
use chrono::Utc;
use crossbeam_channel::Receiver;
use model_store::block_on;
use search::registry::{ListedState, NamedCollection};
use serde_json::Value;

use super::work::{catch_panic, report};
use super::{BackupJob, BackupJobState, BackupRequest, QueuedJob, ServiceShared};
use crate::create::BackupExtent;
use crate::list::BackupId;
use crate::policy::RetentionPolicy;
use crate::prune::prune;
use crate::transfer::BackupContext;

impl ServiceShared {
    /// Backs up all collections that have changed, and removes backups by the policy. Skips
    /// collections with a backup that is younger than `young`. Returns the time until the oldest of
    /// these backups has that age. Requests that arrive meanwhile are handled between two
    /// collections.
    pub(super) fn back_up_all(
        &self,
        requests: &Receiver<QueuedJob>,
        young: Option<Duration>,
    ) -> Option<Duration> {
        let registry = self.access.open_already()?;
        let store = self.store();
        let store = store.inspect_err(|error| {
            tracing::error!(%error, "scheduled backups cannot be made: the store cannot be opened");
        });
        let store = store.ok()?;
        let mut next: Option<Duration> = None;
        for listed in registry.list() {
            let ListedState::Ready(named) = listed.state else { continue };
            while let Ok(job) = requests.try_recv() {
                self.run(job);
            }
            if let Some(age) = young
                && let Ok(ids) = block_on(store.ids(&listed.name))
                && let Some(left) = time_to_age(ids.iter().max(), age)
            {
                next = Some(next.map_or(left, |next| next.min(left)));
                continue;
            }
            let progress = self.begin_scheduled(&listed.name)?;
            let context =
                BackupContext { store: &store, pacer: &self.pacer, progress: &progress.progress };
            let work = || self.back_up_scheduled(&context, &named);
            if !self.run_scheduled(progress.number, &listed.name, work) {
                return None;
            }
        }
        next
    }

    /// Does the work of a job of the schedule, and keeps its outcome. Returns false if the thread
    /// should end.
    pub(super) fn run_scheduled(
        &self,
        number: u64,
        collection: &str,
        work: impl FnOnce() -> Result<Value>,
    ) -> bool {
        let result = catch_panic(work);
        if let Err(error) = &result {
            if error.kind() == ErrorKind::Cancelled {
                return false;
            }
            tracing::error!(collection, %error, "a scheduled backup has failed");
        }
        self.count("backup", &result);
        self.end(number, result);
        true
    }

    /// Adds a backup of the schedule to the table. Returns `None` if the thread should end.
    pub(super) fn begin_scheduled(&self, collection: &str) -> Option<BackupJob> {
        let mut table = self.table.lock();
        // Under the lock: a shutdown then finds the job in the table and stops it.
        if self.is_stopping() {
            return None;
        }
        table.next += 1;
        let job = BackupJob {
            number: table.next,
            request: BackupRequest::Backup {
                collection: collection.to_owned(),
                extent: BackupExtent::Changed,
            },
            state: BackupJobState::Running,
            progress: Arc::default(),
        };
        table.jobs.push_back(job.clone());
        Some(job)
    }

    fn back_up_scheduled(
        &self,
        context: &BackupContext<'_>,
        named: &NamedCollection,
    ) -> Result<Value> {
        let made = self.back_up(context, named, BackupExtent::Changed)?;
        if self.config.keep != RetentionPolicy::default() && !made.unchanged {
            block_on(prune(context, named.name(), &self.config.keep, self.config.grace))?;
        }
        report(&made)
    }
}

/// Returns the time until a backup is `age` old; `None` if it is, or if there is none.
fn time_to_age(newest: Option<&BackupId>, age: Duration) -> Option<Duration> {
    let left = age.checked_sub(newest?.age(Utc::now()))?;
    (!left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_due_at_its_age() {
        let hour = Duration::from_secs(3600);
        assert_eq!(time_to_age(None, hour), None);
        let now = BackupId::now();
        let left = time_to_age(Some(&now), hour);
        assert!(left.is_some_and(|left| left <= hour), "{left:?}");
        let old: BackupId = "20200101T000000000Z-00000000".parse().unwrap();
        assert_eq!(time_to_age(Some(&old), hour), None);
        // The clock of its server was wrong.
        let ahead: BackupId = "20990101T000000000Z-00000000".parse().unwrap();
        assert_eq!(time_to_age(Some(&ahead), hour), Some(hour));
    }
}
