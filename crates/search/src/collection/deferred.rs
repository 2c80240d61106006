//! Exact comparison of rows of several segments together.
//!
//! The codes of a segment give upper bounds of the scores of its rows. A query over several
//! segments collects their rows with these bounds. It then compares rows exactly, highest bound
//! first, until no bound reaches the score of the last hit. So the query reads fewer vectors, and
//! waits for those of a few batches instead of those of each segment in turn.

use base::Result;
use coarse::CoarseHit;
use storage::Reader;

use super::best::{BestPoints, QueryHits, note_lost};
use super::state::SegmentView;
use crate::segment::score_rows;

/// Maximum hits of a query whose exact comparisons are deferred. Up to 1.5 times as many rows of
/// each segment wait for them, or more if its codes cannot tell rows apart. With more hits, each
/// segment has many reads in flight of its own.
pub(super) const DEFERRED_HITS_MAX: usize = 1024;
/// Minimum rows compared at once beyond the number of hits. They are in flight together.
const EXTRA_ROWS_MIN: usize = 10;

/// Rows that a query must still compare exactly.
#[derive(Debug, Default)]
pub(super) struct DeferredRows {
    rows: Vec<DeferredRow>,
}

/// Row to compare exactly.
#[derive(Clone, Copy, Debug)]
struct DeferredRow {
    /// Upper bound of the score of the point.
    bound: f32,
    /// Index of its segment in the search.
    segment: usize,
    row: u32,
}

impl DeferredRows {
    /// Adds rows of the segment with index `segment` in the search. Their scores are upper bounds.
    pub(super) fn add(&mut self, segment: usize, bounds: &[CoarseHit]) {
        let deferred = |hit: &CoarseHit| DeferredRow { bound: hit.score, segment, row: hit.row };
        self.rows.extend(bounds.iter().map(deferred));
    }

    /// Compares rows exactly, and offers their hits to `best`. `segments` are those of the search.
    ///
    /// # Errors
    /// The error of the reader of vectors.
    pub(super) fn compare(
        mut self,
        vectors: &mut dyn Reader,
        embedding: &[f32],
        segments: &[(u32, SegmentView)],
        best: &mut BestPoints<'_>,
        found: &mut QueryHits,
    ) -> Result<()> {
        self.rows.sort_unstable_by(|one, other| {
            let by_bound = other.bound.total_cmp(&one.bound);
            by_bound.then((one.segment, one.row).cmp(&(other.segment, other.row)))
        });
        let batch = best.count + (best.count / 2).max(EXTRA_ROWS_MIN);
        let mut rest = &mut self.rows[..];
        loop {
            let reaches = |row: &&DeferredRow| row.bound >= best.floor;
            let count = rest.iter().take(batch).take_while(reaches).count();
            if count == 0 {
                return Ok(());
            }
            let (now, later) = std::mem::take(&mut rest).split_at_mut(count);
            rest = later;
            compare_batch(now, vectors, embedding, segments, best, found)?;
        }
    }
}

/// Rows of one segment that are compared together with others.
struct BatchSegment {
    /// Index of the segment in the search.
    segment: usize,
    rows: Vec<u32>,
}

/// Compares `rows`, whose order this changes.
fn compare_batch(
    rows: &mut [DeferredRow],
    vectors: &mut dyn Reader,
    embedding: &[f32],
    segments: &[(u32, SegmentView)],
    best: &mut BestPoints<'_>,
    found: &mut QueryHits,
) -> Result<()> {
    rows.sort_unstable_by_key(|row| (row.segment, row.row));
    let batch: Vec<BatchSegment> = rows
        .chunk_by(|one, other| one.segment == other.segment)
        .map(|rows| BatchSegment {
            segment: rows[0].segment,
            rows: rows.iter().map(|row| row.row).collect(),
        })
        .collect();
    let mut scores = Vec::with_capacity(batch.len());
    for part in &batch {
        let (_, view) = &segments[part.segment];
        scores.push(view.segment.row_scores(&part.rows));
    }
    score_rows(vectors, embedding, &mut scores)?;
    for (part, scores) in batch.iter().zip(&scores) {
        let (at, view) = &segments[part.segment];
        note_lost(found, scores.lost());
        let hits: Vec<CoarseHit> = scores.hits().collect();
        best.offer_hits(*at, view, &hits);
    }
    best.keep();
    Ok(())
}
