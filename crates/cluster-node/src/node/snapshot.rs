//! Snapshots of shards in the object store, by the crate `backup`.
//!
//! The first holder of a shard takes the snapshots. The log begins at the position of the oldest
//! one that is kept, so a node that restores slowly still finds what it needs. A snapshot may
//! contain changes after its position; a restored holder makes them a second time, with the same
//! result.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backup::{
    BackupContext, BackupExtent, BackupId, BackupProgress, BackupStore, RestoreReport,
    RestoreTarget, RetentionPolicy,
};
use base::{Error, ErrorKind, Result};
use cluster::{EntryNumber, SNAPSHOTS_KEPT, SnapshotRead, replaced_snapshots};
use metrics::KindLabels;
use parking_lot::Mutex;
use search::registry::{NamedCollection, Registry};

use super::local::{self, at_low_priority};
use super::services::NodeServices;
use crate::types::{CollectionRecord, ShardKey};
use cluster_log::{FollowPosition, LogFloor, ShardLog};

/// Age up to which snapshots, and objects that none names, are kept, because a restore may take so
/// long. It counts from the time at which the store wrote them, by the store's clock.
const KEPT_FOR: Duration = Duration::from_secs(3600);
/// Shortest time between two snapshots of a shard, and after a failed one.
const INTERVAL_MIN: Duration = Duration::from_secs(60);

/// Local collection to take a snapshot of.
pub(super) struct SnapshotSource {
    pub(super) named: Arc<NamedCollection>,
    /// Position that is recorded with the collection: all entries before it are applied.
    pub(super) recorded: FollowPosition,
}

/// Snapshots that a follower takes.
#[derive(Default)]
pub(super) struct SnapshotState {
    progress: Arc<Mutex<SnapshotProgress>>,
}

#[derive(Default)]
struct SnapshotProgress {
    running: bool,
    /// Position of the newest one that this follower knows.
    newest: FollowPosition,
    /// Time of the last try.
    tried: Option<Instant>,
    failures: SnapshotFailures,
}

/// Failures since the last snapshot. A damaged local copy fails each minute until it is replaced.
/// Only the first of such failures is logged as a warning.
#[derive(Debug, Default)]
struct SnapshotFailures {
    /// Kind of the last failure; `None` after a success.
    last: Option<ErrorKind>,
}

impl SnapshotFailures {
    /// Records a failure. Returns true if the try before did not fail in the same way.
    fn begin(&mut self, kind: ErrorKind) -> bool {
        self.last.replace(kind) != Some(kind)
    }

    /// Records a success. Returns true if the try before has failed.
    fn end(&mut self) -> bool {
        self.last.take().is_some()
    }
}

impl SnapshotProgress {
    /// Records the end of a try, and logs it if failures begin or end.
    fn record(&mut self, key: &ShardKey, taken: Result<FollowPosition>) {
        self.running = false;
        match taken {
            Ok(newest) => {
                self.newest = newest;
                if self.failures.end() {
                    tracing::info!(shard = %key, next = newest.next.0, "snapshots of the shard succeed again");
                }
            }
            Err(error) if self.failures.begin(error.kind()) => {
                tracing::warn!(shard = %key, %error, "no snapshot was taken; it is tried again each minute");
            }
            Err(error) => {
                tracing::debug!(shard = %key, %error, "no snapshot was taken; it is tried again");
            }
        }
    }
}

impl SnapshotState {
    /// Counts entries from `floor` on, or from the newest snapshot.
    pub(super) fn begin_count(&self, floor: FollowPosition) {
        let mut progress = self.progress.lock();
        if progress.newest.next < floor.next {
            progress.newest = floor;
        }
    }

    /// Starts a snapshot in the background if enough entries were applied since the last one.
    pub(super) fn begin_if_due(
        &self,
        services: &Arc<NodeServices>,
        key: &ShardKey,
        record: &CollectionRecord,
        log: &ShardLog,
        source: SnapshotSource,
    ) {
        {
            let mut progress = self.progress.lock();
            let entries = source.recorded.next.0.saturating_sub(progress.newest.next.0);
            let early = progress.tried.is_some_and(|tried| tried.elapsed() < INTERVAL_MIN);
            if progress.running || early || entries < services.snapshot_entries {
                return;
            }
            progress.running = true;
            progress.tried = Some(Instant::now());
        }
        let services = services.clone();
        let key = key.clone();
        let log = log.clone();
        let id = record.id.clone();
        let progress = self.progress.clone();
        tokio::spawn(async move {
            let taken = take(&services, &key, &id, &log, source.named).await;
            count(&services, if taken.is_ok() { "taken" } else { "failed" });
            progress.lock().record(&key, taken);
        });
    }
}

/// A snapshot in the store.
#[derive(Clone)]
pub(crate) struct StoredSnapshot {
    pub(crate) id: BackupId,
    pub(crate) position: FollowPosition,
}

