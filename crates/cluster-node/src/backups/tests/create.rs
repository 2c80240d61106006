//! Tests of making, listing, restoring and removing backups.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use backup::{BackupContext, BackupCopy, BackupProgress};
use cluster_log::{FollowPosition, LogFloor};
use object_store::{ObjectStoreExt, PutPayload};

use super::super::create::ShardMoment;
use super::super::turns::{WAITING_MAX, WaitingCount};
use super::*;
use crate::node::backup_schedule::back_up_if_due;
use crate::node::local::set_position;
use crate::node::snapshot::snapshot_store;

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
async fn refused_credentials_are_no_conflict() {
    let cluster = TestCluster::new();
    let backups = &cluster.backups;
    let places = [backups.objects.place(), backups.cluster.place(), backups.shards.place()];
    for place in places {
        let refused =
            object_store::Error::PermissionDenied { path: "a".to_owned(), source: "403".into() };
        let error = place.failed(refused);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
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
    let snapshot = copied.await.unwrap().unwrap().id;
    let floor = LogFloor { entry: EntryNumber(2), epoch: Epoch(1) };
    cluster.log(&record, 0).raise_floor(floor).await.unwrap();
    let back_up = async |end: u64, snapshots: Vec<BackupId>| {
        let id = BackupId::now();
        let shard = ShardOfSet { key: &key, collection: "docs", id: &id };
        let moment = ShardMoment { end: EntryNumber(end), snapshots };
        let made = cluster.backups.back_up_shard(&shard, moment).await.unwrap();
        (made.next, made.end)
    };
    // When the backup began, the log ended at 1.
    assert_eq!(back_up(1, Vec::new()).await, (2, 3));
    // A snapshot that was not there when the end was read may have changes behind that end.
    assert_eq!(back_up(2, Vec::new()).await, (2, 3));
    assert_eq!(back_up(2, vec![snapshot]).await, (2, 2));
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
async fn a_directory_that_is_not_mounted_is_not_backed_up() {
    let cluster = TestCluster::new();
    let images =
        api_images::ImageSettings { kind: api_images::ImageKind::Photo, model: String::new() };
    let record = CollectionRecord { images: Some(images), ..record("1") };
    cluster.append(&record, 0, 1, "one").await;
    let whole = cluster.backups.create(&record).await.unwrap();
    std::fs::remove_file(cluster.directory.path().join(IDENTITY)).unwrap();
    std::fs::remove_dir_all(cluster.directory.path().join("data")).unwrap();
    // The view still has the collection.
    for refused in [
        cluster.backups.has_changed(&record, &whole).await.map(drop),
        cluster.backups.create(&record).await.map(drop),
        cluster.backups.back_up_originals(&record, &BackupId::now()).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::DataLoss);
    }
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
async fn a_backup_with_a_damaged_description_can_be_removed() {
    let cluster = TestCluster::new();
    let record = record("1");
    cluster.append(&record, 0, 1, "one").await;
    let kept = cluster.backups.create(&record).await.unwrap();
    let all = async || {
        let listed = cluster.store.place().below("backups/cluster").list().await.unwrap();
        listed.into_iter().map(|object| object.location).collect::<BTreeSet<_>>()
    };
    let before = all().await;
    for damage in [b"{".to_vec(), kept.encode().unwrap()] {
        let made = cluster.backups.create(&record).await.unwrap();
        let key = cluster.backups.set_key("docs", &made.id);
        let payload = PutPayload::from(damage);
        cluster.backups.objects.place().objects().put(&key, payload).await.unwrap();
        assert_eq!(cluster.backups.list("docs").await.unwrap(), std::slice::from_ref(&kept));
        let error = cluster.backups.get("docs", &made.id).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        assert!(error.message().starts_with(&format!("object {key}: ")), "{error}");
        assert!(error.message().ends_with("or delete the snapshot"), "{error}");
        cluster.backups.delete("docs", &made.id).await.unwrap();
        assert_eq!(all().await, before, "its copies are removed too");
    }
    assert_eq!(cluster.backups.list("docs").await.unwrap(), [kept]);
}

#[tokio::test]
async fn a_schedule_counts_backups_of_its_collection_alone() {
    let cluster = TestCluster::new();
    let own = record("1");
    // Of an earlier collection of the name, or of another cluster with the same store of backups.
    let other = record("2");
    cluster.append(&other, 0, 1, "other").await;
    cluster.view.update(|view| drop(view.collections.insert("docs".to_owned(), other.clone())));
    let foreign = cluster.backups.create(&other).await.unwrap();
    cluster.view.update(|view| drop(view.collections.insert("docs".to_owned(), own.clone())));
    let mut schedule = BackupSchedule { every: Duration::from_secs(3600), keep_newest: Some(1) };
    let mut made: Vec<BackupId> = Vec::new();
    for text in ["one", "two"] {
        cluster.append(&own, 0, 1, text).await;
        let never = std::future::pending();
        let next = back_up_if_due(&cluster.backups, &own, schedule, never).await.unwrap();
        assert_eq!(next, schedule.every);
        let listed = cluster.backups.list("docs").await.unwrap();
        assert_eq!(listed.len(), 2, "the backup {foreign:?} stays");
        assert!(listed.contains(&foreign));
        made.extend(cluster.backups.own_ids(&own).await.unwrap());
        schedule.every = Duration::ZERO;
    }
    assert_eq!(made.len(), 2);
    assert_ne!(made[0], made[1], "the second backup replaced the first");
}

#[tokio::test]
async fn a_schedule_reads_no_old_descriptions() {
    let cluster = TestCluster::new();
    let record = record("1");
    let sets = cluster.directory.path().join("backups/cluster/sets/docs");
    std::fs::create_dir_all(&sets).unwrap();
    // Backups of a year, one each half an hour. Their descriptions cannot be read.
    for month in 1..=12 {
        for day in 1..=28 {
            for half in 0..48 {
                let time = format!("{:02}{:02}", half / 2, half % 2 * 30);
                let id = format!("2024{month:02}{day:02}T{time}00000Z-00000000");
                std::fs::write(sets.join(id), "{").unwrap();
            }
        }
    }
    cluster.append(&record, 0, 1, "one").await;
    let made = cluster.backups.create(&record).await.unwrap();
    let ids = cluster.backups.set_ids("docs").await.unwrap();
    assert_eq!((ids.len(), ids.last()), (12 * 28 * 48 + 1, Some(&made.id)));
    let every = Duration::from_secs(3600);
    let due = async |every: Duration| {
        let schedule = BackupSchedule { every, keep_newest: None };
        back_up_if_due(&cluster.backups, &record, schedule, std::future::pending()).await.unwrap()
    };
    let next = due(every).await;
    assert!(next > every / 2 && next <= every, "the last backup is young: {next:?}");
    let every = Duration::from_nanos(80);
    assert_eq!(due(every).await, every / 8, "it has not changed");
    assert_eq!(cluster.backups.set_ids("docs").await.unwrap().len(), ids.len());
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
