//! The report of `bench swap`: medians of the rounds, ratios between arms, and goals.

use std::collections::BTreeMap;

use base::units::format_bytes;
use base::{Error, Result};
use serde::Serialize;

use super::arm::SwapRound;
use super::{SwapArgs, SwapArm};
use crate::report::BenchReport;
use loadgen::machine::RunContext;
use loadgen::report::{TextTable, ms};
use loadgen::stats::{LatencySummary, median, ratio};
use loadgen::{print, println};

/// Maximum of the pool's p999 over the control's.
const POOL_OVER_CONTROL_MAX: f64 = 1.25;
/// Minimum of the heap's p999 over the pool's.
const HEAP_OVER_POOL_MIN: f64 = 10.0;
/// Maximum of the pool loader's page faults as a share of the heap's.
const POOL_FAULTS_SHARE_MAX: f64 = 0.01;

/// JSON of `bench swap`.
#[derive(Debug, Serialize)]
pub(super) struct SwapReport {
    engine: &'static str,
    arms: BTreeMap<&'static str, SwapArmReport>,
    ratios: Ratios,
    setting: SwapSetting,
    rounds: Vec<SwapRound>,
    #[serde(flatten)]
    context: RunContext,
}

#[derive(Debug, Serialize)]
struct SwapArmReport {
    steady: LatencySummary,
    swap: LatencySummary,
    failed: u64,
    wrong: u64,
    swaps: u64,
    load_s: f64,
    warm_s: f64,
    unload_s: f64,
    loader_minor_faults: f64,
    loader_cpu_s: f64,
    peak_rss_mb: f64,
}

/// Ratios between arms; absent if an arm did not run.
#[derive(Debug, Default, Serialize)]
struct Ratios {
    pool_over_control_p999: Option<f64>,
    heap_over_pool_p999: Option<f64>,
    pool_over_heap_faults: Option<f64>,
}

#[derive(Debug, Serialize)]
struct SwapSetting {
    bytes: u64,
    batch: usize,
    capacity_rps: f64,
    load: f64,
    rate_rps: f64,
    swaps: usize,
    rounds: usize,
    period_s: f64,
    window_s: f64,
    steady_s: f64,
    cpu_limit: Option<f64>,
    quick: bool,
    server_args: Vec<String>,
}

impl SwapArmReport {
    fn new(rounds: &[&SwapRound]) -> SwapArmReport {
        let summary = |of: fn(&SwapRound) -> LatencySummary| {
            LatencySummary::median_of(&rounds.iter().map(|round| of(round)).collect::<Vec<_>>())
        };
        let middle = |of: fn(&SwapRound) -> f64| median(rounds.iter().map(|round| of(round)));
        SwapArmReport {
            steady: summary(|round| round.steady),
            swap: summary(|round| round.swap),
            failed: rounds.iter().map(|round| round.failed).sum(),
            wrong: rounds.iter().map(|round| round.wrong).sum(),
            swaps: rounds.iter().map(|round| round.swaps).min().unwrap_or(0),
            load_s: middle(|round| round.load_s),
            warm_s: middle(|round| round.warm_s),
            unload_s: middle(|round| round.unload_s),
            loader_minor_faults: middle(|round| round.loader_minor_faults),
            loader_cpu_s: middle(|round| round.loader_cpu_s),
            peak_rss_mb: middle(|round| round.peak_rss_mb),
        }
    }
}

impl SwapReport {
    pub(super) fn new(
        args: &SwapArgs,
        capacity_rps: f64,
        rate_rps: f64,
        rounds: &[SwapRound],
        context: RunContext,
    ) -> SwapReport {
        let arms: BTreeMap<&'static str, SwapArmReport> = args
            .arms
            .iter()
            .map(|&arm| {
                let own: Vec<&SwapRound> = rounds.iter().filter(|round| round.arm == arm).collect();
                (arm.name(), SwapArmReport::new(&own))
            })
            .collect();
        let setting = SwapSetting {
            bytes: args.bytes,
            batch: args.batch,
            capacity_rps,
            load: args.load,
            rate_rps,
            swaps: args.swaps,
            rounds: args.rounds,
            period_s: args.period.as_secs_f64(),
            window_s: args.window.as_secs_f64(),
            steady_s: args.steady.as_secs_f64(),
            cpu_limit: args.cpu_limit,
            quick: args.quick,
            server_args: args.server_arg.clone(),
        };
        let engine = args.engine.name();
        SwapReport {
            engine,
            ratios: Ratios::of(&arms),
            arms,
            setting,
            rounds: rounds.to_vec(),
            context,
        }
    }
}

