//! Preload: reads embeddings and payloads of a segment into memory that nothing else uses, one part
//! after the other, before requests read their pages one by one.

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

/// Section of a segment that can be cached as a whole.
pub(super) trait CacheableSection {
    /// Returns the bytes of memory that all of its blocks would take.
    fn cached_bytes_max(&self) -> u64;

    /// Returns the share of its blocks that are cached, estimated from [`SAMPLES`] of them; 0 if it
    /// has none.
    fn cached_share(&self) -> f64;

    /// Returns the reads of requests from the medium since the last preload began.
    fn missed(&self) -> u64;

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
    /// Returns the sections that can be preloaded; none if the medium is mapped memory.
    fn cacheable(&self) -> impl Iterator<Item = &dyn CacheableSection> {
        let sections: [&dyn CacheableSection; 2] = [&self.vectors, &self.payloads];
        let is_cached = self.file.in_place().is_none();
        sections.into_iter().filter(move |_| is_cached)
    }

    /// Returns the sections that requests have often read from the medium.
    fn missed(&self) -> impl Iterator<Item = &dyn CacheableSection> {
        self.cacheable().filter(|section| section.missed() >= MISSED_MIN)
    }

    /// Returns the bytes of memory for the blocks that are not cached, of all sections that
    /// requests have often read from the medium. The bytes are estimated.
    pub(crate) fn missed_bytes(&self) -> u64 {
        let missing = |section: &dyn CacheableSection| {
            (section.cached_bytes_max() as f64 * (1.0 - section.cached_share())) as u64
        };
        self.missed().map(missing).sum()
    }

    /// Caches the blocks of [`Segment::missed_bytes`] while memory has room. Calls `step` with the
    /// bytes before each read.
    ///
    /// # Errors
    /// The error of `step`, or of the medium.
    pub(crate) fn preload_missed(&self, step: IoStep<'_>) -> Result<()> {
        self.missed().try_for_each(|section| section.preload(&*self.file, step))
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
