//! Pool of search threads. Each keeps readers and working memory, which collections share.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, Result};
use crossbeam_channel::{
    Receiver, SendTimeoutError, Sender, TryRecvError, TrySendError, bounded, never, select,
};
use os::CpuAccount;
use storage::ReaderGroup;

use super::core::RegistryCore;
use super::named::NamedCollection;
use crate::budget::{BudgetReservation, MemoryBudget};
use crate::coarse::DIMS_MAX;
use crate::collection::{HelpWork, Helpers, SearchThread};
use crate::rerank::{BLOCK_BYTES, SearchLimits};

/// Maximum sets of readers that a thread keeps. One set serves all collections on media of one
/// [`ReaderGroup`], if its buffers are long enough for their embeddings.
const KEPT_MAX: usize = 4;
/// Maximum threads.
const THREADS_MAX: usize = 1024;
/// Maximum offers of parts that wait for a thread. Beyond it, owners do their parts alone.
const OFFERS_MAX: usize = 1024;
/// Maximum length of the queue.
const QUEUE_MAX: usize = 1 << 20;
/// Time between checks of a thread for removed collections.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Retry delay for a refused caller.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum paused tasks of a thread. Further ones run until they end.
const PAUSED_MAX: usize = 256;
/// Tasks that a thread takes from the queue between two slices of paused tasks.
const TASKS_A_SLICE: u32 = 4;
/// One query at a time: the queue has many.
const LIMITS: SearchLimits = SearchLimits {
    queries: 1,
    query_in_flight: 32,
    in_flight: 32,
    read_bytes_max: 128 << 10,
    joined_bytes_max: 128 << 10,
    gap_bytes_max: 64 << 10,
};

/// Bytes that a thread reserves before collections are opened: the readers for embeddings of any
/// length. Later, data may take all memory. Threads without a reservation then hand their tasks to
/// threads with one.
const THREAD_BYTES: u64 = readers_bytes(DIMS_MAX);
/// Divisor of the free memory for these reservations. Most of it is for data, and half of the limit
/// may be for files in DRAM.
const THREADS_SHARE: u64 = 8;
/// Longest wait of a thread for another one that takes its task. It then tries again to make
/// readers.
const HAND_OVER_WAIT: Duration = Duration::from_secs(1);
/// Use of the memory of a thread, in errors.
const RESERVED_FOR: &str = "a search thread";

/// Task for a search thread: gets the collection and the thread's readers for it.
pub type PoolTask = Box<dyn FnOnce(&NamedCollection, &mut SearchThread) + Send>;

/// Task for a search thread in slices. While it returns [`TaskProgress::Paused`] it is called
/// again, after other tasks.
pub type SlicedTask = Box<dyn FnMut(&NamedCollection, &mut SearchThread) -> TaskProgress + Send>;

/// Progress of a [`SlicedTask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskProgress {
    /// The task has ended.
    Done,
    /// The task needs another slice.
    Paused,
}

struct PoolJob {
    named: Arc<NamedCollection>,
    work: SlicedTask,
}

#[derive(Default)]
struct PoolCounts {
    done: AtomicU64,
    refused: AtomicU64,
    helped: AtomicU64,
    readers: AtomicU64,
}

/// Figures of a pool.
pub(super) struct SearchPoolStats {
    /// Waiting tasks.
    pub(super) queued: usize,
    /// Maximum number of waiting tasks.
    pub(super) queue_max: usize,
    /// Tasks done.
    pub(super) done: u64,
    /// Tasks refused.
    pub(super) refused: u64,
    /// Parts of tasks done by a second thread.
    pub(super) helped: u64,
    /// Readers made.
    pub(super) readers: u64,
}

/// Offers of parts, for threads that are not busy with a task.
struct HelpBoard {
    offers: Sender<HelpOffer>,
    /// Waiting tasks.
    jobs: Receiver<PoolJob>,
    /// Threads that do not run a task.
    idle: AtomicUsize,
}

