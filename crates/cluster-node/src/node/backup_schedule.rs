//! Backups of a schedule: one node of the cluster backs up each collection that has changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use backup::BackupId;
use base::Result;

use super::catalog::StoreCatalog;
use super::services::NodeServices;
use crate::backups::{BackupSchedule, BackupSet, ClusterBackups};
use crate::types::CollectionRecord;

/// Time between two checks for a collection whose backup is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Longest pause after a backup that has failed.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1800);

/// Collections whose last backup has failed, by id, and the time at which the next may begin.
#[derive(Default)]
struct FailedBackups(BTreeMap<String, Instant>);

impl FailedBackups {
    fn may_begin(&self, id: &str, now: Instant) -> bool {
        self.0.get(id).is_none_or(|begin| now >= *begin)
    }

    /// Records the outcome of a backup, and forgets collections whose pause has ended.
    fn note(&mut self, id: &str, is_ok: bool, now: Instant, every: Duration) {
        self.0.retain(|_, begin| now < *begin);
        if !is_ok {
            self.0.insert(id.to_owned(), now + every.min(RETRY_PAUSE_MAX));
        }
    }
}

/// Makes backups until the task is dropped.
pub(super) async fn run(
    services: Arc<NodeServices>,
    catalog: Arc<StoreCatalog>,
    backups: Arc<ClusterBackups>,
) {
    let Some(schedule) = backups.schedule() else { return };
    let mut failed = FailedBackups::default();
    loop {
        tokio::time::sleep(CHECK_INTERVAL.min(schedule.every)).await;
        let view = services.view.current();
        if !catalog.is_whole() || !view.is_collector(&services.name) {
            continue;
        }
        for id in view.collections.values().map(|record| &record.id) {
            // A pass may take hours, and collections are removed meanwhile.
            let Some(record) = services.view.current().by_id(id).cloned() else { continue };
            if !failed.may_begin(id, Instant::now()) {
                continue;
            }
            let outcome = back_up_if_due(&backups, &record, schedule).await;
            failed.note(id, outcome.is_ok(), Instant::now(), schedule.every);
            if let Err(error) = outcome {
                tracing::error!(collection = record.name, %error, "a scheduled backup has failed");
            }
        }
    }
}

/// Returns the age of a backup; `None` if it was created more than `every` after `now`. The clock
/// of its node was wrong then, and the collection would have no further backup until that time.
fn age(created: SystemTime, now: SystemTime, every: Duration) -> Option<Duration> {
    match now.duration_since(created) {
        Ok(age) => Some(age),
        Err(ahead) if ahead.duration() <= every => Some(Duration::ZERO),
        Err(_) => None,
    }
}

/// Backs a collection up if it has changed and its last backup is old. Then removes backups of it
/// that the schedule does not keep.
///
/// # Errors
/// As [`ClusterBackups::create`] and [`ClusterBackups::delete`].
pub(crate) async fn back_up_if_due(
    backups: &ClusterBackups,
    record: &CollectionRecord,
    schedule: BackupSchedule,
) -> Result<()> {
    // Backups of other collections of the name neither make this one appear backed up nor are
    // removed.
    let sets = backups.list_own(record).await?;
    let now = SystemTime::now();
    let newest = sets.iter().rev().find_map(|set| {
        let age = age(set.id.created().into(), now, schedule.every)?;
        Some((set, age))
    });
    if let Some((newest, age)) = newest
        && (age < schedule.every || !backups.has_changed(record, newest).await?)
    {
        return Ok(());
    }
    let made = backups.create(record).await?;
    let Some(keep) = schedule.keep_newest else { return Ok(()) };
    // Listed again: a backup may take hours, and others are made and removed meanwhile.
    let listed = backups.list_own(record).await?;
    for old in replaced(&ids(&sets), &ids(&listed), &made.id, keep) {
        backups.delete(&record.name, &old).await?;
    }
    Ok(())
}

fn ids(sets: &[BackupSet]) -> Vec<BackupId> {
    sets.iter().map(|set| set.id.clone()).collect()
}

/// Returns the backups that the new backup `made` replaces if `keep` backups stay. `before` were
/// listed before it began. `listed` are all backups now, oldest first. A backup that a client made
/// meanwhile is one of the newest: it counts, and it stays.
fn replaced(
    before: &[BackupId],
    listed: &[BackupId],
    made: &BackupId,
    keep: usize,
) -> Vec<BackupId> {
    let others = listed.iter().filter(|id| *id != made);
    let removed = others.clone().count().saturating_sub(keep.max(1) - 1);
    others.filter(|id| before.contains(id)).take(removed).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_of_a_wrong_clock_delays_no_other() {
        let (now, every) = (SystemTime::now(), Duration::from_secs(3600));
        assert_eq!(age(now - every, now, every), Some(every));
        // Clocks of nodes differ a little.
        assert_eq!(age(now + Duration::from_secs(2), now, every), Some(Duration::ZERO));
        assert_eq!(age(now + 2 * every, now, every), None);
    }

    #[test]
    fn a_backup_that_a_client_made_meanwhile_stays() {
        let id = |day: u32| -> BackupId {
            format!("202601{day:02}T000000000Z-00000000").parse().unwrap()
        };
        let [old, older, made, other] = [2, 1, 3, 4].map(id);
        let before = [older.clone(), old.clone()];
        let listed = [older.clone(), old.clone(), made.clone(), other];
        let removed = |keep: usize| replaced(&before, &listed, &made, keep);
        assert_eq!(removed(1), before);
        assert_eq!(removed(2), before);
        assert_eq!(removed(3), [older]);
        assert!(removed(4).is_empty());
        // A client removed the oldest one meanwhile.
        assert!(replaced(&before, &listed[1..], &made, 3).is_empty());
    }

    #[test]
    fn the_next_backup_waits_after_a_failure() {
        let (mut failed, now, every) =
            (FailedBackups::default(), Instant::now(), Duration::from_secs(60));
        failed.note("1", false, now, every);
        assert!(!failed.may_begin("1", now + Duration::from_secs(10)));
        assert!(failed.may_begin("2", now));
        assert!(failed.may_begin("1", now + every));
        failed.note("1", true, now + every, every);
        assert!(failed.may_begin("1", now + every));
        assert!(failed.0.is_empty());
    }
}
