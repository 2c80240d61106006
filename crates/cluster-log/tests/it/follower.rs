//! Readers of a log.

use std::sync::atomic::Ordering;

use base::ErrorKind;
use cluster::{EntryNumber, Epoch, LogEntry, WriterId};
use cluster_log::{FollowPosition, FollowStep, LogFloor, LogFollower};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use crate::support::{Faults, TestStore, append, fence, read_to_end, soon, whole_log, writes};

fn start() -> (EntryNumber, Epoch) {
    (EntryNumber(0), Epoch(0))
}

#[tokio::test]
async fn entries_of_an_older_owner_do_not_count() {
    let log = TestStore::in_memory().log();
    let entries =
        [fence(1), writes(1, &["a", "b"]), fence(2), writes(1, &["late"]), writes(2, &["c"])];
    append(&log, 0, &entries).await;
    let mut follower = LogFollower::new(log.clone(), start().0, start().1);
    let applied = read_to_end(&mut follower).await;
    let applied: Vec<(u64, &str)> = applied.iter().map(|it| (it.0.0, it.1.as_str())).collect();
    assert_eq!(applied, [(1, "a"), (1, "b"), (4, "c")]);
    assert_eq!(follower.position(), FollowPosition { next: EntryNumber(5), epoch: Epoch(2) });
    append(&log, 5, &[writes(2, &["d"])]).await;
    assert_eq!(read_to_end(&mut follower).await, [(EntryNumber(5), "d".to_owned())]);
    // A follower that begins in the middle knows the epoch.
    let mut later = LogFollower::new(log, EntryNumber(3), Epoch(2));
    assert_eq!(
        later.next().await.unwrap(),
        FollowStep::Entry { number: EntryNumber(3), batch: None }
    );
}

#[tokio::test]
async fn a_follower_that_is_behind_reads_ahead() {
    let store = TestStore::in_memory();
    append(&store.log(), 0, &vec![writes(1, &["a"]); 100]).await;
    let (log, line) = store.connect(0);
    assert_eq!(whole_log(&log).await.len(), 100);
    let lists = line.lists.load(Ordering::Relaxed);
    let gets = line.gets.load(Ordering::Relaxed);
    assert!(lists < 20, "{lists} reads of the floor for 100 entries");
    assert!(gets < 120, "{gets} reads for 100 entries");
}

#[tokio::test]
async fn an_offered_entry_is_not_read() {
    let store = TestStore::in_memory();
    append(&store.log(), 0, &[fence(2), writes(2, &["a"]), writes(2, &["b"])]).await;
    let (log, line) = store.connect(0);
    let mut follower = LogFollower::new(log, start().0, start().1);
    assert!(!follower.offer(EntryNumber(0), fence(2)), "no entry was read");
    let fenced = follower.next().await.unwrap();
    assert_eq!(fenced, FollowStep::Entry { number: EntryNumber(0), batch: None });
    let read = line.gets.load(Ordering::Relaxed);
    assert!(!follower.offer(EntryNumber(2), writes(2, &["b"])), "it is not the next one");
    assert!(follower.offer(EntryNumber(1), writes(2, &["a"])));
    assert!(!follower.offer(EntryNumber(1), writes(2, &["a"])), "only once");
    let FollowStep::Entry { number, batch: Some(_) } = follower.next().await.unwrap() else {
        panic!("the entry counts");
    };
    assert_eq!((number, line.gets.load(Ordering::Relaxed)), (EntryNumber(1), read));
    assert_eq!(follower.position(), FollowPosition { next: EntryNumber(2), epoch: Epoch(2) });
}

/// The directory of the store is not mounted any more.
#[tokio::test]
async fn a_store_without_its_marker_has_no_entries_and_no_end() {
    let store = TestStore::in_memory();
    let log = store.log().with_marker("identity");
    let mut follower = LogFollower::new(log.clone(), start().0, start().1);
    assert_eq!(follower.next().await.unwrap_err().kind(), ErrorKind::DataLoss);
    // An owner may have created an entry there before it noticed.
    append(&log, 0, &[fence(1)]).await;
    assert_eq!(follower.next().await.unwrap_err().kind(), ErrorKind::DataLoss);
    store.objects.put(&Path::from("identity"), "id".into()).await.unwrap();
    assert!(matches!(follower.next().await.unwrap(), FollowStep::Entry { .. }));
    assert_eq!(follower.next().await.unwrap(), FollowStep::End);
}

/// A client with a key of the role write sends entries that no writer has made.
#[tokio::test]
async fn an_offered_entry_of_another_writer_is_refused() {
    let log = TestStore::in_memory().log();
    append(&log, 0, &[fence(2), writes(2, &["a"])]).await;
    let mut follower = LogFollower::new(log, start().0, start().1);
    follower.next().await.unwrap();
    let forged = LogEntry { epoch: Epoch(u64::MAX), ..writes(2, &["forged"]) };
    let same_epoch = LogEntry { writer: WriterId(7), ..writes(2, &["forged"]) };
    for entry in [forged, same_epoch, writes(1, &["late"]), writes(3, &["early"])] {
        assert!(!follower.offer(EntryNumber(1), entry));
    }
    assert_eq!(read_to_end(&mut follower).await, [(EntryNumber(1), "a".to_owned())]);
    assert_eq!(follower.position(), FollowPosition { next: EntryNumber(2), epoch: Epoch(2) });
}

