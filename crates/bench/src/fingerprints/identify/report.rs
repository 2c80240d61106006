//! The report of `bench identify`: JSON and a table.

use std::collections::BTreeMap;

use base::Result;
use serde::Serialize;
use vision::fingerprint::accept_among;

use super::IdentifyArgs;
use super::collection::CollectionLatency;
use super::gallery::{self, Gallery};
use super::queries::{IdentifyOutcome, Impostors};
use crate::report::{BenchReport, Goal};
use loadgen::machine::RunContext;
use loadgen::println;
use loadgen::report::TextTable;

/// False positive identification rate at which misses are counted.
const FALSE_POSITIVES: f64 = 0.001;
/// Made-up prints whose minutiae are counted for the report.
const SAMPLE: usize = 1000;

/// JSON of `bench identify`.
#[derive(Debug, Serialize)]
pub(super) struct IdentifyReport {
    /// Number of prints that were searched.
    gallery: usize,
    /// Share of queries whose finger came first.
    rank1: f64,
    /// Share of `exhaustive_queries` queries whose finger comes first if every print is compared.
    /// `None` without such queries.
    exhaustive_rank1: Option<f64>,
    /// Share of the same queries whose finger the index and the matcher together put first.
    rank1_same_queries: Option<f64>,
    exhaustive_queries: usize,
    /// Share of all queries whose finger has a higher score than all candidates: no search can
    /// exceed it.
    exhaustive_rank1_most: f64,
    /// Share of queries whose finger is among the candidates.
    candidate_rate: f64,
    /// Prints compared exactly, in percent of the gallery.
    penetration_pct: f64,
    /// Queries whose finger is not found with a score that at most one in a thousand queries of
    /// other fingers reaches, in percent.
    fnir_at_fpir_0_1_pct: f64,
    /// Score that at most one in a thousand queries of other fingers reaches. With fewer than a
    /// thousand queries, no query of another finger has a higher one.
    threshold: f32,
    #[serde(flatten)]
    server: ServerRates,
    p50_ms: f64,
    p95_ms: f64,
    /// Time of the index alone, the median.
    index_p50_ms: f64,
    /// Memory of the index per print, in bytes.
    bytes_per_print: f64,
    build_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    collection: Option<CollectionLatency>,
    queries: usize,
    enrolled: usize,
    /// Mean number of minutiae of an enrolled print.
    minutiae_enrolled: f64,
    /// Mean number of minutiae of a made-up print.
    minutiae_background: f64,
    /// Score that one in a hundred pairs of a query and an enrolled print of another finger
    /// reaches.
    impostor_p99_enrolled: f32,
    /// Score that one in a hundred pairs of a query and a made-up print reaches.
    impostor_p99_background: f32,
    databases: BTreeMap<String, DatabaseRates>,
    goals: Vec<Goal>,
    #[serde(flatten)]
    context: RunContext,
}

/// Rates by the threshold of a server.
#[derive(Clone, Copy, Debug, Serialize)]
struct ServerRates {
    /// Score from which a server accepts a print of a collection as large.
    server_threshold: f32,
    /// Queries in which a print of another finger reaches the threshold, in percent.
    fpir_of_server_pct: f64,
    /// Queries in which no print of their own finger reaches the threshold, in percent.
    fnir_of_server_pct: f64,
}

impl std::fmt::Display for ServerRates {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ServerRates { server_threshold, fpir_of_server_pct, fnir_of_server_pct } = self;
        write!(
            formatter,
            "by the threshold of a server ({server_threshold:.0}): FNIR {fnir_of_server_pct:.1} %, \
             FPIR {fpir_of_server_pct:.1} %"
        )
    }
}

impl ServerRates {
    fn of(outcomes: &[IdentifyOutcome], gallery: usize) -> ServerRates {
        let threshold = accept_among(gallery as u64);
        let identified =
            |outcome: &IdentifyOutcome| outcome.rank1() && outcome.genuine >= threshold;
        let other = |outcome: &IdentifyOutcome| outcome.impostor >= threshold;
        ServerRates {
            server_threshold: threshold,
            fpir_of_server_pct: 100.0 * share(outcomes.iter(), other),
            fnir_of_server_pct: 100.0 * (1.0 - share(outcomes.iter(), identified)),
        }
    }
}

