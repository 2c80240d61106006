//! Types that the parts of a node share: nodes, shards, and the view of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use api_images::ImageSettings;
use base::Error;
pub use cluster::ShardKey;
use cluster::{Epoch, HolderReading, SearchServer, StoreReading, first_with_store, holders};
use search::points::{NUMBERS_MAX, PointId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use crate::changes::CatalogChanges;
use crate::placement_cache::PlacedRole;
pub use crate::placement_cache::PlacementCache;

/// A collection of the cluster, as the store has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectionRecord {
    /// Clients' name.
    pub name: String,
    /// Id, which no other collection ever has, not even a later one of the same name.
    pub id: String,
    /// Number of shards, which never changes.
    pub shards: u32,
    /// Wanted holders of each shard.
    pub copies: u32,
    /// Body of Qdrant's request that creates the collection.
    pub create: Value,
    /// Settings of a collection of images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<ImageSettings>,
}

impl CollectionRecord {
    /// Returns the keys of its shards.
    pub fn shard_keys(&self) -> impl Iterator<Item = ShardKey> + '_ {
        (0..self.shards).map(|shard| ShardKey::new(&self.id, shard))
    }

    /// Returns the number of values of an embedding, if the record has it.
    pub fn image_dims(&self) -> Option<usize> {
        let size = self.create.get("vectors")?.get("size")?.as_u64()?;
        usize::try_from(size).ok()
    }

    /// Returns the prefix of the keys of its original images, below `data` in the store.
    pub fn originals_space(&self) -> String {
        format!("{}/originals", self.id)
    }
}

/// Returns an id that no other collection has: the time in milliseconds, and 64 random bits.
pub fn new_id() -> String {
    let now = SystemTime::now();
    let since = base::unix_time(now);
    let random = RandomState::new().hash_one((std::process::id(), now));
    format!("{:012x}{random:016x}", since.as_millis())
}

/// Work that a node does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<String>", from = "Vec<String>")]
pub struct Roles {
    /// Answers clients: sends reads to holders and writes to owners.
    pub root: bool,
    /// Holds shards.
    pub search: bool,
    /// Owns shards: writes their logs.
    pub ingest: bool,
    /// Extracts the features of images.
    pub extract: bool,
}

impl Roles {
    /// Every role.
    pub const ALL: Roles = Roles { root: true, search: true, ingest: true, extract: true };

    /// Takes a role by its name. Returns false if there is none of this name.
    fn take(&mut self, name: &str) -> bool {
        let role = match name {
            "root" => &mut self.root,
            "search" => &mut self.search,
            "ingest" => &mut self.ingest,
            "extract" => &mut self.extract,
            _ => return false,
        };
        *role = true;
        true
    }
}

impl FromStr for Roles {
    type Err = Error;

    /// Reads names that are separated by commas, such as `root,search`.
    fn from_str(text: &str) -> Result<Roles, Error> {
        let mut roles = Roles::default();
        for name in text.split(',').map(str::trim) {
            if !roles.take(name) {
                return Err(Error::invalid(format!(
                    "{name:?} is not a role of a cluster's node; use root, search, ingest and extract"
                )));
            }
        }
        Ok(roles)
    }
}

impl From<Vec<String>> for Roles {
    /// Leaves out roles that only newer programs know, so that nodes of two builds understand each
    /// other.
    fn from(names: Vec<String>) -> Roles {
        let mut roles = Roles::default();
        for name in names {
            roles.take(&name);
        }
        roles
    }
}

impl From<Roles> for Vec<String> {
    fn from(roles: Roles) -> Vec<String> {
        let named = [
            ("root", roles.root),
            ("search", roles.search),
            ("ingest", roles.ingest),
            ("extract", roles.extract),
        ];
        named.iter().filter(|role| role.1).map(|role| role.0.to_owned()).collect()
    }
}

/// Number of the protocol between nodes that this program speaks. It grows if a node of an earlier
/// number cannot read a message, or applies an operation of a log differently. A new operation has
/// a new name, at which holders of earlier versions stop. `docs/cluster.md` has the order in which
/// nodes are upgraded.
pub const PROTOCOL: u32 = 2;
/// Number of the protocol from which holders know ids of points above 2^63 - 1. Builds of number 1
/// are older than these ids.
pub(crate) const LARGE_IDS_PROTOCOL: u32 = 2;

