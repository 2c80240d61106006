//! The exact stage of one query on several threads.
//!
//! The owner and threads that are idle claim parts of the candidates. Each thread scores its parts
//! as one query of its own searcher, so its reads overlap. A score depends on the query and the
//! record alone, and the best candidates of all threads are joined. So hits and counts of
//! candidates are the same with any number of threads.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use base::{Error, Result};
use coarse::parts::SharedParts;
use parking_lot::Mutex;

use super::best::{HitLocation, QueryHit, QueryHits, RankedPoint};
use super::helpers::HelpWork;
use super::inner::Collection;
use super::search::SearchThread;
use crate::ingest::MemtableRow;
use crate::rerank::{
    self, CandidateChunks, ChunkProgress, Records, RerankCandidate, RerankQuery, RerankResult,
    Scorer, Searcher,
};

/// Candidates of a part. A core scores them in one to four milliseconds.
const PART_CANDIDATES: usize = 32;
/// Minimum candidates to offer parts to other threads.
const SHARED_CANDIDATES_MIN: usize = 2 * PART_CANDIDATES;
/// Parts of a thread's share of the candidates that are left. A thread holds one of them at most.
const SHARE_PARTS: usize = 2;

/// Candidates in segments, in parts that threads claim.
struct CandidateParts {
    /// Candidates by segment and row, so that a part reads neighbouring pages.
    candidates: Vec<RerankCandidate>,
    /// Candidates of each part. The part with the best candidate comes first.
    ranges: Vec<Range<usize>>,
    parts: SharedParts,
    /// Maximum threads that may claim parts. They are the owner and the threads that were idle.
    threads: usize,
}

impl CandidateParts {
    /// Divides candidates, which are ordered by rank, for this number of threads.
    fn new(candidates: Vec<RerankCandidate>, threads: usize) -> CandidateParts {
        let mut ranked: Vec<(usize, RerankCandidate)> =
            candidates.into_iter().enumerate().collect();
        ranked.sort_unstable_by_key(|(rank, it)| (it.segment, it.row, *rank));
        let starts = (0..ranked.len()).step_by(PART_CANDIDATES);
        let mut ranges: Vec<Range<usize>> =
            starts.map(|start| start..ranked.len().min(start + PART_CANDIDATES)).collect();
        // A query that reaches its deadline has then compared its best candidates.
        ranges.sort_by_key(|range| ranked[range.clone()].iter().map(|(rank, _)| *rank).min());
        CandidateParts {
            candidates: ranked.into_iter().map(|(_, candidate)| candidate).collect(),
            parts: SharedParts::new(ranges.len()),
            ranges,
            threads,
        }
    }

    /// Returns the number of candidates without a score at which a thread claims no part. It is a
    /// share of the candidates that are left, so that the threads end together. It is at least a
    /// part, so that the reads of a part overlap the scores before it.
    fn unscored_max(&self) -> u64 {
        let left = self.parts.unclaimed() * PART_CANDIDATES;
        (left / (SHARE_PARTS * self.threads)).max(PART_CANDIDATES) as u64
    }
}

/// Parts that one thread claims when its searcher needs candidates.
struct ClaimedChunks<'p> {
    from: &'p CandidateParts,
    /// Returns true if the thread should claim no more parts.
    leave: &'p (dyn Fn() -> bool + Sync),
    /// Parts claimed so far.
    claimed: &'p mut usize,
}

impl CandidateChunks for ClaimedChunks<'_> {
    fn next(&mut self, out: &mut Vec<RerankCandidate>, _wait: bool) -> ChunkProgress {
        if (self.leave)() {
            return ChunkProgress::End;
        }
        let Some(part) = self.from.parts.claim() else { return ChunkProgress::End };
        out.extend_from_slice(&self.from.candidates[self.from.ranges[part].clone()]);
        *self.claimed += 1;
        if self.from.parts.is_left() { ChunkProgress::More } else { ChunkProgress::End }
    }

    fn unscored_max(&self) -> u64 {
        self.from.unscored_max()
    }
}

