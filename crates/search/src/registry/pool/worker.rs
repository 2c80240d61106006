//! One search thread, and the readers that it keeps.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::{Error, Result};
use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TryRecvError, select};
use storage::ReaderGroup;

use super::help_board::{HelpBoard, HelpOffer, PoolHelpers};
use super::{LIMITS, PoolCounts, PoolJob, RESERVED_FOR, TaskProgress, readers_bytes};
use crate::budget::BudgetReservation;
use crate::collection::SearchThread;
use crate::registry::NamedCollection;
use crate::registry::core::RegistryCore;

/// Maximum sets of readers that a thread keeps. One set serves all collections on media of one
/// [`ReaderGroup`], if its buffers are long enough for their embeddings.
const KEPT_MAX: usize = 4;
/// Time between checks of a thread for removed collections.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum paused tasks of a thread. Further ones run until they end.
const PAUSED_MAX: usize = 256;
/// Tasks that a thread takes from the queue between two slices of paused tasks.
const TASKS_A_SLICE: u32 = 4;
/// Longest wait of a thread for another one that takes its task. It then tries again to make
/// readers.
const HAND_OVER_WAIT: Duration = Duration::from_secs(1);

/// Readers that a thread keeps, with their working memory.
pub(super) struct KeptReaders {
    /// Serial number of the collection that used them last.
    serial: u64,
    /// Collections that used them, by serial number. The readers may still have files of these
    /// collections open, and are dropped with any of these collections.
    users: HashMap<u64, Weak<NamedCollection>>,
    group: Option<ReaderGroup>,
    /// Maximum bytes of a stored embedding.
    vector_bytes_max: usize,
    /// Bytes of the readers.
    bytes: u64,
    thread: SearchThread,
}

impl KeptReaders {
    /// Returns true if a thread can use them to search the collection.
    fn serve(&self, named: &NamedCollection) -> bool {
        let group = named.collection().reader_group();
        let vectors = crate::segment::reader_options(named.settings().dims);
        self.serial == named.serial()
            || group.is_some()
                && self.group == group
                && self.vector_bytes_max >= vectors.read_bytes_max
    }

    /// Prepares them for a search of the collection.
    fn turn_to(&mut self, named: &Arc<NamedCollection>, board: &Arc<HelpBoard>) {
        let serial = named.serial();
        if self.serial == serial && self.users.contains_key(&serial) {
            return;
        }
        self.serial = serial;
        let user = Arc::downgrade(named);
        self.users.insert(serial, user.clone());
        self.thread.set_helpers(Arc::new(PoolHelpers { named: user, board: board.clone() }));
    }

    /// Returns true if a collection that used them was removed.
    fn is_outdated(&self) -> bool {
        self.users.values().any(|user| user.upgrade().is_none_or(|named| named.removed()))
    }
}

/// Next action of a thread.
enum WorkerEvent {
    Job(PoolJob),
    Offer(HelpOffer),
    Nothing,
    End,
}

/// State of a search thread.
pub(super) struct PoolWorker {
    pub(super) core: Arc<RegistryCore>,
    pub(super) jobs: Receiver<PoolJob>,
    pub(super) offered: Receiver<HelpOffer>,
    pub(super) board: Arc<HelpBoard>,
    /// Least recently used first.
    pub(super) kept: Vec<KeptReaders>,
    /// True if the thread reserved memory at the start. It takes tasks of the others.
    pub(super) is_reserved: bool,
    /// Minimum bytes of `held`.
    pub(super) held_min: u64,
    /// Memory of the kept readers.
    pub(super) held: BudgetReservation,
    /// Tasks for threads with reserved memory.
    pub(super) hand_over: Sender<PoolJob>,
    /// Tasks of other threads that had no memory. Empty if this thread has no reserved memory.
    pub(super) handed_over: Receiver<PoolJob>,
    /// Tasks that need another slice, in turn.
    pub(super) paused: VecDeque<PoolJob>,
    /// Tasks from the queue since the last slice of a paused task.
    pub(super) since_slice: u32,
    /// Time of the last check for removed collections.
    pub(super) checked_at: Instant,
    pub(super) counts: Arc<PoolCounts>,
}