impl HelpBoard {
    /// Drops the offers in `offered` whose work is done. They keep the segments of their queries
    /// open, and threads that always find a task take no offers.
    fn drop_done_offers(&self, offered: &Receiver<HelpOffer>) {
        for _ in 0..offered.len() {
            let Ok(offer) = offered.try_recv() else { return };
            // If the board is full, the owner does the parts.
            if offer.work.is_left() && self.offers.try_send(offer).is_err() {
                return;
            }
        }
    }
}

struct HelpOffer {
    named: Arc<NamedCollection>,
    work: Arc<dyn HelpWork>,
    /// Account of the caller, to which the work of helpers is charged too.
    account: Option<Arc<CpuAccount>>,
}

/// Helpers for queries of one collection.
struct PoolHelpers {
    named: Weak<NamedCollection>,
    board: Arc<HelpBoard>,
}

impl Helpers for PoolHelpers {
    fn idle(&self) -> usize {
        self.board.idle.load(Ordering::Relaxed)
    }

    fn offer(&self, count: usize, work: Arc<dyn HelpWork>) {
        let Some(named) = self.named.upgrade() else { return };
        let account = CpuAccount::current();
        for _ in 0..count {
            let offer =
                HelpOffer { named: named.clone(), work: work.clone(), account: account.clone() };
            // If the board is full, the owner does the parts.
            if self.board.offers.try_send(offer).is_err() {
                return;
            }
        }
    }

    fn queries_wait(&self) -> bool {
        !self.board.jobs.is_empty()
    }
}

/// Queue and threads. The threads end when it is dropped.
pub(super) struct SearchPool {
    queue: Option<Sender<PoolJob>>,
    queue_max: usize,
    counts: Arc<PoolCounts>,
    threads: Vec<JoinHandle<()>>,
}

impl SearchPool {
    pub(super) fn start(
        core: Arc<RegistryCore>,
        threads: usize,
        queue_max: usize,
    ) -> Result<SearchPool> {
        if !(1..=THREADS_MAX).contains(&threads) || !(1..=QUEUE_MAX).contains(&queue_max) {
            return Err(Error::invalid(format!(
                "1 to {THREADS_MAX} search threads and a queue of 1 to {QUEUE_MAX} are possible, not {threads} and \
                 {queue_max}"
            )));
        }
        let mut reservations = reserve_threads(core.resources.budget(), threads)?.into_iter();
        // A thread keeps a task until another one takes it, so no more tasks wait than before.
        let (hand_over, handed_over) = bounded(0);
        let (queue, jobs) = bounded(queue_max);
        let (offers, offered) = bounded(OFFERS_MAX);
        let idle = AtomicUsize::new(threads);
        let board = Arc::new(HelpBoard { offers, jobs: jobs.clone(), idle });
        let mut pool = SearchPool {
            queue: Some(queue),
            queue_max,
            counts: Arc::default(),
            threads: Vec::new(),
        };
        for number in 0..threads {
            let reservation = reservations.next();
            let is_reserved = reservation.is_some();
            let held = match reservation {
                Some(held) => held,
                None => core.resources.budget().reserve(0, RESERVED_FOR)?,
            };
            let mut worker = PoolWorker {
                core: core.clone(),
                jobs: jobs.clone(),
                offered: offered.clone(),
                board: board.clone(),
                kept: Vec::new(),
                is_reserved,
                held_min: held.bytes(),
                held,
                hand_over: hand_over.clone(),
                handed_over: if is_reserved { handed_over.clone() } else { never() },
                paused: VecDeque::new(),
                since_slice: 0,
                checked_at: Instant::now(),
                counts: pool.counts.clone(),
            };
            let thread = os::thread::spawn(format!("search-{number}"), move || worker.run())?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub(super) fn submit(&self, named: &Arc<NamedCollection>, work: PoolTask) -> Result<()> {
        let mut work = Some(work);
        let sliced = move |named: &NamedCollection, thread: &mut SearchThread| {
            if let Some(work) = work.take() {
                work(named, thread);
            }
            TaskProgress::Done
        };
        self.submit_sliced(named, Box::new(sliced))
    }

    pub(super) fn submit_sliced(
        &self,
        named: &Arc<NamedCollection>,
        work: SlicedTask,
    ) -> Result<()> {
        let queue =
            self.queue.as_ref().ok_or_else(|| Error::unavailable("the server is stopping"))?;
        let work = charged(work);
        match queue.try_send(PoolJob { named: named.clone(), work }) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                Err(Error::exhausted(format!(
                    "{} searches are waiting; send fewer at the same time",
                    self.queue_max
                ))
                .with_retry_after(RETRY_AFTER))
            }
            Err(TrySendError::Disconnected(_)) => Err(Error::unavailable("the server is stopping")),
        }
    }

