//! Finds the causes of a slow request: a pure function of its timeline, the typical times of its
//! model, and the samples of the machine.
//!
//! Each phase's time beyond the typical one is assigned to causes. The machine is blamed at most
//! for the time in which, according to the kernel, threads waited for a core. The rest of a phase
//! belongs to the cause that the phase itself shows, such as the client while the body arrives.

use std::time::Duration;

use base::{RequestTimeline, RunRecord};

use super::evidence::{CORES_MIN, SampleSums};
use super::phases::{Phase, PhaseTimes, ms};
use super::typical::Typical;

/// Maximum causes that are reported of one request.
const CAUSES_SHOWN_MAX: usize = 5;
/// Minimum share of the excess for a cause after the first.
const SHARE_MIN: f64 = 0.02;
/// Typical time of a page fault without a read from disk, in milliseconds.
const MINOR_FAULT_MS: f64 = 0.0007;
/// Longest time that one page fault with a read from disk is blamed for, in milliseconds.
const MAJOR_FAULT_MS_MAX: f64 = 20.0;
/// Share of the cores that other processes use beyond the usual. Above it, all processor time of a
/// request takes longer, and its threads are late.
const BUSY_SHARE_MIN: f64 = 0.5;
/// Growth of items above which a run is larger than usual.
const ITEMS_RATIO: f64 = 1.5;
/// Share of the time of the runs in front that was not on a core, above which they were held up.
const HELD_UP_MIN: f64 = 0.1;

/// Causes, as their names in answers and metrics.
pub const CAUSES: [&str; 12] = [
    "cpu_contention",
    "stolen_time",
    "throttled",
    "page_faults",
    "load",
    "behind_batch",
    "own_queue",
    "batch_mates",
    "large_request",
    "client_slow_send",
    "client_slow_read",
    "unknown",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    CpuContention,
    StolenTime,
    Throttled,
    PageFaults,
    Load,
    BehindBatch,
    OwnQueue,
    BatchMates,
    LargeRequest,
    ClientSlowSend,
    ClientSlowRead,
    Unknown,
}

const ALL: [Cause; CAUSES.len()] = [
    Cause::CpuContention,
    Cause::StolenTime,
    Cause::Throttled,
    Cause::PageFaults,
    Cause::Load,
    Cause::BehindBatch,
    Cause::OwnQueue,
    Cause::BatchMates,
    Cause::LargeRequest,
    Cause::ClientSlowSend,
    Cause::ClientSlowRead,
    Cause::Unknown,
];

/// A cause of a slow request.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowCause {
    /// One of [`CAUSES`].
    pub cause: &'static str,
    /// Time that it cost, in milliseconds.
    pub ms: f64,
    /// Observation, for people.
    pub detail: String,
}

/// Returns the causes, the largest first. Their times add up to the excess over the median, except
/// for small ones that are left out. There is at least one.
pub(crate) fn explain(
    timeline: &RequestTimeline,
    typical: &Typical,
    evidence: &SampleSums,
) -> Vec<SlowCause> {
    let excess = ms(timeline.total().saturating_sub(typical.median));
    let mut search = CauseSearch::new(timeline, typical, evidence);
    search.explain_connection();
    if let Some(run) = &timeline.run {
        search.explain_compute(run);
        search.explain_off_core(run);
    }
    search.explain_queue();
    search.finish(excess)
}

/// Time that the machine can still be blamed for, in milliseconds.
struct MachineBudget {
    throttled: f64,
    stolen: f64,
    workers_waited: f64,
    connections_waited: f64,
}

/// Threads that may have waited for a core.
#[derive(Clone, Copy)]
enum WaitingThread {
    Worker,
    Connection,
}

/// Attribution of a slow request's excess over the typical times to causes. Times are in
/// milliseconds.
struct CauseSearch<'a> {
    timeline: &'a RequestTimeline,
    typical: &'a Typical,
    evidence: &'a SampleSums,
    phases: PhaseTimes,
    budget: MachineBudget,
    /// Time of each cause so far.
    found: [f64; CAUSES.len()],
}

