//! Tests of local copies that an earlier process of the node left.

use std::collections::BTreeSet;

use etcd::Etcd;

use super::*;
use crate::membership::Membership;
use crate::node::catalog::StoreCatalog;
use crate::node::placement::HeldShards;
use crate::types::{ClusterView, NodeInfo, Roles};

/// Returns a view in which only the node "b" should hold the shard.
fn view(is_served: bool) -> ClusterView {
    let mut view = ClusterView::default();
    view.collections.insert("photos".to_owned(), record());
    for (name, weight) in [("a", 0), ("b", 1)] {
        view.nodes.insert(name.to_owned(), node(name, weight));
    }
    if is_served && let Some(other) = view.nodes.get_mut("b") {
        other.serving.insert("1".to_owned(), BTreeSet::from([0]));
    }
    view
}

fn node(name: &str, weight: u32) -> NodeInfo {
    NodeInfo { name: name.to_owned(), roles: Roles::ALL, weight, ..NodeInfo::default() }
}

/// Returns the shards of a node that begins. Its etcd does not answer.
async fn held_shards(services: Arc<NodeServices>) -> HeldShards {
    let etcd = Etcd::new(&["http://127.0.0.1:1".to_owned()], HttpClient::new(None)).unwrap();
    let place = StorePlace::new(Arc::new(InMemory::new()), "test", "memory");
    let catalog = StoreCatalog::new(place.clone(), ViewUpdater::new());
    let view = ViewUpdater::new();
    let membership = Membership::start(etcd, "test", place, node("a", 1), view).await.unwrap();
    HeldShards::new(services, Arc::new(membership), Arc::new(catalog))
}

#[tokio::test]
async fn a_copy_of_an_earlier_process_is_held_until_other_nodes_serve() {
    let earlier = AppliedNode::start().await;
    let held = held_shards(earlier.follower.services.clone()).await;
    held.attend_to_leftovers(&view(true), true, true);
    assert!(held.find(&shard()).is_none(), "another node serves the shard");
    held.attend_to_leftovers(&view(false), false, true);
    assert!(held.find(&shard()).is_none(), "this node does not have the role");
    held.attend_to_leftovers(&view(false), true, false);
    assert!(held.find(&shard()).is_some());
    held.stop();
}

#[tokio::test]
async fn a_shard_of_other_nodes_is_not_restored() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_registry(&collections(directory.path()));
    let mut follower = follower(directory.path(), &registry);
    let updater = ViewUpdater::new();
    updater.update(|current| *current = view(false));
    Arc::get_mut(&mut follower.services).unwrap().view = updater.source();
    let error = follower.open().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("other nodes restore"), "{error}");
    updater.update(|current| current.nodes.clear());
    follower.open().await.unwrap();
}
