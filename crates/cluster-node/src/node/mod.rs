//! A node's own work. The node follows the logs of the shards that it holds, and writes the logs of
//! the shards that it owns. It takes snapshots, and answers roots.

pub(crate) mod apply;
pub(crate) mod backup_schedule;
pub(crate) mod catalog;
mod change_log;
mod copy_damage;
mod copy_loader;
mod endpoints;
pub(crate) mod full_shard;
mod garbage;
mod hints;
mod holder;
pub mod image_endpoints;
pub(crate) mod local;
mod offered;
mod ownership;
mod placement;
mod removals;
pub(crate) mod services;
pub(crate) mod snapshot;
mod stall;
mod store_access;

use std::sync::Arc;
use std::time::Duration;

use api_images::ImagesState;
use axum::Router;
use backup::BackupStore;
use base::{Error, Result};
use etcd::Etcd;
use http_client::HttpClient;
use os::{Pacer, Rate};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use transport::RequestResources;

pub use self::catalog::StoreCatalog;
use self::hints::EntryHints;
pub use self::local::{LocalAnswer, LocalCollections};
use self::ownership::OwnedShards;
use self::placement::HeldShards;
use self::services::{
    NodeServices, RESTORES_RUNNING_MAX, SNAPSHOTS_RUNNING_MAX, catch_ups_running_max,
};
use crate::backups::{ClusterBackupOptions, ClusterBackupSettings, ClusterBackups};
use crate::collection_catalog::CollectionCatalog;
use crate::membership::Membership;
use crate::types::{NodeInfo, Roles, ViewSource, ViewUpdater};
use crate::waiting_writes::WaitingWrites;

/// Longest wait for etcd when a node leaves.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// Time in which roots see that a node has left: two of their reads of etcd.
const SEEN_AFTER: Duration = Duration::from_secs(1);

/// Parts of the memory of requests of which one is for writes that wait for the store.
const WAITING_PARTS: u64 = 4;

/// Settings of a node.
pub struct NodeOptions {
    /// Directory of the cluster in the store.
    pub store: BackupStore,
    /// Client of etcd.
    pub etcd: Etcd,
    /// Name of the cluster in etcd.
    pub cluster: String,
    /// This node.
    pub info: NodeInfo,
    /// Number of entries of a shard's log between two snapshots.
    pub snapshot_entries: u64,
    /// Backups of collections.
    pub backups: ClusterBackupSettings,
    /// Limit of the bytes per second of snapshots.
    pub background_rate: Rate,
    /// Client of other nodes, with the key that this node shows to them.
    pub client: HttpClient,
    /// Routes of `api_qdrant` and `api_images` over the local collections, and their registry.
    pub local: LocalCollections,
    /// Extraction of images, and the store of originals.
    pub images: Arc<ImagesState>,
    /// Limits of requests.
    pub requests: Arc<RequestResources>,
}

/// A node of a cluster.
pub struct ClusterNode {
    roles: Roles,
    services: Arc<NodeServices>,
    images: Arc<ImagesState>,
    requests: Arc<RequestResources>,
    /// Memory of writes to the logs of this node.
    waiting: WaitingWrites,
    held: Arc<HeldShards>,
    owned: Arc<OwnedShards>,
    membership: Arc<Membership>,
    catalog: Arc<StoreCatalog>,
    backups: Arc<ClusterBackups>,
    tasks: Mutex<JoinSet<()>>,
    /// Permits for reads of shards.
    reads: Semaphore,
    /// Permits for reads of shards for background work. Each read has a thread at low priority.
    background_reads: Semaphore,
}

