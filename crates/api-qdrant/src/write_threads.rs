//! Threads that make changes and wait for the log, started with the first write.
//!
//! A write that selects its points by a filter may have to read all payloads of a collection. A
//! deletion of images waits for the store of originals, which may not answer. At most
//! [`SLOW_THREADS`] threads run each of these two kinds of slow writes, so the other kind and other
//! writes do not wait for them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Error, Result};
use bytes::Bytes;
use crossbeam_channel::{Sender, TrySendError, bounded};
use parking_lot::Mutex;

use crate::json;

/// Number of threads. Writes that wait for the log at the same time share a flush, so a few more
/// threads than the disk has queues help. The threads also parse JSON. Two threads are left if
/// slow writes of both kinds run.
const WRITE_THREADS: usize = 2 + 2 * SLOW_THREADS;
/// Maximum threads that run slow writes of one kind at the same time.
pub(crate) const SLOW_THREADS: usize = 2;
/// Maximum writes that wait for a thread. Each holds its request's body.
pub(crate) const WRITES_MAX: usize = 64;
/// Maximum slow writes of one kind that wait for one of [`SLOW_THREADS`]. Each holds its request's
/// body.
pub(crate) const SLOW_WRITES_MAX: usize = 64;
/// Retry advice for a refused write.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Write of one request.
pub(crate) struct WriteJob {
    /// Body that shows if the write selects its points by a filter; `None` if it never does.
    pub(crate) selection: Option<Bytes>,
    /// True if it may delete images with their originals.
    pub(crate) deletes_images: bool,
    /// Makes the change, or answers with the error of a refusal.
    pub(crate) run: Box<dyn FnOnce(Result<()>) + Send>,
}

/// The queue of writes. Its threads end when it is dropped.
#[derive(Default)]
pub(crate) struct WriteThreads(OnceLock<Sender<WriteJob>>);

/// Slow writes of all threads, by their kind.
struct SlowKinds {
    by_filter: SlowWrites,
    image_deletions: SlowWrites,
}

/// Slow writes of one kind, of all threads.
struct SlowWrites {
    /// Reason and remedy of a refusal, after the number of waiting writes.
    refusal: &'static str,
    queue: Mutex<SlowQueue>,
}

#[derive(Default)]
struct SlowQueue {
    /// Number of threads that run these writes.
    threads: usize,
    waiting: VecDeque<WriteJob>,
}

impl WriteThreads {
    /// Runs `job` on one of the threads. If too many slow writes of its kind wait, calls it with
    /// `ResourceExhausted`.
    ///
    /// # Errors
    /// `ResourceExhausted` if [`WRITES_MAX`] writes wait, or if a thread cannot be started.
    pub(crate) fn submit(&self, job: WriteJob) -> Result<()> {
        let queue = match self.0.get() {
            Some(queue) => queue,
            None => {
                let queue = start()?;
                // If another thread was first, the threads started here end at once.
                self.0.get_or_init(|| queue)
            }
        };
        queue.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => {
                Error::exhausted(format!("{WRITES_MAX} writes are waiting; write more slowly"))
                    .with_retry_after(RETRY_AFTER)
            }
            TrySendError::Disconnected(_) => Error::internal("the threads that write have ended"),
        })
    }
}

impl WriteJob {
    fn finish(self, admitted: Result<()>) {
        // A panic drops the job's reply sender, which its caller reports. The thread continues.
        if catch_unwind(AssertUnwindSafe(|| (self.run)(admitted))).is_err() {
            tracing::error!("a write ended in a panic");
        }
    }
}

impl SlowKinds {
    fn new() -> SlowKinds {
        SlowKinds {
            by_filter: SlowWrites::new(
                "writes by filter are waiting; send fewer at the same time, or name points by id",
            ),
            image_deletions: SlowWrites::new(
                "deletions of images are waiting; send fewer at the same time",
            ),
        }
    }

    /// Returns the slow writes of the kind of `job`; `None` if it is not slow.
    fn of(&self, job: &WriteJob) -> Option<&SlowWrites> {
        let by_filter = |body: &Bytes| json::selects_by_filter(body);
        if job.deletes_images {
            Some(&self.image_deletions)
        } else if job.selection.as_ref().is_some_and(by_filter) {
            Some(&self.by_filter)
        } else {
            None
        }
    }
}

impl SlowWrites {
    fn new(refusal: &'static str) -> SlowWrites {
        SlowWrites { refusal, queue: Mutex::default() }
    }

    /// Runs a slow write and the waiting ones. If enough threads run such writes already, queues
    /// the write for them.
    fn run(&self, job: WriteJob) {
        let mut next = self.admit(job);
        while let Some(job) = next {
            job.finish(Ok(()));
            next = self.next();
        }
    }

    /// Returns the write if this thread may run it. Otherwise queues or refuses the write.
    fn admit(&self, job: WriteJob) -> Option<WriteJob> {
        let mut queue = self.queue.lock();
        if queue.threads < SLOW_THREADS {
            queue.threads += 1;
            return Some(job);
        }
        if queue.waiting.len() < SLOW_WRITES_MAX {
            queue.waiting.push_back(job);
            return None;
        }
        drop(queue);
        let message = format!("{SLOW_WRITES_MAX} {}", self.refusal);
        job.finish(Err(Error::exhausted(message).with_retry_after(RETRY_AFTER)));
        None
    }

    /// Returns the next waiting write. If there is none, this thread runs other writes again.
    fn next(&self) -> Option<WriteJob> {
        let mut queue = self.queue.lock();
        let next = queue.waiting.pop_front();
        if next.is_none() {
            queue.threads -= 1;
        }
        next
    }
}

/// Starts the threads that finish writes. Returns the sender of their queue.
fn start() -> Result<Sender<WriteJob>> {
    let (queue, jobs) = bounded::<WriteJob>(WRITES_MAX);
    let slow = Arc::new(SlowKinds::new());
    for number in 0..WRITE_THREADS {
        let jobs = jobs.clone();
        let slow = slow.clone();
        let run = move || {
            for job in jobs {
                match slow.of(&job) {
                    Some(writes) => writes.run(job),
                    None => job.finish(Ok(())),
                }
            }
        };
        os::thread::spawn(format!("write-{number}"), run)?;
    }
    Ok(queue)
}
