//! The node's lease in etcd and the keys that end with it.

use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use etcd::{EtcdEntry, LeaseId};
use tracing::{debug, info, warn};

use super::keys::OwnerValue;
use super::state::{MemberState, OwnedKey};
use crate::types::{NodeInfo, ShardKey};

/// Pause between two writes of the node's description: changes within it share one write.
const WRITES_PAUSE: Duration = Duration::from_millis(50);
/// Pause after the first try to join the cluster. It doubles with each try.
const ENTER_PAUSE_MIN: Duration = Duration::from_millis(250);
/// Longest pause between two tries to join the cluster.
const ENTER_PAUSE_MAX: Duration = Duration::from_secs(5);

impl MemberState {
    /// Registers the node for the first time. The registration of an earlier process with the same
    /// name and address is removed, with its shards, because two processes cannot listen at one
    /// address.
    ///
    /// # Errors
    /// `AlreadyExists` if a node of this name is registered with another address. `Unavailable` if
    /// etcd does not answer. As [`MemberState::check_address`] and [`MemberState::check_store`].
    pub(super) async fn enter(&self) -> Result<()> {
        // First: the registered node may be one of a cluster with another store.
        self.check_store().await?;
        let path = self.keys.node(&self.name);
        if let Some(entry) = self.etcd.get(&path).await? {
            if registered_address(&entry).as_ref() != Some(&self.own.lock().info.address) {
                return Err(self.name_taken(&entry));
            }
            info!(node = self.name, "removes the registration of an earlier process");
            if entry.lease != LeaseId(0) {
                self.etcd.revoke(entry.lease).await?;
            }
            self.etcd.delete_if_created(&path, entry.create_revision).await?;
        }
        self.check_address().await?;
        self.replace_lease().await?;
        self.register().await
    }

    /// Checks that no node of another name is registered with the address of this node. Other nodes
    /// would send the requests for one of the two to the other one.
    ///
    /// # Errors
    /// `Unavailable` if there is such a node. It may be the killed process in whose place this one
    /// was started with a new name, so the address can become free by itself.
    async fn check_address(&self) -> Result<()> {
        let own = self.own.lock().info.clone();
        let registered = self.etcd.range(&self.keys.nodes()).await?;
        let mut nodes = registered.entries.iter().filter_map(registered_node);
        let Some(other) = nodes.find(|other| is_address_conflict(&own, other)) else {
            return Ok(());
        };
        Err(Error::unavailable(format!(
            "the node {} is registered with the address {} of this node; give each node a \
             --cluster-address of its own, at which the other nodes reach it, or stop that node \
             (its address is free {} s after its end)",
            other.name,
            own.address,
            self.times.lease.as_secs()
        )))
    }

