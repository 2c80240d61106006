//! Every coarse index against a comparison with every row.

use std::sync::OnceLock;

use proptest::prelude::*;
use search::coarse::{
    BuildThreads, BuildVectors, BuiltIndex, CoarseBuild, CoarseHit, CoarseKind, CoarseRequest,
    CoarseScratch, DenseVectors, HITS_MAX, Metric, ScanParams, StreamedBuild, build,
    build_streamed, open,
};
use search::filter::RowSet;

use crate::points::mix;

const KINDS: [CoarseKind; 3] = [CoarseKind::Flat, CoarseKind::Rabitq, CoarseKind::IvfPq];
const METRICS: [Metric; 3] = [Metric::Cosine, Metric::Dot, Metric::L2];
/// Scans everything and compares as much as allowed.
const EVERYTHING: ScanParams = ScanParams { probes: usize::MAX, refine: HITS_MAX };

/// Returns vectors around a few centres, with a mean that is not zero.
fn vectors(rows: usize, dims: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut draw = |end: usize| {
        let bits = mix(state);
        state = state.wrapping_add(1);
        ((u128::from(bits) * end as u128) >> 64) as usize
    };
    let mut value = || (0..4).map(|_| draw(1000) as f32 / 1000.0 - 0.5).sum::<f32>();
    let centres: Vec<f32> = (0..8 * dims).map(|_| 2.0 * value() + 0.3).collect();
    (0..rows)
        .flat_map(|row| (0..dims).map(|dim| (row, dim)).collect::<Vec<_>>())
        .map(|(row, dim)| centres[row % 8 * dims + dim] + value())
        .collect()
}

fn score(metric: Metric, query: &[f32], row: &[f32]) -> f32 {
    let product =
        |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
    match metric {
        Metric::Dot => product(query, row),
        Metric::L2 => -query.iter().zip(row).map(|(a, b)| (a - b) * (a - b)).sum::<f32>(),
        Metric::Cosine => {
            let lengths = (product(query, query) * product(row, row)).sqrt();
            if lengths > 0.0 { product(query, row) / lengths } else { 0.0 }
        }
    }
}

struct Scene {
    dims: usize,
    metric: Metric,
    vectors: Vec<f32>,
    built: BuiltIndex,
}

impl Scene {
    fn new(kind: CoarseKind, metric: Metric, rows: usize, dims: usize) -> Scene {
        let vectors = vectors(rows, dims, 3);
        let built = build(
            kind,
            &CoarseBuild { vectors: &vectors, dims, metric, threads: BuildThreads::of(2), seed: 5 },
        )
        .unwrap();
        Scene { dims, metric, vectors, built }
    }

    fn exact(&self) -> DenseVectors {
        DenseVectors::new(&self.vectors, self.dims, self.metric, &self.built.order).unwrap()
    }

    fn row(&self, row: u32) -> &[f32] {
        &self.vectors[self.built.order[row as usize] as usize * self.dims..][..self.dims]
    }

    /// Returns the best `k` allowed rows by comparing all.
    fn naive(&self, query: &[f32], k: usize, allow: Option<&RowSet>) -> Vec<CoarseHit> {
        let rows = (0..self.built.index.rows())
            .filter(|row| allow.is_none_or(|allow| allow.contains(*row)));
        let mut hits: Vec<CoarseHit> = rows
            .map(|row| CoarseHit { row, score: score(self.metric, query, self.row(row)) })
            .collect();
        hits.sort_by(|one, other| other.score.total_cmp(&one.score).then(one.row.cmp(&other.row)));
        hits.truncate(k);
        hits
    }

