//! Searches an index of fingerprints: counts the votes of a query for each row.

use std::cmp::Ordering;

use kernels::TopK;

use super::cell::{EdgeFinder, HeadedEdge, cell};
use super::format::{ESCAPE, EdgeIndex, PostingBlock};
use super::weight::{CHANCE_WEIGHT, PER_NAT, WEIGHT_MIN, angles, lengths};
use super::{BLOCK_ROWS, TURNS};
use crate::graph::{Graph, VERTICES_MAX};

/// A row that got votes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EdgeHit {
    /// Row of the index.
    pub row: u32,
    /// Sum of the weights of its votes in natural logarithms, minus the expected weight of chance
    /// votes. Higher is more similar.
    pub score: f32,
}

impl EdgeHit {
    /// Orders by descending score, then by row, as [`EdgeIndex::search`] does.
    #[must_use]
    pub fn by_score(&self, other: &EdgeHit) -> Ordering {
        other.score.total_cmp(&self.score).then(self.row.cmp(&other.row))
    }
}

/// A query, prepared for searching many indexes. Immutable and shared by threads.
#[derive(Clone, Debug)]
pub struct EdgeQuery {
    edges: Vec<HeadedEdge>,
}

impl EdgeQuery {
    /// Prepares `graph`. Only its first [`VERTICES_MAX`] vertices count.
    #[must_use]
    pub fn new(graph: &Graph) -> EdgeQuery {
        let vertices = graph.vertices.iter().copied().take(VERTICES_MAX);
        EdgeQuery { edges: EdgeFinder::default().edges_of_query(vertices) }
    }
}

/// A list to read, and the weight of its votes.
#[derive(Clone, Copy, Debug)]
struct ListRead {
    cell: u16,
    weight: u16,
    /// Heading of the query's edge.
    heading: u8,
}

/// Lists of one index that a query reads. Immutable and shared by threads.
#[derive(Clone, Debug)]
pub struct EdgeLists {
    /// Reads of lists, in the order of the lists in memory.
    reads: Vec<ListRead>,
}

/// Working memory of one thread, reused from query to query.
#[derive(Debug, Default)]
pub struct EdgeScratch {
    /// [`TURNS`] counts for each row of a block.
    counts: Vec<[u16; TURNS]>,
    best: TopK,
}

impl EdgeScratch {
    /// Begins to collect the best `k` rows of one index.
    pub fn begin(&mut self, k: usize) {
        self.best.reset(k);
    }

    /// Appends the best rows of the blocks that were counted since [`EdgeScratch::begin`] to
    /// `out`, best first, equal scores by row.
    pub fn append_hits(&mut self, out: &mut Vec<EdgeHit>) {
        out.extend(self.best.sorted().map(|(cost, row)| EdgeHit { row, score: -cost }));
    }
}

impl EdgeIndex {
    /// Writes the best `k` rows that are `allowed` to `out` (cleared first), best first, equal
    /// scores by row. Rows without a vote are left out.
    pub fn search(
        &self,
        query: &EdgeQuery,
        k: usize,
        allowed: impl Fn(u32) -> bool,
        scratch: &mut EdgeScratch,
        out: &mut Vec<EdgeHit>,
    ) {
        out.clear();
        let lists = self.lists(query);
        scratch.begin(k);
        for block in 0..self.block_count() {
            self.count_block(&lists, block, &allowed, scratch);
        }
        scratch.append_hits(out);
    }

    /// Returns the number of blocks, which can be counted by different threads.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the lists whose votes have enough weight.
    #[must_use]
    pub fn lists(&self, query: &EdgeQuery) -> EdgeLists {
        let mut reads = Vec::new();
        for &edge in &query.edges {
            self.plan_edge(edge, &mut reads);
            self.plan_edge(edge.reversed(), &mut reads);
        }
        reads.sort_unstable_by_key(|read| read.cell);
        EdgeLists { reads }
    }

    /// Counts the votes of one block, and keeps those of its `allowed` rows in `scratch` that are
    /// among the best. A thread counts its blocks in ascending order. The best rows of several
    /// threads, each with the same `k`, contain the best `k` rows of all.
    pub fn count_block(
        &self,
        lists: &EdgeLists,
        number: usize,
        allowed: impl Fn(u32) -> bool,
        scratch: &mut EdgeScratch,
    ) {
        let Some(block) = self.blocks.get(number) else { return };
        let first = number * BLOCK_ROWS;
        let rows = self.edges.get(first..).unwrap_or_default();
        let rows = rows.get(..BLOCK_ROWS).unwrap_or(rows);
        scratch.counts.clear();
        scratch.counts.resize(rows.len(), [0; TURNS]);
        for read in &lists.reads {
            vote(block, *read, &mut scratch.counts);
        }
        for ((row, counts), &edges) in (first as u32..).zip(&scratch.counts).zip(rows) {
            let sum = i32::from(best_turn(counts));
            let cost = (CHANCE_WEIGHT * i32::from(edges) - sum) as f32 / PER_NAT as f32;
            // Rows ascend, so a later row of an equal cost is not among the best.
            if sum > 0 && cost < scratch.best.threshold() && allowed(row) {
                scratch.best.push(cost, row);
            }
        }
    }