impl<'a> CauseSearch<'a> {
    fn new(timeline: &'a RequestTimeline, typical: &'a Typical, evidence: &'a SampleSums) -> Self {
        let budget = MachineBudget {
            throttled: evidence.throttled,
            stolen: evidence.stolen,
            workers_waited: evidence.workers_waited,
            connections_waited: evidence.connections_waited,
        };
        let phases = PhaseTimes::of(timeline);
        CauseSearch { timeline, typical, evidence, phases, budget, found: Default::default() }
    }

    fn excess(&self, phase: Phase) -> f64 {
        self.phases.excess(&self.typical.phases, phase)
    }

    fn add(&mut self, cause: Cause, time: f64) {
        self.found[cause as usize] += time;
    }

    /// Blames the machine for at most `time`, within the evidence. Returns the rest.
    fn attribute_to_machine(&mut self, time: f64, waiter: WaitingThread) -> f64 {
        let budget = &mut self.budget;
        let throttled = time.min(budget.throttled);
        budget.throttled -= throttled;
        let stolen = (time - throttled).min(budget.stolen);
        budget.stolen -= stolen;
        let waited = match waiter {
            WaitingThread::Worker => &mut budget.workers_waited,
            WaitingThread::Connection => &mut budget.connections_waited,
        };
        let contended = (time - throttled - stolen).min(*waited);
        *waited -= contended;
        self.add(Cause::Throttled, throttled);
        self.add(Cause::StolenTime, stolen);
        let load = contended * self.load_share();
        self.add(Cause::Load, load);
        self.add(Cause::CpuContention, contended - load);
        time - throttled - stolen - contended
    }

    /// Returns the part of competing processor time that loads used. Time that other processes
    /// always use is not a reason for a slow request.
    fn load_share(&self) -> f64 {
        let evidence = self.evidence;
        let loads = self.evidence.loads;
        let floor = CORES_MIN / 2.0 * evidence.length;
        if loads > 0.0 { loads / (loads + evidence.others_excess() + floor) } else { 0.0 }
    }

    fn loading(&self) -> bool {
        self.timeline.loading && self.evidence.in_cores(self.evidence.loads) >= CORES_MIN
    }

    /// Returns true if other processes used so much beyond the usual that any thread was late.
    fn crowded(&self) -> bool {
        let evidence = self.evidence;
        let used = evidence.in_cores(evidence.others_excess());
        used >= CORES_MIN && used >= BUSY_SHARE_MIN * evidence.cores as f64
    }

    /// Attributes the excess of the phases on the connection's thread.
    fn explain_connection(&mut self) {
        for (phase, cause) in [
            (Phase::Receive, Cause::ClientSlowSend),
            (Phase::Decode, Cause::Unknown),
            (Phase::Resume, Cause::Unknown),
            (Phase::Encode, Cause::Unknown),
            (Phase::Send, Cause::ClientSlowRead),
        ] {
            let rest = self.attribute_to_machine(self.excess(phase), WaitingThread::Connection);
            self.add(cause, rest);
        }
    }

    /// Attributes the excess of processor time to page faults, a larger run, loads or other
    /// processes.
    fn explain_compute(&mut self, run: &RunRecord) {
        let excess = self.excess(Phase::Compute);
        let faults = (run.minor_faults as f64 - self.typical.minor_faults).max(0.0);
        let faulted = excess.min(faults * MINOR_FAULT_MS);
        self.add(Cause::PageFaults, faulted);
        let larger = run.items as f64 > ITEMS_RATIO * self.typical.items.max(1.0);
        let cause = if larger && run.requests > 1 {
            Cause::BatchMates
        } else if larger {
            Cause::LargeRequest
        } else if self.loading() {
            Cause::Load
        } else if self.evidence.in_cores(self.evidence.others_excess()) >= CORES_MIN {
            Cause::CpuContention
        } else {
            Cause::Unknown
        };
        self.add(cause, excess - faulted);
    }

