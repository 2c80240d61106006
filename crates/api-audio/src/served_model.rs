//! Runs a served model for the pipeline of `audio`. Its runs go to the inference workers like any
//! request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use audio::{AudioModel, PendingRun};
use base::{CarriedInput, Error, ErrorKind, NamedTensor, Result, Signature};
use crossbeam_channel::bounded;
use engine::Servable;
use os::CpuAccount;
use schedule::{Completion, Job, Scheduler};

/// Longest time of a run in queue and worker. No client waits for a single run, so the limit only
/// prevents an endless wait.
const RUN_TIME_MAX: Duration = Duration::from_secs(600);
/// Time between two attempts to submit a run while the model's queue is full.
const QUEUE_RETRY: Duration = Duration::from_millis(5);
/// Longest time of the attempts to submit a run while the model's queue is full.
const QUEUE_WAIT_MAX: Duration = Duration::from_secs(120);

/// One version of a model, which processes a whole recording.
pub struct ServedModel {
    scheduler: Arc<Scheduler>,
    servable: Arc<Servable>,
    /// True if runs go to a stream, whose carried inputs are not in the signature.
    streams: bool,
    /// Flag that is set once the results are not wanted.
    stop: Arc<AtomicBool>,
    /// Account to which the runs are charged.
    account: Option<Arc<CpuAccount>>,
}

impl ServedModel {
    /// Creates the model, which runs `servable` for the current caller until `stop` is set.
    pub fn new(scheduler: Arc<Scheduler>, servable: Arc<Servable>, stop: Arc<AtomicBool>) -> Self {
        ServedModel { scheduler, servable, streams: false, stop, account: CpuAccount::current() }
    }

    /// Returns the job of a run, and the receiver of its outputs.
    fn job(&self, inputs: Vec<NamedTensor>) -> (Job, PendingRun) {
        let (sender, pending) = bounded(1);
        // The channel has room for one message; a dropped receiver does not want it.
        let account = self.account.clone();
        let done = Box::new(move |completion: Completion| {
            account.inspect(|account| account.charge(completion.processor));
            drop(sender.try_send(completion.result));
        });
        let job = Job {
            servable: self.servable.clone(),
            inputs,
            outputs: Vec::new(),
            priority: 0,
            deadline: Instant::now() + RUN_TIME_MAX,
            cancelled: self.stop.clone(),
            done,
        };
        (job, pending)
    }
}

impl AudioModel for ServedModel {
    fn signature(&self) -> &Signature {
        self.servable.signature()
    }

    fn stateful(&self) -> bool {
        self.servable.stateful()
    }

    fn start(&self, inputs: Vec<NamedTensor>) -> Result<PendingRun> {
        if !self.streams {
            self.servable.signature().check_inputs(&inputs)?;
        }
        let give_up = Instant::now() + QUEUE_WAIT_MAX;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::cancelled("the client of this recording has disconnected"));
            }
            let (job, pending) = self.job(inputs.clone());
            let is_last = Instant::now() >= give_up;
            // Only an abandoned run counts as refused.
            let submitted =
                if is_last { self.scheduler.submit(job) } else { self.scheduler.try_submit(job) };
            match submitted {
                Ok(()) => return Ok(pending),
                Err(error) if error.kind() == ErrorKind::ResourceExhausted && !is_last => {
                    std::thread::sleep(QUEUE_RETRY);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn stream(&self, carried: Vec<CarriedInput>, lanes: usize) -> Result<Arc<dyn AudioModel>> {
        Ok(Arc::new(ServedModel {
            scheduler: self.scheduler.clone(),
            servable: self.servable.stream(carried, lanes)?,
            streams: true,
            stop: self.stop.clone(),
            account: self.account.clone(),
        }))
    }
}
