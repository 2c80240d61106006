//! Limits of searches, and the scores and numbers of candidates that hold by default.

use base::{Error, Result};
use image_features::settings::ImageKind;
use search::collection::{CANDIDATES_MAX, PRINT_CANDIDATES_MAX};

/// Maximum hits of one response.
pub const HITS_MAX: usize = 1000;
/// Default number of candidates that the exact stage compares. Embeddings of photographs of one
/// object are near each other.
const PHOTO_CANDIDATES: usize = 100;
/// Divisor of a collection's fingerprints that are compared by default, the best by the index of
/// their edges: 1 % (`docs/adr/0020-fingerprint-index.md`).
const PRINTS_SHARE: u64 = 100;
/// Minimum fingerprints that are compared by default: all of a small collection. They take a tenth
/// of a second.
const PRINTS_LEAST: u64 = 4096;
/// Minimum fingerprints that a shard compares of the candidates that a request names.
const SHARD_PRINTS_LEAST: usize = 16;

/// Returns the smallest score at which an image of this kind shows the same subject as a query that
/// was searched among `images` images. A fingerprint needs a higher score in a larger collection.
pub fn accept_score(kind: ImageKind, images: u64) -> f32 {
    match kind {
        ImageKind::Photo => vision::photo::ACCEPT,
        ImageKind::Fingerprint => vision::fingerprint::accept_among(images),
    }
}

/// Checks the smallest score of an accepted image that a request names.
///
/// # Errors
/// `InvalidArgument` for a number that is not finite.
pub fn check_threshold(threshold: Option<f32>) -> Result<()> {
    if threshold.is_none_or(f32::is_finite) {
        return Ok(());
    }
    Err(Error::invalid("threshold= is not a finite 32-bit number"))
}

/// Returns the number of images that a search compares by default. Large collections of
/// fingerprints compare more: one in a hundred.
pub fn default_candidates(kind: ImageKind) -> usize {
    match kind {
        ImageKind::Photo => PHOTO_CANDIDATES,
        ImageKind::Fingerprint => PRINTS_LEAST as usize,
    }
}

/// Returns the maximum number of images that a search compares.
pub fn candidates_max(kind: ImageKind) -> usize {
    match kind {
        ImageKind::Photo => CANDIDATES_MAX,
        ImageKind::Fingerprint => PRINT_CANDIDATES_MAX,
    }
}

/// Checks the numbers of a search.
///
/// # Errors
/// `InvalidArgument` for numbers out of range.
pub fn check_search_limits(kind: ImageKind, k: usize, candidates: usize) -> Result<()> {
    let most = candidates_max(kind);
    if (1..=HITS_MAX).contains(&k) && (1..=most).contains(&candidates) {
        return Ok(());
    }
    Err(Error::invalid(format!("k is 1 to {HITS_MAX} and candidates 1 to {most}")))
}

/// Number of candidates of a query.
pub(crate) struct CandidateLimit {
    pub(crate) most: usize,
    /// True if the limit is below the share that should be compared.
    pub(crate) cut: bool,
}

impl CandidateLimit {
    /// Returns the limit of a collection of `rows` images. `wanted` is the value in the request.
    ///
    /// # Errors
    /// `InvalidArgument` for numbers out of range.
    pub(crate) fn new(
        kind: ImageKind,
        rows: u64,
        k: usize,
        wanted: Option<usize>,
    ) -> Result<CandidateLimit> {
        let default = match kind {
            ImageKind::Photo => PHOTO_CANDIDATES as u64,
            ImageKind::Fingerprint => prints_compared(rows, 1),
        };
        let limit = match wanted {
            Some(most) => CandidateLimit { most, cut: false },
            None => CandidateLimit::default_of(kind, default),
        };
        check_search_limits(kind, k, limit.most)?;
        Ok(limit)
    }

