//! The report of `bench tiers`: JSON, tables and goals.

use std::collections::BTreeMap;

use base::units::format_bytes;
use base::{Error, Result};
use serde::Serialize;

use super::rounds::{ArmTurns, CurvePoint, TierResults};
use super::turn::TurnResult;
use super::worker::TierArm;
use super::{TierRecords, TiersArgs};
use crate::report::{BenchReport, Goal};
use loadgen::machine::RunContext;
use loadgen::report::{TextTable, ms};
use loadgen::stats::{median, ratio};
use loadgen::{print, println};

/// Share of cache at which the goals hold.
const CLAIM_CACHE: f64 = 0.25;
/// Minimum throughput relative to dram.
const THROUGHPUT_RATIO_MIN: f64 = 0.90;
/// Maximum median latency relative to dram.
const P50_RATIO_MAX: f64 = 1.10;

/// JSON of `bench tiers`.
#[derive(Debug, Serialize)]
pub(super) struct TiersReport {
    rounds: usize,
    /// Processor time of a candidate in the dram arm.
    us_per_candidate: f64,
    arms: BTreeMap<&'static str, TierArmReport>,
    curve: Vec<CurveReport>,
    /// Number of answers of other arms that were compared with dram's answers. An arm with other
    /// records than dram is not compared.
    compared: usize,
    /// Number of compared answers that differ.
    wrong: usize,
    not_found: usize,
    wanted: Vec<Goal>,
    conditions: Conditions,
    notes: Vec<String>,
    #[serde(flatten)]
    context: RunContext,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum TierArmReport {
    One(Box<TierFigures>),
    Caches { cache: BTreeMap<String, TierFigures> },
}

/// Conditions of all arms.
#[derive(Debug, Serialize)]
struct Conditions {
    kind: TierRecords,
    records: u32,
    segments: u32,
    dram_records: u32,
    record_bytes: u64,
    page_bytes: u64,
    memory_budget_mb: Option<f64>,
    queries: usize,
    candidates: u32,
    threads: usize,
    clients_per_thread: usize,
    cluster: u32,
    probes: u32,
    near: f64,
    candidates_from: &'static str,
    skew: &'static str,
}

/// An arm's figures: medians over the rounds, ratios to dram of the same round.
#[derive(Clone, Debug, Default, Serialize)]
struct TierFigures {
    throughput_ratio: f64,
    p50_ratio: f64,
    p99_ratio: f64,
    cpu_ratio: f64,
    alone_p50_ratio: f64,
    alone_p99_ratio: f64,
    rss_mb: f64,
    queries_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    alone_p50_ms: f64,
    alone_p99_ms: f64,
    reads_per_query: f64,
    read_kb_per_query: f64,
    cached_per_query: f64,
    cpu_us_per_query: f64,
    found: usize,
    partial: usize,
    queries: usize,
    cache_mb: f64,
    warmed_queries: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<bool>,
    throughput_ratios: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct CurveReport {
    us: f64,
    /// Processor time of a candidate in the dram arm.
    measured_us: f64,
    throughput_ratio: BTreeMap<String, f64>,
    cpu_ratio: BTreeMap<String, f64>,
}

fn per_query(turn: &TurnResult, value: f64) -> f64 {
    ratio(value, turn.queries as f64)
}

impl TierFigures {
    fn of(arm: &ArmTurns, dram: &ArmTurns) -> TierFigures {
        let over =
            |turns: &[TurnResult], of: &dyn Fn(&TurnResult) -> f64| median(turns.iter().map(of));
        let paired = |own: &[TurnResult],
                      base: &[TurnResult],
                      of: &dyn Fn(&TurnResult, &TurnResult) -> f64| {
            median(own.iter().zip(base).map(|(own, base)| of(own, base)))
        };
        let speed = |own: &TurnResult, base: &TurnResult| {
            ratio(per_query(base, base.seconds), per_query(own, own.seconds))
        };
        let all =
            |of: &dyn Fn(&TurnResult) -> usize| arm.turns.iter().chain(&arm.alone).map(of).sum();
        TierFigures {
            throughput_ratio: paired(&arm.turns, &dram.turns, &speed),
            p50_ratio: paired(&arm.turns, &dram.turns, &|own, base| ratio(own.p50_ms, base.p50_ms)),
            p99_ratio: paired(&arm.turns, &dram.turns, &|own, base| ratio(own.p99_ms, base.p99_ms)),
            cpu_ratio: paired(&arm.turns, &dram.turns, &|own, base| ratio(base.cpu_us, own.cpu_us)),
            alone_p50_ratio: paired(&arm.alone, &dram.alone, &|own, base| {
                ratio(own.p50_ms, base.p50_ms)
            }),
            alone_p99_ratio: paired(&arm.alone, &dram.alone, &|own, base| {
                ratio(own.p99_ms, base.p99_ms)
            }),
            rss_mb: arm.turns.iter().map(|turn| turn.rss_mb).fold(0.0, f64::max),
            queries_per_s: over(&arm.turns, &|turn| ratio(turn.queries as f64, turn.seconds)),
            p50_ms: over(&arm.turns, &|turn| turn.p50_ms),
            p99_ms: over(&arm.turns, &|turn| turn.p99_ms),
            alone_p50_ms: over(&arm.alone, &|turn| turn.p50_ms),
            alone_p99_ms: over(&arm.alone, &|turn| turn.p99_ms),
            reads_per_query: over(&arm.turns, &|turn| per_query(turn, turn.reads as f64)),
            read_kb_per_query: over(&arm.turns, &|turn| {
                per_query(turn, turn.read_bytes as f64 / 1024.0)
            }),
            cached_per_query: over(&arm.turns, &|turn| per_query(turn, turn.cached as f64)),
            cpu_us_per_query: over(&arm.turns, &|turn| per_query(turn, turn.cpu_us)),
            found: all(&|turn| turn.found),
            partial: all(&|turn| turn.partial),
            queries: all(&|turn| turn.queries),
            cache_mb: arm.job.cache_bytes as f64 / f64::from(1 << 20),
            warmed_queries: arm.warmed,
            simulated: match arm.arm {
                TierArm::Pmem => Some(true),
                TierArm::Dax => Some(false),
                TierArm::Dram | TierArm::Nvme | TierArm::Mmap => None,
            },
            throughput_ratios: arm
                .turns
                .iter()
                .zip(&dram.turns)
                .map(|(own, base)| speed(own, base))
                .collect(),
        }
    }
}

/// Comparison of answers with those of dram to the same queries.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct AnswerComparison {
    compared: usize,
    /// Number of answers whose hits differ.
    wrong: usize,
}

impl AnswerComparison {
    fn add(&mut self, own: &[TurnResult], base: &[TurnResult]) {
        for (own, base) in own.iter().zip(base) {
            let same =
                own.digests.iter().zip(&base.digests).filter(|(own, base)| own == base).count();
            let all = base.digests.len().max(own.digests.len());
            self.compared += all;
            self.wrong += all - same;
        }
    }

