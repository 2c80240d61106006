//! Keys of a cluster in etcd and the entries below them.

use std::collections::{BTreeMap, BTreeSet};

use cluster::{Epoch, SHARDS_MAX};
use etcd::{EtcdEntry, LeaseId};
use serde::{Deserialize, Serialize};

use crate::types::{ClusterView, NodeInfo, Owner, ShardKey};

#[derive(Clone, Debug)]
pub(super) struct ClusterKeys {
    prefix: String,
}

impl ClusterKeys {
    pub(super) fn new(cluster: &str) -> ClusterKeys {
        ClusterKeys { prefix: format!("millpond/{cluster}/") }
    }

    /// Returns the start of all keys.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the start of the keys of all nodes.
    pub(super) fn nodes(&self) -> String {
        format!("{}nodes/", self.prefix)
    }

    pub(super) fn node(&self, name: &str) -> String {
        format!("{}nodes/{name}", self.prefix)
    }

    /// Returns the key of a request that a node drains.
    pub(super) fn drain(&self, name: &str) -> String {
        format!("{}drains/{name}", self.prefix)
    }

    pub(super) fn owner(&self, key: &ShardKey) -> String {
        format!("{}owners/{key}", self.prefix)
    }

    /// Returns the key of the id of the cluster's store.
    pub(super) fn store(&self) -> String {
        format!("{}store", self.prefix)
    }

    /// Returns the key of the cluster that uses a store. Its value is the start of the keys of that
    /// cluster.
    pub(super) fn cluster_of_store(id: &str) -> String {
        format!("millpond/.stores/{id}")
    }
}

/// Value of the key of the cluster's store.
#[derive(Serialize, Deserialize)]
pub(super) struct StoreValue {
    pub(super) id: String,
}

impl StoreValue {
    pub(super) fn encode(id: &str) -> Vec<u8> {
        serde_json::json!({ "id": id }).to_string().into_bytes()
    }

    pub(super) fn decode(entry: &EtcdEntry) -> Option<StoreValue> {
        serde_json::from_slice(&entry.value).ok()
    }
}

/// Value of an owner's key.
#[derive(Serialize, Deserialize)]
pub(super) struct OwnerValue {
    pub(super) node: String,
}

impl OwnerValue {
    pub(super) fn encode(node: &str) -> Vec<u8> {
        serde_json::json!({ "node": node }).to_string().into_bytes()
    }

    pub(super) fn decode(entry: &EtcdEntry) -> Option<OwnerValue> {
        serde_json::from_slice(&entry.value).ok()
    }
}

/// Returns the epoch of the ownership that began with the creation of a key.
pub(super) fn epoch_of(create_revision: i64) -> Epoch {
    Epoch(u64::try_from(create_revision).unwrap_or(0))
}

/// Nodes and owners, as etcd has them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ClusterSnapshot {
    pub(super) nodes: BTreeMap<String, NodeInfo>,
    pub(super) owners: BTreeMap<ShardKey, Owner>,
    /// Names of nodes that are to drain, each with the lease of the request.
    pub(super) drains: BTreeMap<String, LeaseId>,
    /// Leases of the owners' keys.
    pub(super) leases: BTreeMap<ShardKey, LeaseId>,
    /// Id of the cluster's store, if a node has registered it.
    pub(super) store: Option<String>,
    /// Keys with a value that this program does not understand. Another version may have written
    /// them, so they do not make the rest invalid.
    pub(super) unreadable: BTreeSet<String>,
}

impl ClusterSnapshot {
    pub(super) fn new(keys: &ClusterKeys, entries: &[EtcdEntry]) -> ClusterSnapshot {
        let mut snapshot = ClusterSnapshot::default();
        for entry in entries {
            if snapshot.add(keys, entry).is_none() {
                snapshot.unreadable.insert(entry.key.clone());
            }
        }
        snapshot
    }

    /// Adds an entry of etcd to the reading. Returns `None` for an entry of another form.
    fn add(&mut self, keys: &ClusterKeys, entry: &EtcdEntry) -> Option<()> {
        let rest = entry.key.strip_prefix(&keys.prefix)?;
        if let Some(name) = rest.strip_prefix("nodes/") {
            let info: NodeInfo = serde_json::from_slice(&entry.value).ok()?;
            if info.name != name {
                return None;
            }
            self.nodes.insert(info.name.clone(), info);
        } else if let Some(name) = rest.strip_prefix("drains/") {
            self.drains.insert(name.to_owned(), entry.lease);
        } else if rest == "store" {
            self.store = Some(StoreValue::decode(entry)?.id);
        } else {
            let key = shard_key(rest.strip_prefix("owners/")?)?;
            let node = OwnerValue::decode(entry)?.node;
            self.leases.insert(key.clone(), entry.lease);
            self.owners.insert(key, Owner { node, epoch: epoch_of(entry.create_revision) });
        }
        Some(())
    }

