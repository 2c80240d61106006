//! Queries and results of a searcher.

use std::sync::Arc;
use std::time::Instant;

use base::Error;

use super::ranking::order;
use super::{Records, RerankCandidate, Scorer};

/// Result of [`CandidateChunks::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkProgress {
    /// There may be more candidates, so call again.
    More,
    /// No candidates yet. The coarse stage is still working.
    Later,
    /// These were the last.
    End,
}

/// Maximum candidates of a query without a score. At this number, no candidates are fetched. The
/// limit of reads does not bound them, because one read can have many records.
pub(super) const UNSCORED_MAX: u64 = 128;

/// Candidates as the coarse stage finds them. Best first is fastest, because the k-th best score
/// then rises soonest, but any order gives the same result. Duplicates are ranked once.
pub trait CandidateChunks: Send {
    /// Appends the next candidates to `out`. With `wait` it may block until there are some, because
    /// the caller has no other work. Otherwise it must return at once.
    fn next(&mut self, out: &mut Vec<RerankCandidate>, wait: bool) -> ChunkProgress;

    /// Returns the number of candidates without a score at which no candidates are fetched, 128 at
    /// most. A source that several threads share returns few near its end, so that no thread holds
    /// candidates that another one could score.
    fn unscored_max(&self) -> u64 {
        UNSCORED_MAX
    }
}

struct KnownCandidates(Vec<RerankCandidate>);

impl CandidateChunks for KnownCandidates {
    fn next(&mut self, out: &mut Vec<RerankCandidate>, _wait: bool) -> ChunkProgress {
        out.append(&mut self.0);
        ChunkProgress::End
    }
}

/// Wraps candidates that are all known.
pub fn all<'a>(candidates: Vec<RerankCandidate>) -> Box<dyn CandidateChunks + 'a> {
    Box::new(KnownCandidates(candidates))
}

/// Query for the exact stage.
pub struct RerankQuery<'a, S: Scorer> {
    /// Tag of the result.
    pub tag: u64,
    /// Scorer of the records.
    pub scorer: S,
    /// Segments that [`RerankCandidate::segment`] indexes.
    pub segments: Arc<[Arc<dyn Records>]>,
    /// Maximum hits.
    pub k: usize,
    /// Source of the candidates.
    pub candidates: Box<dyn CandidateChunks + 'a>,
    /// Time after which records are no longer scored and the result is partial. `None` is no limit.
    pub deadline: Option<Instant>,
}

/// Record that could not be scored.
#[derive(Clone, Debug, PartialEq)]
pub struct DamagedRecord {
    /// Candidate that the damaged record belongs to.
    pub candidate: RerankCandidate,
    /// Offset of its page in the segment's file. `None` if the segment does not know the row, or if
    /// the page is intact and the scorer refuses the record.
    pub page: Option<u64>,
    /// Description of the damage.
    pub error: Error,
}

/// Maximum damaged records in a result. Further ones are only counted.
pub(crate) const DAMAGED_MAX: usize = 64;

/// Result of a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RerankResult {
    /// Hits, best first. Equal scores are in the order of ids. Fewer than `k` for fewer candidates.
    pub hits: Vec<(RerankCandidate, f32)>,
    /// True if a hit may be missing, because a record is damaged or was not scored by the deadline.
    pub partial: bool,
    /// True if the deadline passed.
    pub late: bool,
    /// Damaged records, up to `DAMAGED_MAX`.
    pub damaged: Vec<DamagedRecord>,
    /// Number of damaged records.
    pub damaged_count: u64,
    /// Records scored, including duplicates.
    pub scored: u64,
    /// Records found in the caches.
    pub cached: u64,
    /// Records skipped because their bound is below the k-th best score.
    pub skipped: u64,
    /// Reads submitted.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
}

impl RerankResult {
    pub(super) fn damage(&mut self, candidate: RerankCandidate, page: Option<u64>, error: Error) {
        self.partial = true;
        self.damaged_count += 1;
        if self.damaged.len() < DAMAGED_MAX {
            self.damaged.push(DamagedRecord { candidate, page, error });
        }
    }

    /// Adds the result of other candidates of the same query, and keeps the best `k` hits.
    pub(crate) fn join(&mut self, other: RerankResult, k: usize) {
        self.hits.extend(other.hits);
        self.hits.sort_unstable_by(order);
        self.hits.dedup_by(|a, b| order(a, b).is_eq());
        self.hits.truncate(k);
        self.partial |= other.partial;
        self.late |= other.late;
        let room = DAMAGED_MAX.saturating_sub(self.damaged.len());
        self.damaged.extend(other.damaged.into_iter().take(room));
        self.damaged_count += other.damaged_count;
        self.scored += other.scored;
        self.cached += other.cached;
        self.skipped += other.skipped;
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
    }
}

/// Result of [`QuerySource::next`].
pub enum NextQuery<'a, S: Scorer> {
    /// Query.
    Query(RerankQuery<'a, S>),
    /// No query now, so call again.
    Later,
    /// No more queries.
    End,
}

/// Source of a searcher's queries and sink of its results.
pub trait QuerySource<'a, S: Scorer> {
    /// Returns the next query. With `wait` it may block until there is one, because the searcher
    /// has no other work. Otherwise it must return at once.
    fn next(&mut self, wait: bool) -> NextQuery<'a, S>;

    /// Takes the result of the query `tag`. Results come when ready, not in the order of queries.
    fn answer(&mut self, tag: u64, ranked: RerankResult);
}
