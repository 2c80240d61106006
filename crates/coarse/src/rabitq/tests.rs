use super::codes::CodeRow;
use super::scan::{EXACT_ERRORS, LEVEL_DEVIATIONS};
use super::*;
use crate::kmeans::RandomDraws;
use crate::{BuildThreads, CoarseBuild, CoarseKind, build};

const DIMS: usize = 256;

fn normal(draw: &mut RandomDraws, count: usize) -> Vec<f32> {
    (0..count)
        .map(|_| (0..12).map(|_| draw.below(1 << 20) as f32 / (1 << 20) as f32).sum::<f32>() - 6.0)
        .collect()
}

/// Rows of one list around a centre, a query, and the true costs.
struct Scene {
    codes: RabitqCodes,
    query: RabitqQuery,
    list: ScannedList,
    truth: Vec<f32>,
}

fn scene(metric: Metric, rows: usize, seed: u64) -> Scene {
    let mut draw = RandomDraws::new(seed);
    let centre = normal(&mut draw, DIMS);
    let residuals = normal(&mut draw, rows * DIMS);
    let mut query = RabitqQuery::default();
    query.rotated = normal(&mut draw, DIMS);
    query.error_factor = 1.0;
    query.prepare();
    let mut codes = RabitqCodes::default();
    let list = residuals.chunks_exact(DIMS).map(|residual| CodeRow {
        residual,
        constant: if metric == Metric::Dot { -float::dot(residual, &centre) } else { 0.0 },
    });
    codes.extend(list, &centre, metric);
    let square = squared_distance(&query, &centre);
    let offset = if metric == Metric::Dot { -float::dot(&query.rotated, &centre) } else { square };
    let truth = residuals.chunks_exact(DIMS).map(|residual| {
        let row: Vec<f32> =
            residual.iter().zip(&centre).map(|(value, centre)| value + centre).collect();
        if metric == Metric::Dot {
            -float::dot(&query.rotated, &row)
        } else {
            float::l2(&query.rotated, &row)
        }
    });
    let truth = truth.collect();
    Scene {
        codes,
        list: ScannedList {
            first_row: 0,
            end_row: rows as u32,
            first_block: 0,
            offset,
            radii: query.radii(square),
        },
        query,
        truth,
    }
}

/// Checks the share of true costs below their bounds, and the mean error in deviations.
#[test]
fn bounds_hold_and_costs_are_not_biased() {
    for metric in [Metric::L2, Metric::Dot] {
        let mut below = 0;
        let mut seen = 0;
        let mut signed = 0.0;
        let mut spread = 0.0;
        for seed in 0..20 {
            let scene = scene(metric, 100, seed);
            let mut found = RabitqScan::default();
            found.reset(100);
            found.scan_list(&scene.codes, &scene.query, &scene.list, None);
            assert_eq!(found.candidates.len(), 100, "without a limit every row is let through");
            for candidate in &found.candidates {
                let truth = scene.truth[candidate.row as usize];
                let deviation = (candidate.cost - candidate.bound) / LEVEL_DEVIATIONS;
                signed += (candidate.cost - truth) / deviation;
                spread += ((candidate.cost - truth) / deviation).powi(2);
                below += u32::from(truth < candidate.bound);
                seen += 1;
            }
        }
        // 1.9 deviations on one side: 2.9 % of a normal distribution.
        assert!(below < seen / 20, "{metric:?}: {below} of {seen} below their bounds");
        assert!(
            (signed / seen as f32).abs() < 0.1,
            "{metric:?}: biased by {}",
            signed / seen as f32
        );
        assert!(
            (0.5..1.5).contains(&(spread / seen as f32)),
            "{metric:?}: {}",
            spread / seen as f32
        );
    }
}

