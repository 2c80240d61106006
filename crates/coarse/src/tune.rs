//! Measures the effort of a search on the data.
//!
//! When an index is built, some rows are held out as queries. Each searches for its nearest other
//! rows, which are known from a comparison with all rows. For each target recall, the cheapest
//! setting of a grid that reaches it is stored with the index. Costs are counted and not timed, so
//! equal data give equal settings on a busy machine.

use base::{Error, Result};
use kernels::TopK;
use kernels::float::{self, Panels};

use super::kmeans::RandomDraws;
use super::pq::subtract;
use super::widen::FilteredProbes;
use super::{
    BuildThreads, Coarse, CoarseHit, CoarseRequest, CoarseScratch, HITS_MAX, IvfPq, Metric,
    ScanParams, StreamedBuild,
};

/// Target recalls.
pub(super) const TARGET_RECALLS: [f32; 5] = [0.80, 0.90, 0.95, 0.98, 0.99];
/// Target recall of a search without settings.
pub(super) const DEFAULT_RECALL: f32 = 0.95;
/// Target recall of a search with a filter and without settings. Recall is measured without
/// filters, so there is a margin.
const FILTERED_RECALL: f32 = 0.98;
/// Number of hits for which recall is measured.
pub(super) const MEASURED_HITS: usize = 10;
/// Maximum rows used as queries.
const QUERIES_MAX: usize = 256;
/// Minimum rows used as queries, if there are as many.
const QUERIES_MIN: usize = 32;
/// Number of rows per query, from which the number of queries follows.
const ROWS_A_QUERY: usize = 64;
/// Number of rows compared with all queries at a time.
const TRUTH_ROWS: usize = 96;
/// Maximum candidates compared with finer codes, and the number in a search that should miss no
/// row.
const REFINE_MAX: usize = 4 * HITS_MAX;
/// Number of candidates compared by their bytes if nothing was measured.
const REFINE_UNMEASURED: usize = 100;
/// Candidates in the grid, for [`MEASURED_HITS`] hits.
const REFINE_GRID: [usize; 5] = [20, 40, 80, 160, 320];
/// Growth factor of the probes in the grid.
pub(super) const PROBE_GROWTH: f64 = 1.25;
/// Maximum share of clusters in the grid.
pub(super) const PROBE_SHARE_MAX: f64 = 0.25;
/// Shares of clusters that are tried if no setting of the grid reaches [`DEFAULT_RECALL`]. The rows
/// have few clusters then, as random ones do, and their neighbours are in many lists.
const WIDE_SHARES: [f64; 2] = [0.5, 1.0];
/// Maximum number of rows that a search scans with a share of [`WIDE_SHARES`]. Without a maximum, a
/// merge could make searches of a segment of any size four times as slow.
const WIDE_ROWS_MAX: usize = 1 << 20;
/// Candidates in the trials with [`WIDE_SHARES`], for [`MEASURED_HITS`] hits.
const WIDE_REFINE: [usize; 2] = [160, 320];
/// Recall at which the grid ends.
const RECALL_ENOUGH: f32 = 0.995;
/// Measured cost of a candidate compared by its bytes. The unit is a row compared by looked-up
/// sums.
const REFINE_COST: usize = 16;
/// Measured cost of a cluster before its first row, in the same unit.
pub(super) const PROBE_COST: usize = 40;

/// Measured recall: the share of the `k` nearest rows that a search with these settings finds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecallPoint {
    /// Number of hits per query.
    pub k: u32,
    /// Share found, 0 to 1.
    pub recall: f32,
    /// Number of clusters scanned.
    pub probes: u32,
    /// Number of candidates compared with finer codes.
    pub refine: u32,
}

impl RecallPoint {
    pub(super) fn from_words(words: &[u32; 4]) -> RecallPoint {
        RecallPoint {
            k: words[0],
            recall: f32::from_bits(words[1]),
            probes: words[2],
            refine: words[3],
        }
    }
}

/// Recall measured when an index was built, in ascending order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recall {
    /// One point per target recall, or fewer if several have the same settings.
    pub points: Vec<RecallPoint>,
}

impl Recall {
    /// Returns the cheapest settings that reached `target`, or else the closest.
    pub(crate) fn settings_for(&self, target: f32) -> Option<&RecallPoint> {
        self.points.iter().find(|point| point.recall >= target).or_else(|| self.points.last())
    }
}

/// Settings of one search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScanChoice {
    pub(super) probes: usize,
    pub(super) refine: usize,
}

