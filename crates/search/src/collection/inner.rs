//! What the parts of a collection share, and which locks come before which.
//!
//! Order of locks, outermost first: `flushing` or `merging`, `publisher`, `writer`, `live`. Queries take only `live`, for
//! as long as it takes to copy one pointer.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::{Error, Result};
use memory::Pacer;
use storage::Medium;
use storage::log::Log;
use storage::manifest::Manifest;

use super::disk::DiskGuard;
use super::filters::FilterCache;
use super::names::CollectionFile;
use super::options::CollectionOptions;
use super::progress::LogProgress;
use super::stall::{Urgency, WriteStall};
use super::state::{CollectionState, LiveState};
use crate::budget::{BudgetReservation, MemoryBudget};
use crate::deletes::Deletes;
use crate::rerank::{Records, SharedCaches};
use crate::segment::Quarantined;

/// Things not served that a collection remembers by name; further ones are counted.
const QUARANTINED_MAX: usize = 256;

pub(super) struct CollectionInner {
    pub(super) medium: Arc<dyn Medium>,
    pub(super) options: CollectionOptions,
    pub(super) budget: Arc<MemoryBudget>,
    pub(super) pacer: Arc<Pacer>,
    pub(super) writer: Mutex<LogWriter>,
    pub(super) live: Mutex<LiveState>,
    pub(super) publisher: Mutex<Publisher>,
    /// What is set aside for sealing; held while sealing. Several collections may share it.
    pub(super) flushing: Arc<Mutex<BudgetReservation>>,
    /// Segments that cannot be merged because something of them is damaged; held while merging.
    pub(super) merging: Mutex<BTreeSet<u64>>,
    pub(super) filters: FilterCache,
    /// The next number for a file.
    pub(super) next: AtomicU64,
    /// Files being written, which nothing names yet.
    pub(super) busy: Mutex<BTreeSet<String>>,
    pub(super) events: Arc<EventCounter>,
    /// Whether somebody else's threads seal and merge.
    pub(super) outside: bool,
    /// Writers that wait for room. Several collections may share it.
    pub(super) stall: Arc<WriteStall>,
    /// How long it takes to seal a part that is full, where writers wait for that.
    pub(super) flush_time: Mutex<Duration>,
    /// Whether merging is left to a thread that hurries.
    pub(super) merging_escalated: AtomicBool,
    pub(super) stop: AtomicBool,
    /// Whether the state has files that no published list names.
    pub(super) unpublished: AtomicBool,
    /// The caches, which forget files that are gone.
    pub(super) shared: Arc<SharedCaches>,
    pub(super) health: Mutex<CollectionHealth>,
    /// Where it is recorded how far the logs are durable. Locked before `writer`, by nobody who holds it.
    pub(super) progress: Mutex<LogProgress>,
    pub(super) disk: DiskGuard,
}

/// The logs that hold what is not sealed, oldest first; the last is written to.
pub(super) struct LogWriter {
    pub(super) logs: Vec<(u64, Arc<Log>)>,
    /// The number of a log that could not be made, for the next try: a full disk is not filled with empty files.
    pub(super) unused: Option<u64>,
}

/// The manifest, and which version of which file it names.
pub(super) struct Publisher {
    pub(super) manifest: Manifest,
    pub(super) files: BTreeMap<u64, SegmentFiles>,
    /// Logs that were found damaged; the last ones are not removed.
    pub(super) kept_logs: BTreeSet<u64>,
}

/// The files beside one segment, and what they hold.
#[derive(Clone, Debug, Default)]
pub(super) struct SegmentFiles {
    pub(super) deletes: Option<u64>,
    pub(super) deletes_written: Option<Arc<Deletes>>,
    pub(super) pending_deletes: Option<u64>,
    pub(super) pending_written: Option<Arc<HashSet<u64>>>,
    /// Files of waiting ids that could not be read.
    pub(super) unread_pending: Vec<u64>,
}

/// What an operator should know.
#[derive(Clone, Debug, Default)]
pub(super) struct CollectionHealth {
    /// Parts of logs and other files, not pages of open segments: those remember their own.
    pub(super) quarantined: Vec<Quarantined>,
    pub(super) quarantined_count: u64,
    /// Logs of which acknowledged changes are lost, and why.
    pub(super) damaged_logs: BTreeMap<u64, Vec<String>>,
    /// What was damaged when it was opened, and has been put right.
    pub(super) mended: Vec<String>,
    pub(super) flush_error: Option<Error>,
    pub(super) merge_error: Option<Error>,
    pub(super) flushes: u64,
    pub(super) merges: u64,
    /// Why a log could not be made the last time.
    pub(super) write_error: Option<Error>,
}