impl ClusterNode {
    /// Starts the tasks of a node on the current runtime of tokio.
    ///
    /// # Errors
    /// `InvalidArgument` for settings that cannot work; as [`Membership::start`].
    pub async fn start(options: NodeOptions) -> Result<Arc<ClusterNode>> {
        let NodeOptions { store, info, local, images, requests, etcd, client, backups, .. } =
            options;
        if options.snapshot_entries == 0 {
            return Err(Error::invalid("a snapshot is taken after at least one entry"));
        }
        let roles = info.roles;
        let view = ViewUpdater::new();
        let place = store.place().clone();
        let backups = ClusterBackups::new(ClusterBackupOptions {
            view: view.source(),
            cluster: store.clone(),
            local: local.clone(),
            settings: backups,
            metrics: requests.metrics.backups.clone(),
        });
        let services = Arc::new(NodeServices {
            name: info.name.clone(),
            store,
            local,
            view: view.source(),
            client,
            pacer: Arc::new(Pacer::new(options.background_rate)),
            metrics: requests.metrics.cluster.clone(),
            snapshot_entries: options.snapshot_entries,
            snapshots: Semaphore::new(SNAPSHOTS_RUNNING_MAX),
            restores: Semaphore::new(RESTORES_RUNNING_MAX),
            catch_ups: Semaphore::new(catch_ups_running_max()),
            serving: Notify::new(),
        });
        let joined = Membership::start(etcd, &options.cluster, place.clone(), info, view.clone());
        let membership = Arc::new(joined.await?);
        let catalog = Arc::new(StoreCatalog::new(place, view.clone()));
        let hints = EntryHints::new();
        let held = Arc::new(HeldShards::new(services.clone(), membership.clone(), catalog.clone()));
        let owned = Arc::new(OwnedShards::new(services.clone(), membership.clone(), hints.clone()));
        let mut tasks = JoinSet::new();
        let reading = catalog.clone();
        tasks.spawn(async move { reading.run().await });
        tasks.spawn(held.clone().run(view.source(), roles.search));
        let reading = catalog.clone();
        let member = membership.clone();
        tasks.spawn(store_access::run(services.name.clone(), reading, member, view.source()));
        if roles.ingest {
            tasks.spawn(owned.clone().run(view.source()));
            tasks.spawn(garbage::run(services.clone(), catalog.clone()));
            let backups = backups.clone();
            tasks.spawn(backup_schedule::run(services.clone(), catalog.clone(), backups));
            tasks.spawn(hints.run(services.clone()));
        }
        Ok(Arc::new(ClusterNode {
            roles,
            services,
            images,
            waiting: WaitingWrites::new(requests.clone(), WAITING_PARTS),
            requests,
            held,
            owned,
            membership,
            catalog,
            backups,
            tasks: Mutex::new(tasks),
            reads: Semaphore::new(endpoints::READS_RUNNING_MAX),
            background_reads: Semaphore::new(
                api_images::background_threads().min(endpoints::BACKGROUND_READS_MAX),
            ),
        }))
    }

    /// Returns the routes between nodes.
    pub fn routes(self: &Arc<ClusterNode>) -> Router {
        endpoints::routes().with_state(self.clone())
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.services.name
    }

    /// Returns the view of the cluster.
    pub fn view(&self) -> ViewSource {
        self.services.view.clone()
    }

    /// Returns the records of the collections.
    pub fn catalog(&self) -> &Arc<StoreCatalog> {
        &self.catalog
    }

    /// Returns the backups of collections.
    pub fn backups(&self) -> &Arc<ClusterBackups> {
        &self.backups
    }

    /// Returns the client that this node calls others with.
    pub fn client(&self) -> &HttpClient {
        &self.services.client
    }

    /// Returns the reason why this node has not been ready since its start; `None` once it was
    /// ready.
    pub fn unready(&self) -> Option<String> {
        if let Some(reason) = self.membership.unjoined() {
            return Some(format!("the node has not joined the cluster: {reason}"));
        }
        if !self.catalog.is_loaded() {
            return Some("the collections of the cluster were not read from the store".to_owned());
        }
        self.held.not_caught_up().filter(|_| self.roles.search)
    }

    /// Makes a node of the cluster take no more shards, and leave its shards to other nodes. The
    /// node serves them until the others do. A restart of the node ends the drain.
    ///
    /// # Errors
    /// As [`Membership::drain_node`].
    pub async fn drain(&self, name: &str) -> Result<()> {
        self.membership.drain_node(name).await
    }

    /// Releases the logs that it writes to other nodes, before requests end. Serves reads until
    /// roots have seen that this node leaves.
    pub async fn leave(&self) {
        let left = async {
            self.membership.drain();
            self.owned.end_all();
            self.membership.leave().await;
        };
        if tokio::time::timeout(LEAVE_MAX, left).await.is_err() {
            tracing::warn!("etcd did not answer; the lease of this node ends by itself");
        }
        tokio::time::sleep(SEEN_AFTER).await;
    }

    /// Ends all tasks, after the last request.
    pub fn stop(&self) {
        self.tasks.lock().abort_all();
        self.held.stop();
    }
}
