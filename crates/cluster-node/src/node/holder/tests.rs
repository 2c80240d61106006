//! Tests of a shard that a node holds.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use api_images::{ImageKind, ImageSettings};
use axum::Router;
use backup::BackupStore;
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster::{
    CertainHolders, EntryBody, EntryNumber, Epoch, HolderReading, LogEntry, REPLACEMENT_DELAY,
    STALL_DECISION_DELAY, StalledServiceChange, WriterId,
};
use cluster_log::{CreateOutcome, FollowPosition, LogFloor, ShardLog};
use http_client::HttpClient;
use metrics::{ClusterMetrics, KindLabels};
use model_store::StorePlace;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use os::{Pacer, Rate};
use search::points::{NewPoint, PointId};
use search::registry::{NamedCollection, Registry};
use serde_json::{Map, json};
use tokio::sync::{Notify, Semaphore};

use super::follower::FollowProgress;
use super::pauses::{LASTING_PAUSE_MAX, ReopenPauses};
use super::*;
use crate::node::apply::{AppliedBatch, ApplyPriority, apply, apply_rest};
use crate::node::local::{self, LocalCollections};
use crate::node::snapshot;
use crate::node::stall::StallCause;
use crate::testing::{TestRegistry, open_registry, open_registry_without_room};
use crate::types::ViewUpdater;

mod leftovers;
mod stalls;

const DIMS: usize = 64;
const POINTS: u64 = 200;
const PAGE_BYTES: usize = 4096;
const OPEN_MAX: Duration = Duration::from_secs(60);
/// Time in which a follower begins to wait before it replaces its collection.
const BEGINS_WITHIN: Duration = Duration::from_millis(200);
/// Time in which the turn of an operation that fails is free, much less than all of its tries take.
const TURN_FREE_WITHIN: Duration = Duration::from_secs(10);
/// Operation that no holder can make.
const SKIPPED: &str = "{}";
/// Operation that this version refuses and tries again: a newer version may make it.
const FAILING: &str = r#"{"delete_vectors":{}}"#;
/// Next entry of the damaged copy.
const APPLIED: EntryNumber = EntryNumber(5);

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
        replacement: JoinSet::new(),
        replaced: None,
        end_probe: EndProbe::default(),
        is_skip_logged: false,
    }
}

/// Returns an entry without operations.
fn fence() -> LogEntry<cluster_log::Batch> {
    LogEntry { epoch: Epoch(1), writer: WriterId(1), body: EntryBody::Fence }
}

/// Creates entry `number` of a log.
async fn append(log: &ShardLog, number: EntryNumber) {
    assert_eq!(log.create(number, &fence()).await, CreateOutcome::Created);
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
    directory: tempfile::TempDir,
}

impl DamagedNode {
    async fn start() -> DamagedNode {
        DamagedNode::start_with(open_registry).await
    }

    /// Starts a node whose collections `open` opens after the damage.
    async fn start_with(open: fn(&Path) -> Arc<Registry>) -> DamagedNode {
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
            let position = FollowPosition { next: APPLIED, epoch: Epoch(1) };
            local::store_position(&opened.named, position).unwrap();
        }
        damage_log(&node.join(&name));
        let registry = open(&node);
        assert!(registry.wait_open(OPEN_MAX));
        let damaged = registry.get(&name).unwrap();
        assert!(damaged.collection().loss().is_some());
        let follower = follower(directory.path(), &registry);
        DamagedNode { follower, damaged, _registry: registry, directory }
    }
}

impl DamagedNode {
    /// Creates the entries of the log that the copy has applied.
    async fn fill_log(&self) {
        for number in 0..APPLIED.0 {
            append(&self.follower.log, EntryNumber(number)).await;
        }
    }

    /// Takes a snapshot of the copy of another node, which has applied the entries before `next`.
    async fn take_snapshot(&self, next: EntryNumber) {
        let registry = open_registry(&self.directory.path().join("other"));
        let mut other = follower(self.directory.path(), &registry);
        let named = other.open().await.unwrap().named;
        local::store_position(&named, FollowPosition { next, epoch: Epoch(1) }).unwrap();
        let ShardFollower { services, key, log, record, .. } = &other;
        let taken = snapshot::take(services, key, &record.id, log, named).await.unwrap();
        assert_eq!(taken.next, next);
    }