impl ScanChoice {
    /// Returns the caller's settings, completed by measured ones.
    pub(super) fn resolve(
        request: &CoarseRequest<'_>,
        recall: Option<&Recall>,
        clusters: usize,
    ) -> ScanChoice {
        let CoarseRequest { k, params, .. } = *request;
        let target = if request.allow.is_some() { FILTERED_RECALL } else { DEFAULT_RECALL };
        let measured = recall.and_then(|recall| recall.settings_for(target));
        // A caller that requests more candidates expects a higher recall, which needs more lists
        // too.
        let wanted = k.max(params.refine);
        let probes = match (params.probes, measured) {
            (0, Some(point)) => {
                (f64::from(point.probes) * probes_growth(wanted, point.k as usize)).ceil() as usize
            }
            (0, None) => clusters.div_ceil(16),
            (requested, _) => requested,
        };
        let refine = match (params.refine, measured) {
            (0, Some(point)) => point.refine as usize + more_candidates(k, point.k as usize),
            (0, None) => REFINE_UNMEASURED + more_candidates(k, MEASURED_HITS),
            (HITS_MAX.., _) if params.wants_all() => REFINE_MAX,
            (requested, _) => requested,
        };
        ScanChoice {
            probes: probes.clamp(1, clusters.max(1)),
            refine: refine.clamp(k.max(1), REFINE_MAX),
        }
    }

    /// Adapts the probes if only `allowed` of `rows` count. Then as many allowed rows are compared
    /// as rows without a filter.
    pub(super) fn for_share(self, allowed: usize, rows: usize, clusters: usize) -> FilteredProbes {
        let lists = (self.probes as u128 * rows as u128).div_ceil(allowed.max(1) as u128);
        FilteredProbes {
            rows: (self.probes * rows).div_ceil(clusters.max(1)).min(allowed),
            lists: lists.min(clusters as u128).max(1) as usize,
        }
    }
}

/// Returns `share` of the clusters of an index, at least 1.
pub(super) fn share_of(clusters: usize, share: f64) -> usize {
    ((clusters as f64 * share) as usize).max(1)
}

/// Returns the numbers of clusters to try beyond the grid: [`WIDE_SHARES`] that have at most
/// [`WIDE_ROWS_MAX`] of the `rows`.
pub(super) fn wide_probes(clusters: usize, rows: usize) -> impl Iterator<Item = usize> {
    WIDE_SHARES
        .into_iter()
        .filter(move |share| rows as f64 * share <= WIDE_ROWS_MAX as f64)
        .map(move |share| share_of(clusters, share))
}

/// Returns the highest recall of the trials; 0 without trials.
pub(super) fn best_recall(trials: &[RecallPoint]) -> f32 {
    trials.iter().map(|trial| trial.recall).fold(0.0, f32::max)
}

/// Returns the growth of probes with `k`. Farther neighbours are spread over more clusters, but
/// slowly: about 1.4 times as many for four times the hits.
fn probes_growth(k: usize, measured: usize) -> f64 {
    (k as f64 / measured.max(1) as f64).max(1.0).powf(0.25)
}

fn more_candidates(k: usize, measured: usize) -> usize {
    let more = k.saturating_sub(measured);
    more + more / 2
}

/// Returns the candidates to compare exactly after they were ranked by their bytes.
pub(super) fn kept_for_exact(k: usize) -> usize {
    k + (k / 2).max(10)
}

/// Returns the rows held out as queries, by the index's numbers.
pub(super) fn held_out(rows: usize, seed: u64) -> Vec<u32> {
    RandomDraws::new(seed ^ 2).sample((rows / ROWS_A_QUERY).clamp(QUERIES_MIN, QUERIES_MAX), rows)
}

