//! Writers of a log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::ErrorKind;
use bytes::Bytes;
use cluster::{EntryBody, EntryNumber, Epoch};
use cluster_log::{
    GATHER_MAX, LogFloor, ShardLog, ShardWriter, WriterOptions, WriterPhase, WriterStatus,
    was_not_made,
};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use crate::support::{
    Faults, TestStore, append, deadline, fence, operations, options, soon, whole_log, writes,
};

async fn owner(log: &ShardLog, epoch: u64) -> ShardWriter {
    let writer = ShardWriter::start(log.clone(), Epoch(epoch), options());
    assert!(soon(writer.started()).await);
    writer
}

fn status(phase: WriterPhase, next: u64) -> WriterStatus {
    WriterStatus { phase, next: EntryNumber(next) }
}

async fn write(writer: &ShardWriter, text: &str) -> base::Result<EntryNumber> {
    writer.write(operations(&[text]), deadline()).await
}

/// Starts a write. It is in the queue when this returns.
async fn begin(
    writer: &ShardWriter,
    text: &'static str,
) -> tokio::task::JoinHandle<base::Result<EntryNumber>> {
    let writer = writer.clone();
    let task = tokio::spawn(async move { write(&writer, text).await });
    // The tests' runtime has one thread.
    tokio::task::yield_now().await;
    task
}

fn texts(applied: Vec<(EntryNumber, String)>) -> Vec<String> {
    applied.into_iter().map(|it| it.1).collect()
}

#[tokio::test]
async fn a_write_is_in_the_entry_that_is_returned() {
    let log = TestStore::in_memory().log();
    let entries = [fence(1), writes(1, &["old"]), writes(1, &["old"])];
    append(&log, 0, &entries).await;
    let writer = owner(&log, 2).await;
    assert_eq!(writer.state(), status(WriterPhase::Owning, 4));
    let number = writer.write(operations(&["a", "b"]), deadline()).await.unwrap();
    assert_eq!(number, EntryNumber(4));
    assert_eq!(write(&writer, "c").await.unwrap(), EntryNumber(5));
    assert_eq!(writer.state(), status(WriterPhase::Owning, 6));
    let present = log.read(EntryNumber(3)).await.unwrap().unwrap();
    assert_eq!((present.epoch, present.body), (Epoch(2), EntryBody::Fence));
    assert_eq!(texts(whole_log(&log).await), ["old", "old", "a", "b", "c"]);
}

/// Writes until an error has `reason`. An earlier error may be that of the deadline alone, if this
/// thread is paused until then.
async fn until_refused(writer: &ShardWriter, reason: &str) {
    soon(async {
        loop {
            let soon_over = Instant::now() + Duration::from_millis(300);
            let error = writer.write(operations(&["refused"]), soon_over).await.unwrap_err();
            assert!(was_not_made(&error), "{error}");
            if error.message().contains(reason) {
                return;
            }
        }
    })
    .await;
}

/// The directory of the store is not mounted any more.
#[tokio::test]
async fn a_store_without_its_marker_takes_no_writes() {
    let store = TestStore::in_memory();
    let marker = Path::from("identity");
    let writer = ShardWriter::start(store.log().with_marker("identity"), Epoch(1), options());
    until_refused(&writer, "has no object identity any more").await;
    assert_eq!(store.log().read(EntryNumber(0)).await.unwrap(), None);
    store.objects.put(&marker, "id".into()).await.unwrap();
    assert!(soon(writer.started()).await);
    assert_eq!(write(&writer, "a").await.unwrap(), EntryNumber(1));
    store.objects.delete(&marker).await.unwrap();
    let error = write(&writer, "b").await.unwrap_err();
    assert!(!was_not_made(&error), "{error}");
    soon(writer.lost()).await;
}

