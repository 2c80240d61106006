//! Rows that codes cannot tell apart, or that they exclude.

use coarse::{
    BuildThreads, BuiltIndex, CoarseBuild, CoarseHit, CoarseKind, CoarseRequest, CoarseScratch,
    DenseVectors, Exact, Metric, RowSet, ScanParams, build, open, section,
};

use crate::scene::{Counted, EVERYTHING, KINDS, METRICS, Scene, mix, score, vectors};

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

/// Exact scores of rows whose ids fall from row to row.
struct FallingIds(DenseVectors);

impl Exact for FallingIds {
    fn scores(&self, query: &[f32], rows: &[u32], out: &mut Vec<f32>) -> base::Result<()> {
        self.0.scores(query, rows, out)
    }

    fn id(&self, row: u32) -> u64 {
        u64::from(u32::MAX - row)
    }
}

#[test]
fn of_equal_scores_the_smallest_ids_are_found() {
    let (dims, metric) = (64, Metric::L2);
    // The bytes have whole numbers without an error. From the query, 128 rows have the distance 13.
    let middle = vec![128.0_f32; dims];
    let mut vectors: Vec<f32> = Vec::new();
    for (dim, offset) in (0..dims).flat_map(|dim| [(dim, 13.0), (dim, -13.0)]) {
        let start = vectors.len();
        vectors.extend_from_slice(&middle);
        vectors[start + dim] += offset;
    }
    let corner = |at: usize| if mix(at as u64).is_multiple_of(2) { 0.0 } else { 255.0 };
    vectors.extend((0..140 * dims).map(corner));
    let plan =
        CoarseBuild { vectors: &vectors, dims, metric, threads: BuildThreads::of(2), seed: 5 };
    for kind in [CoarseKind::Flat, CoarseKind::IvfPq] {
        let BuiltIndex { order, index } = build(kind, &plan).unwrap();
        let exact = FallingIds(DenseVectors::new(&vectors, dims, metric, &order).unwrap());
        let params = ScanParams { probes: 1000, refine: 400 };
        let ask = CoarseRequest { params, exact: Some(&exact), ..CoarseRequest::best(10) };
        let mut hits = Vec::new();
        index.search(&middle, &ask, &mut CoarseScratch::default(), &mut hits).unwrap();
        let found: Vec<u32> = hits.iter().map(|hit| hit.row).collect();
        let equal = (0..order.len() as u32).rev().filter(|row| order[*row as usize] < 128);
        assert_eq!(found, equal.take(10).collect::<Vec<_>>(), "{kind:?}");
    }
}

#[test]
fn a_large_common_part_hides_no_near_row_of_few_dimensions() {
    let (rows, dims, asked) = (6000, 24, 20);
    // The differences of the rows are about one.
    for (metric, common) in [(Metric::L2, 2000.0), (Metric::Cosine, 20.0), (Metric::Dot, 20.0)] {
        let mut vectors = vectors(rows + asked, dims, 3);
        vectors.iter_mut().for_each(|value| *value += common);
        if metric == Metric::Cosine {
            // One vector far away changes nothing.
            vectors[..dims].fill(0.0);
        }
        let queries = vectors.split_off(rows * dims);
        let plan =
            CoarseBuild { vectors: &vectors, dims, metric, threads: BuildThreads::of(2), seed: 5 };
        let built = build(CoarseKind::Auto, &plan).unwrap();
        let sections = built.index.sections();
        let mut borrowed: Vec<(u32, &[u8])> =
            sections.iter().map(|(kind, bytes)| (*kind, &bytes[..])).collect();
        let opened = open(&borrowed).unwrap();
        let sections_before = borrowed.len();
        borrowed.retain(|(kind, _)| *kind != section::LIST_MEAN);
        let has_mean = borrowed.len() < sections_before;
        assert_eq!(has_mean, metric != Metric::Dot, "{metric:?}");
        assert_eq!(open(&borrowed).is_err(), has_mean, "{metric:?}: a mean is lost");
        let built = BuiltIndex { order: built.order, index: opened };
        let scene = Scene { dims, metric, vectors, built };
        let mut found = 0;
        for query in queries.chunks_exact(dims) {
            found += found_of_ten(&scene, query);
        }
        assert!(found >= 170, "{metric:?}: {found} of 200");
    }
}

#[test]
fn the_length_of_a_query_changes_no_inner_products() {
    let (rows, asked, metric) = (2200, 20, Metric::Dot);
    for (kind, dims) in [(CoarseKind::Auto, 24), (CoarseKind::Auto, 96), (CoarseKind::Rabitq, 96)] {
        let mut vectors = vectors(rows + asked, dims, 3);
        vectors.iter_mut().for_each(|value| *value += 20.0);
        let queries = vectors.split_off(rows * dims);
        let plan =
            CoarseBuild { vectors: &vectors, dims, metric, threads: BuildThreads::of(2), seed: 5 };
        let built = build(kind, &plan).unwrap();
        let scene = Scene { dims, metric, vectors, built };
        for factor in [1.0, 0.01] {
            let scaled: Vec<f32> = queries.iter().map(|value| value * factor).collect();
            let found: usize =
                scaled.chunks_exact(dims).map(|query| found_of_ten(&scene, query)).sum();
            assert!(found >= 160, "{kind:?}, {dims} dimensions, factor {factor}: {found} of 200");
        }
    }
}

#[test]
fn one_bit_codes_scale_inner_products_with_the_query() {
    let (rows, dims, factor) = (2200, 96, 1.0 / 1024.0);
    let scene = Scene::new(CoarseKind::Rabitq, Metric::Dot, rows, dims);
    let half = RowSet::from_rows(rows as u32, (0..rows as u32).step_by(2));
    let few = RowSet::from_rows(rows as u32, (0..rows as u32).step_by(200));
    for query in vectors(5, dims, 9).chunks_exact(dims) {
        // A power of two, so that no value is rounded.
        let short: Vec<f32> = query.iter().map(|value| value * factor).collect();
        for allow in [None, Some(&half), Some(&few)] {
            for exactly in [false, true] {
                let of =
                    |query: &[f32]| scene.search(query, 10, ScanParams::default(), allow, exactly);
                let mut hits = of(query);
                hits.iter_mut().for_each(|hit| hit.score *= factor);
                assert_eq!(of(&short), hits);
            }
        }
        // A zero vector has no length. All rows have the same product with it.
        let hits = scene.search(&vec![0.0; dims], 10, ScanParams::default(), None, true);
        assert!(hits.len() == 10 && hits.iter().all(|hit| hit.score == 0.0));
    }
}

/// Returns how many of the ten best rows a search finds.
fn found_of_ten(scene: &Scene, query: &[f32]) -> usize {
    let hits = scene.search(query, 10, ScanParams::default(), None, true);
    let naive = scene.naive(query, 10, None);
    naive.iter().filter(|one| hits.iter().any(|hit| hit.row == one.row)).count()
}
