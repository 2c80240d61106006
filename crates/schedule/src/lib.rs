//! The life of a request: admitted, queued, run.
//!
//! Doors call [`Scheduler::submit`], which never blocks: the request is queued or refused. Named OS
//! threads, one per core by default, take requests, or batches of requests that can be joined
//! without changing an answer, run them with the engine at one thread, and hand each request's
//! outcome to its callback. There is no async runtime here and no lock is held while a model runs.
//!
//! From the inside out: [`bounds`] is what one request may ask for, [`merge`] the padding rule,
//! [`batch_key`] what decides whether requests fit together, [`batch`] joins and splits, [`cost`]
//! learns what merging brings and [`linear_fit`] what padding costs, [`choose`] picks among one
//! model's requests in its [`model_queue`], [`dispatch`] among models, [`run`] calls the engine.
//!
//! Invariant: every submitted job's callback is called exactly once, also when the model panics,
//! the deadline passes in the queue, or the scheduler shuts down; and what it is given does not
//! depend on its batch-mates.

mod batch;
mod batch_key;
mod block;
mod bounds;
mod choose;
mod cost;
mod dispatch;
mod entry;
mod fill;
mod linear_fit;
#[cfg(all(test, millpond_loom))]
mod loom_tests;
mod merge;
mod model_queue;
mod run;
mod snapshot;
mod sync;
mod threads;
#[cfg(test)]
mod trial;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, NamedTensor, Result};
use engine::Servable;

use dispatch::{Dispatch, Refusal, Work};
use entry::Entry;
use parking_lot::Mutex;
pub use snapshot::{
    BATCH_SIZE_BOUNDS, CLASSES_SHOWN_MAX, ClassSnapshot, ModelSnapshot, SchedulerSnapshot,
};
pub use threads::{ThreadPlan, ThreadPolicy};

/// Most workers a scheduler starts.
pub const WORKERS_MAX: usize = 256;
/// What a refused client is told to wait before it tries again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// How many workers, how long a queue.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Inference threads, 1 to [`WORKERS_MAX`].
    pub workers: usize,
    /// Requests of one model that may wait; the next is refused. A model may have its own bound.
    pub queue_max: usize,
    /// Pin worker `i` to core `i`.
    pub pin: bool,
    /// Whether the threads of all runs together are no more than the workers: a run of several
    /// threads then waits until as many workers are free as it has threads. Otherwise as many runs
    /// go side by side as there are workers.
    pub count_threads: bool,
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
pub type CompletionCallback = Box<dyn FnOnce(Completion) + Send>;

/// One request for one version.
pub struct Job {
    /// Who answers. Held until the callback has been called.
    pub servable: Arc<Servable>,
    /// Inputs, already checked against the signature.
    pub inputs: Vec<NamedTensor>,
    /// Wanted outputs in order; all of them when empty.
    pub outputs: Vec<Arc<str>>,
    /// Priority level, 1 first; 0 is the model's default. A level that the model does not have is
    /// its last.
    pub priority: usize,
    /// After this the client no longer waits.
    pub deadline: Instant,
    /// Set when the client has gone: the job is dropped before it runs.
    pub cancelled: Arc<AtomicBool>,
    /// Where the outcome goes.
    pub done: CompletionCallback,
}

/// The inference workers and their queues.
pub struct Scheduler {
    dispatch: Arc<Dispatch>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    worker_count: usize,
}

impl Scheduler {
    /// Starts the workers.
    ///
    /// # Errors
    /// `InvalidArgument` for a count out of range, `ResourceExhausted` when a thread cannot be
    /// started.
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
        let dispatch = Arc::new(Dispatch::new(config));
        let mut workers = Vec::with_capacity(config.workers);
        for index in 0..config.workers {
            let (jobs, pin) = (dispatch.clone(), config.pin);
            let spawned = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || work(&jobs, index, pin));
            match spawned {
                Ok(handle) => workers.push(handle),
                Err(error) => {
                    dispatch.close();
                    return Err(Error::exhausted(format!(
                        "worker {index} cannot be started: {error}"
                    )));
                }
            }
        }
        Ok(Arc::new(Scheduler {
            dispatch,
            workers: Mutex::new(workers),
            worker_count: config.workers,
        }))
    }

    /// Queues a job; never blocks. A job that is refused is dropped with its callback uncalled.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice when the model's queue, or that of the job's priority,
    /// has no room for all parts of the request (one that is half empty has); `Unavailable` when
    /// the scheduler is shutting down; `InvalidArgument` where the request would become too many
    /// parts, or an input that the server fills would be too large or has nothing to be filled
    /// from.
    pub fn submit(&self, job: Job) -> Result<()> {
        let entries = Entry::from_job(job, Instant::now())?;
        let parts = entries.len();
        let mut dead = Vec::new();
        let pushed = self.dispatch.push(entries, &mut dead);
        run::expire(dead);
        pushed.map_err(|refusal| match refusal {
            Refusal::Full { limit, waiting } if parts == 1 || waiting >= limit => Error::exhausted(format!(
                "{waiting} requests are waiting already; try again later or raise the model's queue"
            ))
            .with_retry_after(RETRY_AFTER),
            Refusal::Full { limit, waiting } => Error::exhausted(format!(
                "the request is {parts} batches, {waiting} wait already and {limit} may; try again later, send \
                 smaller requests or raise the model's queue"
            ))
            .with_retry_after(RETRY_AFTER),
            Refusal::Closed => Error::unavailable("the server is shutting down"),
        })
    }

    /// Requests waiting now.
    pub fn queued(&self) -> usize {
        self.dispatch.queued()
    }

    /// How many of one model may wait.
    pub fn queue_max(&self) -> usize {
        self.dispatch.queue_max()
    }

    /// What has been done and is being done.
    pub fn snapshot(&self) -> SchedulerSnapshot {
        self.dispatch.snapshot()
    }

    /// Inference threads.
    pub fn workers(&self) -> usize {
        self.worker_count
    }

    /// Refuses new jobs, finishes those that are queued, ends the workers.
    pub fn shutdown(&self) {
        self.dispatch.close();
        let workers = std::mem::take(&mut *self.workers.lock());
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

/// Adds the inputs that the server makes for `servable`'s clients (masks, real sizes), as for every
/// request. For those who run it without a scheduler.
///
/// # Errors
/// `InvalidArgument` where there is nothing to fill one from.
pub fn fill_inputs(servable: &Servable, inputs: &mut Vec<NamedTensor>) -> Result<()> {
    fill::fill(servable.plan(), inputs)
}

fn work(jobs: &Dispatch, worker: usize, pin: bool) {
    if pin && let Err(error) = os::thread::pin(worker) {
        tracing::warn!(worker, %error, "worker runs unpinned");
    }
    let (mut ran, mut meter) = (None, run::Meter::start());
    while let Some(work) = jobs.next(worker, ran.take()) {
        match work {
            Work::Expire(dead) => run::expire(dead),
            Work::Run(batch) => {
                let (model, taken) = (batch.model(), batch.taken);
                ran = Some((model, run::run(batch, &mut meter), taken));
            }
        }
    }
}