#[test]
fn inner_products_with_centres_include_the_mean() {
    let mut draw = RandomDraws::new(4);
    let mean = normal(&mut draw, DIMS);
    let centres = normal(&mut draw, 200 * DIMS);
    let mut query = RabitqQuery::default();
    query.rotated = normal(&mut draw, DIMS);
    query.error_factor = 1.0;
    query.prepare();
    let length = float::dot(&query.rotated, &query.rotated).sqrt();
    let list = ScannedList {
        first_row: 0,
        end_row: 200,
        first_block: 0,
        offset: 0.0,
        radii: ErrorRadii { signs: length, levels: length },
    };
    let directory = super::build::encode_centres(&centres, &mean, Metric::Dot);
    let mut found = RabitqScan::default();
    found.reset(200);
    found.scan_list(&directory, &query, &list, None);
    assert_eq!(found.candidates.len(), 200);
    // The products with the mean have the standard deviation 16, and the codes an error of 1.7.
    let whole: Vec<f32> = query.rotated.iter().zip(&mean).map(|(one, other)| one + other).collect();
    let error = |candidate: &RabitqCandidate| {
        let centre = &centres[candidate.row as usize * DIMS..][..DIMS];
        (candidate.cost + float::dot(&whole, centre)).abs()
    };
    let errors: f32 = found.candidates.iter().map(error).sum();
    assert!(errors < 200.0 * 4.0, "an error of {}", errors / 200.0);
}

#[test]
fn one_bit_bounds_lose_few_of_the_nearest() {
    let mut lost = 0;
    let mut compared = 0;
    let mut rows = 0;
    for seed in 0..20 {
        let scene = scene(Metric::L2, 500, seed);
        let mut found = RabitqScan::default();
        found.reset(10);
        found.scan_list(&scene.codes, &scene.query, &scene.list, None);
        let mut order: Vec<u32> = (0..500).collect();
        order.sort_by(|one, other| {
            scene.truth[*one as usize].total_cmp(&scene.truth[*other as usize])
        });
        let limit = found.smallest.limit();
        let kept =
            |row: &u32| found.candidates.iter().any(|one| one.row == *row && one.bound < limit);
        lost += order[..10].iter().filter(|row| !kept(row)).count();
        compared += found.compared;
        rows += 500;
    }
    assert!(lost <= 6, "{lost} of 200 of the nearest were lost");
    assert!(compared < rows * 8 / 10, "{compared} of {rows} rows had their four bits looked at");
}

#[test]
fn exact_searches_have_wider_bounds() {
    let mut draw = RandomDraws::new(5);
    let vectors = normal(&mut draw, 300 * DIMS);
    let threads = BuildThreads::of(1);
    let plan = CoarseBuild { vectors: &vectors, dims: DIMS, metric: Metric::L2, threads, seed: 1 };
    let built = build(CoarseKind::Rabitq, &plan).unwrap();
    let query = normal(&mut draw, DIMS);
    let widths = |params: ScanParams| {
        let request = CoarseRequest { params, ..CoarseRequest::best(300) };
        let mut scratch = CoarseScratch::default();
        let found = built.index.candidates(&query, &request, &mut scratch).unwrap();
        assert_eq!(found.len(), 300, "without a limit every row is a candidate");
        found.iter().map(|candidate| candidate.cost - candidate.bound).sum::<f32>()
    };
    let ordinary = widths(ScanParams { probes: 300, refine: 300 });
    let wide = widths(ScanParams::EXACT);
    assert!((wide / ordinary - EXACT_ERRORS).abs() < 0.01, "{wide} and {ordinary}");
}

#[test]
fn another_index_may_use_the_same_scratch() {
    let mut scratch = CoarseScratch { other: Some(Box::new(1_u8)), ..CoarseScratch::default() };
    work_of(&mut scratch).rows.push(7);
    assert_eq!(work_of(&mut scratch).rows, [7]);
}

#[test]
fn a_filter_that_is_not_correlated_needs_few_lists() {
    let (rows, dims, queries) = (4000, 64, 20);
    let mut draw = RandomDraws::new(9);
    let vectors = normal(&mut draw, rows * dims);
    let threads = BuildThreads::of(2);
    let plan = CoarseBuild { vectors: &vectors, dims, metric: Metric::L2, threads, seed: 1 };
    let built = build(CoarseKind::Rabitq, &plan).unwrap();
    let fifth = RowSet::from_rows(rows as u32, (0..rows as u32).step_by(5));
    let params = ScanParams { probes: 2, refine: 20 };
    let request = CoarseRequest { params, allow: Some(&fifth), ..CoarseRequest::best(10) };
    let mut scratch = CoarseScratch::default();
    let mut lists = 0;
    for query in vectors.chunks_exact(dims).take(queries) {
        let found = built.index.candidates(query, &request, &mut scratch).unwrap();
        assert!(found.iter().all(|candidate| fifth.contains(candidate.row)));
        lists += work_of(&mut scratch).probed.len();
    }
    // About ten of 252 for each query: as many allowed rows as two lists have.
    assert!(lists < 60 * queries, "{lists} lists for {queries} queries");
}
