//! Pool of search threads. Each keeps readers and working memory, which collections share.

mod help_board;
mod worker;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, Result};
use coarse::DIMS_MAX;
use crossbeam_channel::{Sender, TrySendError, bounded, never};
use os::CpuAccount;

use self::help_board::{HelpBoard, OFFERS_MAX};
use self::worker::PoolWorker;
use super::core::RegistryCore;
use super::named::NamedCollection;
use crate::budget::{BudgetReservation, MemoryBudget};
use crate::collection::SearchThread;
use crate::rerank::{BLOCK_BYTES, SearchLimits};

/// Maximum threads.
const THREADS_MAX: usize = 1024;
/// Maximum length of the queue.
const QUEUE_MAX: usize = 1 << 20;
/// Retry delay for a refused caller.
const RETRY_AFTER: Duration = Duration::from_secs(1);
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
/// These reservations take at most this share (one eighth) of the free memory. Data needs most of
/// the memory, and files in DRAM may take half of the limit.
const THREADS_SHARE: u64 = 8;
/// Use of the memory of a thread, in errors.
const RESERVED_FOR: &str = "a search thread";

/// Task for a search thread. It gets the collection and the thread's readers for it.
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

/// Queue and threads. The threads end when it is dropped.
pub(super) struct SearchPool {
    queue: Option<Sender<PoolJob>>,
    queue_max: usize,
    counts: Arc<PoolCounts>,
    threads: Vec<JoinHandle<()>>,
}

impl SearchPool {
    /// Starts the search threads. While the memory limit has room, they reserve some for readers.
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

    /// Queues a task that may run in several slices.
    ///
    /// # Errors
    /// `ResourceExhausted` if the queue is full. `Unavailable` if the pool stops.
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
/// too little is free, because the start is not refused then.
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::core::tests::small_core;
    use super::*;
    use crate::registry::CollectionSettings;
    use coarse::Metric;

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
