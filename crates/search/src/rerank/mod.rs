//! The exact stage: candidates' records are read, and scored as they arrive.
//!
//! # How a slow medium keeps up with a fast one
//! All candidates of a query are known before the first is scored, so their reads need not wait for each other. A
//! [`Searcher`] makes one read of those that share a page or lie side by side, leaves out what the cache of whole
//! [blocks] of a file has, looks up those for which that is still a read of few in the record [`RecordCache`](cache::Cache),
//! keeps a bounded number of reads in flight, scores what the caches had meanwhile, and what has arrived in the order
//! in which it arrived. Two to four queries are under way at once, the oldest first, so that the
//! processor has something to score while a query waits for its first reads. A record whose bound is below the k-th
//! best score is neither read nor scored. What is left of the medium's cost is the processor time of a read, a few
//! microseconds, shared by the candidates it serves.
//!
//! # What is verified
//! A page that came from a device: each time. A page in memory: when first used after its file was opened, or its block
//! was read. What is
//! damaged is left out and named, and the answer marked as partial; it never fails a query.
//!
//! # Invariant
//! An answer does not depend on the medium, the cache, the order of completions or what else is under way: it is the k
//! best by score, then segment, then row.

mod blocks;
pub mod cache;
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
pub use cache::{CacheStats, RecordCache, RecordKey};
pub use limits::{IN_FLIGHT_MAX, QUERIES_MAX, READ_BYTES_MAX, SearchLimits, SharedCaches};
pub use query::{
    CandidateChunks, ChunkProgress, DAMAGED_MAX, DamagedRecord, NextQuery, QuerySource, RerankQuery,
    RerankResult, all,
};
pub use searcher::Searcher;

/// How a query scores a record. One scorer serves one query; threads bring their own scratch.
pub trait Scorer: Send + Sync {
    /// Working memory of one thread, reused from record to record.
    type Scratch: Send;

    /// Fresh working memory.
    fn scratch(&self) -> Self::Scratch;

    /// How alike the query and the record are; higher is more alike, never NaN.
    ///
    /// # Errors
    /// `DataLoss` where the record is not what it should be.
    fn score(&self, record: &[u8], scratch: &mut Self::Scratch) -> Result<f32>;

    /// The most that a record with this coarse score can reach. Infinite where nothing is known.
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

/// Where a record lies in its segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The offset of its first page, in bytes; a multiple of 4096.
    pub offset: u64,
    /// Bytes to read: one page, or as many as a long record takes.
    pub bytes: u32,
    /// Which record of the page it is.
    pub slot: u16,
}

/// The records of one segment.
pub trait Records: Send + Sync {
    /// The file that holds them.
    fn file(&self) -> &Arc<dyn Sealed>;

    /// Where the record of `row` lies; `None` for a row that is not there.
    fn locate(&self, row: u32) -> Option<Address>;

    /// The offset of the page with number 0, where pages shall be checked to be those that were asked for.
    fn pages_start(&self) -> Option<u64> {
        None
    }
}

/// What the coarse stage found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RerankCandidate {
    /// Which of the query's segments.
    pub segment: u32,
    /// Which row of it.
    pub row: u32,
    /// The coarse score; higher is more alike.
    pub coarse: f32,
}
