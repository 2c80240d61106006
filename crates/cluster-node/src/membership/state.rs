//! State that the tasks of a membership share: the node itself, its lease and its shards.

use std::collections::BTreeMap;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use cluster::{Epoch, KnownOwnership, OwnerReading, SeenOwner};
use etcd::{Etcd, LeaseId, check_name};
use model_store::StorePlace;
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock};

use super::keys::{ClusterKeys, ClusterSnapshot, OwnerValue, epoch_of};
use super::reader::{ViewCertainty, ViewReadings};
use super::store_identity::StoreIdentity;
use crate::types::{NodeInfo, Owner, ShardKey, ViewUpdater};

/// Time after which a caller may ask for ownership again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Intervals of a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MembershipTimes {
    /// Time after the last keep-alive at which a node counts as dead. Whole seconds, at least 2;
    /// etcd raises shorter ones.
    pub lease: Duration,
    /// Time between keep-alives: about a third of `lease`.
    pub keep_alive: Duration,
    /// Time between readings of the view.
    pub poll: Duration,
}

impl Default for MembershipTimes {
    /// Returns a lease of 10 s, keep-alives each 3 s and readings each 500 ms.
    fn default() -> MembershipTimes {
        MembershipTimes {
            lease: Duration::from_secs(10),
            keep_alive: Duration::from_secs(3),
            poll: Duration::from_millis(500),
        }
    }
}

/// The key of a shard that this node owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnedKey {
    /// Revision of etcd in which the key of the shard was created.
    pub(super) revision: i64,
    /// Lease of its key. If it is not the node's present lease, the key is created again.
    pub(super) lease: LeaseId,
}

/// The description of the node, and its registration in etcd.
#[derive(Debug)]
pub(super) struct OwnRegistration {
    pub(super) info: NodeInfo,
    /// Value of the node's key; `None` while the node is not registered under its lease.
    pub(super) written: Option<NodeInfo>,
    pub(super) lease: LeaseId,
    /// True if a request found no lease: the next step asks etcd.
    pub(super) lease_doubtful: bool,
    /// True if this node acquires no further shards.
    pub(super) drains: bool,
    pub(super) owned: BTreeMap<ShardKey, OwnedKey>,
    /// Shards with keys below the node's lease that it does not know as its own, with the revision
    /// of the key. Requests with an unknown outcome left them.
    pub(super) orphans: BTreeMap<ShardKey, i64>,
}

/// State of a membership.
///
/// Locks are taken in this order: `ownership`, `readings`, `own`.
#[derive(Debug)]
pub(super) struct MemberState {
    pub(super) etcd: Etcd,
    pub(super) keys: ClusterKeys,
    pub(super) store: StoreIdentity,
    pub(super) times: MembershipTimes,
    pub(super) view: ViewUpdater,
    pub(super) name: String,
    pub(super) own: Mutex<OwnRegistration>,
    /// Error of the last try to join the cluster; `None` once this node has joined.
    pub(super) unjoined: Mutex<Option<String>>,
    /// Held for reading while a shard is acquired or released, and for writing while the keys of
    /// the node are repaired.
    pub(super) ownership: RwLock<()>,
    pub(super) readings: tokio::sync::Mutex<ViewReadings>,
    pub(super) certainty: ViewCertainty,
    /// Wakes the task that writes to etcd.
    pub(super) lease_work: Notify,
    /// Wakes the task that reads the view.
    pub(super) view_work: Notify,
}

impl MemberState {
    pub(super) fn new(
        etcd: Etcd,
        cluster: &str,
        store: StorePlace,
        info: NodeInfo,
        view: ViewUpdater,
        times: MembershipTimes,
    ) -> MemberState {
        MemberState {
            etcd,
            keys: ClusterKeys::new(cluster),
            store: StoreIdentity::new(store),
            times,
            view,
            name: info.name.clone(),
            own: Mutex::new(OwnRegistration {
                info,
                written: None,
                lease: LeaseId(0),
                lease_doubtful: false,
                drains: false,
                owned: BTreeMap::new(),
                orphans: BTreeMap::new(),
            }),
            unjoined: Mutex::new(Some("the node has not asked etcd yet".to_owned())),
            ownership: RwLock::new(()),
            readings: tokio::sync::Mutex::default(),
            certainty: ViewCertainty::default(),
            lease_work: Notify::new(),
            view_work: Notify::new(),
        }
    }

    /// Returns why this node has not joined the cluster yet; `None` once it has.
    pub(super) fn unjoined(&self) -> Option<String> {
        self.unjoined.lock().clone()
    }

    /// Changes the node's description, which is written to etcd afterwards.
    pub(super) fn change_info(&self, change: impl FnOnce(&mut NodeInfo)) {
        let mut own = self.own.lock();
        change(&mut own.info);
        let changed = own.written.as_ref() != Some(&own.info);
        drop(own);
        if changed {
            self.lease_work.notify_one();
        }
    }

    /// Refuses further ownership, and announces the weight 0, so that the node gets no shards.
    pub(super) fn drain(&self) {
        self.own.lock().drains = true;
        self.change_info(|info| info.weight = 0);
    }

    /// Drains if `lease`, that of a request that this node drains, is the lease of this process.
    pub(super) fn take_drain(&self, lease: Option<LeaseId>) {
        let is_new = {
            let own = self.own.lock();
            !own.drains && own.written.is_some() && lease == Some(own.lease)
        };
        if is_new {
            tracing::info!(node = self.name, "this node drains: other nodes take its shards");
            self.drain();
        }
    }

