//! Backups of a schedule: one node of the cluster backs up each collection that has changed.
//!
//! If two nodes do this at the same time, for example because one of them does not reach etcd, both
//! make complete backups, and each removes backups that the schedule does not keep.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use backup::BackupId;
use base::{ErrorKind, Result};

use super::catalog::StoreCatalog;
use super::services::NodeServices;
use crate::backups::{BackupSchedule, BackupSet, ClusterBackups};
use crate::types::{CollectionRecord, ViewSource};

/// Time between two checks for a collection whose backup is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Longest pause after a backup that has failed.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1800);
/// Time for which another node must be the one that makes backups before this node stops a backup.
/// So a new lease of this node stops none. Shorter than the interval of the other node's checks.
const STOP_AFTER: Duration = Duration::from_secs(5);

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
            // A pass may take hours. Collections are removed, and nodes come and go meanwhile.
            let now = services.view.current();
            if !now.is_collector(&services.name) {
                break;
            }
            let Some(record) = now.by_id(id).cloned() else { continue };
            if !failed.may_begin(id, Instant::now()) {
                continue;
            }
            let stop = other_collects(services.view.clone(), &services.name, STOP_AFTER);
            let outcome = back_up_if_due(&backups, &record, schedule, stop).await;
            failed.note(id, outcome.is_ok(), Instant::now(), schedule.every);
            if let Err(error) = outcome {
                tracing::error!(collection = record.name, %error, "a scheduled backup has failed");
            }
        }
    }
}

/// Returns once another node has made the backups instead of the node `name` for `time`.
async fn other_collects(mut view: ViewSource, name: &str, time: Duration) {
    loop {
        while !view.current().has_other_collector(name) {
            view.changed().await;
        }
        let ends = async {
            while view.current().has_other_collector(name) {
                view.changed().await;
            }
        };
        if tokio::time::timeout(time, ends).await.is_err() {
            return;
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
/// that the schedule does not keep. If `stop` ends first, the backup is stopped: another node makes
/// it, and continues with its copies.
///
/// # Errors
/// As [`ClusterBackups::create`] and [`ClusterBackups::delete`].
pub(crate) async fn back_up_if_due(
    backups: &ClusterBackups,
    record: &CollectionRecord,
    schedule: BackupSchedule,
    stop: impl Future<Output = ()>,
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
    let Some(made) = backups.create_until(record, stop).await? else {
        tracing::info!(collection = record.name, "another node makes the scheduled backup");
        return Ok(());
    };
    let Some(keep) = schedule.keep_newest else { return Ok(()) };
    // Listed again: a backup may take hours, and others are made and removed meanwhile.
    let listed = backups.list_own(record).await?;
    for old in replaced(&ids(&sets), &ids(&listed), &made.id, keep) {
        match backups.delete(&record.name, &old).await {
            // A client or another node has removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            deleted => deleted?,
        }
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
    use crate::types::{NodeInfo, Roles, ViewUpdater};

    #[tokio::test]
    async fn another_node_stops_a_backup_after_a_while() {
        let view = ViewUpdater::new();
        let add = |name: &str| {
            let name = name.to_owned();
            let node = NodeInfo { name, roles: Roles::ALL, weight: 1, ..NodeInfo::default() };
            view.update(|view| drop(view.nodes.insert(node.name.clone(), node)));
        };
        add("b");
        let stops = async |time: Duration| {
            let stop = other_collects(view.source(), "b", time);
            tokio::time::timeout(Duration::from_millis(50), stop).await.is_ok()
        };
        assert!(!stops(Duration::ZERO).await, "this node makes the backups");
        view.update(|view| view.nodes.clear());
        assert!(!stops(Duration::ZERO).await, "no other node makes them");
        add("b");
        add("c");
        assert!(!stops(Duration::ZERO).await, "it is still the first");
        add("a");
        assert!(!stops(Duration::from_secs(3600)).await, "it may be the first again soon");
        other_collects(view.source(), "b", Duration::ZERO).await;
    }

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
