//! The report of `bench filter`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::FilterArgs;
use super::ours::CaseFigures;
use super::peers::{PeerCase, PeerRun};
use crate::report::{BenchReport, Goal};
use base::{Error, Result};
use loadgen::machine::RunContext;
use loadgen::println;
use loadgen::report::TextTable;

/// Highest goal of a filtered p99, relative to the unfiltered one.
const P99_FACTOR_MAX: f64 = 3.0;
/// Highest goal of a filtered p99.
const P99_MS_MAX: f64 = 10.0;
/// Lowest goal of recall.
const RECALL_MIN: f64 = 0.97;

/// Figures of one selectivity, ours and those of qdrant-edge.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FilterRow {
    /// Mean share of the rows that the filters allow.
    allowed_share: f64,
    #[serde(flatten)]
    ours: CaseFigures,
    peer_p50_ms: Option<f64>,
    peer_p99_ms: Option<f64>,
    peer_recall: Option<f64>,
}

/// JSON of `bench filter`.
#[derive(Debug, Serialize)]
pub(super) struct FilterReport {
    /// Figures by selectivity. Filters on one tenant are `0.01%` with 10,000 tenants, else
    /// `tenant`.
    filters: BTreeMap<String, FilterRow>,
    /// Filters on a random half of the clusters.
    half_clusters: Option<FilterRow>,
    unfiltered_p50_ms: f64,
    unfiltered_p99_ms: f64,
    unfiltered_recall: f64,
    peer_unfiltered_p50_ms: Option<f64>,
    peer_unfiltered_p99_ms: Option<f64>,
    peer_unfiltered_recall: Option<f64>,
    /// True if all counts were exact.
    count_exact: bool,
    /// Number of filters that read payloads.
    read_payloads: u64,
    rows: usize,
    dims: usize,
    tenants: usize,
    /// Number of queries of each selectivity.
    queries: usize,
    segments: usize,
    build_s: f64,
    /// Number of threads that built the indexes, ours and that of qdrant-edge.
    build_threads: usize,
    /// Seconds of the stages of the run.
    stages_s: BTreeMap<&'static str, f64>,
    /// Version of qdrant-edge.
    peer: Option<String>,
    peer_build_s: Option<f64>,
    /// Reason why qdrant-edge was not measured.
    peer_absent: Option<String>,
    goals: Vec<Goal>,
    #[serde(flatten)]
    context: RunContext,
}

/// Measured figures.
pub(super) struct Measured {
    pub(super) unfiltered: CaseFigures,
    /// Results by case.
    pub(super) cases: Vec<CaseResult>,
    pub(super) count_exact: bool,
    pub(super) read_payloads: u64,
    pub(super) segments: usize,
    pub(super) build_s: f64,
}

/// Measured figures of one case.
pub(super) struct CaseResult {
    pub(super) name: &'static str,
    pub(super) allowed_share: f64,
    pub(super) figures: CaseFigures,
}

impl FilterReport {
    pub(super) fn new(
        args: &FilterArgs,
        measured: Measured,
        peer: &PeerRun,
        stages_s: BTreeMap<&'static str, f64>,
        context: RunContext,
    ) -> FilterReport {
        let figures = match peer {
            PeerRun::Done(figures) => Some(figures),
            PeerRun::Absent(_) => None,
        };
        let peer_case = |name: &str| figures.and_then(|figures| figures.cases.get(name));
        let row = |ours: &CaseResult| {
            let case: Option<&PeerCase> = peer_case(ours.name);
            FilterRow {
                allowed_share: ours.allowed_share,
                ours: ours.figures.clone(),
                peer_p50_ms: case.map(|case| case.p50_ms),
                peer_p99_ms: case.map(|case| case.p99_ms),
                peer_recall: case.map(|case| case.recall),
            }
        };
        let mut filters: BTreeMap<String, FilterRow> =
            measured.cases.iter().map(|case| (case.name.to_owned(), row(case))).collect();
        let half_clusters = filters.remove("half_clusters");
        let unfiltered = peer_case("unfiltered");
        FilterReport {
            goals: goals(&measured),
            filters,
            half_clusters,
            unfiltered_p50_ms: measured.unfiltered.p50_ms,
            unfiltered_p99_ms: measured.unfiltered.p99_ms,
            unfiltered_recall: measured.unfiltered.recall,
            peer_unfiltered_p50_ms: unfiltered.map(|case| case.p50_ms),
            peer_unfiltered_p99_ms: unfiltered.map(|case| case.p99_ms),
            peer_unfiltered_recall: unfiltered.map(|case| case.recall),
            count_exact: measured.count_exact,
            read_payloads: measured.read_payloads,
            rows: args.rows,
            dims: args.dims,
            tenants: args.tenants,
            queries: args.queries,
            segments: measured.segments,
            build_s: measured.build_s,
            build_threads: args.threads,
            stages_s,
            peer: figures.map(|figures| figures.version.clone()),
            peer_build_s: figures.map(|figures| figures.build_s),
            peer_absent: match peer {
                PeerRun::Absent(reason) => Some(reason.clone()),
                PeerRun::Done(_) => None,
            },
            context,
        }
    }
}

