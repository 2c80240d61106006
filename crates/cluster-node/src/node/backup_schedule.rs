//! Backups of a schedule: one node of the cluster backs up each collection that has changed.
//!
//! If two nodes do this at the same time, for example because one of them does not reach etcd, both
//! make complete backups. Each removes backups that the schedule does not keep.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use backup::BackupId;
use base::{ErrorKind, Result};

use super::catalog::StoreCatalog;
use super::services::NodeServices;
use crate::backups::{BackupSchedule, ClusterBackups};
use crate::types::{CollectionRecord, ViewSource};

/// Time between two checks for a collection whose backup is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Longest pause after a backup that has failed.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1800);
/// Longest time between two checks of one collection. Its backups may be removed meanwhile.
const CHECK_AGAIN_MAX: Duration = Duration::from_secs(600);
/// Part of the interval after which a collection without a change is checked again. A check reads
/// the end of the log of each shard.
const UNCHANGED_SHARE: u32 = 8;
/// Time for which another node must be the one that makes backups before this node stops a backup.
/// So a new lease of this node stops none. Shorter than the interval of the other node's checks.
const STOP_AFTER: Duration = Duration::from_secs(5);

/// Times before which a collection needs no check, by id. Its last backup is young or has failed,
/// or it has not changed.
#[derive(Default)]
struct NextChecks(BTreeMap<String, Instant>);

impl NextChecks {
    fn is_due(&self, id: &str, now: Instant) -> bool {
        self.0.get(id).is_none_or(|next| now >= *next)
    }

    /// Forgets collections that are due.
    fn forget_due(&mut self, now: Instant) {
        self.0.retain(|_, next| now < *next);
    }

    /// Records the outcome of a check, which is the time until the next one.
    fn note(&mut self, id: &str, outcome: &Result<Duration>, now: Instant, every: Duration) {
        let pause = match outcome {
            Ok(pause) => (*pause).min(CHECK_AGAIN_MAX),
            Err(_) => every.min(RETRY_PAUSE_MAX),
        };
        self.0.insert(id.to_owned(), now + pause);
    }
}

/// Makes backups until the task is dropped.
pub(super) async fn run(
    services: Arc<NodeServices>,
    catalog: Arc<StoreCatalog>,
    backups: Arc<ClusterBackups>,
) {
    let Some(schedule) = backups.schedule() else { return };
    let mut checks = NextChecks::default();
    loop {
        tokio::time::sleep(CHECK_INTERVAL.min(schedule.every)).await;
        let view = services.view.current();
        if !catalog.is_whole() || !view.is_collector(&services.name) {
            continue;
        }
        checks.forget_due(Instant::now());
        for id in view.collections.values().map(|record| &record.id) {
            // A pass may take hours. Collections are removed, and nodes come and go meanwhile.
            let now = services.view.current();
            if !now.is_collector(&services.name) {
                break;
            }
            let Some(record) = now.by_id(id).cloned() else { continue };
            if !checks.is_due(id, Instant::now()) {
                continue;
            }
            let stop = other_collects(services.view.clone(), &services.name, STOP_AFTER);
            let outcome = back_up_if_due(&backups, &record, schedule, stop).await;
            checks.note(id, &outcome, Instant::now(), schedule.every);
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
/// it, and continues with its copies. Returns the time until the next check.
///
/// # Errors
/// As [`ClusterBackups::create`] and [`ClusterBackups::delete`].
pub(crate) async fn back_up_if_due(
    backups: &ClusterBackups,
    record: &CollectionRecord,
    schedule: BackupSchedule,
    stop: impl Future<Output = ()>,
) -> Result<Duration> {
    let before = backups.set_ids(&record.name).await?;
    let now = SystemTime::now();
    let age_of = |id: &BackupId| age(id.created().into(), now, schedule.every);
    // Backups of other collections of the name neither make this one appear backed up nor are
    // removed.
    let newest_first = before.iter().rev().filter(|id| age_of(id).is_some());
    let newest_first: Vec<BackupId> = newest_first.cloned().collect();
    if let Some(newest) = backups.first_own(record, &newest_first).await? {
        let age = age_of(&newest.id).unwrap_or_default();
        if age < schedule.every {
            return Ok(schedule.every - age);
        }
        if !backups.has_changed(record, &newest).await? {
            return Ok(schedule.every / UNCHANGED_SHARE);
        }
    }
    let Some(made) = backups.create_until(record, stop).await? else {
        tracing::info!(collection = record.name, "another node makes the scheduled backup");
        return Ok(Duration::ZERO);
    };
    if let Some(keep) = schedule.keep_newest {
        remove_replaced(backups, record, &before, &made.id, keep).await?;
    }
    Ok(schedule.every)
}

/// Removes the backups that the new backup `made` replaces if `keep` backups stay. `before` were
/// listed before it began, those of other collections of the name included.
///
/// # Errors
/// As [`ClusterBackups::delete`].
async fn remove_replaced(
    backups: &ClusterBackups,
    record: &CollectionRecord,
    before: &[BackupId],
    made: &BackupId,
    keep: usize,
) -> Result<()> {
    // Listed again: a backup may take hours, and others are made and removed meanwhile. Only the
    // descriptions show whose the backups are, and there may be thousands of them.
    if backups.set_ids(&record.name).await?.len() <= keep {
        return Ok(());
    }
    let listed = backups.own_ids(record).await?;
    for old in replaced(before, &listed, made, keep) {
        match backups.delete(&record.name, &old).await {
            // A client or another node has removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            deleted => deleted?,
        }
    }
    Ok(())
}

/// Returns the backups that the new backup `made` replaces if `keep` backups stay. `before` were
/// listed before it began. `listed` are all backups now, oldest first. A backup that a client made
/// meanwhile is one of the newest. It counts, and it stays.
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
    use base::Error;

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
    fn the_next_check_waits() {
        let now = Instant::now();
        let every = Duration::from_secs(60);
        let mut checks = NextChecks::default();
        checks.note("1", &Err(Error::internal("no store")), now, every);
        assert!(!checks.is_due("1", now + Duration::from_secs(10)));
        assert!(checks.is_due("2", now));
        assert!(checks.is_due("1", now + every));
        let day = Duration::from_secs(24 * 3600);
        checks.note("1", &Ok(day), now, day);
        assert!(!checks.is_due("1", now + CHECK_AGAIN_MAX / 2));
        assert!(checks.is_due("1", now + CHECK_AGAIN_MAX), "its backup may be removed");
        checks.forget_due(now + CHECK_AGAIN_MAX);
        assert!(checks.0.is_empty());
    }
}
