//! Pool of search threads. Each keeps readers and working memory for the collections that it
//! searched last.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};

use super::core::RegistryCore;
use super::named::NamedCollection;
use crate::budget::BudgetReservation;
use crate::collection::SearchThread;
use crate::rerank::{BLOCK_BYTES, SearchLimits};

/// Maximum collections for which a thread keeps readers.
const KEPT_MAX: usize = 4;
/// Maximum threads.
const THREADS_MAX: usize = 1024;
/// Maximum length of the queue.
const QUEUE_MAX: usize = 1 << 20;
/// Time between checks of an idle thread for removed collections.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
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

/// Task for a search thread: gets the collection and the thread's readers for it.
pub type PoolTask = Box<dyn FnOnce(&NamedCollection, &mut SearchThread) + Send>;

struct PoolJob {
    named: Arc<NamedCollection>,
    work: PoolTask,
}

#[derive(Default)]
struct PoolCounts {
    done: AtomicU64,
    refused: AtomicU64,
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
                "1 to {THREADS_MAX} search threads and a queue of 1 to {QUEUE_MAX} can be had, not {threads} and \
                 {queue_max}"
            )));
        }
        let (queue, jobs) = bounded(queue_max);
        let mut pool = SearchPool {
            queue: Some(queue),
            queue_max,
            counts: Arc::default(),
            threads: Vec::new(),
        };
        for number in 0..threads {
            let mut worker = PoolWorker {
                core: core.clone(),
                jobs: jobs.clone(),
                kept: Vec::new(),
                counts: pool.counts.clone(),
            };
            let name = format!("search-{number}");
            let spawned =
                std::thread::Builder::new().name(name.clone()).spawn(move || worker.run());
            pool.threads.push(
                spawned.map_err(|error| Error::exhausted(format!("thread {name}: {error}")))?,
            );
        }
        Ok(pool)
    }

    pub(super) fn submit(&self, named: &Arc<NamedCollection>, work: PoolTask) -> Result<()> {
        let queue =
            self.queue.as_ref().ok_or_else(|| Error::unavailable("the server is stopping"))?;
        match queue.try_send(PoolJob { named: named.clone(), work }) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                Err(Error::exhausted(format!("{} searches wait already", self.queue_max))
                    .with_retry_after(RETRY_AFTER))
            }
            Err(TrySendError::Disconnected(_)) => Err(Error::unavailable("the server is stopping")),
        }
    }

    /// Returns the waiting tasks, their maximum, and the tasks done and refused.
    pub(super) fn stats(&self) -> (usize, usize, u64, u64) {
        let queued = self.queue.as_ref().map_or(0, Sender::len);
        let PoolCounts { done, refused } = &*self.counts;
        (queued, self.queue_max, done.load(Ordering::Relaxed), refused.load(Ordering::Relaxed))
    }
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

/// Readers that a thread keeps for a collection.
struct KeptReaders {
    serial: u64,
    named: Weak<NamedCollection>,
    thread: SearchThread,
    _held: BudgetReservation,
}

struct PoolWorker {
    core: Arc<RegistryCore>,
    jobs: Receiver<PoolJob>,
    /// Least recently used first.
    kept: Vec<KeptReaders>,
    counts: Arc<PoolCounts>,
}

impl PoolWorker {
    fn run(&mut self) {
        loop {
            match self.jobs.recv_timeout(LOOK_AGAIN) {
                Ok(_) if self.core.stopped() => return,
                Ok(job) => self.work(job),
                Err(RecvTimeoutError::Timeout) => {
                    self.kept
                        .retain(|kept| kept.named.upgrade().is_some_and(|named| !named.removed()));
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn work(&mut self, PoolJob { named, work }: PoolJob) {
        let mut kept = match self.take(&named) {
            Ok(kept) => kept,
            Err(error) => {
                // The waiting caller notices that the task was dropped.
                tracing::error!(collection = named.name(), %error, "a search cannot be begun");
                return;
            }
        };
        let done = catch_unwind(AssertUnwindSafe(|| work(&named, &mut kept.thread)));
        self.counts.done.fetch_add(1, Ordering::Relaxed);
        match done {
            Ok(()) if !kept.thread.is_sound() => {
                tracing::warn!(
                    collection = named.name(),
                    "the readers of a search thread have failed; new ones are made"
                );
            }
            Ok(()) if !named.removed() => self.kept.push(kept),
            Ok(()) => {}
            Err(_) => tracing::error!(collection = named.name(), "a search ended in a panic"),
        }
    }

    /// Returns the kept readers of the collection or new ones, for which others make room.
    fn take(&mut self, named: &Arc<NamedCollection>) -> Result<KeptReaders> {
        if let Some(at) = self.kept.iter().position(|kept| kept.serial == named.serial()) {
            return Ok(self.kept.remove(at));
        }
        if self.kept.len() >= KEPT_MAX {
            self.kept.remove(0);
        }
        let vectors = crate::segment::reader_options(named.settings().dims);
        let reads = LIMITS.in_flight * LIMITS.read_bytes_max + BLOCK_BYTES;
        let bytes = reads + vectors.depth * vectors.read_bytes_max;
        let reserve = || self.core.resources.budget().reserve(bytes as u64, "a search thread");
        let held = match reserve() {
            Ok(held) => held,
            Err(_) => {
                self.kept.clear();
                reserve()?
            }
        };
        let thread = named.collection().thread(LIMITS)?;
        Ok(KeptReaders {
            serial: named.serial(),
            named: Arc::downgrade(named),
            thread,
            _held: held,
        })
    }
}
