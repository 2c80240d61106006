//! Threads that make changes and wait for the log, started with the first write.

use std::sync::OnceLock;
use std::time::Duration;

use base::{Error, Result};
use crossbeam_channel::{Sender, TrySendError, bounded};

/// Number of threads. Writes that wait for the log at the same time share a flush, so a few threads
/// more than the disk has queues help. Besides waiting they parse JSON.
const WRITE_THREADS: usize = 4;
/// Maximum writes that wait for a thread. Each holds its request's body.
pub(crate) const WRITES_MAX: usize = 64;
/// Retry advice for a refused write.
const RETRY_AFTER: Duration = Duration::from_secs(1);

type WriteJob = Box<dyn FnOnce() + Send>;

/// The queue of writes. Its threads end when it is dropped.
#[derive(Default)]
pub(crate) struct WriteThreads(OnceLock<Sender<WriteJob>>);

impl WriteThreads {
    /// Runs `job` on one of the threads.
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

fn start() -> Result<Sender<WriteJob>> {
    let (queue, jobs) = bounded::<WriteJob>(WRITES_MAX);
    for number in 0..WRITE_THREADS {
        let name = format!("write-{number}");
        let jobs = jobs.clone();
        let run = move || {
            for job in jobs {
                // A panic drops the job's reply sender, which its caller reports. The thread goes
                // on.
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
