//! The report of `bench swap`: medians of the rounds, ratios between arms, goals, and a chart an
//! arm.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base::units::{MIB, format_bytes};
use base::{Error, Result};
use clap::ValueEnum as _;
use serde::Serialize;

use super::arm::SwapRound;
use super::{EngineName, SwapArgs, SwapArm};
use crate::plot::{self, Chart};
use crate::report::{BenchReport, Goal};
use loadgen::machine::RunContext;
use loadgen::println;
use loadgen::report::{TextTable, ms};
use loadgen::stats::{LatencySummary, median, ratio};

/// Maximum of p999 over the control's, for the pool and its variants.
const OVER_CONTROL_MAX: f64 = 1.25;
/// Maximum load time of a change of a tenth, over the load time of a whole version.
const DELTA_LOAD_MAX: f64 = 0.2;
/// Maximum resident memory of a change of a tenth, over that of one version.
const DELTA_RSS_MAX: f64 = 1.15;
/// Maximum of the pool loader's page faults as a share of the heap's.
const POOL_FAULTS_SHARE_MAX: f64 = 0.01;
/// Minimum number of requests of which the 99.9th percentile is not the maximum.
const P999_REQUESTS_MIN: u64 = 1000;
/// Number of charts in a row of the image.
const COLUMNS: usize = 2;

/// JSON of `bench swap`.
#[derive(Debug, Serialize)]
pub(super) struct SwapBenchReport {
    engine: &'static str,
    arms: BTreeMap<&'static str, SwapArmReport>,
    ratios: Ratios,
    wanted: Vec<Goal>,
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
    /// Parameter bytes of a swap.
    bytes_read: f64,
    bytes_shared: f64,
    peak_rss_mb: f64,
    /// Swaps that a round should have; 0 for the control.
    swaps_wanted: usize,
    /// p999 during swaps over the control's.
    #[serde(skip_serializing_if = "Option::is_none")]
    p999_ratio: Option<f64>,
    /// Arm delta10: load time over the pool's.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_ratio: Option<f64>,
    /// Arm delta10: peak of resident memory over that of one version.
    #[serde(skip_serializing_if = "Option::is_none")]
    rss_ratio: Option<f64>,
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
    /// Measured capacity, and the share of it that the load is; absent with `--rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_rps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<f64>,
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
    fn new(args: &SwapArgs, arm: SwapArm, rounds: &[&SwapRound]) -> SwapArmReport {
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
            bytes_read: middle(|round| round.bytes_read),
            bytes_shared: middle(|round| round.bytes_shared),
            peak_rss_mb: middle(|round| round.peak_rss_mb),
            swaps_wanted: if arm == SwapArm::Control { 0 } else { args.paced(arm).swaps },
            p999_ratio: None,
            load_ratio: None,
            rss_ratio: (arm == SwapArm::Delta10)
                .then(|| middle(|round| ratio(round.peak_rss_mb, round.one_version_rss_mb))),
        }
    }
}

/// Reports each arm, with its ratios to the others.
fn arm_reports(args: &SwapArgs, rounds: &[SwapRound]) -> BTreeMap<&'static str, SwapArmReport> {
    let report = |&arm: &SwapArm| {
        let own: Vec<&SwapRound> = rounds.iter().filter(|round| round.arm == arm).collect();
        (arm.name(), SwapArmReport::new(args, arm, &own))
    };
    let mut arms: BTreeMap<&'static str, SwapArmReport> = args.arms.iter().map(report).collect();
    let control_p999 = arms.get(SwapArm::Control.name()).map(|arm| arm.swap.p999_ms);
    let pool_load = arms.get(SwapArm::Pool.name()).map(|arm| arm.load_s);
    for (name, arm) in &mut arms {
        arm.p999_ratio = control_p999.map(|control| ratio(arm.swap.p999_ms, control));
        let is_delta = *name == SwapArm::Delta10.name();
        arm.load_ratio = pool_load.filter(|_| is_delta).map(|pool| ratio(arm.load_s, pool));
    }
    arms
}

