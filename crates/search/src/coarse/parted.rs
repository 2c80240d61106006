//! Lists of one search, scanned by several threads.
//!
//! The thread that searches claims parts like every helper. Each collects its own best rows, and
//! the owner joins them. The best rows of all lists do not depend on who scanned which, so the
//! result is the same with any number of threads.

use std::sync::Arc;

use base::Result;
use parking_lot::Mutex;

use crate::parts::{PartsHelper, SharedParts};

/// Rows of the probed lists from which parts are offered. A core scans them in about the
/// time that an idle thread takes to wake up.
const ROWS_MIN: usize = 16 << 10;
/// Rows of a part, so that claims cost little.
const PART_ROWS: usize = 4 << 10;

/// Idle threads that may scan lists of a search.
pub trait ScanHelpers {
    /// Returns the number of threads that are not busy with a query.
    fn idle(&self) -> usize;

    /// Offers `scan` to up to `count` threads. A thread that accepts the offer calls
    /// [`super::Coarse::scan_parts`] of the same index with the same allowed rows. Threads may
    /// accept late or never.
    fn offer(&self, count: usize, scan: Arc<PartedScan>);
}

/// Lists to scan, and the rows that helpers found.
#[derive(Debug)]
pub struct PartedScan {
    /// Query as the index compares it.
    pub(super) query: Vec<f32>,
    /// Cost of the centre, and number, of each list.
    lists: Vec<(f32, u32)>,
    /// Lists of a part.
    step: usize,
    /// Rows that each thread keeps.
    pub(super) kept: usize,
    parts: SharedParts,
    found: Mutex<Vec<(f32, u32)>>,
}

impl PartedScan {
    /// Offers the scan of `lists`, which have `rows` rows together. Returns `None` if the caller
    /// should scan them alone: they are short, or no thread is idle.
    pub(super) fn offer(
        helpers: Option<&dyn ScanHelpers>,
        query: &[f32],
        lists: &[(f32, u32)],
        rows: usize,
        kept: usize,
    ) -> Option<Arc<PartedScan>> {
        let helpers = helpers.filter(|_| rows >= ROWS_MIN && lists.len() > 1)?;
        let idle = helpers.idle();
        if idle == 0 {
            return None;
        }
        let step = (lists.len() * PART_ROWS / rows).max(1);
        let count = lists.len().div_ceil(step);
        let scan = Arc::new(PartedScan {
            query: query.to_vec(),
            lists: lists.to_vec(),
            step,
            kept,
            parts: SharedParts::new(count),
            found: Mutex::default(),
        });
        helpers.offer(idle.min(count - 1), scan.clone());
        Some(scan)
    }

    /// Returns true if a part is left.
    pub(crate) fn is_left(&self) -> bool {
        self.parts.is_left()
    }

    /// Returns the next lists, or `None` if all are claimed.
    pub(super) fn claim(&self) -> Option<&[(f32, u32)]> {
        let start = self.parts.claim()? * self.step;
        Some(&self.lists[start..self.lists.len().min(start + self.step)])
    }

    /// Registers a helper before its first claim.
    pub(super) fn enter(&self) -> PartsHelper<'_> {
        self.parts.enter()
    }

    /// Adds the best rows of a helper: cost and row.
    pub(super) fn add(&self, found: impl Iterator<Item = (f32, u32)>) {
        self.found.lock().extend(found);
    }

    /// Waits for the helpers and returns the rows that they added.
    ///
    /// # Errors
    /// `Internal` if a helper panicked.
    pub(super) fn finish(&self) -> Result<Vec<(f32, u32)>> {
        self.parts.wait()?;
        Ok(std::mem::take(&mut *self.found.lock()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::coarse::{
        BuildThreads, Coarse, CoarseBuild, CoarseKind, CoarseRequest, CoarseScratch, Metric,
        ScanParams, build,
    };
    use crate::filter::RowSet;

    const DIMS: usize = 8;
    const ROWS: usize = 20_000;

    /// Helper that comes at once and leaves after some parts.
    struct EagerHelper<'a> {
        index: &'a dyn Coarse,
        allow: Option<&'a RowSet>,
        parts: usize,
        done: AtomicUsize,
    }

    impl ScanHelpers for EagerHelper<'_> {
        fn idle(&self) -> usize {
            1
        }

        fn offer(&self, _: usize, scan: Arc<PartedScan>) {
            let checks = AtomicUsize::new(0);
            let leave = || checks.fetch_add(1, Ordering::Relaxed) >= self.parts;
            let mut scratch = CoarseScratch::default();
            let parts = self.index.scan_parts(&scan, self.allow, &mut scratch, &leave);
            self.done.fetch_add(parts, Ordering::Relaxed);
        }
    }

    #[test]
    fn helpers_do_not_change_the_rows_of_lists() {
        // Few distinct values, so that many costs are equal.
        let value = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 8;
        let vectors: Vec<f32> = (0..(ROWS * DIMS) as u64).map(|at| value(at) as f32).collect();
        let crew = BuildThreads::of(2);
        let plan = CoarseBuild { vectors: &vectors, dims: DIMS, metric: Metric::L2, crew, seed: 1 };
        let index = build(CoarseKind::IvfPq, &plan).unwrap().index;
        let allow = RowSet::from_rows(ROWS as u32, (0..ROWS as u32).filter(|row| row % 5 != 0));
        let params = ScanParams { probes: 100_000, refine: 60 };
        let mut scratch = CoarseScratch::default();
        for query in vectors.chunks_exact(DIMS).step_by(1999) {
            for (parts, allow) in [(0, None), (1, None), (3, Some(&allow)), (99, None)] {
                let request = CoarseRequest { params, allow, ..CoarseRequest::best(10) };
                let mut alone = Vec::new();
                index.search(query, &request, &mut scratch, &mut alone).unwrap();
                let done = AtomicUsize::new(0);
                let helper = EagerHelper { index: &*index, allow, parts, done };
                let request = CoarseRequest { helpers: Some(&helper), ..request };
                let mut helped = Vec::new();
                index.search(query, &request, &mut scratch, &mut helped).unwrap();
                assert_eq!(helped, alone);
                let done = helper.done.load(Ordering::Relaxed);
                assert!(done == parts || parts == 99 && done >= 4, "{done} of {parts}");
            }
        }
    }
}