/// A node, as it describes itself to the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Name, which stays the same across restarts.
    pub name: String,
    /// `HOST:PORT` of its HTTP interface, as the other nodes reach it.
    pub address: String,
    /// Work that it does.
    pub roles: Roles,
    /// Share of the shards relative to other nodes; 0 if it drains.
    pub weight: u32,
    /// Version of its program.
    pub build: String,
    /// Number of the protocol that its program speaks ([`PROTOCOL`]). 0 if its program is older
    /// than this number.
    #[serde(default)]
    pub protocol: u32,
    /// Shards that it holds and that follow the end of the log, by the id of the collection.
    #[serde(default)]
    pub serving: BTreeMap<String, BTreeSet<u32>>,
    /// Shards with a bad copy on this node, by the id of the collection. The copy is damaged or
    /// being replaced, or it lacks changes. It lacks changes if the disk is full, the log has an
    /// operation of a newer version, or the log cannot be read. Some of these shards are in
    /// `serving` too. Nodes of earlier versions do not read this.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub damaged: BTreeMap<String, BTreeSet<u32>>,
    /// Shards whose copy on this node lacks changes because the disk is full, by the id of the
    /// collection. All of them are in `damaged` too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stalled: BTreeMap<String, BTreeSet<u32>>,
    /// Access of the node to the store. Nodes of earlier versions neither write nor read this.
    #[serde(default, skip_serializing_if = "StoreAccess::is_unknown")]
    pub store: StoreAccess,
}

/// Access of a node to the store, as its readings of the collections show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreAccess {
    /// The readings succeed, or they have failed for a short time only.
    Working,
    /// The readings fail. The node keeps the logs that it writes, because the store may be down for
    /// all nodes.
    Failing,
    /// The readings fail, and succeed on another node that can write logs. So the logs of this node
    /// move to other nodes.
    Lost,
    /// The node has announced no access. It has not read the store yet, or its program is of an
    /// earlier version. Values that only newer programs know are read as this one.
    #[default]
    #[serde(other)]
    Unknown,
}

impl From<StoreReading> for StoreAccess {
    fn from(reading: StoreReading) -> StoreAccess {
        match reading {
            StoreReading::Unknown => StoreAccess::Unknown,
            StoreReading::Working => StoreAccess::Working,
            StoreReading::Failing => StoreAccess::Failing,
            StoreReading::Lost => StoreAccess::Lost,
        }
    }
}

impl StoreAccess {
    /// Converts the access to the type of the crate `cluster`, which makes the decisions.
    fn reading(&self) -> StoreReading {
        match self {
            StoreAccess::Unknown => StoreReading::Unknown,
            StoreAccess::Working => StoreReading::Working,
            StoreAccess::Failing => StoreReading::Failing,
            StoreAccess::Lost => StoreReading::Lost,
        }
    }

    /// Returns true if no access was announced.
    fn is_unknown(&self) -> bool {
        *self == StoreAccess::Unknown
    }

    /// Returns true if the node has announced that its readings succeed.
    pub(crate) fn is_working(&self) -> bool {
        *self == StoreAccess::Working
    }

    /// Returns true if the node has announced that its readings fail.
    pub fn is_failing(&self) -> bool {
        matches!(self, StoreAccess::Failing | StoreAccess::Lost)
    }
}

impl NodeInfo {
    /// Returns true if shards can have this node as their owner.
    pub fn takes_logs(&self) -> bool {
        self.roles.ingest && self.weight > 0
    }

    /// Returns the access to the store for the choice of the node that takes snapshots. A node
    /// without the role ingest has no logs to leave, so it never announces [`StoreAccess::Lost`].
    fn snapshot_reading(&self) -> StoreReading {
        match self.store.reading() {
            StoreReading::Failing if !self.roles.ingest => StoreReading::Lost,
            reading => reading,
        }
    }

    /// Returns true if it holds the shard and follows the end of its log.
    pub fn serves(&self, key: &ShardKey) -> bool {
        self.serving.get(&*key.collection).is_some_and(|shards| shards.contains(&key.shard.0))
    }