    /// Registers the node if its first try failed, again and again until it succeeds.
    pub(super) async fn enter_late(&self) {
        let mut pause = ENTER_PAUSE_MIN;
        while let Some(reason) = self.unjoined() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ENTER_PAUSE_MAX);
            match self.enter().await {
                Ok(()) => {
                    *self.unjoined.lock() = None;
                    info!(node = self.name, "the node joined the cluster");
                }
                Err(error) => {
                    if reason != error.message() {
                        warn!(node = self.name, %error, "the node has not joined the cluster yet");
                    }
                    *self.unjoined.lock() = Some(error.message().to_owned());
                }
            }
        }
    }

    /// Keeps the lease and the node's keys until the task is aborted.
    pub(super) async fn keep_registered(&self) {
        let mut kept = Instant::now();
        let mut logged = None;
        loop {
            match self.renew_and_repair(&mut kept).await {
                Ok(()) => {
                    logged = None;
                    tokio::time::sleep(WRITES_PAUSE).await;
                    let pause = self.times.keep_alive.saturating_sub(kept.elapsed());
                    let _ = tokio::time::timeout(pause, self.lease_work.notified()).await;
                }
                Err(error) => {
                    // The reading of the view logs that etcd does not answer.
                    if error.kind() == ErrorKind::Unavailable {
                        debug!(%error, "the registration in etcd cannot be renewed");
                    } else if logged.as_ref() != Some(&error) {
                        warn!(%error, "the registration in etcd cannot be renewed");
                        logged = Some(error);
                    }
                    tokio::time::sleep(self.times.keep_alive / 3).await;
                }
            }
        }
    }

    /// Renews the lease if it is time, then repairs and updates the keys of the node.
    async fn renew_and_repair(&self, kept: &mut Instant) -> Result<()> {
        let (lease, doubtful) = {
            let own = self.own.lock();
            (own.lease, own.lease_doubtful)
        };
        if doubtful || kept.elapsed() >= self.times.keep_alive {
            let requested_at = Instant::now();
            if !self.etcd.keep_alive(lease).await? {
                warn!(node = self.name, "the lease in etcd ended; the node registers again");
                self.replace_lease().await?;
            }
            self.own.lock().lease_doubtful = false;
            *kept = requested_at;
        }
        let repaired = self.repair(*kept).await;
        if repaired.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            self.own.lock().lease_doubtful = true;
        }
        repaired
    }

    /// Makes the keys in etcd match the state of this node.
    async fn repair(&self, kept: Instant) -> Result<()> {
        self.register().await?;
        self.write_info().await?;
        self.recreate_owned(kept).await?;
        self.remove_orphans().await
    }

    /// Grants a new lease. The keys of the node then belong to no lease, so they are created again.
    async fn replace_lease(&self) -> Result<()> {
        let _guard = self.ownership.write().await;
        let lease = self.etcd.grant(self.times.lease).await?;
        let mut own = self.own.lock();
        own.lease = lease;
        own.written = None;
        Ok(())
    }

    /// Creates the node's key if it is not registered under its lease. Compares the store first. If
    /// etcd lost its data, a cluster with another store may have taken the name.
    async fn register(&self) -> Result<()> {
        let (info, lease) = {
            let own = self.own.lock();
            if own.written.is_some() {
                return Ok(());
            }
            (own.info.clone(), own.lease)
        };
        self.check_store().await?;
        let path = self.keys.node(&self.name);
        if self.etcd.create(&path, &encoded(&info)?, lease).await?.is_none() {
            // An earlier request with an unknown outcome may have created it.
            match self.etcd.get(&path).await? {
                Some(entry) if entry.lease == lease => {
                    self.etcd.put(&path, &encoded(&info)?, lease).await?;
                }
                Some(entry) => return Err(self.name_taken(&entry)),
                None => return Err(Error::unavailable("the name of the node was just freed")),
            }
        }
        info!(node = self.name, address = info.address, "the node is registered in etcd");
        self.own.lock().written = Some(info);
        self.view_work.notify_one();
        Ok(())
    }

    /// Writes the node's description if it changed.
    async fn write_info(&self) -> Result<()> {
        let (info, lease) = {
            let own = self.own.lock();
            if own.written.as_ref() == Some(&own.info) {
                return Ok(());
            }
            (own.info.clone(), own.lease)
        };
        self.etcd.put(&self.keys.node(&self.name), &encoded(&info)?, lease).await?;
        self.own.lock().written = Some(info);
        self.view_work.notify_one();
        Ok(())
    }

    /// Creates the keys of owned shards again that ended with an earlier lease. Another node may
    /// have acquired a shard meanwhile. Then this node does not own it.
    async fn recreate_owned(&self, kept: Instant) -> Result<()> {
        let (lease, ended) = {
            let own = self.own.lock();
            let ended = own.owned.iter().filter(|entry| entry.1.lease != own.lease);
            (own.lease, ended.map(|entry| entry.0.clone()).collect::<Vec<ShardKey>>())
        };
        for key in ended {
            if kept.elapsed() >= self.times.keep_alive {
                // The rest follows after the keep-alive.
                self.lease_work.notify_one();
                return Ok(());
            }
            self.recreate(&key, lease).await?;
        }
        Ok(())
    }

    /// Creates the key of an owned shard again, whose lease has ended. The ownership then has a new
    /// epoch.
    async fn recreate(&self, key: &ShardKey, lease: LeaseId) -> Result<()> {
        let _guard = self.ownership.write().await;
        let ended = self.own.lock().owned.get(key).filter(|owned| owned.lease != lease).copied();
        let Some(ended) = ended else {
            return Ok(());
        };
        let path = self.keys.owner(key);
        let value = OwnerValue::encode(&self.name);
        let mut revision = self.etcd.create(&path, &value, lease).await?;
        if revision.is_none() {
            // An earlier request with an unknown outcome may have created it.
            let entry = self.etcd.get(&path).await?;
            revision =
                entry.filter(|entry| entry.lease == lease).map(|entry| entry.create_revision);
        }
        match revision {
            Some(revision) => {
                info!(shard = %key, "owns the shard again, with a new epoch");
                if revision <= ended.revision {
                    warn!(
                        shard = %key,
                        "etcd lost its data: its revisions are smaller than epochs in the log; \
                         restore etcd from a backup"
                    );
                }
                self.record_owned(key, OwnedKey { revision, lease }).await;
            }
            None => {
                info!(shard = %key, "another node owns the shard now");
                self.own.lock().owned.remove(key);
            }
        }
        self.view_work.notify_one();
        Ok(())
    }

    /// Removes keys that name this node as the owner without its knowledge.
    async fn remove_orphans(&self) -> Result<()> {
        loop {
            let _guard = self.ownership.write().await;
            let orphan = {
                let mut own = self.own.lock();
                let own = &mut *own;
                own.orphans.retain(|key, revision| {
                    own.owned.get(key).is_none_or(|owned| owned.revision != *revision)
                });
                own.orphans.first_key_value().map(|entry| (entry.0.clone(), *entry.1))
            };
            let Some((key, revision)) = orphan else {
                return Ok(());
            };
            self.etcd.delete_if_created(&self.keys.owner(&key), revision).await?;
            self.own.lock().orphans.remove(&key);
            self.view_work.notify_one();
        }
    }

    fn name_taken(&self, entry: &EtcdEntry) -> Error {
        let address = registered_address(entry).unwrap_or_else(|| "another address".into());
        let message = format!(
            "another process at {address} is registered with the name {}; choose another name, or \
             stop that process (its name is free {} s after its end)",
            self.name,
            self.times.lease.as_secs()
        );
        Error::new(ErrorKind::AlreadyExists, message)
    }
}

/// Returns true if two nodes have one address, and one of them holds or owns shards. Nodes without
/// shards can share an address, such as roots behind a load balancer.
fn is_address_conflict(own: &NodeInfo, other: &NodeInfo) -> bool {
    let has_shards = |node: &NodeInfo| node.roles.search || node.roles.ingest;
    own.name != other.name && own.address == other.address && (has_shards(own) || has_shards(other))
}

/// Returns the description in a node's key; `None` if its value is unreadable.
fn registered_node(entry: &EtcdEntry) -> Option<NodeInfo> {
    serde_json::from_slice(&entry.value).ok()
}

/// Returns the address of a node's key; `None` if its value is unreadable.
fn registered_address(entry: &EtcdEntry) -> Option<String> {
    registered_node(entry).map(|info| info.address)
}

fn encoded(info: &NodeInfo) -> Result<Vec<u8>> {
    serde_json::to_vec(info).map_err(|error| {
        Error::internal(format!("a node's description is not JSON ({error})")).with_source(error)
    })
}