/// Measures an index that was just built from `build` (vectors as compared), laid out in `order`.
pub(super) fn measure(
    index: &IvfPq,
    build: &StreamedBuild<'_>,
    order: &[u32],
) -> Result<Option<Recall>> {
    if order.len() <= MEASURED_HITS {
        return Ok(None);
    }
    let held_out = held_out(order.len(), build.seed);
    let from: Vec<u32> = held_out.iter().map(|row| order[*row as usize]).collect();
    let mut queries = Vec::with_capacity(from.len() * build.dims);
    build.vectors.gather(&from, &mut queries)?;
    let truth = nearest_rows(&queries, &held_out, build, order)?;
    let trial = |probes: usize, refine: usize| {
        let request = CoarseRequest {
            params: ScanParams { probes, refine },
            ..CoarseRequest::best(MEASURED_HITS + 1)
        };
        let recall = recall_of(index, &queries, &held_out, &truth, &request, build.threads)?;
        Ok::<_, Error>(RecallPoint {
            k: MEASURED_HITS as u32,
            recall,
            probes: probes as u32,
            refine: refine as u32,
        })
    };
    let mut trials = Vec::new();
    let probes_max = share_of(index.clusters(), PROBE_SHARE_MAX);
    for refine in REFINE_GRID {
        let mut probes = 1;
        loop {
            let point = trial(probes, refine)?;
            trials.push(point);
            // More expensive settings are tried only while they may still reach a target.
            if probes >= probes_max || point.recall >= RECALL_ENOUGH {
                break;
            }
            probes = ((probes as f64 * PROBE_GROWTH) as usize).max(probes + 1).min(probes_max);
        }
    }
    for probes in wide_probes(index.clusters(), order.len()) {
        if best_recall(&trials) >= DEFAULT_RECALL {
            break;
        }
        for refine in WIDE_REFINE {
            trials.push(trial(probes, refine)?);
        }
    }
    let rows_a_cluster = order.len() / index.clusters();
    let cost = |point: &RecallPoint| {
        point.probes as usize * (rows_a_cluster + PROBE_COST) + point.refine as usize * REFINE_COST
    };
    let mut points: Vec<RecallPoint> = Vec::new();
    let best = best_recall(&trials);
    for target in TARGET_RECALLS {
        let reached = trials.iter().filter(|trial| trial.recall >= target.min(best));
        points.extend(reached.min_by_key(|trial| cost(trial)));
    }
    points.dedup();
    Ok(Some(Recall { points }))
}

/// Exact comparison of rows with all queries.
struct ExactSearch {
    /// Queries relative to `origin`.
    queries: Panels,
    origin: Vec<f32>,
    dims: usize,
    metric: Metric,
}

impl ExactSearch {
    /// Offers `vectors`, which are the rows `rows` of the index, to the list of each query.
    fn add(&self, vectors: &[f32], rows: &[u32], tops: &mut [TopK]) {
        let count = tops.len();
        let mut products = vec![0.0; TRUTH_ROWS * count];
        let mut relative = Vec::with_capacity(TRUTH_ROWS * self.dims);
        let blocks = vectors.chunks(TRUTH_ROWS * self.dims).zip(rows.chunks(TRUTH_ROWS));
        for (points, rows) in blocks {
            let products = &mut products[..rows.len() * count];
            relative.clear();
            subtract(points, &self.origin, &mut relative);
            self.queries.products(&relative, products);
            let compared =
                relative.chunks_exact(self.dims).zip(products.chunks_exact(count)).zip(rows);
            for ((point, products), row) in compared {
                let square = match self.metric {
                    Metric::L2 => 0.5 * float::dot(point, point),
                    // Of unit length, or zero with the cosine 0.
                    Metric::Cosine | Metric::Dot => 0.0,
                };
                let products = tops.iter_mut().zip(products);
                products.for_each(|(top, product)| top.push(square - product, *row));
            }
        }
    }
}

/// Returns the exact nearest rows of each query, in the index's order, without the query's own row.
pub(super) fn nearest_rows(
    queries: &[f32],
    own: &[u32],
    build: &StreamedBuild<'_>,
    order: &[u32],
) -> Result<Vec<Vec<u32>>> {
    let dims = build.dims;
    let count = own.len();
    let origin = match build.metric {
        // A row, so that a large common part of all rows does not round their differences away.
        Metric::L2 => queries.get(..dims).map_or_else(|| vec![0.0; dims], <[f32]>::to_vec),
        Metric::Cosine | Metric::Dot => vec![0.0; dims],
    };
    let mut relative = Vec::with_capacity(queries.len());
    subtract(queries, &origin, &mut relative);
    let search =
        ExactSearch { queries: Panels::new(&relative, dims), origin, dims, metric: build.metric };
    // Row of the index for each row of the source.
    let mut places = vec![0_u32; order.len()];
    (0..).zip(order).for_each(|(place, row)| places[*row as usize] = place);
    // One list per thread and query, so that thresholds fall early in each; merging costs little.
    let lists = || vec![TopK::new(MEASURED_HITS + 1); count];
    let mut tops: Vec<Vec<TopK>> = (0..build.threads.count).map(|_| lists()).collect();
    let mut first = 0;
    build.vectors.scan(&mut |vectors| {
        let rows = vectors.len() / dims;
        let places = places.get(first..first + rows);
        let places = places.ok_or_else(|| Error::internal("vectors that have no place"))?;
        first += rows;
        let piece = rows.div_ceil(build.threads.count);
        let pieces = vectors.chunks(piece * dims).zip(places.chunks(piece)).zip(&mut tops);
        build.threads.share(pieces, |((vectors, places), tops)| search.add(vectors, places, tops))
    })?;
    let mut found = lists();
    for tops in tops {
        for (all, mut top) in found.iter_mut().zip(tops) {
            top.unsorted().for_each(|(cost, row)| all.push(cost, row));
        }
    }
    let rows = |(mut top, own): (TopK, &u32)| others(top.sorted().map(|(_, row)| row), *own);
    Ok(found.into_iter().zip(own).map(rows).collect())
}

