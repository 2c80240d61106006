//! What is asked of a searcher, and what it answers.

use std::sync::Arc;
use std::time::Instant;

use base::Error;

use super::{Records, RerankCandidate, Scorer};

/// What [`CandidateChunks::next`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkProgress {
    /// There may be more; ask again.
    More,
    /// Nothing yet, the coarse stage is still at it.
    Later,
    /// These were the last.
    End,
}

/// Candidates as the coarse stage finds them. Best first is quickest, because the k-th best score rises soonest then,
/// but any order gives the same answer. A candidate that comes twice is ranked once.
pub trait CandidateChunks: Send {
    /// Appends the next candidates to `out`. With `wait` the caller has nothing else to do, and it may block until
    /// there are some; without it must return at once.
    fn next(&mut self, out: &mut Vec<RerankCandidate>, wait: bool) -> ChunkProgress;
}

struct KnownCandidates(Vec<RerankCandidate>);

impl CandidateChunks for KnownCandidates {
    fn next(&mut self, out: &mut Vec<RerankCandidate>, _wait: bool) -> ChunkProgress {
        out.append(&mut self.0);
        ChunkProgress::End
    }
}

/// Candidates that are known already.
pub fn all<'a>(candidates: Vec<RerankCandidate>) -> Box<dyn CandidateChunks + 'a> {
    Box::new(KnownCandidates(candidates))
}

/// One query for the exact stage.
pub struct RerankQuery<'a, S: Scorer> {
    /// What its answer is called by.
    pub tag: u64,
    /// How records are scored.
    pub scorer: S,
    /// What [`RerankCandidate::segment`] counts.
    pub segments: Arc<[Arc<dyn Records>]>,
    /// How many hits are wanted.
    pub k: usize,
    /// Where candidates come from.
    pub candidates: Box<dyn CandidateChunks + 'a>,
    /// What is not scored by then is left out, and the answer is partial.
    pub deadline: Option<Instant>,
}

/// A record that could not be scored.
#[derive(Clone, Debug, PartialEq)]
pub struct DamagedRecord {
    /// Whose it is.
    pub candidate: RerankCandidate,
    /// The offset of its page in the segment's file; `None` where the segment does not know the row, or the page is sound
    /// and the scorer refuses the record.
    pub page: Option<u64>,
    /// What is wrong with it.
    pub error: Error,
}

/// Damaged records that an answer names; further ones are only counted.
pub const DAMAGED_MAX: usize = 64;

/// The answer to a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RerankResult {
    /// The best, best first; equal scores by segment and row. Fewer than `k` where there were fewer candidates.
    pub hits: Vec<(RerankCandidate, f32)>,
    /// Whether a record that might have belonged among the hits is missing: damaged, or not scored by the deadline.
    pub partial: bool,
    /// Whether the deadline passed.
    pub late: bool,
    /// What was damaged, up to [`DAMAGED_MAX`].
    pub damaged: Vec<DamagedRecord>,
    /// How many records were damaged.
    pub damaged_count: u64,
    /// Records scored, candidates that came twice included.
    pub scored: u64,
    /// Records that the cache had.
    pub cached: u64,
    /// Records left out because their bound is below the k-th best score.
    pub skipped: u64,
    /// Reads submitted, and their bytes.
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
}

/// What [`QuerySource::next`] gives.
pub enum NextQuery<'a, S: Scorer> {
    /// A query.
    Query(RerankQuery<'a, S>),
    /// None now; ask again.
    Later,
    /// There will be no more.
    End,
}

/// Where a searcher's queries come from and its answers go to.
pub trait QuerySource<'a, S: Scorer> {
    /// The next query. With `wait` the searcher has nothing else to do, and it may block until there is one; without
    /// it must return at once.
    fn next(&mut self, wait: bool) -> NextQuery<'a, S>;

    /// Takes the answer to the query called `tag`. Answers come as they are ready, not in the order of the queries.
    fn answer(&mut self, tag: u64, ranked: RerankResult);
}