    /// Tries to replace the withdrawn copy.
    async fn replace(&mut self) {
        let damaged = self.damaged.clone();
        self.follower.mark_damaged("a page");
        self.withdraw();
        self.follower.replaced = None;
        self.follower.attend_to_damage(&damaged);
        assert!(!self.follower.replacement.is_empty());
        self.follower.end_replacement().await;
    }

    /// Decides that the copy is withdrawn, because another holder is whole. The delay before its
    /// replacement is over.
    fn withdraw(&self) {
        let own = HolderReading { node: "a", serves: true, is_damaged: true };
        let other = HolderReading { node: "b", serves: true, is_damaged: false };
        self.decide(&[own, other], Instant::now().checked_sub(REPLACEMENT_DELAY).unwrap());
    }

    /// Decides on a view that was asked for now, as at `decided`.
    fn decide(&self, holders: &[HolderReading<'_>], decided: Instant) {
        // Later than the mark.
        let requested_at = Instant::now() + BEGINS_WITHIN;
        let view = CertainHolders { own: "a", holders, requested_at };
        self.follower.state.damage.decide(&view, decided);
    }

    /// Returns true if the damaged collection is the one of the shard.
    fn has_damaged(&self) -> bool {
        let found = self.follower.services.local.find(&shard()).unwrap().unwrap();
        Arc::ptr_eq(&found, &self.damaged) && !self.damaged.removed()
    }
}

#[tokio::test]
async fn a_damaged_copy_is_served_and_then_replaced() {
    let mut node = DamagedNode::start().await;
    node.fill_log().await;
    let opened = node.follower.open().await.unwrap();
    assert!(Arc::ptr_eq(&opened.named, &node.damaged));
    let damaged = node.damaged.clone();
    // The view does not show the mark yet.
    node.follower.attend_to_damage(&damaged);
    assert!(node.follower.state.damage.reason().is_some());
    assert!(node.follower.replacement.is_empty());
    node.withdraw();
    node.follower.attend_to_damage(&damaged);
    assert!(!node.follower.replacement.is_empty());
    node.follower.end_replacement().await;
    assert!(damaged.removed());
    let opened = node.follower.open().await.unwrap();
    let collection = opened.named.collection();
    assert_eq!((collection.loss(), collection.count()), (None, 0));
    // The log has all entries, and is read from its start.
    assert_eq!(local::position(&opened.named), Some(FollowPosition::default()));
    // The mark stays until the end of the log.
    assert!(node.follower.state.damage.reason().is_some());
    node.follower.reached_end(0, &opened.named);
    assert_eq!(node.follower.state.damage.reason(), None);
    assert!(node.follower.state.is_caught_up());
}

#[tokio::test]
async fn the_only_holder_serves_its_damaged_copy() {
    let mut node = DamagedNode::start().await;
    node.fill_log().await;
    let damaged = node.damaged.clone();
    node.follower.attend_to_damage(&damaged);
    node.follower.reached_end(0, &damaged);
    assert!(node.follower.state.is_caught_up());
    let own = HolderReading { node: "a", serves: true, is_damaged: true };
    node.decide(&[own], Instant::now());
    node.follower.attend_to_damage(&damaged);
    assert!(node.follower.replacement.is_empty(), "the delay is not over");
    assert!(node.follower.state.damage.used().unwrap().is_served());
}

#[tokio::test]
async fn a_damaged_copy_stays_if_the_store_has_no_other() {
    // The log begins after entries of which there is no snapshot.
    let floor = LogFloor { entry: EntryNumber(3), epoch: Epoch(1) };
    let behind = LogFloor { entry: APPLIED.plus(1), epoch: Epoch(1) };
    for floor in [Some(floor), Some(behind), None] {
        let mut node = DamagedNode::start().await;
        match floor {
            Some(floor) => node.follower.log.raise_floor(floor).await.unwrap(),
            // The store has lost its last entries: it looks like a log that begins.
            None => append(&node.follower.log, EntryNumber::default()).await,
        }
        let damaged = node.damaged.clone();
        node.follower.attend_to_damage(&damaged);
        node.withdraw();
        node.follower.attend_to_damage(&damaged);
        assert!(!node.follower.replacement.is_empty());
        node.follower.end_replacement().await;
        assert!(node.has_damaged(), "{floor:?}");
        // The next try comes later.
        assert!(!node.follower.until_replacement().is_zero());
        node.follower.attend_to_damage(&damaged);
        assert!(node.follower.replacement.is_empty());
    }
}

#[tokio::test]
async fn an_older_snapshot_needs_the_end_of_the_log() {
    let mut node = DamagedNode::start().await;
    let snapshot = EntryNumber(2);
    node.take_snapshot(snapshot).await;
    // The store has lost its last entries.
    append(&node.follower.log, EntryNumber::default()).await;
    node.replace().await;
    assert!(node.has_damaged());
    for number in 1..APPLIED.0 {
        append(&node.follower.log, EntryNumber(number)).await;
    }
    node.replace().await;
    let named = node.follower.services.local.find(&shard()).unwrap().unwrap();
    assert_eq!(local::position(&named).unwrap().next, snapshot);
}

#[tokio::test]
async fn a_snapshot_as_new_as_the_copy_needs_no_log() {
    let mut node = DamagedNode::start().await;
    node.take_snapshot(APPLIED).await;
    node.replace().await;
    assert!(node.damaged.removed());
}

#[tokio::test]
async fn a_copy_below_the_floor_stays_without_a_snapshot() {
    let mut node = DamagedNode::start().await;
    let floor = LogFloor { entry: APPLIED.plus(1), epoch: Epoch(1) };
    node.follower.log.raise_floor(floor).await.unwrap();
    let error = node.follower.open().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(node.has_damaged());
    assert!(node.follower.state.damage.reason().unwrap().contains("there is no snapshot"));
}

/// A whole copy that has applied the entries 0 and 1 of its log, and the path of entry 1.
struct AppliedNode {
    follower: ShardFollower,
    named: Arc<NamedCollection>,
    last: PathBuf,
    _registry: Arc<Registry>,
    _directory: tempfile::TempDir,
}

impl AppliedNode {
    async fn start() -> AppliedNode {
        let directory = tempfile::tempdir().unwrap();
        let registry = open_registry(&collections(directory.path()));
        let mut follower = follower(directory.path(), &registry);
        let named = follower.open().await.unwrap().named;
        let position = FollowPosition { next: EntryNumber(2), epoch: Epoch(1) };
        local::store_position(&named, position).unwrap();
        for number in 0..2 {
            append(&follower.log, EntryNumber(number)).await;
        }
        let last = directory.path().join("store/data/1/wal/0000/0000000000000001");
        AppliedNode { follower, named, last, _registry: registry, _directory: directory }
    }

