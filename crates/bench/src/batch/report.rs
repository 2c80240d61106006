//! The report of `bench batch`: JSON, tables and goals.

use std::collections::BTreeMap;

use base::Result;
use clap::ValueEnum as _;
use serde::Serialize;

use super::point::{BatchPoint, BatchTurn};
use super::{BatchArgs, BatchArm, WorkloadModel};
use crate::report::{BenchReport, Goal, check_faults};
use loadgen::machine::RunContext;
use loadgen::report::{TextTable, ms};
use loadgen::stats::ratio;
use loadgen::{print, println};

/// Model of the goal for merging.
const GAIN_MODEL: WorkloadModel = WorkloadModel::Small;
/// Number of clients of the goal for merging.
const GAIN_CLIENTS: usize = 70;
/// Minimum rate with merging as a multiple of the rate without it.
const GAIN_MIN: f64 = 2.0;
/// Minimum share of sync that the better of async and padding must reach everywhere.
const SHARE_MIN: f64 = 0.98;
/// Minimum number of requests of which the 99th percentile is not the maximum.
const P99_REQUESTS_MIN: u64 = 100;
/// Mean batch below which nothing was merged.
const ALONE_MAX: f64 = 1.02;

/// JSON of `bench batch`.
#[derive(Debug, Serialize)]
pub(super) struct BatchReport {
    wrong: u64,
    failed: u64,
    /// Reasons of failed requests, most frequent first.
    reasons: Vec<String>,
    models: BTreeMap<&'static str, ModelReport>,
    wanted: Vec<Goal>,
    clients: Vec<usize>,
    rounds: usize,
    passes: usize,
    time_s: f64,
    max_batch: usize,
    always_merge: bool,
    #[serde(flatten)]
    context: RunContext,
}

#[derive(Debug, Serialize)]
struct ModelReport {
    arms: BTreeMap<&'static str, Vec<BatchPoint>>,
}

/// The better of the merging arms relative to sync.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MergingGain {
    value: f64,
    /// Standard error.
    error: f64,
    /// True if nothing was merged, so both did the same.
    alone: bool,
}

impl ModelReport {
    fn new(args: &BatchArgs, turns: &[BatchTurn]) -> ModelReport {
        let points = |arm: BatchArm| {
            args.clients.iter().map(|&clients| BatchPoint::of(turns, arm, clients)).collect()
        };
        ModelReport { arms: args.arms.iter().map(|&arm| (arm.name(), points(arm))).collect() }
    }

    /// Returns the arms that were measured, sync first.
    fn in_order(&self) -> impl Iterator<Item = (BatchArm, &Vec<BatchPoint>)> {
        BatchArm::value_variants().iter().filter_map(|arm| Some((*arm, self.arms.get(arm.name())?)))
    }

    fn point(&self, arm: BatchArm, clients: usize) -> Option<&BatchPoint> {
        self.arms.get(arm.name())?.iter().find(|point| point.clients == clients)
    }

    /// Returns the better of the merging arms as a share of sync, with its standard error.
    fn share(&self, clients: usize) -> Option<MergingGain> {
        let sync = self.point(BatchArm::Sync, clients)?;
        let merged = [BatchArm::Async, BatchArm::Padding]
            .into_iter()
            .filter_map(|arm| self.point(arm, clients));
        let best = merged.max_by(|a, b| a.qps.total_cmp(&b.qps))?;
        let alone = best.mean_batch.is_some_and(|size| size < ALONE_MAX);
        Some(MergingGain { value: ratio(best.qps, sync.qps), error: best.ratio_error(sync), alone })
    }
}

