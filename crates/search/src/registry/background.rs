//! Threads that open, flush and merge, for all collections. Two threads flush and two merge. One of
//! each has low priority, and the other takes over if the first makes too little progress.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use os::background::Priority;

use super::core::RegistryCore;
use super::named::{BackgroundTask, NamedCollection};

/// Time between checks for work without a notification.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum unflushed bytes of a collection that is flushed because memory is short.
const RELIEF_BYTES_MIN: u64 = 256 << 10;
/// The same if many collections have fewer. Their segment takes about a fourth of so few bytes.
const SMALL_RELIEF_BYTES_MIN: u64 = 32 << 10;
/// Many collections have few unflushed bytes if together they take this part of the memory.
const SMALL_RELIEF_SHARE: u64 = 16;

/// Starts the threads that open collections, flush and merge.
pub(super) fn start(core: &Arc<RegistryCore>) -> Result<Vec<JoinHandle<()>>> {
    let opening = core.clone();
    let open = os::thread::spawn("search-open", move || opening.open_all())?;
    let flushing = core.clone();
    let flush = os::background::spawn_pair("search-flush", "flushing", move |priority| {
        let escalated = |named: &NamedCollection| {
            named.collection().record_progress();
            named.collection().flush_if_stalled()
        };
        let paced = |named: &NamedCollection| named.collection().flush_oldest();
        match priority {
            Priority::Background => {
                repeat(&flushing, BackgroundTask::Flush, paced, freeze_if_memory_is_short)
            }
            // Writers wait while a memtable is frozen, so this needs ordinary priority.
            _ => repeat(&flushing, BackgroundTask::Flush, escalated, freeze_quiet),
        }
    })?;
    let merging = core.clone();
    let merge = os::background::spawn_pair("search-merge", "merging", move |priority| {
        let merge = |named: &NamedCollection| merge_one(&merging, named, priority);
        repeat(&merging, BackgroundTask::Merge, merge, |_| false);
    })?;
    Ok(std::iter::once(open).chain(flush).chain(merge).collect())
}

/// Runs `one` on every collection, until the registry stops. If there was nothing to do, runs
/// `otherwise`. Waits for the next event if that had nothing to do either.
fn repeat(
    core: &RegistryCore,
    task: BackgroundTask,
    one: impl Fn(&NamedCollection) -> Result<bool>,
    otherwise: impl Fn(&RegistryCore) -> bool,
) {
    while !core.stopped() {
        let seen = core.resources.events();
        let mut busy = false;
        for named in core.ready() {
            if !core.stopped() && named.may_run(task) {
                let outcome = one(&named);
                named.record_outcome(task, &outcome);
                busy |= has_room_now(core, task, &outcome);
                busy |= outcome.is_ok_and(|did| did);
            }
        }
        if !busy && !otherwise(core) {
            core.resources.wait_past(seen, CHECK_INTERVAL);
        }
    }
}

/// Runs the most useful merge of a collection, or a rewrite that frees memory. Returns false if
/// there is none, or if collections of the start are still being opened. A merge would take the
/// memory that their segments need, and the merged segment could need more than the old ones.
/// Without merges, segments that fitted before the start fit again.
///
/// # Errors
/// As [`Collection::merge`](crate::collection::Collection::merge).
fn merge_one(core: &RegistryCore, named: &NamedCollection, priority: Priority) -> Result<bool> {
    if core.opening() {
        return Ok(false);
    }
    match priority {
        Priority::Background => named.collection().merge(),
        _ => {
            make_room_for_merge(core, named);
            let collection = named.collection();
            Ok(collection.merge_if_behind()? || collection.rewrite_if_full()?)
        }
    }
}

/// Returns true if a flush failed for lack of memory, and codes were moved to the medium for it.
fn has_room_now(core: &RegistryCore, task: BackgroundTask, outcome: &Result<bool>) -> bool {
    let lacks = |error: &Error| error.kind() == ErrorKind::ResourceExhausted;
    task == BackgroundTask::Flush && outcome.as_ref().is_err_and(lacks) && core.move_codes()
}

/// Moves codes to the medium if segments of the collection wait because their merge needs the
/// memory of these codes.
fn make_room_for_merge(core: &RegistryCore, named: &NamedCollection) {
    // This runs for each collection, so it looks at the others only if a merge lacks memory.
    let movable =
        || core.ready().iter().map(|named| named.collection().movable_codes()).sum::<u64>();
    let Some(needed) = named.collection().missing_for_merge(movable) else { return };
    let collections = core.ready();
    // The memory of a merge is free again when it ends, and so is that of moved codes when the
    // requests that use them end. Otherwise all codes would move for one slow request.
    let is_freeing = || {
        let mut open = collections.iter().map(|named| named.collection());
        open.any(|collection| collection.is_merging() || collection.is_freeing_codes())
    };
    let lacks_room = || core.resources.budget().free() < needed && !is_freeing();
    while lacks_room() && !core.stopped() && core.move_codes() {}
}

