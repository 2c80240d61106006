//! The backups of the schedule.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// Pause after backups of the schedule that have failed, before they are tried again. The cause,
/// such as a network that is down, may end long before the next backup is due.
const RETRY_PAUSE: Duration = Duration::from_secs(600);

/// Moment of the last backup of the schedule that did not fail, by collection. It counts also if
/// the collection had not changed. Then the newest backup can be old.
pub(super) type DoneBackups = BTreeMap<String, Instant>;

/// Result of the backups of all collections.
#[derive(Debug, Default)]
pub(super) struct SchedulePass {
    /// Time until a backup that was too young is due.
    next: Option<Duration>,
    /// True if the backup of a collection has failed.
    pub(super) failed: bool,
}

impl SchedulePass {
    /// Returns the result if no collection could be backed up.
    pub(super) fn failure() -> SchedulePass {
        SchedulePass { next: None, failed: true }
    }

    /// Returns the pause until the next backups. They are due after `every`.
    pub(super) fn pause(&self, every: Duration) -> Duration {
        let retry = self.failed.then_some(RETRY_PAUSE);
        self.next.into_iter().chain(retry).fold(every, Duration::min)
    }
}

/// Outcome of a backup of the schedule.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ScheduledOutcome {
    Done,
    Failed,
    /// The collection was removed or replaced meanwhile.
    Removed,
    /// The thread should end.
    Stopped,
}

impl ServiceShared {
    /// Backs up all collections that have changed, and removes backups by the policy. Skips
    /// collections that are done, or have a backup, for less than `young`. Requests that arrive
    /// meanwhile are handled between two collections.
    pub(super) fn back_up_all(
        &self,
        requests: &Receiver<QueuedJob>,
        young: Option<Duration>,
        done: &mut DoneBackups,
    ) -> SchedulePass {
        let mut pass = SchedulePass::default();
        done.retain(|_, at| young.is_some_and(|age| at.elapsed() < age));
        let Some(registry) = self.access.open_already() else { return pass };
        let store = self.store();
        let store = store.inspect_err(|error| {
            tracing::error!(%error, "scheduled backups cannot be made: the store cannot be opened");
        });
        let Ok(store) = store else { return SchedulePass::failure() };
        for listed in registry.list() {
            let ListedState::Ready(named) = listed.state else { continue };
            while let Ok(job) = requests.try_recv() {
                self.run(job);
            }
            // It may have been removed or replaced since the list was read.
            let named = if named.removed() { registry.get(&listed.name).ok() } else { Some(named) };
            let Some(named) = named.filter(|named| named.name() == listed.name) else { continue };
            let left = young.and_then(|age| match done.get(&listed.name) {
                Some(at) => Some(age.saturating_sub(at.elapsed())),
                None => {
                    let ids = block_on(store.ids(&listed.name)).ok()?;
                    time_to_age(ids.iter().max(), age)
                }
            });
            if let Some(left) = left {
                pass.next = Some(pass.next.map_or(left, |next| next.min(left)));
                continue;
            }
            let Some(progress) = self.begin_scheduled(&listed.name) else { return pass };
            let context =
                BackupContext { store: &store, pacer: &self.pacer, progress: &progress.progress };
            let work = || self.back_up_scheduled(&context, &named);
            match self.run_scheduled(progress.number, &listed.name, work, || named.removed()) {
                ScheduledOutcome::Done => {
                    done.insert(listed.name, Instant::now());
                }
                ScheduledOutcome::Failed => pass.failed = true,
                // A collection that took the name meanwhile still needs a backup.
                ScheduledOutcome::Removed => pass.failed |= registry.get(&listed.name).is_ok(),
                ScheduledOutcome::Stopped => return pass,
            }
        }
        pass
    }

    /// Does the work of a job of the schedule, and keeps its outcome. If the work has failed and
    /// `removed` returns true, it counts neither as done nor as failed.
    pub(super) fn run_scheduled(
        &self,
        number: u64,
        collection: &str,
        work: impl FnOnce() -> Result<Value>,
        removed: impl FnOnce() -> bool,
    ) -> ScheduledOutcome {
        let result = catch_panic(work);
        let outcome = match &result {
            Ok(_) => ScheduledOutcome::Done,
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                return ScheduledOutcome::Stopped;
            }
            Err(error) if removed() => {
                tracing::info!(collection, %error, "a scheduled backup has ended");
                ScheduledOutcome::Removed
            }
            Err(error) => {
                tracing::error!(collection, %error, "a scheduled backup has failed");
                ScheduledOutcome::Failed
            }
        };
        if outcome != ScheduledOutcome::Removed {
            self.count("backup", &result);
        }
        self.end(number, result);
        outcome
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
    fn failed_backups_are_tried_again_before_they_are_due() {
        let day = Duration::from_secs(24 * 3600);
        let hour = Duration::from_secs(3600);
        let pass = |next, failed| SchedulePass { next, failed };
        assert_eq!(pass(None, false).pause(day), day);
        assert_eq!(pass(Some(hour), false).pause(day), hour);
        assert_eq!(pass(Some(hour), true).pause(day), RETRY_PAUSE);
        assert_eq!(SchedulePass::failure().pause(day), RETRY_PAUSE);
        let minute = Duration::from_secs(60);
        assert_eq!(SchedulePass::failure().pause(minute), minute);
    }

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
