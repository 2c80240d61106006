//! The exact stage: reads the records of candidates and scores them as they arrive.
//!
//! # How a slow medium keeps up with a fast one
//! All candidates of a query are known before the first is scored, so their reads are independent.
//! A [`Searcher`]
//!
//! - joins reads of candidates that share a page or are neighbours,
//! - skips reads that the cache of blocks of a file can serve,
//! - looks small reads up in the `RecordCache`,
//! - keeps a bounded number of reads in flight,
//! - scores cached records meanwhile, and records in the order of their arrival,
//! - skips records whose bound is below the k-th best score.
//!
//! Two to four queries are in progress at once, the oldest first. So the processor has records to
//! score while a query waits for its first reads. The remaining cost of the medium is the processor
//! time of a read, a few microseconds, shared by the candidates it serves.
//!
//! # Verification
//! A page read from a device is verified each time. A page in memory is verified on first use after
//! its file was opened or its block was read. Damaged records are skipped and reported, and the
//! result is marked as partial. They never fail a query.
//!
//! # Invariant
//! A result does not depend on the medium, the caches, the order of completions or other queries.
//! It is the k best by score, then segment, then row.

mod blocks;
pub(crate) mod cache;
mod checked;
mod fill;
mod flight;
mod hash;
mod limits;
mod plan;
mod query;
mod ranking;
mod reads;
mod searcher;

use std::sync::Arc;

use base::Result;
use storage::Sealed;

pub use blocks::{BLOCK_BYTES, BlockStats};
pub use cache::CacheStats;
pub use limits::{IN_FLIGHT_MAX, SearchLimits, SharedCaches};
pub use query::{
    CandidateChunks, ChunkProgress, DamagedRecord, NextQuery, QuerySource, RerankQuery,
    RerankResult, all,
};
pub use searcher::Searcher;

/// Scorer of records. One scorer serves one query. Threads bring their own scratch.
pub trait Scorer: Send + Sync {
    /// Working memory of one thread, reused for all records.
    type Scratch: Send;

    /// Creates working memory.
    fn scratch(&self) -> Self::Scratch;

    /// Returns the similarity of the query and the record. Higher is more similar. It is never NaN.
    ///
    /// # Errors
    /// `DataLoss` if the record is invalid.
    fn score(&self, record: &[u8], scratch: &mut Self::Scratch) -> Result<f32>;

    /// Returns an upper bound of the score of a record with this coarse score. Infinite if unknown.
    fn bound(&self, _coarse: f32) -> f32 {
        f32::INFINITY
    }
}

impl<S: Scorer + ?Sized> Scorer for &S {
    type Scratch = S::Scratch;

    fn scratch(&self) -> Self::Scratch {
        (**self).scratch()
    }

    fn score(&self, record: &[u8], scratch: &mut Self::Scratch) -> Result<f32> {
        (**self).score(record, scratch)
    }

    fn bound(&self, coarse: f32) -> f32 {
        (**self).bound(coarse)
    }
}

impl<S: Scorer + ?Sized> Scorer for Arc<S> {
    type Scratch = S::Scratch;

    fn scratch(&self) -> Self::Scratch {
        (**self).scratch()
    }

    fn score(&self, record: &[u8], scratch: &mut Self::Scratch) -> Result<f32> {
        (**self).score(record, scratch)
    }

    fn bound(&self, coarse: f32) -> f32 {
        (**self).bound(coarse)
    }
}

/// Location of a record in its segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Offset of its first page, in bytes, a multiple of 4096.
    pub offset: u64,
    /// Bytes to read: one page, or more for a long record.
    pub bytes: u32,
    /// Index of the record in the page.
    pub slot: u16,
}

/// Records of one segment.
pub trait Records: Send + Sync {
    /// Returns the file of the segment, which holds the records.
    fn file(&self) -> &Arc<dyn Sealed>;

    /// Returns the location of the record of `row`, or `None` if the row does not exist.
    fn locate(&self, row: u32) -> Option<Address>;

    /// Returns the offset of page number 0, if page numbers should be verified.
    fn pages_start(&self) -> Option<u64> {
        None
    }
}

/// Candidate of the coarse stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RerankCandidate {
    /// Index of the segment in the query.
    pub segment: u32,
    /// Row of the segment.
    pub row: u32,
    /// Id of the point. It decides between hits of equal scores.
    pub id: u64,
    /// Coarse score. Higher is more similar.
    pub coarse: f32,
}