    /// Returns the limit of one of `shards` shards of a collection of fingerprints. The shard has
    /// `rows` of them. `wanted` is the number of the whole collection that the request names.
    ///
    /// # Errors
    /// `InvalidArgument` for numbers out of range.
    pub(crate) fn of_shard(
        rows: u64,
        k: usize,
        wanted: Option<usize>,
        shards: u32,
    ) -> Result<CandidateLimit> {
        let kind = ImageKind::Fingerprint;
        check_search_limits(kind, k, wanted.unwrap_or(1))?;
        if shards == 0 {
            return Err(Error::invalid("a collection has at least 1 shard"));
        }
        let Some(wanted) = wanted else {
            return Ok(CandidateLimit::default_of(kind, prints_compared(rows, shards)));
        };
        let most = wanted.div_ceil(shards as usize).max(SHARD_PRINTS_LEAST);
        Ok(CandidateLimit { most, cut: false })
    }

    fn default_of(kind: ImageKind, wanted: u64) -> CandidateLimit {
        let most = candidates_max(kind);
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        CandidateLimit { most: wanted.min(most), cut: wanted > most }
    }
}

/// Returns the number of fingerprints that a search compares by default in each of `shards` shards
/// of `rows` fingerprints.
fn prints_compared(rows: u64, shards: u32) -> u64 {
    (rows / PRINTS_SHARE).max(PRINTS_LEAST.div_ceil(u64::from(shards)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(rows: u64, wanted: Option<usize>, shards: u32) -> usize {
        CandidateLimit::of_shard(rows, 1, wanted, shards).unwrap().most
    }

    #[test]
    fn a_threshold_is_a_finite_number() {
        for wrong in [f32::NAN, f32::INFINITY] {
            assert!(check_threshold(Some(wrong)).is_err());
        }
        assert!(check_threshold(Some(7.0)).is_ok() && check_threshold(None).is_ok());
    }

    #[test]
    fn small_collections_of_fingerprints_are_compared_whole() {
        assert_eq!(prints_compared(10, 1), PRINTS_LEAST);
        assert_eq!(prints_compared(1_000_000, 1), 10_000);
        assert!(prints_compared(10_000_000, 1) > PRINT_CANDIDATES_MAX as u64);
        let whole = CandidateLimit::new(ImageKind::Fingerprint, 10_000_000, 1, None).unwrap();
        assert!(whole.cut && whole.most == PRINT_CANDIDATES_MAX);
        let few = CandidateLimit::new(ImageKind::Fingerprint, 10_000_000, 1, Some(7)).unwrap();
        assert!(!few.cut && few.most == 7);
    }

    #[test]
    fn shards_share_the_candidates() {
        assert_eq!(shard(10, None, 4), 1024);
        assert_eq!(shard(10, None, 3), 1366);
        assert_eq!(shard(1_000_000, None, 4), 10_000);
        assert_eq!(shard(1_000_000, Some(1000), 4), 250);
        assert_eq!(shard(1_000_000, Some(1001), 4), 251);
        assert_eq!(shard(1_000_000, Some(8), 4), SHARD_PRINTS_LEAST);
        let cut = CandidateLimit::of_shard(10_000_000, 1, None, 2).unwrap();
        assert!(cut.cut && cut.most == PRINT_CANDIDATES_MAX);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for kind in [ImageKind::Photo, ImageKind::Fingerprint] {
            let most = candidates_max(kind);
            assert!(CandidateLimit::new(kind, 0, HITS_MAX, Some(most)).is_ok());
            for (k, candidates) in [(0, 1), (HITS_MAX + 1, 1), (1, 0), (1, most + 1)] {
                assert!(CandidateLimit::new(kind, 0, k, Some(candidates)).is_err());
            }
        }
        assert!(CandidateLimit::of_shard(1, 1, None, 0).is_err());
        assert!(CandidateLimit::of_shard(1, 0, None, 1).is_err());
        assert!(CandidateLimit::of_shard(1, 1, Some(PRINT_CANDIDATES_MAX + 1), 9).is_err());
    }
}