/// Candidates of one query in segments, shared by threads.
struct PartedRerank<S> {
    scorer: S,
    segments: Arc<[Arc<dyn Records>]>,
    k: usize,
    deadline: Option<Instant>,
    candidates: CandidateParts,
    outcome: Mutex<SharedRerank>,
}

/// Results of all threads so far.
#[derive(Default)]
struct SharedRerank {
    result: RerankResult,
    error: Option<Error>,
}

impl<S: Scorer> PartedRerank<S> {
    /// Scores parts until none is left or `leave` returns true. Returns their number.
    fn run(&self, searcher: &mut Searcher, leave: &(dyn Fn() -> bool + Sync)) -> usize {
        let mut claimed = 0;
        let source = ClaimedChunks { from: &self.candidates, leave, claimed: &mut claimed };
        let outcome = searcher.run_one(RerankQuery {
            tag: 0,
            scorer: &self.scorer,
            segments: self.segments.clone(),
            k: self.k,
            candidates: Box::new(source),
            deadline: self.deadline,
        });
        let mut shared = self.outcome.lock();
        match outcome {
            Ok(result) => shared.result.join(result, self.k),
            Err(error) => {
                self.candidates.parts.stop();
                shared.error.get_or_insert(error);
            }
        }
        claimed
    }

    /// Scores parts until all are claimed or the deadline passes, and waits for the helpers. Only
    /// the owner calls this.
    ///
    /// # Errors
    /// The first error of a thread.
    fn finish(&self, searcher: &mut Searcher) -> Result<RerankResult> {
        let _owner = self.candidates.parts.owner();
        self.run(searcher, &|| false);
        self.candidates.parts.wait()?;
        let mut shared = self.outcome.lock();
        match shared.error.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut shared.result)),
        }
    }
}

impl<S: Scorer> HelpWork for PartedRerank<S> {
    fn is_left(&self) -> bool {
        self.candidates.parts.is_left()
    }

    fn help(&self, _: &Collection, thread: &mut SearchThread) -> usize {
        let _helper = self.candidates.parts.enter();
        let leave = thread.leave_check();
        self.run(&mut thread.searcher, &leave)
    }
}

impl SearchThread {
    /// Returns the best `k` of the candidates in segments. Idle threads help.
    ///
    /// # Errors
    /// The error of a reader whose queue fails. `Internal` if a helper panicked.
    pub(super) fn rerank<S: Scorer + Clone + 'static>(
        &mut self,
        scorer: &S,
        segments: Arc<[Arc<dyn Records>]>,
        candidates: Vec<RerankCandidate>,
        k: usize,
        deadline: Option<Instant>,
    ) -> Result<RerankResult> {
        // With a bound, the number of compared records depends on the order of the scores.
        let can_share = k > 0
            && candidates.len() >= SHARED_CANDIDATES_MIN
            && candidates.iter().all(|it| scorer.bound(it.coarse) > f32::MAX);
        let Some(helpers) = self.idle_helpers().filter(|_| can_share) else {
            let candidates = rerank::all(candidates);
            let query = RerankQuery { tag: 0, scorer, segments, k, candidates, deadline };
            return self.searcher.run_one(query);
        };
        let idle = helpers.idle();
        let work = Arc::new(PartedRerank {
            scorer: scorer.clone(),
            segments,
            k,
            deadline,
            candidates: CandidateParts::new(candidates, idle + 1),
            outcome: Mutex::default(),
        });
        helpers.offer(idle.min(work.candidates.ranges.len() - 1), work.clone());
        work.finish(&mut self.searcher)
    }

    /// Scores points of memtables, and adds their hits to `found`. Idle threads help.
    ///
    /// # Errors
    /// `Internal` if a helper panicked.
    pub(super) fn score_unflushed<S: Scorer + Clone + 'static>(
        &self,
        scorer: &S,
        points: Vec<UnflushedPoint>,
        deadline: Option<Instant>,
        found: &mut QueryHits,
    ) -> Result<()> {
        let can_share = points.len() >= SHARED_CANDIDATES_MIN;
        let Some(helpers) = self.idle_helpers().filter(|_| can_share) else {
            score_rows(&points, scorer, deadline, &mut None, found);
            return Ok(());
        };
        let count = points.len().div_ceil(PART_CANDIDATES);
        let work = Arc::new(UnflushedScores {
            scorer: scorer.clone(),
            points,
            deadline,
            parts: SharedParts::new(count),
            found: Mutex::default(),
        });
        helpers.offer(helpers.idle().min(count - 1), work.clone());
        let _owner = work.parts.owner();
        work.run(&|| false);
        work.parts.wait()?;
        let shared = std::mem::take(&mut *work.found.lock());
        add_scores(found, shared);
        Ok(())
    }
}

