//! The search against a simulated machine whose best point is known.

use std::cell::Cell;

use super::*;
use crate::journal::{MeasurementJournal, Measurer, Slice, SliceKey};
use crate::space::grid;
use loadgen::random::{RandomSequence, at};

const TARGET: Duration = Duration::from_millis(10);
const BUDGET_S: f64 = 240.0;
const CORES: usize = 4;

/// Returns the figures of a model that takes a millisecond, and a tenth of one more for each
/// further item of its batch.
fn truth(point: &TunePoint, clients: usize) -> (f64, f64) {
    let runs = point.threads.min(clients) as f64;
    let speed = (point.intra_op as f64).powf(0.6);
    let batch = if point.merged {
        (clients as f64 / point.threads as f64).clamp(1.0, point.max_batch as f64)
    } else {
        1.0
    };
    let run_ms = (0.9 + 0.1 * batch) / speed;
    // A batch that lingers and is not filled loses the linger.
    let wait_ms = if batch < point.max_batch as f64 { point.delay_us as f64 / 1e3 } else { 0.0 };
    let qps = runs * batch / (run_ms + wait_ms) * 1e3;
    (qps, 1.3 * clients as f64 / qps * 1e3)
}

/// Returns the score of the point without noise.
fn worth(point: &TunePoint) -> f64 {
    let steps = LADDER.iter().map(|&clients| truth(point, clients));
    steps.filter(|(_, p99)| *p99 <= 10.0).map(|(qps, _)| qps).fold(0.0, f64::max)
}

/// A machine with noise that is the same for the same question, and a speed that drifts by up to
/// two.
struct Machine {
    seed: u64,
    drifts: bool,
    clock_s: f64,
    measured: usize,
    /// Number of slices after which it fails, as after an interruption.
    stop_after: Option<usize>,
}

impl Machine {
    fn new(seed: u64, drifts: bool) -> Machine {
        Machine { seed, drifts, clock_s: 0.0, measured: 0, stop_after: None }
    }
}

impl Measurer for Machine {
    fn measure(&mut self, key: &SliceKey) -> Result<Slice> {
        if self.stop_after == Some(self.measured) {
            return Err(Error::cancelled("interrupted"));
        }
        self.measured += 1;
        let text = serde_json::to_string(key).unwrap();
        let mut random = RandomSequence::new(
            text.bytes().fold(self.seed, |hash, byte| at(hash, u64::from(byte))),
        );
        // About normal, with a deviation of one.
        let mut noise = || (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
        let drift = if self.drifts { 1.0 + 0.33 * (self.clock_s / 17.0).sin() } else { 1.0 };
        // Short slices are noisier.
        let spread = (100.0 / key.millis as f64).sqrt();
        let (qps, p99) = truth(&key.point, key.clients);
        let qps = qps * drift * (1.0 + 0.06 * spread * noise());
        // Latency does not drift: with it, another point would really be the best meanwhile.
        let p99_ms = p99 * (1.0 + 0.1 * spread * noise()).max(0.5);
        let seconds = key.millis as f64 / 1e3 + 0.07;
        self.clock_s += seconds;
        Ok(Slice { qps, p50_ms: p99_ms / 1.3, p99_ms, n: 100, seconds, ..Slice::default() })
    }
}

fn search(journal: &mut MeasurementJournal<'_>, seed: u64) -> Result<TuneResult> {
    let grid = grid(CORES, TARGET, true);
    let mut prober =
        Prober { journal, target_ms: 10.0, seed, limit_s: BUDGET_S, watch: &|_, _| {} };
    PointSearch { prober: &mut prober, grid: &grid, tell: &|_| {} }.run()
}

/// Noise can mislead a search, so a few of the seeds may end at a point that is somewhat worse.
#[test]
fn it_finds_a_point_near_the_best_for_nearly_every_seed() {
    const SEEDS: u64 = 40;
    const MISLED_MAX: usize = 2;
    let best = grid(CORES, TARGET, true).iter().map(worth).fold(0.0, f64::max);
    for drifts in [false, true] {
        let ratio = |seed| {
            let mut machine = Machine::new(seed, drifts);
            let found = search(&mut MeasurementJournal::in_memory(&mut machine), seed).unwrap();
            worth(&found.best.point) / best
        };
        let ratios: Vec<f64> = (0..SEEDS).map(ratio).collect();
        let misled = ratios.iter().filter(|ratio| **ratio < 0.95).count();
        assert!(misled <= MISLED_MAX, "drift {drifts}: {ratios:.3?}");
        assert!(ratios.iter().all(|ratio| *ratio >= 0.85), "drift {drifts}: {ratios:.3?}");
    }
}

#[test]
fn the_budget_is_kept_and_used() {
    let mut machine = Machine::new(1, true);
    let found = search(&mut MeasurementJournal::in_memory(&mut machine), 1).unwrap();
    assert!(machine.clock_s <= BUDGET_S + 1.1, "one slice over at most: {}", machine.clock_s);
    assert!(machine.clock_s >= 0.7 * BUDGET_S, "{}", machine.clock_s);
    assert_eq!(found.seconds, machine.clock_s);
    assert!(found.baseline.is_some() && found.finalists.len() >= FINALISTS);
    assert!(found.rungs.windows(2).all(|pair| pair[0].points.len() >= pair[1].points.len()));
}

#[test]
fn a_search_that_was_interrupted_ends_as_if_it_had_not_been() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let whole = search(&mut MeasurementJournal::in_memory(&mut Machine::new(5, false)), 5).unwrap();
    let reported = Cell::new(0);
    let mut slices = 0;
    for stop_after in [Some(100), Some(1), Some(300), None] {
        let mut machine = Machine { stop_after, ..Machine::new(5, false) };
        let key = serde_json::json!("a search");
        let tell = |_: &str| reported.set(reported.get() + 1);
        let mut journal = MeasurementJournal::open(&mut machine, &path, key, false, &tell).unwrap();
        let outcome = search(&mut journal, 5);
        drop(journal);
        slices += machine.measured;
        match stop_after {
            Some(_) => assert_eq!(outcome.unwrap_err().kind(), base::ErrorKind::Cancelled),
            None => {
                let found = outcome.unwrap();
                let text = |found: &TuneResult| serde_json::to_string(&found.rungs).unwrap();
                assert_eq!(text(&found), text(&whole));
                assert_eq!(found.seconds, whole.seconds);
            }
        }
    }
    let mut once = Machine::new(5, false);
    search(&mut MeasurementJournal::in_memory(&mut once), 5).unwrap();
    assert_eq!((slices, reported.get()), (once.measured, 3), "nothing was measured twice");
}

