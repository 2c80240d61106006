//! State that the modules of a collection share, and the order of its locks.
//!
//! Order of locks, outermost first: `flushing` or `merging`, `publisher`, `writer`, `live`, the
//! table of ids of a memtable. A thread that holds `flushing` or `merging` never waits for the
//! other one. Queries take only `live`, to copy one pointer, and such a table, to find a point by
//! its id.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::{Error, Result};
use os::Pacer;
use parking_lot::{Condvar, Mutex};
use storage::Medium;
use storage::log::Log;
use storage::manifest::Manifest;

use super::disk::DiskGuard;
use super::filters::FilterCache;
use super::manifest::ManifestContent;
use super::names::CollectionFile;
use super::options::CollectionOptions;
use super::progress::LogProgress;
use super::scan;
use super::stall::{Urgency, WriteStall};
use super::state::{CollectionState, LiveState};
use crate::budget::{BudgetReservation, MemoryBudget};
use crate::deletes::Deletes;
use crate::rerank::{Records, SharedCaches};
use crate::segment::{CodesOptions, Quarantined, Segment};

/// Maximum quarantined items kept by name. Further ones are only counted.
const QUARANTINED_MAX: usize = 256;

/// Points of one shape on one medium. Shared by threads.
///
/// # Example: the most similar of two points
/// ```
/// use std::sync::Arc;
///
/// use memory::{PoolConfig, SlotPool};
/// use millpond_search::Metric;
/// use millpond_search::budget::MemoryBudget;
/// use millpond_search::collection::{Collection, CollectionOptions, CollectionQuery, Resources};
/// use millpond_search::ingest::PointRef;
/// use millpond_search::rerank::{SearchLimits, SharedCaches};
/// use os::Rate;
/// use storage::DramMedium;
///
/// let fault_rate = Rate::unlimited();
/// let pool = SlotPool::new(PoolConfig { bytes_max: 64 << 20, huge_pages: false, fault_rate })?;
/// let medium = Arc::new(DramMedium::new(pool, None)?);
/// let resources = Resources::new(MemoryBudget::new(32 << 20), 64 << 10, Rate::unlimited())?;
/// let caches = Arc::new(SharedCaches::new(0, 512));
/// let options = CollectionOptions::new(2, Metric::Cosine);
/// let collection = Collection::open(medium, options, &resources, caches)?;
/// collection.open_segments();
/// for (id, embedding) in [(1, [1.0, 0.0]), (2, [0.0, 1.0])] {
///     collection.upsert(PointRef { id, embedding: &embedding, record: b"", payload: b"" })?;
/// }
///
/// let mut thread = collection.thread(SearchLimits::default())?;
/// let found = collection.nearest(&mut thread, &CollectionQuery::nearest(&[0.1, 0.9], 1))?;
/// assert_eq!(found.hits[0].id, 2);
/// # Ok::<(), base::Error>(())
/// ```
pub struct Collection {
    /// Differs from that of every other collection while a clone exists.
    pub(super) identity: Arc<()>,
    pub(super) medium: Arc<dyn Medium>,
    pub(super) options: CollectionOptions,
    /// Bytes at which a memtable is flushed.
    pub(super) memtable_bytes: u64,
    pub(super) budget: Arc<MemoryBudget>,
    /// Place of the codes of segments.
    pub(super) codes: CodesOptions,
    /// Segment whose codes moved to the medium last. A request may still hold them in memory.
    pub(super) moved: Mutex<Weak<Segment>>,
    pub(super) pacer: Arc<Pacer>,
    pub(super) writer: Mutex<CollectionLogs>,
    pub(super) live: Mutex<LiveState>,
    pub(super) publisher: Mutex<Publisher>,
    /// Memory reserved for flushes. Locked during a flush. Several collections may share it.
    pub(super) flushing: Arc<Mutex<BudgetReservation>>,
    /// Segments that cannot be merged because part of them is damaged. Locked during a merge.
    pub(super) merging: Mutex<BTreeSet<u64>>,
    pub(super) filters: FilterCache,
    pub(super) files: CollectionFiles,
    pub(super) events: Arc<EventCounter>,
    /// Writers that wait for room. Several collections may share it.
    pub(super) stall: Arc<WriteStall>,
    /// Time from a full memtable to its segment, measured while writers wait.
    pub(super) flush_time: Mutex<Duration>,
    /// Segments of similar size that wait to be merged.
    pub(super) merge_backlog: AtomicUsize,
    /// Work that makes searches faster.
    pub(super) optimizer: OptimizerState,
    /// True while only the thread of ordinary priority merges.
    pub(super) merging_escalated: AtomicBool,
    pub(super) stop: AtomicBool,
    /// Record caches, which must forget removed files.
    pub(super) caches: Arc<SharedCaches>,
    /// Segments that left the state while requests used them.
    pub(super) retired: Mutex<Vec<RetiredSegment>>,
    pub(super) health: Mutex<CollectionHealth>,
    /// Record of how far the logs are durable. Locked before `writer`, never after it.
    pub(super) progress: Mutex<LogProgress>,
    pub(super) disk: DiskGuard,
}