    fn search(
        &self,
        query: &[f32],
        k: usize,
        params: ScanParams,
        allow: Option<&RowSet>,
        exactly: bool,
    ) -> Vec<CoarseHit> {
        let exact = self.exact();
        let mut scratch = CoarseScratch::default();
        let mut hits = Vec::new();
        let exact: Option<&dyn search::coarse::Exact> = if exactly { Some(&exact) } else { None };
        self.built
            .index
            .search(
                query,
                &CoarseRequest { params, allow, exact, ..CoarseRequest::best(k) },
                &mut scratch,
                &mut hits,
            )
            .unwrap();
        hits
    }
}

fn close(one: f32, other: f32) -> bool {
    (one - other).abs() <= 1e-3 * (1.0 + one.abs())
}

/// Checks every kind of index with every metric. Indexes are built once for all tests.
fn each(mut check: impl FnMut(&Scene, CoarseKind)) {
    static SCENES: OnceLock<Vec<(CoarseKind, Scene)>> = OnceLock::new();
    let all = || KINDS.into_iter().flat_map(|kind| METRICS.map(|metric| (kind, metric)));
    let scenes = SCENES.get_or_init(|| {
        all().map(|(kind, metric)| (kind, Scene::new(kind, metric, 600, 72))).collect()
    });
    scenes.iter().for_each(|(kind, scene)| check(scene, *kind));
}

/// Returns the share of the best rows that were found. Rows as good as the worst of the best count.
fn recall(hits: &[CoarseHit], naive: &[CoarseHit]) -> f32 {
    let worst = naive.last().map_or(f32::INFINITY, |hit| hit.score);
    let found = hits.iter().filter(|hit| hit.score >= worst || close(hit.score, worst)).count();
    found as f32 / naive.len().max(1) as f32
}

