//! Counts of the requests of a rollout. Requests count with atomic operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, NamedTensor, Signature};
use engine::Servable;

use super::admission::{CandidateAdmission, CandidatePermit, RunCost};
use super::compare::compare_answers;
use super::distribution::{DistributionCounts, OutputDistributions};
use super::latency::{LatencyCounts, VersionLatencies};

/// Version of a rollout that answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutArm {
    /// The version that served before.
    Stable,
    /// The new version.
    Candidate,
}

impl RolloutArm {
    fn index(self) -> usize {
        match self {
            RolloutArm::Stable => 0,
            RolloutArm::Candidate => 1,
        }
    }
}

/// Counts of one version.
#[derive(Default)]
struct ArmMeasures {
    requests: AtomicU64,
    errors: AtomicU64,
    latency: VersionLatencies,
    runs: AtomicU64,
    /// Nanoseconds of wall time. See [`RunCost::time`].
    time: AtomicU64,
    /// Nanoseconds for which the runs occupied workers.
    occupied: AtomicU64,
}

impl ArmMeasures {
    /// Counts a failure. The request comes first, so that a reader, who reads errors first, never
    /// sees more errors than requests.
    fn fail(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.errors.fetch_add(1, Ordering::Release);
    }

    fn record_run(&self, run: AnsweredRun) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.time.fetch_add(nanos(run.time), Ordering::Relaxed);
        self.occupied.fetch_add(nanos(run.occupied), Ordering::Relaxed);
        self.runs.fetch_add(1, Ordering::Relaxed);
    }

    fn cost(&self) -> RunCost {
        RunCost {
            runs: self.runs.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.time.load(Ordering::Relaxed)),
            occupied: Duration::from_nanos(self.occupied.load(Ordering::Relaxed)),
        }
    }
}

/// Counts of one rollout.
pub struct RolloutMeasures {
    arms: [ArmMeasures; 2],
    differing: AtomicU64,
    admission: CandidateAdmission,
    /// Distributions of outputs, if the rollout judges them.
    outputs: Option<OutputDistributions>,
    tolerance: f64,
    ended: AtomicBool,
    copies_run_alone: AtomicBool,
}

impl RolloutMeasures {
    /// Creates counts of zero. `signature` describes the outputs whose distributions are judged,
    /// or is `None` if the rollout judges no outputs. `workers` is the number of threads that run
    /// models.
    pub fn new(tolerance: f64, signature: Option<&Signature>, workers: usize) -> RolloutMeasures {
        RolloutMeasures {
            arms: Default::default(),
            differing: AtomicU64::new(0),
            admission: CandidateAdmission::new(workers),
            outputs: signature.map(OutputDistributions::new),
            tolerance,
            ended: AtomicBool::new(false),
            copies_run_alone: AtomicBool::new(false),
        }
    }

    /// Returns true if copies must not run together.
    pub fn copies_run_alone(&self) -> bool {
        self.copies_run_alone.load(Ordering::Relaxed)
    }

    /// Records that the candidate answered like the stable version only if copies ran alone.
    pub fn run_copies_alone(&self) {
        self.copies_run_alone.store(true, Ordering::Relaxed);
    }

    /// Returns true once the rollout has ended. Copies that have not run yet are dropped then.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Marks the rollout as ended: no further request takes part.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn arm(&self, arm: RolloutArm) -> &ArmMeasures {
        &self.arms[arm.index()]
    }

    /// Returns the limit of requests in flight of the candidate.
    pub fn admission(&self) -> &CandidateAdmission {
        &self.admission
    }

    /// Returns the runs of the stable version.
    pub fn stable_cost(&self) -> RunCost {
        self.arm(RolloutArm::Stable).cost()
    }

    /// Returns the runs of the candidate.
    pub fn candidate_cost(&self) -> RunCost {
        self.arm(RolloutArm::Candidate).cost()
    }

    /// Returns true if the answer to a copy is within the tolerance of `expected`.
    pub fn matches(&self, expected: &[NamedTensor], answered: &[NamedTensor]) -> bool {
        compare_answers(expected, answered, self.tolerance).is_none()
    }

    /// Counts a copy of a request that the candidate answered, `same` if the answer matches.
    pub fn copy_answered(&self, same: bool) {
        self.differing.fetch_add(u64::from(!same), Ordering::Relaxed);
        self.arm(RolloutArm::Candidate).requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a copy that the candidate failed to answer.
    pub fn copy_failed(&self) {
        self.arm(RolloutArm::Candidate).fail();
    }

    /// Returns the counts of this moment.
    pub fn read(&self) -> RolloutFigures {
        let figures = |arm: &ArmMeasures| ArmFigures {
            errors: arm.errors.load(Ordering::Acquire),
            requests: arm.requests.load(Ordering::Acquire),
            latency: arm.latency.read(),
            cost: arm.cost(),
        };
        RolloutFigures {
            stable: figures(self.arm(RolloutArm::Stable)),
            candidate: figures(self.arm(RolloutArm::Candidate)),
            differing: self.differing.load(Ordering::Acquire),
            overflowed: self.admission.overflowed(),
            outputs: self.outputs.as_ref().map(OutputDistributions::read),
        }
    }
}

/// Figures of one version.
#[derive(Clone, Debug, Default)]
pub struct ArmFigures {
    /// Requests that the version answered or failed.
    pub requests: u64,
    /// Requests that this version failed.
    pub errors: u64,
    /// Times of the runs of this version, as a histogram.
    pub latency: LatencyCounts,
    /// Number and times of the runs of this version.
    pub cost: RunCost,
}