impl BenchReport for SwapReport {
    fn print(&self) {
        let setting = &self.setting;
        println!(
            "{}: swap of {} under {:.0} requests/s ({} rows each, capacity {:.0}/s); {} swaps a round, median of {} rounds",
            self.engine,
            format_bytes(setting.bytes),
            setting.rate_rps,
            setting.batch,
            setting.capacity_rps,
            setting.swaps,
            setting.rounds
        );
        let columns = [
            "arm",
            "steady p50",
            "p99",
            "p999 ms",
            "swap p50",
            "p99",
            "p999 ms",
            "max ms",
            "load s",
            "unload s",
            "faults",
            "peak MiB",
            "failed",
            "wrong",
        ];
        let mut table = TextTable::new(&columns);
        for name in [SwapArm::Heap, SwapArm::Pool, SwapArm::Control].map(SwapArm::name) {
            let Some(arm) = self.arms.get(name) else { continue };
            let figures = [
                arm.steady.p50_ms,
                arm.steady.p99_ms,
                arm.steady.p999_ms,
                arm.swap.p50_ms,
                arm.swap.p99_ms,
                arm.swap.p999_ms,
                arm.swap.max_ms,
            ];
            let mut row = vec![name.to_owned()];
            row.extend(figures.map(ms));
            row.extend([format!("{:.2}", arm.load_s), format!("{:.2}", arm.unload_s)]);
            row.extend([
                format!("{:.0}", arm.loader_minor_faults),
                format!("{:.0}", arm.peak_rss_mb),
            ]);
            row.extend([arm.failed.to_string(), arm.wrong.to_string()]);
            table.row(row);
        }
        print!("{table}");
        self.ratios.lines().iter().for_each(|line| println!("{line}"));
        for round in self.rounds.iter().filter(|round| !round.reasons.is_empty()) {
            println!("{}: {}", round.arm.name(), round.reasons.join("; "));
        }
        println!("{}", self.context);
    }

    fn verdict(&self) -> Result<()> {
        for (name, arm) in &self.arms {
            if arm.failed + arm.wrong > 0 {
                return Err(Error::internal(format!(
                    "arm {name}: {} requests failed, {} answers were wrong",
                    arm.failed, arm.wrong
                )));
            }
            if *name != SwapArm::Control.name() && arm.swaps < self.setting.swaps as u64 {
                return Err(Error::internal(format!(
                    "arm {name}: a round had {} swaps of {}; see the servers' logs in the cache directory",
                    arm.swaps, self.setting.swaps
                )));
            }
        }
        Ok(())
    }
}

impl Ratios {
    fn of(arms: &BTreeMap<&'static str, SwapArmReport>) -> Ratios {
        let between = |above: SwapArm, below: SwapArm, of: fn(&SwapArmReport) -> f64| {
            Some(ratio(of(arms.get(above.name())?), of(arms.get(below.name())?)))
        };
        Ratios {
            pool_over_control_p999: between(SwapArm::Pool, SwapArm::Control, |arm| {
                arm.swap.p999_ms
            }),
            heap_over_pool_p999: between(SwapArm::Heap, SwapArm::Pool, |arm| arm.swap.p999_ms),
            pool_over_heap_faults: between(SwapArm::Pool, SwapArm::Heap, |arm| {
                arm.loader_minor_faults
            }),
        }
    }

    fn lines(&self) -> Vec<String> {
        let line =
            |what: &str, value: Option<f64>, digits: usize, wanted: &str, met: fn(f64) -> bool| {
                let value = value?;
                let mark = if met(value) { "met" } else { "NOT met" };
                Some(format!("{what}: {value:.digits$} (wanted {wanted}: {mark})"))
            };
        [
            line(
                "p999 during swaps, pool / control",
                self.pool_over_control_p999,
                2,
                "at most 1.25",
                |value| value <= POOL_OVER_CONTROL_MAX,
            ),
            line(
                "p999 during swaps, heap / pool",
                self.heap_over_pool_p999,
                1,
                "at least 10",
                |value| value >= HEAP_OVER_POOL_MIN,
            ),
            line(
                "loader's page faults, pool / heap",
                self.pool_over_heap_faults,
                5,
                "below 0.01",
                |value| value < POOL_FAULTS_SHARE_MAX,
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