/// Freezes memtables that are not full if they get no points or are old. Returns true if it did.
fn freeze_quiet(core: &RegistryCore) -> bool {
    let mut froze = false;
    for named in core.ready() {
        if !core.stopped() && named.may_run(BackgroundTask::Flush) {
            let outcome = named.collection().freeze_if_quiet();
            named.record_outcome(BackgroundTask::Flush, &outcome);
            froze |= outcome.is_ok_and(|did| did);
        }
    }
    froze
}

/// Freezes the memtable of the collection with the most unflushed points if memory is short.
/// Otherwise many small collections could fill the memory with points that none of them flushes.
/// Returns true if it froze one.
fn freeze_if_memory_is_short(core: &RegistryCore) -> bool {
    let budget = core.resources.budget();
    // Cached blocks count as free. Otherwise a full cache would cause a flush of every few points.
    if !budget.is_short() {
        return false;
    }
    let collections = core.ready().into_iter().filter(|named| named.may_run(BackgroundTask::Flush));
    let sizes: Vec<(u64, Arc<NamedCollection>)> =
        collections.map(|named| (named.collection().unflushed_bytes(), named)).collect();
    let unflushed: u64 = sizes.iter().map(|(bytes, _)| *bytes).sum();
    let bytes_min = if unflushed >= budget.limit() / SMALL_RELIEF_SHARE {
        SMALL_RELIEF_BYTES_MIN
    } else {
        RELIEF_BYTES_MIN
    };
    let largest = sizes.into_iter().max_by_key(|(bytes, _)| *bytes);
    match largest.filter(|(bytes, _)| *bytes >= bytes_min) {
        Some((_, named)) => {
            let frozen = named.collection().freeze();
            named.record_outcome(BackgroundTask::Flush, &frozen);
            frozen.is_ok_and(|froze| froze)
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use super::*;
    use crate::collection::{Merging, SliceOutcome, in_slice};
    use crate::points::{NewPoint, PointId};
    use crate::registry::{CollectionSettings, RegistryOptions};
    use coarse::Metric;

    const DIMS: usize = 16;
    /// Rows of a segment, enough for codes that can be moved.
    const ROWS: u64 = 4200;
    /// Checks for the end of the opening, one in each [`CHECK_INTERVAL`].
    const CHECKS_MAX: usize = 240;

    fn add_segment(named: &NamedCollection, number: u64) {
        let row = |id: u64| (0..DIMS as u64).map(move |at| ((id * 31 + at * 7) % 97) as f32);
        let ids = number * ROWS..(number + 1) * ROWS;
        let vectors: Vec<Vec<f32>> = ids.clone().map(|id| row(id).collect()).collect();
        let payload = serde_json::Map::new();
        let points: Vec<NewPoint<'_>> = ids
            .zip(&vectors)
            .map(|(id, embedding)| NewPoint {
                id: PointId::Number(id),
                embedding,
                record: &[],
                payload: &payload,
            })
            .collect();
        named.upsert(&points).unwrap();
        named.collection().flush().unwrap();
    }

    #[test]
    fn memory_is_relieved_once_for_each_memtable() {
        let directory = tempfile::tempdir().unwrap();
        let options = RegistryOptions {
            memory_bytes: 64 << 20,
            cache_bytes: 0,
            ..RegistryOptions::new(directory.path())
        };
        // Without its threads, so nothing is flushed.
        let core = RegistryCore::open(options).unwrap();
        let named = core.create("a", CollectionSettings::new(DIMS, Metric::L2)).unwrap();
        assert!(!named.collection().freeze().unwrap(), "it is empty");
        let payload = serde_json::Map::new();
        let embedding = &[1.0; DIMS];
        let point =
            |id| NewPoint { id: PointId::Number(id), embedding, record: &[], payload: &payload };
        named.upsert(&(0..1500).map(point).collect::<Vec<_>>()).unwrap();
        assert!(named.collection().unflushed_bytes() >= RELIEF_BYTES_MIN);
        let budget = core.resources.budget();
        let _rest = budget.reserve(budget.free() - 1000, "other data").unwrap();
        assert!(freeze_if_memory_is_short(&core));
        assert!(!freeze_if_memory_is_short(&core), "a frozen memtable waits already");
    }

    #[test]
    fn few_points_of_many_collections_are_flushed() {
        let directory = tempfile::tempdir().unwrap();
        let options = RegistryOptions {
            memory_bytes: 64 << 20,
            cache_bytes: 0,
            ..RegistryOptions::new(directory.path())
        };
        // Without its threads, so nothing is flushed.
        let core = RegistryCore::open(options).unwrap();
        let payload = serde_json::Map::new();
        let record = vec![7_u8; 50 << 10];
        let embedding = &[1.0; DIMS];
        let add = |number: usize| {
            let settings = CollectionSettings::new(DIMS, Metric::L2);
            let named = core.create(&format!("c{number}"), settings).unwrap();
            let point = |id| NewPoint {
                id: PointId::Number(id),
                embedding,
                record: &record,
                payload: &payload,
            };
            named.upsert(&(0..4).map(point).collect::<Vec<_>>()).unwrap();
            assert!(named.collection().unflushed_bytes() < RELIEF_BYTES_MIN);
        };
        let budget = core.resources.budget();
        let relieved = || {
            let _rest = budget.reserve(budget.free() - 1000, "other data").unwrap();
            freeze_if_memory_is_short(&core)
        };
        add(0);
        assert!(!relieved(), "a flush of few points would not help");
        (1..24).for_each(add);
        assert!(relieved(), "together they fill the memory");
    }

    /// Opens a small registry that merges two segments at once, without its threads.
    fn core_without_threads(directory: &Path) -> Arc<RegistryCore> {
        let options = RegistryOptions {
            memory_bytes: 96 << 20,
            cache_bytes: 0,
            merging: Merging { fan_in: 2, ..Merging::default() },
            ..RegistryOptions::new(directory)
        };
        RegistryCore::open(options).unwrap()
    }

    #[test]
    fn merges_wait_until_all_segments_were_opened() {
        let directory = tempfile::tempdir().unwrap();
        // Nothing is opened yet.
        let core = core_without_threads(directory.path());
        let named = core.create("a", CollectionSettings::new(DIMS, Metric::L2)).unwrap();
        (0..4).for_each(|number| add_segment(&named, number));
        for priority in [Priority::Background, Priority::Escalated] {
            assert!(!merge_one(&core, &named, priority).unwrap());
        }
        assert_eq!(named.collection().status().segments.len(), 4);
        let opening = core.clone();
        let thread = std::thread::spawn(move || opening.open_all());
        let opened = (0..CHECKS_MAX).any(|_| {
            core.pause(CHECK_INTERVAL);
            !core.opening()
        });
        assert!(opened);
        assert!(merge_one(&core, &named, Priority::Background).unwrap());
        assert_eq!(named.collection().count(), 4 * ROWS);
        core.stop();
        thread.join().unwrap();
    }

    #[test]
    fn deletions_free_memory_that_is_full() {
        let directory = tempfile::tempdir().unwrap();
        let core = core_without_threads(directory.path());
        let named = core.create("a", CollectionSettings::new(DIMS, Metric::L2)).unwrap();
        let collection = named.collection();
        add_segment(&named, 0);
        (0..ROWS).filter(|id| id % 4 != 0).for_each(|id| collection.delete(id).unwrap());
        assert!(!collection.rewrite_if_full().unwrap(), "memory is free");
        let budget = core.resources.budget();
        let _others = budget.reserve(budget.free(), "other data").unwrap();
        let used = budget.stats().used;
        assert!(!collection.merge().unwrap(), "no room");
        assert!(collection.rewrite_if_full().unwrap());
        assert!(budget.stats().used < used);
        let segments = collection.status().segments;
        assert_eq!((segments.len(), collection.count()), (1, ROWS / 4));
        assert!(!collection.rewrite_if_full().unwrap(), "once");
    }

    #[test]
    fn codes_make_room_for_merges_that_are_behind() {
        let directory = tempfile::tempdir().unwrap();
        let core = core_without_threads(directory.path());
        let named = core.create("a", CollectionSettings::new(DIMS, Metric::L2)).unwrap();
        let collection = named.collection();
        (0..3).for_each(|number| add_segment(&named, number));
        let budget = core.resources.budget();
        let fill = |free: u64| budget.reserve(budget.free() - free, "other data").unwrap();
        let missing = || {
            let _all = fill(0);
            let mut asked = 0;
            let needed = collection.missing_for_merge(|| {
                asked += 1;
                u64::MAX / 2
            });
            (needed, asked)
        };
        assert_eq!(missing(), (None, 0), "three are not behind, so no collection is asked");
        add_segment(&named, 3);
        let needed = missing().0.unwrap();
        let movable = collection.movable_codes();
        make_room_for_merge(&core, &named);
        assert_eq!(collection.movable_codes(), movable, "memory is free");
        let held = fill(needed - movable / 2);
        assert!(!collection.merge().unwrap(), "no room");
        // A request that is not over keeps the codes of its state in memory.
        let progress = Arc::default();
        let later = Instant::now() + Duration::from_secs(3600);
        let counted = in_slice(later, &progress, || collection.count());
        assert_eq!(counted, SliceOutcome::Done(4 * ROWS));
        for _ in 0..2 {
            make_room_for_merge(&core, &named);
            let segments = collection.status().segments;
            let moved = segments.iter().filter(|segment| segment.codes_on_medium > 0).count();
            assert_eq!(moved, 1, "its memory is not free yet");
        }
        drop(progress);
        make_room_for_merge(&core, &named);
        assert!(collection.movable_codes() < movable);
        assert!(collection.merge().unwrap());
        assert_eq!(collection.status().segments.len(), 3);
        drop(held);
        assert_eq!(collection.count(), 4 * ROWS);
    }
}