#[test]
fn zero_vectors_hide_no_row_with_a_positive_cosine() {
    let (dims, zeros, rows) = (96, 200, 600);
    let mut state = 7;
    let mut value = || {
        state += 1;
        (mix(state) >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
    };
    let mut vectors = vec![0.0; zeros * dims];
    vectors.extend((0..rows * dims).map(|_| value()));
    let query: Vec<f32> = (0..dims).map(|_| value()).collect();
    for kind in KINDS {
        let threads = BuildThreads::of(1);
        let plan =
            CoarseBuild { vectors: &vectors, dims, metric: Metric::Cosine, threads, seed: 1 };
        let built = build(kind, &plan).unwrap();
        let exact = DenseVectors::new(&vectors, dims, Metric::Cosine, &built.order).unwrap();
        let params = ScanParams { probes: usize::MAX, refine: 40 };
        let ask = CoarseRequest { params, exact: Some(&exact), ..CoarseRequest::best(10) };
        let mut hits = Vec::new();
        built.index.search(&query, &ask, &mut CoarseScratch::default(), &mut hits).unwrap();
        assert!(hits.len() == 10 && hits.iter().all(|hit| hit.score > 0.1), "{kind:?} {hits:?}");
    }
}

#[test]
fn the_order_is_a_permutation() {
    each(|scene, kind| {
        let mut order = scene.built.order.clone();
        order.sort_unstable();
        assert!(order.into_iter().eq(0..600), "{kind:?}");
        let index = &scene.built.index;
        assert_eq!((index.rows(), index.dims(), index.metric()), (600, 72, scene.metric));
        assert!(index.memory_bytes() > 0);
        let recall = index.recall().unwrap();
        assert!(recall.points.last().unwrap().recall > 0.9, "{kind:?} {recall:?}");
    });
}

#[test]
fn a_full_scan_finds_the_nearest() {
    each(|scene, kind| {
        let mut total = 0.0;
        for seed in 0..10 {
            let query = &vectors(8, scene.dims, 100 + seed)[..scene.dims];
            let hits = scene.search(query, 10, EVERYTHING, None, true);
            assert_eq!(hits.len(), 10);
            assert!(hits.is_sorted_by(|one, other| one.score >= other.score));
            for hit in &hits {
                assert!(
                    close(hit.score, score(scene.metric, query, scene.row(hit.row))),
                    "{kind:?}"
                );
            }
            total += recall(&hits, &scene.naive(query, 10, None));
        }
        // Bounds hold with high probability, not always.
        assert!(total >= 9.8, "{kind:?} {:?}: {total} of 10", scene.metric);
    });
}

#[test]
fn a_row_finds_itself_by_codes() {
    each(|scene, kind| {
        if scene.metric == Metric::Dot {
            return;
        }
        for row in [0, 17, 599] {
            let query = scene.row(row).to_vec();
            let hits = scene.search(&query, 5, EVERYTHING, None, false);
            assert_eq!(hits[0].row, row, "{kind:?} {:?}", scene.metric);
            let itself = score(scene.metric, &query, &query);
            let scale = if scene.metric == Metric::L2 { 72.0 } else { 1.0 };
            assert!(
                (hits[0].score - itself).abs() < 0.05 * scale,
                "{kind:?} {:?}: {}",
                scene.metric,
                hits[0].score
            );
        }
    });
}

#[test]
fn filters_return_k_allowed_rows() {
    each(|scene, kind| {
        let query = &vectors(1, scene.dims, 9)[..];
        for every in [1, 3, 50, 599] {
            let allow = RowSet::from_rows(600, (0..600).step_by(every));
            let hits = scene.search(query, 10, EVERYTHING, Some(&allow), true);
            assert!(hits.iter().all(|hit| allow.contains(hit.row)), "{kind:?}");
            assert_eq!(hits.len(), 10.min(allow.count() as usize), "{kind:?} {every}");
            assert!(
                recall(&hits, &scene.naive(query, 10, Some(&allow))) >= 0.9,
                "{kind:?} {every}"
            );
            // The number must be right with measured settings as well.
            let hits = scene.search(query, 10, ScanParams::default(), Some(&allow), true);
            assert_eq!(hits.len(), 10.min(allow.count() as usize), "{kind:?} {every}");
        }
        assert!(scene.search(query, 10, EVERYTHING, Some(&RowSet::none(600)), true).is_empty());
    });
}

#[test]
fn filters_correlated_with_the_vectors_keep_recall() {
    // Rows of 384 random values in a cluster are about equally far from a query outside of it, so
    // the nearest are spread over many lists.
    for (kind, dims, least) in [(CoarseKind::IvfPq, 24, 0.97), (CoarseKind::Rabitq, 384, 0.92)] {
        let scene = Scene::new(kind, Metric::L2, 6000, dims);
        let queries = vectors(64, dims, 3);
        let mut total = 0.0;
        for (at, query) in queries.chunks_exact(dims).enumerate() {
            // Row r of the input is near centre r % 8, and so is query r. The query's own cluster
            // is allowed for half of the queries only.
            let allowed = |row: &u32| {
                let cluster = scene.built.order[*row as usize] as usize % 8;
                (cluster + at % 8 + at / 8).is_multiple_of(2)
            };
            let allow = RowSet::from_rows(6000, (0..6000).filter(allowed));
            let hits = scene.search(query, 10, ScanParams::default(), Some(&allow), true);
            assert!(hits.len() == 10 && hits.iter().all(|hit| allow.contains(hit.row)));
            total += recall(&hits, &scene.naive(query, 10, Some(&allow)));
        }
        assert!(total >= least * 64.0, "{kind:?}: {total} of 64");
    }
}

#[test]
fn a_reopened_index_gives_equal_results() {
    each(|scene, kind| {
        let index = &scene.built.index;
        let sections = index.sections();
        let borrowed: Vec<(u32, &[u8])> =
            sections.iter().map(|(kind, bytes)| (*kind, &bytes[..])).collect();
        let again = open(&borrowed).unwrap();
        assert_eq!(again.recall(), index.recall(), "{kind:?}");
        let query = &vectors(1, scene.dims, 9)[..];
        let mut scratch = CoarseScratch::default();
        let mut hits = Vec::new();
        let ask = CoarseRequest { exact: Some(&scene.exact()), ..CoarseRequest::best(10) };
        again.search(query, &ask, &mut scratch, &mut hits).unwrap();
        assert_eq!(hits, scene.search(query, 10, ScanParams::default(), None, true), "{kind:?}");
        for missing in 0..borrowed.len() {
            let mut fewer = borrowed.clone();
            fewer.remove(missing);
            assert!(open(&fewer).is_err(), "{kind:?} without section {:#x}", borrowed[missing].0);
        }
    });
}

/// Counts the rows that are compared exactly.
struct Counted<'a>(&'a DenseVectors, std::cell::Cell<usize>);