impl ArmFigures {
    /// Returns the number of requests that the version answered.
    pub fn answered(&self) -> u64 {
        self.requests.saturating_sub(self.errors)
    }

    /// Returns the estimate of p99 of the time of a run, or `None` without a request.
    pub fn p99(&self) -> Option<Duration> {
        self.latency.p99()
    }
}

/// Figures of a rollout at one moment.
#[derive(Clone, Debug, Default)]
pub struct RolloutFigures {
    /// Figures of the version that served before.
    pub stable: ArmFigures,
    /// Figures of the new version.
    pub candidate: ArmFigures,
    /// Copies whose answer differed.
    pub differing: u64,
    /// Requests of the candidate that stable answered, because the candidate had no room.
    pub overflowed: u64,
    /// Values of the outputs of both versions, or `None` if drift is not measured.
    pub outputs: Option<DistributionCounts>,
}

/// The part of a request in a rollout.
#[derive(Clone)]
pub struct RolloutPart {
    /// Counts of the rollout.
    pub measures: Arc<RolloutMeasures>,
    /// Version that answers the request.
    pub arm: RolloutArm,
    /// The candidate under its default signature, if it should get a copy of the request.
    pub shadow: Option<Arc<Servable>>,
    /// Room of a request to the candidate. All runs of the request share it.
    pub permit: Option<Arc<CandidatePermit>>,
    /// True if the candidate had no room for the request.
    pub overflowed: bool,
}

impl RolloutPart {
    /// Returns the counts of the rollout.
    pub fn measures(&self) -> &Arc<RolloutMeasures> {
        &self.measures
    }

    /// Returns true if the stable version runs this request of the candidate, because too many
    /// requests to the candidate are in flight.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Returns the room that a request to the candidate takes. Hold it until the request has run or
    /// will not run.
    pub fn into_permit(self) -> Option<Arc<CandidatePermit>> {
        self.permit
    }

    /// Starts the clock of a request. A request that its client abandons counts as answered by a
    /// run that took the time for which the client waited.
    pub fn start(&self) -> PendingRequest {
        PendingRequest {
            measures: self.measures.clone(),
            arm: self.arm,
            started: Instant::now(),
            counted: false,
        }
    }
}

/// Times of the run that answered a request.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredRun {
    /// Wall time of the run.
    pub time: Duration,
    /// The request's share of the time for which the run occupied a worker.
    pub occupied: Duration,
}

/// A request of a rollout that is not answered yet.
pub struct PendingRequest {
    measures: Arc<RolloutMeasures>,
    arm: RolloutArm,
    started: Instant,
    counted: bool,
}

impl PendingRequest {
    /// Counts the request as answered by `run`. Both versions wait in the same queue, so the time
    /// in it says nothing about a version.
    pub fn answered(mut self, outputs: &[NamedTensor], run: AnsweredRun) {
        self.count(run.time);
        self.measures.arm(self.arm).record_run(run);
        if let Some(distributions) = &self.measures.outputs {
            distributions.record(self.arm.index(), outputs);
        }
    }

    /// Counts the request as failed, unless the version is not the reason. Other reasons are a full
    /// queue, a client that has disconnected, and a request that was refused before it was queued
    /// (`queued` is false).
    pub fn failed(mut self, error: &Error, queued: bool) {
        self.counted = true;
        let counts = match error.kind() {
            ErrorKind::ResourceExhausted | ErrorKind::Cancelled => false,
            ErrorKind::InvalidArgument => queued,
            _ => true,
        };
        if counts {
            self.measures.arm(self.arm).fail();
        }
    }

    fn count(&mut self, run: Duration) {
        self.counted = true;
        let arm = self.measures.arm(self.arm);
        arm.latency.record(run);
        arm.requests.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if !self.counted {
            self.count(self.started.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Tensor;

    use super::*;

    fn part(arm: RolloutArm) -> RolloutPart {
        RolloutPart {
            measures: Arc::new(RolloutMeasures::new(1e-3, None, 1)),
            arm,
            shadow: None,
            permit: None,
            overflowed: false,
        }
    }

    fn y(value: f32) -> Vec<NamedTensor> {
        vec![NamedTensor::new("y", Tensor::from_vec([1usize].as_slice(), vec![value]).unwrap())]
    }

    #[test]
    fn requests_count_for_their_version() {
        let part = part(RolloutArm::Candidate);
        let time = Duration::from_millis(3);
        let run = AnsweredRun { time, occupied: time / 3 };
        part.start().answered(&y(1.0), run);
        drop(part.start());
        part.start().failed(&Error::internal("broken"), true);
        part.start().failed(&Error::exhausted("full"), true);
        part.start().failed(&Error::invalid("its shape"), false);
        part.start().failed(&Error::invalid("no such row"), true);
        let RolloutFigures { stable, candidate, .. } = part.measures.read();
        assert_eq!((candidate.requests, candidate.errors), (4, 2));
        assert_eq!(candidate.latency.total(), 2, "failures may be fast, so their time is left out");
        assert_eq!(candidate.cost, RunCost { runs: 1, time, occupied: time / 3 });
        assert_eq!((stable.requests, stable.errors, stable.p99()), (0, 0, None));
    }

    #[test]
    fn copies_are_compared() {
        let measures = RolloutMeasures::new(1e-3, None, 1);
        for (answered, same) in [(1.0005, true), (1.5, false)] {
            assert_eq!(measures.matches(&y(1.0), &y(answered)), same);
            measures.copy_answered(same);
        }
        measures.copy_failed();
        let figures = measures.read();
        assert_eq!((figures.candidate.requests, figures.candidate.errors), (3, 1));
        assert_eq!(figures.differing, 1);
    }
}