    /// Compares all turns of the other arms that have the same records.
    fn of(measured: &TierResults, dram: &ArmTurns) -> AnswerComparison {
        let mut all = AnswerComparison::default();
        let comparable =
            |arm: &&ArmTurns| arm.name != dram.name && arm.job.has_records_of(&dram.job);
        for arm in measured.arms.iter().filter(comparable) {
            all.add(&arm.turns, &dram.turns);
            all.add(&arm.alone, &dram.alone);
            for turns in measured.curve.iter().flat_map(|point| &point.rounds) {
                let of = |wanted: &str| turns.iter().find(|(name, _)| name == wanted);
                if let (Some((_, own)), Some((_, base))) = (of(&arm.name), of(&dram.name)) {
                    all.add(std::slice::from_ref(own), std::slice::from_ref(base));
                }
            }
        }
        all
    }
}

impl CurveReport {
    fn of(point: &CurvePoint) -> CurveReport {
        let dram = |turns: &Vec<(String, TurnResult)>| {
            turns
                .iter()
                .find(|(name, _)| name == "dram")
                .map(|(_, turn)| turn.clone())
                .unwrap_or_default()
        };
        let measured =
            point.rounds.iter().map(|turns| ratio(dram(turns).cpu_us, dram(turns).scored as f64));
        let names: Vec<String> =
            point.rounds.first().into_iter().flatten().map(|(name, _)| name.clone()).collect();
        let of = |name: &str, of: fn(&TurnResult, &TurnResult) -> f64| {
            let round = |turns: &Vec<(String, TurnResult)>| {
                let own = turns.iter().find(|(own, _)| own == name)?;
                Some(of(&own.1, &dram(turns)))
            };
            median(point.rounds.iter().filter_map(round))
        };
        let all = |figure: fn(&TurnResult, &TurnResult) -> f64| -> BTreeMap<String, f64> {
            let others = names.iter().filter(|name| *name != "dram");
            others.map(|name| (name.clone(), of(name, figure))).collect()
        };
        CurveReport {
            us: point.us,
            measured_us: median(measured),
            throughput_ratio: all(|own, base| ratio(base.seconds, own.seconds)),
            cpu_ratio: all(|own, base| ratio(base.cpu_us, own.cpu_us)),
        }
    }
}

impl TiersReport {
    pub(super) fn new(args: &TiersArgs, measured: TierResults, context: RunContext) -> TiersReport {
        let mut arms: BTreeMap<&'static str, TierArmReport> = BTreeMap::new();
        let dram = measured.arms.iter().find(|arm| arm.arm == TierArm::Dram);
        let mut caches = BTreeMap::new();
        for arm in &measured.arms {
            let Some(dram) = dram else { continue };
            let figures = TierFigures::of(arm, dram);
            if arm.arm == TierArm::Nvme {
                caches.insert(arm.cache.to_string(), figures);
            } else {
                arms.insert(arm.arm.name(), TierArmReport::One(Box::new(figures)));
            }
        }
        let wanted = goals_of(args, &caches);
        arms.insert(TierArm::Nvme.name(), TierArmReport::Caches { cache: caches });
        let segments = &measured.segments;
        let answers = dram.map(|dram| AnswerComparison::of(&measured, dram)).unwrap_or_default();
        let cost = |turn: &TurnResult| ratio(turn.cpu_us, turn.scored as f64);
        let turns = || measured.arms.iter().flat_map(|arm| arm.turns.iter().chain(&arm.alone));
        TiersReport {
            rounds: args.rounds,
            us_per_candidate: median(dram.into_iter().flat_map(|arm| &arm.turns).map(cost)),
            arms,
            curve: measured.curve.iter().map(CurveReport::of).collect(),
            compared: answers.compared,
            wrong: answers.wrong,
            not_found: turns().map(|turn| turn.queries - turn.found.min(turn.queries)).sum(),
            wanted,
            conditions: Conditions {
                kind: args.kind,
                records: segments.shape.records,
                segments: segments.shape.segments,
                dram_records: segments.dram_shape.records,
                record_bytes: segments.written.record_bytes,
                page_bytes: segments.written.bytes,
                memory_budget_mb: segments.budget.map(|budget| budget as f64 / f64::from(1 << 20)),
                queries: args.queries,
                candidates: args.candidates,
                threads: args.threads,
                clients_per_thread: args.clients,
                cluster: args.cluster,
                probes: args.probes,
                near: args.near,
                candidates_from: "a model of a coarse stage over clusters, not a coarse stage",
                skew: "none: targets are spread evenly, no query is asked twice",
            },
            notes: measured.notes,
            context,
        }
    }

