//! The scheduler of inference requests: admission, queues, runs.
//!
//! Endpoints call [`Scheduler::submit`], which never blocks. It queues or refuses the request.
//! Named OS threads, one per core by default, take requests, or batches of requests that can be
//! joined without changing an answer. They run them with the engine at one thread and pass each
//! outcome to its callback. There is no async runtime here, and no lock is held while a model runs.
//!
//! # Modules
//! * One request: `bounds` limits it, `entry` is a request in a queue, `batch_key` decides which
//!   requests fit together.
//! * One run: `merge` is the padding rule, `fill` adds masks and lengths, `batch` joins and splits
//!   with the copies of `block`, `run` calls the engine, and runs each request again if the process
//!   of the model ends.
//! * Costs: `cost` measures merging, and `linear_fit` the cost of padding.
//! * Choices: `choose` picks among one model's requests in its `model_queue`, `dispatch` among
//!   the `model_queues` and workers.
//! * Around them: `threads` decides the number of threads, `snapshot` has figures for metrics,
//!   `sync` has the locks of the dispatch, and `loom_tests` tests them with loom.
//!
//! Invariant: the callback of every submitted job is called exactly once. This holds even if the
//! model panics, the deadline passes in the queue, or the scheduler shuts down. There is one
//! exception. A shutdown leaves requests behind if the workers do not end in time, or if requests
//! wait to run again. If the model keeps its items apart, the outcome does not depend on the other
//! requests of its batch.

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
mod model_queues;
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

use base::{Error, NamedTensor, Result, RunRecord};
use engine::Servable;

use dispatch::{Dispatch, DispatchedWork, EndedRun, Refusal, WhenFull};
use entry::Entry;
use parking_lot::Mutex;
pub use snapshot::{
    BATCH_SIZE_BOUNDS, CLASSES_SHOWN_MAX, ClassSnapshot, FilledRuns, ModelSnapshot,
    SchedulerSnapshot,
};
pub use threads::{ThreadPlan, ThreadPolicy};

/// Maximum number of workers of a scheduler.
pub const WORKERS_MAX: usize = 256;
/// Longest wait at shutdown for the workers. If a run takes longer, its client has disconnected, or
/// its engine hangs.
const WORKERS_END_MAX: Duration = Duration::from_secs(10);
/// Advice to refused clients before the next try.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Number of workers and length of queues.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Inference threads, 1 to [`WORKERS_MAX`].
    pub workers: usize,
    /// Maximum number of waiting requests of one model, if it has no limit of its own.
    pub queue_max: usize,
    /// True to pin worker `i` to the `i`-th core that the process may use.
    pub pin: bool,
    /// True if the threads of all runs together are at most the workers. Then a run of several
    /// threads waits until as many workers are free. Otherwise there are as many concurrent runs as
    /// workers.
    pub count_threads: bool,
}

/// Outcome of a job.
#[derive(Debug)]
pub struct Completion {
    /// Outputs, or the error.
    pub result: Result<Vec<NamedTensor>>,
    /// Time from submission to the start of the run, or to the refusal.
    pub queue: Duration,
    /// Time in the engine. It is the time of the whole run if requests were merged.
    pub compute: Duration,
    /// Items of the whole run, including other requests, or 0 if nothing ran.
    pub batch: usize,
    /// The run, or `None` if nothing ran.
    pub run: Option<RunRecord>,
    /// Processor time of the request's items: a share of the run's.
    pub processor: Duration,
}

/// Callback for the outcome, called once. Must not block. A worker calls it. If the request expires
/// in a full queue, a thread that submits another request calls it.
pub type CompletionCallback = Box<dyn FnOnce(Completion) + Send>;

/// One request for one version.
pub struct Job {
    /// Version that answers. Released before the callback is called.
    pub servable: Arc<Servable>,
    /// Inputs, already checked against the signature.
    pub inputs: Vec<NamedTensor>,
    /// Wanted outputs in order. Empty for all outputs.
    pub outputs: Vec<Arc<str>>,
    /// Priority level, 1 first. 0 and a level beyond the model's last are the model's default.
    pub priority: usize,
    /// Time after which the client no longer waits.
    pub deadline: Instant,
    /// True once the client has disconnected. The job is then dropped before it runs.
    pub cancelled: Arc<AtomicBool>,
    /// Receiver of the outcome.
    pub done: CompletionCallback,
}

/// Inference workers and their queues.
pub struct Scheduler {
    dispatch: Arc<Dispatch>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    worker_count: usize,
}