/// Rates of the queries of one database.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct DatabaseRates {
    queries: usize,
    rank1: f64,
    exhaustive_rank1_most: f64,
    candidate_rate: f64,
}

impl DatabaseRates {
    fn of<'a>(outcomes: impl Iterator<Item = &'a IdentifyOutcome> + Clone) -> DatabaseRates {
        DatabaseRates {
            queries: outcomes.clone().count(),
            rank1: share(outcomes.clone(), IdentifyOutcome::rank1),
            exhaustive_rank1_most: share(outcomes.clone(), IdentifyOutcome::leads),
            candidate_rate: share(outcomes, |outcome| outcome.found),
        }
    }
}

/// Returns the number of minutiae of a record: 6 bytes each after a header of 8.
fn minutiae(record: &[u8]) -> usize {
    record.len().saturating_sub(8) / 6
}

fn share<'a>(
    outcomes: impl Iterator<Item = &'a IdentifyOutcome> + Clone,
    holds: impl Fn(&IdentifyOutcome) -> bool,
) -> f64 {
    let all = outcomes.clone().count().max(1);
    outcomes.filter(|outcome| holds(outcome)).count() as f64 / all as f64
}

/// Returns the quantile `part` of the values.
fn quantile(outcomes: &[IdentifyOutcome], of: impl Fn(&IdentifyOutcome) -> f64, part: f64) -> f64 {
    let mut values: Vec<f64> = outcomes.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    let at = (values.len().saturating_sub(1) as f64 * part).round() as usize;
    values.get(at).copied().unwrap_or(0.0)
}

/// Returns the score that at most one in a thousand queries of other fingers reaches: the queries
/// themselves, without their own prints.
fn threshold(outcomes: &[IdentifyOutcome]) -> f32 {
    let mut highest: Vec<f32> = outcomes.iter().map(|outcome| outcome.impostor).collect();
    highest.sort_by(f32::total_cmp);
    let accepted = (highest.len() as f64 * FALSE_POSITIVES) as usize;
    highest.iter().rev().nth(accepted).copied().unwrap_or(0.0)
}

impl IdentifyReport {
    pub(super) fn new(
        args: &IdentifyArgs,
        gallery: &Gallery,
        outcomes: &[IdentifyOutcome],
        impostors: Impostors,
        collection: Option<CollectionLatency>,
        context: RunContext,
    ) -> Result<IdentifyReport> {
        let all = DatabaseRates::of(outcomes.iter());
        let exhaustive = outcomes.iter().filter(|outcome| outcome.first_of_all.is_some());
        let same_queries = |holds: fn(&IdentifyOutcome) -> bool| {
            (exhaustive.clone().count() > 0).then(|| share(exhaustive.clone(), holds))
        };
        let threshold = threshold(outcomes);
        let accepted = |outcome: &IdentifyOutcome| outcome.rank1() && outcome.genuine > threshold;
        let mut databases = BTreeMap::new();
        for outcome in outcomes {
            databases.entry(outcome.database.clone()).or_insert_with(|| {
                DatabaseRates::of(outcomes.iter().filter(|it| it.database == outcome.database))
            });
        }
        let compared: usize = outcomes.iter().map(|outcome| outcome.compared).sum();
        let possible = (outcomes.len() * gallery.len()).max(1);
        let sample = SAMPLE.min(args.background);
        let made_up = (0..sample).map(|number| gallery::print(number).vertices.len());
        let enrolled = (0..gallery.enrolled).map(|row| minutiae(gallery.record(row)));
        let mut report = IdentifyReport {
            gallery: gallery.len(),
            rank1: all.rank1,
            exhaustive_rank1: same_queries(|outcome| outcome.first_of_all == Some(true)),
            rank1_same_queries: same_queries(IdentifyOutcome::rank1),
            exhaustive_queries: exhaustive.clone().count(),
            exhaustive_rank1_most: all.exhaustive_rank1_most,
            candidate_rate: all.candidate_rate,
            penetration_pct: 100.0 * compared as f64 / possible as f64,
            fnir_at_fpir_0_1_pct: 100.0 * (1.0 - share(outcomes.iter(), accepted)),
            threshold,
            server: ServerRates::of(outcomes, gallery.len()),
            p50_ms: quantile(outcomes, |outcome| outcome.ms, 0.5),
            p95_ms: quantile(outcomes, |outcome| outcome.ms, 0.95),
            index_p50_ms: quantile(outcomes, |outcome| outcome.index_ms, 0.5),
            bytes_per_print: gallery.index.memory_bytes() as f64 / gallery.len().max(1) as f64,
            build_s: gallery.build_s,
            collection,
            queries: outcomes.len(),
            enrolled: gallery.enrolled,
            minutiae_enrolled: enrolled.sum::<usize>() as f64 / gallery.enrolled.max(1) as f64,
            minutiae_background: made_up.sum::<usize>() as f64 / sample.max(1) as f64,
            impostor_p99_enrolled: impostors.enrolled_p99,
            impostor_p99_background: impostors.background_p99,
            databases,
            goals: Vec::new(),
            context,
        };
        report.goals = report.judged();
        Ok(report)
    }

