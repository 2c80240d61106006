//! Placements of shards that were computed, for the nodes of each role.
//!
//! A placement takes a hash of each node. Each node compares the placement of all shards with its
//! own shards, twice a second and after each change of the view. With 200 nodes and 4,096 shards,
//! that would be more than a million hashes a second.

use std::collections::HashMap;
use std::sync::Arc;

use cluster::{COPIES_MAX, SearchServer, ShardKey, holders};
use parking_lot::Mutex;

use crate::types::NodeInfo;

/// Maximum shards whose placement is kept for a role: about 10 MB.
const PLACED_MAX: usize = 1 << 16;

/// Work for which a shard is placed on nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlacedRole {
    /// Holding the shard.
    Holder,
    /// Writing its log.
    Owner,
}

/// Placements that were computed. Clones share them. They are computed again for other nodes and
/// other weights, so two caches never differ in their answers.
#[derive(Clone, Debug, Default)]
pub struct PlacementCache(Arc<RolePlacements>);

impl PartialEq for PlacementCache {
    fn eq(&self, _: &PlacementCache) -> bool {
        true
    }
}

#[derive(Debug, Default)]
struct RolePlacements {
    holders: Mutex<PlacedShards>,
    owners: Mutex<PlacedShards>,
}

/// Placements on the same nodes.
#[derive(Debug, Default)]
struct PlacedShards {
    servers: Vec<SearchServer>,
    /// Indexes in `servers`, in the order of preference.
    shards: HashMap<ShardKey, Vec<usize>>,
}

impl PlacementCache {
    /// Returns the names of at most `copies` of `nodes` on which the shard is placed, in the order
    /// of preference. `nodes` are all nodes of the role.
    pub(crate) fn place<'n>(
        &self,
        role: PlacedRole,
        key: &ShardKey,
        nodes: impl Iterator<Item = &'n NodeInfo> + Clone,
        copies: usize,
    ) -> Vec<String> {
        let placed = match role {
            PlacedRole::Holder => &self.0.holders,
            PlacedRole::Owner => &self.0.owners,
        };
        let mut placed = placed.lock();
        placed.set_nodes(nodes);
        placed.place(key, copies)
    }
}

impl PlacedShards {
    /// Forgets all placements if the nodes or their weights differ.
    fn set_nodes<'n>(&mut self, nodes: impl Iterator<Item = &'n NodeInfo> + Clone) {
        let is_same = self.servers.len() == nodes.clone().count()
            && self
                .servers
                .iter()
                .zip(nodes.clone())
                .all(|(server, node)| server.weight == node.weight && server.name == node.name);
        if !is_same {
            let server =
                |node: &NodeInfo| SearchServer { name: node.name.clone(), weight: node.weight };
            self.servers = nodes.map(server).collect();
            self.shards.clear();
        }
    }

    /// Returns the names of the nodes that should hold a shard, at most `copies`, in the order of
    /// the placement.
    fn place(&mut self, key: &ShardKey, copies: usize) -> Vec<String> {
        if let Some(placed) = self.shards.get(key) {
            return self.names(placed, copies);
        }
        let placed = holders(&key.placement(), &self.servers, COPIES_MAX);
        let names = self.names(&placed, copies);
        if self.shards.len() >= PLACED_MAX {
            self.shards.clear();
        }
        self.shards.insert(key.clone(), placed);
        names
    }

    fn names(&self, placed: &[usize], copies: usize) -> Vec<String> {
        placed.iter().take(copies).map(|&at| self.servers[at].name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ClusterView, Roles};

    #[test]
    fn placements_are_computed_once_for_the_same_nodes() {
        let mut view = ClusterView::default();
        for name in ["a", "b", "c"] {
            let name = name.to_owned();
            let node = NodeInfo { name, roles: Roles::ALL, weight: 1, ..NodeInfo::default() };
            view.nodes.insert(node.name.clone(), node);
        }
        let keys: Vec<ShardKey> = (0..64).map(|shard| ShardKey::new("1", shard)).collect();
        let all = |view: &ClusterView| -> Vec<Vec<String>> {
            let owners =
                keys.iter().map(|key| view.wanted_owner(key).into_iter().collect::<Vec<_>>());
            keys.iter().map(|key| view.wanted_holders(key, 2)).chain(owners).collect()
        };
        let fresh = |view: &ClusterView| {
            all(&ClusterView { placements: PlacementCache::default(), ..view.clone() })
        };
        let placed = all(&view);
        assert!(placed[..64].iter().all(|names| names.len() == 2));
        assert_eq!(placed, fresh(&view));
        let kept = |view: &ClusterView| view.placements.0.holders.lock().shards.len();
        assert_eq!(kept(&view), keys.len());
        // An announcement changes the view, and no placement.
        let mut later = view.clone();
        later.nodes.get_mut("a").unwrap().serving.entry("1".to_owned()).or_default().insert(7);
        later.placements.0.holders.lock().shards.insert(keys[7].clone(), vec![2]);
        assert_eq!(later.wanted_holders(&keys[7], 2), ["c"], "it is not computed again");
        assert_eq!(kept(&later), keys.len());
        let mut drained = later;
        drained.nodes.get_mut("a").unwrap().weight = 0;
        let placed = all(&drained);
        assert_eq!(placed, fresh(&drained));
        assert!(placed.iter().flatten().all(|name| name != "a"));
        drained.nodes.remove("b");
        assert_eq!(all(&drained), fresh(&drained));
    }
}
