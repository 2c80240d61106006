//! Preload. Reads embeddings, payloads and the payload index of a segment into memory that nothing
//! else uses. It reads one part after the other, before requests read their pages one by one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::Result;
use storage::Sealed;

use super::Segment;
use super::file::IoStep;

/// Reads of requests from the medium after which a section is preloaded. Four searches for ten hits
/// read as many pages.
const MISSED_MIN: u64 = 64;
/// Blocks of a section that are checked to estimate the cached share.
pub(super) const SAMPLES: usize = 128;
/// Share of the replaced segments' blocks from which the blocks of the new one are preloaded.
const SHARE_MIN: f64 = 0.5;

/// Sections to preload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreloadScope {
    /// Sections that requests have often read from the medium.
    Missed,
    /// Sections that were never preloaded too.
    All,
}

/// Preloads of a section, and reads of requests that missed its blocks.
#[derive(Debug, Default)]
pub(super) struct PreloadState {
    /// Reads of requests from the medium since the last preload began.
    missed: AtomicU64,
    /// True if a preload has begun.
    done: AtomicBool,
}

impl PreloadState {
    /// Counts a read of a request from the medium.
    pub(super) fn count_missed(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a preload begins.
    pub(super) fn begin(&self) {
        self.missed.store(0, Ordering::Relaxed);
        self.done.store(true, Ordering::Relaxed);
    }

    pub(super) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

/// Section of a segment that can be cached as a whole.
pub(super) trait CacheableSection {
    /// Returns the bytes of memory that all of its blocks would take.
    fn cached_bytes_max(&self) -> u64;

    /// Returns the share of its blocks that are cached, estimated from [`SAMPLES`] of them, or 0 if
    /// it has none.
    fn cached_share(&self) -> f64;

    /// Returns what was preloaded, and what requests have missed since then.
    fn preload_state(&self) -> &PreloadState;

    /// Caches the blocks that are not cached yet, until memory has no room for the next one. Calls
    /// `step` with the bytes before each read. Damaged blocks are left to the requests that need
    /// them, which report them.
    ///
    /// # Errors
    /// The error of `step`, or of the medium.
    fn preload(&self, file: &dyn Sealed, step: IoStep<'_>) -> Result<()>;
}

/// Returns the cached share of a section whose blocks begin with the pages that `first_page`
/// returns for 0 to `blocks`.
pub(super) fn sampled_share(
    blocks: usize,
    first_page: impl Fn(usize) -> usize,
    has: impl Fn(usize) -> bool,
) -> f64 {
    let step = blocks.div_ceil(SAMPLES).max(1);
    let sampled = (0..blocks).step_by(step);
    let count = sampled.len();
    let cached = sampled.filter(|block| has(first_page(*block))).count();
    if count == 0 { 0.0 } else { cached as f64 / count as f64 }
}

impl Segment {
    /// Returns a section that `scope` includes and whose missing blocks fit into `room` bytes.
    fn wanted(&self, scope: PreloadScope, room: u64) -> Option<&dyn CacheableSection> {
        let wants = |section: &&dyn CacheableSection| {
            let preload = section.preload_state();
            let is_missed = preload.missed() >= MISSED_MIN;
            is_missed || (scope == PreloadScope::All && !preload.is_done())
        };
        let missing = |section: &dyn CacheableSection| {
            (section.cached_bytes_max() as f64 * (1.0 - section.cached_share())) as u64
        };
        self.cacheable().filter(wants).find(|section| (1..=room).contains(&missing(*section)))
    }

    /// Returns true if it has a section that `scope` includes, that is not cached as a whole, and
    /// that fits into `room` bytes. The bytes are estimated.
    pub(crate) fn wants_preload(&self, scope: PreloadScope, room: u64) -> bool {
        self.wanted(scope, room).is_some()
    }

    /// Caches the section of [`Segment::wants_preload`] while memory has room. Calls `step` with
    /// the bytes before each read.
    ///
    /// # Errors
    /// The error of `step`, or of the medium.
    pub(crate) fn preload(&self, scope: PreloadScope, room: u64, step: IoStep<'_>) -> Result<()> {
        match self.wanted(scope, room) {
            Some(section) => section.preload(&*self.file, step),
            None => Ok(()),
        }
    }

    /// Caches those sections of this new segment that are mostly cached of the segments it
    /// replaces, while memory has room. Calls `step` with the bytes before each read.
    ///
    /// # Errors
    /// The error of `step`, or of the medium.
    pub(crate) fn preload_as(&self, replaced: &[&Segment], step: IoStep<'_>) -> Result<()> {
        let rows: f64 = replaced.iter().map(|segment| f64::from(segment.rows())).sum();
        for (number, section) in self.cacheable().enumerate() {
            let cached: f64 = replaced
                .iter()
                .filter_map(|segment| Some((segment, segment.cacheable().nth(number)?)))
                .map(|(segment, section)| f64::from(segment.rows()) * section.cached_share())
                .sum();
            if rows > 0.0 && cached / rows >= SHARE_MIN {
                section.preload(&*self.file, step)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cached_share_is_estimated_from_samples() {
        let share = |blocks, has: &dyn Fn(usize) -> bool| sampled_share(blocks, |at| at * 2, has);
        assert_eq!(share(0, &|_| true), 0.0);
        assert_eq!(share(3, &|page| page == 4), 1.0 / 3.0);
        let half = share(100_000, &|page| page < 100_000);
        assert!((half - 0.5).abs() < 0.02, "{half}");
    }
}