/// Files of a collection that its published list does not describe.
#[derive(Debug, Default)]
pub(super) struct CollectionFiles {
    /// Number of the next file.
    pub(super) next_number: AtomicU64,
    /// Files that are being written and that no list names yet.
    pub(super) pending: Mutex<BTreeSet<String>>,
    /// True if the state has files that no published list names.
    pub(super) unpublished: AtomicBool,
    /// Files that backups and copies read, and the number of readers of each.
    pub(super) pins: Mutex<BTreeMap<String, usize>>,
}

/// Work that makes searches faster, and the time at which more of it may begin.
#[derive(Debug, Default)]
pub(super) struct OptimizerState {
    /// True while segments are merged. `merging` is also locked while a merge is chosen.
    pub(super) merge_runs: AtomicBool,
    /// When the last points arrived, or `None` before the first check.
    pub(super) quiet: Mutex<Option<QuietSince>>,
    /// Number of the first file that was written after the collection was opened.
    pub(super) first_new_file: u64,
}

/// The newest memtable, as the last check saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuietSince {
    /// When the memtable was created.
    pub(super) begun: Instant,
    pub(super) rows: u32,
    /// When a check first saw it so.
    pub(super) since: Instant,
}

/// Logs that hold unflushed changes, oldest first. The last one is written to.
pub(super) struct CollectionLogs {
    pub(super) logs: Vec<(u64, Arc<Log>)>,
    /// Number of a log that could not be created, reused by the next try, because a full disk must
    /// not fill with empty files.
    pub(super) unused: Option<u64>,
}

/// Manifest, and the version of each file that it names.
pub(super) struct Publisher {
    pub(super) manifest: Manifest,
    pub(super) files: BTreeMap<u64, SegmentFiles>,
    /// Damaged logs that are kept. The newest of them are not removed.
    pub(super) kept_logs: BTreeSet<u64>,
    /// Last list that was published by this process.
    pub(super) listed: Option<ManifestContent>,
}

/// Files that belong to one segment, and their content.
#[derive(Clone, Debug, Default)]
pub(super) struct SegmentFiles {
    pub(super) deletes: Option<u64>,
    pub(super) deletes_written: Option<Arc<Deletes>>,
    pub(super) pending_deletes: Option<u64>,
    pub(super) pending_written: Option<Arc<HashSet<u64>>>,
    /// Files of pending deletes that could not be read.
    pub(super) unread_pending: Vec<u64>,
}

/// Segment that left the state, and the keys of its cached data.
#[derive(Debug)]
pub(super) struct RetiredSegment {
    segment: Weak<Segment>,
    file: u64,
    uuid: [u8; 16],
}

