//! Tests of archives that a cluster receives and sends.

use backup::{BackupContext, BackupProgress, RestoreTarget};
use search::Metric;
use search::points::{NewPoint, PointId};
use search::registry::CollectionSettings;
use serde_json::{Map, json};

use super::*;
use crate::types::{NodeInfo, PROTOCOL, Roles};

/// Points of a collection of one server, whose archive a cluster takes.
const ARCHIVE_POINTS: u64 = 700;

/// Returns a number or a UUID.
fn mixed_id(number: u64) -> PointId {
    match number % 2 {
        0 => PointId::Number(number),
        _ => PointId::Uuid(u128::from(number).to_be_bytes()),
    }
}

/// Returns the archive of a collection of one server, with the ids that `id` returns.
fn archive(id: fn(u64) -> PointId) -> Vec<u8> {
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
        let payload: Map<String, Value> = json!({ "n": number }).as_object().cloned().unwrap();
        (id(number), [number as f32, 0.1], payload)
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
    tokio::task::spawn_blocking(|| archive(mixed_id)).await.unwrap()
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

/// Returns a check that permits all settings.
fn any_images() -> ImagesCheck {
    Box::new(|_| Ok(()))
}

#[tokio::test]
async fn an_archive_becomes_the_logs_of_a_collection() {
    let cluster = TestCluster::new();
    let archive = archive_of_one_server().await;
    let imported = cluster
        .backups
        .import(&import_target(), any_images(), move || Ok(std::io::Cursor::new(archive)))
        .await;
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
    // A byte of the last file. Two blocks of zeros and its padding are after it.
    let at = changed.iter().rposition(|byte| *byte != 0).unwrap();
    if let Some(byte) = changed.get_mut(at) {
        *byte ^= 1;
    }
    for archive in [cut, changed, b"no archive".to_vec()] {
        let open = move || Ok(std::io::Cursor::new(archive));
        cluster.backups.import(&import_target(), any_images(), open).await.unwrap_err();
        assert!(cluster.store.place().below("data").list().await.unwrap().is_empty());
        assert!(cluster.registry.list().is_empty());
    }
}

#[tokio::test]
async fn refused_settings_write_nothing() {
    let cluster = TestCluster::new();
    let archive = archive_of_one_server().await;
    let check: ImagesCheck = Box::new(|images| {
        assert!(images.is_none(), "the archive holds no images");
        Err(Error::denied("not this one"))
    });
    let open = move || Ok(std::io::Cursor::new(archive));
    let refused = cluster.backups.import(&import_target(), check, open).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert!(cluster.store.place().below("data").list().await.unwrap().is_empty());
    assert!(cluster.registry.list().is_empty());
}

#[tokio::test]
async fn an_archive_needs_holders_with_space() {
    let cluster = TestCluster::new();
    let archive = archive_of_one_server().await;
    let import = async || {
        let archive = archive.clone();
        let open = move || Ok(std::io::Cursor::new(archive));
        cluster.backups.import(&import_target(), any_images(), open).await
    };
    let set_stalled = |is_stalled: bool| {
        let stalled = if is_stalled {
            BTreeMap::from([("1".to_owned(), [0_u32].into())])
        } else {
            BTreeMap::new()
        };
        cluster.view.update(|view| {
            let roles = Roles { search: true, ..Roles::default() };
            let name = "a".to_owned();
            let node = NodeInfo { name, roles, weight: 1, stalled, ..NodeInfo::default() };
            view.nodes.insert("a".to_owned(), node);
        });
    };
    // The copy of another collection has no space.
    set_stalled(true);
    let refused = import().await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after().is_some()), (ErrorKind::StorageFull, true));
    assert!(refused.message().contains("have full disks: a;"), "{refused}");
    assert!(cluster.store.place().below("data").list().await.unwrap().is_empty());
    set_stalled(false);
    assert_eq!(import().await.unwrap().points, ARCHIVE_POINTS);
}

#[tokio::test]
async fn an_archive_with_large_ids_needs_holders_that_know_them() {
    let cluster = TestCluster::new();
    let large = |number: u64| PointId::Number(u64::MAX - number);
    let archive = tokio::task::spawn_blocking(move || archive(large)).await.unwrap();
    for protocol in [0, PROTOCOL] {
        cluster.view.update(|view| {
            let roles = Roles { search: true, ..Roles::default() };
            let name = "a".to_owned();
            let node = NodeInfo { name, roles, weight: 1, protocol, ..NodeInfo::default() };
            view.nodes.insert("a".to_owned(), node);
        });
        let archive = archive.clone();
        let open = move || Ok(std::io::Cursor::new(archive));
        let imported = cluster.backups.import(&import_target(), any_images(), open).await;
        let points = imported.map(|imported| imported.points).map_err(|error| error.kind());
        let expected = if protocol == 0 { Err(ErrorKind::Unavailable) } else { Ok(ARCHIVE_POINTS) };
        assert_eq!(points, expected);
    }
}

#[tokio::test]
async fn one_archive_is_transferred_at_a_time() {
    let cluster = TestCluster::new();
    let _transfer = cluster.backups.transfer().await.unwrap();
    let open = || Ok(std::io::Cursor::new(Vec::<u8>::new()));
    let refused = cluster.backups.import(&import_target(), any_images(), open).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
}

#[tokio::test]
async fn an_archive_of_a_cluster_has_the_format_of_a_server() {
    let cluster = TestCluster::new();
    let archive = archive_of_one_server().await;
    let first = archive.clone();
    let open = move || Ok(std::io::Cursor::new(archive));
    let imported = cluster.backups.import(&import_target(), any_images(), open).await.unwrap();
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