impl CollectionHealth {
    /// Returns whether changes that were acknowledged are lost, because a log was damaged.
    pub(super) fn log_damaged(&self) -> bool {
        !self.damaged_logs.is_empty()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long [`outlive`] waits at most.
const OUTLIVE_MAX: Duration = Duration::from_secs(2);

/// Waits until nobody else holds `held`, for a while: so that the caller, in the background, is the one who frees what
/// may be a hundred thousand rows, and not the query that happened to be the last to look at them.
pub(super) fn outlive<T: ?Sized>(held: &Arc<T>) {
    let deadline = Instant::now() + OUTLIVE_MAX;
    while Arc::strong_count(held) > 1 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl CollectionInner {
    /// The collection as it is now.
    pub(super) fn state(&self) -> Arc<CollectionState> {
        lock(&self.live).state.clone()
    }

    /// A number for a new file.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Remembers something that is not served.
    pub(super) fn quarantine(&self, what: Quarantined) {
        tracing::error!(file = what.file, page = what.page, reason = what.reason, "not served");
        let mut health = lock(&self.health);
        health.quarantined_count += 1;
        if health.quarantined.len() < QUARANTINED_MAX {
            health.quarantined.push(what);
        }
    }

    /// Forgets that `file` is not served: it is not there any more.
    pub(super) fn quarantined_no_more(&self, file: &str) {
        let mut health = lock(&self.health);
        let before = health.quarantined.len();
        health.quarantined.retain(|what| what.file != file);
        health.quarantined_count -= (before - health.quarantined.len()) as u64;
    }

    /// For the input and output of sealing: paces it, unless a writer waits for it or there is nobody to leave it to, and ends
    /// it where it is left to others or the collection is closed.
    pub(super) fn flush_step(&self, bytes: u64, left: Option<Instant>) -> Result<()> {
        if left.is_some() && !self.stall.is_awaited() {
            self.pacer.wait(bytes);
        }
        match self.keeps(left) {
            true => Ok(()),
            false => Err(Error::cancelled("the collection is being closed, or another thread seals")),
        }
    }

    /// Whether who seals is to go on: to the end, or until it is `left` to a thread that hurries.
    pub(super) fn keeps(&self, left: Option<Instant>) -> bool {
        let leave = |due| self.stall.is_escalated() || Instant::now() >= due;
        !self.stop.load(Ordering::Relaxed) && !left.is_some_and(leave)
    }

    /// The same for merging.
    pub(super) fn merge_step(&self, bytes: u64, pace: Urgency) -> Result<()> {
        if pace == Urgency::Paced {
            self.pacer.wait(bytes);
        }
        match self.keeps_merging(pace) {
            true => Ok(()),
            false => Err(Error::cancelled("the collection is being closed, or another thread merges")),
        }
    }

    /// Whether who merges is to go on.
    pub(super) fn keeps_merging(&self, pace: Urgency) -> bool {
        let left = pace == Urgency::Paced && self.merging_escalated.load(Ordering::Relaxed);
        !self.stop.load(Ordering::Relaxed) && !left
    }

    pub(super) fn go_on(&self) -> Result<()> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::cancelled("the collection is being closed")),
            false => Ok(()),
        }
    }

    /// Keeps a file that nothing names yet from being taken for a leftover.
    pub(super) fn busy(&self, file: CollectionFile) -> PendingFile<'_> {
        let name = file.name();
        lock(&self.busy).insert(name.clone());
        PendingFile { inner: self, name }
    }
}

/// A file that is being written.
pub(super) struct PendingFile<'a> {
    inner: &'a CollectionInner,
    pub(super) name: String,
}

impl PendingFile<'_> {
    /// Removes what was written of it; costs only space where that fails.
    pub(super) fn remove(&self) {
        if let Err(error) = self.inner.medium.remove(&self.name) {
            tracing::debug!(%error, name = self.name, "a file that came to nothing stays until the next start");
        }
    }
}

impl Drop for PendingFile<'_> {
    fn drop(&mut self) {
        lock(&self.inner.busy).remove(&self.name);
    }
}

impl Drop for CollectionInner {
    /// What searches keep for its files is of no more use.
    fn drop(&mut self) {
        self.record_progress_now();
        let live = self.live.get_mut().unwrap_or_else(PoisonError::into_inner);
        live.state.open().for_each(|(_, _, view)| self.shared.forget(view.segment.file().id()));
    }
}

/// Something changed that somebody may wait for.
#[derive(Debug, Default)]
pub(super) struct EventCounter {
    count: Mutex<u64>,
    changed: Condvar,
}

impl EventCounter {
    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        *lock(&self.count)
    }

    /// Wakes all who wait.
    pub(super) fn notify(&self) {
        *lock(&self.count) += 1;
        self.changed.notify_all();
    }

    /// Waits until there were more than `seen`, or `deadline`; whether there were.
    pub(super) fn wait_past(&self, seen: u64, deadline: Instant) -> bool {
        let mut count = lock(&self.count);
        while *count <= seen {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            count = self.changed.wait_timeout(count, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