    fn rows(&self) -> Vec<(String, &TierFigures)> {
        let mut rows = Vec::new();
        for (name, arm) in &self.arms {
            match arm {
                TierArmReport::One(figures) => {
                    let mark = if figures.simulated == Some(true) { " (simulated)" } else { "" };
                    rows.push((format!("{name}{mark}"), figures.as_ref()));
                }
                TierArmReport::Caches { cache } => {
                    rows.extend(
                        cache
                            .iter()
                            .map(|(share, figures)| (format!("{name}, cache {share}"), figures)),
                    );
                }
            }
        }
        rows
    }

    fn print_arms(&self) {
        let columns = [
            "arm",
            "thr",
            "p50",
            "p99",
            "cpu",
            "alone p50",
            "queries/s",
            "p50 ms",
            "p99 ms",
            "reads",
            "cached",
            "cpu us",
            "RSS MiB",
        ];
        let mut table = TextTable::new(&columns);
        for (name, figures) in self.rows() {
            table.row([
                name,
                format!("{:.3}", figures.throughput_ratio),
                format!("{:.3}", figures.p50_ratio),
                format!("{:.3}", figures.p99_ratio),
                format!("{:.3}", figures.cpu_ratio),
                format!("{:.3}", figures.alone_p50_ratio),
                format!("{:.1}", figures.queries_per_s),
                ms(figures.p50_ms),
                ms(figures.p99_ms),
                format!("{:.0}", figures.reads_per_query),
                format!("{:.0}", figures.cached_per_query),
                format!("{:.0}", figures.cpu_us_per_query),
                format!("{:.0}", figures.rss_mb),
            ]);
        }
        print!("{table}");
    }

