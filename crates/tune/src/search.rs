//! Successive halving over the grid.
//!
//! All candidates are measured briefly, the better half is kept and measured for twice as long, and
//! so on until few are left. Each rung costs the same, and most of the budget goes to candidates
//! that may win. A grid of n points costs log2(n) rungs and not n long measurements. If longer
//! measurements only make the throughput of a point more exact, this finds the best one with high
//! probability. The proof is in Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and
//! Hyperparameter Optimization", AISTATS 2016. The method itself is Karnin, Koren and Somekh's,
//! ICML 2013.
//!
//! Three things differ from the book. A machine's speed drifts, so no candidate is measured in one
//! piece. Every rung goes through all of its candidates several times, and compares medians of
//! levelled throughput (see [`super::score::level`]). A point has a throughput for each number of
//! clients, so a rung tries numbers around the best one of the rung before. Neighbours on the grid
//! are similar. If the first rung had no time for the whole grid, the neighbours of its best join
//! the next ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::{Error, Result};
use loadgen::report::per_second;
use serde::Serialize;

use super::probe::{LADDER, Prober, Readings, around, shuffle};
use super::score::ScoredTunePoint;
use super::space::{TunePoint, neighbours};

/// Candidates of the last comparison.
const FINALISTS: usize = 3;
/// Share of the budget for the last comparison.
const FINAL_SHARE: f64 = 0.25;
/// Share of the budget for unexpected delays.
const SLACK_SHARE: f64 = 0.03;
/// Shortest slice.
const SLICE_MIN: Duration = Duration::from_millis(100);
/// Longest slice.
const SLICE_MAX: Duration = Duration::from_secs(1);
/// Minimum length of a slice in answers to a single client.
const SLICE_ANSWERS: f64 = 8.0;
/// Cost of a slice in seconds beside its own time. It is spent on connecting, warming up and
/// waiting for the last answers.
const OVERHEAD_S: f64 = 0.1;
/// Mean number of slices of a candidate on the first rung.
const STEPS_MEAN: f64 = 2.5;
/// Maximum number of slices of a candidate on the first rung.
const STEPS_MAX: usize = 4;
/// Maximum number of clients in the first measurement of the defaults.
const SCOUT_CLIENTS: usize = 64;
/// Budget in seconds from which the defaults are measured twice at first.
const SCOUT_TWICE_S: f64 = 60.0;
/// Slices of a candidate in a pass of a further rung.
const STEPS_NEXT: f64 = 3.0;
/// Maximum number of passes of a rung and of the last comparison.
const PASSES_MAX: usize = 9;
/// Share by which a percentile may exceed the target on the first rung. It halves on each further
/// one. A short slice holds few requests, and a dropped point does not come back.
const LENIENCE: f64 = 0.25;
/// Untried points join the search after each of this many first rungs.
const JOIN_RUNGS: usize = 2;
/// Number of best points whose neighbours join.
const JOIN_BEST: usize = 3;
/// Maximum number of points that join after a rung.
const JOIN_MAX: usize = 12;

/// Result of a rung.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rung {
    /// "round 1", "final", ...
    pub(super) name: String,
    /// Length of a slice in milliseconds.
    pub(super) slice_ms: u64,
    /// Measured points with their scores, the best first.
    pub(super) points: Vec<ScoredTunePoint>,
}

/// Result of the search.
#[derive(Clone, Debug)]
pub(super) struct TuneResult {
    pub(super) best: ScoredTunePoint,
    /// The sync default, measured beside the finalists.
    pub(super) baseline: Option<ScoredTunePoint>,
    /// The last comparison, best first.
    pub(super) finalists: Vec<ScoredTunePoint>,
    /// All rungs, the last comparison included.
    pub(super) rungs: Vec<Rung>,
    /// Cost of the search in seconds.
    pub(super) seconds: f64,
    /// Points of the grid that were tried.
    pub(super) tried: usize,
}

/// Result of the full grid.
#[derive(Clone, Debug)]
pub(super) struct GridFound {
    /// Every point once.
    pub(super) sweep: Rung,
    /// The best of them beside the search's choice.
    pub(super) duel: Rung,
    /// The search's choice in that comparison.
    pub(super) found: ScoredTunePoint,
}

/// A search over `grid`, whose first point is the reference.
pub(super) struct PointSearch<'p, 'j, 'm> {
    pub(super) prober: &'p mut Prober<'j, 'm>,
    pub(super) grid: &'p [TunePoint],
    /// Called at the end of each rung.
    pub(super) tell: &'p dyn Fn(&str),
}

