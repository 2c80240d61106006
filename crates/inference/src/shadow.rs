//! Runs copies of requests on the candidate of a rollout, and compares the answers.
//!
//! A copy is taken after the client's answer is known. One thread of idle priority runs it without
//! the scheduler, so any worker that has a request takes the core from it at once. If requests
//! wait, or if too many copies wait, the copy is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use base::{Error, NamedTensor, Result};
use engine::Servable;
use lifecycle::{AnsweredRun, PendingRequest, RolloutMeasures, RolloutPart};
use metrics::{Metrics, ModelKindLabels};
use schedule::{Completion, Scheduler};

use crate::request::{InferenceRequest, tensor_bytes};

/// Maximum number of copies that wait.
const COPIES_MAX: usize = 32;
/// Most bytes of tensors in copies that wait.
const COPIES_BYTES_MAX: u64 = 64 << 20;

/// A copy of a request whose answer is not known yet.
struct ShadowRequest {
    candidate: Arc<Servable>,
    measures: Arc<RolloutMeasures>,
    inputs: Vec<NamedTensor>,
    outputs: Vec<Arc<str>>,
}

impl ShadowRequest {
    /// Returns the copy of `call`, if the rollout wants one.
    fn of(call: &InferenceRequest) -> Option<ShadowRequest> {
        let rollout: &RolloutPart = call.rollout.as_ref()?;
        let candidate = rollout.shadow.as_ref()?;
        let name = call.servable.signature_name();
        let candidate = if candidate.signature_name() == name {
            candidate.clone()
        } else {
            candidate.with_signature(name).ok()?
        };
        Some(ShadowRequest {
            candidate,
            measures: rollout.measures().clone(),
            inputs: call.inputs.clone(),
            outputs: call.outputs.clone(),
        })
    }
}

/// A request that may be part of a rollout.
pub(crate) struct TrackedRequest {
    pending: Option<PendingRequest>,
    shadow: Option<ShadowRequest>,
}

impl TrackedRequest {
    /// Starts the clock of `call`.
    pub(crate) fn of(call: &InferenceRequest) -> TrackedRequest {
        TrackedRequest {
            pending: call.rollout.as_ref().map(RolloutPart::start),
            shadow: ShadowRequest::of(call),
        }
    }

    /// Counts the request of `items` items for the rollout, and queues the copy of one that was
    /// answered. `queued` is false for a request that was refused before it was queued.
    pub(crate) fn end(
        self,
        completion: &Completion,
        items: usize,
        queued: bool,
        shadows: &ShadowRunner,
    ) {
        let Some(pending) = self.pending else { return };
        match &completion.result {
            Ok(outputs) => {
                let time = completion.compute;
                let share = items as f64 / completion.batch.max(items).max(1) as f64;
                pending.answered(outputs, AnsweredRun { time, occupied: time.mul_f64(share) });
                if let Some(shadow) = self.shadow {
                    shadows.submit(shadow, outputs);
                }
            }
            Err(error) => pending.failed(error, queued),
        }
    }
}

/// A copy, and the answer of the stable version.
struct ShadowJob {
    request: ShadowRequest,
    expected: Vec<NamedTensor>,
    bytes: u64,
}

/// State that the thread shares with requests.
struct ShadowState {
    scheduler: Arc<Scheduler>,
    metrics: Arc<Metrics>,
    /// Bytes of copies that wait.
    bytes: AtomicU64,
}

/// The thread that runs copies. It starts at the first copy and ends when the runner is dropped.
pub(crate) struct ShadowRunner {
    state: Arc<ShadowState>,
    /// `None` inside if the thread cannot be started.
    queue: OnceLock<Option<SyncSender<ShadowJob>>>,
}

impl ShadowRunner {
    pub(crate) fn new(scheduler: Arc<Scheduler>, metrics: Arc<Metrics>) -> ShadowRunner {
        let state = ShadowState { scheduler, metrics, bytes: AtomicU64::new(0) };
        ShadowRunner { state: Arc::new(state), queue: OnceLock::new() }
    }

    /// Queues a copy, or drops it.
    fn submit(&self, request: ShadowRequest, expected: &[NamedTensor]) {
        let bytes = tensor_bytes(&request.inputs) + tensor_bytes(expected);
        let job = ShadowJob { request, expected: expected.to_vec(), bytes };
        let before = self.state.bytes.fetch_add(bytes, Ordering::Relaxed);
        let room = before.saturating_add(bytes) <= COPIES_BYTES_MAX;
        if !room || self.state.scheduler.queued() > 0 {
            return self.state.dropped(&job);
        }
        let queue = self.queue.get_or_init(|| start(&self.state));
        match queue {
            None => self.state.dropped(&job),
            Some(queue) => {
                if let Err(refused) = queue.try_send(job) {
                    use std::sync::mpsc::TrySendError::{Disconnected, Full};
                    let (Full(job) | Disconnected(job)) = refused;
                    self.state.dropped(&job);
                }
            }
        }
    }
}

fn start(state: &Arc<ShadowState>) -> Option<SyncSender<ShadowJob>> {
    let (queue, jobs) = sync_channel(COPIES_MAX);
    let state = state.clone();
    os::thread::spawn("shadow", move || state.work(&jobs))
        .inspect_err(|error| tracing::error!(%error, "copies of requests cannot run"))
        .ok()
        .map(|_| queue)
}