/// Damage and errors for the operator.
#[derive(Clone, Debug, Default)]
pub(super) struct CollectionHealth {
    /// Damage in logs and other files. Open segments remember their own damaged pages.
    pub(super) quarantined: Vec<Quarantined>,
    pub(super) quarantined_count: u64,
    /// Logs that lost acknowledged changes, with the reasons.
    pub(super) damaged_logs: BTreeMap<u64, Vec<String>>,
    /// Damage that was repaired when the collection was opened.
    pub(super) repairs: Vec<String>,
    pub(super) flush_error: Option<Error>,
    pub(super) merge_error: Option<Error>,
    pub(super) flushes: u64,
    pub(super) merges: u64,
    /// Error of the last failed attempt to create a log.
    pub(super) write_error: Option<Error>,
}

impl CollectionHealth {
    /// Returns true if acknowledged changes are lost because a log was damaged.
    pub(super) fn log_damaged(&self) -> bool {
        !self.damaged_logs.is_empty()
    }
}

/// Longest wait of [`wait_for_last_references`]. It is longer than most queries. A request that
/// pauses keeps its state until it ends, and each flush and merge would wait for it.
const LAST_REFERENCE_WAIT_MAX: Duration = Duration::from_millis(200);

/// Waits up to [`LAST_REFERENCE_WAIT_MAX`] for all of `held` until the caller holds the last
/// references. Then the calling background thread frees the memory, which may hold 100,000 rows.
/// Otherwise the query that used the rows last frees it.
pub(super) fn wait_for_last_references<'a, T: 'a>(held: impl IntoIterator<Item = &'a Arc<T>>) {
    let deadline = Instant::now() + LAST_REFERENCE_WAIT_MAX;
    for one in held {
        while Arc::strong_count(one) > 1 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Collection {
    /// Drops segments that left the state. Caches forget segments that no request uses. A later
    /// call does that for the others, because their requests still use and fill these caches.
    pub(super) fn retire(&self, segments: Vec<Arc<Segment>>) {
        wait_for_last_references(&segments);
        let record = |segment: &Arc<Segment>| RetiredSegment {
            segment: Arc::downgrade(segment),
            file: segment.file().id(),
            uuid: segment.uuid(),
        };
        let left: Vec<RetiredSegment> = segments.iter().map(record).collect();
        drop(segments);
        let mut retired = self.retired.lock();
        retired.extend(left);
        retired.retain(|retired| {
            let is_used = retired.segment.strong_count() > 0;
            if !is_used {
                self.caches.forget(retired.file);
                self.filters.forget(retired.uuid);
            }
            is_used
        });
    }

    /// Returns the current state.
    pub(super) fn state(&self) -> Arc<CollectionState> {
        self.live.lock().state.clone()
    }

    /// Returns the state for a read. Work in slices ([`super::in_slice`]) always gets the state of
    /// its first read, so that scores, payloads and embeddings of a response belong together. Other
    /// callers get the current state.
    pub(super) fn read_state(&self) -> Arc<CollectionState> {
        match scan::progress_of_one_state() {
            Some(work) => work.state_of(&self.identity, || self.state()),
            None => self.state(),
        }
    }

    /// Returns a file number that no file has.
    pub(super) fn new_file_number(&self) -> u64 {
        self.files.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Records an item that is not served.
    pub(super) fn quarantine(&self, what: Quarantined) {
        tracing::error!(
            file = what.file,
            page = what.page,
            reason = what.reason,
            "damaged data is not served; GET /collections/NAME/segments lists it"
        );
        let mut health = self.health.lock();
        health.quarantined_count += 1;
        if health.quarantined.len() < QUARANTINED_MAX {
            health.quarantined.push(what);
        }
    }

    /// Removes `file` from the quarantined items, because it no longer exists.
    pub(super) fn unquarantine(&self, file: &str) {
        let mut health = self.health.lock();
        let before = health.quarantined.len();
        health.quarantined.retain(|what| what.file != file);
        health.quarantined_count -= (before - health.quarantined.len()) as u64;
    }

    /// Accounts for `bytes` read or written by a flush. Waits for the rate limit if a deadline is
    /// given and no writer waits. `deadline` is the time at which a flush of low priority ends in
    /// favour of the escalated one.
    ///
    /// # Errors
    /// `Cancelled` if the flush should end.
    pub(super) fn flush_step(&self, bytes: u64, deadline: Option<Instant>) -> Result<()> {
        if deadline.is_some() && !self.stall.has_waiting() {
            self.pacer.wait(bytes);
        }
        if self.may_flush(deadline) {
            Ok(())
        } else {
            Err(Error::cancelled("the collection is being closed, or another thread flushes"))
        }
    }

    /// Returns true if a flush should continue. The collection must be open. The flush must have no
    /// deadline, or be neither late nor overtaken by an escalated one.
    pub(super) fn may_flush(&self, deadline: Option<Instant>) -> bool {
        let leave = |due| self.stall.is_escalated() || Instant::now() >= due;
        !self.stop.load(Ordering::Relaxed) && !deadline.is_some_and(leave)
    }

    /// Accounts for `bytes` read or written by a merge, and limits the rate unless it is escalated.
    ///
    /// # Errors
    /// `Cancelled` if the merge should end.
    pub(super) fn merge_step(&self, bytes: u64, urgency: Urgency) -> Result<()> {
        if urgency == Urgency::Paced {
            self.pacer.wait(bytes);
        }
        if self.may_merge(urgency) {
            Ok(())
        } else {
            Err(Error::cancelled("the collection is being closed, or another thread merges"))
        }
    }

    /// Returns true if a merge of this urgency should continue.
    pub(super) fn may_merge(&self, urgency: Urgency) -> bool {
        let overtaken = urgency == Urgency::Paced && self.merging_escalated.load(Ordering::Relaxed);
        !self.stop.load(Ordering::Relaxed) && !overtaken
    }

    pub(super) fn check_open(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            Err(Error::cancelled("the collection is being closed"))
        } else {
            Ok(())
        }
    }

    /// Keeps a file that no list names yet from removal as a leftover, until the guard is dropped.
    pub(super) fn pending_file(&self, file: CollectionFile) -> PendingFile<'_> {
        let name = file.name();
        self.files.pending.lock().insert(name.clone());
        PendingFile { collection: self, name }
    }
}

/// File that is being written. Protected from removal until this is dropped.
pub(super) struct PendingFile<'a> {
    collection: &'a Collection,
    pub(super) name: String,
}

