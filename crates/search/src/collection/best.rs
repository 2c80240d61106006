//! Hits of a query, and the list of its best points.

use std::cmp::Ordering;
use std::sync::Arc;

use coarse::CoarseHit;

use super::state::SegmentView;
use crate::ingest::MemtableRow;

/// Point that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryHit {
    /// Id of the point.
    pub id: u64,
    /// Score of the scorer, or the coarse score if there is none. Higher is more similar.
    pub score: f32,
    /// Similarity of the embeddings, or the score of the index of edges.
    pub coarse: f32,
}

/// Result of a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueryHits {
    /// Hits, best first. Equal scores are in the order of ids.
    pub hits: Vec<QueryHit>,
    /// True if a point may be missing because data is damaged, a segment is not open yet or the
    /// deadline passed.
    pub partial: bool,
    /// Candidates of the exact stage.
    pub candidates: u64,
    /// Candidates that the query compared. All, unless some are damaged or the deadline has passed.
    pub compared: u64,
    /// Candidates that could not be read.
    pub damaged: u64,
    /// Reads of records.
    pub reads: u64,
    /// Records found in the cache.
    pub cached: u64,
}

/// Candidate from a segment or a memtable.
pub(super) struct RankedPoint<'s> {
    pub(super) coarse: f32,
    pub(super) id: u64,
    pub(super) place: HitLocation<'s>,
}

/// Place of a hit.
pub(super) enum HitLocation<'s> {
    /// Index of the open segment, and the row.
    Segment(u32, u32),
    Memtable(&'s Arc<MemtableRow>),
}

/// Candidates kept beyond `2 * count` before the list is pruned.
const PRUNE_SLACK: usize = 64;

/// Best candidates so far.
pub(super) struct BestPoints<'s> {
    pub(super) count: usize,
    pub(super) ranked: Vec<RankedPoint<'s>>,
    /// Score of the last candidate, once `count` were found.
    pub(super) floor: f32,
}

impl<'s> BestPoints<'s> {
    /// Creates an empty list. Candidates below `floor` are not added.
    pub(super) fn new(count: usize, floor: f32) -> BestPoints<'s> {
        BestPoints { count, ranked: Vec::new(), floor }
    }

    /// Adds the hits of a segment.
    pub(super) fn offer_hits(&mut self, segment: u32, view: &SegmentView, hits: &[CoarseHit]) {
        let ids = view.segment.ids();
        for hit in hits {
            // Rows whose exact score could not be read have the score minus infinity.
            let id = ids.id(hit.row).filter(|_| hit.score > f32::NEG_INFINITY);
            if let Some(id) = id {
                let place = HitLocation::Segment(segment, hit.row);
                self.offer(RankedPoint { coarse: hit.score, id, place });
            }
        }
    }

    /// Adds a candidate if it can be among the best.
    #[inline]
    pub(super) fn offer(&mut self, one: RankedPoint<'s>) {
        if one.coarse >= self.floor {
            // Adding zero turns -0 into 0. Otherwise the two would not be ordered by id.
            self.ranked.push(RankedPoint { coarse: one.coarse + 0.0, ..one });
            if self.ranked.len() >= 2 * self.count + PRUNE_SLACK {
                self.keep();
            }
        }
    }

    /// Returns the best points, best first.
    pub(super) fn sorted(mut self) -> Vec<RankedPoint<'s>> {
        self.keep();
        self.ranked.sort_unstable_by(by_similarity);
        self.ranked
    }

    /// Prunes the list to the best `count`.
    pub(super) fn keep(&mut self) {
        if self.count == 0 || self.ranked.len() < self.count {
            return self.ranked.truncate(self.count);
        }
        self.ranked.select_nth_unstable_by(self.count - 1, by_similarity);
        self.ranked.truncate(self.count);
        self.floor = self.floor.max(self.ranked[self.count - 1].coarse);
    }
}

impl QueryHits {
    /// Adds the best points as hits.
    pub(super) fn with(mut self, best: BestPoints<'_>) -> QueryHits {
        let hit = |it: RankedPoint<'_>| QueryHit { id: it.id, score: it.coarse, coarse: it.coarse };
        self.hits = best.sorted().into_iter().map(hit).collect();
        self
    }
}

fn by_similarity(a: &RankedPoint<'_>, b: &RankedPoint<'_>) -> Ordering {
    better((a.coarse, a.id), (b.coarse, b.id))
}

/// Orders by descending score, then by id.
pub(super) fn better(a: (f32, u64), b: (f32, u64)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Records rows that could not be read.
pub(super) fn note_lost(found: &mut QueryHits, lost: u64) {
    found.partial |= lost > 0;
    found.damaged += lost;
}