impl PointSearch<'_, '_, '_> {
    /// Finds the best point of the grid within the prober's budget.
    ///
    /// # Errors
    /// Returns the errors of measuring. `Unavailable` if not even the default can be served.
    pub(super) fn run(&mut self) -> Result<TuneResult> {
        let budget = self.prober.limit_s;
        let (mut hints, slice) = self.scout()?;
        // The share of the last comparison is reserved, however long the rungs take.
        self.prober.limit_s = budget * (1.0 - FINAL_SHARE - SLACK_SHARE);
        let rungs_s = (self.prober.limit_s - self.prober.journal.spent()).max(0.0);
        let candidates = self.candidates(rungs_s, slice);
        let count = self.rungs(candidates.len());
        let mut rungs: Vec<Rung> = Vec::new();
        let mut standing: Vec<ScoredTunePoint> = Vec::new();
        let mut tried: BTreeSet<TunePoint> = candidates.iter().copied().collect();
        let mut fresh = BTreeSet::new();
        let mut alive = candidates.clone();
        for rung in 0..count {
            let until = self.prober.journal.spent() + rungs_s / count as f64;
            let lenient = 1.0 + LENIENCE / f64::from(1 << rung.min(16));
            let name = format!("round {}", rung + 1);
            let (readings, time) = match rung {
                0 => (self.first_rung(&name, &alive, &hints, slice)?, slice),
                _ => self.further_rung(&name, &alive, &hints, &fresh, until, slice)?,
            };
            let scored = self.scores(&readings, lenient);
            // Points that the budget left unmeasured stay, after the measured ones.
            let unmeasured = standing
                .drain(..)
                .filter(|old| scored.iter().all(|new| new.point != old.point))
                .collect();
            standing = [scored.clone(), unmeasured].concat();
            hints.extend(standing.iter().map(|scored| (scored.point, scored.best.clients)));
            rungs.push(Rung { name, slice_ms: super::journal::millis(time), points: scored });
            let keep = standing.len().div_ceil(2).max(FINALISTS).min(standing.len());
            self.report_rung(&rungs, standing.len(), keep);
            standing.truncate(keep);
            alive = standing.iter().map(|scored| scored.point).collect();
            fresh.clear();
            if rung < JOIN_RUNGS && rung + 1 < count {
                let fits =
                    rungs_s / count as f64 / (STEPS_NEXT * (slice.as_secs_f64() + OVERHEAD_S));
                let free = (fits as usize).saturating_sub(alive.len()).min(JOIN_MAX);
                let joined = self.joined(&standing, &tried, free);
                tried.extend(joined.iter().map(|(point, _)| *point));
                alive.extend(joined.iter().map(|(point, _)| *point));
                fresh.extend(joined.iter().map(|(point, _)| *point));
                hints.extend(joined);
            }
            if self.prober.over() || alive.len() <= FINALISTS {
                break;
            }
        }
        standing.truncate(FINALISTS);
        self.prober.limit_s = budget;
        let finalists = self.final_rung(&standing, slice)?;
        self.found(standing, finalists, rungs, tried.len())
    }

    /// Measures the defaults, to find their number of clients and the time of an answer.
    fn scout(&mut self) -> Result<(BTreeMap<TunePoint, usize>, Duration)> {
        let defaults: Vec<TunePoint> = self.grid.iter().copied().take(2).collect();
        // With little time, one pass must be enough.
        let passes = if self.prober.limit_s < SCOUT_TWICE_S { 1 } else { 2 };
        let readings = self.prober.ladder("scout", &defaults, SCOUT_CLIENTS, passes, SLICE_MIN)?;
        let first =
            readings.get(&defaults[0]).and_then(|all| all.first()).map(|reading| &reading.slice);
        let first = first.cloned().unwrap_or_default();
        if first.qps == 0.0 {
            let why = first.refused.or(first.failure);
            let why = why.unwrap_or_else(|| "no request was answered".into());
            return Err(Error::unavailable(format!("the model cannot be measured: {why}")));
        }
        let answers =
            Duration::from_secs_f64((first.p50_ms / 1e3 * SLICE_ANSWERS).clamp(0.0, 60.0));
        let slice = answers.clamp(SLICE_MIN, SLICE_MAX);
        let scores = self.scores(&readings, 1.0 + LENIENCE);
        let hints = scores.iter().map(|scored| (scored.point, scored.best.clients)).collect();
        Ok((hints, slice))
    }

    /// Returns the number of rungs for `candidates` points, and one more if others will join them.
    fn rungs(&self, candidates: usize) -> usize {
        rungs_for(candidates).max(1) + usize::from(candidates < self.grid.len())
    }

    /// Returns as much of the grid as the first rung can measure in its time. That is the defaults,
    /// and a random choice of the others.
    fn candidates(&self, rungs_s: f64, slice: Duration) -> Vec<TunePoint> {
        let each = STEPS_MEAN * (slice.as_secs_f64() + OVERHEAD_S);
        let fits = |&count: &usize| count as f64 * each <= rungs_s / self.rungs(count) as f64;
        let all = self.grid.len();
        let count = (FINALISTS + 1..=all).rev().find(fits).unwrap_or(all.min(FINALISTS + 1));
        let (defaults, others) = self.grid.split_at(self.grid.len().min(2));
        let mut others = others.to_vec();
        shuffle(&mut others, self.prober.seed);
        let mut chosen = [defaults, &others].concat();
        chosen.truncate(count.max(defaults.len()));
        chosen
    }

    /// Returns at most `most` untried neighbours of the best points. Each has its number of clients
    /// at the first measurement.
    fn joined(
        &self,
        standing: &[ScoredTunePoint],
        tried: &BTreeSet<TunePoint>,
        most: usize,
    ) -> Vec<(TunePoint, usize)> {
        let mut joined: Vec<(TunePoint, usize)> = Vec::new();
        for best in standing.iter().take(JOIN_BEST) {
            for point in neighbours(&best.point, self.grid) {
                let known = tried.contains(&point) || joined.iter().any(|(own, _)| *own == point);
                if !known && joined.len() < most {
                    joined.push((point, best.best.clients));
                }
            }
        }
        joined
    }

    /// Measures the first rung, on which each point of `alive` is measured at growing numbers of
    /// clients. `hints` are the best numbers of clients known so far.
    fn first_rung(
        &mut self,
        name: &str,
        alive: &[TunePoint],
        hints: &BTreeMap<TunePoint, usize>,
        slice: Duration,
    ) -> Result<Readings> {
        let reference = self.grid[0];
        let hint = |merged: bool| {
            let of = |point: &&TunePoint| point.merged == merged;
            self.grid
                .iter()
                .take(2)
                .find(of)
                .and_then(|point| hints.get(point))
                .copied()
                .unwrap_or(1)
        };
        let points: Vec<(TunePoint, usize)> =
            alive.iter().map(|point| (*point, hint(point.merged))).collect();
        // Enough clients for the reference to keep the cores busy, however long its answers then
        // take.
        let busy = hint(false).max(2 * reference.threads);
        self.prober.sweep(name, &points, (reference, busy), slice, STEPS_MAX)
    }

    /// Measures a further rung, until `until_s` seconds of the budget are spent. It has fewer
    /// candidates in the same time, so its slices can be longer than `slice`, the shortest. Returns
    /// their length too. `fresh` are the points of `alive` that were never measured.
    fn further_rung(
        &mut self,
        name: &str,
        alive: &[TunePoint],
        hints: &BTreeMap<TunePoint, usize>,
        fresh: &BTreeSet<TunePoint>,
        until_s: f64,
        slice: Duration,
    ) -> Result<(Readings, Duration)> {
        let clients = |point: &TunePoint| {
            let hint = hints.get(point).copied().unwrap_or(1);
            // A point that was never measured has the number of its neighbour, and may need more.
            let more = fresh.contains(point).then(|| 2 * hint).filter(|more| LADDER.contains(more));
            around(hint).into_iter().chain(more).collect()
        };
        let points: Vec<(TunePoint, Vec<usize>)> =
            alive.iter().map(|point| (*point, clients(point))).collect();
        let time = slice_for(&points, until_s - self.prober.journal.spent(), slice);
        Ok((self.prober.interleave(name, &points, PASSES_MAX, time, until_s)?, time))
    }

    /// Runs the final rung. It compares the best points of `standing` and the default, with slices
    /// of about `slice`. Each point is measured at all numbers of clients around the best number of
    /// any of them.
    fn final_rung(&mut self, standing: &[ScoredTunePoint], slice: Duration) -> Result<Rung> {
        let name = "final".to_owned();
        let mut points: Vec<TunePoint> = standing.iter().map(|scored| scored.point).collect();
        if !points.contains(&self.grid[0]) {
            points.push(self.grid[0]);
        }
        let bests = standing.iter().map(|scored| scored.best.clients);
        let top = bests.clone().max().unwrap_or(1) * 2;
        let mut clients: Vec<usize> = bests.flat_map(around).collect();
        // The powers of two only serve the chart; they are left out if time is short.
        let left = self.prober.limit_s - self.prober.journal.spent();
        let line = LADDER.into_iter().filter(|&c| c <= top && c.is_power_of_two());
        let slices = (line.clone().count() + clients.len()) * points.len();
        if slices as f64 * (slice.as_secs_f64() + OVERHEAD_S) < left / 2.0 {
            clients.extend(line);
        }
        clients.sort_unstable();
        clients.dedup();
        let sets: Vec<(TunePoint, Vec<usize>)> =
            points.iter().map(|point| (*point, clients.clone())).collect();
        let time = slice_for(&sets, left, slice);
        let until = self.prober.limit_s;
        let readings = self.prober.interleave(&name, &sets, PASSES_MAX, time, until)?;
        Ok(Rung {
            name,
            slice_ms: super::journal::millis(time),
            points: self.scores(&readings, 1.0),
        })
    }

    /// Chooses the best of the compared points and the default, and builds the result. `tried` is
    /// the number of points that were measured.
    fn found(
        &self,
        mut standing: Vec<ScoredTunePoint>,
        last: Rung,
        mut rungs: Vec<Rung>,
        tried: usize,
    ) -> Result<TuneResult> {
        // The rungs were lenient to keep points. The result is not.
        self.rescore(&mut standing);
        rungs.iter_mut().for_each(|rung| self.rescore(&mut rung.points));
        // Without time for the last comparison, the last rung decides.
        let compared =
            standing.iter().all(|one| last.points.iter().any(|other| other.point == one.point));
        if compared {
            rungs.push(last.clone());
        }
        let of_baseline =
            |rung: &Rung| rung.points.iter().find(|s| s.point == self.grid[0]).cloned();
        let baseline = rungs.iter().rev().find_map(of_baseline);
        let mut finalists = if compared { last.points } else { standing };
        // The default may have met the target on an earlier rung, when none of the others does.
        finalists.extend(
            baseline.clone().filter(|sync| finalists.iter().all(|s| s.point != sync.point)),
        );
        ScoredTunePoint::rank(&mut finalists);
        let best = finalists.first().cloned().ok_or_else(|| {
            Error::deadline("the time was over before anything was measured; give more with --time")
        })?;
        // Points without failures rank before it.
        if best.best.failed > 0 {
            let why = best.refused.or(best.failure).unwrap_or_else(|| "no answer came".into());
            return Err(Error::precondition(format!(
                "requests failed with every configuration that was compared, so none is chosen: {why}; give requests \
                 that the model answers by --requests or --dims, with --fresh"
            )));
        }
        Ok(TuneResult {
            best,
            baseline,
            finalists,
            rungs,
            seconds: self.prober.journal.spent(),
            tried,
        })
    }

    /// Scores all readings, best first. `lenient` multiplies the target.
    fn scores(&self, readings: &Readings, lenient: f64) -> Vec<ScoredTunePoint> {
        let target = self.prober.target_ms * lenient;
        let mut all: Vec<ScoredTunePoint> = readings
            .iter()
            .filter_map(|(point, read)| ScoredTunePoint::new(*point, read, target))
            .collect();
        ScoredTunePoint::rank(&mut all);
        all
    }

    /// Scores `points` for the target itself, and ranks them.
    fn rescore(&self, points: &mut Vec<ScoredTunePoint>) {
        let target = self.prober.target_ms;
        *points = points.drain(..).map(|scored| scored.rescored(target)).collect();
        ScoredTunePoint::rank(points);
    }

    /// Prints the best point of the last rung. `of` points were measured, and `kept` continue.
    fn report_rung(&self, rungs: &[Rung], of: usize, kept: usize) {
        let (Some(rung), spent) = (rungs.last(), self.prober.journal.spent()) else { return };
        let best = rung.points.first().map(|scored| {
            let ScoredTunePoint { point, best, .. } = scored;
            let rate = per_second(best.qps);
            format!("; best {rate}/s, p99 {:.2} ms: {point}", best.p99_ms)
        });
        (self.tell)(&format!(
            "{:>5.0} s  {}: {of} candidates, {kept} kept{}",
            spent,
            rung.name,
            best.unwrap_or_default()
        ));
    }
}

/// Returns the rungs until few of `candidates` are left.
fn rungs_for(candidates: usize) -> usize {
    let mut rungs = 0;
    let mut left = candidates;
    while left > FINALISTS {
        left = left.div_ceil(2).max(FINALISTS);
        rungs += 1;
    }
    rungs
}

/// Returns the longest slice that leaves time for three passes.
fn slice_for(points: &[(TunePoint, Vec<usize>)], seconds: f64, min: Duration) -> Duration {
    let slices = 3 * points.iter().map(|(_, clients)| clients.len()).sum::<usize>().max(1);
    let each = (seconds / slices as f64 - OVERHEAD_S).clamp(0.0, 60.0);
    Duration::from_millis((each * 1e3) as u64).clamp(min, SLICE_MAX.max(min))
}

mod full;

#[cfg(test)]
mod tests;
