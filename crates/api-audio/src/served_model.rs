//! A served model as the pipeline of `audio` wants it: runs go to the inference workers like
//! everybody's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use audio::{AudioModel, PendingRun};
use base::{CarriedInput, Error, ErrorKind, NamedTensor, Result, Signature};
use crossbeam_channel::bounded;
use engine::Servable;
use schedule::{Completion, Job, Scheduler};

/// Longest time from handing a run to the workers to its answer. A recording has no client who
/// waits for one run, so this is only there that nothing waits for ever.
const RUN_TIME_MAX: Duration = Duration::from_secs(600);
/// While the model's queue is full, a run is offered again this often, and for at most this long.
const QUEUE_RETRY: Duration = Duration::from_millis(5);
const QUEUE_WAIT_MAX: Duration = Duration::from_secs(120);

/// One version of a model, held for as long as a recording takes, so that all of it is heard by the
/// same version.
pub(crate) struct ServedModel {
    scheduler: Arc<Scheduler>,
    servable: Arc<Servable>,
    /// Whether runs go to a stream of its own, which takes what the signature does not say.
    streams: bool,
    /// Set when nobody wants the answers any more.
    stop: Arc<AtomicBool>,
}

impl ServedModel {
    /// Runs of `servable` until `stop` is set.
    pub(crate) fn new(
        scheduler: Arc<Scheduler>,
        servable: Arc<Servable>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        ServedModel { scheduler, servable, streams: false, stop }
    }

    fn job(&self, inputs: Vec<NamedTensor>) -> (Job, PendingRun) {
        let (sender, pending) = bounded(1);
        // There is room for the one message; a receiver that has gone does not want it.
        let done = Box::new(move |completion: Completion| drop(sender.try_send(completion.result)));
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
                return Err(Error::cancelled("nobody waits for this recording any more"));
            }
            let (job, pending) = self.job(inputs.clone());
            match self.scheduler.submit(job) {
                Ok(()) => return Ok(pending),
                Err(error)
                    if error.kind() == ErrorKind::ResourceExhausted && Instant::now() < give_up =>
                {
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
        }))
    }
}
