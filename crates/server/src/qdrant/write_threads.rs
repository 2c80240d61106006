//! The threads that wait for the log, so that doors do not: as many as share a flush, started with the first
//! write.

use std::sync::OnceLock;
use std::time::Duration;

use base::{Error, Result};
use crossbeam_channel::{Sender, TrySendError, bounded};

/// Threads. Writes that wait for the log at the same time share a flush, so a few more than the disk has
/// queues for help; the work beside waiting is reading JSON.
const WRITE_THREADS: usize = 4;
/// Writes that may wait for a thread; each holds its request's body.
pub(super) const WRITES_MAX: usize = 64;
/// When a client that was refused is advised to come again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

type WriteJob = Box<dyn FnOnce() + Send>;

/// The queue; its threads end with it.
#[derive(Default)]
pub(super) struct WriteThreads(OnceLock<Sender<WriteJob>>);

impl WriteThreads {
    /// Has a thread do `job`.
    ///
    /// # Errors
    /// `ResourceExhausted` where too many wait already, or no thread can be had.
    pub(super) fn submit(&self, job: WriteJob) -> Result<()> {
        let queue = match self.0.get() {
            Some(queue) => queue,
            None => {
                let queue = start()?;
                // Another thread may have been first; then this one's threads end at once.
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

fn start() -> Result<Sender<WriteJob>> {
    let (queue, jobs) = bounded::<WriteJob>(WRITES_MAX);
    for number in 0..WRITE_THREADS {
        let (name, jobs) = (format!("write-{number}"), jobs.clone());
        let run = move || {
            for job in jobs {
                // A job that panics takes its own answer with it, which its door reports; the thread goes on.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a write ended in a panic");
                }
            }
        };
        let spawned = std::thread::Builder::new().name(name.clone()).spawn(run);
        spawned.map_err(|error| Error::exhausted(format!("thread {name}: {error}")))?;
    }
    Ok(queue)
}
