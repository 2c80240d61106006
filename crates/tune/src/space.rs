//! Points of the grid. A point is one combination of the settings that a search tries.

use std::fmt;
use std::time::Duration;

use engine::ScheduleFile;
use serde::{Deserialize, Serialize};

/// Batch sizes that are tried.
const BATCHES: [usize; 7] = [2, 4, 8, 16, 32, 64, 128];
/// Lingers that are tried, in microseconds, if they leave half of the target for everything else.
const DELAYS_US: [u64; 4] = [0, 500, 2000, 5000];
/// Default batch size of a model that merges, from `ScheduleOptions`.
const DEFAULT_BATCH: usize = 32;

/// One configuration. Without merging, batch is 1 and delay 0, so that equal points are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct TunePoint {
    /// True if requests are merged.
    pub(super) merged: bool,
    /// Concurrent runs of the model.
    pub(super) threads: usize,
    /// Threads inside one run.
    pub(super) intra_op: usize,
    /// Maximum number of items in a batch.
    pub(super) max_batch: usize,
    /// Maximum time in microseconds for which the oldest request waits for others.
    pub(super) delay_us: u64,
}

impl TunePoint {
    /// Returns the point of single requests on `threads` threads: the default of a server.
    pub(super) fn sync(threads: usize, intra_op: usize) -> TunePoint {
        TunePoint { merged: false, threads, intra_op, max_batch: 1, delay_us: 0 }
    }

    /// Returns the point of merged batches with the defaults of everything else.
    pub(super) fn batches(threads: usize) -> TunePoint {
        TunePoint { merged: true, threads, intra_op: 1, max_batch: DEFAULT_BATCH, delay_us: 0 }
    }

    /// Returns the linger.
    pub(super) fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us)
    }

    /// Returns the keys of `[schedule]` of this point, for the model's settings file.
    pub(super) fn schedule(&self) -> ScheduleFile {
        let mode =
            if self.merged { engine::ScheduleMode::Async } else { engine::ScheduleMode::Sync };
        ScheduleFile {
            mode: Some(mode.into()),
            threads: Some(self.threads),
            max_batch: self.merged.then_some(self.max_batch),
            max_queue_delay: self.merged.then(|| self.delay()),
            ..ScheduleFile::default()
        }
    }
}

impl fmt::Display for TunePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = if self.threads == 1 { "run" } else { "runs" };
        if self.merged {
            let delay = self.delay_us as f64 / 1e3;
            write!(
                f,
                "async, {} {runs}, batch {}, max-queue-delay {delay} ms",
                self.threads, self.max_batch
            )?;
        } else {
            write!(f, "sync, {} {runs}", self.threads)?;
        }
        if self.intra_op > 1 { write!(f, ", {} threads per run", self.intra_op) } else { Ok(()) }
    }
}

/// Returns all points for `cores` cores and a target of `target`. Leaves out batches if `batched`
/// is false. The two defaults of a server come first.
pub(super) fn grid(cores: usize, target: Duration, batched: bool) -> Vec<TunePoint> {
    let cores = cores.max(1);
    let mut points = vec![TunePoint::sync(cores, 1)];
    if batched {
        points.push(TunePoint::batches(cores));
    }
    let delays = DELAYS_US.iter().filter(|&&delay| Duration::from_micros(delay) <= target / 2);
    for intra_op in sizes(cores) {
        for threads in sizes(cores).filter(|threads| threads * intra_op <= cores) {
            points.push(TunePoint::sync(threads, intra_op));
            for (&max_batch, &delay_us) in
                BATCHES.iter().flat_map(|batch| delays.clone().map(move |delay| (batch, delay)))
            {
                points.push(TunePoint { merged: true, threads, intra_op, max_batch, delay_us });
            }
        }
    }
    points.retain(|point| batched || !point.merged);
    let mut seen = std::collections::BTreeSet::new();
    points.retain(|point| seen.insert(*point));
    points
}

