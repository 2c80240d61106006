//! The report of `bench ingest`.

use base::{Error, Result};
use serde::Serialize;

use super::arms::{IngestArm, IngestResults, IngestRound, pooled};
use super::kills::KillResults;
use crate::report::BenchReport;
use loadgen::machine::RunContext;
use loadgen::println;
use loadgen::report::{TextTable, ms};
use loadgen::stats::{LatencySummary, median, ratio};

/// Maximum p99 of the ingest arm as a multiple of the control arm's.
const RATIO_WANTED: f64 = 1.25;

/// Figures of an arm over all its rounds.
#[derive(Debug, Serialize)]
struct IngestArmReport {
    #[serde(flatten)]
    all: LatencySummary,
    /// Median of the p99 of the rounds.
    p99_ms_round_median: f64,
    failed: u64,
    wrong: u64,
}

/// Figures of one arm in one round.
#[derive(Debug, Serialize)]
struct RoundReport {
    arm: String,
    #[serde(flatten)]
    latency: LatencySummary,
    images: f64,
    seals: f64,
    merges: f64,
    /// True if there were always more images to add.
    fed: bool,
}

/// JSON of `bench ingest`.
#[derive(Debug, Serialize)]
pub(super) struct IngestReport {
    control: IngestArmReport,
    ingest: IngestArmReport,
    /// The ingest arm's p99 as a multiple of the control arm's.
    p99_ratio: f64,
    /// Goal for `p99_ratio`.
    p99_ratio_wanted: f64,
    /// Acknowledged images that were missing after a kill.
    lost: u64,
    damaged: u64,
    kills: u32,
    /// Number of kills while images were added.
    kills_during_ingest: u32,
    acknowledged: u64,
    checked: u64,
    read: u64,
    start_ms_max: f64,
    searches_per_s: f64,
    search_alone_ms: f64,
    images_per_s_alone: f64,
    /// Images a second in the ingest arm.
    images_per_s: f64,
    /// Number of flushes of memtables to segments in the ingest arm.
    seals: f64,
    /// Number of merges in the ingest arm.
    merges: f64,
    points: f64,
    segments: f64,
    search_memory: String,
    rounds: Vec<RoundReport>,
    reasons: Vec<String>,
    #[serde(flatten)]
    context: RunContext,
}

fn arm_report(rounds: &[IngestRound], arm: IngestArm) -> IngestArmReport {
    let of = || rounds.iter().filter(|round| round.arm == arm);
    IngestArmReport {
        all: pooled(of()).summary(),
        p99_ms_round_median: median(of().map(|round| round.counted.latencies.quantile_ms(0.99))),
        failed: of().map(|round| round.counted.faults.failed).sum(),
        wrong: of().map(|round| round.counted.faults.wrong).sum(),
    }
}

impl IngestReport {
    pub(super) fn new(
        measured: IngestResults,
        killed: KillResults,
        search_memory: String,
        context: RunContext,
    ) -> IngestReport {
        let IngestResults { rounds, rate, alone_ms, fill_per_s, points, segments } = measured;
        let control = arm_report(&rounds, IngestArm::Control);
        let ingest = arm_report(&rounds, IngestArm::Ingest);
        let sum = |of: fn(&IngestRound) -> f64| {
            rounds.iter().filter(|round| round.arm == IngestArm::Ingest).map(of).sum::<f64>()
        };
        let seconds = sum(|round| round.counted.last.as_secs_f64());
        IngestReport {
            p99_ratio: ratio(ingest.all.p99_ms, control.all.p99_ms),
            p99_ratio_wanted: RATIO_WANTED,
            control,
            ingest,
            lost: killed.lost,
            damaged: killed.damaged,
            kills: killed.kills,
            kills_during_ingest: killed.interrupted,
            acknowledged: killed.acknowledged,
            checked: killed.checked,
            read: killed.read,
            start_ms_max: killed.start_ms_max,
            searches_per_s: rate,
            search_alone_ms: alone_ms,
            images_per_s_alone: fill_per_s,
            images_per_s: ratio(sum(|round| round.images), seconds),
            seals: sum(|round| round.flushes),
            merges: sum(|round| round.merges),
            points,
            segments,
            search_memory,
            reasons: rounds.iter().flat_map(|round| round.counted.faults.lines()).collect(),
            rounds: rounds
                .iter()
                .map(|round| RoundReport {
                    arm: format!("{:?}", round.arm).to_lowercase(),
                    latency: round.counted.latencies.summary(),
                    images: round.images,
                    seals: round.flushes,
                    merges: round.merges,
                    fed: round.fed,
                })
                .collect(),
            context,
        }
    }
}

impl BenchReport for IngestReport {
    fn print(&self) {
        let mut table = TextTable::new(&[
            "searches", "n", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "failed", "wrong",
        ]);
        for (name, arm) in [("control", &self.control), ("ingest", &self.ingest)] {
            let LatencySummary { n, p50_ms, p99_ms, p999_ms, max_ms, .. } = arm.all;
            let figures = [p50_ms, p99_ms, p999_ms, max_ms].map(ms);
            let counts = [arm.failed.to_string(), arm.wrong.to_string()];
            table.row([name.to_owned(), n.to_string()].into_iter().chain(figures).chain(counts));
        }
        println!("{table}");
        println!(
            "p99 while putting in: {:.2} times the control arm's (wanted: {RATIO_WANTED} at most), at {:.1} searches a second",
            self.p99_ratio, self.searches_per_s
        );
        println!(
            "meanwhile: {:.0} images a second ({:.0} without searches), {} flushes, {} merges; {} points in \
             {} segments at the end",
            self.images_per_s,
            self.images_per_s_alone,
            self.seals,
            self.merges,
            self.points,
            self.segments
        );
        println!(
            "{} kills, {} while images were added: {} of {} acknowledged images lost, {} of {} files that were read \
             differ; ready again after {:.0} ms at most",
            self.kills,
            self.kills_during_ingest,
            self.lost,
            self.acknowledged,
            self.damaged,
            self.read,
            self.start_ms_max
        );
        println!("{}", self.context);
    }

    fn verdict(&self) -> Result<()> {
        if self.lost + self.damaged > 0 {
            return Err(Error::data_loss(format!(
                "{} images lost, {} damaged",
                self.lost, self.damaged
            )));
        }
        let faults =
            self.control.failed + self.control.wrong + self.ingest.failed + self.ingest.wrong;
        if faults > 0 {
            return Err(Error::internal(format!(
                "{faults} searches failed or were wrong: {:?}",
                self.reasons
            )));
        }
        if let Some(round) = self.rounds.iter().position(|round| !round.fed) {
            return Err(Error::internal(format!(
                "measurement {} ran out of images to put in",
                round + 1
            )));
        }
        Ok(())
    }
}
