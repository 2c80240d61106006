//! Tests of a shard that a node holds.

use std::path::{Path, PathBuf};

use api_images::{ImageKind, ImageSettings};
use axum::Router;
use backup::BackupStore;
use cluster::Epoch;
use http_client::HttpClient;
use metrics::ClusterMetrics;
use os::{Pacer, Rate};
use search::points::{NewPoint, PointId};
use search::registry::Registry;
use serde_json::{Map, json};
use tokio::sync::Semaphore;

use super::*;
use crate::node::local::LocalCollections;
use crate::testing::{TestRegistry, open_registry};
use crate::types::ViewUpdater;

const DIMS: usize = 64;
const POINTS: u64 = 200;
const PAGE_BYTES: usize = 4096;
const OPEN_MAX: Duration = Duration::from_secs(60);
/// Time in which a follower begins to wait before it replaces its collection.
const BEGINS_WITHIN: Duration = Duration::from_millis(200);

fn record() -> CollectionRecord {
    CollectionRecord {
        name: "photos".to_owned(),
        id: "1".to_owned(),
        shards: 1,
        copies: 1,
        create: json!({ "vectors": { "size": DIMS, "distance": "Cosine" } }),
        images: Some(ImageSettings { kind: ImageKind::Photo, model: "colour".to_owned() }),
    }
}

fn shard() -> ShardKey {
    ShardKey::new("1", 0)
}

/// Returns the path of the collections of a node in `directory`.
fn collections(directory: &Path) -> PathBuf {
    directory.join("node")
}

/// Returns the follower of a shard on a node with the collections of `registry`, whose store is in
/// `directory`.
fn follower(directory: &Path, registry: &Arc<Registry>) -> ShardFollower {
    let store = directory.join("store");
    std::fs::create_dir_all(&store).unwrap();
    let store = BackupStore::open(store.to_str().unwrap(), &[]).unwrap();
    let local = LocalCollections::new(Router::new(), Arc::new(TestRegistry(registry.clone())));
    let services = Arc::new(NodeServices {
        name: "a".to_owned(),
        store,
        local,
        view: ViewUpdater::new().source(),
        client: HttpClient::new(None),
        pacer: Arc::new(Pacer::new(Rate::unlimited())),
        metrics: ClusterMetrics::default(),
        snapshot_entries: 1,
        snapshots: Semaphore::new(1),
        restores: Semaphore::new(1),
        catch_ups: Semaphore::new(1),
        serving: Notify::new(),
    });
    ShardFollower {
        log: ShardLog::new(services.store.place(), &shard()),
        services,
        record: record(),
        key: shard(),
        state: Arc::new(HolderState::new()),
        snapshots: SnapshotState::default(),
        replaced: None,
    }
}

/// Damages a page in the middle of the largest log of a collection.
fn damage_log(collection: &Path) {
    let paths = |directory: &Path, prefix: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        let found = entries.filter(|entry| entry.file_name().to_str().unwrap().starts_with(prefix));
        found.map(|entry| entry.path()).collect()
    };
    let points = paths(collection, "points-").pop().unwrap();
    let logs = paths(&points, "log-").into_iter();
    let log = logs.max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    assert!(end > 3 * PAGE_BYTES, "the log has {end} bytes");
    let page = end / 2 / PAGE_BYTES * PAGE_BYTES;
    bytes[page..page + PAGE_BYTES].fill(0xff);
    std::fs::write(&log, bytes).unwrap();
}

/// A node with a damaged local collection, after a restart.
struct DamagedNode {
    follower: ShardFollower,
    damaged: Arc<NamedCollection>,
    _registry: Arc<Registry>,
    _directory: tempfile::TempDir,
}

impl DamagedNode {
    async fn start() -> DamagedNode {
        let directory = tempfile::tempdir().unwrap();
        let node = collections(directory.path());
        let name = shard().local_name();
        {
            let registry = open_registry(&node);
            let opened = follower(directory.path(), &registry).open().await.unwrap();
            let payload = Map::new();
            for number in 0..POINTS {
                let embedding = vec![1.0 + number as f32; DIMS];
                let id = PointId::Number(number);
                let point = NewPoint { id, embedding: &embedding, record: &[], payload: &payload };
                opened.named.upsert(&[point]).unwrap();
            }
            let position = FollowPosition { next: EntryNumber(5), epoch: Epoch(1) };
            local::store_position(&opened.named, position).unwrap();
        }
        damage_log(&node.join(&name));
        let registry = open_registry(&node);
        assert!(registry.wait_open(OPEN_MAX));
        let damaged = registry.get(&name).unwrap();
        assert!(damaged.collection().loss().is_some());
        let follower = follower(directory.path(), &registry);
        DamagedNode { follower, damaged, _registry: registry, _directory: directory }
    }
}