    /// Appends the lists of the cells that hold edges similar to `edge`, with the weight of a vote.
    /// Leaves out cells with a weight below [`WEIGHT_MIN`].
    fn plan_edge(&self, edge: HeadedEdge, reads: &mut Vec<ListRead>) {
        let HeadedEdge { length, start, end, heading } = edge;
        for (length, of_length) in lengths(length) {
            for (low, of_low) in angles(start) {
                for (high, of_high) in angles(end) {
                    let Some(cell) = cell(length, low, high) else { continue };
                    let rarity = self.rarities.get(cell).copied().unwrap_or_default();
                    let weight = i32::from(rarity) + of_length + of_low + of_high;
                    if weight >= WEIGHT_MIN {
                        reads.push(ListRead { cell: cell as u16, weight: weight as u16, heading });
                    }
                }
            }
        }
    }
}

/// Counts the votes of one list.
fn vote(block: &PostingBlock, read: ListRead, counts: &mut [[u16; TURNS]]) {
    let mut row = 0;
    for posting in block.list(usize::from(read.cell)) {
        row += usize::from(posting.step);
        if posting.step == ESCAPE {
            continue;
        }
        let turn = read.heading.wrapping_sub(posting.heading) as usize * TURNS / 256;
        if let Some(counts) = counts.get_mut(row) {
            counts[turn] = counts[turn].saturating_add(read.weight);
        }
    }
}

