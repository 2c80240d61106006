//! Flushes and merges beside writers: concurrent changes, escalation and write stalls.

use std::sync::Arc;
use std::time::Duration;

use base::ErrorKind;
use search::collection::{Collection, CollectionOptions};
use search::ingest::Op;
use storage::{FaultMedium, FaultPlan, Medium};

use crate::points::{
    MEMTABLE_BYTES, Model, memory_medium, open, options, point, resources, shared, stored,
};

/// Beginning of the names of segments.
const SEGMENT: &str = "segment-";

/// Medium that can run a hook before a segment is written.
fn hooked() -> Arc<FaultMedium> {
    Arc::new(FaultMedium::new(memory_medium(), FaultPlan::default()).unwrap())
}

#[test]
fn changes_during_a_flush_or_merge_survive() {
    let medium = hooked();
    let collection = Arc::new(open(&(medium.clone() as Arc<dyn Medium>), options()));
    let mut model = Model::new();
    for round in 0..3_u64 {
        (0..8).for_each(|id| {
            collection.upsert(point(&stored(round * 10 + id, 1))).unwrap();
            model.insert(round * 10 + id, stored(round * 10 + id, 1));
        });
        // While this round is flushed, one of its points is replaced and one deleted.
        let during = collection.clone();
        medium.before_create(SEGMENT, move || {
            during.upsert(point(&stored(round * 10, 2))).unwrap();
            during.delete(round * 10 + 1).unwrap();
            assert_eq!(during.get(round * 10).unwrap(), Some(stored(round * 10, 2)));
        });
        collection.flush().unwrap();
        model.insert(round * 10, stored(round * 10, 2));
        model.remove(&(round * 10 + 1));
    }
    let during = collection.clone();
    medium.before_create(SEGMENT, move || {
        during.upsert(point(&stored(2, 2))).unwrap();
        during.delete(12).unwrap();
        during.delete(20).unwrap();
    });
    assert!(collection.merge().unwrap());
    model.insert(2, stored(2, 2));
    model.remove(&12);
    model.remove(&20);
    let check = |collection: &Collection| {
        (0..30).for_each(|id| {
            assert_eq!(collection.get(id).unwrap(), model.get(&id).cloned(), "{id}")
        });
        assert_eq!(collection.count(), model.len() as u64);
    };
    check(&collection);
    drop(Arc::into_inner(collection));
    check(&open(&(medium as Arc<dyn Medium>), options()));
}

#[test]
fn write_stall_escalates_the_flush() {
    let resources = resources(64 << 20, MEMTABLE_BYTES);
    let opened = |medium: &Arc<dyn Medium>| {
        let collection = Collection::open(medium.clone(), options(), &resources, shared()).unwrap();
        collection.open_segments();
        Arc::new(collection)
    };
    let slow = hooked();
    let sealed = opened(&(slow.clone() as Arc<dyn Medium>));
    let written = opened(&memory_medium());
    (0..8).for_each(|id| sealed.upsert(point(&stored(id, 1))).unwrap());
    sealed.freeze().unwrap();
    assert!(!sealed.flush_if_stalled().unwrap(), "no write waits");
    // The flush of one collection is blocked until a writer of the other one has waited for long.
    let (blocked, blocks) = std::sync::mpsc::channel::<()>();
    let (begun, begins) = std::sync::mpsc::channel();
    slow.before_create(SEGMENT, move || {
        begun.send(()).unwrap();
        blocks.recv().unwrap();
    });
    let gentle = {
        let sealed = sealed.clone();
        std::thread::spawn(move || sealed.flush_oldest().unwrap())
    };
    begins.recv().unwrap();
    let writer = {
        let written = written.clone();
        std::thread::spawn(move || {
            (0..600).for_each(|id| written.upsert(point(&stored(id, 1))).unwrap())
        })
    };
    while !resources.stall_stats().escalated {
        assert!(!writer.is_finished(), "no write had to wait");
        std::thread::sleep(Duration::from_millis(1));
    }
    blocked.send(()).unwrap();
    assert!(!gentle.join().unwrap(), "the paced flush ends without a result");
    assert_eq!((sealed.status().flushes, sealed.count()), (0, 8));
    // The writer still waits: no thread has flushed its collection.
    assert!(sealed.flush_if_stalled().unwrap(), "the writer waits for any collection");
    assert_eq!((sealed.status().flushes, sealed.count()), (1, 8));
    while !writer.is_finished() {
        written.flush_if_stalled().unwrap();
    }
    writer.join().unwrap();
    assert_eq!(written.count(), 600);
}

#[test]
fn try_apply_never_waits_or_escalates() {
    let resources = resources(64 << 20, MEMTABLE_BYTES);
    // No thread flushes.
    let collection = Collection::open(memory_medium(), options(), &resources, shared()).unwrap();
    collection.open_segments();
    let put = |id| {
        let stored = stored(id, 1);
        collection.try_apply(&[Op::Upsert(point(&stored))]).and_then(|applied| applied.commit())
    };
    let fill = |from: u64| {
        let refused = (from..from + 10_000).find_map(|id| put(id).err().map(|error| (id, error)));
        let (written, refusal) = refused.expect("memory is full at some time");
        assert_eq!(refusal.kind(), ErrorKind::ResourceExhausted);
        assert!(refusal.retry_after().is_some(), "{refusal}");
        written
    };
    let written = fill(0);
    // Longer than the wait after which flushes escalate.
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(put(written).unwrap_err().kind(), ErrorKind::ResourceExhausted);
    assert_eq!(resources.stall_stats(), search::collection::StallStats::default());
    assert!(!collection.flush_if_stalled().unwrap());
    assert!(collection.flush_oldest().unwrap());
    let more = fill(written);
    assert!(more > written, "there is room again");
    assert_eq!(collection.count(), more);
}

