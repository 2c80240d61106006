//! Conditional writes: if several write one id, one of them is made.

use cluster::{EntryNumber, Epoch};
use cluster_log::AppendOutcome::{Appended, Refused};
use cluster_log::{AppendOutcome, LogWrite, ShardLog, ShardWriter, WriterOptions, was_not_made};
use tokio::task::JoinHandle;

use crate::support::{TestStore, deadline, operations, options, soon, whole_log};

async fn owner(log: &ShardLog, epoch: u64, options: WriterOptions) -> ShardWriter {
    let writer = ShardWriter::start(log.clone(), Epoch(epoch), options);
    assert!(soon(writer.started()).await);
    writer
}

/// Returns a write of an id on the condition that no entry after the entry `after` has written the
/// id.
fn unless(id: u8, after: u64, text: &str) -> LogWrite {
    let unless_after = Some(EntryNumber(after));
    LogWrite { operations: operations(&[text]), ids: vec![[id; 16]], unless_after }
}

async fn append(writer: &ShardWriter, write: LogWrite) -> AppendOutcome {
    soon(writer.append(write, deadline())).await.unwrap()
}

/// Starts a write. It is in the queue when this returns.
async fn begin(writer: &ShardWriter, write: LogWrite) -> JoinHandle<base::Result<AppendOutcome>> {
    let writer = writer.clone();
    let task = tokio::spawn(async move { writer.append(write, deadline()).await });
    // The tests' runtime has one thread.
    tokio::task::yield_now().await;
    task
}

async fn texts(log: &ShardLog) -> Vec<String> {
    whole_log(log).await.into_iter().map(|it| it.1).collect()
}

#[tokio::test]
async fn one_of_two_writes_in_an_entry_is_made() {
    let log = TestStore::in_memory().log();
    let writer = owner(&log, 1, options()).await;
    let outcomes = tokio::join!(
        append(&writer, unless(1, 0, "a")),
        append(&writer, unless(1, 0, "b")),
        append(&writer, unless(2, 0, "c")),
    );
    let entry = EntryNumber(1);
    assert_eq!(outcomes, (Appended(entry), Refused(entry), Appended(entry)));
    assert_eq!(texts(&log).await, ["a", "c"]);
}

#[tokio::test]
async fn a_later_lookup_permits_a_write() {
    let log = TestStore::in_memory().log();
    let writer = owner(&log, 1, options()).await;
    assert_eq!(append(&writer, unless(1, 0, "a")).await, Appended(EntryNumber(1)));
    // A refused write has no entry.
    for _ in 0..3 {
        assert_eq!(append(&writer, unless(1, 0, "b")).await, Refused(EntryNumber(1)));
    }
    assert_eq!(append(&writer, unless(1, 1, "c")).await, Appended(EntryNumber(2)));
    let without = LogWrite { unless_after: None, ..unless(3, 0, "d") };
    assert_eq!(append(&writer, without).await, Appended(EntryNumber(3)));
    assert_eq!(append(&writer, unless(3, 2, "e")).await, Refused(EntryNumber(3)));
    assert_eq!(texts(&log).await, ["a", "c", "d"]);
}

#[tokio::test]
async fn a_new_owner_refuses_lookups_before_its_fence() {
    let log = TestStore::in_memory().log();
    let older = owner(&log, 1, options()).await;
    assert_eq!(append(&older, unless(1, 0, "a")).await, Appended(EntryNumber(1)));
    let newer = owner(&log, 2, options()).await;
    assert_eq!(append(&newer, unless(2, 1, "b")).await, Refused(EntryNumber(2)));
    assert_eq!(append(&newer, unless(2, 2, "c")).await, Appended(EntryNumber(3)));
    assert_eq!(texts(&log).await, ["a", "c"]);
}

/// Options with which each write has an entry of its own, and waits for no other.
fn at_once() -> WriterOptions {
    WriterOptions { batch_bytes_max: 1, ..options() }
}

#[tokio::test]
async fn a_refusal_waits_for_its_cause() {
    let store = TestStore::in_memory();
    let (log, line) = store.connect(0);
    let writer = owner(&log, 1, at_once()).await;
    line.stop();
    let first = begin(&writer, unless(1, 0, "a")).await;
    let second = begin(&writer, unless(1, 0, "b")).await;
    tokio::time::sleep(4 * options().gather).await;
    assert!(!first.is_finished() && !second.is_finished());
    line.go_on();
    assert_eq!(soon(first).await.unwrap().unwrap(), Appended(EntryNumber(1)));
    assert_eq!(soon(second).await.unwrap().unwrap(), Refused(EntryNumber(1)));
    assert_eq!(texts(&store.log()).await, ["a"]);
}

#[tokio::test]
async fn a_refused_write_of_a_lost_owner_was_not_made() {
    let store = TestStore::in_memory();
    let (log, line) = store.connect(0);
    let older = owner(&log, 1, at_once()).await;
    line.stop();
    let first = begin(&older, unless(1, 0, "a")).await;
    let second = begin(&older, unless(1, 0, "b")).await;
    tokio::time::sleep(4 * options().gather).await;
    let newer = owner(&store.log(), 2, options()).await;
    line.go_on();
    let unknown = soon(first).await.unwrap().unwrap_err();
    assert!(!was_not_made(&unknown), "{unknown}");
    let refused = soon(second).await.unwrap().unwrap_err();
    assert!(was_not_made(&refused), "{refused}");
    assert_eq!(append(&newer, unless(1, 1, "c")).await, Appended(EntryNumber(2)));
    assert_eq!(texts(&store.log()).await, ["c"]);
}