impl ShadowState {
    fn work(&self, jobs: &Receiver<ShadowJob>) {
        os::thread::enter_background("copies of requests");
        while let Ok(job) = jobs.recv() {
            if job.request.measures.ended() || self.scheduler.queued() > 0 {
                self.dropped(&job);
                continue;
            }
            let outcome = self.run(&job);
            self.bytes.fetch_sub(job.bytes, Ordering::Relaxed);
            self.count(&job.request.candidate, outcome);
        }
    }

    fn run(&self, job: &ShadowJob) -> &'static str {
        let ShadowJob { request, expected, .. } = job;
        let answered = catch_unwind(AssertUnwindSafe(|| {
            answer(&request.candidate, request.inputs.clone(), &request.outputs)
        }))
        .unwrap_or_else(|_| Err(Error::internal("the model panicked")));
        match answered {
            Ok(answered) if request.measures.compared(expected, &answered) => "same",
            Ok(_) => "different",
            Err(error) => {
                tracing::debug!(version = %request.candidate.id, %error, "a copy of a request failed");
                request.measures.copy_failed();
                "failed"
            }
        }
    }

    fn dropped(&self, job: &ShadowJob) {
        self.bytes.fetch_sub(job.bytes, Ordering::Relaxed);
        self.count(&job.request.candidate, "dropped");
    }

    fn count(&self, candidate: &Servable, kind: &'static str) {
        let labels = ModelKindLabels { model: candidate.id.model.clone(), kind };
        self.metrics.rollouts.shadow_requests.get_or_create(&labels).inc();
    }
}

/// Runs the candidate. The inputs were checked only against the stable version, whose shapes may
/// differ. They are padded as for a worker, because padding may show in the answer.
fn answer(
    candidate: &Servable,
    mut inputs: Vec<NamedTensor>,
    outputs: &[Arc<str>],
) -> Result<Vec<NamedTensor>> {
    let signature = candidate.signature();
    signature.check_inputs(&inputs)?;
    signature.check_outputs(outputs.iter().map(|name| &**name))?;
    schedule::fill_inputs(candidate, &mut inputs)?;
    schedule::run_alone(candidate, &inputs, outputs)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use base::{ErrorKind, Tensor, VersionId};
    use engine::fake::FakeEngine;
    use engine::{Engine, LoadRequest, ScheduleOptions};
    use schedule::SchedulerConfig;

    use super::*;

    /// Returns a candidate that answers with its input of three columns.
    fn candidate(directory: &Path) -> (FakeEngine, Servable) {
        let graph = directory.join("graph");
        let text = "millpond-fake 1\ninput x float32 n 3\noutput y float32 n 3\ny = echo x\n";
        std::fs::write(&graph, text).unwrap();
        let fake = FakeEngine::new();
        let session = fake.load(&LoadRequest { graph, ..LoadRequest::default() }).unwrap();
        let id = VersionId { model: "m".into(), version: 2 };
        let candidate = Servable::new(id, "fake", session, ScheduleOptions::default()).unwrap();
        (fake, candidate)
    }

    fn row(name: &str, values: &[f32]) -> NamedTensor {
        let shape = [1_usize, values.len()];
        NamedTensor::new(name, Tensor::from_vec(shape.as_slice(), values.to_vec()).unwrap())
    }

    #[test]
    fn a_copy_of_another_shape_does_not_reach_the_model() {
        let dir = tempfile::tempdir().unwrap();
        let (fake, candidate) = candidate(dir.path());
        let refused = answer(&candidate, vec![row("x", &[1.0, 2.0])], &[]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert_eq!(fake.counters().runs(), 0);
    }

    /// Otherwise no copy would run any more after some time.
    #[test]
    fn copies_are_counted_and_leave_their_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let candidate = Arc::new(candidate(dir.path()).1);
        let config = SchedulerConfig { workers: 1, queue_max: 8, pin: false, count_threads: true };
        let scheduler = Scheduler::start(&config).unwrap();
        let metrics = Arc::new(Metrics::default());
        let runner = ShadowRunner::new(scheduler, metrics.clone());
        let measures = Arc::new(RolloutMeasures::new(1e-3, None, 1));
        let submit = |sent: &[f32]| {
            let request = ShadowRequest {
                candidate: candidate.clone(),
                measures: measures.clone(),
                inputs: vec![row("x", sent)],
                outputs: Vec::new(),
            };
            runner.submit(request, &[row("y", &[1.0, 2.0, 3.0])]);
        };
        let bytes = &runner.state.bytes;
        bytes.store(COPIES_BYTES_MAX, Ordering::Relaxed);
        submit(&[1.0, 2.0, 3.0]);
        assert_eq!(bytes.swap(0, Ordering::Relaxed), COPIES_BYTES_MAX);
        for sent in [&[1.0, 2.0, 3.0][..], &[1.0, 2.0, 4.0], &[1.0, 2.0]] {
            submit(sent);
        }
        let counts = || {
            ["dropped", "same", "different", "failed"].map(|kind| {
                let labels = ModelKindLabels { model: "m".into(), kind };
                metrics.rollouts.shadow_requests.get_or_create(&labels).get()
            })
        };
        let until = Instant::now() + Duration::from_secs(120);
        while counts() != [1; 4] || bytes.load(Ordering::Relaxed) > 0 {
            assert!(Instant::now() < until, "{:?}, {bytes:?}", counts());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
