//! Every coarse index against a comparison with every row.

use std::sync::OnceLock;

use coarse::{
    BuildThreads, BuildVectors, CoarseBuild, CoarseHit, CoarseKind, CoarseRequest, CoarseScratch,
    HITS_MAX, Metric, RowSet, ScanParams, StreamedBuild, build, build_streamed, open,
};
use proptest::prelude::*;

use crate::scene::{Counted, EVERYTHING, KINDS, METRICS, Scene, score, vectors};

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