fn goals(measured: &Measured) -> Vec<Goal> {
    let limit = (P99_FACTOR_MAX * measured.unfiltered.p99_ms).min(P99_MS_MAX);
    let cases = || measured.cases.iter();
    let worst = cases().map(|case| case.figures.p99_ms).fold(0.0, f64::max);
    let recall = cases().map(|case| case.figures.recall).fold(1.0, f64::min);
    let slow = cases().filter(|case| case.figures.p99_ms > limit);
    let lost = cases().filter(|case| case.figures.recall < RECALL_MIN);
    let name = |case: &CaseResult| case.name.to_owned();
    let fast = Goal::new(
        format!("p99 with a new filter: at most {P99_FACTOR_MAX} x unfiltered and {P99_MS_MAX} ms"),
        worst,
        worst <= limit,
    );
    let found = Goal::new(
        format!("recall@10 with a filter: at least {RECALL_MIN}"),
        recall,
        recall >= RECALL_MIN,
    );
    vec![
        Goal { not_met_at: slow.map(name).collect(), ..fast },
        Goal { not_met_at: lost.map(name).collect(), ..found },
    ]
}

impl FilterReport {
    fn wrong_hits(&self) -> usize {
        self.filters.values().chain(&self.half_clusters).map(|row| row.ours.wrong).sum()
    }
}

fn optional(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

impl BenchReport for FilterReport {
    fn print(&self) {
        println!("{}", self.context);
        println!(
            "{} rows of {} dimensions, {} tenants, {} segments; {} queries of each selectivity, each with a new filter",
            self.rows, self.dims, self.tenants, self.segments, self.queries
        );
        println!(
            "without a filter: p50 {:.2} ms, p99 {:.2} ms, recall {:.3}",
            self.unfiltered_p50_ms, self.unfiltered_p99_ms, self.unfiltered_recall
        );
        let mut table = TextTable::new(&[
            "filter",
            "rows %",
            "p50 ms",
            "p99 ms",
            "recall",
            "qdrant p50",
            "qdrant p99",
            "qdrant recall",
        ]);
        let half = self.half_clusters.iter().map(|row| ("half of the clusters", row));
        for (name, row) in self.filters.iter().map(|(name, row)| (&name[..], row)).chain(half) {
            table.row([
                name.to_owned(),
                format!("{:.3}", 100.0 * row.allowed_share),
                format!("{:.2}", row.ours.p50_ms),
                format!("{:.2}", row.ours.p99_ms),
                format!("{:.3}", row.ours.recall),
                optional(row.peer_p50_ms, 2),
                optional(row.peer_p99_ms, 2),
                optional(row.peer_recall, 3),
            ]);
        }
        println!("\n{table}");
        if let Some(reason) = &self.peer_absent {
            println!("qdrant-edge was not measured: {reason}");
        }
        if self.peer.is_some() {
            println!(
                "qdrant-edge without a filter: p50 {} ms, p99 {} ms, recall {}",
                optional(self.peer_unfiltered_p50_ms, 2),
                optional(self.peer_unfiltered_p99_ms, 2),
                optional(self.peer_unfiltered_recall, 3)
            );
        }
        println!(
            "built in {:.1} s, qdrant-edge in {} s, {} threads each",
            self.build_s,
            optional(self.peer_build_s, 1),
            self.build_threads
        );
        println!(
            "counts exact: {}; hits that do not meet their filter: {}",
            self.count_exact,
            self.wrong_hits()
        );
        self.goals.iter().for_each(|goal| println!("{goal}"));
    }

    fn verdict(&self) -> Result<()> {
        let wrong = self.wrong_hits();
        if wrong > 0 {
            return Err(Error::internal(format!("{wrong} hits do not meet their filter")));
        }
        if self.count_exact { Ok(()) } else { Err(Error::internal("a count was not exact")) }
    }
}