impl PoolWorker {
    /// Works until the pool ends.
    pub(super) fn run(&mut self) {
        loop {
            self.drop_outdated();
            if let Some(job) = self.next_slice() {
                if self.core.stopped() {
                    return;
                }
                self.work_counted(job);
                continue;
            }
            match self.next() {
                WorkerEvent::Job(_) if self.core.stopped() => return,
                WorkerEvent::Job(job) => self.work_counted(job),
                WorkerEvent::Offer(offer) => self.help(offer),
                WorkerEvent::Nothing => {}
                WorkerEvent::End => return,
            }
        }
    }

    /// Drops readers that removed collections used, and closes files that only readers hold. Drops
    /// offers whose work is done, also on a thread that is never idle. At most once in
    /// [`CHECK_INTERVAL`].
    fn drop_outdated(&mut self) {
        if self.checked_at.elapsed() >= CHECK_INTERVAL {
            self.checked_at = Instant::now();
            self.board.drop_done_offers(&self.offered);
            self.kept.retain(|kept| !kept.is_outdated());
            for kept in &mut self.kept {
                if let Err(error) = kept.thread.close_unused_files() {
                    tracing::debug!(%error, "removed files stay open until the next search");
                }
            }
            if let Err(error) = self.hold(0) {
                tracing::error!(%error, "the memory of a search thread cannot be reduced");
            }
        }
    }

    /// Reserves the memory of the kept readers and `bytes` more. Never fails for 0.
    fn hold(&mut self, bytes: u64) -> Result<()> {
        let kept: u64 = self.kept.iter().map(|kept| kept.bytes).sum();
        self.held.resize((kept + bytes).max(self.held_min), RESERVED_FOR)
    }

    /// Waits for a task or, if none waits, for an offer.
    fn next(&self) -> WorkerEvent {
        if let Ok(job) = self.handed_over.try_recv() {
            return WorkerEvent::Job(job);
        }
        match self.jobs.try_recv() {
            Ok(job) => return WorkerEvent::Job(job),
            Err(TryRecvError::Disconnected) => return WorkerEvent::End,
            Err(TryRecvError::Empty) => {}
        }
        select! {
            // This thread holds a sender of such tasks.
            recv(self.handed_over) -> job => job.map_or(WorkerEvent::End, WorkerEvent::Job),
            recv(self.jobs) -> job => job.map_or(WorkerEvent::End, WorkerEvent::Job),
            // The board, which this thread holds, has a sender of offers.
            recv(self.offered) -> offer => offer.map_or(WorkerEvent::End, WorkerEvent::Offer),
            default(CHECK_INTERVAL) => WorkerEvent::Nothing,
        }
    }

    /// Does parts of another thread's query. If that is not possible, the owner does them.
    fn help(&mut self, HelpOffer { named, work, account }: HelpOffer) {
        if !work.is_left() {
            return;
        }
        let Ok(mut kept) = self.take(&named) else { return };
        let mut parts = 0;
        let help = || {
            let collection = named.collection();
            parts = match &account {
                Some(account) => account.measure(|| work.help(collection, &mut kept.thread)),
                None => work.help(collection, &mut kept.thread),
            };
        };
        let done = catch_unwind(AssertUnwindSafe(help));
        self.counts.helped.fetch_add(parts as u64, Ordering::Relaxed);
        match done {
            Ok(()) if kept.thread.is_sound() && !named.removed() => self.kept.push(kept),
            Ok(()) => {}
            Err(_) => tracing::error!(collection = named.name(), "a part of a search panicked"),
        }
    }

    /// Works on a task. The thread is not idle meanwhile, so queries do not wait for its help.
    fn work_counted(&mut self, job: PoolJob) {
        self.board.idle.fetch_sub(1, Ordering::Relaxed);
        self.work(job);
        self.board.idle.fetch_add(1, Ordering::Relaxed);
    }