    /// Creates an entry of writes of a later owner.
    async fn append_of_later_owner(&self, number: u64) {
        let body = EntryBody::Writes(cluster_log::Batch::from(vec![Bytes::from_static(b"{}")]));
        let entry = LogEntry { epoch: Epoch(2), writer: WriterId(2), body };
        let created = self.follower.log.create(EntryNumber(number), &entry).await;
        assert_eq!(created, CreateOutcome::Created);
    }
}

/// The store was restored to an older state, and a new owner wrote.
#[tokio::test]
async fn a_copy_of_a_replaced_log_is_replaced() {
    let mut node = AppliedNode::start().await;
    let opened = node.follower.open().await.unwrap();
    assert!(Arc::ptr_eq(&opened.named, &node.named));
    std::fs::remove_file(&node.last).unwrap();
    let error = node.follower.open().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(node.follower.state.damage.reason().is_some());
    assert!(!node.named.removed(), "the store does not have all of the shard");
    node.append_of_later_owner(1).await;
    let opened = node.follower.open().await.unwrap();
    assert!(node.named.removed());
    assert_eq!(local::position(&opened.named), Some(FollowPosition::default()));
}

#[tokio::test]
async fn a_log_that_is_replaced_meanwhile_is_not_applied() {
    let mut node = AppliedNode::start().await;
    node.append_of_later_owner(2).await;
    let followed = tokio::time::timeout(OPEN_MAX, node.follower.follow()).await.unwrap();
    let error = followed.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(error.message().contains("is of owner 2"), "{error}");
    assert_eq!(local::position(&node.named).unwrap().next, EntryNumber(2));
    assert_eq!(node.follower.services.metrics.entries.get(), 0);
}

/// Other entries show that one is lost. They would be missing in a copy that ends there.
#[tokio::test]
async fn a_copy_before_a_lost_entry_is_not_served() {
    let mut node = AppliedNode::start().await;
    for number in 3..8 {
        append(&node.follower.log, EntryNumber(number)).await;
    }
    let state = node.follower.state.clone();
    let followed = tokio::time::timeout(BEGINS_WITHIN, node.follower.follow()).await;
    assert!(followed.is_err() && !state.is_caught_up());
    append(&node.follower.log, EntryNumber(2)).await;
    let mut applied = state.applied.subscribe();
    tokio::select! {
        ended = node.follower.follow() => panic!("{ended:?}"),
        ended = tokio::time::timeout(OPEN_MAX, applied.wait_for(|next| next.0 == 8)) => {
            ended.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn a_copy_that_cannot_be_opened_stays_without_other_data() {
    let directory = tempfile::tempdir().unwrap();
    let node = collections(directory.path());
    let settings = node.join(shard().local_name()).join("settings");
    {
        let registry = open_registry(&node);
        follower(directory.path(), &registry).open().await.unwrap();
    }
    std::fs::write(&settings, b"no settings").unwrap();
    let registry = open_registry(&node);
    assert!(registry.wait_open(OPEN_MAX));
    let mut follower = follower(directory.path(), &registry);
    let error = follower.open().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(settings.exists());
    assert!(follower.state.damage.reason().unwrap().starts_with("it cannot be opened"));
    append(&follower.log, EntryNumber::default()).await;
    let opened = follower.open().await.unwrap();
    assert_eq!(local::position(&opened.named), Some(FollowPosition::default()));
}

#[tokio::test]
async fn an_entry_that_damage_stops_waits_for_a_replacement() {
    let mut node = DamagedNode::start().await;
    let damaged = node.damaged.clone();
    node.follower.mark_damaged("an operation failed");
    let waiting = tokio::time::timeout(BEGINS_WITHIN, node.follower.wait_for_replacement(&damaged));
    assert!(waiting.await.is_err() && node.has_damaged(), "the copy is not withdrawn");
    node.withdraw();
    // The store has no entries, so the copy stays, and the entry is tried again.
    node.follower.wait_for_replacement(&damaged).await;
    assert!(node.has_damaged());
    node.fill_log().await;
    node.follower.replaced = None;
    node.withdraw();
    node.follower.wait_for_replacement(&damaged).await;
    assert!(damaged.removed());
}

#[tokio::test]
async fn a_damaged_copy_stays_while_the_store_is_down() {
    let mut node = DamagedNode::start().await;
    let damaged = node.damaged.clone();
    node.fill_log().await;
    node.follower.log = node.follower.log.clone().with_timeout(Duration::ZERO);
    node.follower.mark_damaged("a page");
    node.withdraw();
    node.follower.attend_to_damage(&damaged);
    node.follower.end_replacement().await;
    assert!(node.has_damaged());
    assert!(!node.follower.until_replacement().is_zero(), "the next try comes later");
}

#[tokio::test]
async fn the_next_try_counts_from_the_end_of_a_try() {
    let mut node = DamagedNode::start().await;
    node.fill_log().await;
    let damaged = node.damaged.clone();
    let services = node.follower.services.clone();
    let turn = services.restore_turn().await;
    node.follower.mark_damaged("a page");
    node.withdraw();
    node.follower.attend_to_damage(&damaged);
    let waiting = tokio::time::timeout(BEGINS_WITHIN, node.follower.end_replacement());
    assert!(waiting.await.is_err(), "another restore has the turn");
    let began = Instant::now();
    drop(turn);
    node.follower.end_replacement().await;
    assert!(node.follower.replaced.unwrap() >= began);
    assert!(damaged.removed());
}

#[tokio::test]
async fn reads_of_a_replaced_copy_do_not_count() {
    let node = DamagedNode::start().await;
    let state = &node.follower.state;
    state.follow(&node.damaged, APPLIED);
    let before = state.generation();
    state.check_generation(&shard(), before).unwrap();
    node.follower.services.local.remove(&shard()).await.unwrap();
    // The follower has not noticed it yet.
    let error = state.check_generation(&shard(), before).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
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

/// Its files would fill the disk below the mount point.
#[tokio::test]
async fn a_directory_that_is_not_mounted_gets_no_snapshot() {
    let empty = EmptyShard::start().await;
    let ShardFollower { services, key, record, .. } = &empty.follower;
    let log = services.log(key);
    let named = empty.progress.named.clone();
    let taken = snapshot::take(services, key, &record.id, &log, named).await;
    assert_eq!(taken.map(drop).unwrap_err().kind(), ErrorKind::DataLoss);
    assert!(services.store.place().below("data").list().await.unwrap().is_empty());
}

/// The older snapshot is restored if the newer one is damaged.
#[tokio::test]
async fn a_log_begins_at_the_older_of_two_snapshots() {
    let empty = EmptyShard::start().await;
    let ShardFollower { services, key, log, record, .. } = &empty.follower;
    let named = &empty.progress.named;
    for number in 0..8 {
        append(log, EntryNumber(number)).await;
    }
    let take = async |next: u64| {
        let position = FollowPosition { next: EntryNumber(next), epoch: Epoch(1) };
        local::store_position(named, position).unwrap();
        let newest = snapshot::take(services, key, &record.id, log, named.clone()).await.unwrap();
        (newest.next.0, log.floor().await.unwrap().entry.0)
    };
    assert_eq!(take(3).await, (3, 0), "there is no older one");
    assert_eq!(take(2).await, (3, 0), "another holder has taken a newer one");
    assert_eq!(take(5).await, (5, 3));
    assert_eq!(take(7).await, (7, 3), "a slow restore may read the oldest one");
    let store = snapshot::snapshot_store(&services.store, &record.id);
    let taken = snapshot::snapshots(&store, &key.local_name()).await.unwrap();
    let mut taken: Vec<u64> = taken.iter().map(|taken| taken.position.next.0).collect();
    taken.sort_unstable();
    assert_eq!(taken, [3, 5, 7]);
    assert_eq!(log.read(EntryNumber(2)).await.unwrap(), None);
    assert!(log.read(EntryNumber(3)).await.unwrap().is_some());
}

/// A shard with an empty local collection, which is behind.
struct EmptyShard {
    follower: ShardFollower,
    progress: FollowProgress,
    _registry: Arc<Registry>,
    _directory: tempfile::TempDir,
}

impl EmptyShard {
    async fn start() -> EmptyShard {
        let directory = tempfile::tempdir().unwrap();
        let registry = open_registry(&collections(directory.path()));
        EmptyShard::open(directory, registry).await
    }

    /// Starts a shard whose disk got full after its local collection was created.
    async fn start_without_room() -> EmptyShard {
        let directory = tempfile::tempdir().unwrap();
        let node = collections(directory.path());
        {
            let registry = open_registry(&node);
            follower(directory.path(), &registry).open().await.unwrap();
        }
        let registry = open_registry_without_room(&node);
        assert!(registry.wait_open(OPEN_MAX));
        EmptyShard::open(directory, registry).await
    }

    async fn open(directory: tempfile::TempDir, registry: Arc<Registry>) -> EmptyShard {
        let mut follower = follower(directory.path(), &registry);
        let named = follower.open().await.unwrap().named;
        let progress = progress(named, FollowPosition::default());
        EmptyShard { follower, progress, _registry: registry, _directory: directory }
    }

    /// Applies an entry with one operation.
    async fn apply(&mut self, operation: &'static str) -> Result<()> {
        self.apply_all(vec![Bytes::from_static(operation.as_bytes())]).await
    }

    /// Applies an entry.
    async fn apply_all(&mut self, operations: Vec<Bytes>) -> Result<()> {
        let batch = cluster_log::Batch::from(operations);
        self.follower.apply(&self.progress, &batch).await
    }
}

/// Returns the progress of a follower that has just opened a collection at `position`.
fn progress(named: Arc<NamedCollection>, position: FollowPosition) -> FollowProgress {
    let opened_at = Instant::now();
    FollowProgress {
        named,
        position,
        opened_at,
        recorded: position,
        recorded_at: opened_at,
        is_record_late: false,
    }
}

#[tokio::test]
async fn a_shard_that_is_behind_waits_for_its_turn_to_apply() {
    let mut shard = EmptyShard::start().await;
    let services = shard.follower.services.clone();
    let turn = services.catch_ups.acquire().await.unwrap();
    let waiting = tokio::time::timeout(BEGINS_WITHIN, shard.apply(SKIPPED)).await;
    assert!(waiting.is_err(), "another shard has the turn");
    shard.follower.state.caught_up.store(true, Ordering::Release);
    shard.apply(SKIPPED).await.unwrap();
    shard.follower.state.caught_up.store(false, Ordering::Release);
    drop(turn);
    shard.apply(SKIPPED).await.unwrap();
    assert_eq!(services.metrics.entries.get(), 2);
}

#[tokio::test]
async fn an_operation_that_fails_again_holds_no_turn() {
    let mut failing = EmptyShard::start().await;
    let services = failing.follower.services.clone();
    let applied = failing.apply(FAILING);
    tokio::pin!(applied);
    // The only turn is free in the pause after the first try.
    let turn = tokio::select! {
        biased;
        ended = &mut applied => panic!("{ended:?}"),
        turn = tokio::time::timeout(TURN_FREE_WITHIN, services.catch_ups.acquire()) => turn,
    };
    drop(turn.unwrap().unwrap());
}

#[tokio::test]
async fn reads_of_an_ended_holder_do_not_count() {
    let node = DamagedNode::start().await;
    let state = node.follower.state.clone();
    state.follow(&node.damaged, APPLIED);
    state.caught_up.store(true, Ordering::Release);
    let task = tokio::spawn(std::future::pending());
    let holder = Holder { record: record(), state: state.clone(), task };
    let before = state.generation();
    state.check_generation(&shard(), before).unwrap();
    holder.end();
    assert!(!state.is_caught_up());
    // The task may reach the end of the log once more before it ends.
    for generation in [before, state.generation()] {
        let error = state.check_generation(&shard(), generation).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}

#[test]
fn an_error_that_stays_is_logged_once() {
    let mut pauses = ReopenPauses::new();
    let loss = Error::data_loss("there is no snapshot");
    assert!(pauses.record(&loss, Duration::ZERO));
    assert_eq!(pauses.take(), PAUSE_MIN);
    let mut pause = PAUSE_MIN;
    for _ in 0..10 {
        assert!(!pauses.record(&loss, Duration::ZERO));
        pause = pauses.take();
    }
    assert_eq!(pause, LASTING_PAUSE_MAX);
    assert!(pauses.record(&Error::unavailable("the store is down"), Duration::ZERO));
    assert_eq!(pauses.take(), PAUSE_MAX);
    // The shard was followed for a while.
    assert!(pauses.record(&Error::unavailable("the store is down"), LASTING_PAUSE_MAX));
    assert_eq!(pauses.take(), PAUSE_MIN);
}

#[test]
fn a_collection_that_opens_at_the_start_is_not_logged() {
    let mut pauses = ReopenPauses::new();
    let opening = Error::unavailable("it is still being opened").with_retry_after(PAUSE_MIN);
    let mut waited = Duration::ZERO;
    while waited < PAUSE_MAX {
        assert!(!pauses.record(&opening, Duration::ZERO), "after {waited:?}");
        waited += pauses.take();
    }
    assert!(pauses.record(&opening, Duration::ZERO), "it takes long");
    pauses.take();
    assert!(!pauses.record(&opening, Duration::ZERO), "it is logged once");
    // These tries had opened the collection.
    for followed in [PAUSE_MIN, LASTING_PAUSE_MAX] {
        assert!(ReopenPauses::new().record(&opening, followed), "after {followed:?}");
    }
}

#[test]
fn a_full_disk_is_tried_again_after_longer_pauses() {
    let mut pauses = ReopenPauses::new();
    assert!(pauses.record(&Error::storage_full("the disk is full"), Duration::ZERO));
    let mut pause = PAUSE_MIN;
    for _ in 0..11 {
        pause = pauses.take();
    }
    assert_eq!(pause, LASTING_PAUSE_MAX);
}