    /// Returns the figures.
    pub(super) fn stats(&self) -> SearchPoolStats {
        SearchPoolStats {
            queued: self.queue.as_ref().map_or(0, Sender::len),
            queue_max: self.queue_max,
            done: self.counts.done.load(Ordering::Relaxed),
            refused: self.counts.refused.load(Ordering::Relaxed),
            helped: self.counts.helped.load(Ordering::Relaxed),
            readers: self.counts.readers.load(Ordering::Relaxed),
        }
    }
}

/// Returns the bytes of the readers for embeddings of `dims` values.
const fn readers_bytes(dims: usize) -> u64 {
    let vectors = crate::segment::reader_options(dims);
    let records = LIMITS.in_flight * LIMITS.read_bytes_max + BLOCK_BYTES;
    (records + vectors.depth * vectors.read_bytes_max) as u64
}

/// Reserves memory for up to `wanted` threads, and at least for one. Its reservation is empty if
/// too little is free: the start is not refused then.
///
/// # Errors
/// As [`MemoryBudget::reserve`].
fn reserve_threads(budget: &Arc<MemoryBudget>, wanted: usize) -> Result<Vec<BudgetReservation>> {
    let room = budget.free() / THREADS_SHARE / THREAD_BYTES;
    let threads = usize::try_from(room).map_or(wanted, |room| room.clamp(1, wanted));
    let has_room = budget.free() >= THREAD_BYTES;
    if !has_room {
        tracing::warn!("searches may find no memory; raise --search-memory");
    }
    let bytes = if has_room { THREAD_BYTES } else { 0 };
    (0..threads).map(|_| budget.reserve(bytes, RESERVED_FOR)).collect()
}

/// Returns work whose processor time is charged to the caller that submits it.
fn charged(mut work: SlicedTask) -> SlicedTask {
    let Some(account) = CpuAccount::current() else { return work };
    Box::new(move |named, thread| account.measure(|| work(named, thread)))
}

impl Drop for SearchPool {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a search thread ended in a panic");
            }
        }
    }
}

/// Readers that a thread keeps, with their working memory.
struct KeptReaders {
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

struct PoolWorker {
    core: Arc<RegistryCore>,
    jobs: Receiver<PoolJob>,
    offered: Receiver<HelpOffer>,
    board: Arc<HelpBoard>,
    /// Least recently used first.
    kept: Vec<KeptReaders>,
    /// True if the thread reserved memory at the start. It takes tasks of the others.
    is_reserved: bool,
    /// Minimum bytes of `held`.
    held_min: u64,
    /// Memory of the kept readers.
    held: BudgetReservation,
    /// Tasks for threads with reserved memory.
    hand_over: Sender<PoolJob>,
    /// Tasks of the other threads, if this thread has reserved memory.
    handed_over: Receiver<PoolJob>,
    /// Tasks that need another slice, in turn.
    paused: VecDeque<PoolJob>,
    /// Tasks from the queue since the last slice of a paused task.
    since_slice: u32,
    /// Time of the last check for removed collections.
    checked_at: Instant,
    counts: Arc<PoolCounts>,
}

impl PoolWorker {
    fn run(&mut self) {
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

    /// Drops readers that removed collections used, closes files that only readers hold, and drops
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

    /// Returns a paused task or a queued one, if there are paused tasks: queued tasks first, but a
    /// slice after every [`TASKS_A_SLICE`] of them.
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::core::tests::small_core;
    use super::*;
    use crate::coarse::Metric;
    use crate::registry::CollectionSettings;

    #[test]
    fn data_leaves_memory_for_searches() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let pool = SearchPool::start(core.clone(), 1, 8).unwrap();
        let named = core.create("a", CollectionSettings::new(DIMS_MAX, Metric::L2)).unwrap();
        let budget = core.resources.budget();
        let _data = budget.reserve(budget.free(), "data").unwrap();
        let (sender, answer) = mpsc::channel();
        pool.submit(&named, Box::new(move |_, _| sender.send("searched").unwrap())).unwrap();
        assert_eq!(answer.recv(), Ok("searched"), "the task was dropped");
        assert_eq!((pool.stats().readers, budget.free()), (1, 0));
    }