impl search::coarse::Exact for Counted<'_> {
    fn scores(&self, query: &[f32], rows: &[u32], out: &mut Vec<f32>) -> base::Result<()> {
        self.1.set(self.1.get() + rows.len());
        self.0.scores(query, rows, out)
    }
}

#[test]
fn the_floor_saves_exact_comparisons() {
    each(|scene, kind| {
        let exact = scene.exact();
        let index = &scene.built.index;
        let mut scratch = CoarseScratch::default();
        let mut reads = [0; 3];
        for seed in 0..20 {
            let query = &vectors(8, scene.dims, 300 + seed)[..scene.dims];
            let mut search = |floor: f32| {
                let counted = Counted(&exact, 0.into());
                let mut hits = Vec::new();
                let ask = CoarseRequest {
                    params: EVERYTHING,
                    exact: Some(&counted),
                    floor,
                    ..CoarseRequest::best(10)
                };
                index.search(query, &ask, &mut scratch, &mut hits).unwrap();
                (hits, counted.1.get())
            };
            let (all, without) = search(f32::NEG_INFINITY);
            let floor = all[2].score;
            let (some, with) = search(floor);
            let reaching = |hits: Vec<CoarseHit>| {
                hits.into_iter().filter(|hit| hit.score >= floor).collect::<Vec<_>>()
            };
            let beyond = search(all[0].score.abs() * 2.0 + 1.0).1;
            assert_eq!(reaching(some), all[..3].to_vec(), "{kind:?} {:?}", scene.metric);
            reads.iter_mut().zip([without, with, beyond]).for_each(|(sum, reads)| *sum += reads);
        }
        // One byte per value, or a bound, decides most rows.
        let [without, with, beyond] = reads;
        match kind {
            CoarseKind::Flat => assert_eq!(without, with),
            _ => assert!(with < without && beyond == 0, "{kind:?} {:?} {reads:?}", scene.metric),
        }
        if kind == CoarseKind::IvfPq {
            assert!(without < 20 * 18, "fewer than the 20 a query that are kept: {reads:?}");
        }
    });
}

#[test]
fn flat_codes_hide_no_near_row() {
    // Whole numbers, so scores are exact. The codes of many or all rows are equal, as bfloat16 with
    // 2 dimensions and as bytes with 700.
    for (dims, offset, width) in [(2, 100_000, 1000), (700, 4096, 16)] {
        let rows = 1500;
        let value = |at: usize| (offset + mix(at as u64) % width) as f32;
        let vectors: Vec<f32> = (0..rows * dims).map(value).collect();
        let metric = Metric::L2;
        let threads = BuildThreads::of(2);
        let plan = CoarseBuild { vectors: &vectors, dims, metric, threads, seed: 5 };
        let built = build(CoarseKind::Flat, &plan).unwrap();
        let scene = Scene { dims, metric, vectors, built };
        let queries: Vec<f32> = (rows * dims..(rows + 6) * dims).map(value).collect();
        let exact = scene.exact();
        let ask = CoarseRequest { exact: Some(&exact), ..CoarseRequest::best(10) };
        let mut many = Vec::new();
        let index = &scene.built.index;
        index.search_many(&queries, &ask, &mut CoarseScratch::default(), &mut many).unwrap();
        let few = RowSet::from_rows(rows as u32, (0..rows as u32).step_by(7));
        for (query, hits) in queries.chunks_exact(dims).zip(&many) {
            let found = |allow| scene.search(query, 10, ScanParams::default(), allow, true);
            assert_eq!(*hits, scene.naive(query, 10, None), "{dims}");
            assert_eq!(found(None), *hits, "{dims}");
            assert_eq!(found(Some(&few)), scene.naive(query, 10, Some(&few)), "{dims}");
        }
    }
}

