//! Results of the requests of one phase.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use loadgen::drive::{Judgement, NO_ROOM, RequestSample, SampleSink};
use loadgen::samples::Faults;
use loadgen::stats::{Latencies, ratio};

/// gRPC codes and names of a refusal.
const REFUSALS: [(u32, &str); 2] = [(8, "RESOURCE_EXHAUSTED"), (14, "UNAVAILABLE")];
/// Beginning of the reason in [`loadgen::connection`] for a request that the server answered with a
/// status.
const STATUS_PREFIX: &str = "gRPC status ";
/// Maximum lateness at the 99th percentile. Above it, the client does not send requests on time.
const LATE_P99_MS_MAX: f64 = 20.0;

/// Sorts finished requests by their results.
#[derive(Debug)]
pub(super) struct Outcomes {
    warm_up: Duration,
    seen: Mutex<PhaseCounts>,
}

#[derive(Clone, Debug, Default)]
struct PhaseCounts {
    served: Latencies,
    refused: Latencies,
    late: Latencies,
    statuses: BTreeMap<String, u64>,
    wrong: u64,
    unsent: u64,
    failed: Faults,
}

/// Result of a request that was not served.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unserved {
    /// Refused with this status.
    Refused(&'static str),
    /// Not sent by the client.
    Unsent,
    /// Any other failure.
    Failed,
}

/// Parses the reason of a failure.
fn unserved(reason: Option<&str>) -> Unserved {
    if reason == Some(NO_ROOM) {
        return Unserved::Unsent;
    }
    let code = reason
        .and_then(|reason| reason.strip_prefix(STATUS_PREFIX))
        .and_then(|rest| rest.split(':').next()?.trim().parse::<u32>().ok());
    let known = REFUSALS.iter().find(|(number, _)| code == Some(*number));
    known.map_or(Unserved::Failed, |(_, name)| Unserved::Refused(name))
}

impl Outcomes {
    /// Leaves out requests due before `warm_up`, except wrong answers and failures.
    pub(super) fn new(warm_up: Duration) -> Outcomes {
        Outcomes { warm_up, seen: Mutex::default() }
    }

    /// Returns the figures of requests that came at `rate` a second for `time`.
    pub(super) fn phase(&self, rate: f64, time: Duration) -> OverloadPhase {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = seen.late.count();
        let late_p99_ms = seen.late.quantile_ms(0.99);
        OverloadPhase {
            rate_rps: rate,
            p50_ms: seen.served.quantile_ms(0.5),
            p99_ms: seen.served.quantile_ms(0.99),
            served: seen.served.count(),
            refused: seen.refused.count(),
            failed: seen.failed.failed,
            wrong: seen.wrong,
            served_rps: ratio(seen.served.count() as f64, time.as_secs_f64()),
            refusals: seen.statuses,
            refusal_p50_ms: seen.refused.quantile_ms(0.5),
            refusal_p99_ms: seen.refused.quantile_ms(0.99),
            failures: seen.failed.lines(),
            generator: Generator {
                sent,
                unsent: seen.unsent,
                late_p50_ms: seen.late.quantile_ms(0.5),
                late_p99_ms,
                fell_behind: seen.unsent > 0 || late_p99_ms > LATE_P99_MS_MAX,
            },
        }
    }
}

impl SampleSink for Outcomes {
    fn record(&self, sample: RequestSample, reason: Option<&str>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = sample.due >= self.warm_up;
        match sample.verdict {
            Judgement::Wrong => seen.wrong += 1,
            Judgement::Right if counts => seen.served.record(sample.latency),
            Judgement::Right => {}
            Judgement::Failed => match unserved(reason) {
                Unserved::Failed => seen.failed.count(sample.verdict, reason),
                Unserved::Unsent => seen.unsent += 1,
                Unserved::Refused(status) if counts => {
                    seen.refused.record(sample.latency);
                    *seen.statuses.entry(status.to_owned()).or_insert(0) += 1;
                }
                Unserved::Refused(_) => {}
            },
        }
    }

    fn sending(&self, late: Duration) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).late.record(late);
    }
}

/// JSON of one phase. Latencies count from the moment a request was due.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct OverloadPhase {
    /// Requests a second that were due.
    pub(super) rate_rps: f64,
    /// Latency of the served requests, in milliseconds.
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) served: u64,
    pub(super) refused: u64,
    /// Number of requests neither served nor refused.
    pub(super) failed: u64,
    pub(super) wrong: u64,
    pub(super) served_rps: f64,
    /// Refused requests by status.
    pub(super) refusals: BTreeMap<String, u64>,
    pub(super) refusal_p50_ms: f64,
    pub(super) refusal_p99_ms: f64,
    /// Reasons of failed requests, most frequent first.
    pub(super) failures: Vec<String>,
    pub(super) generator: Generator,
}

/// Punctuality of the client.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Generator {
    /// Number of requests sent.
    pub(super) sent: u64,
    /// Number of requests not sent because too many answers were outstanding.
    pub(super) unsent: u64,
    /// Time from the due moment of a request until it was sent, in milliseconds.
    pub(super) late_p50_ms: f64,
    pub(super) late_p99_ms: f64,
    /// True if requests did not come when they were due.
    pub(super) fell_behind: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_and_failures_are_distinguished() {
        assert_eq!(
            unserved(Some("gRPC status 8: the queue is full")),
            Unserved::Refused("RESOURCE_EXHAUSTED")
        );
        assert_eq!(unserved(Some("gRPC status 14: stopping")), Unserved::Refused("UNAVAILABLE"));
        assert_eq!(unserved(Some(NO_ROOM)), Unserved::Unsent);
        for other in ["gRPC status 4: too late", "connection: reset", "gRPC status"] {
            assert_eq!(unserved(Some(other)), Unserved::Failed, "{other}");
        }
        assert_eq!(unserved(None), Unserved::Failed);
    }

    #[test]
    fn every_request_is_counted_once() {
        let ms = Duration::from_millis;
        let outcomes = Outcomes::new(ms(100));
        let record = |due, verdict, reason: Option<&str>| {
            outcomes.record(
                RequestSample { due: ms(due), latency: ms(5), verdict, version: 1 },
                reason,
            );
        };
        record(50, Judgement::Right, None);
        record(150, Judgement::Right, None);
        record(150, Judgement::Wrong, None);
        record(50, Judgement::Failed, Some("gRPC status 8: full"));
        record(150, Judgement::Failed, Some("gRPC status 8: full"));
        record(150, Judgement::Failed, Some(NO_ROOM));
        record(150, Judgement::Failed, Some("gRPC status 13: broken"));
        outcomes.sending(ms(1));
        let phase = outcomes.phase(100.0, Duration::from_secs(2));
        assert_eq!((phase.served, phase.refused, phase.failed, phase.wrong), (1, 1, 1, 1));
        assert_eq!(
            (phase.generator.sent, phase.generator.unsent, phase.generator.fell_behind),
            (1, 1, true)
        );
        assert_eq!(phase.refusals["RESOURCE_EXHAUSTED"], 1);
        assert_eq!(phase.failures, ["1 x gRPC status 13: broken"]);
        assert_eq!(phase.served_rps, 0.5);
    }
}
