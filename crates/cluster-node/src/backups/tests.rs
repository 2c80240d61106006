use std::sync::atomic::Ordering;

use api_qdrant::RegistrySource;
use axum::Router;
use backup::{BackupContext, BackupCopy, BackupProgress, RestoreTarget};
use base::ErrorKind;
use bytes::Bytes;
use cluster::{EntryBody, EntryNumber, Epoch, LogEntry, WriterId};
use cluster_log::{Batch, CreateOutcome, FollowPosition, LogFloor, ShardLog};
use object_store::{ObjectStoreExt, PutPayload};
use search::coarse::Metric;
use search::points::{NewPoint, PointId};
use search::registry::{CollectionSettings, MediumChoice, Registry, RegistryOptions};
use serde_json::{Map, Value, json};

use super::turns::{WAITING_MAX, WaitingCount};
use super::*;
use crate::node::local::set_position;
use crate::node::snapshot::snapshot_store;
use crate::types::{CollectionRecord, ViewUpdater};

/// The collections of a node.
struct TestRegistry(Arc<Registry>);

impl RegistrySource for TestRegistry {
    fn registry(&self) -> Result<Arc<Registry>> {
        Ok(self.0.clone())
    }

    fn opened(&self) -> Option<Arc<Registry>> {
        Some(self.0.clone())
    }
}

fn open_registry(directory: &std::path::Path) -> Arc<Registry> {
    std::fs::create_dir_all(directory).unwrap();
    Registry::open(RegistryOptions::for_tests(directory)).unwrap()
}

/// A cluster's store in a directory, and its backups.
struct TestCluster {
    store: BackupStore,
    view: ViewUpdater,
    backups: Arc<ClusterBackups>,
    registry: Arc<Registry>,
    directory: tempfile::TempDir,
}

impl TestCluster {
    fn new() -> TestCluster {
        let directory = tempfile::tempdir().unwrap();
        let store = BackupStore::open(directory.path().to_str().unwrap(), &[]).unwrap();
        let view = ViewUpdater::new();
        view.update(|view| {
            view.collections.insert("docs".to_owned(), record("1"));
        });
        let rate = Rate::unlimited();
        let settings =
            ClusterBackupSettings { store: store.below("backups"), rate, schedule: None };
        let registry = open_registry(&directory.path().join("node"));
        let local = LocalCollections::new(Router::new(), Arc::new(TestRegistry(registry.clone())));
        let backups = ClusterBackups::new(ClusterBackupOptions {
            view: view.source(),
            cluster: store.clone(),
            local,
            settings,
            metrics: BackupMetrics::default(),
        });
        TestCluster { store, view, backups, registry, directory }
    }

    fn log(&self, record: &CollectionRecord, shard: u32) -> ShardLog {
        ShardLog::new(self.store.place(), &ShardKey::new(&record.id, shard))
    }

    /// Adds an entry to the log of a shard. Without a text it is a fence.
    async fn append(&self, record: &CollectionRecord, shard: u32, epoch: u64, text: &'static str) {
        let log = self.log(record, shard);
        let number = log.end().await.unwrap();
        let body = match text {
            "" => EntryBody::Fence,
            text => EntryBody::Writes(batch(text)),
        };
        let entry = LogEntry { epoch: Epoch(epoch), writer: WriterId(1), body };
        assert_eq!(log.create(number, &entry).await, CreateOutcome::Created);
    }

    /// Returns the entries of the log of a shard.
    async fn entries(&self, record: &CollectionRecord, shard: u32) -> Vec<LogEntry<Batch>> {
        let log = self.log(record, shard);
        let mut entries = Vec::new();
        while let Some(entry) = log.read(EntryNumber(entries.len() as u64)).await.unwrap() {
            entries.push(entry);
        }
        entries
    }
}

fn batch(text: &'static str) -> Batch {
    Batch::from(vec![Bytes::from_static(text.as_bytes())])
}

fn record(id: &str) -> CollectionRecord {
    CollectionRecord {
        name: "docs".to_owned(),
        id: id.to_owned(),
        shards: 2,
        copies: 1,
        create: Value::Null,
        images: None,
    }
}

