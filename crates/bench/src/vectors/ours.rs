//! Millpond's own index, measured in passes over its settings.

use std::time::{Duration, Instant};

use base::{Error, Result};
use coarse::{
    BuildThreads, Coarse, CoarseBuild, CoarseKind, CoarseRequest, CoarseScratch, DenseVectors,
    Metric, ScanParams, build,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use super::curve::{Curve, VectorPoint};
use super::data::VectorData;
use super::{HITS, IndexKind, VectorsArgs};
use loadgen::stats::median;

/// Numbers of candidates compared with finer codes.
const REFINE: [usize; 4] = [40, 80, 160, 320];
/// Numbers of probed clusters.
const PROBES: [usize; 13] = [4, 8, 12, 16, 24, 32, 40, 52, 64, 80, 96, 128, 192];
/// Recall from which a setting is not made slower.
const RECALL_ENOUGH: f64 = 0.9965;
/// Time of a setting in a pass. It covers all queries at least once.
const TIME: Duration = Duration::from_millis(150);
/// Time of a setting in a pass over the generated set, whose figures mean nothing.
const TIME_MADE: Duration = Duration::from_millis(20);

/// The index and its figures.
pub(super) struct OurIndex {
    index: Box<dyn Coarse>,
    order: Vec<u32>,
    exact: DenseVectors,
    kind: CoarseKind,
    build_s: f64,
    cells: Vec<OurSetting>,
}

struct OurSetting {
    name: String,
    params: ScanParams,
    recall: f64,
    /// Queries per second of processor time, for each pass.
    qps: Vec<f64>,
    /// Queries per second, for each pass.
    qps_wall: Vec<f64>,
}

impl OurSetting {
    /// Repeats all queries for `time`, and adds their rates.
    fn measure(
        &mut self,
        index: &dyn Coarse,
        request: &CoarseRequest<'_>,
        data: &VectorData,
        time: Duration,
        scratch: &mut CoarseScratch,
    ) -> Result<()> {
        let mut hits = Vec::new();
        let started = Instant::now();
        let processor = processor_time();
        let mut count = 0;
        while started.elapsed() < time {
            for query in data.queries.chunks_exact(data.dims) {
                index.search(query, request, scratch, &mut hits)?;
            }
            count += data.truth.len();
        }
        let used = processor_time().saturating_sub(processor).max(Duration::from_nanos(1));
        self.qps.push(count as f64 / used.as_secs_f64());
        self.qps_wall.push(count as f64 / started.elapsed().as_secs_f64());
        Ok(())
    }
}

impl OurIndex {
    /// Builds the index, and chooses the settings to measure.
    pub(super) fn build(data: &VectorData, args: &VectorsArgs) -> Result<OurIndex> {
        let kind = match args.index {
            IndexKind::Auto => CoarseKind::Auto,
            IndexKind::IvfPq => CoarseKind::IvfPq,
            IndexKind::Rabitq => CoarseKind::Rabitq,
            IndexKind::Flat => CoarseKind::Flat,
        };
        let plan = CoarseBuild {
            vectors: &data.base,
            dims: data.dims,
            metric: Metric::L2,
            threads: BuildThreads::of(args.threads),
            seed: 1,
        };
        let started = Instant::now();
        let built = build(kind, &plan)?;
        let build_s = started.elapsed().as_secs_f64();
        let exact = DenseVectors::new(&data.base, data.dims, Metric::L2, &built.order)?;
        let kind = kind.resolved(data.rows(), data.dims);
        let mut ours = OurIndex {
            index: built.index,
            order: built.order,
            exact,
            kind,
            build_s,
            cells: Vec::new(),
        };
        ours.choose_cells(data)?;
        Ok(ours)
    }

    /// Chooses the settings to measure, with their recall. A flat index has only one.
    fn choose_cells(&mut self, data: &VectorData) -> Result<()> {
        self.add_cell("own choice".into(), ScanParams::default(), data)?;
        if self.kind == CoarseKind::Flat {
            return Ok(());
        }
        for refine in REFINE {
            for probes in PROBES {
                let name = format!("probes {probes}, refine {refine}");
                if self.add_cell(name, ScanParams { probes, refine }, data)? > RECALL_ENOUGH {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Adds a setting after measuring its recall, which is returned. Its speed is measured later.
    fn add_cell(&mut self, name: String, params: ScanParams, data: &VectorData) -> Result<f64> {
        let mut scratch = CoarseScratch::default();
        let mut hits = Vec::new();
        let mut found = 0;
        let ask = CoarseRequest { params, exact: Some(&self.exact), ..CoarseRequest::best(HITS) };
        for (query, truth) in data.queries.chunks_exact(data.dims).zip(&data.truth) {
            self.index.search(query, &ask, &mut scratch, &mut hits)?;
            found +=
                hits.iter().filter(|hit| truth.contains(&self.order[hit.row as usize])).count();
        }
        let recall = found as f64 / (HITS * data.truth.len()) as f64;
        self.cells.push(OurSetting { name, params, recall, qps: Vec::new(), qps_wall: Vec::new() });
        Ok(recall)
    }

    /// Measures all settings once, on a thread pinned to `core`.
    pub(super) fn pass(&mut self, data: &VectorData, core: usize) -> Result<()> {
        let time = if data.made { TIME_MADE } else { TIME };
        std::thread::scope(|scope| {
            let work = || {
                pin(core)?;
                let mut scratch = CoarseScratch::default();
                for cell in &mut self.cells {
                    let request = CoarseRequest {
                        params: cell.params,
                        exact: Some(&self.exact),
                        ..CoarseRequest::best(HITS)
                    };
                    cell.measure(&*self.index, &request, data, time, &mut scratch)?;
                }
                Ok(())
            };
            let ran = std::thread::Builder::new().name("search".into()).spawn_scoped(scope, work);
            let ran = ran.map_err(|e| Error::internal("no thread").caused_by(e))?.join();
            ran.unwrap_or_else(|_| Err(Error::internal("the searching thread panicked")))
        })
    }

    /// Returns the medians over the passes.
    pub(super) fn curve(&self) -> Curve {
        let points = self.cells.iter().map(|cell| VectorPoint {
            setting: cell.name.clone(),
            recall: cell.recall,
            qps: median(cell.qps.iter().copied()),
            qps_wall: median(cell.qps_wall.iter().copied()),
        });
        Curve {
            engine: "millpond".into(),
            version: Some(env!("CARGO_PKG_VERSION").into()),
            build_s: self.build_s,
            points: points.collect(),
            cut_short: Vec::new(),
        }
    }

    pub(super) fn kind(&self) -> String {
        format!("{:?}", self.kind)
    }

    pub(super) fn memory_mb(&self) -> f64 {
        self.index.memory_bytes() as f64 / 1e6
    }

    pub(super) fn passes(&self) -> usize {
        self.cells.first().map_or(0, |cell| cell.qps.len())
    }

    /// Returns one line for people.
    pub(super) fn line(&self) -> String {
        let kind = self.kind();
        let memory = self.memory_mb();
        format!("millpond: {kind} built in {:.1} s, {memory:.0} MB", self.build_s)
    }
}

fn pin(core: usize) -> Result<()> {
    let refused = |e: rustix::io::Errno| {
        Error::invalid(format!("--core {core}: {e}; choose one of this machine's"))
    };
    let allowed = sched_getaffinity(None).map_err(refused)?;
    if core >= CpuSet::MAX_CPU || !allowed.is_set(core) {
        return Err(refused(rustix::io::Errno::INVAL));
    }
    let mut one = CpuSet::new();
    one.set(core);
    sched_setaffinity(None, &one).map_err(refused)
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_not_there_is_refused() {
        assert!(pin(100_000).is_err());
    }
}
