//! The report of `bench slow`: JSON, a table and goals.

use std::collections::BTreeMap;

use base::Result;
use loadgen::machine::RunContext;
use loadgen::report::TextTable;
use loadgen::samples::KeptSamples;
use loadgen::stats::ratio;
use loadgen::{print, println};
use serde::Serialize;

use super::injection::{Injection, Pulse};
use super::watch::ListedRequest;
use super::{MODEL, SlowArgs};
use crate::report::{BenchReport, Goal, check_faults};

/// Least share of slow requests whose first cause is the injected one.
const NAMED_FIRST_PCT_MIN: f64 = 95.0;
/// Seconds after a pulse in which its effects may last.
const AFTER_PULSE: f64 = 0.05;

/// JSON of one cause.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CauseReport {
    #[serde(skip)]
    injection: &'static str,
    /// Cause that the server should name.
    expected: &'static str,
    /// Reason if it was not injected.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
    /// Number of pulses that were injected.
    pulses: usize,
    /// Slow requests of the model that overlap a pulse; of a slow client only its own.
    slow: usize,
    /// Share of the slow requests in `slow` whose first cause is the expected one, in percent.
    named_first_pct: f64,
    /// Slow requests in `slow` by first cause.
    named: BTreeMap<String, usize>,
    /// Other slow requests of the model, by first cause.
    elsewhere: BTreeMap<String, usize>,
    failed: u64,
    wrong: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failures: Vec<String>,
}

impl CauseReport {
    /// Returns the report of a cause that could not be injected.
    pub(super) fn skipped(injection: Injection, reason: &str) -> CauseReport {
        let report = CauseReport::new(injection, &[], &[], &KeptSamples::default());
        CauseReport { skipped: Some(reason.to_owned()), ..report }
    }

    /// Compares the listed requests with the pulses.
    pub(super) fn new(
        injection: Injection,
        listed: &[ListedRequest],
        pulses: &[Pulse],
        samples: &KeptSamples,
    ) -> CauseReport {
        let mut named: BTreeMap<String, usize> = BTreeMap::new();
        let mut elsewhere: BTreeMap<String, usize> = BTreeMap::new();
        for slow in listed.iter().filter(|slow| slow.model == MODEL) {
            let overlaps = |pulse: &Pulse| {
                slow.time <= pulse.until + AFTER_PULSE
                    && slow.time + slow.total_ms / 1e3 >= pulse.from
            };
            let affected = injection.affects(&slow.protocol) && pulses.iter().any(overlaps);
            let counts = if affected { &mut named } else { &mut elsewhere };
            let first = slow.causes.first().map(|first| first.cause.clone());
            *counts.entry(first.unwrap_or_default()).or_insert(0) += 1;
        }
        let slow: usize = named.values().sum();
        let first = named.get(injection.expected()).copied().unwrap_or(0);
        CauseReport {
            injection: injection.name(),
            expected: injection.expected(),
            skipped: None,
            pulses: pulses.len(),
            slow,
            named_first_pct: 100.0 * ratio(first as f64, slow as f64),
            named,
            elsewhere,
            failed: samples.faults.failed,
            wrong: samples.faults.wrong,
            failures: samples.faults.lines(),
        }
    }

    fn goal(&self) -> Goal {
        let what = format!(
            "{}: slow requests that name {} first, in percent: at least {NAMED_FIRST_PCT_MIN}",
            self.injection, self.expected
        );
        let met = self.slow > 0 && self.named_first_pct >= NAMED_FIRST_PCT_MIN;
        Goal::new(what, self.named_first_pct, met)
    }
}

/// JSON of `bench slow`.
#[derive(Debug, Serialize)]
pub(super) struct SlowReport {
    causes: BTreeMap<&'static str, CauseReport>,
    wanted: Vec<Goal>,
    rate_rps: f64,
    seconds: f64,
    batch: usize,
    heavy_batch: usize,
    bytes: u64,
    #[serde(flatten)]
    context: RunContext,
}