    /// Attributes the excess of the time in which the worker was not on a core.
    fn explain_off_core(&mut self, run: &RunRecord) {
        let rest = self.attribute_to_machine(self.excess(Phase::OffCore), WaitingThread::Worker);
        let faulted = rest.min(run.major_faults as f64 * MAJOR_FAULT_MS_MAX);
        self.add(Cause::PageFaults, faulted);
        self.add(Cause::Unknown, rest - faulted);
    }

    /// Attributes the excess of the wait for a worker.
    fn explain_queue(&mut self) {
        let excess = self.excess(Phase::Queue);
        let Some(run) = &self.timeline.run else { return self.add(Cause::Unknown, excess) };
        let wait = &run.wait;
        let busy = ms(wait.busy);
        if busy <= 0.0 {
            // No run was in front, so a worker was late.
            let rest = self.attribute_to_machine(excess, WaitingThread::Worker);
            return self.add(Cause::Unknown, rest);
        }
        let phases = &self.typical.phases;
        let usual = phases.get(Phase::OffCore)
            / (phases.get(Phase::OffCore) + phases.get(Phase::Compute)).max(f64::MIN_POSITIVE);
        let held_up = ms(wait.off_core) / busy - usual;
        let own_runs = (ms(wait.busy_own) / busy).min(1.0);
        let own = if wait.before > 0 { own_runs } else { 0.0 };
        // If the runs in front were held up, the model's own queue grew because of that. Runs of
        // other models are long by themselves, and the machine causes only their time off the core.
        let share = if held_up >= HELD_UP_MIN { own + held_up.min(1.0) * (1.0 - own) } else { 0.0 };
        let rest = excess * (1.0 - share)
            + self.attribute_to_machine(excess * share, WaitingThread::Worker);
        let behind_own = rest * own_runs;
        let left = self.attribute_backlog(behind_own);
        let rest = rest - behind_own + left;
        let own = rest * own;
        self.add(Cause::OwnQueue, own);
        self.add(Cause::BehindBatch, rest - own);
    }

    /// Attributes at most `time` of the wait behind the model's own runs to delays of the machine.
    /// A stop of the workers delays every later request until the queue is empty again. This
    /// includes a stop between two runs, which no run shows. Returns the rest.
    fn attribute_backlog(&mut self, time: f64) -> f64 {
        let evidence = self.evidence;
        let before = evidence.backlog;
        // As in `SampleRing::backlog`: threads of this process make each other wait too.
        let competes = |used: f64| evidence.in_cores(used) >= CORES_MIN;
        let by_loads = competes(evidence.loads);
        let by_others = !by_loads && competes(evidence.others_excess());
        let budget = &mut self.budget;
        let throttled = time.min(budget.throttled + before.throttled);
        budget.throttled = (budget.throttled - throttled).max(0.0);
        let stolen = (time - throttled).min(budget.stolen + before.stolen);
        budget.stolen = (budget.stolen - stolen).max(0.0);
        let rest = time - throttled - stolen;
        let waited = |counts: bool| if counts { budget.workers_waited } else { 0.0 };
        let loads = rest.min(before.loads + waited(by_loads));
        let contended = (rest - loads).min(before.contended + waited(by_others));
        budget.workers_waited = (budget.workers_waited - loads - contended).max(0.0);
        self.add(Cause::Throttled, throttled);
        self.add(Cause::StolenTime, stolen);
        self.add(Cause::Load, loads);
        self.add(Cause::CpuContention, contended);
        rest - loads - contended
    }