#[tokio::test]
async fn a_backup_has_the_logs_of_its_moment() {
    let cluster = TestCluster::new();
    let record = record("1");
    for (epoch, text) in [(7, ""), (7, "one"), (9, ""), (7, "late"), (9, "two")] {
        cluster.append(&record, 0, epoch, text).await;
    }
    let set = cluster.backups.create(&record).await.unwrap();
    let [first, second] = &set.shards[..] else { panic!("{set:?}") };
    assert_eq!((first.snapshot_bytes, first.end, first.log[0].entries), (None, 5, 2));
    assert_eq!((second.end, second.log.len()), (0, 0));
    assert_eq!(cluster.backups.list("docs").await.unwrap(), std::slice::from_ref(&set));
    assert!(!cluster.backups.has_changed(&record, &set).await.unwrap());
    cluster.append(&record, 1, 3, "three").await;
    assert!(cluster.backups.has_changed(&record, &set).await.unwrap());

    let restored = cluster.backups.restore(&set, "copy").await.unwrap();
    assert_eq!((restored.name.as_str(), restored.shards), ("copy", 2));
    assert_ne!(restored.id, record.id);
    let entry = |text| LogEntry {
        epoch: Epoch(0),
        writer: WriterId(0),
        body: EntryBody::Writes(batch(text)),
    };
    assert_eq!(cluster.entries(&restored, 0).await, [entry("one"), entry("two")]);
    assert_eq!(cluster.entries(&restored, 1).await, []);
    // The removal of data without a record has begun.
    cluster.backups.check_prepared(&restored).await.unwrap();
    let objects = SmallObjects::new(cluster.store.place().clone(), REQUEST_TIMEOUT);
    objects.remove(&prepared::prepared_key(&objects, &restored.id)).await.unwrap();
    let error = cluster.backups.check_prepared(&restored).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
}