/// Returns the first [`MEASURED_HITS`] of `rows` other than `own`.
pub(super) fn others(rows: impl Iterator<Item = u32>, own: u32) -> Vec<u32> {
    rows.filter(|row| *row != own).take(MEASURED_HITS).collect()
}

/// Returns the share of the nearest rows (`truth`, per query) that `index` finds, without the
/// query's own row.
///
/// # Errors
/// As the search; `Cancelled`.
pub(super) fn recall_of(
    index: &dyn Coarse,
    queries: &[f32],
    own: &[u32],
    truth: &[Vec<u32>],
    request: &CoarseRequest<'_>,
    threads: BuildThreads<'_>,
) -> Result<f32> {
    let mut scratch = CoarseScratch::default();
    let mut hits = Vec::<CoarseHit>::new();
    let mut found = 0;
    let mut wanted = 0;
    for ((query, own), truth) in queries.chunks_exact(index.dims()).zip(own).zip(truth) {
        // A search of many lists takes milliseconds, and all of these could take minutes.
        threads.check()?;
        index.search(query, request, &mut scratch, &mut hits)?;
        let rows = others(hits.iter().map(|hit| hit.row), *own);
        found += truth.iter().filter(|row| rows.contains(row)).count();
        wanted += truth.len();
    }
    Ok(found as f32 / wanted.max(1) as f32)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use base::ErrorKind;

    use super::*;
    use crate::source::SliceVectors;
    use crate::{CoarseBuild, CoarseKind, build};

    fn point(recall: f32, probes: u32) -> RecallPoint {
        RecallPoint { k: 10, recall, probes, refine: 40 }
    }

    #[test]
    fn a_target_recall_gets_the_cheapest_settings() {
        let recall = Recall { points: vec![point(0.8, 3), point(0.96, 9)] };
        assert_eq!(recall.settings_for(0.7).unwrap().probes, 3);
        assert_eq!(recall.settings_for(0.95).unwrap().probes, 9);
        assert_eq!(recall.settings_for(0.99).unwrap().probes, 9);
        assert!(Recall::default().settings_for(0.5).is_none());
    }

    #[test]
    fn explicit_and_scaled_settings() {
        let recall = Recall { points: vec![point(0.96, 8)] };
        let choose = |probes, refine, k| {
            let params = ScanParams { probes, refine };
            let request = CoarseRequest { params, ..CoarseRequest::best(k) };
            ScanChoice::resolve(&request, Some(&recall), 100)
        };
        assert_eq!(choose(5, 70, 10), ScanChoice { probes: 5, refine: 70 });
        assert_eq!(choose(500, 3, 10), ScanChoice { probes: 100, refine: 10 });
        assert_eq!(choose(usize::MAX, 70, 10), ScanChoice { probes: 100, refine: 70 });
        let ScanParams { probes, refine } = ScanParams::EXACT;
        assert_eq!(choose(probes, refine, 10), ScanChoice { probes: 100, refine: REFINE_MAX });
        assert_eq!(choose(0, 0, 10), ScanChoice { probes: 8, refine: 40 });
        assert_eq!(choose(0, 0, 160), ScanChoice { probes: 16, refine: 265 });
        assert_eq!(choose(0, 160, 10), ScanChoice { probes: 16, refine: 160 });
        assert_eq!(choose(0, 0, 1), ScanChoice { probes: 8, refine: 40 });
        let none = ScanChoice::resolve(&CoarseRequest::best(1), None, 0);
        assert_eq!(none, ScanChoice { probes: 1, refine: REFINE_UNMEASURED });
        assert_eq!(
            choose(5, 70, 10).for_share(250, 1000, 100),
            FilteredProbes { rows: 50, lists: 20 }
        );
        assert_eq!(
            choose(5, 70, 10).for_share(0, 1000, 100),
            FilteredProbes { rows: 0, lists: 100 }
        );
    }

    #[test]
    fn wide_shares_have_a_maximum_of_rows() {
        let wide = |rows| wide_probes(100, rows).collect::<Vec<usize>>();
        assert_eq!(wide(WIDE_ROWS_MAX), [50, 100]);
        assert_eq!(wide(2 * WIDE_ROWS_MAX), [50]);
        assert!(wide(2 * WIDE_ROWS_MAX + 2).is_empty());
    }

    #[test]
    fn a_trial_is_cancelled_between_its_queries() {
        let vectors: Vec<f32> = (0..64).map(|at| at as f32).collect();
        let threads = BuildThreads::of(1);
        let plan = CoarseBuild { vectors: &vectors, dims: 1, metric: Metric::L2, threads, seed: 3 };
        let built = build(CoarseKind::Flat, &plan).unwrap();
        let checks = AtomicUsize::new(0);
        let should_continue = || checks.fetch_add(1, Ordering::Relaxed) < 2;
        let threads = BuildThreads { count: 1, should_continue: &should_continue };
        let own = [0, 1, 2, 3];
        let truth = vec![Vec::new(); own.len()];
        let request = CoarseRequest::best(MEASURED_HITS);
        let index = built.index.as_ref();
        let recall = recall_of(index, &[0.0; 4], &own, &truth, &request, threads);
        assert_eq!(recall.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(checks.into_inner(), 3);
    }

    #[test]
    fn rows_without_clusters_get_more_lists() {
        let dims = 72;
        let rows = 3000;
        let mut draw = RandomDraws::new(6);
        let vectors: Vec<f32> =
            (0..rows * dims).map(|_| draw.below(1000) as f32 / 500.0 - 1.0).collect();
        let threads = BuildThreads::of(2);
        let plan = CoarseBuild { vectors: &vectors, dims, metric: Metric::L2, threads, seed: 3 };
        for kind in [CoarseKind::IvfPq, CoarseKind::Rabitq] {
            let built = build(kind, &plan).unwrap();
            let recall = built.index.recall().unwrap();
            let point = recall.settings_for(DEFAULT_RECALL).unwrap();
            // A quarter of the lists has about three quarters of the nearest rows.
            assert!(point.recall >= 0.9, "{kind:?}: {recall:?}");
        }
    }

    #[test]
    fn the_measured_recall_is_reached() {
        let dims = 12;
        let rows = 3000;
        let mut draw = RandomDraws::new(4);
        let mut near = |centre: usize| centre as f32 + draw.below(1000) as f32 / 400.0;
        let vectors: Vec<f32> =
            (0..rows * dims).map(|at| near((at / dims * 7 + at % dims) % 23)).collect();
        let plan = CoarseBuild {
            vectors: &vectors,
            dims,
            metric: Metric::L2,
            threads: BuildThreads::of(2),
            seed: 3,
        };
        let built = build(CoarseKind::IvfPq, &plan).unwrap();
        let recall = built.index.recall().unwrap();
        assert!(recall.points.is_sorted_by(|a, b| a.recall <= b.recall));
        assert!(
            recall.settings_for(DEFAULT_RECALL).unwrap().recall >= DEFAULT_RECALL,
            "{recall:?}"
        );
        // Rows that were not held out find their own neighbours as well.
        let own: Vec<u32> = (0..300).map(|at| at * 10 + 3).collect();
        let queries: Vec<f32> = own
            .iter()
            .flat_map(|row| &vectors[built.order[*row as usize] as usize * dims..][..dims])
            .copied()
            .collect();
        let source = SliceVectors { values: &vectors, dims };
        let streamed = plan.streamed(&source);
        let truth = nearest_rows(&queries, &own, &streamed, &built.order).unwrap();
        let mut scratch = CoarseScratch::default();
        let mut hits = Vec::new();
        let mut found = 0;
        for ((query, own), truth) in queries.chunks_exact(dims).zip(&own).zip(&truth) {
            built.index.search(query, &CoarseRequest::best(11), &mut scratch, &mut hits).unwrap();
            let rows = others(hits.iter().map(|hit| hit.row), *own);
            found += truth.iter().filter(|row| rows.contains(row)).count();
        }
        assert!(found as f32 >= 3000.0 * (DEFAULT_RECALL - 0.05), "{found} of 3000");
    }
}