/// Returns the points of `grid` that are one step away from `point` in one direction. A step is
/// half or twice the batch or the threads, or the next linger.
pub(super) fn neighbours(point: &TunePoint, grid: &[TunePoint]) -> Vec<TunePoint> {
    let steps = |a: usize, b: usize| a.max(b) as f64 / a.min(b).max(1) as f64;
    let delay = |us: u64| DELAYS_US.iter().position(|&own| own == us).unwrap_or(0);
    let near = |other: &&TunePoint| {
        let ratios = [
            steps(point.threads, other.threads),
            steps(point.intra_op, other.intra_op),
            steps(point.max_batch, other.max_batch),
            2f64.powi(delay(point.delay_us).abs_diff(delay(other.delay_us)) as i32),
        ];
        let moved = ratios.iter().filter(|&&ratio| ratio > 1.0).count();
        point.merged == other.merged && moved == 1 && ratios.iter().all(|&ratio| ratio <= 2.0)
    };
    grid.iter().filter(near).copied().collect()
}

/// Returns powers of two up to `cores`, and `cores`.
pub(super) fn sizes(cores: usize) -> impl Iterator<Item = usize> {
    let powers = (0..usize::BITS).map(|bit| 1usize << bit).take_while(move |&size| size < cores);
    powers.chain([cores])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_millis(10);

    #[test]
    fn the_grid_has_the_defaults_first_and_each_point_once() {
        let points = grid(2, TARGET, true);
        assert_eq!(points[..2], [TunePoint::sync(2, 1), TunePoint::batches(2)]);
        // Two thread counts at one thread a run, one at two; each sync and 7 batches x 4 delays.
        assert_eq!(points.len(), 3 * (1 + 7 * 4));
        assert!(points.iter().all(|point| point.threads * point.intra_op <= 2));
        assert_eq!(grid(6, TARGET, false).iter().filter(|point| point.intra_op == 1).count(), 4);
        assert_eq!(sizes(6).collect::<Vec<_>>(), [1, 2, 4, 6]);
        assert_eq!(sizes(1).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_linger_leaves_half_of_the_target() {
        let longest =
            |ms| grid(2, Duration::from_millis(ms), true).iter().map(|p| p.delay_us).max();
        assert_eq!((longest(10), longest(4), longest(0)), (Some(5000), Some(2000), Some(0)));
    }

    #[test]
    fn neighbours_are_one_step_away() {
        let grid = grid(4, TARGET, true);
        let near = neighbours(&TunePoint { delay_us: 500, ..TunePoint::batches(2) }, &grid);
        let mut changed: Vec<_> =
            near.iter().map(|p| (p.threads, p.intra_op, p.max_batch, p.delay_us)).collect();
        changed.sort_unstable();
        assert_eq!(
            changed,
            [
                (1, 1, 32, 500),
                (2, 1, 16, 500),
                (2, 1, 32, 0),
                (2, 1, 32, 2000),
                (2, 1, 64, 500),
                (2, 2, 32, 500),
                (4, 1, 32, 500)
            ]
        );
        assert_eq!(neighbours(&TunePoint::sync(4, 1), &grid), [TunePoint::sync(2, 1)]);
    }

    #[test]
    fn points_are_displayed_as_text() {
        assert_eq!(TunePoint::sync(1, 2).to_string(), "sync, 1 run, 2 threads per run");
        let point = TunePoint { delay_us: 500, ..TunePoint::batches(2) };
        assert_eq!(point.to_string(), "async, 2 runs, batch 32, max-queue-delay 0.5 ms");
        let text = toml::to_string(&point.schedule()).unwrap();
        assert_eq!(
            text,
            "mode = \"async\"\nthreads = 2\nmax-batch = 32\nmax-queue-delay = \"500us\"\n"
        );
        assert_eq!(
            toml::to_string(&TunePoint::sync(1, 1).schedule()).unwrap(),
            "mode = \"sync\"\nthreads = 1\n"
        );
    }
}