#[test]
fn an_exact_search_finds_rows_that_lie_close_together() {
    let (rows, dims, asked) = (2400, 384, 10);
    let wide = vectors(8, dims, 3);
    // Eight groups, whose rows differ by a thousandth of their distance to other groups.
    let near = vectors(rows + asked, dims, 4);
    let value = |at: usize| wide[at % (8 * dims)] + 0.001 * near[at];
    let vectors: Vec<f32> = (0..rows * dims).map(value).collect();
    let queries: Vec<f32> = (rows * dims..(rows + asked) * dims).map(value).collect();
    let metric = Metric::L2;
    let plan =
        CoarseBuild { vectors: &vectors, dims, metric, threads: BuildThreads::of(2), seed: 5 };
    let built = build(CoarseKind::Rabitq, &plan).unwrap();
    let scene = Scene { dims, metric, vectors, built };
    let mut found = 0;
    for query in queries.chunks_exact(dims) {
        let hits = scene.search(query, 10, ScanParams::EXACT, None, true);
        let naive = scene.naive(query, 10, None);
        found += naive.iter().filter(|one| hits.iter().any(|hit| hit.row == one.row)).count();
    }
    assert!(found >= 95, "{found} of 100");
}

#[test]
fn an_exact_search_finds_rows_with_equal_bytes() {
    let (rows, dims) = (600, 8);
    // Two groups that are far from each other. Scores within a group are exact.
    let value = |at: usize| (mix(at as u64) % 16 + 100_000 * (at / dims % 2) as u64) as f32;
    let vectors: Vec<f32> = (0..rows * dims).map(value).collect();
    let metric = Metric::L2;
    let plan =
        CoarseBuild { vectors: &vectors, dims, metric, threads: BuildThreads::of(2), seed: 5 };
    let built = build(CoarseKind::IvfPq, &plan).unwrap();
    let order = built.order.clone();
    let scene = Scene { dims, metric, vectors, built };
    let few = RowSet::from_rows(rows as u32, (0..rows as u32).step_by(5));
    for query in (rows..rows + 6).map(|row| (row * dims..(row + 1) * dims).map(value)) {
        let query: Vec<f32> = query.collect();
        for allow in [None, Some(&few)] {
            let hits = scene.search(&query, 10, ScanParams::EXACT, allow, true);
            assert_eq!(hits, scene.naive(&query, 10, allow));
            let group = |hit: &CoarseHit| order[hit.row as usize] % 2;
            assert!(hits.iter().all(|hit| group(hit) == group(&hits[0])), "{hits:?}");
        }
    }
}

#[test]
fn a_large_common_part_hides_no_near_row() {
    let (rows, dims, asked) = (2200, 96, 20);
    let mut vectors = vectors(rows + asked, dims, 3);
    // The differences of the rows are about one.
    vectors.iter_mut().for_each(|value| *value += 2000.0);
    let queries = vectors.split_off(rows * dims);
    let metric = Metric::L2;
    let plan =
        CoarseBuild { vectors: &vectors, dims, metric, threads: BuildThreads::of(2), seed: 5 };
    let built = build(CoarseKind::Auto, &plan).unwrap();
    let scene = Scene { dims, metric, vectors, built };
    let mut found = 0;
    for query in queries.chunks_exact(dims) {
        let hits = scene.search(query, 10, ScanParams::default(), None, true);
        let naive = scene.naive(query, 10, None);
        found += naive.iter().filter(|one| hits.iter().any(|hit| hit.row == one.row)).count();
    }
    assert!(found >= 160, "{found} of 200");
}