/// A fence in place of a lost entry would make the acknowledged entries after it invalid.
#[tokio::test]
async fn an_owner_writes_nothing_in_place_of_a_lost_entry() {
    let log = TestStore::in_memory().log();
    append(&log, 0, &[fence(1), writes(1, &["a"])]).await;
    let lost = EntryNumber(2);
    append(&log, 3, &vec![writes(1, &["b"]); 6]).await;
    let writer = ShardWriter::start(log.clone(), Epoch(2), options());
    until_refused(&writer, "is missing, and there are later entries").await;
    assert_eq!(log.read(lost).await.unwrap(), None);
    // The entry is restored from a copy of the store.
    append(&log, lost.0, &[writes(1, &["restored"])]).await;
    assert!(soon(writer.started()).await);
    assert_eq!(write(&writer, "c").await.unwrap(), EntryNumber(10));
    assert_eq!(texts(whole_log(&log).await).len(), 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_caller_gets_acknowledged_entries_in_the_order_of_the_log() {
    let log = TestStore::in_memory().log();
    append(&log, 0, &[fence(1), writes(1, &["old"])]).await;
    let (sender, told) = std::sync::mpsc::channel();
    let on_entry = Box::new(move |number, entry| sender.send((number, entry)).unwrap());
    let writer = ShardWriter::start_watched(log.clone(), Epoch(2), options(), on_entry);
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let writer = writer.clone();
            tokio::spawn(async move { write(&writer, "a").await.unwrap() })
        })
        .collect();
    let mut acknowledged = std::collections::BTreeSet::new();
    for task in tasks {
        acknowledged.insert(task.await.unwrap());
    }
    let told: Vec<_> = told.try_iter().collect();
    assert!(told.iter().map(|entry| entry.0).eq(acknowledged), "each once, in order");
    for (number, entry) in told {
        assert_eq!(log.read(number).await.unwrap(), Some(entry));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writes_share_entries() {
    let log = TestStore::in_memory().log();
    let gathering = WriterOptions { gather: GATHER_MAX, ..options() };
    let writer = ShardWriter::start(log.clone(), Epoch(1), gathering);
    let tasks: Vec<_> = (0..200)
        .map(|number| {
            let writer = writer.clone();
            let text = format!("w{number}");
            tokio::spawn(async move { (write(&writer, &text).await.unwrap(), text) })
        })
        .collect();
    let mut acknowledged = Vec::new();
    for task in tasks {
        acknowledged.push(soon(task).await.unwrap());
    }
    let mut applied = whole_log(&log).await;
    let entries: BTreeMap<EntryNumber, usize> =
        applied.iter().fold(BTreeMap::new(), |mut counts, it| {
            *counts.entry(it.0).or_default() += 1;
            counts
        });
    assert!(entries.len() < 50, "{} entries for 200 writes", entries.len());
    applied.sort();
    acknowledged.sort();
    assert_eq!(applied, acknowledged);
}

#[tokio::test]
async fn large_writes_have_entries_of_their_own() {
    let log = TestStore::in_memory().log();
    let small = WriterOptions { batch_bytes_max: 1000, ..options() };
    let writer = ShardWriter::start(log.clone(), Epoch(1), small);
    assert!(soon(writer.started()).await);
    let text = "x".repeat(900);
    let sent: Vec<_> = (0..20)
        .map(|_| {
            let (writer, text) = (writer.clone(), text.clone());
            tokio::spawn(async move { write(&writer, &text).await.unwrap() })
        })
        .collect();
    let mut numbers = Vec::new();
    for task in sent {
        numbers.push(soon(task).await.unwrap().0);
    }
    assert_eq!(numbers, (1..21).collect::<Vec<u64>>());
}

#[tokio::test]
async fn a_newer_owner_ends_the_older() {
    let log = TestStore::in_memory().log();
    let older = owner(&log, 1).await;
    write(&older, "a").await.unwrap();
    let newer = owner(&log, 2).await;
    assert_eq!(older.state().phase, WriterPhase::Owning, "it does not know yet");
    let error = write(&older, "b").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!was_not_made(&error), "{error}");
    soon(older.lost()).await;
    let error = write(&older, "c").await.unwrap_err();
    assert!(was_not_made(&error), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    write(&newer, "d").await.unwrap();
    assert_eq!(texts(whole_log(&log).await), ["a", "d"]);
}

#[tokio::test]
async fn an_older_epoch_never_owns() {
    let log = TestStore::in_memory().log();
    let newer = owner(&log, 5).await;
    for epoch in [4, 0] {
        let older = ShardWriter::start(log.clone(), Epoch(epoch), options());
        assert!(!soon(older.started()).await);
        soon(older.lost()).await;
    }
    write(&newer, "a").await.unwrap();
}

/// A stopped process keeps what it acknowledged, and acknowledges nothing after the fence.
#[tokio::test]
async fn a_stopped_owner_contradicts_no_new_owner() {
    let store = TestStore::in_memory();
    let (log, line) = store.connect(0);
    let older = owner(&log, 1).await;
    for text in ["a", "b", "c"] {
        write(&older, text).await.unwrap();
    }
    line.stop();
    let stopped = [begin(&older, "d").await, begin(&older, "e").await];
    let newer = owner(&store.log(), 2).await;
    assert_eq!(write(&newer, "f").await.unwrap(), EntryNumber(5));
    line.go_on();
    let later = begin(&older, "g").await;
    for task in stopped.into_iter().chain([later]) {
        assert_eq!(soon(task).await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    soon(older.lost()).await;
    write(&newer, "h").await.unwrap();
    assert_eq!(texts(whole_log(&store.log()).await), ["a", "b", "c", "f", "h"]);
}

/// Its entry was created, but the log was cut above it meanwhile.
#[tokio::test]
async fn an_owner_below_the_floor_acknowledges_nothing() {
    let store = TestStore::in_memory();
    let (log, line) = store.connect(0);
    let older = owner(&log, 1).await;
    write(&older, "a").await.unwrap();
    line.stop();
    let stopped = begin(&older, "b").await;
    let newer = owner(&store.log(), 2).await;
    for text in ["c", "d", "e"] {
        write(&newer, text).await.unwrap();
    }
    let floor = LogFloor { entry: EntryNumber(5), epoch: Epoch(2) };
    store.log().raise_floor(floor).await.unwrap();
    assert_eq!(store.log().remove_below(floor.entry).await.unwrap(), 5);
    line.go_on();
    let error = soon(stopped).await.unwrap().unwrap_err();
    assert!(!was_not_made(&error), "{error}");
    soon(older.lost()).await;
    assert!(store.log().read(EntryNumber(2)).await.unwrap().is_some(), "a removed number");
}

/// It slept between its grant and its first read. All entries of the newer owner are removed.
#[tokio::test]
async fn an_older_epoch_never_owns_a_log_without_entries() {
    let store = TestStore::in_memory();
    let log = store.log();
    let newer = owner(&log, 2).await;
    write(&newer, "a").await.unwrap();
    let floor = LogFloor { entry: EntryNumber(2), epoch: Epoch(2) };
    log.raise_floor(floor).await.unwrap();
    assert_eq!(log.remove_below(floor.entry).await.unwrap(), 2);
    let older = ShardWriter::start(log.clone(), Epoch(1), options());
    assert!(!soon(older.started()).await);
    soon(older.lost()).await;
    assert_eq!(log.read(floor.entry).await.unwrap(), None, "the older owner creates no fence");
    write(&newer, "b").await.unwrap();
}

#[tokio::test]
async fn a_create_without_an_answer_is_read() {
    let store = TestStore::in_memory();
    let (log, line) = store.connect(0);
    let writer = owner(&log, 1).await;
    line.set_faults(Faults { answers_lost: 50, refused: 20, late: 0 });
    let mut expected = Vec::new();
    for number in 0..30 {
        let text = format!("w{number}");
        soon(write(&writer, &text)).await.unwrap();
        expected.push(text);
    }
    assert_eq!(texts(whole_log(&store.log()).await), expected);
}

#[tokio::test]
async fn an_unreachable_store_is_answered_at_the_deadline() {
    let store = TestStore::in_memory();
    let (log, line) = store.connect(0);
    let writer = owner(&log, 1).await;
    line.set_faults(Faults { refused: 100, ..Faults::default() });
    let first = begin(&writer, "unknown").await;
    // The first write is on its way once a request has failed.
    soon(async {
        while line.faults_made.load(std::sync::atomic::Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let now = Instant::now();
    let error = writer.write(operations(&["no"]), now).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(was_not_made(&error) && error.message().contains("broke off"), "{error}");
    soon(async {
        while !writer.is_failing() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    line.set_faults(Faults::default());
    assert_eq!(soon(first).await.unwrap().unwrap(), EntryNumber(1));
    write(&writer, "yes").await.unwrap();
    assert!(!writer.is_failing());
    assert_eq!(texts(whole_log(&store.log()).await), ["unknown", "yes"]);
}

#[tokio::test]
async fn a_write_on_its_way_at_the_deadline_is_unknown() {
    let store = TestStore::in_memory();
    let (log, line) = store.connect(0);
    let writer = owner(&log, 1).await;
    line.stop();
    let unknown = soon(async {
        loop {
            let deadline = Instant::now() + Duration::from_millis(500);
            let error = writer.write(operations(&["a"]), deadline).await.unwrap_err();
            // This thread may be paused until the deadline, so that the write is not sent.
            if !was_not_made(&error) {
                return error;
            }
        }
    });
    assert_eq!(unknown.await.kind(), ErrorKind::Unavailable);
    line.go_on();
    assert_eq!(soon(write(&writer, "b")).await.unwrap(), EntryNumber(2));
    assert_eq!(texts(whole_log(&store.log()).await), ["a", "b"]);
}

#[tokio::test]
async fn a_full_queue_refuses_and_frees_itself() {
    let store = TestStore::in_memory();
    let (log, line) = store.connect(0);
    let limits = WriterOptions { waiting_max: 3, waiting_bytes_max: 10_000, ..options() };
    let writer = ShardWriter::start(log, Epoch(1), limits);
    assert!(soon(writer.started()).await);
    line.stop();
    let mut waiting = Vec::new();
    for text in ["a", "b", "c"] {
        waiting.push(begin(&writer, text).await);
    }
    let error = write(&writer, "d").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    assert!(was_not_made(&error) && error.retry_after().is_some(), "{error}");
    line.go_on();
    for task in waiting {
        soon(task).await.unwrap().unwrap();
    }
    let large = "x".repeat(6_000);
    line.stop();
    let first = writer.write(operations(&[&large]), deadline());
    let second = writer.write(operations(&[&large]), deadline());
    let mut first = Box::pin(first);
    // One poll puts it into the queue.
    tokio::select! {
        biased;
        _ = &mut first => panic!("the store is stopped"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(second.await.unwrap_err().kind(), ErrorKind::ResourceExhausted);
    // A dropped write leaves the queue.
    drop(first);
    line.go_on();
    soon(writer.write(operations(&[&large]), deadline())).await.unwrap();
    let written = texts(whole_log(&store.log()).await);
    assert_eq!(written, ["a", "b", "c", &large]);
}

#[tokio::test]
async fn writes_that_no_entry_can_have() {
    let writer = owner(&TestStore::in_memory().log(), 1).await;
    let kind = async |operations: Vec<Bytes>| {
        let error = writer.write(operations, deadline()).await.unwrap_err();
        assert!(was_not_made(&error));
        error.kind()
    };
    assert_eq!(kind(Vec::new()).await, ErrorKind::InvalidArgument);
    assert_eq!(kind(vec![Bytes::from(vec![b' '; 33 << 20])]).await, ErrorKind::TooLarge);
    assert_eq!(kind(vec![Bytes::from_static(b"{}"); 70_000]).await, ErrorKind::TooLarge);
}

#[tokio::test]
async fn an_expired_owner_finishes_entries_in_flight() {
    let store = TestStore::in_memory();
    let (log, line) = store.connect(0);
    let writer = owner(&log, 1).await;
    line.stop();
    let on_way = begin(&writer, "a").await;
    tokio::time::sleep(4 * options().gather).await;
    let waits = begin(&writer, "b").await;
    writer.expire();
    let error = soon(waits).await.unwrap().unwrap_err();
    assert!(was_not_made(&error), "{error}");
    assert!(was_not_made(&write(&writer, "c").await.unwrap_err()));
    line.go_on();
    assert_eq!(soon(on_way).await.unwrap().unwrap(), EntryNumber(1));
    soon(writer.lost()).await;
    assert_eq!(writer.state(), status(WriterPhase::Lost, 2));
    assert_eq!(texts(whole_log(&store.log()).await), ["a"]);
}

#[tokio::test]
async fn an_ownership_can_expire_before_it_begins() {
    let store = TestStore::in_memory();
    let (log, line) = store.connect(0);
    line.stop();
    let writer = ShardWriter::start(log, Epoch(1), options());
    let waits = begin(&writer, "a").await;
    writer.expire();
    soon(writer.lost()).await;
    assert!(was_not_made(&soon(waits).await.unwrap().unwrap_err()));
}

#[tokio::test]
async fn a_dropped_writer_releases_the_store() {
    let store = TestStore::in_memory();
    let connections = Arc::strong_count(&store.objects);
    let (log, line) = store.connect(0);
    let writer = owner(&log, 1).await;
    line.stop();
    let on_way = begin(&writer, "a").await;
    on_way.abort();
    drop((log, writer, on_way));
    line.go_on();
    soon(async {
        while Arc::strong_count(&store.objects) > connections {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// A new owner reads several entries at the same time: writes of the shard wait meanwhile.
#[tokio::test]
async fn a_new_owner_reads_ahead() {
    let store = TestStore::in_memory();
    let entries: Vec<_> = (0..500).map(|_| writes(1, &["a"])).collect();
    append(&store.log(), 0, &entries).await;
    let (log, line) = store.connect(0);
    line.set_faults(Faults { refused: 10, ..Faults::default() });
    let writer = ShardWriter::start(log, Epoch(2), options());
    assert_eq!(soon(write(&writer, "b")).await.unwrap(), EntryNumber(501));
}
