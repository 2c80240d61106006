//! The report of `bench overload`: JSON, a table and goals.

use base::{Error, Result};
use serde::Serialize;

use super::OverloadArgs;
use super::phase::OverloadPhase;
use super::tenants::TenantReport;
use crate::report::{BenchReport, Goal};
use loadgen::machine::RunContext;
use loadgen::report::{TextTable, ms};
use loadgen::stats::ratio;
use loadgen::{print, println};

/// Maximum p99 of the served, overload over capacity.
const RATIO_P99_MAX: f64 = 2.0;
/// Maximum of memory at the end over that when the load had settled.
const MEMORY_RATIO_MAX: f64 = 1.1;

/// The server's resident memory during the overload.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ResidentMemory {
    pub(super) start_mb: f64,
    pub(super) end_mb: f64,
    pub(super) peak_mb: f64,
}

/// JSON of `bench overload`.
#[derive(Debug, Serialize)]
pub(super) struct OverloadReport {
    capacity_rps: f64,
    at_capacity: OverloadPhase,
    overload: OverloadPhase,
    ratio_p99: f64,
    /// Memory after the first ten seconds (the first sixth of a shorter run).
    rss_start_mb: f64,
    rss_end_mb: f64,
    rss_peak_mb: f64,
    /// Number of requests neither served nor refused.
    failed: u64,
    wrong: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenants: Option<TenantReport>,
    wanted: Vec<Goal>,
    factor: f64,
    time_s: f64,
    rows: usize,
    max_batch: usize,
    queue: usize,
    clients: usize,
    #[serde(flatten)]
    context: RunContext,
}

impl OverloadReport {
    pub(super) fn new(
        args: &OverloadArgs,
        capacity: f64,
        at_capacity: OverloadPhase,
        overload: OverloadPhase,
        memory: ResidentMemory,
        tenants: Option<TenantReport>,
        context: RunContext,
    ) -> OverloadReport {
        let mut goals = goals_of(&at_capacity, &overload, memory);
        goals.extend(tenants.iter().flat_map(TenantReport::goals));
        let [failed, wrong] = tenants.as_ref().map(TenantReport::faults).unwrap_or_default();
        OverloadReport {
            capacity_rps: capacity,
            ratio_p99: ratio(overload.p99_ms, at_capacity.p99_ms),
            rss_start_mb: memory.start_mb,
            rss_end_mb: memory.end_mb,
            rss_peak_mb: memory.peak_mb,
            failed: at_capacity.failed + overload.failed + failed,
            wrong: at_capacity.wrong + overload.wrong + wrong,
            tenants,
            wanted: goals,
            at_capacity,
            overload,
            factor: args.factor,
            time_s: args.time.as_secs_f64(),
            rows: args.rows,
            max_batch: args.max_batch,
            queue: args.queue,
            clients: args.clients,
            context,
        }
    }
}

impl BenchReport for OverloadReport {
    fn print(&self) {
        println!(
            "overload over gRPC: requests of {} items, batches of at most {}, at most {} waiting; {:.0} s at {} x capacity",
            self.rows, self.max_batch, self.queue, self.time_s, self.factor
        );
        println!(
            "capacity ({} clients that wait): {:.0} requests/s",
            self.clients, self.capacity_rps
        );
        let columns = [
            "load",
            "due/s",
            "served/s",
            "p50 ms",
            "p99 ms",
            "served",
            "refused",
            "p99 ms",
            "failed",
            "late p99 ms",
        ];
        let mut table = TextTable::new(&columns);
        for (name, phase) in [("at capacity", &self.at_capacity), ("overload", &self.overload)] {
            table.row([
                name.into(),
                format!("{:.0}", phase.rate_rps),
                format!("{:.0}", phase.served_rps),
                ms(phase.p50_ms),
                ms(phase.p99_ms),
                phase.served.to_string(),
                phase.refused.to_string(),
                ms(phase.refusal_p99_ms),
                phase.failed.to_string(),
                ms(phase.generator.late_p99_ms),
            ]);
        }
        print!("{table}");
        for (status, count) in &self.overload.refusals {
            println!("refused with {status}: {count}");
        }
        for phase in [&self.at_capacity, &self.overload] {
            phase.failures.iter().for_each(|line| println!("failed: {line}"));
            if phase.generator.fell_behind {
                println!(
                    "the client fell behind at {:.0}/s: {} requests not sent, p99 late by {} ms: the load was less than asked for",
                    phase.rate_rps,
                    phase.generator.unsent,
                    ms(phase.generator.late_p99_ms)
                );
            }
        }
        println!(
            "resident memory: {:.0} MiB settled, {:.0} at the end, {:.0} at most",
            self.rss_start_mb, self.rss_end_mb, self.rss_peak_mb
        );
        self.tenants.iter().flat_map(TenantReport::lines).for_each(|line| println!("{line}"));
        self.wanted.iter().for_each(|goal| println!("{goal}"));
        println!("{}", self.context);
    }

    fn verdict(&self) -> Result<()> {
        match self.failed + self.wrong {
            0 => Ok(()),
            _ => Err(Error::internal(format!(
                "{} requests were neither served nor refused, {} answers were wrong",
                self.failed, self.wrong
            ))),
        }
    }
}

fn goals_of(
    at_capacity: &OverloadPhase,
    overload: &OverloadPhase,
    memory: ResidentMemory,
) -> Vec<Goal> {
    let tail = ratio(overload.p99_ms, at_capacity.p99_ms);
    let waited = ratio(overload.refusal_p99_ms, overload.p50_ms);
    let growth = ratio(memory.end_mb, memory.start_mb);
    let failed = at_capacity.failed + overload.failed;
    let wrong = at_capacity.wrong + overload.wrong;
    vec![
        Goal::new(
            format!("p99 of the served, overload / capacity: at most {RATIO_P99_MAX}"),
            tail,
            overload.served > 0 && tail <= RATIO_P99_MAX,
        ),
        Goal::new(
            "neither served nor refused with RESOURCE_EXHAUSTED or UNAVAILABLE: none",
            failed as f64,
            failed == 0,
        ),
        Goal::new(
            "p99 of refusals / p50 of the served: below 1",
            waited,
            overload.refused > 0 && waited < 1.0,
        ),
        Goal::new(
            format!("memory, end / settled: at most {MEMORY_RATIO_MAX}"),
            growth,
            growth > 0.0 && growth <= MEMORY_RATIO_MAX,
        ),
        Goal::new("wrong answers: none", wrong as f64, wrong == 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_need_served_and_refused_requests() {
        let memory = ResidentMemory { start_mb: 100.0, end_mb: 105.0, peak_mb: 120.0 };
        let at_capacity = OverloadPhase { p99_ms: 50.0, served: 10, ..OverloadPhase::default() };
        let overload = OverloadPhase {
            p50_ms: 40.0,
            p99_ms: 90.0,
            served: 10,
            refused: 20,
            refusal_p99_ms: 4.0,
            ..OverloadPhase::default()
        };
        let all = goals_of(&at_capacity, &overload, memory);
        assert!(all.iter().all(|wanted| wanted.met), "{all:?}");
        let dead = goals_of(
            &at_capacity,
            &OverloadPhase { failed: 3, ..OverloadPhase::default() },
            ResidentMemory::default(),
        );
        let met: Vec<bool> = dead.iter().map(|wanted| wanted.met).collect();
        assert_eq!(met, [false, false, false, false, true]);
    }
}