impl BatchReport {
    pub(super) fn new(
        args: &BatchArgs,
        measured: &[(WorkloadModel, Vec<BatchTurn>)],
        context: RunContext,
    ) -> BatchReport {
        let models: BTreeMap<_, _> = measured
            .iter()
            .map(|(model, turns)| (model.name(), ModelReport::new(args, turns)))
            .collect();
        let points = || models.values().flat_map(|model| model.arms.values().flatten());
        let wrong = points().map(|point| point.wrong).sum();
        let mut wanted: Vec<Goal> = gain(&models).into_iter().flatten().collect();
        wanted.extend(never_loses(&models, &args.clients));
        wanted.push(Goal::new("wrong answers: none", wrong as f64, wrong == 0));
        let mut reasons = BTreeMap::new();
        for turn in measured.iter().flat_map(|(_, turns)| turns) {
            for (reason, count) in &turn.seen.faults.reasons {
                *reasons.entry(reason.as_str()).or_insert(0u64) += count;
            }
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        BatchReport {
            wrong,
            failed: points().map(|point| point.failed).sum(),
            reasons: reasons
                .into_iter()
                .map(|(reason, count)| format!("{count} x {reason}"))
                .collect(),
            models,
            wanted,
            clients: args.clients.clone(),
            rounds: args.rounds,
            passes: args.passes,
            time_s: args.time.as_secs_f64(),
            max_batch: args.max_batch,
            always_merge: args.always_merge,
            context,
        }
    }

    /// Returns the models that were measured, in the order of the help.
    fn in_order(&self) -> impl Iterator<Item = (&'static str, &ModelReport)> {
        WorkloadModel::value_variants()
            .iter()
            .filter_map(|model| Some((model.name(), self.models.get(model.name())?)))
    }
}

impl BenchReport for BatchReport {
    fn print(&self) {
        for (name, model) in self.in_order() {
            println!(
                "\n{name}: closed loop over gRPC, one item a request; milliseconds; {} rounds, {} times forth and back, of {:.1} s",
                self.rounds, self.passes, self.time_s
            );
            print!("{}", table(model, &self.clients));
            if let Some(line) = few_requests(model) {
                println!("{line}");
            }
            let drift = model.arms.values().flatten().map(|point| point.drift).fold(0.0, f32::max);
            println!("largest difference from the model alone: {drift:.1e}");
        }
        println!("");
        self.wanted.iter().for_each(|goal| println!("{goal}"));
        println!("failed {}, wrong {}", self.failed, self.wrong);
        self.reasons.iter().for_each(|line| println!("  {line}"));
        println!("{}", self.context);
    }

