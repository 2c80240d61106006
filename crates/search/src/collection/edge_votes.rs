//! Votes of the indexes of edges, counted by several threads.
//!
//! The owner and threads that are idle claim blocks of rows. Each thread keeps its own best rows of
//! a segment, and the owner joins them. Scores of rows do not depend on other rows, so the result
//! is the same with any number of threads.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use base::Result;
use coarse::RowSet;
use coarse::parts::SharedParts;
use matching::index::{BLOCK_ROWS, EdgeHit, EdgeLists, EdgeQuery, EdgeScratch};
use parking_lot::Mutex;

use super::best::{HitLocation, RankedPoint};
use super::helpers::HelpWork;
use super::inner::Collection;
use super::search::SearchThread;
use crate::segment::Segment;

/// Minimum rows of all indexes to offer parts to other threads. A core counts the votes of a block
/// in about three milliseconds.
const SHARED_ROWS_MIN: u64 = 2 * BLOCK_ROWS as u64;

pub(super) struct IndexedSegment {
    /// Index of the open segment.
    pub(super) at: u32,
    pub(super) segment: Arc<Segment>,
    /// Rows that may be found, or `None` for all.
    pub(super) allow: Option<Arc<RowSet>>,
    /// Number of rows that may be found.
    pub(super) rows: u32,
    /// Number of rows to find.
    pub(super) count: usize,
}

/// Part of a search: one block of an index.
#[derive(Clone, Copy)]
struct SegmentBlock {
    /// Place of the segment in the search.
    segment: usize,
    /// Number of the block in the segment's index.
    block: usize,
}

/// Search of indexes that threads share. Each thread needs `matching::index::COUNTS_BYTES_MAX`
/// of memory, and keeps at most `count` rows of a segment.
struct EdgeVotes {
    query: EdgeQuery,
    deadline: Option<Instant>,
    segments: Vec<IndexedSegment>,
    /// Lists to read in each segment, made by the first thread that needs them.
    lists: Vec<OnceLock<EdgeLists>>,
    /// Blocks by segment and number, so that a thread visits each segment once, in ascending order.
    blocks: Vec<SegmentBlock>,
    parts: SharedParts,
    found: Mutex<VotedRows>,
}

/// Rows that all threads found so far.
struct VotedRows {
    /// Rows of each segment.
    hits: Vec<Vec<EdgeHit>>,
    /// True if blocks were left out because the deadline passed.
    late: bool,
}

/// Result of a search of indexes.
pub(super) struct VotedPoints {
    /// Best points of each segment: segments in their order, best first.
    pub(super) ranked: Vec<RankedPoint<'static>>,
    /// True if points may be missing because the deadline passed.
    pub(super) late: bool,
}

impl EdgeVotes {
    fn new(
        query: &EdgeQuery,
        segments: Vec<IndexedSegment>,
        deadline: Option<Instant>,
    ) -> EdgeVotes {
        let blocks_of = |(segment, it): (usize, &IndexedSegment)| {
            let count = it.segment.edges().map_or(0, |edges| edges.block_count());
            (0..count).map(move |block| SegmentBlock { segment, block })
        };
        let blocks: Vec<SegmentBlock> = segments.iter().enumerate().flat_map(blocks_of).collect();
        EdgeVotes {
            query: query.clone(),
            deadline,
            lists: segments.iter().map(|_| OnceLock::new()).collect(),
            parts: SharedParts::new(blocks.len()),
            found: Mutex::new(VotedRows { hits: vec![Vec::new(); segments.len()], late: false }),
            blocks,
            segments,
        }
    }

    /// Counts blocks until none is left or `leave` returns true. Returns their number.
    fn run(&self, scratch: &mut EdgeScratch, leave: &dyn Fn() -> bool) -> usize {
        let mut claimed = 0;
        let mut current = None;
        while !leave()
            && let Some(part) = self.parts.claim()
        {
            claimed += 1;
            if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
                self.found.lock().late = true;
                self.parts.stop();
                break;
            }
            let SegmentBlock { segment, block } = self.blocks[part];
            if current != Some(segment) {
                self.deliver(current, scratch);
                scratch.begin(self.segments[segment].count);
                current = Some(segment);
            }
            self.count(segment, block, scratch);
        }
        self.deliver(current, scratch);
        claimed
    }

    /// Counts the votes of one block.
    fn count(&self, segment: usize, block: usize, scratch: &mut EdgeScratch) {
        let of = &self.segments[segment];
        let Some(edges) = of.segment.edges() else { return };
        let lists = self.lists[segment].get_or_init(|| edges.lists(&self.query));
        let allowed = |row| of.allow.as_ref().is_none_or(|allow| allow.contains(row));
        edges.count_block(lists, block, allowed, scratch);
    }

    /// Adds the best rows of a segment on this thread to those of all threads.
    fn deliver(&self, segment: Option<usize>, scratch: &mut EdgeScratch) {
        if let Some(segment) = segment {
            scratch.append_hits(&mut self.found.lock().hits[segment]);
        }
    }

    /// Counts blocks until all are claimed, waits for the helpers, and returns the best points.
    /// Only the owner calls this.
    ///
    /// # Errors
    /// `Internal` if a helper panicked.
    fn finish(&self, scratch: &mut EdgeScratch) -> Result<VotedPoints> {
        let _owner = self.parts.owner();
        self.run(scratch, &|| false);
        self.parts.wait()?;
        let mut found = self.found.lock();
        let mut ranked = Vec::new();
        for (hits, of) in found.hits.iter_mut().zip(&self.segments) {
            hits.sort_unstable_by(EdgeHit::by_score);
            hits.truncate(of.count);
            let ids = of.segment.ids();
            let point = |hit: &EdgeHit| {
                let place = HitLocation::Segment(of.at, hit.row);
                Some(RankedPoint { coarse: hit.score, id: ids.id(hit.row)?, place })
            };
            ranked.extend(hits.iter().filter_map(point));
        }
        Ok(VotedPoints { ranked, late: found.late })
    }
}

impl HelpWork for EdgeVotes {
    fn is_left(&self) -> bool {
        self.parts.is_left()
    }

    fn help(&self, _: &Collection, thread: &mut SearchThread) -> usize {
        let _helper = self.parts.enter();
        let leave = thread.leave_check();
        self.run(&mut thread.edges, &leave)
    }
}

impl SearchThread {
    /// Returns the best points of indexes of `segments`. Idle threads take blocks of large ones.
    ///
    /// # Errors
    /// `Internal` if a helper panicked.
    pub(super) fn count_votes(
        &mut self,
        query: &EdgeQuery,
        segments: Vec<IndexedSegment>,
        deadline: Option<Instant>,
    ) -> Result<VotedPoints> {
        let rows: u64 = segments.iter().map(|it| u64::from(it.segment.rows())).sum();
        let work = Arc::new(EdgeVotes::new(query, segments, deadline));
        if let Some(helpers) = self.idle_helpers().filter(|_| rows >= SHARED_ROWS_MIN) {
            let others = work.blocks.len().saturating_sub(1);
            helpers.offer(helpers.idle().min(others), work.clone());
        }
        work.finish(&mut self.edges)
    }
}
