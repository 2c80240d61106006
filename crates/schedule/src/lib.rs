//! The life of a request: admitted, queued, run.
//!
//! Doors call [`Scheduler::submit`], which never blocks: the request is queued or refused. Named OS threads, one
//! per core by default, take requests in order of arrival, run them with the engine at one thread, and hand the
//! outcome to the request's callback. There is no async runtime here and no lock is held while a model runs.
//!
//! Invariant: every submitted job's callback is called exactly once, also when the model panics, the deadline
//! passes in the queue, or the scheduler shuts down.

mod queue;
mod snapshot;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, NamedTensor, Result};
use engine::Servable;

use queue::Queue;
pub use snapshot::{BATCH_SIZE_BOUNDS, CLASSES_SHOWN_MAX, ClassSnapshot, ModelSnapshot, Snapshot};

/// Most workers a scheduler starts.
pub const WORKERS_MAX: usize = 256;
/// What a refused client is told to wait before it tries again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// How many workers, how long a queue.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Inference threads, 1 to [`WORKERS_MAX`].
    pub workers: usize,
    /// Requests that may wait; the next is refused.
    pub queue_max: usize,
    /// Pin worker `i` to core `i`.
    pub pin: bool,
}

/// What became of a job.
#[derive(Debug)]
pub struct Completion {
    /// The outputs, or why there are none.
    pub result: Result<Vec<NamedTensor>>,
    /// From submission to the start of the run (or to the refusal).
    pub queue: Duration,
    /// Time in the engine; of a merged run, the whole run's.
    pub compute: Duration,
    /// Items of the run that answered, those of batch-mates included; 0 where nothing ran.
    pub batch: usize,
}

/// Called once with the outcome, on a worker thread; must not block.
pub type Done = Box<dyn FnOnce(Completion) + Send>;

/// One request for one version.
pub struct Job {
    /// Who answers. Held until the callback has been called.
    pub servable: Arc<Servable>,
    /// Inputs, already checked against the signature.
    pub inputs: Vec<NamedTensor>,
    /// Wanted outputs in order; all of them when empty.
    pub outputs: Vec<Arc<str>>,
    /// Priority level, 1 first; 0 is the model's default. A level that the model does not have is its last.
    pub priority: usize,
    /// After this the client no longer waits.
    pub deadline: Instant,
    /// Set when the client has gone: the job is dropped before it runs.
    pub cancelled: Arc<AtomicBool>,
    /// Where the outcome goes.
    pub done: Done,
}

/// The inference workers and their queue.
pub struct Scheduler {
    queue: Arc<Queue>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    worker_count: usize,
}

impl Scheduler {
    /// Starts the workers.
    ///
    /// # Errors
    /// `InvalidArgument` for a count out of range, `ResourceExhausted` when a thread cannot be started.
    pub fn start(config: &SchedulerConfig) -> Result<Arc<Scheduler>> {
        if config.workers == 0 || config.workers > WORKERS_MAX {
            return Err(Error::invalid(format!(
                "workers must be 1 to {WORKERS_MAX}, not {}",
                config.workers
            )));
        }
        if config.queue_max == 0 {
            return Err(Error::invalid("the queue must have room for one request"));
        }
        let queue = Arc::new(Queue::new(config.queue_max, config.workers));
        let mut workers = Vec::with_capacity(config.workers);
        for index in 0..config.workers {
            let (jobs, pin) = (queue.clone(), config.pin);
            let spawned = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || work(&jobs, index, pin));
            match spawned {
                Ok(handle) => workers.push(handle),
                Err(error) => {
                    queue.close();
                    return Err(Error::exhausted(format!("worker {index} cannot be started: {error}")));
                }
            }
        }
        Ok(Arc::new(Scheduler { queue, workers: Mutex::new(workers), worker_count: config.workers }))
    }

    /// Queues a job; never blocks.
    ///
    /// # Errors
    /// The job comes back unanswered with `ResourceExhausted` and retry advice when the queue is full, or
    /// `Unavailable` when the scheduler is shutting down.
    pub fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        self.queue.push(job).map_err(|(job, refusal)| {
            let error = match refusal {
                queue::Refusal::Full => Error::exhausted(format!(
                    "{} requests are waiting already; try again later or raise --queue",
                    self.queue.capacity()
                ))
                .with_retry_after(RETRY_AFTER),
                queue::Refusal::Closed => Error::unavailable("the server is shutting down"),
            };
            (job, error)
        })
    }

    /// Requests waiting now.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// How many may wait.
    pub fn queue_max(&self) -> usize {
        self.queue.capacity()
    }

    /// What has been done and is being done.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            workers: self.worker_count,
            queued: self.queue.len(),
            queue_max: self.queue.capacity(),
            ..Snapshot::default()
        }
    }

    /// Inference threads.
    pub fn workers(&self) -> usize {
        self.worker_count
    }

    /// Refuses new jobs, finishes those that are queued, ends the workers.
    pub fn shutdown(&self) {
        self.queue.close();
        let workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        for worker in workers {
            if worker.join().is_err() {
                tracing::error!("a worker ended by panic");
            }
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn work(queue: &Queue, worker: usize, pin: bool) {
    if pin && let Err(error) = memory::thread::pin(worker) {
        tracing::warn!(worker, %error, "worker runs unpinned");
    }
    while let Some((job, submitted)) = queue.pop(worker) {
        answer(job, submitted);
    }
}

/// Runs one job and calls its callback; the servable is let go before the callback so that a waiting unload is
/// not held up by a slow client.
fn answer(job: Job, submitted: Instant) {
    let started = Instant::now();
    let queue = started.duration_since(submitted);
    let Job { servable, inputs, outputs, priority: _, deadline, cancelled, done } = job;
    let result = if cancelled.load(Ordering::Relaxed) {
        Err(Error::cancelled("the client has gone"))
    } else if started >= deadline {
        Err(Error::deadline(format!("the deadline passed after {} ms in the queue", queue.as_millis())))
    } else {
        run(&servable, &inputs, &outputs)
    };
    let compute = started.elapsed();
    drop(inputs);
    drop(servable);
    done(Completion { result, queue, compute, batch: 1 });
}

fn run(servable: &Servable, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
    std::panic::catch_unwind(AssertUnwindSafe(|| servable.run(inputs, outputs))).unwrap_or_else(|_| {
        tracing::error!(version = %servable.id, "the engine panicked");
        Err(Error::internal("the engine panicked; see the log"))
    })
}