/// Entries of a restored backup have a number of a writer that each client knows.
#[tokio::test]
async fn an_offered_entry_behind_a_restored_one_is_refused() {
    let log = TestStore::in_memory().log();
    append(&log, 0, &[writes(0, &["restored"])]).await;
    let mut follower = LogFollower::new(log, start().0, start().1);
    follower.next().await.unwrap();
    assert!(!follower.offer(EntryNumber(1), writes(0, &["forged"])));
    assert_eq!(follower.next().await.unwrap(), FollowStep::End);
}

/// The entry after a gap may be one of a pipeline whose first entry is not there yet.
#[tokio::test]
async fn a_gap_is_the_end() {
    let log = TestStore::in_memory().log();
    append(&log, 0, &vec![writes(1, &["a"]); 10]).await;
    append(&log, 11, &[writes(1, &["c"])]).await;
    let mut follower = LogFollower::new(log.clone(), start().0, start().1);
    assert_eq!(read_to_end(&mut follower).await.len(), 10);
    append(&log, 10, &[writes(1, &["b"])]).await;
    let applied = read_to_end(&mut follower).await;
    assert_eq!(applied.iter().map(|it| it.1.as_str()).collect::<String>(), "bc");
}

#[tokio::test]
async fn a_removed_entry_needs_a_snapshot() {
    let log = TestStore::in_memory().log();
    append(&log, 0, &vec![writes(1, &["a"]); 10]).await;
    let floor = LogFloor { entry: EntryNumber(6), epoch: Epoch(1) };
    let mut behind = LogFollower::new(log.clone(), start().0, start().1);
    assert!(matches!(behind.next().await.unwrap(), FollowStep::Entry { .. }));
    log.raise_floor(floor).await.unwrap();
    log.remove_below(floor.entry).await.unwrap();
    assert_eq!(behind.next().await.unwrap(), FollowStep::Removed(floor));
    assert_eq!(behind.next().await.unwrap(), FollowStep::Removed(floor));
    let mut restored = LogFollower::new(log, floor.entry, floor.epoch);
    assert_eq!(read_to_end(&mut restored).await.len(), 4);
}

/// A process that slept created a removed number again.
#[tokio::test]
async fn an_entry_below_the_floor_is_not_returned() {
    let log = TestStore::in_memory().log();
    append(&log, 0, &vec![writes(2, &["a"]); 10]).await;
    let floor = LogFloor { entry: EntryNumber(6), epoch: Epoch(2) };
    log.raise_floor(floor).await.unwrap();
    log.remove_below(floor.entry).await.unwrap();
    append(&log, 3, &[writes(1, &["late"])]).await;
    let mut follower = LogFollower::new(log, EntryNumber(3), Epoch(1));
    assert_eq!(follower.next().await.unwrap(), FollowStep::Removed(floor));
}

#[tokio::test]
async fn a_follower_continues_after_a_failure() {
    let store = TestStore::in_memory();
    append(&store.log(), 0, &vec![writes(1, &["a"]); 100]).await;
    let (log, line) = store.connect(1);
    line.set_faults(Faults { refused: 40, ..Faults::default() });
    let mut follower = LogFollower::new(log, start().0, start().1);
    let mut numbers = Vec::new();
    let mut failures = 0;
    soon(async {
        loop {
            match follower.next().await {
                Ok(FollowStep::Entry { number, .. }) => numbers.push(number.0),
                Ok(FollowStep::End) => return,
                Ok(FollowStep::Removed(floor)) => panic!("the log begins at {floor}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable);
                    failures += 1;
                }
            }
        }
    })
    .await;
    assert_eq!(numbers, (0..100).collect::<Vec<u64>>());
    assert!(failures > 0);
}

#[tokio::test]
async fn a_damaged_entry_is_not_skipped() {
    let store = TestStore::in_memory();
    let log = store.log();
    append(&log, 0, &vec![writes(1, &["a"]); 10]).await;
    let damaged = Path::from("data/c1/wal/0003/0000000000000005");
    store.objects.put(&damaged, "no entry".into()).await.unwrap();
    let mut follower = LogFollower::new(log.clone(), start().0, start().1);
    for _ in 0..5 {
        assert!(matches!(follower.next().await.unwrap(), FollowStep::Entry { .. }));
    }
    for _ in 0..2 {
        let error = follower.next().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        assert!(error.message().contains(damaged.as_ref()), "{error}");
    }
    // A snapshot that covers it repairs the log.
    let floor = LogFloor { entry: EntryNumber(8), epoch: Epoch(1) };
    log.raise_floor(floor).await.unwrap();
    assert_eq!(follower.next().await.unwrap(), FollowStep::Removed(floor));
}