    fn print_curve(&self) {
        let Some(first) = self.curve.first() else { return };
        let names: Vec<&String> = first.throughput_ratio.keys().collect();
        let mut columns = vec!["us a candidate".to_owned(), "measured".to_owned()];
        columns
            .extend(names.iter().flat_map(|name| [format!("{name} thr"), format!("{name} cpu")]));
        let mut table = TextTable::new(&columns.iter().map(String::as_str).collect::<Vec<_>>());
        for point in &self.curve {
            let mut row = vec![format!("{}", point.us), format!("{:.1}", point.measured_us)];
            for name in &names {
                for ratios in [&point.throughput_ratio, &point.cpu_ratio] {
                    row.push(format!("{:.3}", ratios.get(*name).copied().unwrap_or(0.0)));
                }
            }
            table.row(row);
        }
        print!("{table}");
    }
}

impl BenchReport for TiersReport {
    fn print(&self) {
        let own = &self.conditions;
        println!(
            "{} records ({} in {} of pages), {} candidates a query, {} threads with {} queries each; {:.1} us a candidate",
            own.records,
            format_bytes(own.record_bytes),
            format_bytes(own.page_bytes),
            own.candidates,
            own.threads,
            own.clients_per_thread,
            self.us_per_candidate
        );
        println!(
            "candidates: {:.0} % from the nearest of {} clusters of {} records, the rest from the others; no favourites",
            own.near * 100.0,
            own.probes,
            own.cluster
        );
        self.notes.iter().for_each(|note| println!("{note}"));
        if let Some(budget) = own.memory_budget_mb {
            println!(
                "memory budget {budget:.0} MiB, a quarter of the segments; dram has the first {} records, which fit in it",
                own.dram_records
            );
        }
        self.print_arms();
        self.print_curve();
        if self.compared == 0 {
            println!("no answers were compared: no other arm has the records of dram");
        }
        println!(
            "answers that differ: {} of {}; records not found: {}",
            self.wrong, self.compared, self.not_found
        );
        self.wanted.iter().for_each(|goal| println!("{goal:.3}"));
        println!("{}", self.context);
    }

    fn verdict(&self) -> Result<()> {
        let partial: usize = self.rows().iter().map(|(_, figures)| figures.partial).sum();
        match self.wrong + partial {
            0 => Ok(()),
            _ => Err(Error::internal(format!(
                "{} answers differ between arms, {partial} are partial",
                self.wrong
            ))),
        }
    }
}

fn goals_of(args: &TiersArgs, caches: &BTreeMap<String, TierFigures>) -> Vec<Goal> {
    let Some(figures) =
        caches.get(&CLAIM_CACHE.to_string()).filter(|_| args.kind == TierRecords::Fingerprint)
    else {
        return Vec::new();
    };
    vec![
        Goal::new(
            format!(
                "nvme with cache {CLAIM_CACHE}, throughput to dram: at least {THROUGHPUT_RATIO_MIN}"
            ),
            figures.throughput_ratio,
            figures.throughput_ratio >= THROUGHPUT_RATIO_MIN,
        ),
        Goal::new(
            format!("nvme with cache {CLAIM_CACHE}, p50 to dram: at most {P50_RATIO_MAX}"),
            figures.p50_ratio,
            figures.p50_ratio <= P50_RATIO_MAX,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared_one_by_one() {
        let turn =
            |digests: &[u64]| TurnResult { digests: digests.into(), ..TurnResult::default() };
        let mut all = AnswerComparison::default();
        all.add(&[turn(&[1, 2, 3]), turn(&[4])], &[turn(&[1, 9, 3]), turn(&[4, 5])]);
        assert_eq!(all, AnswerComparison { compared: 5, wrong: 2 });
        all.add(&[], &[turn(&[1])]);
        assert_eq!(all.compared, 5);
    }
}