impl SwapBenchReport {
    pub(super) fn new(
        args: &SwapArgs,
        capacity_rps: Option<f64>,
        rate_rps: f64,
        rounds: &[SwapRound],
        context: RunContext,
    ) -> SwapBenchReport {
        let arms = arm_reports(args, rounds);
        let setting = SwapSetting {
            bytes: args.bytes,
            batch: args.batch,
            capacity_rps,
            load: capacity_rps.map(|_| args.load),
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
        let ratios = Ratios::of(&arms);
        SwapBenchReport {
            engine: args.engine.name(),
            wanted: goals_of(args.engine, &ratios, &arms),
            ratios,
            arms,
            setting,
            rounds: rounds.to_vec(),
            context,
        }
    }

    /// Returns the arms that ran, in the order of tables and charts.
    fn shown(&self) -> impl Iterator<Item = (SwapArm, &SwapArmReport)> {
        let arms = SwapArm::value_variants().iter();
        arms.filter_map(|&arm| Some((arm, self.arms.get(arm.name())?)))
    }

    /// Returns the report as text.
    fn text(&self) -> String {
        let setting = &self.setting;
        let capacity =
            setting.capacity_rps.map_or_else(String::new, |rps| format!(", capacity {rps:.0}/s"));
        let mut text = format!(
            "{}: swap of {} under {:.0} requests/s ({} rows each{capacity}); {} swaps a round, median of {} rounds\n{}",
            self.engine,
            format_bytes(setting.bytes),
            setting.rate_rps,
            setting.batch,
            setting.swaps,
            setting.rounds,
            self.table()
        );
        // Writing to a string cannot fail.
        for (arm, report) in self.shown() {
            let each = report.swap.n / setting.rounds as u64;
            if each < P999_REQUESTS_MIN {
                let _ = writeln!(
                    text,
                    "{}: p999 of {each} requests a round during swaps is that of the slowest one",
                    arm.name()
                );
            }
        }
        for goal in &self.wanted {
            let _ = writeln!(text, "{goal}");
        }
        for round in self.rounds.iter().filter(|round| !round.reasons.is_empty()) {
            let _ = writeln!(text, "{}: {}", round.arm.name(), round.reasons.join("; "));
        }
        for round in self.rounds.iter().filter(|round| round.dropped_samples > 0) {
            let name = round.arm.name();
            let dropped = round.dropped_samples;
            let _ = writeln!(
                text,
                "{name}: the latencies lack the last {dropped} requests of a round; lower --rate or --swaps"
            );
        }
        text + &self.context.to_string()
    }

    fn table(&self) -> TextTable {
        let mut table = TextTable::new(&[
            "arm",
            "steady p50",
            "p999 ms",
            "swap p50",
            "p80",
            "p90",
            "p99",
            "p999",
            "max ms",
            "x control",
            "load s",
            "unload s",
            "read MiB",
            "faults",
            "peak MiB",
            "failed",
            "wrong",
        ]);
        for (arm, report) in self.shown() {
            let LatencySummary { p50_ms, p80_ms, p90_ms, p99_ms, p999_ms, max_ms, .. } =
                report.swap;
            let steady = [report.steady.p50_ms, report.steady.p999_ms];
            let swap = [p50_ms, p80_ms, p90_ms, p99_ms, p999_ms, max_ms];
            let mut row = vec![arm.name().to_owned()];
            row.extend(steady.into_iter().chain(swap).map(ms));
            row.push(report.p999_ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")));
            row.extend([report.load_s, report.unload_s].map(|seconds| format!("{seconds:.2}")));
            let counts =
                [report.bytes_read / MIB as f64, report.loader_minor_faults, report.peak_rss_mb];
            row.extend(counts.map(|count| format!("{count:.0}")));
            row.extend([report.failed, report.wrong].map(|count| count.to_string()));
            table.row(row);
        }
        table
    }

    /// Draws each arm's round of median p999 over time, all on the same axis.
    fn charts(&self) -> Vec<Chart> {
        let ranges = self.rounds.iter().filter_map(|round| round.timeline.range_ms());
        let widest = ranges.reduce(|one, other| [one[0].min(other[0]), one[1].max(other[1])]);
        let axis = widest.map_or([1.0, 10.0], |[low, high]| {
            [10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil())]
        });
        let chart = |(arm, report): (SwapArm, &SwapArmReport)| {
            let p999 = report.swap.p999_ms;
            let apart = |round: &&SwapRound| (round.swap.p999_ms - p999).abs();
            let own = self.rounds.iter().filter(|round| round.arm == arm);
            let middle = own.min_by(|one, other| apart(one).total_cmp(&apart(other)))?;
            let title = format!("{}: p999 {} ms during swaps", arm.name(), ms(p999));
            Some(middle.timeline.chart(title, axis))
        };
        self.shown().filter_map(chart).collect()
    }

    /// Returns figures and charts as a self-contained HTML page.
    ///
    /// # Errors
    /// `Internal` if a chart cannot be drawn.
    pub(super) fn html(&self) -> Result<String> {
        let heading = format!("Latency while a model is swapped ({})", self.engine);
        plot::page("millpond bench swap", &heading, &self.charts(), &self.text())
    }

    /// Returns the charts as one PNG image.
    ///
    /// # Errors
    /// `Internal` if it cannot be drawn.
    pub(super) fn png(&self) -> Result<Vec<u8>> {
        plot::png(&self.charts(), COLUMNS)
    }
}

impl BenchReport for SwapBenchReport {
    fn print(&self) {
        println!("{}", self.text());
    }

