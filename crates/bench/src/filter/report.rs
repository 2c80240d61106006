//! The report of `bench filter`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::data::FilterData;
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
    #[serde(flatten)]
    ours: CaseFigures,
    peer_p50_ms: Option<f64>,
    peer_p99_ms: Option<f64>,
    peer_recall: Option<f64>,
}

/// JSON of `bench filter`.
#[derive(Debug, Serialize)]
pub(super) struct FilterReport {
    /// By selectivity.
    filters: BTreeMap<String, FilterRow>,
    /// Filters on a random half of the clusters.
    half_clusters: FilterRow,
    unfiltered_p50_ms: f64,
    unfiltered_p99_ms: f64,
    unfiltered_recall: f64,
    peer_unfiltered_p99_ms: Option<f64>,
    /// True if all counts were exact.
    count_exact: bool,
    /// Filters that read payloads.
    read_payloads: u64,
    rows: usize,
    dims: usize,
    tenants: usize,
    /// Queries of each selectivity.
    queries: usize,
    segments: usize,
    build_s: f64,
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
    /// By case.
    pub(super) cases: Vec<(&'static str, CaseFigures)>,
    pub(super) count_exact: bool,
    pub(super) read_payloads: u64,
    pub(super) segments: usize,
    pub(super) build_s: f64,
}

impl FilterReport {
    pub(super) fn new(
        data: &FilterData,
        tenants: usize,
        queries: usize,
        measured: Measured,
        peer: &PeerRun,
        context: RunContext,
    ) -> FilterReport {
        let figures = match peer {
            PeerRun::Done(figures) => Some(figures),
            PeerRun::Absent(_) => None,
        };
        let row = |name: &str, ours: &CaseFigures| {
            let case: Option<&PeerCase> = figures.and_then(|figures| figures.cases.get(name));
            FilterRow {
                ours: ours.clone(),
                peer_p50_ms: case.map(|case| case.p50_ms),
                peer_p99_ms: case.map(|case| case.p99_ms),
                peer_recall: case.map(|case| case.recall),
            }
        };
        let mut filters: BTreeMap<String, FilterRow> = measured
            .cases
            .iter()
            .map(|(name, ours)| ((*name).to_owned(), row(name, ours)))
            .collect();
        let half_clusters = filters
            .remove("half_clusters")
            .unwrap_or_else(|| row("half_clusters", &CaseFigures::default()));
        FilterReport {
            goals: goals(&measured),
            filters,
            half_clusters,
            unfiltered_p50_ms: measured.unfiltered.p50_ms,
            unfiltered_p99_ms: measured.unfiltered.p99_ms,
            unfiltered_recall: measured.unfiltered.recall,
            peer_unfiltered_p99_ms: figures
                .and_then(|figures| figures.cases.get("unfiltered"))
                .map(|case| case.p99_ms),
            count_exact: measured.count_exact,
            read_payloads: measured.read_payloads,
            rows: data.rows(),
            dims: data.dims,
            tenants,
            queries,
            segments: measured.segments,
            build_s: measured.build_s,
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
    let worst = measured.cases.iter().map(|(_, figures)| figures.p99_ms).fold(0.0, f64::max);
    let recall = measured.cases.iter().map(|(_, figures)| figures.recall).fold(1.0, f64::min);
    let slow = measured.cases.iter().filter(|(_, figures)| figures.p99_ms > limit);
    let lost = measured.cases.iter().filter(|(_, figures)| figures.recall < RECALL_MIN);
    let name = |(name, _): &(&'static str, CaseFigures)| (*name).to_owned();
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
            "p50 ms",
            "p99 ms",
            "recall",
            "qdrant p50",
            "qdrant p99",
            "qdrant recall",
        ]);
        let half = std::iter::once(("half of the clusters", &self.half_clusters));
        for (name, row) in self.filters.iter().map(|(name, row)| (&name[..], row)).chain(half) {
            table.row([
                name.to_owned(),
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
        println!("counts exact: {}", self.count_exact);
        self.goals.iter().for_each(|goal| println!("{goal}"));
    }

    fn verdict(&self) -> Result<()> {
        if self.count_exact { Ok(()) } else { Err(Error::internal("a count was not exact")) }
    }
}