impl Scheduler {
    /// Starts the workers.
    ///
    /// # Errors
    /// `InvalidArgument` for a number out of range, `ResourceExhausted` if a thread cannot be
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
            let jobs = dispatch.clone();
            let pin = config.pin;
            match os::thread::spawn(format!("worker-{index}"), move || work(&jobs, index, pin)) {
                Ok(handle) => workers.push(handle),
                Err(error) => {
                    dispatch.close();
                    return Err(error);
                }
            }
        }
        Ok(Arc::new(Scheduler {
            dispatch,
            workers: Mutex::new(workers),
            worker_count: config.workers,
        }))
    }

    /// Queues a job. Never blocks. A refused job is dropped without a call of its callback.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if the model's queue, or the queue of the job's
    /// priority, has no room for all parts of the request. A queue that is at most half full has
    /// room for any request. `Unavailable` during shutdown. `InvalidArgument` if the request would
    /// have too many parts, or if an input that the server fills in would be too large or has no
    /// source.
    pub fn submit(&self, job: Job) -> Result<()> {
        self.queue(job, WhenFull::GiveUp)
    }

    /// Queues a job as [`Scheduler::submit`] does, for a caller that tries again if the queue is
    /// full. The job then does not count as refused.
    ///
    /// # Errors
    /// Returns the errors of [`Scheduler::submit`].
    pub fn try_submit(&self, job: Job) -> Result<()> {
        self.queue(job, WhenFull::TryAgain)
    }

    /// Queues a job. Also answers the expired requests that were found in the queue.
    fn queue(&self, job: Job, when_full: WhenFull) -> Result<()> {
        let entries = Entry::from_job(job, Instant::now())?;
        let parts = entries.len();
        let mut expired = Vec::new();
        let pushed = self.dispatch.push(entries, when_full, &mut expired);
        run::expire(expired);
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

    /// Returns the number of waiting requests.
    pub fn queued(&self) -> usize {
        self.dispatch.queued()
    }

    /// Returns the maximum number of waiting requests of one model.
    pub fn queue_max(&self) -> usize {
        self.dispatch.queue_max()
    }

    /// Returns the current figures.
    pub fn snapshot(&self) -> SchedulerSnapshot {
        self.dispatch.snapshot()
    }

    /// Returns the number of inference threads.
    pub fn workers(&self) -> usize {
        self.worker_count
    }

    /// Refuses new jobs, finishes queued ones and ends the workers. Waits at most ten seconds for
    /// them. A worker that still runs then is logged, and ends with the process.
    pub fn shutdown(&self) {
        self.end_workers(WORKERS_END_MAX);
    }

    /// Ends the workers, and waits at most `wait` for them.
    fn end_workers(&self, wait: Duration) {
        self.dispatch.close();
        let workers = std::mem::take(&mut *self.workers.lock());
        let deadline = Instant::now() + wait;
        for worker in workers {
            os::thread::join_until(worker, deadline);
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Adds the inputs that the server fills in for clients (masks, real sizes), for runs without a
/// scheduler.
///
/// # Errors
/// `InvalidArgument` if an input has no source.
pub fn fill_inputs(servable: &Servable, inputs: &mut Vec<NamedTensor>) -> Result<()> {
    fill::fill(servable.plan(), inputs)
}

/// Runs a request without a scheduler, as a worker runs it alone. It is padded to its buckets, and
/// its outputs are cut back. `inputs` include the inputs of [`fill_inputs`].
///
/// # Errors
/// Returns the errors of [`Servable::run`]. `InvalidArgument` if padding makes an input too large.
pub fn run_alone(
    servable: &Servable,
    inputs: &[NamedTensor],
    outputs: &[Arc<str>],
) -> Result<Vec<NamedTensor>> {
    run::run_alone(servable, inputs, outputs)
}

/// Runs requests for the same outputs without a scheduler, in one run. Returns the outputs of each
/// request, in order. `requests` have the inputs of each one, with those of [`fill_inputs`].
///
/// Returns `None` if the requests cannot be joined without padding one to another, or if they have
/// more than `max_batch` items together.
///
/// # Errors
/// Returns the errors of [`Servable::run`], which may be the fault of one of the requests.
/// `Internal` if the outputs cannot be split: the model mixes its items.
pub fn run_joined(
    servable: &Servable,
    requests: &[&[NamedTensor]],
    outputs: &[Arc<str>],
) -> Option<Result<Vec<Vec<NamedTensor>>>> {
    run::run_joined(servable, requests, outputs)
}

/// Runs batches until the dispatch is closed. `pin` ties the thread to the core `worker`.
fn work(jobs: &Dispatch, worker: usize, pin: bool) {
    if pin && let Err(error) = os::thread::pin(worker) {
        tracing::warn!(worker, %error, "worker runs unpinned");
    }
    let mut ended = None;
    let mut meter = run::Meter::start();
    while let Some(work) = jobs.next(worker, ended.take()) {
        match work {
            DispatchedWork::Expire(expired) => run::expire(expired),
            DispatchedWork::Run(batch) => {
                let model = batch.model();
                let cores_taken = batch.taken;
                let figures = run::run(batch, &mut meter);
                ended = Some(EndedRun { model, figures, cores_taken });
            }
        }
    }
}

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use std::sync::mpsc;

    use base::Tensor;

    use super::*;
    use crate::trial::{lingering, model};

    #[test]
    fn shutdown_leaves_a_worker_that_hangs_behind() {
        let config = SchedulerConfig { workers: 1, queue_max: 8, pin: false, count_threads: true };
        let scheduler = Scheduler::start(&config).unwrap();
        let (begun, begins) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let (done, ended) = mpsc::channel();
        let x = Tensor::from_vec([1usize, 3].as_slice(), vec![1f32; 3]).unwrap();
        let job = Job {
            servable: model("m", lingering(Duration::ZERO)),
            inputs: vec![NamedTensor::new("x", x)],
            outputs: vec![],
            priority: 0,
            deadline: Instant::now() + Duration::from_secs(600),
            cancelled: Arc::new(AtomicBool::new(false)),
            // Keeps the worker as an engine that hangs does.
            done: Box::new(move |_| {
                begun.send(()).unwrap();
                let _ = released.recv();
                done.send(()).unwrap();
            }),
        };
        scheduler.submit(job).unwrap();
        begins.recv_timeout(Duration::from_secs(60)).unwrap();
        // Without a limit, this would wait for `release`.
        scheduler.end_workers(Duration::ZERO);
        assert!(ended.try_recv().is_err(), "the worker still runs");
        drop(release);
        ended.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