/// Flushes the frozen memtable, at full speed if flushes are escalated.
fn flush_frozen(collection: &Collection) {
    // Flushes may escalate, or no longer be escalated, between the two calls.
    const TRIES_MAX: usize = 10;
    let flush = || collection.flush_oldest().unwrap() || collection.flush_if_stalled().unwrap();
    assert!((0..TRIES_MAX).any(|_| flush()), "no memtable was flushed");
}

#[test]
fn fast_writers_are_slowed_down() {
    const FLUSH_TIME: Duration = Duration::from_secs(2);
    const TRIES_MAX: usize = 20;
    let resources = resources(64 << 20, MEMTABLE_BYTES);
    let collection = Collection::open(memory_medium(), options(), &resources, shared()).unwrap();
    collection.open_segments();
    let collection = Arc::new(collection);
    let fill = |from: u64| {
        let put = |id| {
            collection
                .try_apply(&[Op::Upsert(point(&stored(id, 1)))])
                .and_then(|applied| applied.commit())
        };
        (from..).find(|&id| put(id).is_err()).unwrap()
    };
    collection.upsert(point(&stored(0, 1))).unwrap();
    collection.throttle();
    assert_eq!(resources.stall_stats().slowed, 0, "no part waits to be sealed");
    let written = fill(1);
    // The flush takes long, and a writer waits for it.
    let waiting = collection.clone();
    let writer = std::thread::spawn(move || waiting.upsert(point(&stored(written, 1))).unwrap());
    while resources.stall_stats().waiting == 0 {
        assert!(!writer.is_finished(), "the write did not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(FLUSH_TIME);
    assert!(collection.flush_if_stalled().unwrap());
    writer.join().unwrap();
    // A memtable that is nearly full beside a frozen one must not fill in the time of that flush.
    // If this thread was paused for so long, the write is late enough, and the next one counts.
    let mut next = written + 1;
    for _ in 0..TRIES_MAX {
        next = fill(next);
        let paced = collection.clone();
        let slowed = std::thread::spawn(move || paced.throttle());
        while resources.stall_stats().slowed == 0 && !slowed.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let stats = resources.stall_stats();
        flush_frozen(&collection);
        slowed.join().unwrap();
        if stats.slowed > 0 {
            assert_eq!((stats.slowed, stats.escalated), (1, true));
            break;
        }
    }
    let before = resources.stall_stats().slowed;
    collection.throttle();
    assert_eq!(
        (before, resources.stall_stats().slowed),
        (1, 1),
        "nothing waits to be sealed any more"
    );
    assert_eq!(resources.stall_stats().waited, 1);
}

#[test]
fn a_late_flush_is_escalated() {
    let collection =
        open(&memory_medium(), CollectionOptions { flush_wait: Duration::ZERO, ..options() });
    (0..8).for_each(|id| collection.upsert(point(&stored(id, 1))).unwrap());
    assert!(!collection.flush_if_stalled().unwrap(), "nothing is full");
    collection.freeze().unwrap();
    assert!(
        !collection.flush_oldest().unwrap(),
        "it has waited for too long to give way to others"
    );
    assert!(collection.flush_if_stalled().unwrap());
    assert_eq!((collection.status().flushes, collection.count()), (1, 8));
}

/// Runs an escalated merge beside a paced one that is running. The paced one waits for `wait` after
/// the thread of the escalated one was started. Returns false if that thread began later.
fn takes_over(wait: Duration) -> bool {
    let medium = hooked();
    let collection = Arc::new(open(&(medium.clone() as Arc<dyn Medium>), options()));
    let grow = |rounds: std::ops::Range<u64>| {
        for round in rounds {
            (0..8).for_each(|id| collection.upsert(point(&stored(round * 8 + id, 1))).unwrap());
            collection.flush().unwrap();
        }
    };
    grow(0..5);
    assert!(!collection.merge_if_behind().unwrap(), "5 are less than twice 3");
    grow(5..6);
    let (send, hurries) = std::sync::mpsc::channel();
    let during = collection.clone();
    medium.before_create(SEGMENT, move || {
        send.send(std::thread::spawn(move || during.merge_if_behind())).unwrap();
        // It announces itself and waits until this thread ends. No counter shows that.
        std::thread::sleep(wait);
    });
    let paced = collection.merge().unwrap();
    let escalated = hurries.recv().unwrap().join().unwrap().unwrap();
    assert_ne!(paced, escalated, "one of them merges");
    let status = collection.status();
    assert_eq!((status.merges, status.segments.len(), collection.count()), (1, 1, 48));
    assert!(status.merge_error.is_none(), "{status:?}");
    assert!(!collection.merge_if_behind().unwrap() && !collection.merge().unwrap());
    escalated
}

#[test]
fn piled_up_segments_escalate_the_merge() {
    // A thread of a busy machine may begin seconds late.
    let took_over = (0..6).any(|step| takes_over(Duration::from_millis(100 << step)));
    assert!(took_over, "the paced merge never ends without a result");
}