/// Candidate in a memtable.
pub(super) struct UnflushedPoint {
    row: Arc<MemtableRow>,
    coarse: f32,
}

impl UnflushedPoint {
    /// Returns the candidate if it is in a memtable.
    pub(super) fn of(ranked: &RankedPoint<'_>) -> Option<UnflushedPoint> {
        match &ranked.place {
            HitLocation::Memtable(row) => {
                Some(UnflushedPoint { row: Arc::clone(row), coarse: ranked.coarse })
            }
            HitLocation::Segment(..) => None,
        }
    }
}

/// Candidates of one query in memtables, shared by threads.
struct UnflushedScores<S> {
    scorer: S,
    points: Vec<UnflushedPoint>,
    deadline: Option<Instant>,
    parts: SharedParts,
    /// Hits of all threads so far.
    found: Mutex<QueryHits>,
}

impl<S: Scorer> UnflushedScores<S> {
    /// Scores parts until none is left or `leave` returns true. Returns their number.
    fn run(&self, leave: &dyn Fn() -> bool) -> usize {
        let mut found = QueryHits::default();
        let mut scratch = None;
        let mut claimed = 0;
        while !leave()
            && let Some(part) = self.parts.claim()
        {
            claimed += 1;
            let start = part * PART_CANDIDATES;
            let points = &self.points[start..self.points.len().min(start + PART_CANDIDATES)];
            if !score_rows(points, &self.scorer, self.deadline, &mut scratch, &mut found) {
                self.parts.stop();
            }
        }
        add_scores(&mut self.found.lock(), found);
        claimed
    }
}

impl<S: Scorer> HelpWork for UnflushedScores<S> {
    fn is_left(&self) -> bool {
        self.parts.is_left()
    }

    fn help(&self, _: &Collection, thread: &mut SearchThread) -> usize {
        let _helper = self.parts.enter();
        self.run(&|| thread.queries_wait())
    }
}

/// Adds the hits and counts of `part`.
fn add_scores(found: &mut QueryHits, part: QueryHits) {
    found.hits.extend(part.hits);
    found.partial |= part.partial;
    found.compared += part.compared;
    found.damaged += part.damaged;
}

/// Scores candidates of memtables, and adds their hits and counts to `found`. Returns false if the
/// deadline passed before all were scored.
fn score_rows<S: Scorer>(
    points: &[UnflushedPoint],
    scorer: &S,
    deadline: Option<Instant>,
    scratch: &mut Option<S::Scratch>,
    found: &mut QueryHits,
) -> bool {
    for UnflushedPoint { row, coarse } in points {
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            found.partial = true;
            return false;
        }
        match scorer.score(&row.record, scratch.get_or_insert_with(|| scorer.scratch())) {
            Ok(score) => {
                found.compared += 1;
                found.hits.push(QueryHit { id: row.id, score, coarse: *coarse });
            }
            Err(_) => {
                found.partial = true;
                found.damaged += 1;
            }
        }
    }
    true
}

#[cfg(test)]
#[path = "exact_tests.rs"]
mod tests;