    /// Does the work of [`super::Membership::drain_node`].
    pub(super) async fn drain_node(&self, name: &str) -> Result<()> {
        let unknown = || Error::not_found(format!("there is no node {name:?} in the cluster"));
        check_name("node", name)?;
        let entry = self.etcd.get(&self.keys.node(name)).await?.ok_or_else(unknown)?;
        match self.etcd.put(&self.keys.drain(name), b"{}", entry.lease).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Err(unknown()),
            written => written,
        }
    }

    /// Records that a request found no lease.
    pub(super) fn doubt_lease(&self) {
        self.own.lock().lease_doubtful = true;
        self.lease_work.notify_one();
    }

    /// Does the work of [`super::Membership::acquire`].
    pub(super) async fn acquire(&self, key: &ShardKey) -> Result<Option<Epoch>> {
        let _guard = self.ownership.read().await;
        let lease = {
            let own = self.own.lock();
            if own.drains {
                return Ok(None);
            }
            if own.written.is_none() {
                return Err(not_registered());
            }
            own.lease
        };
        match self.create_owner(key, lease).await {
            Ok(None) => Ok(None),
            Ok(Some(revision)) => {
                self.record_owned(key, OwnedKey { revision, lease }).await;
                Ok(Some(epoch_of(revision)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.doubt_lease();
                Err(not_registered())
            }
            Err(error) => Err(error),
        }
    }

    /// Creates the key of an owner. A key below this node's lease is replaced, so that no two
    /// writers have one epoch.
    async fn create_owner(&self, key: &ShardKey, lease: LeaseId) -> Result<Option<i64>> {
        let path = self.keys.owner(key);
        let value = OwnerValue::encode(&self.name);
        if let Some(revision) = self.etcd.create(&path, &value, lease).await? {
            return Ok(Some(revision));
        }
        let Some(entry) = self.etcd.get(&path).await? else {
            return Ok(None);
        };
        if entry.lease != lease {
            return Ok(None);
        }
        self.etcd.delete_if_created(&path, entry.create_revision).await?;
        self.etcd.create(&path, &value, lease).await
    }

    /// Records that this node owns a shard, in its state and in the view. No reading is under way
    /// then, so a later reading shows it too.
    pub(super) async fn record_owned(&self, key: &ShardKey, owned: OwnedKey) {
        let mut readings = self.readings.lock().await;
        readings.forget_revision();
        self.own.lock().owned.insert(key.clone(), owned);
        let owner = Owner { node: self.name.clone(), epoch: epoch_of(owned.revision) };
        self.view.update(|view| {
            view.owners.insert(key.clone(), owner);
        });
    }

    /// Does the work of [`super::Membership::release`].
    pub(super) async fn release(&self, key: &ShardKey, epoch: Epoch) -> Result<()> {
        let _guard = self.ownership.read().await;
        let released = {
            let mut readings = self.readings.lock().await;
            readings.forget_revision();
            let mut own = self.own.lock();
            let owned = own.owned.get(key).copied();
            let owned = owned.filter(|owned| epoch_of(owned.revision) == epoch);
            let Some(owned) = owned else {
                return Ok(());
            };
            own.owned.remove(key);
            let name = &self.name;
            self.view.update(|view| {
                let this = |owner: &Owner| owner.node == *name && owner.epoch == epoch;
                if view.owners.get(key).is_some_and(this) {
                    view.owners.remove(key);
                }
            });
            owned
        };
        let deleted = self.etcd.delete_if_created(&self.keys.owner(key), released.revision).await;
        self.view_work.notify_one();
        deleted.map(drop)
    }

    /// Compares a reading with the description that this node wrote last. A request without an
    /// answer in time may be carried out after a later one. The description is written again then.
    pub(super) fn compare_info(&self, snapshot: &ClusterSnapshot) {
        let mut own = self.own.lock();
        let Some(seen) = snapshot.nodes.get(&self.name) else { return };
        let is_own = seen.address == own.info.address;
        if is_own && own.written.as_ref().is_some_and(|written| written != seen) {
            own.written = Some(seen.clone());
            self.lease_work.notify_one();
        }
    }

    /// Compares a reading with the shards that this node knows as its own. Forgets shards that
    /// another node owns.
    ///
    /// Removes owners from the reading that have this node's name without its knowledge. No writer
    /// has their epoch here. Their keys are removed from etcd if they are below the node's lease.
    /// Otherwise another process has the name.
    pub(super) fn compare_ownership(&self, snapshot: &mut ClusterSnapshot) {
        let mut own = self.own.lock();
        let own = &mut *own;
        own.orphans.clear();
        snapshot.owners.retain(|key, owner| {
            let epoch = own.owned.get(key).map(|owned| epoch_of(owned.revision));
            let known = KnownOwnership { node: &self.name, lease: own.lease, epoch };
            let seen = SeenOwner { node: &owner.node, epoch: owner.epoch };
            match OwnerReading::of(&known, seen, snapshot.leases.get(key)) {
                OwnerReading::Own => true,
                OwnerReading::Other => {
                    own.owned.remove(key);
                    true
                }
                OwnerReading::Orphan => {
                    let revision = i64::try_from(owner.epoch.0).unwrap_or(i64::MAX);
                    own.orphans.insert(key.clone(), revision);
                    false
                }
                OwnerReading::Earlier => false,
            }
        });
        if !own.orphans.is_empty() {
            self.lease_work.notify_one();
        }
    }
}

/// Builds the error of a node that must register before it can own shards.
fn not_registered() -> Error {
    Error::unavailable("this node is not registered in etcd; it registers again by itself")
        .with_retry_after(RETRY_AFTER)
}
