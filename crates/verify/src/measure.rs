//! The latency of two servers under the same requests, measured in turns.

use std::sync::Arc;
use std::time::Duration;

use base::{NamedTensor, Result};
use bytes::Bytes;
use loadgen::connection::{RawResponse, Template};
use loadgen::drive::{DrivePlan, Judge, Judgement, LoadLoop, SampleSink, drive};
use loadgen::report::StepProgress;
use loadgen::samples::{Tally, TallyCounts};
use loadgen::schedule::Arrivals;

use crate::answer::RecordedMethod;
use crate::compare::{Comparison, agree};
use crate::records::RecordedCalls;
use crate::{NAMES, VerifyPlan};

/// Part of a round that is not counted, while connections and caches get warm.
const WARM_UP_PART: u32 = 10;
/// Seed of the gaps of the open loop. Both servers get the same.
const SEED: u64 = 31;

/// Measures both servers, one after the other in each of `rounds`. Sends the requests that both
/// answered, one method after the other.
///
/// # Errors
/// `Unavailable` if a server cannot be reached.
pub(crate) fn measure(
    plan: &VerifyPlan,
    rounds: usize,
    records: &RecordedCalls,
    comparison: &Comparison,
    progress: &StepProgress,
) -> Result<[TallyCounts; 2]> {
    let mut counts = [TallyCounts::default(), TallyCounts::default()];
    let both = |&call: &usize| comparison.answers.iter().all(|answers| answers[call].is_some());
    let answered: Vec<usize> = (0..records.calls.len()).filter(both).collect();
    let mut loads = Vec::new();
    for method in RecordedMethod::ALL {
        let of_method = |&&call: &&usize| records.calls[call].method == method;
        let calls: Vec<usize> = answered.iter().filter(of_method).copied().collect();
        if !calls.is_empty() {
            let share = calls.len() as f64 / answered.len() as f64;
            let duration = plan.duration.mul_f64(share);
            loads.push(MethodLoad::new(method, &calls, duration, records, comparison, plan)?);
        }
    }
    for round in 0..rounds {
        // The order changes, so that neither always has the fresher machine.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for number in order {
            progress.say(format!("round {}: {}", round + 1, NAMES[number]));
            for load in &loads {
                add(&mut counts[number], &load.drive(plan, number)?);
            }
            progress.step();
        }
    }
    Ok(counts)
}

/// The requests of one method.
struct MethodLoad {
    method: RecordedMethod,
    /// Recorded requests, as frames to send.
    shots: Arc<[Bytes]>,
    /// Judge of the answers of each server. It compares them with the first answers of that server.
    judges: [Arc<dyn Judge>; 2],
    /// Time on one server in a round. It is the method's share by number of requests.
    duration: Duration,
}

impl MethodLoad {
    /// Prepares the requests `calls` (indices into `records`), which all are of `method`.
    ///
    /// # Errors
    /// The error of an answer in `comparison` that cannot be decoded.
    fn new(
        method: RecordedMethod,
        calls: &[usize],
        duration: Duration,
        records: &RecordedCalls,
        comparison: &Comparison,
        plan: &VerifyPlan,
    ) -> Result<MethodLoad> {
        let judge = |answers: &[Option<Bytes>]| -> Result<Arc<dyn Judge>> {
            let expected =
                calls.iter().map(|&call| FirstAnswer::new(method, answers[call].as_ref()));
            let expected = expected.collect::<Result<_>>()?;
            Ok(Arc::new(AnswerJudge { method, expected, tolerance: plan.tolerance }))
        };
        let judges = [judge(&comparison.answers[0])?, judge(&comparison.answers[1])?];
        let shots = calls.iter().map(|&call| records.calls[call].frame.clone()).collect();
        Ok(MethodLoad { method, shots, judges, duration })
    }

    /// Sends the requests to server `number`, and returns the counts.
    fn drive(&self, plan: &VerifyPlan, number: usize) -> Result<TallyCounts> {
        let pace = match plan.rate {
            Some(rate) => LoadLoop::Open { arrivals: Arrivals::Poisson, rate, seed: SEED },
            None => LoadLoop::Closed { clients: plan.clients },
        };
        let endpoint = &plan.servers[number].endpoint;
        let template = Template::grpc(endpoint, self.method.path())?;
        let shots = self.shots.clone();
        let drive_plan = DrivePlan::new(endpoint.clone(), template, shots, pace, self.duration);
        let tally = Arc::new(Tally::new(self.duration / WARM_UP_PART));
        let sink: Arc<dyn SampleSink> = tally.clone();
        drive(&drive_plan, &self.judges[number], &sink)?;
        Ok(tally.counted())
    }
}

/// Adds the counts of a round to `total`, as if the round followed the earlier rounds without a
/// gap.
fn add(total: &mut TallyCounts, round: &TallyCounts) {
    total.latencies.add(&round.latencies);
    total.faults.add(&round.faults);
    total.first = Some(Duration::ZERO);
    total.last += round.last.saturating_sub(round.first.unwrap_or_default());
}

/// The server's first answer to a request.
struct FirstAnswer {
    bytes: Bytes,
    outputs: Vec<NamedTensor>,
}

impl FirstAnswer {
    fn new(method: RecordedMethod, answer: Option<&Bytes>) -> Result<FirstAnswer> {
        let bytes = answer.cloned().unwrap_or_default();
        Ok(FirstAnswer { outputs: method.outputs(&bytes)?, bytes })
    }
}

/// Judge that finds answers that differ from the server's own first answer to the same request.
struct AnswerJudge {
    method: RecordedMethod,
    expected: Vec<FirstAnswer>,
    tolerance: f64,
}

impl Judge for AnswerJudge {
    fn judge(&self, shot: usize, answer: &RawResponse) -> (Judgement, u64) {
        let expected = &self.expected[shot];
        let right = answer.body == expected.bytes
            || (self.method.outputs(&answer.body))
                .is_ok_and(|outputs| agree(&outputs, &expected.outputs, self.tolerance));
        (if right { Judgement::Right } else { Judgement::Wrong }, 0)
    }
}