    fn verdict(&self) -> Result<()> {
        check_faults(self.failed, self.wrong)
    }
}

/// Returns the rates and latencies of a model, with a row for each number of clients.
fn table(model: &ModelReport, clients: &[usize]) -> TextTable {
    let mut columns = vec!["clients".to_owned()];
    for (arm, _) in model.in_order() {
        columns.extend([format!("{}/s", arm.name()), "p50".into(), "p99".into()]);
        if arm != BatchArm::Sync {
            columns.push("batch".into());
        }
        if arm == BatchArm::Padding {
            columns.push("padded".into());
        }
    }
    columns.push("best/sync".into());
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = TextTable::new(&columns);
    let dash = || "-".to_owned();
    for &clients in clients {
        let mut cells = vec![clients.to_string()];
        for (arm, points) in model.in_order() {
            let Some(point) = points.iter().find(|point| point.clients == clients) else {
                continue;
            };
            cells.extend([format!("{:.1}", point.qps), ms(point.p50_ms), ms(point.p99_ms)]);
            if arm != BatchArm::Sync {
                cells.push(point.mean_batch.map_or_else(dash, |size| format!("{size:.1}")));
            }
            if arm == BatchArm::Padding {
                cells.push(
                    point
                        .padding_share
                        .map_or_else(dash, |share| format!("{:.0} %", share * 100.0)),
                );
            }
        }
        cells.push(
            model
                .share(clients)
                .map_or_else(dash, |share| format!("{:.3} ±{:.3}", share.value, share.error)),
        );
        table.row(cells);
    }
    table
}

/// Returns a line about the points whose turns have too few requests for a 99th percentile.
fn few_requests(model: &ModelReport) -> Option<String> {
    let few = |point: &&BatchPoint| point.n < P99_REQUESTS_MIN * point.qps_turns.len() as u64;
    let line = |(arm, points): (BatchArm, &Vec<BatchPoint>)| {
        let clients: Vec<String> =
            points.iter().filter(few).map(|point| point.clients.to_string()).collect();
        (!clients.is_empty()).then(|| format!("{} at {} clients", arm.name(), clients.join(", ")))
    };
    let places: Vec<String> = model.in_order().filter_map(line).collect();
    (!places.is_empty()).then(|| {
        format!(
            "fewer than {P99_REQUESTS_MIN} requests a turn, so p99 is that of the slowest one: {}",
            places.join("; ")
        )
    })
}

/// Judges the gain of merging at [`GAIN_MODEL`] and [`GAIN_CLIENTS`].
fn gain(models: &BTreeMap<&'static str, ModelReport>) -> Option<[Goal; 2]> {
    let model = models.get(GAIN_MODEL.name())?;
    let sync = model.point(BatchArm::Sync, GAIN_CLIENTS)?;
    let merged = model.point(BatchArm::Async, GAIN_CLIENTS)?;
    let place = format!("{} at {GAIN_CLIENTS} clients", GAIN_MODEL.name());
    let gain = ratio(merged.qps, sync.qps);
    let tail = ratio(merged.p99_ms, sync.p99_ms);
    Some([
        Goal::new(
            format!("{place}, requests a second, async / sync: at least {GAIN_MIN}"),
            gain,
            gain >= GAIN_MIN,
        ),
        Goal::new(format!("{place}, p99, async / sync: at most 1"), tail, tail <= 1.0),
    ])
}

/// Judges the worst share of sync over all models and numbers of clients.
fn never_loses(models: &BTreeMap<&'static str, ModelReport>, clients: &[usize]) -> Option<Goal> {
    let shares: Vec<(String, MergingGain)> = models
        .iter()
        .flat_map(|(name, model)| {
            let share = move |&clients: &usize| {
                Some((format!("{name} at {clients} clients"), model.share(clients)?))
            };
            clients.iter().filter_map(share)
        })
        .collect();
    let least = shares.iter().map(|(_, share)| share.value).reduce(f64::min)?;
    let low = shares.iter().filter(|(_, share)| share.value < SHARE_MIN);
    let place = |(place, MergingGain { value, error, alone }): &(String, MergingGain)| {
        let why = if *alone { ", where nothing was merged" } else { "" };
        format!("{place}: {value:.3} ±{error:.3}{why}")
    };
    Some(Goal {
        what: format!("better of async and padding / sync, everywhere: at least {SHARE_MIN}"),
        value: least,
        met: least >= SHARE_MIN,
        not_met_at: low.map(place).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(clients: usize, qps: f64, p99_ms: f64) -> BatchPoint {
        BatchPoint { qps, p99_ms, ..BatchPoint::of(&[], BatchArm::Sync, clients) }
    }

    fn model(arms: &[(&'static str, [f64; 2])]) -> ModelReport {
        let points =
            |qps: &[f64; 2]| vec![point(1, qps[0], 10.0), point(70, qps[1], 1000.0 / qps[1])];
        ModelReport { arms: arms.iter().map(|(arm, qps)| (*arm, points(qps))).collect() }
    }

    #[test]
    fn goals_apply_to_their_model_and_clients() {
        let small =
            model(&[("sync", [10.0, 20.0]), ("async", [9.0, 50.0]), ("padding", [9.9, 45.0])]);
        let conv =
            model(&[("sync", [10.0, 20.0]), ("async", [9.0, 19.0]), ("padding", [9.7, 25.0])]);
        let models = BTreeMap::from([("small", small), ("conv", conv)]);
        let [gain, tail] = gain(&models).unwrap();
        assert_eq!((gain.value, gain.met), (2.5, true));
        assert_eq!((tail.value, tail.met), (0.4, true));
        let least = never_loses(&models, &[1, 70]).unwrap();
        assert!((least.value - 0.97).abs() < 1e-9 && !least.met);
        assert_eq!(least.not_met_at, ["conv at 1 clients: 0.970 ±0.000"]);
    }

    #[test]
    fn percentiles_of_few_requests_are_named() {
        let mut conv = model(&[("sync", [10.0, 20.0]), ("async", [9.0, 19.0])]);
        for (arm, points) in &mut conv.arms {
            for point in points {
                point.qps_turns = vec![1.0; 6];
                point.n = if *arm == "sync" && point.clients == 70 { 599 } else { 600 };
            }
        }
        let line = few_requests(&conv).unwrap();
        assert!(line.ends_with("that of the slowest one: sync at 70 clients"), "{line}");
        assert!(few_requests(&model(&[("async", [9.0, 19.0])])).is_none());
    }

    #[test]
    fn unmeasured_arms_have_no_goals() {
        let models = BTreeMap::from([("conv", model(&[("async", [9.0, 19.0])]))]);
        assert!(gain(&models).is_none() && never_loses(&models, &[1, 70]).is_none());
        let text = table(&models["conv"], &[1, 70]).to_string();
        assert!(text.starts_with("clients  async/s") && text.contains("19.0"), "{text}");
    }
}