    /// If there are paused tasks, returns a queued or a paused task. Queued tasks come first, but a
    /// slice of a paused task runs after every [`TASKS_A_SLICE`] of them.
    fn next_slice(&mut self) -> Option<PoolJob> {
        if self.paused.is_empty() {
            return None;
        }
        if self.since_slice < TASKS_A_SLICE
            && let Ok(job) = self.handed_over.try_recv().or_else(|_| self.jobs.try_recv())
        {
            self.since_slice += 1;
            return Some(job);
        }
        self.since_slice = 0;
        self.paused.pop_front()
    }

    /// Works on a task until it is done or pauses, and keeps its readers for later tasks of the
    /// collection. Without memory for readers, passes it to a thread with reserved memory.
    fn work(&mut self, mut job: PoolJob) {
        let mut kept = loop {
            match self.take(&job.named) {
                Ok(kept) => break kept,
                Err(error) => match self.hand_over(job, &error) {
                    Some(left) => job = left,
                    None => return,
                },
            }
        };
        let PoolJob { named, mut work } = job;
        let room = self.paused.len() < PAUSED_MAX;
        let done = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let progress = work(&named, &mut kept.thread);
                if progress == TaskProgress::Done || room {
                    return progress;
                }
            }
        }));
        if let Ok(TaskProgress::Paused) = done {
            self.paused.push_back(PoolJob { named: named.clone(), work });
        } else {
            self.counts.done.fetch_add(1, Ordering::Relaxed);
        }
        match done {
            Ok(_) if !kept.thread.is_sound() => {
                tracing::warn!(
                    collection = named.name(),
                    "the readers of a search thread have failed; new ones are made"
                );
            }
            Ok(_) if !named.removed() => self.kept.push(kept),
            Ok(_) => {}
            Err(_) => tracing::error!(collection = named.name(), "a search ended in a panic"),
        }
    }

    /// Passes a task to a thread with reserved memory, because this one cannot make readers for it.
    /// Returns the task if no thread takes it within [`HAND_OVER_WAIT`].
    fn hand_over(&self, job: PoolJob, error: &Error) -> Option<PoolJob> {
        let job = if self.is_reserved {
            job
        } else {
            match self.hand_over.send_timeout(job, HAND_OVER_WAIT) {
                Ok(()) => return None,
                Err(SendTimeoutError::Timeout(job)) if !self.core.stopped() => return Some(job),
                Err(refused) => refused.into_inner(),
            }
        };
        // The waiting caller notices that the task was dropped.
        tracing::error!(collection = job.named.name(), %error, "a search cannot be begun");
        None
    }

    /// Returns kept readers that can read the collection, or new ones, for which others make room.
    fn take(&mut self, named: &Arc<NamedCollection>) -> Result<KeptReaders> {
        let own = self.kept.iter().position(|kept| kept.serial == named.serial());
        let mut readers = match own.or_else(|| self.kept.iter().position(|kept| kept.serve(named)))
        {
            Some(at) => self.kept.remove(at),
            None => self.create(named)?,
        };
        readers.turn_to(named, &self.board);
        Ok(readers)
    }

    /// Creates readers for a collection. Drops kept readers if there are too many, or if memory is
    /// short.
    fn create(&mut self, named: &Arc<NamedCollection>) -> Result<KeptReaders> {
        if self.kept.len() >= KEPT_MAX {
            self.kept.remove(0);
        }
        let dims = named.settings().dims;
        let bytes = readers_bytes(dims);
        if self.hold(bytes).is_err() {
            self.kept.clear();
            self.hold(bytes)?;
        }
        self.counts.readers.fetch_add(1, Ordering::Relaxed);
        Ok(KeptReaders {
            serial: named.serial(),
            users: HashMap::new(),
            group: named.collection().reader_group(),
            vector_bytes_max: crate::segment::reader_options(dims).read_bytes_max,
            bytes,
            thread: named.collection().thread(LIMITS)?,
        })
    }
}