    /// Work with a part that is left, or not.
    struct FixedWork {
        is_left: bool,
    }

    impl HelpWork for FixedWork {
        fn is_left(&self) -> bool {
            self.is_left
        }

        fn help(&self, _: &crate::collection::Collection, _: &mut SearchThread) -> usize {
            0
        }
    }

    #[test]
    fn offers_of_ended_queries_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let named = core.create("a", CollectionSettings::new(4, Metric::L2)).unwrap();
        let (offers, offered) = bounded(OFFERS_MAX);
        let (_jobs, waiting) = bounded(1);
        let board = HelpBoard { offers, jobs: waiting, idle: AtomicUsize::new(0) };
        let ended = Arc::new(FixedWork { is_left: false });
        let running = Arc::new(FixedWork { is_left: true });
        for work in [&ended, &running, &ended, &running] {
            let offer = HelpOffer { named: named.clone(), work: work.clone(), account: None };
            assert!(board.offers.try_send(offer).is_ok());
        }
        board.drop_done_offers(&offered);
        assert_eq!((Arc::strong_count(&ended), Arc::strong_count(&running)), (1, 3));
        assert_eq!(offered.len(), 2);
    }

    #[test]
    fn threads_without_memory_hand_their_tasks_over() {
        let directory = tempfile::tempdir().unwrap();
        let core = small_core(directory.path());
        let before = core.resources.budget().free();
        let pool = SearchPool::start(core.clone(), 4, 8).unwrap();
        let budget = core.resources.budget();
        assert_eq!(before - budget.free(), THREAD_BYTES, "one thread has reserved memory");
        let named = core.create("a", CollectionSettings::new(4, Metric::L2)).unwrap();
        let _data = budget.reserve(budget.free(), "data").unwrap();
        let (sender, answers) = mpsc::channel();
        let (started, has_started) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let busy = sender.clone();
        let blocking = move |_: &NamedCollection, _: &mut SearchThread| {
            started.send(()).unwrap();
            released.recv().unwrap();
            busy.send("blocking").unwrap();
        };
        pool.submit(&named, Box::new(blocking)).unwrap();
        has_started.recv().unwrap();
        let refused = budget.stats().refused;
        for _ in 0..6 {
            let sender = sender.clone();
            pool.submit(&named, Box::new(move |_, _| sender.send("task").unwrap())).unwrap();
        }
        drop(sender);
        // Another thread has a task and no memory for it.
        let deadline = Instant::now() + Duration::from_secs(30);
        while budget.stats().refused == refused {
            assert!(Instant::now() < deadline, "no thread without memory took a task");
            std::thread::sleep(Duration::from_millis(1));
        }
        release.send(()).unwrap();
        let answers: Vec<&str> = answers.iter().collect();
        assert_eq!(answers, [&["blocking"][..], &["task"; 6][..]].concat());
        assert_eq!(pool.stats().readers, 1);
    }

    #[test]
    fn reservations_of_threads_leave_most_of_the_memory() {
        let budget = MemoryBudget::new(1 << 30);
        let reservations = reserve_threads(&budget, 64).unwrap();
        assert!(reservations.len() > 1);
        assert!(reservations.iter().all(|held| held.bytes() == THREAD_BYTES));
        assert!(budget.stats().used <= (1 << 30) / THREADS_SHARE);
        assert_eq!(reserve_threads(&budget, 2).unwrap().len(), 2);
        // A start with little memory is not refused.
        for free in [THREAD_BYTES + 1, THREAD_BYTES - 1, 0] {
            let budget = MemoryBudget::new(free);
            let held: Vec<u64> =
                reserve_threads(&budget, 4).unwrap().iter().map(BudgetReservation::bytes).collect();
            assert_eq!(held, [if free < THREAD_BYTES { 0 } else { THREAD_BYTES }]);
        }
    }
}