#[tokio::test]
async fn originals_belong_to_the_backup() {
    let cluster = TestCluster::new();
    let images =
        api_images::ImageSettings { kind: api_images::ImageKind::Photo, model: String::new() };
    let record = CollectionRecord { images: Some(images), ..record("1") };
    let put = async |key: &str, text: &'static str| {
        let key = cluster.store.place().key(&format!("data/{key}"));
        cluster
            .store
            .place()
            .objects()
            .put(&key, PutPayload::from_static(text.as_bytes()))
            .await
            .unwrap();
    };
    put("1/originals/0a/0a01/x.png", "one").await;
    put("1/originals/ff/ff01/y.png", "second").await;
    let set = cluster.backups.create(&record).await.unwrap();
    let originals = set.originals.clone().unwrap();
    assert_eq!(
        (originals.count, originals.bytes, originals.parts),
        (2, 9, vec!["0a".to_owned(), "ff".to_owned()])
    );
    assert_eq!(cluster.backups.get("docs", &set.id).await.unwrap(), set);
    let restored = cluster.backups.restore(&set, "copy").await.unwrap();
    let key = cluster.store.place().key(&format!("data/{}/originals/0a/0a01/x.png", restored.id));
    let bytes = cluster.store.place().objects().get(&key).await.unwrap().bytes().await.unwrap();
    assert_eq!(&*bytes, b"one");
    cluster.backups.delete("docs", &set.id).await.unwrap();
    let left = cluster.store.place().below("backups/cluster");
    assert!(left.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn what_a_stopped_backup_left_is_removed() {
    let cluster = TestCluster::new();
    let images =
        api_images::ImageSettings { kind: api_images::ImageKind::Photo, model: String::new() };
    let record = CollectionRecord { images: Some(images), ..record("1") };
    cluster.append(&record, 0, 1, "one").await;
    let original = cluster.store.place().key("data/1/originals/0a/0a01/x.png");
    let objects = cluster.store.place().objects();
    objects.put(&original, PutPayload::from_static(b"one")).await.unwrap();
    let kept = cluster.backups.create(&record).await.unwrap();
    let all = async || {
        let listed = cluster.store.place().below("backups/cluster").list().await.unwrap();
        listed.into_iter().map(|object| object.location).collect::<Vec<_>>()
    };
    let before = all().await;

    // The node is killed before the description is written.
    let stopped = cluster.backups.create(&record).await.unwrap();
    cluster.backups.begin(&record, &stopped.id).await.unwrap();
    cluster.backups.objects.remove(&cluster.backups.set_key("docs", &stopped.id)).await.unwrap();
    let hour = Duration::from_secs(3600);
    assert_eq!(cluster.backups.remove_abandoned("docs", hour).await.unwrap(), 0, "it may go on");
    assert_ne!(all().await, before);
    assert_eq!(cluster.backups.remove_abandoned("docs", Duration::ZERO).await.unwrap(), 1);
    assert_eq!(all().await, before);
    assert_eq!(cluster.backups.list("docs").await.unwrap(), std::slice::from_ref(&kept));

    // The node is killed while it copies an original.
    cluster.backups.begin(&record, &BackupId::now()).await.unwrap();
    let copied = cluster.store.place().key("backups/cluster/originals/1/0a/objects/0a02/y.png");
    objects.put(&copied, PutPayload::from_static(b"two")).await.unwrap();
    assert_eq!(cluster.backups.remove_abandoned("docs", Duration::ZERO).await.unwrap(), 1);
    assert_eq!(all().await, before);

    // The node is killed after that.
    cluster.backups.begin(&record, &kept.id).await.unwrap();
    assert_eq!(cluster.backups.remove_abandoned("docs", Duration::ZERO).await.unwrap(), 0);
    assert_eq!(all().await, before);
}

#[tokio::test]
async fn a_backup_without_its_copies_is_not_listed() {
    let cluster = TestCluster::new();
    let record = record("1");
    cluster.append(&record, 0, 1, "one").await;
    let id = BackupId::now();
    cluster.backups.begin(&record, &id).await.unwrap();
    cluster.backups.copy_all(&record, &id).await.unwrap();
    // Another node takes it for a stopped one.
    assert_eq!(cluster.backups.remove_abandoned("docs", Duration::ZERO).await.unwrap(), 1);
    let error = cluster.backups.copy_all(&record, &id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // The same, between the last check of the backup and its description.
    cluster.backups.begin(&record, &id).await.unwrap();
    let set = cluster.backups.copy_all(&record, &id).await.unwrap();
    assert_eq!(cluster.backups.remove_abandoned("docs", Duration::ZERO).await.unwrap(), 1);
    let error = cluster.backups.describe(&set).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(cluster.backups.list("docs").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_slow_removal_leaves_a_described_backup() {
    let cluster = TestCluster::new();
    let record = record("1");
    cluster.append(&record, 0, 1, "one").await;
    // The other node was stopped after it had listed the descriptions.
    let set = cluster.backups.create(&record).await.unwrap();
    assert!(!cluster.backups.discard_abandoned(&record, "docs", &set.id).await.unwrap());
    let restored = cluster.backups.restore(&set, "copy").await.unwrap();
    assert_eq!(cluster.entries(&restored, 0).await.len(), 1);
}

#[tokio::test]
async fn a_failed_backup_leaves_nothing() {
    let cluster = TestCluster::new();
    let images =
        api_images::ImageSettings { kind: api_images::ImageKind::Photo, model: String::new() };
    let record = CollectionRecord { images: Some(images), ..record("1") };
    cluster.append(&record, 0, 1, "one").await;
    // More directories than a collection's originals have.
    for number in 0..=originals::PARTS_MAX {
        let key = cluster.store.place().key(&format!("data/1/originals/{number:03}/x.png"));
        let bytes = PutPayload::from_static(b"one");
        cluster.store.place().objects().put(&key, bytes).await.unwrap();
    }
    let error = cluster.backups.create(&record).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(cluster.store.place().below("backups/cluster").list().await.unwrap().is_empty());
}

#[tokio::test]
async fn an_unclear_end_keeps_the_copies() {
    let cluster = TestCluster::new();
    let record = record("1");
    cluster.append(&record, 0, 1, "one").await;
    // The description cannot be written: its directory is a file.
    let sets = cluster.directory.path().join("backups/cluster/sets");
    std::fs::create_dir_all(&sets).unwrap();
    std::fs::write(sets.join("docs"), b"").unwrap();
    cluster.backups.create(&record).await.unwrap_err();
    for kept in ["logs", "begun"] {
        let place = cluster.store.place().below(&format!("backups/cluster/{kept}/docs"));
        assert!(!place.list().await.unwrap().is_empty(), "{kept}");
    }
}

#[tokio::test]
async fn a_long_backup_takes_a_snapshot_newer_than_its_beginning() {
    let cluster = TestCluster::new();
    let record = record("1");
    for text in ["", "one", "two"] {
        cluster.append(&record, 0, 1, text).await;
    }
    let (key, to) = (ShardKey::new("1", 0), snapshot_store(&cluster.store, "1"));
    let (name, empty) = (key.local_name(), cluster.store.below("empty"));
    let copied = tokio::task::spawn_blocking(move || {
        let (pacer, progress) = (Pacer::new(Rate::unlimited()), BackupProgress::default());
        let context = BackupContext { store: &empty, pacer: &pacer, progress: &progress };
        let id = BackupId::now();
        backup::block_on(async {
            let from = backup::ObjectDirectory { store: &empty, name: "none" };
            backup::back_up_objects(&context, from, "x", &id).await?;
            let copy = BackupCopy { collection: "x", backup: &id, to: &to, name: &name, id: &id };
            let at = FollowPosition { next: EntryNumber(2), epoch: Epoch(1) };
            backup::copy(&context, &copy, |settings| set_position(&mut settings.extra, at)).await
        })
    });
    copied.await.unwrap().unwrap();
    let floor = LogFloor { entry: EntryNumber(2), epoch: Epoch(1) };
    cluster.log(&record, 0).raise_floor(floor).await.unwrap();
    let id = BackupId::now();
    let shard = ShardOfSet { key: &key, collection: "docs", id: &id };
    // When the backup began, the log ended at 1.
    let made = cluster.backups.back_up_shard(&shard, EntryNumber(1)).await.unwrap();
    assert_eq!((made.next, made.end), (2, 3));
}

#[tokio::test]
async fn a_stopped_removal_is_finished_later() {
    let cluster = TestCluster::new();
    let record = record("1");
    cluster.append(&record, 0, 1, "one").await;
    let set = cluster.backups.create(&record).await.unwrap();
    // The directory of originals cannot be listed.
    let originals = cluster.directory.path().join("backups/cluster/originals");
    std::fs::write(&originals, b"").unwrap();
    cluster.backups.delete("docs", &set.id).await.unwrap_err();
    std::fs::remove_file(&originals).unwrap();
    assert_eq!(cluster.backups.remove_abandoned("docs", Duration::ZERO).await.unwrap(), 1);
}

#[tokio::test]
async fn a_removed_collection_is_not_backed_up() {
    let cluster = TestCluster::new();
    let record = record("1");
    cluster.append(&record, 0, 1, "one").await;
    let whole = cluster.backups.create(&record).await.unwrap();
    cluster.view.update(|view| view.collections.clear());
    for object in cluster.store.place().below("data/1").list().await.unwrap() {
        cluster.store.place().objects().delete(&object.location).await.unwrap();
    }
    let error = cluster.backups.create(&record).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(cluster.backups.list("docs").await.unwrap(), [whole]);
}

#[tokio::test]
async fn a_removed_backup_leaves_the_others() {
    let cluster = TestCluster::new();
    let record = record("1");
    cluster.append(&record, 0, 1, "one").await;
    let first = cluster.backups.create(&record).await.unwrap();
    let second = cluster.backups.create(&record).await.unwrap();
    assert!(first.id < second.id);
    cluster.backups.delete("docs", &first.id).await.unwrap();
    assert_eq!(cluster.backups.list("docs").await.unwrap(), std::slice::from_ref(&second));
    for missing in [
        cluster.backups.get("docs", &first.id).await.map(drop),
        cluster.backups.get("other", &second.id).await.map(drop),
        cluster.backups.delete("docs", &first.id).await,
    ] {
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    }
    let restored = cluster.backups.restore(&second, "copy").await.unwrap();
    assert_eq!(cluster.entries(&restored, 0).await.len(), 1);
}

#[tokio::test]
async fn requests_beyond_the_maximum_do_not_wait() {
    let cluster = TestCluster::new();
    let _turn = cluster.backups.turn().await.unwrap();
    let waiting: Vec<WaitingCount<'_>> =
        (0..WAITING_MAX).map(|_| WaitingCount::begin(&cluster.backups.waiting).unwrap()).collect();
    let refused = cluster.backups.create(&record("1")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
    drop(waiting);
    assert_eq!(cluster.backups.waiting.load(Ordering::Acquire), 0);
}

/// Points of a collection of one server, whose archive a cluster takes.
const ARCHIVE_POINTS: u64 = 700;

/// Returns the archive of a collection of one server, with numbers and UUIDs as ids.
fn archive() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let registry = open_registry(&directory.path().join("server"));
    let mut settings = CollectionSettings {
        vector_name: "text".to_owned(),
        ..CollectionSettings::new(2, Metric::Dot)
    };
    let metadata: Map<String, Value> = json!({"owner": "search"}).as_object().cloned().unwrap();
    let schema: Map<String, Value> =
        json!({"n": {"data_type": "integer", "params": null}}).as_object().cloned().unwrap();
    api_qdrant::set_portable(&mut settings, metadata, schema, Map::new());
    let named = registry.create("docs", settings).unwrap();
    let made = |number: u64| {
        let id = match number % 2 {
            0 => PointId::Number(number),
            _ => PointId::Uuid(u128::from(number).to_be_bytes()),
        };
        let payload: Map<String, Value> = json!({ "n": number }).as_object().cloned().unwrap();
        (id, [number as f32, 0.1], payload)
    };
    let points: Vec<(PointId, [f32; 2], Map<String, Value>)> =
        (0..ARCHIVE_POINTS).map(made).collect();
    let new = points.iter().map(|(id, embedding, payload)| NewPoint {
        id: *id,
        embedding,
        record: &[],
        payload,
    });
    named.upsert(&new.collect::<Vec<_>>()).unwrap();
    let store = directory.path().join("backups");
    let store = BackupStore::open(store.to_str().unwrap(), &[]).unwrap();
    let (pacer, progress) = (Pacer::new(Rate::unlimited()), BackupProgress::default());
    let context = BackupContext { store: &store, pacer: &pacer, progress: &progress };
    let mut archive = Vec::new();
    backup::block_on(async {
        let extent = backup::BackupExtent::Missing;
        let report = backup::create(&context, &named, extent).await.unwrap();
        let list = store.list("docs", &report.backup).await.unwrap();
        backup::write_archive(&context, "docs", &list, &mut archive).await
    })
    .unwrap();
    archive
}

async fn archive_of_one_server() -> Vec<u8> {
    tokio::task::spawn_blocking(archive).await.unwrap()
}

/// Reads all points of a collection, in the order of ids.
fn all_points(registry: &Registry, name: &str) -> Vec<search::points::FetchedPoint> {
    let named = registry.get(name).unwrap();
    let parts = search::collection::PointParts::ALL;
    let page = named.scroll(None, 2000, None, parts).unwrap();
    assert!(!page.partial && page.next.is_none());
    page.points
}

fn import_target() -> ImportTarget {
    ImportTarget { name: "moved".to_owned(), shards: 3, copies: 1 }
}

#[tokio::test]
async fn an_archive_becomes_the_logs_of_a_collection() {
    let cluster = TestCluster::new();
    let archive = archive_of_one_server().await;
    let imported =
        cluster.backups.import(&import_target(), move || Ok(std::io::Cursor::new(archive))).await;
    let ImportedCollection { record, changes, points } = imported.unwrap();
    assert_eq!((record.name.as_str(), record.shards, record.copies), ("moved", 3, 1));
    assert_eq!(
        record.create,
        json!({"vectors": {"text": {"size": 2, "distance": "Dot"}}, "metadata": {"owner": "search"}})
    );
    assert!(changes.payload_schema.contains_key("n"));
    assert_eq!(points, ARCHIVE_POINTS);
    let mut found = Vec::new();
    for shard in 0..3 {
        for entry in cluster.entries(&record, shard).await {
            assert_eq!(entry.epoch, Epoch(0));
            let EntryBody::Writes(batch) = entry.body else { panic!("a fence") };
            for operation in batch.0.iter() {
                let operation: Value = serde_json::from_slice(operation).unwrap();
                for point in operation["upsert"]["points"].as_array().unwrap() {
                    let number = point["payload"]["n"].as_u64().unwrap();
                    assert_eq!(point["vector"]["text"][0], json!(number as f32));
                    found.push(number);
                }
            }
        }
    }
    found.sort_unstable();
    assert_eq!(found, (0..ARCHIVE_POINTS).collect::<Vec<u64>>());
    assert!(cluster.registry.list().is_empty(), "the local collection is removed");
}

#[tokio::test]
async fn a_damaged_archive_writes_nothing() {
    let cluster = TestCluster::new();
    let whole = archive_of_one_server().await;
    let cut = whole.get(..whole.len() / 2).unwrap().to_vec();
    let mut changed = whole;
    // A byte of the last file. Two blocks of zeros and its padding are behind it.
    let at = changed.iter().rposition(|byte| *byte != 0).unwrap();
    if let Some(byte) = changed.get_mut(at) {
        *byte ^= 1;
    }
    for archive in [cut, changed, b"no archive".to_vec()] {
        let open = move || Ok(std::io::Cursor::new(archive));
        cluster.backups.import(&import_target(), open).await.unwrap_err();
        assert!(cluster.store.place().below("data").list().await.unwrap().is_empty());
        assert!(cluster.registry.list().is_empty());
    }
}

#[tokio::test]
async fn one_archive_is_transferred_at_a_time() {
    let cluster = TestCluster::new();
    let _transfer = cluster.backups.transfer().await.unwrap();
    let open = || Ok(std::io::Cursor::new(Vec::<u8>::new()));
    let refused = cluster.backups.import(&import_target(), open).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
}

#[tokio::test]
async fn an_archive_of_a_cluster_is_one_of_a_server() {
    let cluster = TestCluster::new();
    let archive = archive_of_one_server().await;
    let first = archive.clone();
    let open = move || Ok(std::io::Cursor::new(archive));
    let imported = cluster.backups.import(&import_target(), open).await.unwrap();
    let record = imported.record.clone();
    cluster.view.update(|view| {
        view.collections.insert("moved".to_owned(), imported.record.clone());
        let mut changes = (*view.changes).clone();
        changes.collections.insert(imported.record.id.clone(), imported.changes.clone());
        view.changes = Arc::new(changes);
    });
    let set = cluster.backups.create(&record).await.unwrap();
    let exported = cluster.backups.export(&set).await.unwrap();
    let busy = cluster.backups.export(&set).await.err().unwrap();
    assert_eq!(busy.kind(), ErrorKind::ResourceExhausted);
    let sent = std::thread::spawn(move || {
        let (mut announced, mut sent) = (0, Vec::new());
        exported.write(|bytes| announced = bytes, &mut sent).unwrap();
        assert_eq!(sent.len() as u64, announced);
        sent
    });
    let second = sent.join().unwrap();
    assert!(cluster.registry.list().is_empty(), "the local collections are removed");

    let directory = tempfile::tempdir().unwrap();
    let registry = open_registry(&directory.path().join("server"));
    for (name, archive) in [("first", first), ("second", second)] {
        let (registry, name) = (registry.clone(), name.to_owned());
        let target = RestoreTarget { name, replaces: false };
        let read = move || backup::read_archive(&registry, &archive[..], &target, |_| Ok(()));
        tokio::task::spawn_blocking(read).await.unwrap().unwrap();
    }
    assert_eq!(all_points(&registry, "first"), all_points(&registry, "second"));
    let settings = |name: &str| registry.get(name).unwrap().settings();
    assert_eq!(*settings("first"), *settings("second"));
}