/// Returns the largest sum of two neighbouring counts, because a rotation may lie on the border of
/// two.
fn best_turn(counts: &[u16; TURNS]) -> u16 {
    let mut best = counts[TURNS - 1].saturating_add(counts[0]);
    for (left, right) in counts.iter().zip(&counts[1..]) {
        best = best.max(left.saturating_add(*right));
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::EdgeIndexBuilder;
    use super::super::cell::{CELLS, IndexedEdge};
    use super::*;
    use crate::synthetic;
    use proptest::prelude::*;

    fn record(graph: &Graph) -> Vec<u8> {
        let mut record = Vec::new();
        graph.encode(&mut record);
        record
    }

    /// Returns the score of a row, edge by edge.
    fn naive(index: &EdgeIndex, query: &EdgeQuery, graph: &Graph) -> Option<f32> {
        let mut indexed: Vec<IndexedEdge> = Vec::new();
        EdgeFinder::default().indexed_edges(graph.vertices.iter().copied(), &mut indexed);
        let mut counts = [0_i32; TURNS];
        let mut voted = false;
        let both = query.edges.iter().flat_map(|&edge| [edge, edge.reversed()]);
        for edge in both {
            for own in &indexed {
                let logs = |of: usize| -> Option<i32> {
                    let length = lengths(edge.length);
                    let ends = length.flat_map(|length| {
                        angles(edge.start).flat_map(move |low| {
                            angles(edge.end).map(move |high| (length, low, high))
                        })
                    });
                    ends.filter(|(length, low, high)| cell(length.0, low.0, high.0) == Some(of))
                        .map(|(length, low, high)| length.1 + low.1 + high.1)
                        .next()
                };
                let Some(log) = logs(usize::from(own.cell)) else { continue };
                let weight = log + i32::from(index.rarities[usize::from(own.cell)]);
                if weight >= WEIGHT_MIN {
                    let turn = usize::from(edge.heading.wrapping_sub(own.heading)) * TURNS / 256;
                    counts[turn] += weight;
                    voted = true;
                }
            }
        }
        let best = (0..TURNS).map(|turn| counts[turn] + counts[(turn + 1) % TURNS]).max();
        let score = best.unwrap_or(0) - CHANCE_WEIGHT * indexed.len() as i32;
        voted.then_some(score as f32 / PER_NAT as f32)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn scores_are_those_of_comparing_edge_by_edge(seed: u64, rows in 1_usize..40) {
            let graphs: Vec<Graph> = (0..rows as u64).map(|row| synthetic::impression(seed ^ row)).collect();
            let mut builder = EdgeIndexBuilder::new();
            graphs.iter().for_each(|graph| builder.push(&record(graph)));
            let index = builder.finish();
            let query = EdgeQuery::new(&synthetic::distorted(&graphs[0], seed));
            let mut hits = Vec::new();
            index.search(&query, rows, |_| true, &mut EdgeScratch::default(), &mut hits);
            for (row, graph) in (0..).zip(&graphs) {
                let hit = hits.iter().find(|hit| hit.row == row).map(|hit| hit.score);
                prop_assert_eq!(hit, naive(&index, &query, graph));
            }
            prop_assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
            prop_assert_eq!(EdgeIndex::decode(&index.encode()).unwrap(), index);
        }

        #[test]
        fn damaged_bytes_cause_no_panic(
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        ) {
            let mut builder = EdgeIndexBuilder::new();
            (0..3).for_each(|row| builder.push(&record(&synthetic::impression(row))));
            let mut bytes = builder.finish().encode();
            for (at, value) in flips {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if let Ok(index) = EdgeIndex::decode(&bytes) {
                let query = EdgeQuery::new(&synthetic::impression(1));
                index.search(&query, 3, |_| true, &mut EdgeScratch::default(), &mut Vec::new());
            }
        }
    }

    /// Counts the blocks of an index by `threads` threads in turn and joins their rows.
    fn counted_apart(
        index: &EdgeIndex,
        query: &EdgeQuery,
        k: usize,
        allowed: impl Fn(u32) -> bool,
        threads: usize,
    ) -> Vec<EdgeHit> {
        let lists = index.lists(query);
        let mut hits = Vec::new();
        for thread in 0..threads {
            let mut scratch = EdgeScratch::default();
            scratch.begin(k);
            for block in (thread..index.block_count()).step_by(threads) {
                index.count_block(&lists, block, &allowed, &mut scratch);
            }
            scratch.append_hits(&mut hits);
        }
        hits.sort_unstable_by(EdgeHit::by_score);
        hits.truncate(k);
        hits
    }

    #[test]
    fn blocks_can_be_counted_by_several_threads() {
        // Each print comes about 12 times, so that many scores are equal.
        let prints: Vec<Vec<u8>> =
            (0..40).map(|print| record(&synthetic::impression(print))).collect();
        let mut builder = EdgeIndexBuilder::new();
        for row in 0..3 * BLOCK_ROWS + 99 {
            builder.push(if row % 97 == 0 { &prints[row % 40] } else { &[] });
        }
        let index = builder.finish();
        assert_eq!(index.block_count(), 4);
        let allowed = |row: u32| !row.is_multiple_of(3);
        for (seed, k) in [(0, 1), (1, 40), (2, 150), (3, 1000)] {
            let query = EdgeQuery::new(&synthetic::distorted(&synthetic::impression(seed), 9));
            let mut alone = Vec::new();
            index.search(&query, k, allowed, &mut EdgeScratch::default(), &mut alone);
            assert!(!alone.is_empty());
            for threads in [1, 2, 8] {
                assert_eq!(counted_apart(&index, &query, k, allowed, threads), alone);
            }
        }
    }

    #[test]
    fn another_impression_is_found_among_many() {
        let mut builder = EdgeIndexBuilder::new();
        let rows = 3000;
        for row in 0..rows {
            builder.push(&record(&synthetic::impression(row)));
        }
        let index = builder.finish();
        let mut scratch = EdgeScratch::default();
        let mut hits = Vec::new();
        let mut first = 0;
        for row in (0..rows).step_by(150) {
            let query = EdgeQuery::new(&synthetic::distorted(&synthetic::impression(row), row));
            index.search(&query, 30, |_| true, &mut scratch, &mut hits);
            first += usize::from(hits.iter().any(|hit| u64::from(hit.row) == row));
            index.search(&query, 30, |other| u64::from(other) != row, &mut scratch, &mut hits);
            assert!(hits.iter().all(|hit| u64::from(hit.row) != row), "not allowed");
        }
        assert!(first >= 17, "{first} of 20 within the best hundredth");
        assert!(index.memory_bytes() < 3000 * 320 + CELLS as u64 * 10);
    }

    #[test]
    fn rows_of_several_blocks_and_empty_ones_are_counted() {
        let mut builder = EdgeIndexBuilder::new();
        let print = record(&synthetic::impression(7));
        let rows = BLOCK_ROWS + 700;
        for row in 0..rows {
            builder.push(if row % 600 == 1 { &print } else { &[] });
        }
        let index = builder.finish();
        let mut hits = Vec::new();
        let query = EdgeQuery::new(&synthetic::impression(7));
        index.search(&query, rows, |_| true, &mut EdgeScratch::default(), &mut hits);
        let expected: Vec<u32> = (0..rows as u32).filter(|row| row % 600 == 1).collect();
        assert_eq!(hits.iter().map(|hit| hit.row).collect::<Vec<_>>(), expected);
        assert!(EdgeIndex::decode(&index.encode()[1..]).is_err());
    }
}
