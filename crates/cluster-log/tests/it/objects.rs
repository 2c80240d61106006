//! Objects of a log, in memory and in a directory.

use std::sync::Arc;

use base::ErrorKind;
use cluster::{EntryNumber, Epoch};
use cluster_log::{CreateOutcome, LogFloor, ShardLog};
use model_store::StorePlace;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio_stream::StreamExt;

use crate::support::{TestStore, append, fence, key, writes};

/// Runs `test` with a store in memory and one in a directory.
async fn with_stores<T: Future<Output = ()>>(test: impl Fn(TestStore) -> T) {
    test(TestStore::in_memory()).await;
    let directory = tempfile::tempdir().unwrap();
    let files = LocalFileSystem::new_with_prefix(directory.path()).unwrap();
    test(TestStore { objects: Arc::new(files) }).await;
}

async fn keys(store: &TestStore) -> Vec<String> {
    let mut listing = store.objects.list(None);
    let mut keys = Vec::new();
    while let Some(object) = listing.next().await {
        keys.push(object.unwrap().location.to_string());
    }
    keys.sort();
    keys
}

fn floor(entry: u64, epoch: u64) -> LogFloor {
    LogFloor { entry: EntryNumber(entry), epoch: Epoch(epoch) }
}

#[tokio::test]
async fn an_entry_is_created_once() {
    with_stores(|store| async move {
        let log = store.log();
        assert_eq!(log.read(EntryNumber(17)).await.unwrap(), None);
        let entry = writes(4, &["{\"upsert\":{}}", "{}"]);
        assert_eq!(log.create(EntryNumber(17), &entry).await, CreateOutcome::Created);
        assert_eq!(log.create(EntryNumber(17), &fence(5)).await, CreateOutcome::NotCreated);
        assert_eq!(log.read(EntryNumber(17)).await.unwrap(), Some(entry));
        assert_eq!(keys(&store).await, ["data/c1/wal/0003/0000000000000011"]);
    })
    .await;
}

#[tokio::test]
async fn a_lost_entry_is_not_the_end() {
    with_stores(|store| async move {
        let log = store.log();
        let absent = EntryNumber(3);
        append(&log, 0, &vec![writes(1, &["a"]); 3]).await;
        log.check_end(absent).await.unwrap();
        // Entries of a pipeline whose first one is not there yet.
        append(&log, 4, &vec![writes(1, &["a"]); 3]).await;
        log.check_end(absent).await.unwrap();
        append(&log, 7, &[writes(1, &["a"])]).await;
        let error = log.check_end(absent).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        let missing = "data/c1/wal/0003/0000000000000003 in the store is missing";
        assert!(error.message().starts_with(missing), "{error}");
        assert!(error.message().contains("such as 0000000000000007"), "{error}");
        // The entry was removed because a snapshot has it.
        log.raise_floor(floor(5, 1)).await.unwrap();
        log.check_end(absent).await.unwrap();
    })
    .await;
}

/// The directory of the store is not mounted any more.
#[tokio::test]
async fn a_store_without_its_marker_has_no_known_end() {
    with_stores(|store| async move {
        let log = store.log().with_marker("identity");
        let marker = Path::from("identity");
        store.objects.put(&marker, "id".into()).await.unwrap();
        append(&log, 0, &vec![writes(1, &["a"]); 3]).await;
        assert_eq!(log.end().await.unwrap(), EntryNumber(3));
        assert!(log.acknowledged_end(EntryNumber(3)).await.unwrap() >= Some(EntryNumber(3)));

        store.objects.delete(&marker).await.unwrap();
        assert_eq!(log.end().await.unwrap_err().kind(), ErrorKind::DataLoss);
        let end = log.acknowledged_end(EntryNumber(3)).await;
        assert_eq!(end.unwrap_err().kind(), ErrorKind::DataLoss);
    })
    .await;
}