    /// Returns true if its copy of the shard is in [`NodeInfo::damaged`].
    pub fn is_damaged(&self, key: &ShardKey) -> bool {
        self.damaged.get(&*key.collection).is_some_and(|shards| shards.contains(&key.shard.0))
    }

    /// Returns true if its copy of the shard lacks changes because the disk is full.
    pub fn is_stalled(&self, key: &ShardKey) -> bool {
        self.stalled.get(&*key.collection).is_some_and(|shards| shards.contains(&key.shard.0))
    }

    /// Returns true if it serves the shard and its copy is not damaged.
    pub fn serves_whole(&self, key: &ShardKey) -> bool {
        self.serves(key) && !self.is_damaged(key)
    }
}

/// The owner of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Name of the node.
    pub node: String,
    /// Number of the ownership.
    pub epoch: Epoch,
}

/// The cluster, as a node last saw it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterView {
    /// Nodes that are alive, by name.
    pub nodes: BTreeMap<String, NodeInfo>,
    /// Owners of shards.
    pub owners: BTreeMap<ShardKey, Owner>,
    /// Collections, by name.
    pub collections: BTreeMap<String, CollectionRecord>,
    /// Aliases, and changes of collections after their creation.
    pub changes: Arc<CatalogChanges>,
    /// Reason why nodes and owners are as they were before, and not as etcd has them; `None` if the
    /// last reading succeeded.
    pub stale: Option<String>,
    /// Placements of shards that were computed. They have no effect on any answer.
    pub placements: PlacementCache,
}

/// Checks that all holders know the ids of points that are written, changed or deleted. An old
/// holder would skip the whole operation, also for its other points, so the copies of the shard
/// would differ. `old_holder` is that of [`ClusterView::old_holder`].
///
/// # Errors
/// `Unavailable` for an id that `old_holder` does not know.
pub fn check_known_ids(ids: &[PointId], old_holder: Option<&str>) -> Result<(), Error> {
    let Some(node) = old_holder else { return Ok(()) };
    let is_large = |id: &&PointId| matches!(id, PointId::Number(number) if *number >= NUMBERS_MAX);
    match ids.iter().find(is_large) {
        Some(id) => Err(Error::unavailable(format!(
            "point {id}: the search node {node} has an earlier version, which knows no ids above 2^63 - 1; \
             upgrade the node, and send the request again"
        ))),
        None => Ok(()),
    }
}

impl ClusterView {
    /// Returns the name of a search node that knows no ids of points above 2^63 - 1, if there is
    /// one.
    pub fn old_holder(&self) -> Option<&str> {
        let is_old = |node: &&NodeInfo| node.roles.search && node.protocol < LARGE_IDS_PROTOCOL;
        self.nodes.values().find(is_old).map(|node| node.name.as_str())
    }

    /// Returns the names of the nodes that should hold the shard, in the order of preference.
    pub fn wanted_holders(&self, key: &ShardKey, copies: u32) -> Vec<String> {
        let nodes = self.nodes.values().filter(|node| node.roles.search);
        self.placements.place(PlacedRole::Holder, key, nodes, copies as usize)
    }

    /// Returns the name of the node that should own the shard. If that node has lost the store, the
    /// next one in the order of preference owns the shard. Nodes of earlier versions do not see the
    /// loss and take no such shard, so they are left out of this order.
    pub fn wanted_owner(&self, key: &ShardKey) -> Option<String> {
        let nodes = self.nodes.values().filter(|node| node.roles.ingest);
        let first = self.placements.place(PlacedRole::Owner, key, nodes, 1).pop()?;
        if self.nodes.get(&first).is_none_or(|node| node.store != StoreAccess::Lost) {
            return Some(first);
        }
        Some(self.next_owner(key).unwrap_or(first))
    }

    /// Returns the owner of a shard among the nodes that take the logs of a node without the store.
    fn next_owner(&self, key: &ShardKey) -> Option<String> {
        let takes_over = |node: &&NodeInfo| node.roles.ingest && node.store.reading().takes_over();
        let servers: Vec<SearchServer> = self
            .nodes
            .values()
            .filter(takes_over)
            .map(|node| SearchServer { name: node.name.clone(), weight: node.weight })
            .collect();
        let chosen = holders(&key.placement(), &servers, 1);
        chosen.first().map(|&at| servers[at].name.clone())
    }

