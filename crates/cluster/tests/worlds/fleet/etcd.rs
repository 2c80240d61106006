//! A model of etcd: leases, keys that end with them, and revisions.

use std::collections::{BTreeMap, BTreeSet};

use cluster::{Epoch, StoreReading};

use super::LEASE;

/// Description of a node, as it is in etcd.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeRecord {
    pub(super) weight: u32,
    /// Shards that it has announced.
    pub(super) serving: BTreeSet<u32>,
    /// Shards whose copy it has marked as damaged, or as stalled.
    pub(super) damaged: BTreeSet<u32>,
    /// Shards whose copy it has marked as stalled.
    pub(super) stalled: BTreeSet<u32>,
    /// Access to the store.
    pub(super) store: StoreReading,
}

impl NodeRecord {
    /// Returns true if it has announced the shard with a whole copy.
    pub(super) fn serves_whole(&self, shard: u32) -> bool {
        self.serving.contains(&shard) && !self.damaged.contains(&shard)
    }
}

/// Key of a shard's owner.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OwnerRecord {
    pub(super) node: usize,
    pub(super) epoch: Epoch,
    pub(super) lease: u64,
}

/// Nodes and owners at one revision.
#[derive(Clone, Debug, Default)]
pub(super) struct EtcdView {
    pub(super) nodes: BTreeMap<usize, NodeRecord>,
    pub(super) owners: BTreeMap<u32, OwnerRecord>,
}

/// Request of a node.
#[derive(Clone, Debug)]
pub(super) enum EtcdRequest {
    View,
    /// Ends the registration of an earlier process of this name and grants a lease.
    Enter,
    Grant,
    KeepAlive(u64),
    Revoke(u64),
    Register(u64, NodeRecord),
    Put(u64, NodeRecord),
    /// Creates the key of an owner below a lease. If there is one below the same lease, its
    /// revision counts, or a new key replaces it.
    Own {
        shard: u32,
        lease: u64,
        replaces: bool,
    },
    /// Removes the key of an owner if it has this epoch.
    Disown(u32, Epoch),
}

/// Answer of etcd.
#[derive(Clone, Debug)]
pub(super) enum EtcdAnswer {
    View(EtcdView),
    Lease(u64),
    /// False if the lease does not exist or a key is of another lease.
    Done(bool),
    Owned(Option<Epoch>),
}

#[derive(Default)]
pub(super) struct Etcd {
    revision: u64,
    /// End of each lease.
    leases: BTreeMap<u64, u64>,
    nodes: BTreeMap<usize, (u64, NodeRecord)>,
    owners: BTreeMap<u32, OwnerRecord>,
    /// Last time at which a node announced a shard, if it does not announce the shard now.
    announced: BTreeMap<(usize, u32), u64>,
    pub(super) is_down: bool,
}

impl Etcd {
    /// Carries out a request of a node.
    pub(super) fn take(&mut self, node: usize, request: EtcdRequest, now: u64) -> EtcdAnswer {
        self.expire(now);
        match request {
            EtcdRequest::View => EtcdAnswer::View(self.view()),
            EtcdRequest::Enter => {
                if let Some((lease, _)) = self.nodes.get(&node) {
                    self.end_lease(*lease, now);
                }
                EtcdAnswer::Lease(self.grant(now))
            }
            EtcdRequest::Grant => EtcdAnswer::Lease(self.grant(now)),
            EtcdRequest::KeepAlive(lease) => {
                let end = self.leases.get_mut(&lease);
                EtcdAnswer::Done(end.map(|end| *end = now + LEASE).is_some())
            }
            EtcdRequest::Revoke(lease) => {
                self.end_lease(lease, now);
                EtcdAnswer::Done(true)
            }
            EtcdRequest::Register(lease, record) | EtcdRequest::Put(lease, record) => {
                EtcdAnswer::Done(self.write(node, lease, record, now))
            }
            EtcdRequest::Own { shard, lease, replaces } => {
                EtcdAnswer::Owned(self.own(node, shard, lease, replaces))
            }
            EtcdRequest::Disown(shard, epoch) => {
                let is_same = self.owners.get(&shard).is_some_and(|owner| owner.epoch == epoch);
                if is_same {
                    self.revision += 1;
                    self.owners.remove(&shard);
                }
                EtcdAnswer::Done(is_same)
            }
        }
    }

    pub(super) fn view(&self) -> EtcdView {
        let nodes = self.nodes.iter().map(|(node, key)| (*node, key.1.clone()));
        EtcdView { nodes: nodes.collect(), owners: self.owners.clone() }
    }

    /// Ends the leases that were not kept alive.
    pub(super) fn expire(&mut self, now: u64) {
        let ended = self.leases.iter().filter(|(_, end)| **end <= now);
        let ended: Vec<(u64, u64)> = ended.map(|(lease, end)| (*lease, *end)).collect();
        for (lease, end) in ended {
            self.end_lease(lease, end);
        }
    }

    /// Gives all leases their whole time again, as a new leader does.
    pub(super) fn prolong(&mut self, now: u64) {
        self.leases.values_mut().for_each(|end| *end = now + LEASE);
    }

    /// Returns the last time at which a node announced a shard.
    pub(super) fn announced(&self, node: usize, shard: u32, now: u64) -> Option<u64> {
        if self.nodes.get(&node).is_some_and(|key| key.1.serving.contains(&shard)) {
            return Some(now);
        }
        self.announced.get(&(node, shard)).copied()
    }

    fn grant(&mut self, now: u64) -> u64 {
        self.revision += 1;
        self.leases.insert(self.revision, now + LEASE);
        self.revision
    }

    fn end_lease(&mut self, lease: u64, now: u64) {
        if self.leases.remove(&lease).is_none() {
            return;
        }
        self.revision += 1;
        let of_lease = |node: &usize| self.nodes.get(node).is_some_and(|key| key.0 == lease);
        let ended: Vec<usize> = self.nodes.keys().copied().filter(of_lease).collect();
        for node in ended {
            if let Some((_, record)) = self.nodes.remove(&node) {
                self.announced.extend(record.serving.iter().map(|shard| ((node, *shard), now)));
            }
        }
        self.owners.retain(|_, owner| owner.lease != lease);
    }

    fn write(&mut self, node: usize, lease: u64, record: NodeRecord, now: u64) -> bool {
        let is_taken = self.nodes.get(&node).is_some_and(|key| key.0 != lease);
        if is_taken || !self.leases.contains_key(&lease) {
            return false;
        }
        self.revision += 1;
        if let Some((_, old)) = self.nodes.insert(node, (lease, record)) {
            self.announced.extend(old.serving.iter().map(|shard| ((node, *shard), now)));
        }
        true
    }

    fn own(&mut self, node: usize, shard: u32, lease: u64, replaces: bool) -> Option<Epoch> {
        if !self.leases.contains_key(&lease) {
            return None;
        }
        match self.owners.get(&shard) {
            Some(owner) if owner.lease != lease => return None,
            Some(owner) if !replaces => return Some(owner.epoch),
            _ => {}
        }
        self.revision += 1;
        let epoch = Epoch(self.revision);
        self.owners.insert(shard, OwnerRecord { node, epoch, lease });
        Some(epoch)
    }
}
