//! Memberships of several nodes in one process against a real etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base::ErrorKind;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cluster::{Epoch, HolderReading};
use cluster_node::membership::{CopyMarks, Membership, MembershipTimes};
use cluster_node::{
    ClusterView, CollectionRecord, NodeInfo, Owner, Roles, ShardKey, StoreAccess, ViewSource,
    ViewUpdater,
};
use etcd::testing::{EtcdServer, WAIT_MAX};
use etcd::{Etcd, EtcdEntry, EtcdUser, LeaseId};
use model_store::StorePlace;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use serde_json::json;
use tokio::task::JoinSet;
use transport::access::Secret;

/// Intervals of tests in which leases end.
const SHORT: MembershipTimes = MembershipTimes {
    lease: Duration::from_secs(3),
    keep_alive: Duration::from_millis(500),
    poll: Duration::from_millis(50),
};

/// Intervals of tests in which no lease ends by itself, however long a process is paused.
const LASTING: MembershipTimes = MembershipTimes { lease: Duration::from_secs(60), ..SHORT };

/// Store of the nodes of all tests, of which each has an etcd of its own.
static STORE: LazyLock<StorePlace> = LazyLock::new(new_store);

fn new_store() -> StorePlace {
    StorePlace::new(Arc::new(InMemory::new()), "cluster", "memory")
}

/// Returns the id of a store that a node has used.
async fn id_of(store: &StorePlace) -> String {
    let object = store.objects().get(&store.key("identity")).await.unwrap();
    String::from_utf8(object.bytes().await.unwrap().to_vec()).unwrap()
}

/// A node of a test with its view.
struct TestNode {
    membership: Membership,
    view: ViewSource,
}

impl TestNode {
    async fn start(server: &EtcdServer, name: &str, times: MembershipTimes) -> TestNode {
        let view = ViewUpdater::new();
        let source = view.source();
        let (etcd, store) = (server.client(), STORE.clone());
        let membership = Membership::start_with(etcd, "test", store, info(name), view, times).await;
        TestNode { membership: membership.unwrap(), view: source }
    }

    /// Waits until the view passes the check.
    async fn sees(&mut self, check: impl Fn(&ClusterView) -> bool) {
        let seen = async {
            while !check(&self.view.current()) {
                self.view.changed().await;
            }
        };
        let result = tokio::time::timeout(WAIT_MAX, seen).await;
        assert!(result.is_ok(), "the view is {:?}", self.view.current());
    }

    async fn acquire(&self, key: &ShardKey) -> Option<Epoch> {
        self.membership.acquire(key).await.unwrap()
    }

    fn owner(&self, key: &ShardKey) -> Option<Owner> {
        self.view.current().owners.get(key).cloned()
    }
}

fn info(name: &str) -> NodeInfo {
    NodeInfo {
        name: name.to_owned(),
        address: format!("{name}.example:8501"),
        roles: Roles::ALL,
        weight: 1,
        build: "1".to_owned(),
        ..NodeInfo::default()
    }
}

fn owner(node: &str, epoch: Epoch) -> Option<Owner> {
    Some(Owner { node: node.to_owned(), epoch })
}

fn shard() -> ShardKey {
    ShardKey::new("id", 3)
}

const STORE_KEY: &str = "millpond/test/store";
const NODE_A: &str = "millpond/test/nodes/a";
const NODE_B: &str = "millpond/test/nodes/b";
const OWNER: &str = "millpond/test/owners/id/0003";