    /// Returns the nodes that hold the shard and follow the end of its log: wanted holders first,
    /// in the order of preference.
    pub fn serving_holders(&self, key: &ShardKey, copies: u32) -> Vec<&NodeInfo> {
        let wanted = self.wanted_holders(key, copies);
        let mut serving: Vec<&NodeInfo> =
            self.nodes.values().filter(|node| node.serves(key)).collect();
        serving.sort_by_key(|node| {
            wanted.iter().position(|name| *name == node.name).unwrap_or(usize::MAX)
        });
        serving
    }

    /// Returns the node that takes snapshots of the shard: the first that serves it. If that node
    /// has lost the store, the next one does, as in [`ClusterView::wanted_owner`]. Otherwise the
    /// log would grow until the first node reads the store again.
    pub(crate) fn snapshot_holder(&self, key: &ShardKey, copies: u32) -> Option<&NodeInfo> {
        let holders = self.serving_holders(key, copies).into_iter();
        let holders: Vec<(&NodeInfo, StoreReading)> =
            holders.map(|node| (node, node.snapshot_reading())).collect();
        first_with_store(&holders)
    }

    /// Returns the nodes that should hold the shard or serve it, by name.
    pub(crate) fn present_holders(&self, key: &ShardKey, copies: u32) -> Vec<&NodeInfo> {
        let wanted = self.wanted_holders(key, copies);
        let is_holder = |node: &&NodeInfo| node.serves(key) || wanted.contains(&node.name);
        self.nodes.values().filter(is_holder).collect()
    }

    /// Returns the nodes that serve the shard or have marked their copy of it as damaged.
    pub fn holder_readings(&self, key: &ShardKey) -> Vec<HolderReading<'_>> {
        let readings = self.nodes.values().map(|node| HolderReading {
            node: &node.name,
            serves: node.serves(key),
            is_damaged: node.is_damaged(key),
        });
        readings.filter(|reading| reading.serves || reading.is_damaged).collect()
    }

    /// Returns true if the node `name` is the one that removes unused data and makes backups of the
    /// schedule: the first with the role ingest. If that node has lost the store, the next one that
    /// can take its logs does the work, as in [`ClusterView::wanted_owner`].
    pub fn is_collector(&self, name: &str) -> bool {
        self.collector().is_some_and(|collector| collector.name == name)
    }

    /// Returns true if [`ClusterView::is_collector`] is true for another node than `name`. False if
    /// no node can do this work, for example after the leases of all nodes have expired.
    pub(crate) fn has_other_collector(&self, name: &str) -> bool {
        self.collector().is_some_and(|collector| collector.name != name)
    }

    fn collector(&self) -> Option<&NodeInfo> {
        let writers = self.nodes.values().filter(|node| node.roles.ingest);
        let writers: Vec<(&NodeInfo, StoreReading)> =
            writers.map(|node| (node, node.store.reading())).collect();
        first_with_store(&writers)
    }

    /// Returns the collection of a name or an alias. A name comes first.
    pub fn collection(&self, name: &str) -> Option<&CollectionRecord> {
        let of_alias = || self.collections.get(self.changes.aliases.get(name)?);
        self.collections.get(name).or_else(of_alias)
    }

    /// Returns the number of shards of a collection without a holder that follows the end of the
    /// log.
    pub fn unserved_shards(&self, record: &CollectionRecord) -> u32 {
        let is_served = |key: &ShardKey| self.nodes.values().any(|node| node.serves(key));
        let unserved = record.shard_keys().filter(|key| !is_served(key)).count();
        u32::try_from(unserved).unwrap_or(u32::MAX)
    }

    /// Returns the collection of an id.
    pub fn by_id(&self, id: &str) -> Option<&CollectionRecord> {
        self.collections.values().find(|record| record.id == id)
    }
}

/// The newest view of the cluster. Clones see the same view.
#[derive(Clone, Debug)]
pub struct ViewSource {
    receiver: watch::Receiver<Arc<ClusterView>>,
}

/// Side of a [`ViewSource`] that changes the view.
#[derive(Clone, Debug)]
pub struct ViewUpdater {
    sender: Arc<watch::Sender<Arc<ClusterView>>>,
}