impl PendingFile<'_> {
    /// Removes the file. A failure only costs space.
    pub(super) fn remove(&self) {
        if let Err(error) = self.collection.medium.remove(&self.name) {
            tracing::debug!(%error, name = self.name, "an unfinished file stays until the next start");
        }
    }
}

impl Drop for PendingFile<'_> {
    fn drop(&mut self) {
        self.collection.files.pending.lock().remove(&self.name);
    }
}

impl Drop for Collection {
    fn drop(&mut self) {
        self.record_progress_now();
        let live = self.live.get_mut();
        live.state.open().for_each(|(_, _, view)| self.caches.forget(view.segment.file().id()));
        self.retired.get_mut().iter().for_each(|retired| self.caches.forget(retired.file));
    }
}

/// Counter of events that threads wait for.
#[derive(Debug, Default)]
pub(super) struct EventCounter {
    count: Mutex<u64>,
    changed: Condvar,
}

impl EventCounter {
    pub(super) fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Counts an event and wakes all waiting threads.
    pub(super) fn notify(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until the count exceeds `seen` or until `deadline`. Returns true if it does.
    pub(super) fn wait_past(&self, seen: u64, deadline: Instant) -> bool {
        let mut count = self.count.lock();
        while *count <= seen {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut count, remaining);
        }
        true
    }
}