#[tokio::test]
async fn one_of_many_creates_succeeds() {
    with_stores(|store| async move {
        let tasks: Vec<_> = (1..=20)
            .map(|epoch| {
                let log = store.log();
                tokio::spawn(async move { log.create(EntryNumber(0), &fence(epoch)).await })
            })
            .collect();
        let mut created = Vec::new();
        for (epoch, task) in (1..).zip(tasks) {
            if task.await.unwrap() == CreateOutcome::Created {
                created.push(epoch);
            }
        }
        let entry = store.log().read(EntryNumber(0)).await.unwrap().unwrap();
        assert_eq!(created, [entry.epoch.0]);
    })
    .await;
}

#[tokio::test]
async fn a_damaged_entry_is_named() {
    with_stores(|store| async move {
        let at = Path::from("data/c1/wal/0003/0000000000000001");
        store.objects.put(&at, "not an entry".into()).await.unwrap();
        let error = store.log().read(EntryNumber(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        assert!(error.message().starts_with(&format!("{at} in the store: ")), "{error}");
    })
    .await;
}

#[tokio::test]
async fn the_floor_only_rises() {
    with_stores(|store| async move {
        let log = store.log();
        assert_eq!(log.floor().await.unwrap(), floor(0, 0));
        for (raised, newest) in [(5, 5), (300, 300), (40, 300), (300, 300), (301, 301)] {
            log.raise_floor(floor(raised, raised / 10)).await.unwrap();
            assert_eq!(log.floor().await.unwrap(), floor(newest, newest / 10));
        }
        for raised in 302..320 {
            log.raise_floor(floor(raised, 30)).await.unwrap();
        }
        // The last four are kept, for listings at this moment.
        let kept = [316, 317, 318, 319_u64];
        let kept = kept.map(|at| format!("data/c1/floor/0003/{at:016x}-000000000000001e"));
        assert_eq!(keys(&store).await, kept);
    })
    .await;
}

#[tokio::test]
async fn only_entries_below_the_floor_are_removed() {
    with_stores(|store| async move {
        let log = store.log();
        append(&log, 0, &vec![fence(1); 30]).await;
        assert_eq!(log.remove_below(EntryNumber(20)).await.unwrap(), 0);
        log.raise_floor(floor(12, 1)).await.unwrap();
        assert_eq!(log.remove_below(EntryNumber(10)).await.unwrap(), 10);
        assert_eq!(log.remove_below(EntryNumber(20)).await.unwrap(), 2);
        let present: Vec<bool> = {
            let mut present = Vec::new();
            for number in 10..14 {
                present.push(log.read(EntryNumber(number)).await.unwrap().is_some());
            }
            present
        };
        assert_eq!(present, [false, false, true, true]);
        assert_eq!(keys(&store).await.len(), 18 + 1);
    })
    .await;
}

#[tokio::test]
async fn an_absent_number_ahead_is_the_acknowledged_end() {
    with_stores(|store| async move {
        let log = store.log();
        let end = async |from: u64| {
            let end = log.acknowledged_end(EntryNumber(from)).await.unwrap();
            end.map(|end| end.0)
        };
        assert_eq!(end(0).await, Some(4));
        append(&log, 0, &vec![fence(1); 20]).await;
        // The first create of a pipeline failed, so the entry after the gap is not acknowledged.
        append(&log, 21, &vec![fence(1); 80]).await;
        assert_eq!(end(4).await, Some(20), "8 and 12 have entries, and 20 has none");
        assert_eq!(end(16).await, Some(20));
        assert_eq!(end(17).await, None, "21 to 81 have entries");
        assert_eq!(end(37).await, Some(101));
        log.raise_floor(floor(12, 1)).await.unwrap();
        log.remove_below(EntryNumber(12)).await.unwrap();
        assert_eq!(end(0).await, None, "the entry 4 was removed");
        assert_eq!(end(12).await, Some(20));
    })
    .await;
}

#[tokio::test]
async fn shards_have_logs_of_their_own() {
    with_stores(|store| async move {
        append(&store.log(), 0, &[fence(1)]).await;
        let place = StorePlace::new(store.objects.clone(), "", "the store");
        let mut other = key();
        other.shard.0 += 1;
        assert_eq!(ShardLog::new(&place, &other).read(EntryNumber(0)).await.unwrap(), None);
    })
    .await;
}