    /// Returns the causes, scaled to `excess`.
    fn finish(mut self, excess: f64) -> Vec<SlowCause> {
        let found: f64 = self.found.iter().sum();
        if found > excess {
            let scale = if found > 0.0 { excess / found } else { 0.0 };
            self.found.iter_mut().for_each(|time| *time *= scale);
        } else {
            self.add(Cause::Unknown, excess - found);
        }
        if self.loading() {
            let unknown = std::mem::take(&mut self.found[Cause::Unknown as usize]);
            self.add(Cause::Load, unknown);
        } else if self.crowded() {
            let unknown = std::mem::take(&mut self.found[Cause::Unknown as usize]);
            self.add(Cause::CpuContention, unknown);
        }
        let mut causes: Vec<Cause> = ALL.to_vec();
        let time = |cause: &Cause| self.found[*cause as usize];
        causes.sort_by(|a, b| time(b).total_cmp(&time(a)));
        let mut shown: Vec<Cause> = causes
            .into_iter()
            .filter(|cause| time(cause) > 0.0 && time(cause) >= SHARE_MIN * excess)
            .take(CAUSES_SHOWN_MAX)
            .collect();
        if shown.is_empty() {
            shown.push(Cause::Unknown);
        }
        let cause = |cause: Cause| SlowCause {
            cause: CAUSES[cause as usize],
            ms: time(&cause),
            detail: self.detail(cause),
        };
        shown.into_iter().map(cause).collect()
    }

    /// Describes the observation behind a cause.
    fn detail(&self, cause: Cause) -> String {
        let evidence = self.evidence;
        let run = self.timeline.run.as_ref();
        let items = run.map_or(0, |run| run.items);
        match cause {
            Cause::CpuContention => format!(
                "other processes used {:.1} of {} cores, usually {:.1}; threads of requests waited for a core",
                evidence.in_cores(evidence.others),
                evidence.cores,
                evidence.in_cores(evidence.others_usual)
            ),
            Cause::StolenTime => {
                let stolen = evidence.stolen + evidence.backlog.stolen;
                format!("the hypervisor took {stolen:.0} ms from the cores")
            }
            Cause::Throttled => format!(
                "the CPU quota of the control group stopped threads for {:.0} ms, {:.0} ms of that before \
                 the request arrived",
                evidence.throttled + evidence.backlog.throttled,
                evidence.backlog.throttled
            ),
            Cause::PageFaults => format!(
                "{} page faults read from disk, {} did not",
                run.map_or(0, |run| run.major_faults),
                run.map_or(0, |run| run.minor_faults)
            ),
            Cause::Load => {
                let version = evidence.loading.as_ref().map(|id| format!(" of {id}"));
                format!(
                    "the load or unload{} used {:.1} cores",
                    version.unwrap_or_default(),
                    evidence.in_cores(evidence.loads)
                )
            }
            Cause::BehindBatch => behind_run(run),
            Cause::OwnQueue => format!(
                "{} requests of the model waited before it",
                run.map_or(0, |run| run.wait.before)
            ),
            Cause::BatchMates => format!(
                "it ran in a batch of {items} items with {} other requests",
                run.map_or(0, |run| run.requests.saturating_sub(1))
            ),
            Cause::LargeRequest => format!(
                "it has {items} items; a run of the model has {:.0} usually",
                self.typical.items
            ),
            Cause::ClientSlowSend => {
                format!("the body took {:.1} ms to arrive", self.phases.get(Phase::Receive))
            }
            Cause::ClientSlowRead => format!(
                "the client took {:.1} ms to read the response",
                self.phases.get(Phase::Send)
            ),
            Cause::Unknown => "nothing that is measured explains it".to_owned(),
        }
    }
}

/// Returns the text of a wait for a run that began before.
fn behind_run(run: Option<&RunRecord>) -> String {
    let Some(ahead) = run.and_then(|run| run.wait.ahead.as_ref()) else {
        return "it waited behind other runs".to_owned();
    };
    let time: Duration = ahead.time;
    format!(
        "it waited behind a run of model {} with {} items, which took {:.1} ms",
        ahead.model,
        ahead.items,
        ms(time)
    )
}

#[cfg(test)]
#[path = "causes_tests.rs"]
mod tests;
