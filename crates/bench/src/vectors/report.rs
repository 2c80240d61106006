//! The report of `bench vectors`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::HITS;
use super::curve::{Curve, VectorPoint};
use super::data::VectorData;
use super::ours::OurIndex;
use super::peers::Peers;
use crate::report::BenchReport;
use loadgen::machine::RunContext;
use loadgen::println;
use loadgen::report::TextTable;

/// JSON of `bench vectors`.
#[derive(Debug, Serialize)]
pub(super) struct VectorsReport {
    /// False if the run continues after this report was written.
    complete: bool,
    dims: usize,
    at95: At,
    at99: At,
    /// Points by engine.
    curves: BTreeMap<String, Vec<VectorPoint>>,
    build_s: BTreeMap<String, f64>,
    versions: BTreeMap<String, String>,
    rows: usize,
    queries: usize,
    hits: usize,
    /// True if the vectors were generated: then the figures only show that it works.
    made: bool,
    index: String,
    /// Memory of our index without the full vectors, which the last stage of a search compares.
    memory_mb: f64,
    /// Variants of other engines whose sweep reached its time limit. A further setting may have a
    /// higher recall.
    sweeps_cut_short: BTreeMap<String, Vec<String>>,
    /// Passes over our settings. The figures are medians of the passes.
    passes: usize,
    /// Reason why no other engines were run.
    peers_absent: Option<String>,
    /// Messages of engines that failed.
    peers_failed: BTreeMap<String, String>,
    #[serde(flatten)]
    context: RunContext,
}

/// Queries per second of processor time on one core at one recall. `None` if no setting reaches it.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct At {
    millpond_qps: Option<f64>,
    best_peer_qps: Option<f64>,
    best_peer: Option<String>,
}

impl At {
    fn new(recall: f64, ours: &Curve, peers: &[Curve]) -> At {
        let peers =
            peers.iter().filter_map(|curve| Some((curve.qps_at(recall)?, curve.engine.clone())));
        let best = peers.max_by(|a, b| a.0.total_cmp(&b.0));
        let (best_peer_qps, best_peer) = best.unzip();
        At { millpond_qps: ours.qps_at(recall), best_peer_qps, best_peer }
    }
}

impl VectorsReport {
    pub(super) fn new(
        data: &VectorData,
        ours: &OurIndex,
        peers: &Peers,
        theirs: &[Curve],
        context: RunContext,
    ) -> VectorsReport {
        let own = ours.curve();
        let at95 = At::new(0.95, &own, theirs);
        let at99 = At::new(0.99, &own, theirs);
        let all = || std::iter::once(&own).chain(theirs);
        VectorsReport {
            complete: false,
            dims: data.dims,
            at95,
            at99,
            build_s: all().map(|curve| (curve.engine.clone(), curve.build_s)).collect(),
            versions: all()
                .filter_map(|curve| Some((curve.engine.clone(), curve.version.clone()?)))
                .collect(),
            curves: all().map(|curve| (curve.engine.clone(), curve.points.clone())).collect(),
            rows: data.rows(),
            queries: data.truth.len(),
            hits: HITS,
            made: data.made,
            index: ours.kind(),
            memory_mb: ours.memory_mb(),
            sweeps_cut_short: theirs
                .iter()
                .filter(|curve| !curve.cut_short.is_empty())
                .map(|curve| (curve.engine.clone(), curve.cut_short.clone()))
                .collect(),
            passes: ours.passes(),
            peers_absent: peers.absent.clone(),
            peers_failed: peers.failed.clone(),
            context,
        }
    }

    /// Marks the report as that of a finished run.
    pub(super) fn completed(self) -> VectorsReport {
        VectorsReport { complete: true, ..self }
    }
}

impl BenchReport for VectorsReport {
    fn print(&self) {
        println!("{}", self.context);
        println!(
            "{} vectors of {} dimensions, {} queries{}; one query a call on one core, by processor time",
            self.rows,
            self.dims,
            self.queries,
            if self.made { " (made, not real)" } else { "" }
        );
        let mut table =
            TextTable::new(&["engine", "build s", "q/s at 0.95", "q/s at 0.99", "best recall"]);
        for (engine, points) in &self.curves {
            let curve = Curve {
                engine: engine.clone(),
                version: None,
                build_s: 0.0,
                points: points.clone(),
                cut_short: Vec::new(),
            };
            let at = |recall| curve.qps_at(recall).map_or("-".into(), |qps| format!("{qps:.0}"));
            let best = points.iter().map(|point| point.recall).fold(0.0, f64::max);
            let build = self.build_s.get(engine).copied().unwrap_or(0.0);
            table.row([
                engine.clone(),
                format!("{build:.1}"),
                at(0.95),
                at(0.99),
                format!("{best:.4}"),
            ]);
        }
        println!("\n{table}");
        for (engine, variants) in &self.sweeps_cut_short {
            println!(
                "{engine}: the sweep of {} reached its time limit; further settings may have a higher recall",
                variants.join(", ")
            );
        }
        for (engine, why) in &self.peers_failed {
            println!("{engine} failed: {why}");
        }
        if let Some(why) = &self.peers_absent {
            println!("{why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_peer_is_the_fastest_that_reaches_the_recall() {
        let curve = |engine: &str, recall, qps| Curve {
            engine: engine.into(),
            version: None,
            build_s: 0.0,
            points: vec![VectorPoint { setting: String::new(), recall, qps, qps_wall: qps }],
            cut_short: Vec::new(),
        };
        let ours = curve("millpond", 0.97, 10.0);
        let peers = [curve("fast", 0.9, 99.0), curve("good", 0.99, 20.0), curve("slow", 1.0, 5.0)];
        let at = At::new(0.95, &ours, &peers);
        let expected = At {
            millpond_qps: Some(10.0),
            best_peer_qps: Some(20.0),
            best_peer: Some("good".into()),
        };
        assert_eq!(at, expected);
        let none = At { millpond_qps: None, best_peer_qps: None, best_peer: None };
        assert_eq!(At::new(0.99, &ours, &[]), none);
    }
}
