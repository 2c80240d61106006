//! Services that the tasks of a node share.

use std::sync::Arc;

use backup::BackupStore;
use cluster_log::ShardLog;
use http_client::HttpClient;
use metrics::ClusterMetrics;
use os::Pacer;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::local::LocalCollections;
use crate::membership::IDENTITY;
use crate::types::{ShardKey, ViewSource};

/// Maximum number of snapshots that a node takes at the same time.
pub(super) const SNAPSHOTS_RUNNING_MAX: usize = 1;

/// Maximum number of snapshots that a node restores at the same time.
pub(super) const RESTORES_RUNNING_MAX: usize = 2;

/// Returns the number of shards whose logs a node applies at the same time while they are behind:
/// half of the cores, at least one. The other half is for the shards that the node serves.
pub(super) fn catch_ups_running_max() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
}

/// Returns the log of a shard in the store of a cluster. A directory must still have the identity
/// of the store. Without the identity, the directory is not mounted any more.
pub(crate) fn shard_log(store: &BackupStore, key: &ShardKey) -> ShardLog {
    let log = ShardLog::new(store.place(), key);
    if store.is_directory() { log.with_marker(IDENTITY) } else { log }
}

/// Services that the tasks of a node share.
pub(super) struct NodeServices {
    /// Name of this node.
    pub(super) name: String,
    /// Directory of the cluster in the store.
    pub(super) store: BackupStore,
    pub(super) local: LocalCollections,
    pub(super) view: ViewSource,
    pub(super) client: HttpClient,
    pub(super) pacer: Arc<Pacer>,
    pub(super) metrics: ClusterMetrics,
    /// Number of entries of a shard between two snapshots.
    pub(super) snapshot_entries: u64,
    pub(super) snapshots: Semaphore,
    pub(super) restores: Semaphore,
    /// Turns of tries to apply an entry to a shard that is behind.
    pub(super) catch_ups: Semaphore,
    /// Wakes the task that announces the shards of this node.
    pub(super) serving: Notify,
}

impl NodeServices {
    /// Returns the log of a shard, as [`shard_log`] does.
    pub(super) fn log(&self, key: &ShardKey) -> ShardLog {
        shard_log(&self.store, key)
    }

    /// Announces the shards of this node soon.
    pub(super) fn serving_changed(&self) {
        self.serving.notify_one();
    }

    /// Waits for the turn of a restore.
    pub(super) async fn restore_turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.restores.acquire().await.ok()
    }

    /// Waits for the turn of a snapshot.
    pub(super) async fn snapshot_turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.snapshots.acquire().await.ok()
    }
}