impl ViewUpdater {
    /// Creates an empty view.
    pub fn new() -> ViewUpdater {
        ViewUpdater { sender: Arc::new(watch::Sender::new(Arc::default())) }
    }

    /// Changes the view. Wakes waiting tasks only if the view differs afterwards.
    pub fn update(&self, change: impl FnOnce(&mut ClusterView)) {
        self.sender.send_if_modified(|view| {
            let mut new = ClusterView::clone(view);
            change(&mut new);
            let differs = new != **view;
            if differs {
                *view = Arc::new(new);
            }
            differs
        });
    }

    /// Returns a reader of the view.
    pub fn source(&self) -> ViewSource {
        ViewSource { receiver: self.sender.subscribe() }
    }
}

impl Default for ViewUpdater {
    fn default() -> ViewUpdater {
        ViewUpdater::new()
    }
}

impl ViewSource {
    /// Returns the newest view.
    pub fn current(&self) -> Arc<ClusterView> {
        self.receiver.borrow().clone()
    }

    /// Waits until the view changes after the last call of this method on this clone. Returns at
    /// once if it has changed already. Never returns if the sender of views has ended.
    pub async fn changed(&mut self) {
        if self.receiver.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_of_protocol_1_know_no_large_ids() {
        let mut view = ClusterView::default();
        // As a build wrote it before holders knew such ids.
        let text = r#"{"name":"a","address":"a:1","roles":["search"],"weight":1,"build":"0.1.0","protocol":1}"#;
        let node: NodeInfo = serde_json::from_str(text).unwrap();
        view.nodes.insert("a".to_owned(), node);
        assert_eq!(view.old_holder(), Some("a"));
        view.nodes.get_mut("a").unwrap().protocol = PROTOCOL;
        assert_eq!(view.old_holder(), None);
    }

    #[test]
    fn logs_move_to_nodes_that_reach_the_store() {
        let mut view = ClusterView::default();
        for name in ["a", "b", "c"] {
            let ingest = name != "c";
            let roles = Roles { ingest, ..Roles::ALL };
            let store = StoreAccess::Working;
            let name = name.to_owned();
            let node = NodeInfo { name, roles, weight: 1, store, ..NodeInfo::default() };
            view.nodes.insert(node.name.clone(), node);
        }
        let owners = |view: &ClusterView| -> BTreeSet<String> {
            (0..32).filter_map(|shard| view.wanted_owner(&ShardKey::new("1", shard))).collect()
        };
        let named = |names: &[&str]| -> BTreeSet<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        let set = |view: &mut ClusterView, name: &str, store: StoreAccess| {
            view.nodes.get_mut(name).unwrap().store = store;
        };
        assert_eq!(owners(&view), named(&["a", "b"]));
        set(&mut view, "a", StoreAccess::Failing);
        assert_eq!(owners(&view), named(&["a", "b"]), "the store may be down for all");
        set(&mut view, "a", StoreAccess::Lost);
        assert_eq!(owners(&view), named(&["b"]));
        assert!(view.wanted_holders(&ShardKey::new("1", 0), 3).contains(&"a".to_owned()));
        set(&mut view, "b", StoreAccess::Lost);
        assert_eq!(owners(&view), named(&["a", "b"]), "no other node can write");
        set(&mut view, "b", StoreAccess::Working);
        view.nodes.get_mut("b").unwrap().weight = 0;
        assert_eq!(owners(&view), named(&["a"]), "b drains");
    }

    #[test]
    fn nodes_of_earlier_versions_take_no_logs_of_a_lost_node() {
        let mut view = ClusterView::default();
        let nodes = [
            ("lost", StoreAccess::Lost),
            ("working", StoreAccess::Working),
            ("earlier", StoreAccess::Unknown),
        ];
        for (name, store) in nodes {
            let name = name.to_owned();
            let roles = Roles::ALL;
            let node = NodeInfo { name, roles, weight: 1, store, ..NodeInfo::default() };
            view.nodes.insert(node.name.clone(), node);
        }
        // Nodes of earlier versions choose the owners as in this view.
        let mut earlier = view.clone();
        for node in earlier.nodes.values_mut() {
            node.store = StoreAccess::Unknown;
        }
        let mut moved = 0;
        for shard in 0..32 {
            let key = ShardKey::new("1", shard);
            let mut expected = earlier.wanted_owner(&key).unwrap();
            if expected == "lost" {
                "working".clone_into(&mut expected);
                moved += 1;
            }
            assert_eq!(view.wanted_owner(&key), Some(expected), "{key}");
        }
        assert!(moved > 0);
    }

    #[test]
    fn another_node_collects_if_the_first_has_lost_the_store() {
        let mut view = ClusterView::default();
        for name in ["a", "b", "c", "d"] {
            let roles = Roles { ingest: name != "a", ..Roles::ALL };
            let name = name.to_owned();
            let node = NodeInfo { name, roles, weight: 1, ..NodeInfo::default() };
            view.nodes.insert(node.name.clone(), node);
        }
        let mut collector = |changes: &[(&str, StoreAccess)]| {
            for (name, store) in changes {
                view.nodes.get_mut(*name).unwrap().store = store.clone();
            }
            let collectors = view.nodes.keys().filter(|name| view.is_collector(name));
            collectors.cloned().collect::<Vec<_>>()
        };
        assert_eq!(collector(&[]), ["b"], "all have an earlier version");
        assert_eq!(collector(&[("b", StoreAccess::Failing)]), ["b"], "it may be down for all");
        assert_eq!(collector(&[("b", StoreAccess::Lost)]), ["b"], "no other node sees the loss");
        assert_eq!(collector(&[("d", StoreAccess::Working)]), ["d"]);
        assert_eq!(collector(&[("c", StoreAccess::Failing)]), ["c"]);
        let lost = [("c", StoreAccess::Lost), ("d", StoreAccess::Lost)];
        assert_eq!(collector(&lost), ["b"], "all have lost it");
        assert_eq!(collector(&[("b", StoreAccess::Working)]), ["b"], "it reads the store again");
    }

    #[test]
    fn another_holder_takes_snapshots_if_the_first_has_lost_the_store() {
        let key = ShardKey::new("1", 0);
        let mut view = ClusterView::default();
        for name in ["a", "b", "c"] {
            let serving = BTreeMap::from([("1".to_owned(), BTreeSet::from([0]))]);
            let name = name.to_owned();
            let store = StoreAccess::Working;
            let roles = Roles::ALL;
            let node = NodeInfo { name, roles, weight: 1, serving, store, ..NodeInfo::default() };
            view.nodes.insert(node.name.clone(), node);
        }
        let order: Vec<String> =
            view.serving_holders(&key, 3).iter().map(|node| node.name.clone()).collect();
        let holder = |view: &ClusterView| view.snapshot_holder(&key, 3).unwrap().name.clone();
        assert_eq!(holder(&view), order[0]);
        view.nodes.get_mut(&order[0]).unwrap().store = StoreAccess::Failing;
        assert_eq!(holder(&view), order[0], "the store may be down for all");
        view.nodes.get_mut(&order[0]).unwrap().roles.ingest = false;
        assert_eq!(holder(&view), order[1], "it never announces the loss");
        view.nodes.get_mut(&order[0]).unwrap().store = StoreAccess::Lost;
        assert_eq!(holder(&view), order[1]);
        view.nodes.get_mut(&order[1]).unwrap().serving.clear();
        assert_eq!(holder(&view), order[2]);
        view.nodes.get_mut(&order[2]).unwrap().store = StoreAccess::Unknown;
        assert_eq!(holder(&view), order[0], "an earlier version does not see the loss");
    }

    #[test]
    fn description_has_announced_access_only() {
        let node = NodeInfo { name: "a".to_owned(), ..NodeInfo::default() };
        let text = serde_json::to_string(&node).unwrap();
        assert!(!text.contains("store"), "{text}");
        assert_eq!(serde_json::from_str::<NodeInfo>(&text).unwrap(), node);
        let node = NodeInfo { store: StoreAccess::Lost, ..node };
        let text = serde_json::to_string(&node).unwrap();
        assert!(text.contains(r#""store":"lost""#), "{text}");
        assert_eq!(serde_json::from_str::<NodeInfo>(&text).unwrap(), node);
        // A node with a value of a newer program stays in the view.
        let newer = serde_json::from_str::<NodeInfo>(&text.replace("lost", "slow")).unwrap();
        assert_eq!(newer, NodeInfo { store: StoreAccess::Unknown, ..node });
    }
}
