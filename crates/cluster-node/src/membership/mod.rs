//! Membership of a node in a cluster: its registration in etcd, the shards that it owns, and the
//! view of all nodes.
//!
//! # Keys
//! Below `millpond/CLUSTER/`, `nodes/NAME` has a node's description and `owners/ID/SSSS` the name
//! of a shard's owner. `drains/NAME` says that an operator wants a node to drain. All end with the
//! lease of their node. The epoch of an owner is the revision in which its key was created, so it
//! grows. `store` has the id of the cluster's store. `millpond/.stores/ID` has the cluster of the
//! store. Both stay until an operator deletes them.
//!
//! # Without etcd
//! A node that starts joins the cluster once etcd answers. Later, the view stays as it is, and
//! owners continue to write: the log itself fences an older owner. Nodes that are absent when etcd
//! answers again stay in the view for the time of one lease, because they register again at
//! different moments.

pub(crate) mod fuzzing;
mod keys;
mod lease;
mod protocol;
mod reader;
mod state;
mod store_identity;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use base::{Error, Result};
use cluster::Epoch;
use etcd::{Etcd, LeaseId, check_name};
use model_store::StorePlace;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::types::{NodeInfo, ShardKey, StoreAccess, ViewUpdater};
use state::MemberState;

pub use state::MembershipTimes;
pub(crate) use store_identity::{IDENTITY, IDENTITY_BYTES_MAX};

/// Shards whose copy on a node is marked, by the id of the collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyMarks {
    /// Shards whose copy is damaged, is being replaced, or lacks changes. Changes are missing if
    /// the disk is full, the log has an operation of a newer version, or the log cannot be read.
    pub damaged: BTreeMap<String, BTreeSet<u32>>,
    /// Shards whose copy lacks changes because the disk is full. All of them are in `damaged` too.
    pub stalled: BTreeMap<String, BTreeSet<u32>>,
}

/// A node's membership in a cluster. Two tasks keep it. Dropping it ends the tasks, and the node
/// then disappears for the others once its lease ends.
#[derive(Debug)]
pub struct Membership {
    state: Arc<MemberState>,
    /// Keeps the lease and the registration.
    registration: Mutex<JoinSet<()>>,
    /// Follows the view, also after this node has left: its root still answers.
    _follower: JoinSet<()>,
}

impl Membership {
    /// Registers the node `own` in the cluster `cluster`, whose store is `store`. Reads `nodes` and
    /// `owners` into `view` and then applies their changes to it. Does not change `collections` of
    /// `view`. Needs a tokio runtime.
    ///
    /// If etcd or the store does not answer, or etcd has no space for keys, the node is registered
    /// later. It tries again with growing pauses. [`Membership::unjoined`] says why it has not
    /// joined. The same is true if a node of another name is registered with its address, and one
    /// of the two can have shards.
    ///
    /// A registration with the same name and address counts as the registration of an earlier
    /// process of this node. It is removed at once, with the shards that it owned.
    ///
    /// # Errors
    /// `InvalidArgument` for a name with other characters than letters, digits, `.`, `_` and `-`.
    /// `AlreadyExists` if the name is registered with another address. `FailedPrecondition` if the
    /// cluster in etcd has another store, or the store another cluster. `PermissionDenied` if etcd
    /// refuses the user. The store's error.
    pub async fn start(
        etcd: Etcd,
        cluster: &str,
        store: StorePlace,
        own: NodeInfo,
        view: ViewUpdater,
    ) -> Result<Membership> {
        Membership::start_with(etcd, cluster, store, own, view, MembershipTimes::default()).await
    }

    /// Does the same as [`Membership::start`] with other intervals.
    ///
    /// # Errors
    /// As [`Membership::start`], and `InvalidArgument` for a lease that keep-alives cannot hold.
    pub async fn start_with(
        etcd: Etcd,
        cluster: &str,
        store: StorePlace,
        own: NodeInfo,
        view: ViewUpdater,
        times: MembershipTimes,
    ) -> Result<Membership> {
        check_name("cluster", cluster)?;
        check_name("node", &own.name)?;
        if times.keep_alive * 2 > times.lease || times.poll * 2 > times.lease {
            return Err(Error::invalid(
                "a lease must last at least two intervals of keep-alives and of readings",
            ));
        }
        let state = Arc::new(MemberState::new(etcd, cluster, store, own, view, times));
        match state.enter().await {
            Ok(()) => {
                *state.unjoined.lock() = None;
                // The view is read again soon.
                let _ = state.refresh().await;
            }
            // An etcd without space, or one that is overloaded, takes keys later.
            Err(error) if error.is_overload() => {
                warn!(%error, "the node has not joined the cluster yet, and tries again");
                *state.unjoined.lock() = Some(error.message().to_owned());
            }
            Err(error) => return Err(error),
        }
        let mut registration = JoinSet::new();
        let lease_keeper = state.clone();
        registration.spawn(async move {
            lease_keeper.enter_late().await;
            lease_keeper.keep_registered().await;
        });
        let mut follower = JoinSet::new();
        let view_follower = state.clone();
        follower.spawn(async move { view_follower.follow_view().await });
        Ok(Membership { state, registration: Mutex::new(registration), _follower: follower })
    }

