//! Runs copies of requests on the candidate of a rollout, and compares the answers.
//!
//! A copy is taken after the client's answer is known. One thread of idle priority runs it without
//! the scheduler, so any worker that has a request takes the core from it at once. Copies wait for
//! each other for a short time, and run together. If requests wait, or if too many copies wait, the
//! copy is dropped.

mod groups;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use base::{Error, NamedTensor, Result};
use engine::Servable;
use lifecycle::{AnsweredRun, PendingRequest, RolloutMeasures, RolloutPart};
use metrics::{Metrics, ModelKindLabels};
use schedule::{Completion, Scheduler};

use self::groups::{CopyGroups, GROUP_MAX};
use crate::request::{InferenceRequest, items_of, tensor_bytes};

/// Maximum number of copies that wait, those of the next run included.
const COPIES_MAX: usize = 32;
/// Maximum bytes of tensors in copies that wait.
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

/// The threads that group and run copies. They start at the first copy, and end when the runner is
/// dropped.
pub(crate) struct ShadowRunner {
    state: Arc<ShadowState>,
    /// `None` inside if a thread cannot be started.
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

/// Starts the thread that runs copies, and one that groups them before. A thread of idle priority
/// may hold a lock for long, and a worker must not wait for it. So the first channel ends at a
/// thread of ordinary priority.
fn start(state: &Arc<ShadowState>) -> Option<SyncSender<ShadowJob>> {
    let (queue, jobs) = sync_channel(COPIES_MAX - GROUP_MAX);
    let (sender, groups) = sync_channel(0);
    let state = state.clone();
    os::thread::spawn("shadow", move || state.work(&groups))
        .and_then(|_| {
            os::thread::spawn("shadow-queue", move || CopyGroups::new(jobs).pass_on(&sender))
        })
        .inspect_err(|error| tracing::error!(%error, "copies of requests cannot run"))
        .ok()
        .map(|_| queue)
}

impl ShadowState {
    fn work(&self, groups: &Receiver<Vec<ShadowJob>>) {
        os::thread::enter_background("copies of requests");
        while let Ok(group) = groups.recv() {
            let ended = group.iter().any(|job| job.request.measures.ended());
            if ended || self.scheduler.queued() > 0 {
                group.iter().for_each(|job| self.dropped(job));
                continue;
            }
            self.run(&group);
        }
    }