/// Takes a snapshot, unless the store has a newer one, then raises the floor of the log to the
/// oldest one that is kept. Returns the position of the newest one.
///
/// # Errors
/// `FailedPrecondition` if the local collection is damaged; as [`ShardLog::check_marker`],
/// [`backup::create`] and [`ShardLog::raise_floor`].
pub(super) async fn take(
    services: &Arc<NodeServices>,
    key: &ShardKey,
    id: &str,
    log: &ShardLog,
    named: Arc<NamedCollection>,
) -> Result<FollowPosition> {
    let _turn = services.snapshot_turn().await;
    // The turn may have come late. A directory that is not mounted any more would take all files.
    let ((), floor) = tokio::try_join!(log.check_marker(), log.floor())?;
    let store = store_of(services, id);
    let pacer = services.pacer.clone();
    let name = key.local_name();
    let kept = at_low_priority("taking a snapshot", move || {
        let progress = BackupProgress::default();
        let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
        backup::block_on(async {
            let known = snapshots(&store, &name).await?;
            // Meanwhile another node may have become the first holder.
            let position = local::position(&named).unwrap_or_default();
            let is_newer = known.iter().all(|known| known.position.next < position.next);
            if position.next < floor.entry || !is_newer {
                return Ok(known);
            }
            check_undamaged(&named)?;
            backup::create(&context, &named, BackupExtent::Missing).await?;
            let listed = store.ids(&name).await?;
            let known = snapshots(&store, &name).await?;
            let read = known.iter();
            let read: Vec<SnapshotRead<'_, BackupId>> = read
                .map(|known| SnapshotRead { id: &known.id, next: known.position.next })
                .collect();
            let replaced: BTreeSet<BackupId> =
                replaced_snapshots(&listed, &read).into_iter().collect();
            let policy = RetentionPolicy { newest: Some(SNAPSHOTS_KEPT), age_max: Some(KEPT_FOR) };
            backup::prune_among(&context, &name, &policy, &replaced, KEPT_FOR).await?;
            snapshots(&store, &name).await
        })
    })
    .await?;
    let positions = || kept.iter().map(|kept| kept.position);
    let newest = positions().max_by_key(|position| position.next).unwrap_or_default();
    let oldest = positions().min_by_key(|position| position.next).unwrap_or_default();
    if oldest.next > floor.entry && kept.len() >= SNAPSHOTS_KEPT {
        log.raise_floor(LogFloor { entry: oldest.next, epoch: oldest.epoch }).await?;
        let removed = log.remove_below(oldest.next).await?;
        tracing::info!(shard = %key, next = newest.next.0, removed, "a snapshot was taken");
    }
    Ok(newest)
}

/// Checks that the local collection has all of its data. A snapshot copies files as they are, and
/// the log before it is removed, so the damage would become the state of the shard.
///
/// # Errors
/// `FailedPrecondition` that names the damage.
fn check_undamaged(named: &NamedCollection) -> Result<()> {
    match named.collection().loss() {
        None => Ok(()),
        Some(loss) => Err(Error::precondition(format!("the local copy is damaged: {loss}"))),
    }
}