/// Returns the number of exact comparisons of a search by squared distances for 10 rows.
fn comparisons(kind: CoarseKind, dims: usize, vectors: &[f32], query: &[f32]) -> usize {
    let metric = Metric::L2;
    let plan = CoarseBuild { vectors, dims, metric, threads: BuildThreads::of(2), seed: 5 };
    let BuiltIndex { order, index } = build(kind, &plan).unwrap();
    let exact = DenseVectors::new(vectors, dims, metric, &order).unwrap();
    let counted = Counted(&exact, 0.into());
    // All rows are ranked by their codes. A flat index keeps as few as by default.
    let refine = if kind == CoarseKind::Flat { 0 } else { 400 };
    let params = ScanParams { probes: 1000, refine };
    let ask = CoarseRequest { params, exact: Some(&counted), ..CoarseRequest::best(10) };
    let mut hits = Vec::new();
    index.search(query, &ask, &mut CoarseScratch::default(), &mut hits).unwrap();
    assert_eq!(hits.len(), 10);
    counted.1.get()
}

#[test]
fn rows_that_codes_exclude_are_not_compared() {
    // As bfloat16, the first 40 rows have one of two codes, and all other rows are far away.
    let value = |row: usize| if row < 40 { 1000.0 + row as f32 / 16.0 } else { 5000.0 };
    let vectors: Vec<f32> = (0..600).flat_map(|row| [value(row), 0.0]).collect();
    assert_eq!(comparisons(CoarseKind::Flat, 2, &vectors, &[1000.0, 0.0]), 40);
    // The steps of the bytes are 1. From the query, 30 rows have the distance 10, and 128 have 13.
    let dims = 64;
    let middle = vec![128.5_f32; dims];
    let mut vectors: Vec<f32> = Vec::new();
    let offsets = (0..30).map(|dim| (dim, 10.0_f32));
    let offsets = offsets.chain((0..dims).flat_map(|dim| [(dim, 13.0), (dim, -13.0)]));
    for (dim, offset) in offsets {
        let start = vectors.len();
        vectors.extend_from_slice(&middle);
        vectors[start + dim] += offset;
    }
    let corner = |at: usize| if mix(at as u64).is_multiple_of(2) { 0.5 } else { 255.5 };
    vectors.extend((0..140 * dims).map(corner));
    assert_eq!(comparisons(CoarseKind::IvfPq, dims, &vectors, &middle), 30);
}

#[test]
fn search_many_equals_single_searches() {
    each(|scene, kind| {
        let queries = vectors(20, scene.dims, 10);
        let exact = scene.exact();
        let mut scratch = CoarseScratch::default();
        let mut many = vec![vec![]; 3];
        let index = &scene.built.index;
        let ask = CoarseRequest { exact: Some(&exact), ..CoarseRequest::best(7) };
        index.search_many(&queries, &ask, &mut scratch, &mut many).unwrap();
        assert_eq!(many.len(), 20);
        for (query, hits) in queries.chunks_exact(scene.dims).zip(&many) {
            assert_eq!(
                *hits,
                scene.search(query, 7, ScanParams::default(), None, true),
                "{kind:?}"
            );
        }
        let short = &queries[..scene.dims + 1];
        assert!(index.search_many(short, &ask, &mut scratch, &mut many).is_err());
    });
}