    /// Returns the reason why this node has not joined the cluster yet; `None` once it has joined,
    /// even if etcd stops answering.
    pub fn unjoined(&self) -> Option<String> {
        self.state.unjoined()
    }

    /// Sets the shards that this node holds and that follow the end of the log. Other nodes see
    /// them within about a second.
    pub fn set_serving(&self, serving: BTreeMap<String, BTreeSet<u32>>) {
        self.state.change_info(|info| info.serving = serving);
    }

    /// Sets the marks of this node's copies. Other nodes see all of them at the same moment. A
    /// caller that also changes the served shards calls this before [`Membership::set_serving`].
    /// Then a damaged copy is never announced without its mark.
    pub fn set_marks(&self, marks: CopyMarks) {
        self.state.change_info(|info| {
            info.damaged = marks.damaged;
            info.stalled = marks.stalled;
        });
    }

    /// Sets the access of this node to the store. Other nodes see it within about a second.
    pub fn set_store_access(&self, access: StoreAccess) {
        self.state.change_info(|info| info.store = access);
    }

    /// Returns the time of the request for the view. Returns `None` if the view is older than half
    /// a lease, or shows a node that is dead for longer than a lease. A caller that takes the view
    /// after this call gets one at least as new.
    pub fn view_certain_since(&self) -> Option<Instant> {
        self.state.certainty.certain_since(Instant::now(), self.state.times.lease)
    }

    /// Acquires the ownership of a shard. Returns its epoch, or `None` if another node owns the
    /// shard or this node drains. The view shows this node as the owner when the call returns.
    ///
    /// The epoch is larger than each earlier one of the shard. If this node owns the shard already,
    /// that ownership is replaced by a new one.
    ///
    /// The epoch can change later without a call. If the lease ended while etcd was not reachable,
    /// the node registers again and creates the keys of its shards again. The view then has the new
    /// epoch. A writer with another epoch than the epoch of the view must end.
    ///
    /// # Errors
    /// `Unavailable` if etcd does not answer or the node is not registered at the moment. If the
    /// key was created after all, it is removed in the background.
    pub async fn acquire(&self, key: &ShardKey) -> Result<Option<Epoch>> {
        self.state.acquire(key).await
    }

    /// Releases the ownership of a shard that has this epoch. The view shows it at once. An
    /// ownership with another epoch stays as it is.
    ///
    /// # Errors
    /// `Unavailable` if etcd does not answer. The key is removed in the background then.
    pub async fn release(&self, key: &ShardKey, epoch: Epoch) -> Result<()> {
        self.state.release(key, epoch).await
    }

    /// Sets the weight of this node to 0, so that it has no share of the shards, and refuses
    /// further ownership. Shards that it owns stay until they are released.
    pub fn drain(&self) {
        self.state.drain();
    }

    /// Makes a node of the cluster drain, within about a second. A restart of that node ends it.
    ///
    /// # Errors
    /// `NotFound` if there is no node of this name; `Unavailable` if etcd does not answer.
    pub async fn drain_node(&self, name: &str) -> Result<()> {
        self.state.drain_node(name).await
    }

    /// Ends the membership: other nodes see the node and its ownerships disappear at once. Called
    /// at shutdown, after writers have ended. The view is followed until this is dropped.
    pub async fn leave(&self) {
        self.state.own.lock().drains = true;
        let mut registration = std::mem::take(&mut *self.registration.lock());
        registration.shutdown().await;
        // Acquisitions that are under way end before their lease.
        let _guard = self.state.ownership.write().await;
        let lease = {
            let mut own = self.state.own.lock();
            own.written = None;
            own.owned.clear();
            own.lease
        };
        if lease == LeaseId(0) {
            return;
        }
        match self.state.etcd.revoke(lease).await {
            Ok(()) => info!(node = self.state.name, "the node left the cluster"),
            Err(error) => warn!(
                %error,
                "the registration stays in etcd until its lease ends, in {} s at most",
                self.state.times.lease.as_secs()
            ),
        }
    }
}