#[tokio::test]
async fn a_damaged_copy_is_replaced_from_the_store() {
    let mut node = DamagedNode::start().await;
    let opened = node.follower.open().await.unwrap();
    assert!(node.damaged.removed());
    let collection = opened.named.collection();
    assert_eq!((collection.loss(), collection.count()), (None, 0));
    // The log has all entries, and is read from its start.
    assert_eq!(local::position(&opened.named), Some(FollowPosition::default()));
}

#[tokio::test]
async fn a_damaged_copy_is_served_if_the_store_has_no_other() {
    let mut node = DamagedNode::start().await;
    // The log begins behind entries of which there is no snapshot.
    let floor = LogFloor { entry: EntryNumber(3), epoch: Epoch(1) };
    node.follower.log.raise_floor(floor).await.unwrap();
    let opened = node.follower.open().await.unwrap();
    assert!(Arc::ptr_eq(&opened.named, &node.damaged));
    // The next try comes later.
    assert_eq!(node.follower.loss_to_repair(&opened.named), None);
    let again = node.follower.open().await.unwrap();
    assert!(Arc::ptr_eq(&again.named, &node.damaged));
}

#[tokio::test]
async fn damage_that_stops_the_log_causes_no_restores_in_a_row() {
    let mut node = DamagedNode::start().await;
    node.follower.replaced = Some(Instant::now());
    let removal = tokio::time::timeout(BEGINS_WITHIN, node.follower.remove_damaged());
    assert!(removal.await.is_err() && !node.damaged.removed(), "it waits");
    node.follower.replaced = None;
    node.follower.remove_damaged().await.unwrap();
    assert!(node.damaged.removed());
    assert!(!node.follower.until_replacement().is_zero());
}

#[tokio::test]
async fn a_damaged_copy_is_served_while_the_store_is_down() {
    let mut node = DamagedNode::start().await;
    assert!(node.follower.store_answers().await);
    assert!(node.follower.loss_to_repair(&node.damaged).is_some());
    node.follower.log = node.follower.log.clone().with_timeout(Duration::ZERO);
    assert!(!node.follower.store_answers().await);
    // The next try comes later.
    assert_eq!(node.follower.loss_to_repair(&node.damaged), None);
}

#[tokio::test]
async fn the_next_try_counts_from_the_end_of_a_try() {
    let mut node = DamagedNode::start().await;
    let services = node.follower.services.clone();
    let turn = services.restore_turn().await;
    let began = {
        let mut opening = std::pin::pin!(node.follower.open());
        let waits = tokio::time::timeout(BEGINS_WITHIN, opening.as_mut()).await.is_err();
        assert!(waits, "another restore has the turn");
        let began = Instant::now();
        drop(turn);
        opening.await.unwrap();
        began
    };
    assert!(node.follower.replaced.unwrap() >= began);
}

#[tokio::test]
async fn a_damaged_copy_gets_no_snapshot() {
    let node = DamagedNode::start().await;
    let ShardFollower { services, key, log, record, .. } = &node.follower;
    let taken = snapshot::take(services, key, &record.id, log, node.damaged.clone()).await;
    let error = taken.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(error.message().starts_with("the local copy is damaged"), "{error}");
}

#[tokio::test]
async fn a_shard_that_is_behind_waits_for_its_turn_to_apply() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_registry(&collections(directory.path()));
    let mut follower = follower(directory.path(), &registry);
    let services = follower.services.clone();
    let named = follower.open().await.unwrap().named;
    let opened_at = Instant::now();
    let position = FollowPosition::default();
    let progress =
        FollowProgress { named, position, opened_at, recorded: position, recorded_at: opened_at };
    let batch = cluster_log::Batch::from(Vec::new());
    let turn = services.catch_up_turn().await;
    let applied = tokio::time::timeout(BEGINS_WITHIN, follower.apply(&progress, &batch));
    assert!(applied.await.is_err(), "another shard has the turn");
    follower.state.caught_up.store(true, Ordering::Release);
    follower.apply(&progress, &batch).await.unwrap();
    follower.state.caught_up.store(false, Ordering::Release);
    drop(turn);
    follower.apply(&progress, &batch).await.unwrap();
    assert_eq!(services.metrics.entries.get(), 2);
}

#[tokio::test]
async fn reads_of_an_ended_holder_do_not_count() {
    let state = Arc::new(HolderState::new());
    state.caught_up.store(true, Ordering::Release);
    let task = tokio::spawn(std::future::pending());
    let holder = Holder { record: record(), state: state.clone(), task };
    let before = state.generation();
    state.check_generation(&shard(), before).unwrap();
    holder.end();
    assert!(!state.is_caught_up());
    let error = state.check_generation(&shard(), before).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}