#[test]
fn invalid_queries_and_tiny_indexes() {
    for kind in KINDS {
        for rows in [0, 1, 2, 11, 33] {
            let scene = Scene::new(kind, Metric::Cosine, rows, 9);
            let hits = scene.search(&[0.5; 9], 10, ScanParams::default(), None, true);
            assert_eq!(hits.len(), rows.min(10), "{kind:?} {rows}");
            let zero = scene.search(&[0.0; 9], 3, ScanParams::default(), None, true);
            assert_eq!(zero.len(), rows.min(3), "{kind:?} {rows}");
            assert!(scene.search(&[0.5; 9], 0, ScanParams::default(), None, true).is_empty());
        }
        let scene = Scene::new(kind, Metric::L2, 11, 9);
        let mut scratch = CoarseScratch::default();
        let mut hits = Vec::new();
        let mut refused = |query: &[f32], k: usize| {
            scene
                .built
                .index
                .search(query, &CoarseRequest::best(k), &mut scratch, &mut hits)
                .is_err()
        };
        assert!(
            refused(&[0.5; 8], 3) && refused(&[f32::NAN; 9], 3) && refused(&[0.5; 9], HITS_MAX + 1)
        );
    }
}

#[test]
fn equal_and_zero_vectors() {
    for kind in KINDS {
        for metric in METRICS {
            let mut same = vec![0.25; 100 * 16];
            same[..16 * 10].fill(0.0);
            let built = build(
                kind,
                &CoarseBuild {
                    vectors: &same,
                    dims: 16,
                    metric,
                    threads: BuildThreads::of(1),
                    seed: 1,
                },
            )
            .unwrap();
            let mut scratch = CoarseScratch::default();
            let mut hits = Vec::new();
            let ask = CoarseRequest { params: EVERYTHING, ..CoarseRequest::best(20) };
            built.index.search(&[0.25; 16], &ask, &mut scratch, &mut hits).unwrap();
            assert_eq!(hits.len(), 20);
            for hit in hits {
                let row = built.order[hit.row as usize] as usize;
                let truth = score(metric, &[0.25; 16], &same[row * 16..][..16]);
                assert!((hit.score - truth).abs() < 0.05, "{kind:?} {metric:?} {hit:?} {truth}");
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    for kind in KINDS {
        let vectors = vectors(700, 24, 4);
        let sections = |threads| {
            let built = build(
                kind,
                &CoarseBuild {
                    vectors: &vectors,
                    dims: 24,
                    metric: Metric::L2,
                    threads: BuildThreads::of(threads),
                    seed: 2,
                },
            );
            let built = built.unwrap();
            let sections = built.index.sections();
            sections.into_iter().map(|(kind, bytes)| (kind, bytes.into_owned())).collect::<Vec<_>>()
        };
        assert!(sections(1) == sections(3), "{kind:?}");
    }
}

type Sections = Vec<(u32, Vec<u8>)>;

/// Returns the sections of each kind of index, built once.
fn stored() -> &'static [Sections] {
    static STORED: OnceLock<Vec<Sections>> = OnceLock::new();
    STORED.get_or_init(|| {
        let one = |kind| {
            let scene = Scene::new(kind, Metric::L2, 100, 8);
            let sections = scene.built.index.sections();
            sections.into_iter().map(|(kind, bytes)| (kind, bytes.into_owned())).collect()
        };
        KINDS.into_iter().map(one).collect()
    })
}

proptest! {
    #[test]
    fn damaged_sections_never_panic(
        kind in 0_usize..3, section in 0_usize..12, at: prop::sample::Index, byte: u8, cut in prop::option::of(0_usize..9),
    ) {
        let mut sections = stored()[kind].clone();
        let count = sections.len();
        let bytes = &mut sections[section % count].1;
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(bytes.len().saturating_sub(cut));
        }
        let borrowed: Vec<(u32, &[u8])> = sections.iter().map(|(kind, bytes)| (*kind, &bytes[..])).collect();
        if let Ok(index) = open(&borrowed) {
            let mut scratch = CoarseScratch::default();
            let mut hits = Vec::new();
            let query = vec![0.5; index.dims()];
            let allow = RowSet::from_rows(100, (0..100).step_by(7));
            for allow in [None, Some(&allow)] {
                let _ = index.search(&query, &CoarseRequest { allow, ..CoarseRequest::best(5) }, &mut scratch, &mut hits);
            }
        }
    }
}

#[test]
fn extreme_vectors_are_indexed() {
    const ROWS: usize = 2100;
    for (metric, value) in [
        (Metric::Cosine, 1e-40_f32),
        (Metric::Cosine, 3e38),
        (Metric::Dot, 1e20),
        (Metric::Dot, 1e-40),
        (Metric::L2, 1e20),
        (Metric::L2, -3e38),
    ] {
        for rows in [3, ROWS] {
            let mut vectors = vectors(rows, 8, 3);
            vectors[8..16].fill(value);
            let of = CoarseBuild {
                vectors: &vectors,
                dims: 8,
                metric,
                threads: BuildThreads::of(1),
                seed: 1,
            };
            let built = build(CoarseKind::Auto, &of).unwrap();
            let sections = built.index.sections();
            let borrowed: Vec<(u32, &[u8])> =
                sections.iter().map(|(kind, bytes)| (*kind, &bytes[..])).collect();
            assert_eq!(open(&borrowed).unwrap().rows(), rows as u32, "{metric:?} {value}");
        }
    }
}

/// Vectors that are read in chunks of a few rows, and rows in any order.
struct ChunkedVectors<'a> {
    values: &'a [f32],
    dims: usize,
    rows_at_once: usize,
}