    fn judged(&self) -> Vec<Goal> {
        let ratio = self.rank1 / self.exhaustive_rank1_most.max(f64::MIN_POSITIVE);
        let p95_ms =
            self.collection.as_ref().map_or(self.p95_ms, |latency| latency.p95_all_threads_ms);
        vec![
            Goal::new("rank1 at least 0.97 of the exhaustive matcher's", ratio, ratio >= 0.97),
            Goal::new("penetration at most 1 %", self.penetration_pct, self.penetration_pct <= 1.0),
            Goal::new("p95 below 1 s, in ms", p95_ms, p95_ms < 1000.0),
            Goal::new(
                "at most 320 bytes a print",
                self.bytes_per_print,
                self.bytes_per_print <= 320.0,
            ),
        ]
    }
}

fn print_latency(latency: &CollectionLatency) {
    println!(
        "in a collection of {} segments, {} candidates, rank 1 {:.3}: p50 {:.0} ms, p95 {:.0} ms on \
         one search thread; p50 {:.0} ms, p95 {:.0} ms on {} ({} parts done by other threads)",
        latency.segments,
        latency.candidates,
        latency.rank1_one_thread,
        latency.p50_one_thread_ms,
        latency.p95_one_thread_ms,
        latency.p50_all_threads_ms,
        latency.p95_all_threads_ms,
        latency.threads,
        latency.helped
    );
}

impl BenchReport for IdentifyReport {
    fn print(&self) {
        println!(
            "{} prints, {} of them real; {} queries. Minutiae: {:.1} real, {:.1} generated. \
             Impostors score up to {:.0} (99 of 100) if real, {:.0} if generated",
            self.gallery,
            self.enrolled,
            self.queries,
            self.minutiae_enrolled,
            self.minutiae_background,
            self.impostor_p99_enrolled,
            self.impostor_p99_background
        );
        let mut table = TextTable::new(&[
            "queries",
            "number",
            "rank 1",
            "at most, if all were compared",
            "among candidates",
        ]);
        for (name, rates) in &self.databases {
            table.row([
                name.clone(),
                rates.queries.to_string(),
                format!("{:.3}", rates.rank1),
                format!("{:.3}", rates.exhaustive_rank1_most),
                format!("{:.3}", rates.candidate_rate),
            ]);
        }
        table.row([
            "all".into(),
            self.queries.to_string(),
            format!("{:.3}", self.rank1),
            format!("{:.3}", self.exhaustive_rank1_most),
            format!("{:.3}", self.candidate_rate),
        ]);
        println!("\n{table}");
        if let (Some(all), Some(index)) = (self.exhaustive_rank1, self.rank1_same_queries) {
            println!(
                "{} queries against all prints: {all:.3} come first, by the index {index:.3}",
                self.exhaustive_queries
            );
        }
        println!(
            "{:.3} % compared; FNIR {:.1} % at FPIR 0.1 % (score above {:.1})",
            self.penetration_pct, self.fnir_at_fpir_0_1_pct, self.threshold
        );
        println!("{}", self.server);
        println!(
            "p50 {:.0} ms (index {:.0} ms), p95 {:.0} ms on one thread; {:.0} bytes a print, built \
             in {:.1} s",
            self.p50_ms, self.index_p50_ms, self.p95_ms, self.bytes_per_print, self.build_s
        );
        self.collection.iter().for_each(print_latency);
        for goal in &self.goals {
            println!("{goal}");
        }
        println!("{}", self.context);
    }
}