    /// Adds the nodes and owners of an older view that are absent here.
    pub(super) fn keep_absent(&mut self, old: &ClusterView) {
        for (name, node) in &old.nodes {
            self.nodes.entry(name.clone()).or_insert_with(|| node.clone());
        }
        for (key, owner) in &old.owners {
            self.owners.entry(key.clone()).or_insert_with(|| owner.clone());
        }
    }
}

/// Reads `ID/0003`.
fn shard_key(text: &str) -> Option<ShardKey> {
    let (collection, shard) = text.rsplit_once('/')?;
    let shard: u32 = shard.parse().ok()?;
    let key =
        (shard < SHARDS_MAX && !collection.is_empty()).then(|| ShardKey::new(collection, shard))?;
    // One shard has one key: "3" and "0003" do not both name shard 3.
    (key.to_string() == text).then_some(key)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::types::Roles;

    fn entry(key: &str, value: &str, create_revision: i64) -> EtcdEntry {
        let value = Bytes::copy_from_slice(value.as_bytes());
        EtcdEntry { key: key.to_owned(), value, create_revision, lease: LeaseId(1) }
    }

    fn info(name: &str) -> NodeInfo {
        NodeInfo {
            name: name.to_owned(),
            address: "a:1".to_owned(),
            roles: Roles::ALL,
            weight: 1,
            build: "1".to_owned(),
            ..NodeInfo::default()
        }
    }

    #[test]
    fn snapshot_has_readable_entries_only() {
        let keys = ClusterKeys::new("c");
        let node = serde_json::to_string(&info("a")).unwrap();
        let newer = node.replacen('{', r#"{"later":[1],"#, 1);
        let shard = ShardKey::new("id", 3);
        let entries = [
            entry(&keys.node("a"), &newer, 5),
            entry(&keys.node("b"), &node, 6),
            entry(&keys.node("c"), "{}", 7),
            entry(&keys.owner(&shard), r#"{"node":"a","later":1}"#, 8),
            entry("millpond/c/owners/id/3", r#"{"node":"b"}"#, 9),
            entry("millpond/c/owners/id/5000", r#"{"node":"b"}"#, 9),
            entry("millpond/c/owners/id/x", r#"{"node":"b"}"#, 9),
            entry("millpond/c/owners/0001", r#"{"node":"b"}"#, 9),
            entry("millpond/c/others", "", 9),
            entry(&keys.store(), r#"{"id":"7f","later":1}"#, 9),
        ];
        let snapshot = ClusterSnapshot::new(&keys, &entries);
        assert_eq!(snapshot.nodes, BTreeMap::from([("a".to_owned(), info("a"))]));
        let owner = Owner { node: "a".to_owned(), epoch: Epoch(8) };
        assert_eq!(snapshot.owners, BTreeMap::from([(shard.clone(), owner)]));
        assert_eq!(snapshot.leases, BTreeMap::from([(shard, LeaseId(1))]));
        assert_eq!(snapshot.store.as_deref(), Some("7f"));
        assert_eq!(snapshot.unreadable.len(), 7);
    }

    #[test]
    fn absent_entries_are_kept_and_present_ones_win() {
        let shards = [ShardKey::new("id", 0), ShardKey::new("id", 1)];
        let owner = |node: &str, epoch| Owner { node: node.to_owned(), epoch: Epoch(epoch) };
        let mut snapshot = ClusterSnapshot::default();
        snapshot.nodes.insert("a".to_owned(), NodeInfo { weight: 7, ..info("a") });
        snapshot.owners.insert(shards[0].clone(), owner("b", 9));
        let old = ClusterView {
            nodes: ["a", "b"].map(|name| (name.to_owned(), info(name))).into(),
            owners: shards.clone().map(|key| (key, owner("a", 3))).into(),
            ..ClusterView::default()
        };
        snapshot.keep_absent(&old);
        assert_eq!(snapshot.nodes["a"].weight, 7);
        assert_eq!(snapshot.nodes["b"], info("b"));
        assert_eq!(snapshot.owners[&shards[0]], owner("b", 9));
        assert_eq!(snapshot.owners[&shards[1]], owner("a", 3));
    }
}
