//! Roots: pairs of vertices that many edges around them vote for.
//!
//! Every vertex has a direction, so a pair of vertices gives a pose of one image over the other.
//! Two similar edges, one of each graph, vote for the pair of vertices they start at. Edges that
//! vote for the same pair agree on the pose. The pairs with the most votes are grown first, and few
//! of them suffice.

use std::cmp::Reverse;

use crate::probe::Cells;
use crate::star::{Star, set_lanes};
use crate::tuning::{ROOTS_MAX, VOTES_MIN};

/// A pair of vertices to grow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) probe: u8,
    pub(crate) record: u8,
    pub(crate) votes: u8,
}

/// Counts the votes for every pair into `votes`, which has a row of `probes` counts for each vertex
/// of the record.
pub(crate) fn vote(cells: &Cells, probes: usize, record: &[Star], votes: &mut Vec<u8>) {
    votes.clear();
    votes.resize(probes * record.len(), 0);
    if probes == 0 {
        return;
    }
    for (star, row) in record.iter().zip(votes.chunks_exact_mut(probes)) {
        for edge in star.edges() {
            for block in cells.candidates(edge.start, edge.end) {
                for place in set_lanes(block.similar(edge)) {
                    // A row has one count for each vertex of the probe; at most 81 votes.
                    row[usize::from(block.from[place])] += 1;
                }
            }
        }
    }
}

/// Picks the pairs with the most votes, best first, at most [`ROOTS_MAX`]. Among equal pairs, those
/// with lower record and probe vertices come first.
pub(crate) fn pick(votes: &[u8], probes: usize, roots: &mut Vec<Root>) {
    roots.clear();
    let (eights, rest) = votes.as_chunks::<8>();
    for (chunk, eight) in eights.iter().enumerate() {
        // Most pairs have too few votes, so eight of them are skipped at once.
        if u64::from_ne_bytes(*eight) & TOO_FEW != 0 {
            gather(eight, chunk * 8, probes, roots);
        }
    }
    gather(rest, eights.len() * 8, probes, roots);
    // Stable: equal counts stay in the order of their vertices.
    roots.sort_by_key(|root| Reverse(root.votes));
    roots.truncate(ROOTS_MAX);
}

/// A mask that has no bit in common with eight counts below [`VOTES_MIN`].
const TOO_FEW: u64 = u64::from_ne_bytes([!(VOTES_MIN - 1); 8]);
const _: () = assert!(VOTES_MIN.is_power_of_two());

/// Appends the pairs with at least [`VOTES_MIN`] votes. `votes` begin with the vote `first` of a
/// table with `probes` columns.
fn gather(votes: &[u8], first: usize, probes: usize, roots: &mut Vec<Root>) {
    for (index, &count) in (first..).zip(votes) {
        if count >= VOTES_MIN {
            roots.push(Root {
                probe: (index % probes) as u8,
                record: (index / probes) as u8,
                votes: count,
            });
        }
    }
}