    /// Runs copies, together if they can be joined. A copy runs again alone if its joined answer
    /// differs or the joined run fails. If all of these copies then answer like the stable version,
    /// later copies of the rollout run alone.
    fn run(&self, group: &[ShadowJob]) {
        let inputs: Vec<Result<Vec<NamedTensor>>> = group.iter().map(ShadowJob::inputs).collect();
        let joined = run_joined(group, &inputs);
        let was_joined = joined.is_some();
        let mut answers = joined.and_then(Result::ok).unwrap_or_default().into_iter();
        let mut alone = 0;
        let mut same_alone = 0;
        for (job, inputs) in group.iter().zip(inputs) {
            let measures = &job.request.measures;
            let outcome = match answers.next() {
                Some(answered) if measures.matches(&job.expected, &answered) => {
                    measures.copy_answered(true);
                    "same"
                }
                // A difference counts only if the copy ran alone.
                _ => {
                    let outcome = job.run_alone(inputs);
                    alone += 1;
                    same_alone += usize::from(outcome == "same");
                    outcome
                }
            };
            self.bytes.fetch_sub(job.bytes, Ordering::Relaxed);
            self.count(&job.request.candidate, outcome);
        }
        if was_joined && alone > 0 && same_alone == alone {
            group.iter().for_each(|job| job.request.measures.run_copies_alone());
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

impl ShadowJob {
    /// Returns the number of items of the copy in a run of the candidate.
    fn items(&self) -> usize {
        items_of(self.request.candidate.plan(), &self.request.inputs)
    }

    /// Returns the inputs of the run. They were checked only against the stable version, whose
    /// shapes may differ.
    fn inputs(&self) -> Result<Vec<NamedTensor>> {
        let ShadowRequest { candidate, inputs, outputs, .. } = &self.request;
        let signature = candidate.signature();
        signature.check_inputs(inputs)?;
        signature.check_outputs(outputs.iter().map(|name| &**name))?;
        let mut inputs = inputs.clone();
        schedule::fill_inputs(candidate, &mut inputs)?;
        Ok(inputs)
    }

    /// Runs the copy without others. It is padded as for a worker, because padding may show in the
    /// answer. Returns the outcome.
    fn run_alone(&self, inputs: Result<Vec<NamedTensor>>) -> &'static str {
        let ShadowRequest { candidate, outputs, measures, .. } = &self.request;
        match inputs.and_then(|inputs| guarded(|| schedule::run_alone(candidate, &inputs, outputs)))
        {
            Ok(answered) => {
                let same = measures.matches(&self.expected, &answered);
                measures.copy_answered(same);
                if same { "same" } else { "different" }
            }
            Err(error) => {
                tracing::debug!(version = %candidate.id, %error, "a copy of a request failed");
                measures.copy_failed();
                "failed"
            }
        }
    }
}

/// Runs copies for the same outputs of one candidate together. Returns `None` if they cannot be
/// joined.
fn run_joined(
    group: &[ShadowJob],
    inputs: &[Result<Vec<NamedTensor>>],
) -> Option<Result<Vec<Vec<NamedTensor>>>> {
    let first = &group.first().filter(|_| group.len() > 1)?.request;
    let inputs: Vec<&[NamedTensor]> =
        inputs.iter().map(|inputs| inputs.as_deref().ok()).collect::<Option<_>>()?;
    guarded(|| schedule::run_joined(&first.candidate, &inputs, &first.outputs).transpose())
        .transpose()
}

/// Turns a panic of the model into an error.
fn guarded<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(Error::internal("the model panicked")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use base::{ErrorKind, Signature, Tensor, VersionId};
    use engine::fake::FakeEngine;
    use engine::{Engine, LoadRequest, ScheduleMode, ScheduleOptions, Session};
    use schedule::SchedulerConfig;

    use super::*;

    const GRAPH: &str = "millpond-fake 1\ninput x float32 n 3\noutput y float32 n 3\ny = echo x\n";

    /// Returns a candidate that answers with its input of three columns.
    fn candidate(directory: &Path) -> (FakeEngine, Arc<Servable>) {
        let graph = directory.join("graph");
        std::fs::write(&graph, GRAPH).unwrap();
        let fake = FakeEngine::new();
        let session = fake.load(&LoadRequest { graph, ..LoadRequest::default() }).unwrap();
        (fake, servable(session))
    }

    fn servable(session: Box<dyn Session>) -> Arc<Servable> {
        let id = VersionId { model: "m".into(), version: 2 };
        let mode = ScheduleMode::Async;
        let options = ScheduleOptions { mode, max_batch: 4, ..ScheduleOptions::default() };
        Arc::new(Servable::new(id, "fake", session, options).unwrap())
    }

    /// A model that multiplies its input by the number of items of the run.
    struct Mixing(Box<dyn Session>);

    impl Session for Mixing {
        fn signature(&self) -> &Signature {
            self.0.signature()
        }
        fn metadata(&self) -> &BTreeMap<String, String> {
            self.0.metadata()
        }
        fn run(&self, inputs: &[NamedTensor], _: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
            let x = &inputs[0].tensor;
            let items = x.shape()[0] as f32;
            let y: Vec<f32> = x.to_vec::<f32>()?.into_iter().map(|value| value * items).collect();
            Ok(vec![NamedTensor::new("y", Tensor::from_vec(x.shape(), y)?)])
        }
    }

    fn runner() -> ShadowRunner {
        let config = SchedulerConfig { workers: 1, queue_max: 8, pin: false, count_threads: true };
        ShadowRunner::new(Scheduler::start(&config).unwrap(), Arc::default())
    }

    fn copy(
        candidate: &Arc<Servable>,
        measures: &Arc<RolloutMeasures>,
        sent: &[f32],
        expected: &[f32],
    ) -> ShadowJob {
        let request = ShadowRequest {
            candidate: candidate.clone(),
            measures: measures.clone(),
            inputs: vec![row("x", sent)],
            outputs: Vec::new(),
        };
        ShadowJob { request, expected: vec![row("y", expected)], bytes: 0 }
    }

    fn counts(runner: &ShadowRunner) -> [u64; 4] {
        ["dropped", "same", "different", "failed"].map(|kind| {
            let labels = ModelKindLabels { model: "m".into(), kind };
            runner.state.metrics.rollouts.shadow_requests.get_or_create(&labels).get()
        })
    }

    fn row(name: &str, values: &[f32]) -> NamedTensor {
        let shape = [1_usize, values.len()];
        NamedTensor::new(name, Tensor::from_vec(shape.as_slice(), values.to_vec()).unwrap())
    }

    #[test]
    fn a_copy_of_another_shape_does_not_reach_the_model() {
        let dir = tempfile::tempdir().unwrap();
        let (fake, candidate) = candidate(dir.path());
        let measures = Arc::new(RolloutMeasures::new(1e-3, None, 1));
        let refused = copy(&candidate, &measures, &[1.0, 2.0], &[]).inputs().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert_eq!(fake.counters().runs(), 0);
    }

    #[test]
    fn copies_share_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let (fake, candidate) = candidate(dir.path());
        let (runner, measures) = (runner(), Arc::new(RolloutMeasures::new(1e-3, None, 1)));
        let rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]];
        let group = rows.map(|row| copy(&candidate, &measures, &row, &row));
        runner.state.run(&group);
        assert_eq!((fake.counters().runs(), counts(&runner)), (1, [0, 3, 0, 0]));
    }