#[test]
fn the_full_grid_has_every_point_and_a_comparison() {
    let mut machine = Machine::new(2, false);
    let mut journal = MeasurementJournal::in_memory(&mut machine);
    let found = search(&mut journal, 2).unwrap();
    let grid = grid(CORES, TARGET, true);
    let mut prober =
        Prober { journal: &mut journal, target_ms: 10.0, seed: 2, limit_s: 0.0, watch: &|_, _| {} };
    let full = PointSearch { prober: &mut prober, grid: &grid, tell: &|_| {} }
        .full_grid(&found.best)
        .unwrap();
    assert_eq!(full.sweep.points.len(), grid.len());
    assert_eq!(full.found.point, found.best.point);
    assert!(full.found.best.qps / full.duel.points[0].best.qps > 0.9);
}

#[test]
fn a_model_that_answers_nothing_is_an_error_with_the_reason() {
    struct Refuses;
    impl Measurer for Refuses {
        fn measure(&mut self, _: &SliceKey) -> Result<Slice> {
            let refused = Some("no such operator".to_owned());
            Ok(Slice { failed: 1, refused, ..Slice::default() })
        }
    }
    let error = search(&mut MeasurementJournal::in_memory(&mut Refuses), 1).unwrap_err();
    assert!(error.message().contains("no such operator"), "{error}");
}

/// Has the same figures at each point, and no time after the first point of the first round.
struct Constant(Slice);

impl Measurer for Constant {
    fn measure(&mut self, key: &SliceKey) -> Result<Slice> {
        let seconds = if key.stage == "round 1" { BUDGET_S } else { 0.1 };
        Ok(Slice { qps: 100.0, n: 100, seconds, ..self.0.clone() })
    }
}

#[test]
fn a_result_without_a_last_comparison_is_not_lenient() {
    let of = |p99_ms| {
        let mut constant = Constant(Slice { p99_ms, ..Slice::default() });
        search(&mut MeasurementJournal::in_memory(&mut constant), 1).unwrap()
    };
    assert!(of(9.0).best.within);
    // Above the target, and within that of the first round.
    let found = of(11.0);
    assert_eq!((found.rungs.len(), found.best.within), (1, false));
    assert!(found.rungs[0].points.iter().all(|scored| !scored.within));
}

#[test]
fn requests_that_always_fail_choose_nothing() {
    let failure = Some("gRPC status 3: index out of range".to_owned());
    let mut constant = Constant(Slice { failed: 1, failure, ..Slice::default() });
    let error = search(&mut MeasurementJournal::in_memory(&mut constant), 1).unwrap_err();
    assert!(error.message().contains("index out of range"), "{error}");
}

#[test]
fn rungs_halve() {
    assert_eq!([3, 4, 6, 12, 87].map(rungs_for), [0, 1, 1, 2, 5]);
}
