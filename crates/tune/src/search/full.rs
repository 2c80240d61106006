//! The full grid, measured after the search to compare its result with the best.

use std::time::Duration;

use base::{Error, Result};

use super::{FINALISTS, GridFound, PointSearch, Rung};
use crate::journal::millis;
use crate::probe::{LADDER, around};
use crate::score::ScoredTunePoint;
use crate::space::TunePoint;

/// Length of a slice of the full grid.
const GRID_SLICE: Duration = Duration::from_millis(300);
/// Number of passes of the last comparison.
const GRID_PASSES: usize = 5;

impl PointSearch<'_, '_, '_> {
    /// Measures every point of the grid, however long it takes, then the best of them beside
    /// `found`.
    ///
    /// # Errors
    /// Returns the errors of measuring.
    pub(crate) fn full_grid(&mut self, found: &ScoredTunePoint) -> Result<GridFound> {
        self.prober.limit_s = f64::INFINITY;
        let reference = (
            self.grid[0],
            found.best.clients.clamp(2 * self.grid[0].threads, 64.max(2 * self.grid[0].threads)),
        );
        let points: Vec<(TunePoint, usize)> =
            self.grid.iter().map(|p| (*p, found.best.clients)).collect();
        let readings = self.prober.sweep("grid", &points, reference, GRID_SLICE, LADDER.len())?;
        let sweep = Rung {
            name: "grid".into(),
            slice_ms: millis(GRID_SLICE),
            points: self.scores(&readings, 1.0),
        };
        let mut rivals: Vec<&ScoredTunePoint> = sweep.points.iter().take(FINALISTS).collect();
        if rivals.iter().all(|rival| rival.point != found.point) {
            rivals.push(found);
        }
        let mut clients: Vec<usize> = rivals
            .iter()
            .map(|rival| rival.best.clients)
            .chain([found.best.clients])
            .flat_map(around)
            .collect();
        clients.sort_unstable();
        clients.dedup();
        let sets: Vec<(TunePoint, Vec<usize>)> =
            rivals.iter().map(|rival| (rival.point, clients.clone())).collect();
        let readings =
            self.prober.interleave("duel", &sets, GRID_PASSES, GRID_SLICE * 2, f64::INFINITY)?;
        let points = self.scores(&readings, 1.0);
        let own = points.iter().find(|scored| scored.point == found.point).cloned();
        let found =
            own.ok_or_else(|| Error::internal("the search's choice was not measured again"))?;
        let slice_ms = millis(GRID_SLICE * 2);
        Ok(GridFound { sweep, duel: Rung { name: "duel".into(), slice_ms, points }, found })
    }
}