    #[test]
    fn a_group_has_no_more_items_than_a_batch() {
        let dir = tempfile::tempdir().unwrap();
        let (fake, candidate) = candidate(dir.path());
        let (runner, measures) = (runner(), Arc::new(RolloutMeasures::new(1e-3, None, 1)));
        let (sender, jobs) = sync_channel(8);
        let mut groups = CopyGroups::new(jobs);
        for _ in 0..6 {
            sender.send(copy(&candidate, &measures, &[1.0; 3], &[1.0; 3])).unwrap();
        }
        for copies in [4, 2] {
            let group = groups.next().unwrap();
            assert_eq!(group.len(), copies);
            runner.state.run(&group);
        }
        assert_eq!((fake.counters().runs(), counts(&runner)), (2, [0, 6, 0, 0]));
    }

    /// A difference may be the fault of the shared run.
    #[test]
    fn a_copy_that_differs_runs_again_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (fake, candidate) = candidate(dir.path());
        let (runner, measures) = (runner(), Arc::new(RolloutMeasures::new(1e-3, None, 1)));
        let expected = [[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]];
        let group = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
        let group = [0, 1].map(|at| copy(&candidate, &measures, &group[at], &expected[at]));
        runner.state.run(&group);
        assert!(!measures.copies_run_alone(), "it differs alone too");
        assert_eq!((fake.counters().runs(), counts(&runner)), (2, [0, 1, 1, 0]));
        let figures = measures.read();
        assert_eq!((figures.candidate.requests, figures.differing), (2, 1));
    }

    #[test]
    fn copies_of_a_model_that_mixes_its_items_run_alone() {
        let dir = tempfile::tempdir().unwrap();
        let graph = dir.path().join("graph");
        std::fs::write(&graph, GRAPH).unwrap();
        let request = LoadRequest { graph, ..LoadRequest::default() };
        let candidate = servable(Box::new(Mixing(FakeEngine::new().load(&request).unwrap())));
        let (runner, measures) = (runner(), Arc::new(RolloutMeasures::new(1e-3, None, 1)));
        let (sender, jobs) = sync_channel(4);
        let mut groups = CopyGroups::new(jobs);
        let send = || {
            for row in [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]] {
                sender.send(copy(&candidate, &measures, &row, &row)).unwrap();
            }
        };
        send();
        let group = groups.next().unwrap();
        runner.state.run(&group);
        assert_eq!((group.len(), counts(&runner)), (2, [0, 2, 0, 0]));
        send();
        assert_eq!(groups.next().unwrap().len(), 1);
    }

    /// Otherwise no copy would run any more after some time.
    #[test]
    fn copies_are_counted_and_leave_their_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let (_, candidate) = candidate(dir.path());
        let (runner, measures) = (runner(), Arc::new(RolloutMeasures::new(1e-3, None, 1)));
        let submit = |sent: &[f32]| {
            let job = copy(&candidate, &measures, sent, &[1.0, 2.0, 3.0]);
            runner.submit(job.request, &job.expected);
        };
        let bytes = &runner.state.bytes;
        bytes.store(COPIES_BYTES_MAX, Ordering::Relaxed);
        submit(&[1.0, 2.0, 3.0]);
        assert_eq!(bytes.swap(0, Ordering::Relaxed), COPIES_BYTES_MAX);
        for sent in [&[1.0, 2.0, 3.0][..], &[1.0, 2.0, 4.0], &[1.0, 2.0]] {
            submit(sent);
        }
        let until = Instant::now() + Duration::from_secs(120);
        while counts(&runner) != [1; 4] || bytes.load(Ordering::Relaxed) > 0 {
            assert!(Instant::now() < until, "{:?}, {bytes:?}", counts(&runner));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