    fn verdict(&self) -> Result<()> {
        for (name, arm) in &self.arms {
            if arm.failed + arm.wrong > 0 {
                return Err(Error::internal(format!(
                    "arm {name}: {} requests failed, {} answers were wrong",
                    arm.failed, arm.wrong
                )));
            }
            if arm.swaps < arm.swaps_wanted as u64 {
                return Err(Error::internal(format!(
                    "arm {name}: a round had {} swaps of {}; see the servers' logs in the cache directory",
                    arm.swaps, arm.swaps_wanted
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
}

/// Returns the goals of the arms that ran.
fn goals_of(
    engine: EngineName,
    ratios: &Ratios,
    arms: &BTreeMap<&'static str, SwapArmReport>,
) -> Vec<Goal> {
    let at_most = |what: String, value: f64, max: f64| {
        Goal::new(format!("{what}: at most {max}"), value, value <= max)
    };
    let heap_min = engine.heap_over_pool_min();
    let mut goals = Vec::new();
    goals.extend(ratios.heap_over_pool_p999.map(|value| {
        let what = format!("p999 during swaps, heap / pool: at least {heap_min}");
        Goal::new(what, value, value >= heap_min)
    }));
    let faults = ratios.pool_over_heap_faults.filter(|_| engine.loads_on_one_thread());
    goals.extend(faults.map(|value| {
        at_most("loader's page faults, pool / heap".into(), value, POOL_FAULTS_SHARE_MAX)
    }));
    let variants = [
        SwapArm::Pool,
        SwapArm::Two,
        SwapArm::Minute,
        SwapArm::Cold,
        SwapArm::Delta10,
        SwapArm::Store,
    ];
    for name in variants.map(SwapArm::name) {
        let Some(arm) = arms.get(name) else { continue };
        let what = format!("p999 during swaps, {name} / control");
        goals.extend(arm.p999_ratio.map(|value| at_most(what, value, OVER_CONTROL_MAX)));
        // An engine that shares no parameters reads whole versions; its figures are only shown.
        let shared = |ratio: Option<f64>| ratio.filter(|_| engine.shares());
        let load = "load time, delta10 / pool".to_owned();
        goals.extend(shared(arm.load_ratio).map(|value| at_most(load, value, DELTA_LOAD_MAX)));
        let rss = "peak resident memory, delta10 / one version".to_owned();
        goals.extend(shared(arm.rss_ratio).map(|value| at_most(rss, value, DELTA_RSS_MAX)));
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadgen::machine::NoiseWatch;

    fn report(capacity: Option<f64>, n: u64) -> SwapBenchReport {
        let args = crate::arguments::parse(["--arms", "pool", "--rounds", "2"]).unwrap();
        let context = NoiseWatch::start().context(None);
        let mut report = SwapBenchReport::new(&args, capacity, 300.0, &[], context);
        for arm in report.arms.values_mut() {
            arm.swap.n = n;
        }
        report
    }

    #[test]
    fn a_percentile_of_few_requests_is_said_to_be_the_maximum() {
        let text = |n| report(None, n).text();
        assert!(text(1998).contains("pool: p999 of 999 requests a round"), "{}", text(1998));
        assert!(!text(2000).contains("slowest"), "{}", text(2000));
    }

    #[test]
    fn a_capacity_that_was_not_measured_is_not_reported() {
        let setting = |capacity| {
            let report = report(capacity, 0);
            let setting = serde_json::to_value(&report).unwrap()["setting"].clone();
            (report.text(), setting)
        };
        let (text, json) = setting(Some(750.0));
        assert!(text.contains("(128 rows each, capacity 750/s)"), "{text}");
        assert_eq!((&json["capacity_rps"], &json["load"]), (&750.0.into(), &0.4.into()));
        let (text, json) = setting(None);
        assert!(text.contains("300 requests/s (128 rows each)"), "{text}");
        assert!(json.get("capacity_rps").is_none() && json.get("load").is_none());
    }
}