impl SlowReport {
    pub(super) fn new(
        args: &SlowArgs,
        causes: Vec<CauseReport>,
        context: RunContext,
    ) -> SlowReport {
        let injected = causes.iter().filter(|cause| cause.skipped.is_none());
        SlowReport {
            wanted: injected.map(CauseReport::goal).collect(),
            causes: causes.into_iter().map(|cause| (cause.injection, cause)).collect(),
            rate_rps: args.rate,
            seconds: args.seconds.as_secs_f64(),
            batch: args.batch,
            heavy_batch: args.heavy_batch,
            bytes: args.bytes,
            context,
        }
    }
}

impl BenchReport for SlowReport {
    fn print(&self) {
        println!(
            "slow requests over gRPC: {:.0} requests/s of {} rows, pulses of each cause for {:.0} s",
            self.rate_rps, self.batch, self.seconds
        );
        let columns =
            ["cause", "pulses", "slow", "named first", "first causes", "outside of pulses"];
        let mut table = TextTable::left(&columns);
        for (name, cause) in &self.causes {
            let list = |counts: &BTreeMap<String, usize>| {
                let one = |(cause, count): (&String, &usize)| format!("{cause} {count}");
                counts.iter().map(one).collect::<Vec<_>>().join(", ")
            };
            table.row([
                (*name).to_owned(),
                cause.pulses.to_string(),
                cause.slow.to_string(),
                format!("{:.0} %", cause.named_first_pct),
                list(&cause.named),
                list(&cause.elsewhere),
            ]);
        }
        print!("{table}");
        for cause in self.causes.values() {
            if let Some(reason) = &cause.skipped {
                println!("{} was skipped: {reason}", cause.injection);
            }
            cause.failures.iter().for_each(|line| println!("failed: {line}"));
        }
        self.wanted.iter().for_each(|goal| println!("{goal}"));
        println!("{}", self.context);
    }

    fn verdict(&self) -> Result<()> {
        let sum = |count: fn(&CauseReport) -> u64| self.causes.values().map(count).sum();
        check_faults(sum(|cause| cause.failed), sum(|cause| cause.wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_within_pulses_count() {
        let listed = |text: &str| serde_json::from_str::<ListedRequest>(text).unwrap();
        let slow = |time: f64, model: &str, cause: &str| {
            listed(&format!(
                r#"{{"number":1,"time":{time},"model":"{model}","total_ms":100,"causes":[{{"cause":"{cause}"}}]}}"#
            ))
        };
        let all = [
            slow(9.95, MODEL, "cpu_contention"),
            slow(10.3, MODEL, "cpu_contention"),
            slow(10.44, MODEL, "unknown"),
            slow(10.46, MODEL, "unknown"),
            slow(9.8, MODEL, "load"),
            slow(10.1, "heavy", "load"),
        ];
        let pulses = [Pulse { from: 10.0, until: 10.4 }];
        let report = CauseReport::new(Injection::CpuHog, &all, &pulses, &KeptSamples::default());
        assert_eq!((report.slow, report.pulses), (3, 1));
        assert!((report.named_first_pct - 200.0 / 3.0).abs() < 1e-9);
        assert_eq!(report.elsewhere, [("load".into(), 1), ("unknown".into(), 1)].into());
        assert!(!report.goal().met);
    }

    #[test]
    fn a_slow_client_delays_only_itself() {
        let slow = |protocol: &str, cause: &str| {
            let text = format!(
                r#"{{"number":1,"time":10,"model":"{MODEL}","protocol":"{protocol}","total_ms":100,"causes":[{{"cause":"{cause}"}}]}}"#
            );
            serde_json::from_str::<ListedRequest>(&text).unwrap()
        };
        let all = [slow("tfs-http", "client_slow_send"), slow("oip-grpc", "unknown")];
        let pulses = [Pulse { from: 10.0, until: 10.4 }];
        let report =
            CauseReport::new(Injection::SlowClient, &all, &pulses, &KeptSamples::default());
        assert_eq!((report.slow, report.named_first_pct), (1, 100.0));
        assert_eq!(report.elsewhere, [("unknown".into(), 1)].into());
    }
}