impl BuildVectors for ChunkedVectors<'_> {
    fn rows(&self) -> usize {
        self.values.len() / self.dims
    }

    fn scan(&self, each: &mut dyn FnMut(&[f32]) -> base::Result<()>) -> base::Result<()> {
        self.values.chunks(self.rows_at_once * self.dims).try_for_each(each)
    }

    fn gather(&self, rows: &[u32], out: &mut Vec<f32>) -> base::Result<()> {
        for row in rows {
            out.extend_from_slice(&self.values[*row as usize * self.dims..][..self.dims]);
        }
        Ok(())
    }
}

#[test]
fn chunks_and_threads_do_not_change_an_index() {
    let dims = 20;
    let vectors = vectors(3000, dims, 8);
    for kind in KINDS {
        for metric in METRICS {
            let plan = |threads| CoarseBuild {
                vectors: &vectors,
                dims,
                metric,
                threads: BuildThreads::of(threads),
                seed: 5,
            };
            let whole = build(kind, &plan(1)).unwrap();
            for (rows_at_once, threads) in [(1, 1), (7, 3), (5000, 2)] {
                let source = ChunkedVectors { values: &vectors, dims, rows_at_once };
                let CoarseBuild { threads, seed, .. } = plan(threads);
                let streamed = StreamedBuild { vectors: &source, dims, metric, threads, seed };
                let built = build_streamed(kind, &streamed).unwrap();
                assert_eq!(built.order, whole.order, "{kind:?} {metric:?} {rows_at_once}");
                assert_eq!(built.index.sections(), whole.index.sections());
            }
        }
    }
}

#[test]
fn a_source_that_fails_ends_the_build() {
    struct Broken;
    impl BuildVectors for Broken {
        fn rows(&self) -> usize {
            100
        }
        fn scan(&self, each: &mut dyn FnMut(&[f32]) -> base::Result<()>) -> base::Result<()> {
            each(&[1.0, f32::NAN])
        }
        fn gather(&self, _: &[u32], _: &mut Vec<f32>) -> base::Result<()> {
            Err(base::Error::data_loss("a page"))
        }
    }
    for kind in KINDS {
        let threads = BuildThreads::of(1);
        let broken =
            StreamedBuild { vectors: &Broken, dims: 2, metric: Metric::L2, threads, seed: 1 };
        let error = build_streamed(kind, &broken).err().unwrap();
        assert!(error.message().contains("vector 0"), "{error}");
        let none = StreamedBuild { threads: BuildThreads::of(0), ..broken };
        assert_eq!(
            build_streamed(kind, &none).err().unwrap().kind(),
            base::ErrorKind::InvalidArgument
        );
    }
}