/// Repeats a request until its answer passes the check.
async fn until<T, F: Future<Output = T>>(ask: impl Fn() -> F, check: impl Fn(&T) -> bool) -> T {
    let asked = async {
        loop {
            let answer = ask().await;
            if check(&answer) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, asked).await.expect("no answer passes the check")
}

async fn key_until(etcd: &Etcd, key: &str, check: impl Fn(&Option<EtcdEntry>) -> bool) {
    until(|| async { etcd.get(key).await.unwrap() }, check).await;
}

#[tokio::test]
async fn nodes_see_each_other() {
    let server = EtcdServer::start().await;
    let updater = ViewUpdater::new();
    let view = updater.source();
    let (etcd, store) = (server.client(), STORE.clone());
    let membership =
        Membership::start(etcd, "test", store, info("a"), updater.clone()).await.unwrap();
    let mut a = TestNode { membership, view };
    assert_eq!(a.view.current().nodes["a"], info("a"));
    let record = CollectionRecord {
        name: "c".to_owned(),
        id: "id".to_owned(),
        shards: 8,
        copies: 2,
        create: serde_json::Value::Null,
        images: None,
    };
    updater.update(|view| {
        view.collections.insert("c".to_owned(), record.clone());
    });
    let mut b = TestNode::start(&server, "b", MembershipTimes::default()).await;
    let both = |view: &ClusterView| view.nodes.len() == 2;
    a.sees(both).await;
    assert!(both(&b.view.current()), "a new node sees all others at once");
    assert_eq!(a.view.current().nodes["b"], info("b"));

    let serving = BTreeMap::from([("id".to_owned(), BTreeSet::from([0, 3]))]);
    a.membership.set_serving(serving.clone());
    b.sees(|view| view.nodes["a"].serving == serving).await;
    a.sees(|view| view.nodes["a"].serves_whole(&shard())).await;
    let damaged = CopyMarks { damaged: serving.clone(), ..CopyMarks::default() };
    a.membership.set_marks(damaged.clone());
    let readings = vec![HolderReading { node: "a", serves: true, is_damaged: true }];
    b.sees(|view| view.holder_readings(&shard()) == readings).await;
    assert!(!b.view.current().nodes["a"].is_stalled(&shard()));
    a.membership.set_marks(CopyMarks { stalled: serving.clone(), ..damaged });
    b.sees(|view| view.nodes["a"].is_stalled(&shard())).await;
    assert_eq!(b.view.current().holder_readings(&shard()), readings);
    a.membership.set_marks(CopyMarks::default());
    b.sees(|view| view.nodes["a"].serves_whole(&shard())).await;
    for access in [StoreAccess::Lost, StoreAccess::Working] {
        a.membership.set_store_access(access.clone());
        b.sees(|view| view.nodes["a"].store == access).await;
    }
    a.acquire(&shard()).await.unwrap();
    b.sees(|view| view.owners.contains_key(&shard())).await;

    a.membership.drain();
    b.sees(|view| view.nodes["a"].weight == 0 && view.nodes["a"].serving == serving).await;
    assert_eq!(a.acquire(&ShardKey::new("id", 0)).await, None);
    assert_eq!(a.owner(&shard()).unwrap().node, "a");
    a.membership.leave().await;
    b.sees(|view| view.nodes.keys().eq(["b"]) && view.owners.is_empty()).await;
    assert_eq!(a.view.current().collections["c"], record);
}

#[tokio::test]
async fn a_node_joins_once_etcd_answers() {
    let mut server = EtcdServer::start().await;
    server.kill();
    let mut a = TestNode::start(&server, "a", MembershipTimes::default()).await;
    let reason = a.membership.unjoined().unwrap();
    assert!(reason.contains(&server.address()), "{reason}");
    assert!(a.view.current().nodes.is_empty());
    let refused = a.membership.acquire(&shard()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    server.restart().await;
    a.sees(|view| view.nodes.contains_key("a")).await;
    until(|| async { a.membership.unjoined() }, Option::is_none).await;
    assert!(a.acquire(&shard()).await.is_some());
}

/// Raises or ends the alarm of an etcd that has no space.
async fn alarm(server: &EtcdServer, action: &str) {
    let body = json!({ "action": action, "memberID": "1", "alarm": "NOSPACE" });
    let path = "/v3/maintenance/alarm";
    let body = Bytes::from(body.to_string());
    let answer = server.http_client().post(&server.address(), path, body, WAIT_MAX).await;
    assert_eq!(answer.unwrap().status, 200, "{action}");
}

#[tokio::test]
async fn a_node_joins_once_etcd_has_space() {
    let server = EtcdServer::start().await;
    alarm(&server, "ACTIVATE").await;
    let mut a = TestNode::start(&server, "a", MembershipTimes::default()).await;
    let reason = a.membership.unjoined().unwrap();
    assert!(reason.contains("database space exceeded"), "{reason}");
    alarm(&server, "DEACTIVATE").await;
    a.sees(|view| view.nodes.contains_key("a")).await;
    until(|| async { a.membership.unjoined() }, Option::is_none).await;
    assert!(a.acquire(&shard()).await.is_some());
}

#[tokio::test]
async fn killed_node_disappears_with_its_shards() {
    let server = EtcdServer::start().await;
    let a = TestNode::start(&server, "a", SHORT).await;
    let mut b = TestNode::start(&server, "b", SHORT).await;
    let first = a.acquire(&shard()).await.unwrap();
    b.sees(|view| view.nodes.len() == 2 && view.owners.contains_key(&shard())).await;
    assert_eq!(b.owner(&shard()), owner("a", first));
    assert_eq!(b.acquire(&shard()).await, None);
    // Dropping it ends its tasks and leaves its keys.
    drop(a);
    b.sees(|view| !view.nodes.contains_key("a") && view.owners.is_empty()).await;
    let second = b.acquire(&shard()).await.unwrap();
    assert!(second > first);
    assert_eq!(b.owner(&shard()), owner("b", second));
}

#[tokio::test]
async fn a_node_drains_on_request_of_another() {
    let server = EtcdServer::start().await;
    let a = TestNode::start(&server, "a", SHORT).await;
    let mut b = TestNode::start(&server, "b", SHORT).await;
    a.membership.drain_node("b").await.unwrap();
    b.sees(|view| view.nodes["b"].weight == 0 && view.nodes["a"].weight > 0).await;
    assert_eq!(b.acquire(&shard()).await, None);
    let error = a.membership.drain_node("c").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    // The request ends with the process.
    drop(b);
    let mut later = TestNode::start(&server, "b", SHORT).await;
    later.sees(|view| view.nodes["b"].weight > 0).await;
    assert!(later.acquire(&shard()).await.is_some());
}

#[tokio::test]
async fn one_node_owns_each_shard() {
    let server = EtcdServer::start().await;
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(TestNode::start(&server, name, MembershipTimes::default()).await);
    }
    let nodes = std::sync::Arc::new(nodes);
    let mut acquisitions = JoinSet::new();
    for number in 0..16 {
        for at in 0..nodes.len() {
            let nodes = nodes.clone();
            acquisitions.spawn(async move {
                let key = ShardKey::new("id", number);
                let epoch = nodes[at].acquire(&key).await?;
                // The view shows the ownership when the call returns.
                let name = ["a", "b", "c"][at];
                assert_eq!(nodes[at].owner(&key), owner(name, epoch));
                Some((at, key, epoch))
            });
        }
    }
    let acquired: Vec<_> = acquisitions.join_all().await.into_iter().flatten().collect();
    let shards: BTreeSet<_> = acquired.iter().map(|(_, key, _)| key.clone()).collect();
    assert_eq!((acquired.len(), shards.len()), (16, 16));

    let (first, key, epoch) = acquired[0].clone();
    let second = (first + 1) % 3;
    let wrong = Epoch(epoch.0 + 1);
    nodes[first].membership.release(&key, wrong).await.unwrap();
    assert_eq!(nodes[second].acquire(&key).await, None);
    nodes[first].membership.release(&key, epoch).await.unwrap();
    assert_eq!(nodes[first].owner(&key), None);
    let later = nodes[second].acquire(&key).await.unwrap();
    assert!(later > epoch);
    // An ownership that another node has stays.
    nodes[first].membership.release(&key, later).await.unwrap();
    assert_eq!(nodes[first].acquire(&key).await, None);
}

#[tokio::test]
async fn second_acquisition_has_a_new_epoch() {
    let server = EtcdServer::start().await;
    let a = TestNode::start(&server, "a", MembershipTimes::default()).await;
    let first = a.acquire(&shard()).await.unwrap();
    let second = a.acquire(&shard()).await.unwrap();
    assert!(second > first);
    assert_eq!(a.owner(&shard()), owner("a", second));
    a.membership.release(&shard(), first).await.unwrap();
    assert_eq!(a.owner(&shard()), owner("a", second));
}

/// Fails if a view lacks one of the nodes or the owner.
async fn watch_for_losses(mut view: ViewSource) {
    loop {
        let seen = view.current();
        assert_eq!(seen.nodes.len(), 2, "{seen:?}");
        assert_eq!(seen.owners[&shard()].node, "a", "{seen:?}");
        view.changed().await;
    }
}

#[tokio::test]
async fn view_stays_while_etcd_is_stopped() {
    let server = EtcdServer::start().await;
    let mut a = TestNode::start(&server, "a", SHORT).await;
    let mut b = TestNode::start(&server, "b", SHORT).await;
    let first = a.acquire(&shard()).await.unwrap();
    let whole = |view: &ClusterView| view.nodes.len() == 2 && view.owners.len() == 1;
    a.sees(whole).await;
    b.sees(whole).await;
    let mut watchers = JoinSet::new();
    for view in [&a.view, &b.view] {
        watchers.spawn(watch_for_losses(view.clone()));
    }

    server.pause();
    let refused = b.membership.acquire(&ShardKey::new("id", 0)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!(a.owner(&shard()), owner("a", first));
    // All leases end meanwhile.
    tokio::time::sleep(SHORT.lease + Duration::from_secs(1)).await;
    assert!(a.membership.view_certain_since().is_none(), "it may show nodes that are dead");
    let stale = a.view.current().stale.clone();
    assert!(stale.is_some_and(|reason| reason.contains("etcd")), "etcd does not answer");
    server.resume();

    let etcd = server.client();
    // Two nodes, an owner and the store.
    let registered = |range: &Option<_>| *range == Some(4);
    let keys = || async { etcd.range("millpond/test/").await.ok().map(|r| r.entries.len()) };
    until(keys, registered).await;
    until(
        || async {
            let entry = etcd.get(OWNER).await.ok().flatten();
            let seen = [&a, &b].map(|node| node.owner(&shard()).map(|owner| owner.epoch.0));
            let now = entry.map(|entry| u64::try_from(entry.create_revision).unwrap());
            now.is_some() && seen == [now; 2]
        },
        |agree| *agree,
    )
    .await;
    assert!(a.owner(&shard()).unwrap().epoch >= first);
    assert!(watchers.try_join_next().is_none(), "a view lacked a node or the owner");
    let acquire = || async { b.membership.acquire(&ShardKey::new("id", 0)).await };
    until(acquire, |answer| answer.is_ok()).await.unwrap().unwrap();
    until(|| async { a.membership.view_certain_since().is_some() }, |is_certain| *is_certain).await;
    until(|| async { a.view.current().stale.is_none() }, |is_current| *is_current).await;
}

/// A write that etcd carried out after its sender stopped waiting, and after the next write.
#[tokio::test]
async fn a_late_description_is_replaced() {
    let server = EtcdServer::start().await;
    let etcd = server.client();
    let mut a = TestNode::start(&server, "a", LASTING).await;
    let old = etcd.get(NODE_A).await.unwrap().unwrap();
    let serving = BTreeMap::from([("id".to_owned(), BTreeSet::from([3]))]);
    a.membership.set_serving(serving.clone());
    a.sees(|view| view.nodes["a"].serving == serving).await;
    let new = etcd.get(NODE_A).await.unwrap().unwrap();
    assert_ne!(new.value, old.value);
    etcd.put(NODE_A, &old.value, old.lease).await.unwrap();
    key_until(&etcd, NODE_A, |entry| entry.as_ref().is_some_and(|it| it.value == new.value)).await;
}

#[tokio::test]
async fn nodes_outlive_a_restart_of_etcd() {
    let mut server = EtcdServer::start().await;
    let mut a = TestNode::start(&server, "a", MembershipTimes::default()).await;
    let first = a.acquire(&shard()).await.unwrap();
    server.kill();
    let refused = a.membership.acquire(&shard()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!(a.owner(&shard()), owner("a", first));
    let serving = BTreeMap::from([("id".to_owned(), BTreeSet::from([3]))]);
    a.membership.set_serving(serving.clone());
    server.restart().await;
    a.sees(|view| view.nodes["a"].serving == serving).await;
    assert_eq!(a.owner(&shard()), owner("a", first));
    assert!(a.acquire(&shard()).await.unwrap() > first);
}

#[tokio::test]
async fn lost_lease_is_replaced() {
    let server = EtcdServer::start().await;
    let etcd = server.client();
    let mut a = TestNode::start(&server, "a", LASTING).await;
    let other = ShardKey::new("id", 9);
    let first = a.acquire(&shard()).await.unwrap();
    let lost = a.acquire(&other).await.unwrap();
    let lease = etcd.get(NODE_A).await.unwrap().unwrap().lease;
    // Another node takes one of the shards.
    let foreign = etcd.grant(Duration::from_secs(60)).await.unwrap();
    let path = "millpond/test/owners/id/0009";
    assert!(etcd.delete_if_created(path, lost.0 as i64).await.unwrap());
    let taken = etcd.create(path, br#"{"node":"x"}"#, foreign).await.unwrap().unwrap();
    etcd.revoke(lease).await.unwrap();

    a.sees(|view| view.owners.get(&shard()).is_some_and(|owner| owner.epoch > first)).await;
    assert_eq!(a.owner(&shard()).unwrap().node, "a");
    a.sees(|view| view.owners.get(&other).is_some_and(|owner| owner.node == "x")).await;
    key_until(&etcd, NODE_A, |entry| entry.as_ref().is_some_and(|entry| entry.lease != lease))
        .await;
    assert_eq!(a.owner(&other), owner("x", Epoch(taken as u64)));
    assert_eq!(a.acquire(&other).await, None);
    a.membership.release(&shard(), a.owner(&shard()).unwrap().epoch).await.unwrap();
    assert_eq!(etcd.get(OWNER).await.unwrap(), None);
}

#[tokio::test]
async fn name_of_another_address_is_refused() {
    let server = EtcdServer::start().await;
    let mut first = TestNode::start(&server, "a", MembershipTimes::default()).await;
    let epoch = first.acquire(&shard()).await.unwrap();
    let in_cluster = |cluster: &'static str, store: StorePlace, own: NodeInfo| {
        Membership::start(server.client(), cluster, store, own, ViewUpdater::new())
    };
    let start = |own: NodeInfo| in_cluster("test", STORE.clone(), own);
    let own = NodeInfo { address: "b.example:1".to_owned(), ..info("a") };
    let error = start(own.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.message().contains("a.example:8501"), "{error}");
    in_cluster("other", new_store(), own).await.unwrap();
    for name in ["", "a/b"] {
        let error = start(info(name)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    first.sees(|view| view.owners.contains_key(&shard())).await;
    assert_eq!(first.owner(&shard()), owner("a", epoch));
}

#[tokio::test]
async fn a_node_joins_once_its_address_is_free() {
    let server = EtcdServer::start().await;
    let etcd = server.client();
    let first = TestNode::start(&server, "a", MembershipTimes::default()).await;
    let start = |cluster: &'static str, store: StorePlace| {
        let own = NodeInfo { address: "a.example:8501".to_owned(), ..info("b") };
        Membership::start(server.client(), cluster, store, own, ViewUpdater::new())
    };
    let later = start("test", STORE.clone()).await.unwrap();
    let reason = later.unjoined().unwrap();
    assert!(reason.contains("the node a is registered with"), "{reason}");
    assert!(reason.contains("--cluster-address"), "{reason}");
    assert_eq!(etcd.get(NODE_B).await.unwrap(), None);
    let refused = later.acquire(&shard()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!(start("other", new_store()).await.unwrap().unjoined(), None);
    first.membership.leave().await;
    until(|| async { later.unjoined() }, Option::is_none).await;
    assert!(etcd.get(NODE_B).await.unwrap().is_some());
}

#[tokio::test]
async fn only_nodes_without_shards_share_an_address() {
    let server = EtcdServer::start().await;
    let start = |name: &str, roles: Roles| {
        let own = NodeInfo { address: "balancer.example:8501".to_owned(), roles, ..info(name) };
        Membership::start(server.client(), "test", STORE.clone(), own, ViewUpdater::new())
    };
    let root = Roles { root: true, ..Roles::default() };
    let first = start("a", root).await.unwrap();
    let second = start("b", root).await.unwrap();
    assert_eq!((first.unjoined(), second.unjoined()), (None, None));
    let holder = start("c", Roles { search: true, ..Roles::default() }).await.unwrap();
    assert!(holder.unjoined().is_some());
}

#[tokio::test]
async fn later_process_of_a_node_replaces_the_earlier() {
    let server = EtcdServer::start().await;
    let etcd = server.client();
    let earlier = TestNode::start(&server, "a", SHORT).await;
    let first = earlier.acquire(&shard()).await.unwrap();
    let later = TestNode::start(&server, "a", SHORT).await;
    assert_eq!(later.owner(&shard()), None);
    let second = later.acquire(&shard()).await.unwrap();
    assert!(second > first);
    let registered = etcd.get(NODE_A).await.unwrap().unwrap();
    // The earlier process finds that its lease has ended. It stays outside while the name is used.
    let refused = || async { earlier.membership.acquire(&shard()).await };
    until(refused, |answer| answer.is_err()).await.unwrap_err();
    until(|| async { earlier.owner(&shard()) }, |owner| owner.is_none()).await;
    assert_eq!(etcd.get(NODE_A).await.unwrap().unwrap(), registered);
    assert_eq!(etcd.get(OWNER).await.unwrap().unwrap().create_revision, second.0 as i64);
    assert_eq!(later.owner(&shard()), owner("a", second));
    // Its name is free for the earlier process afterwards.
    later.membership.leave().await;
    until(|| async { earlier.membership.acquire(&shard()).await }, |answer| answer.is_ok())
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn key_of_an_unknown_acquisition_is_removed() {
    let server = EtcdServer::start().await;
    let etcd = server.client();
    let mut a = TestNode::start(&server, "a", LASTING).await;
    let lease = etcd.get(NODE_A).await.unwrap().unwrap().lease;
    // A creation with an unknown outcome leaves such a key.
    etcd.create(OWNER, br#"{"node":"a"}"#, lease).await.unwrap().unwrap();
    key_until(&etcd, OWNER, |entry| entry.is_none()).await;
    assert_eq!(a.owner(&shard()), None);
    // Values of another version are ignored.
    etcd.put("millpond/test/nodes/x", b"{", lease).await.unwrap();
    etcd.put("millpond/test/owners/id/x", b"{", lease).await.unwrap();
    let epoch = a.acquire(&shard()).await.unwrap();
    let _b = TestNode::start(&server, "b", LASTING).await;
    a.sees(|view| view.nodes.keys().eq(["a", "b"])).await;
    assert_eq!(a.owner(&shard()), owner("a", epoch));
}

#[tokio::test]
async fn node_with_another_store_does_not_join() {
    let server = EtcdServer::start().await;
    let etcd = server.client();
    let a = TestNode::start(&server, "a", LASTING).await;
    let registered = etcd.get(NODE_A).await.unwrap().unwrap();
    let entry = etcd.get(STORE_KEY).await.unwrap().unwrap();
    assert_eq!(entry.lease, LeaseId(0));
    let other = new_store();
    let start =
        || Membership::start(server.client(), "test", other.clone(), info("a"), ViewUpdater::new());
    // Its name and address are those of a registered node, which stays.
    let error = start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    let ids = [id_of(&STORE).await, id_of(&other).await];
    for named in [STORE_KEY, ids[0].as_str(), ids[1].as_str(), "--cluster-name"] {
        assert!(error.message().contains(named), "{named} is missing: {error}");
    }
    assert_eq!(etcd.get(NODE_A).await.unwrap().unwrap(), registered);
    a.membership.leave().await;
    assert_eq!(etcd.get(STORE_KEY).await.unwrap().unwrap(), entry);
    etcd.delete(STORE_KEY).await.unwrap();
    start().await.unwrap();
    assert_ne!(etcd.get(STORE_KEY).await.unwrap().unwrap().value, entry.value);
}

/// Its logs would change their owner at each write.
#[tokio::test]
async fn a_store_has_one_cluster() {
    let server = EtcdServer::start().await;
    let etcd = server.client();
    let store = new_store();
    let start = |cluster: &'static str, name: &'static str| {
        Membership::start(server.client(), cluster, store.clone(), info(name), ViewUpdater::new())
    };
    let first = start("one", "a").await.unwrap();
    let error = start("two", "b").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    let key = format!("millpond/.stores/{}", id_of(&store).await);
    for named in ["millpond/one/", key.as_str(), "--cluster-name"] {
        assert!(error.message().contains(named), "{named} is missing: {error}");
    }
    assert_eq!(etcd.get("millpond/two/store").await.unwrap(), None);
    first.leave().await;
    etcd.delete(&key).await.unwrap();
    start("two", "b").await.unwrap();
    assert_eq!(etcd.get(&key).await.unwrap().unwrap().value, &b"millpond/two/"[..]);
}

/// Enables users in etcd. Returns a client whose user may use the keys of the cluster "test" alone.
async fn narrow_client(server: &EtcdServer) -> Etcd {
    let rights = json!({ "name": "narrow", "perm": {
        "permType": "READWRITE",
        "key": STANDARD.encode("millpond/test/"),
        "range_end": STANDARD.encode("millpond/test0"),
    }});
    for (path, body) in [
        ("/v3/auth/role/add", json!({ "name": "root" })),
        ("/v3/auth/user/add", json!({ "name": "root", "password": "root" })),
        ("/v3/auth/user/grant", json!({ "user": "root", "role": "root" })),
        ("/v3/auth/role/add", json!({ "name": "narrow" })),
        ("/v3/auth/role/grant", rights),
        ("/v3/auth/user/add", json!({ "name": "narrow", "password": "secret" })),
        ("/v3/auth/user/grant", json!({ "user": "narrow", "role": "narrow" })),
        ("/v3/auth/enable", json!({})),
    ] {
        let body = Bytes::from(body.to_string());
        let answer = server.http_client().post(&server.address(), path, body, WAIT_MAX).await;
        assert_eq!(answer.unwrap().status, 200, "{path}");
    }
    let password = Secret("secret".to_owned());
    server.client().with_user(EtcdUser { name: "narrow".to_owned(), password })
}

/// Nodes of earlier versions used no other keys.
#[tokio::test]
async fn a_user_of_etcd_for_one_cluster_is_enough() {
    let server = EtcdServer::start().await;
    let etcd = narrow_client(&server).await;
    let store = new_store();
    let joined =
        Membership::start(etcd.clone(), "test", store.clone(), info("a"), ViewUpdater::new());
    let member = joined.await.unwrap();
    assert_eq!(member.unjoined(), None);
    assert!(member.acquire(&shard()).await.unwrap().is_some());
    assert!(etcd.get(STORE_KEY).await.unwrap().is_some());
    let key = format!("millpond/.stores/{}", id_of(&store).await);
    let denied = etcd.get(&key).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied, "{denied}");
}

/// etcd lost its data, and a cluster with another store took the name.
#[tokio::test]
async fn view_of_another_store_is_not_taken() {
    let server = EtcdServer::start().await;
    let etcd = server.client();
    let mut a = TestNode::start(&server, "a", SHORT).await;
    until(|| async { a.membership.view_certain_since().is_some() }, |is_certain| *is_certain).await;
    let own = etcd.get(STORE_KEY).await.unwrap().unwrap();
    etcd.put(STORE_KEY, br#"{"id":"7f"}"#, LeaseId(0)).await.unwrap();
    let foreign = serde_json::to_vec(&info("x")).unwrap();
    etcd.put("millpond/test/nodes/x", &foreign, LeaseId(0)).await.unwrap();
    until(|| async { a.membership.view_certain_since().is_some() }, |is_certain| !*is_certain)
        .await;
    assert!(!a.view.current().nodes.contains_key("x"));
    // Without its lease, the node does not register again.
    let lease = etcd.get(NODE_A).await.unwrap().unwrap().lease;
    etcd.revoke(lease).await.unwrap();
    let refused = || async { a.membership.acquire(&shard()).await };
    until(refused, |answer| answer.is_err()).await.unwrap_err();
    assert_eq!(etcd.get(NODE_A).await.unwrap(), None);
    etcd.put(STORE_KEY, &own.value, LeaseId(0)).await.unwrap();
    a.sees(|view| view.nodes.contains_key("x")).await;
    key_until(&etcd, NODE_A, |entry| entry.is_some()).await;
}
