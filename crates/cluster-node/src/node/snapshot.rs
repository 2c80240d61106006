//! Snapshots of shards in the object store, by the crate `backup`.
//!
//! The first holder of a shard takes them. After each, the log may begin at the position of the one
//! before: a node that follows slowly still finds what it needs. A snapshot may contain changes
//! behind its position; a restored holder makes them a second time, with the same result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backup::{
    BackupContext, BackupExtent, BackupProgress, BackupStore, RestoreTarget, RetentionPolicy,
};
use base::{ErrorKind, Result};
use metrics::KindLabels;
use search::registry::NamedCollection;

use super::local::{self, blocking};
use super::services::NodeServices;
use crate::log::{FollowPosition, LogFloor, ShardLog};
use crate::types::{CollectionRecord, ShardKey};

/// Snapshots of a shard that are kept.
const SNAPSHOTS_KEPT: usize = 2;
/// Time for which an object that no snapshot names is kept.
const GRACE: Duration = Duration::from_secs(3600);

/// Local collection to take a snapshot of.
pub(super) struct SnapshotSource {
    pub(super) named: Arc<NamedCollection>,
    /// All entries before it are applied.
    pub(super) position: FollowPosition,
}

/// Snapshots that a follower has taken.
#[derive(Default)]
pub(super) struct SnapshotState {
    /// True while one is being taken.
    running: Arc<AtomicBool>,
    /// Position of the newest one; `None` before the first of this process.
    newest: Option<FollowPosition>,
}

impl SnapshotState {
    /// Starts a snapshot in the background if enough entries were applied since the last one.
    pub(super) fn begin_if_due(
        &mut self,
        services: &Arc<NodeServices>,
        key: &ShardKey,
        record: &CollectionRecord,
        log: &ShardLog,
        source: SnapshotSource,
    ) {
        let Some(before) = self.newest else {
            // The first count begins where this process began.
            self.newest = Some(source.position);
            return;
        };
        let entries = source.position.next.0.saturating_sub(before.next.0);
        if entries < services.snapshot_entries || self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        self.newest = Some(source.position);
        let (services, key, log) = (services.clone(), key.clone(), log.clone());
        let (id, running) = (record.id.clone(), self.running.clone());
        tokio::spawn(async move {
            let kind = match take(&services, &key, &id, &log, source).await {
                Ok(()) => "taken",
                Err(error) => {
                    tracing::warn!(shard = %key, %error, "no snapshot was taken; it is tried again");
                    "failed"
                }
            };
            count(&services, kind);
            running.store(false, Ordering::Release);
        });
    }
}

/// Takes a snapshot, then raises the floor of the log to the position of the one before.
async fn take(
    services: &Arc<NodeServices>,
    key: &ShardKey,
    id: &str,
    log: &ShardLog,
    source: SnapshotSource,
) -> Result<()> {
    let _turn = services.snapshot_turn().await;
    let store = store_of(services, id);
    let position = source.position;
    let (pacer, named) = (services.pacer.clone(), source.named.clone());
    let name = key.local_name();
    let before = blocking(move || {
        local::store_position(&named, position)?;
        let progress = BackupProgress::default();
        let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
        backup::block_on(async {
            let before = newest_position(&store, &name).await?;
            backup::create(&context, &named, BackupExtent::Missing).await?;
            let policy = RetentionPolicy { newest: Some(SNAPSHOTS_KEPT), age_max: None };
            backup::prune(&context, &name, &policy, GRACE).await?;
            Ok(before)
        })
    })
    .await?;
    let Some(before) = before.filter(|before| before.next <= position.next) else { return Ok(()) };
    log.raise_floor(LogFloor { entry: before.next, epoch: before.epoch }).await?;
    let removed = log.remove_below(before.next).await?;
    tracing::info!(shard = %key, next = position.next.0, removed, "a snapshot was taken");
    Ok(())
}

/// Returns the position of the newest snapshot, if there is one.
async fn newest_position(store: &BackupStore, name: &str) -> Result<Option<FollowPosition>> {
    let newest = match store.newest(name).await {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        newest => newest?,
    };
    let list = store.list(name, &newest).await?;
    Ok(local::position_in(&list.settings.extra))
}

/// Restores the newest snapshot of a shard as its local collection. Returns `None` if there is
/// none.
///
/// # Errors
/// As [`backup::restore`].
pub(super) async fn restore(
    services: &Arc<NodeServices>,
    key: &ShardKey,
    record: &CollectionRecord,
) -> Result<Option<Arc<NamedCollection>>> {
    let store = store_of(services, &record.id);
    let (pacer, registry) = (services.pacer.clone(), services.local.registry()?);
    let name = key.local_name();
    let restored = blocking(move || {
        let progress = BackupProgress::default();
        let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
        let target = RestoreTarget { name: name.clone(), replaces: true };
        backup::block_on(backup::restore(&context, &registry, &name, None, &target))
    })
    .await;
    match restored {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(report) => {
            tracing::info!(shard = %key, points = report.points, bytes = report.bytes, "a snapshot was restored");
            count(services, "restored");
            services.local.find(key)
        }
    }
}

fn count(services: &NodeServices, kind: &'static str) {
    services.metrics.snapshots.get_or_create(&KindLabels { kind }).inc();
}

/// Returns the store of a collection's snapshots.
fn store_of(services: &NodeServices, id: &str) -> BackupStore {
    let prefix = services.place.key(&format!("data/{id}/snapshots"));
    BackupStore::wrap(services.place.objects().clone(), prefix.as_ref())
}