/// Returns the snapshots of a shard that can be read.
pub(crate) async fn snapshots(store: &BackupStore, name: &str) -> Result<Vec<StoredSnapshot>> {
    let mut found = Vec::new();
    for id in store.ids(name).await? {
        match store.list(name, &id).await {
            Ok(list) => {
                let position = local::position_in(&list.settings.extra);
                found.extend(position.map(|position| StoredSnapshot { id, position }));
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DataLoss) => {
                tracing::warn!(%id, %error, "a snapshot cannot be read");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Guard that stops the transfer when it is dropped, because the waiting follower may have been
/// dropped.
pub(crate) struct StopTransferOnDrop(pub(crate) Arc<BackupProgress>);

impl Drop for StopTransferOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Restores the newest whole snapshot of a shard as its local collection. It must have the changes
/// before entry `from`, which is not below the floor of the log. The present local collection stays
/// until the snapshot is complete on this machine. Returns `None` if there is no such snapshot.
///
/// # Errors
/// As [`backup::restore`].
pub(super) async fn restore(
    services: &Arc<NodeServices>,
    key: &ShardKey,
    record: &CollectionRecord,
    from: EntryNumber,
) -> Result<Option<Arc<NamedCollection>>> {
    let _turn = services.restore_turn().await;
    let store = store_of(services, &record.id);
    let pacer = services.pacer.clone();
    let registry = services.local.registry()?;
    let name = key.local_name();
    let progress = Arc::new(BackupProgress::default());
    let _stop = StopTransferOnDrop(progress.clone());
    let restored = at_low_priority("restoring a snapshot", move || {
        let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
        backup::block_on(restore_newest(&context, &registry, &name, from))
    })
    .await?;
    let Some(report) = restored else { return Ok(None) };
    tracing::info!(shard = %key, points = report.points, bytes = report.bytes, "a snapshot was restored");
    count(services, "restored");
    services.local.find(key)
}

/// Restores the newest snapshot of the shard `name`. If its objects are missing or damaged, the one
/// before it is restored. Snapshots below `from` have no use, because entries after them may be
/// removed or lost.
async fn restore_newest(
    context: &BackupContext<'_>,
    registry: &Registry,
    name: &str,
    from: EntryNumber,
) -> Result<Option<RestoreReport>> {
    let target = RestoreTarget { name: name.to_owned(), replaces: true };
    let mut known = snapshots(context.store, name).await?;
    known.retain(|known| known.position.next >= from);
    known.sort_by_key(|known| known.position.next);
    let mut failed = None;
    for snapshot in known.iter().rev() {
        let id = &snapshot.id;
        match backup::restore(context, registry, name, Some(id), &target).await {
            // It may have been removed since it was listed.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DataLoss) => {
                tracing::warn!(shard = name, %id, %error, "a snapshot cannot be restored");
                failed = failed.or(Some(error));
            }
            restored => return restored.map(Some),
        }
    }
    failed.map_or(Ok(None), Err)
}

fn count(services: &NodeServices, kind: &'static str) {
    services.metrics.snapshots.get_or_create(&KindLabels { kind }).inc();
}

fn store_of(services: &NodeServices, id: &str) -> BackupStore {
    snapshot_store(&services.store, id)
}

/// Returns the store of the snapshots of the collection `id`. `cluster` is the cluster's store.
pub(crate) fn snapshot_store(cluster: &BackupStore, id: &str) -> BackupStore {
    cluster.below(&format!("data/{id}/snapshots"))
}

#[cfg(test)]
mod tests {
    use cluster::Epoch;
    use os::{Pacer, Rate};
    use search::Metric;
    use search::points::{NewPoint, PointId};
    use search::registry::{CollectionSettings, RegistryOptions};
    use serde_json::Map;

    use super::*;

    fn position(next: u64) -> FollowPosition {
        FollowPosition { next: EntryNumber(next), epoch: Epoch(1) }
    }

    #[test]
    fn repeated_failures_of_snapshots_are_logged_once() {
        let mut failures = SnapshotFailures::default();
        assert!(!failures.end(), "nothing has failed");
        assert!(failures.begin(ErrorKind::FailedPrecondition));
        assert!(!failures.begin(ErrorKind::FailedPrecondition));
        assert!(failures.begin(ErrorKind::Unavailable), "another reason");
        assert!(failures.end());
        assert!(!failures.end());
        assert!(failures.begin(ErrorKind::Unavailable));
    }

    #[test]
    fn a_failed_try_keeps_the_newest_snapshot() {
        let mut progress =
            SnapshotProgress { running: true, newest: position(3), ..SnapshotProgress::default() };
        progress.record(&ShardKey::new("1", 0), Err(Error::unavailable("the store is down")));
        assert!(!progress.running);
        assert_eq!(
            (progress.newest, progress.failures.last),
            (position(3), Some(ErrorKind::Unavailable))
        );
        progress.record(&ShardKey::new("1", 0), Ok(position(5)));
        assert_eq!((progress.newest, progress.failures.last), (position(5), None));
    }

    #[test]
    fn an_incomplete_snapshot_is_not_the_only_one() {
        let directory = tempfile::tempdir().unwrap();
        let (node, stored) = (directory.path().join("node"), directory.path().join("store"));
        std::fs::create_dir_all(&node).unwrap();
        let registry = Registry::open(RegistryOptions::for_tests(&node)).unwrap();
        let store = BackupStore::open(stored.to_str().unwrap(), &[]).unwrap();
        let (pacer, progress) = (Pacer::new(Rate::unlimited()), BackupProgress::default());
        let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
        let named = registry.create("c", CollectionSettings::new(2, Metric::Dot)).unwrap();
        let take = |number: u64| {
            let (id, payload) = (PointId::Number(number), Map::new());
            let point = NewPoint { id, embedding: &[0.5, 0.5], record: &[], payload: &payload };
            named.upsert(&[point]).unwrap();
            local::store_position(&named, position(number)).unwrap();
            let made = backup::create(&context, &named, BackupExtent::Missing);
            backup::block_on(made).unwrap().backup
        };
        let older = take(3);
        let list = backup::block_on(store.list("c", &older)).unwrap();
        let kept: BTreeSet<String> = list.files.into_iter().map(|file| file.object).collect();
        let newer = take(5);
        let restore = |from: u64| {
            backup::block_on(restore_newest(&context, &registry, "c", EntryNumber(from)))
        };
        assert_eq!(restore(3).unwrap().unwrap().backup, newer);
        for object in std::fs::read_dir(stored.join("c/objects")).unwrap() {
            let object = object.unwrap();
            if !kept.contains(object.file_name().to_str().unwrap()) {
                std::fs::remove_file(object.path()).unwrap();
            }
        }
        assert_eq!(restore(3).unwrap().unwrap().backup, older);
        assert_eq!(restore(4).unwrap_err().kind(), ErrorKind::DataLoss);
        // The log cannot be followed from either of them.
        let before = registry.get("c").unwrap();
        assert_eq!(restore(6).unwrap(), None);
        assert!(!before.removed());
    }
}
