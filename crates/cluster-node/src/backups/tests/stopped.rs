//! Tests of backups that were stopped, failed or removed halfway.

use object_store::{ObjectStoreExt, PutPayload};

use super::*;
use crate::node::backup_schedule::back_up_if_due;

/// Removes the copies of stopped backups, as a backup does that begins now.
async fn remove_abandoned(cluster: &TestCluster, grace: Duration) -> usize {
    let own = BackupId::now();
    cluster.backups.begin(&record("1"), &own).await.unwrap();
    let removed = cluster.backups.remove_abandoned("docs", &own, grace).await.unwrap();
    cluster.backups.end("docs", &own).await.unwrap();
    removed
}

#[tokio::test]
async fn the_remains_of_a_stopped_backup_are_removed() {
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
    assert_eq!(remove_abandoned(&cluster, hour).await, 0, "it may go on");
    assert_ne!(all().await, before);
    assert_eq!(remove_abandoned(&cluster, Duration::ZERO).await, 1);
    assert_eq!(all().await, before);
    assert_eq!(cluster.backups.list("docs").await.unwrap(), std::slice::from_ref(&kept));

    // The node is killed while it copies an original.
    cluster.backups.begin(&record, &BackupId::now()).await.unwrap();
    let copied = cluster.store.place().key("backups/cluster/originals/1/0a/objects/0a02/y.png");
    objects.put(&copied, PutPayload::from_static(b"two")).await.unwrap();
    assert_eq!(remove_abandoned(&cluster, Duration::ZERO).await, 1);
    assert_eq!(all().await, before);

    // The node is killed after that.
    cluster.backups.begin(&record, &kept.id).await.unwrap();
    assert_eq!(remove_abandoned(&cluster, Duration::ZERO).await, 0);
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
    assert_eq!(remove_abandoned(&cluster, Duration::ZERO).await, 1);
    let error = cluster.backups.copy_all(&record, &id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // The same, between the last check of the backup and its description.
    cluster.backups.begin(&record, &id).await.unwrap();
    let set = cluster.backups.copy_all(&record, &id).await.unwrap();
    assert_eq!(remove_abandoned(&cluster, Duration::ZERO).await, 1);
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
    assert_eq!(remove_abandoned(&cluster, Duration::ZERO).await, 1);
}

#[tokio::test]
async fn the_age_of_a_backup_is_by_the_clock_of_the_store() {
    let cluster = TestCluster::new();
    let hour = Duration::from_secs(3600);
    // The clock of its node is years late.
    let late: BackupId = "20200101T000000000Z-00000000".parse().unwrap();
    cluster.backups.begin(&record("1"), &late).await.unwrap();
    assert_eq!(remove_abandoned(&cluster, hour).await, 0);
    cluster.backups.check_begun("docs", &late).await.unwrap();
    // The store wrote the note two hours ago, by its clock.
    let path = format!("backups/cluster/begun/docs/{late}");
    let note = std::fs::File::options().write(true).open(cluster.directory.path().join(path));
    note.unwrap().set_modified(SystemTime::now() - 2 * hour).unwrap();
    assert_eq!(remove_abandoned(&cluster, hour).await, 1);
    let error = cluster.backups.check_begun("docs", &late).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_backup_without_its_note_removes_no_other() {
    let cluster = TestCluster::new();
    cluster.backups.begin(&record("1"), &BackupId::now()).await.unwrap();
    let own = BackupId::now();
    let removed = cluster.backups.remove_abandoned("docs", &own, Duration::ZERO).await;
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_backup_of_another_node_takes_the_place_of_this_one() {
    let cluster = TestCluster::new();
    let record = record("1");
    cluster.append(&record, 0, 1, "one").await;
    let every = Duration::from_secs(3600);
    let schedule = BackupSchedule { every, keep_newest: Some(1) };
    let is_due = async |stop: std::future::Ready<()>| {
        back_up_if_due(&cluster.backups, &record, schedule, stop).await.unwrap();
        let notes = cluster.store.place().below("backups/cluster/begun/docs").list().await;
        assert!(notes.unwrap().is_empty(), "no later backup looks for its remains");
        cluster.backups.list("docs").await.unwrap().len()
    };
    assert_eq!(is_due(std::future::ready(())).await, 0);
    for outcome in ["ok", "failed"] {
        let labels = BackupWorkLabels { work: "backup", outcome };
        assert_eq!(cluster.backups.metrics.work.get_or_create(&labels).get(), 0, "{outcome}");
    }
    cluster.backups.create(&record).await.unwrap();
    assert_eq!(is_due(std::future::ready(())).await, 1);
}
