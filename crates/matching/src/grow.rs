//! Growth of a pairing from a root along edges that both graphs have, the most similar first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::edge::{Edge, angle_between, to_angle};
use crate::evidence::{ERROR_SCALE, Evidence, Pair};
use crate::graph::{VERTICES_MAX, Vertex};
use crate::roots::Root;
use crate::star::{Star, set_lanes};
use crate::tuning::{ANGLE_ERROR_MAX, LENGTH_ERROR_MAX, TURN_ERROR_MAX};

/// Marks a vertex without a partner.
const NO_PARTNER: u16 = u16::MAX;

/// Vertices and edges of one graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphSide<'a> {
    pub(crate) vertices: &'a [Vertex],
    pub(crate) stars: &'a [Star],
}

/// A pairing while it grows. It is reused from root to root.
#[derive(Debug)]
pub(crate) struct Pairing {
    pub(crate) pairs: Vec<Pair>,
    pub(crate) evidence: Evidence,
    /// Partner of each probe vertex.
    partner: [u16; VERTICES_MAX],
    partner_back: [u16; VERTICES_MAX],
    /// Candidate pairs: the smallest error first, ties by probe and record vertex.
    waiting: BinaryHeap<Reverse<CandidatePair>>,
}

/// A pair that similar edges propose. The order of the fields is the order of acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CandidatePair {
    error: u32,
    probe: u8,
    record: u8,
    length_error: u16,
    angle_error: u16,
}

impl Default for Pairing {
    fn default() -> Pairing {
        Pairing {
            pairs: Vec::with_capacity(VERTICES_MAX),
            evidence: Evidence::default(),
            partner: [NO_PARTNER; VERTICES_MAX],
            partner_back: [NO_PARTNER; VERTICES_MAX],
            waiting: BinaryHeap::with_capacity(VERTICES_MAX),
        }
    }
}

impl Pairing {
    /// Returns true if the two vertices are partners.
    pub(crate) fn holds(&self, probe: u8, record: u8) -> bool {
        self.partner[usize::from(probe)] == u16::from(record)
    }

    fn clear(&mut self) {
        for pair in &self.pairs {
            self.partner[usize::from(pair.probe)] = NO_PARTNER;
            self.partner_back[usize::from(pair.record)] = NO_PARTNER;
        }
        self.pairs.clear();
        self.waiting.clear();
        self.evidence = Evidence::default();
    }

    /// Grows a pairing from `root`.
    pub(crate) fn grow(&mut self, root: Root, probe: GraphSide<'_>, record: GraphSide<'_>) {
        self.clear();
        let turned = |i: u8, j: u8| {
            to_angle(probe.vertices[usize::from(i)].direction)
                .wrapping_sub(to_angle(record.vertices[usize::from(j)].direction))
        };
        let about = turned(root.probe, root.record);
        let mut next = Some(CandidatePair {
            error: 0,
            probe: root.probe,
            record: root.record,
            length_error: 0,
            angle_error: 0,
        });
        while let Some(pair) = next {
            if self.both_unpaired(pair.probe, pair.record)
                && angle_between(turned(pair.probe, pair.record), about) <= TURN_ERROR_MAX
            {
                self.accept(pair, probe, record);
                self.compare_edges(pair.probe, pair.record, probe, record);
            }
            next = self.waiting.pop().map(|Reverse(waiting)| waiting);
        }
    }

    /// Returns true if neither of the two vertices has a partner.
    fn both_unpaired(&self, probe: u8, record: u8) -> bool {
        self.partner[usize::from(probe)] == NO_PARTNER
            && self.partner_back[usize::from(record)] == NO_PARTNER
    }

    /// Adds a pair, and counts its evidence.
    fn accept(&mut self, pair: CandidatePair, probe: GraphSide<'_>, record: GraphSide<'_>) {
        let (i, j) = (usize::from(pair.probe), usize::from(pair.record));
        self.partner[i] = u16::from(pair.record);
        self.partner_back[j] = u16::from(pair.probe);
        self.pairs.push(Pair { probe: pair.probe, record: pair.record });
        self.evidence.pairs += 1;
        self.evidence.kinds += u32::from(probe.vertices[i].kind == record.vertices[j].kind);
        self.evidence.length_error += u32::from(pair.length_error);
        self.evidence.angle_error += u32::from(pair.angle_error);
    }

    /// Compares the edges of a new pair. An edge to two free vertices proposes a pair, an edge to
    /// two partners supports it.
    fn compare_edges(&mut self, i: u8, j: u8, probe: GraphSide<'_>, record: GraphSide<'_>) {
        let star = &probe.stars[usize::from(i)];
        let other = &record.stars[usize::from(j)];
        for (lane, edge) in star.edges().enumerate() {
            for other_lane in set_lanes(other.similar(edge)) {
                let (k, l) = (star.to[lane], other.to[other_lane]);
                if self.holds(k, l) {
                    self.support(edge, other.edge(other_lane));
                } else if self.both_unpaired(k, l) {
                    self.offer(edge, other.edge(other_lane), k, l);
                }
            }
        }
    }

    /// Counts two similar edges between pairs as evidence.
    fn support(&mut self, edge: Edge, candidate: Edge) {
        let errors = EdgeErrors::between(edge, candidate);
        self.evidence.supports += 1;
        self.evidence.support_error += errors.sum();
    }

    /// Proposes the pair of vertex `k` of the probe and vertex `l` of the record, to which two
    /// similar edges lead.
    fn offer(&mut self, edge: Edge, candidate: Edge, k: u8, l: u8) {
        let errors = EdgeErrors::between(edge, candidate);
        self.waiting.push(Reverse(CandidatePair {
            error: errors.sum(),
            probe: k,
            record: l,
            length_error: errors.length,
            angle_error: errors.angle,
        }));
    }
}

/// Errors of two similar edges, each 0 to [`ERROR_SCALE`].
#[derive(Clone, Copy, Debug)]
struct EdgeErrors {
    length: u16,
    /// Error of both angles together.
    angle: u16,
}

impl EdgeErrors {
    fn between(a: Edge, b: Edge) -> EdgeErrors {
        let length =
            u32::from(a.length.abs_diff(b.length)) * ERROR_SCALE / u32::from(LENGTH_ERROR_MAX);
        let angle = (u32::from(angle_between(a.start, b.start))
            + u32::from(angle_between(a.end, b.end)))
            * ERROR_SCALE
            / (2 * u32::from(ANGLE_ERROR_MAX));
        EdgeErrors { length: length as u16, angle: angle as u16 }
    }

    fn sum(self) -> u32 {
        u32::from(self.length) + u32::from(self.angle)
    }
}
