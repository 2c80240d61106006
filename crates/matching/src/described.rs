//! Matching of photographs. Points match only if their descriptors do, and lengths only up to a
//! scale.
//!
//! Descriptors leave few candidates, so the order of the steps differs from that for fingerprints.
//!
//! 1. Each point gets the partner with the nearest descriptor, if both points agree on that and
//!    the descriptors differ in few bits. These are the tentative pairs.
//! 2. Edges between neighbouring tentative pairs are compared in both images. Angles must agree as
//!    for fingerprints; the ratio of lengths is a scale.
//! 3. Each pair takes the scale that most of its edges agree on. The pairs with the most such
//!    edges are the roots.
//! 4. An edge of a root gives a pose of one image over the other. All pairs that agree with the
//!    pose count, at any position, and the pose is fitted to them.

use std::cmp::Reverse;

use kernels::binary::hamming256_many;
use kernels::graph::NEAREST;

use crate::edge::{Edge, PER_PIXEL, angle_between};
use crate::evidence::{ERROR_SCALE, Evidence, Pair};
use crate::graph::{DESCRIPTOR_BYTES, VERTICES_MAX, Vertex};
use crate::pose::{PointPair, PoseMatch, position_tolerance, verify};
use crate::star::{Coordinates, Star, stars};
use crate::tuning::{ANGLE_ERROR_MAX, PHOTO_ROOTS_MAX};

/// A scale of 1 in the fixed-point unit of scales.
const SCALE_ONE: u32 = 1024;
/// Largest accepted scale.
const SCALE_MAX: u32 = 4 * SCALE_ONE;
/// Smallest accepted scale.
const SCALE_MIN: u32 = SCALE_ONE / 4;
/// Scales of pairs are equal if they differ by at most one part in this.
const SCALE_PART: u32 = 6;
/// Shortest edge, in either image, that gives a scale.
const LENGTH_MIN: u16 = (4 * PER_PIXEL) as u16;

/// Points of one image and their descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescribedPoints<'a> {
    pub(crate) vertices: &'a [Vertex],
    pub(crate) descriptors: &'a [[u8; DESCRIPTOR_BYTES]],
}

/// A pair of points with similar descriptors.
#[derive(Clone, Copy, Debug)]
struct TentativePair {
    pair: Pair,
    bits: u16,
}

/// An edge between two tentative pairs, compared in both images.
#[derive(Clone, Copy, Debug, Default)]
struct PairLink {
    /// Index of the tentative pair at the other end.
    to: u8,
    /// Length in the record by length in the probe, or 0 if the edges are not similar.
    scale: u32,
}

/// A tentative pair to start from.
#[derive(Clone, Copy, Debug)]
struct PhotoRoot {
    tentative: u8,
    /// Index of the pair at the other end of the edge.
    to: u8,
    votes: u8,
}

/// Working memory of the comparison, reused from record to record.
#[derive(Debug, Default)]
pub(crate) struct PhotoScratch {
    distances: Vec<u16>,
    /// Nearest record vertex of each probe vertex: the differing bits, and its index.
    nearest: Vec<(u16, u8)>,
    tentative: Vec<TentativePair>,
    points: Vec<Vertex>,
    others: Vec<Vertex>,
    coordinates: Coordinates,
    stars: Vec<Star>,
    links: Vec<[PairLink; NEAREST]>,
    roots: Vec<PhotoRoot>,
    point_pairs: Vec<PointPair>,
    agreed: Vec<PoseMatch>,
}

impl PhotoScratch {
    /// Writes the best pairing of two photographs into `pairs` and returns its evidence.
    pub(crate) fn compare(
        &mut self,
        probe: DescribedPoints<'_>,
        record: DescribedPoints<'_>,
        bits_max: u32,
        pairs: &mut Vec<Pair>,
    ) -> Evidence {
        self.propose(probe, record, bits_max);
        self.link(probe, record);
        self.pick();
        let tolerance = position_tolerance(record.vertices);
        let mut best = Evidence { described: true, ..Evidence::default() };
        for at in 0..self.roots.len() {
            let root = self.roots[at];
            let start = self.tentative[usize::from(root.tentative)].pair;
            if pairs.contains(&start) {
                continue;
            }
            verify(
                &self.point_pairs,
                (usize::from(root.tentative), usize::from(root.to)),
                tolerance,
                &mut self.agreed,
            );
            let evidence =
                evidence(&self.point_pairs, &self.agreed, |at| self.tentative[at].bits, bits_max);
            if evidence.raw_score() > best.raw_score() {
                best = evidence;
                pairs.clear();
                pairs.extend(self.agreed.iter().map(|agreed| self.tentative[agreed.index].pair));
            }
        }
        best
    }

    /// Proposes pairs of points that are each other's nearest and differ in at most `bits_max`
    /// bits.
    fn propose(&mut self, probe: DescribedPoints<'_>, record: DescribedPoints<'_>, bits_max: u32) {
        self.tentative.clear();
        self.nearest.clear();
        self.nearest.resize(probe.descriptors.len(), (u16::MAX, 0));
        self.distances.resize(probe.descriptors.len(), 0);
        let mut forward = [None; VERTICES_MAX];
        for (index, (descriptor, forward)) in
            record.descriptors.iter().zip(&mut forward).enumerate()
        {
            hamming256_many(descriptor, probe.descriptors, &mut self.distances);
            let least = self.distances.iter().fold(u16::MAX, |least, &bits| least.min(bits));
            // Most points have no partner, because every descriptor is too far away.
            if u32::from(least) > bits_max {
                continue;
            }
            for (&bits, nearest) in self.distances.iter().zip(&mut self.nearest) {
                // Strictly less: of equal distances the lower index stays.
                if bits < nearest.0 {
                    *nearest = (bits, index as u8);
                }
            }
            *forward = self.distances.iter().position(|&bits| bits == least);
        }
        for (index, other) in forward.into_iter().enumerate() {
            let Some(other) = other else { continue };
            let (bits, back) = self.nearest[other];
            if usize::from(back) == index {
                let pair = Pair { probe: other as u8, record: index as u8 };
                self.tentative.push(TentativePair { pair, bits });
            }
        }
    }

    /// Compares the edges between neighbouring tentative pairs.
    fn link(&mut self, probe: DescribedPoints<'_>, record: DescribedPoints<'_>) {
        self.points.clear();
        self.others.clear();
        self.points
            .extend(self.tentative.iter().map(|t| probe.vertices[usize::from(t.pair.probe)]));
        self.others
            .extend(self.tentative.iter().map(|t| record.vertices[usize::from(t.pair.record)]));
        self.point_pairs.clear();
        let paired = self.points.iter().zip(&self.others);
        self.point_pairs.extend(paired.map(|(&probe, &record)| PointPair { probe, record }));
        stars(&self.points, &mut self.coordinates, &mut self.stars);
        self.links.clear();
        for (star, &from) in self.stars.iter().zip(&self.others) {
            let mut links = [PairLink::default(); NEAREST];
            for ((link, edge), &to) in links.iter_mut().zip(star.edges()).zip(&star.to) {
                *link =
                    PairLink::between(to, edge, Edge::between(from, self.others[usize::from(to)]));
            }
            self.links.push(links);
        }
    }

    /// Picks the pairs with the most edges that agree on a scale, most first.
    fn pick(&mut self) {
        self.roots.clear();
        for (index, links) in self.links.iter().enumerate() {
            let votes =
                |scale: u32| links.iter().filter(|link| same_scale(link.scale, scale)).count();
            // The first of the best.
            let best = links.iter().filter(|link| link.scale != 0).fold((0, 0), |best, link| {
                let count = votes(link.scale);
                if count > best.0 { (count, link.to) } else { best }
            });
            if best.0 > 0 {
                self.roots.push(PhotoRoot {
                    tentative: index as u8,
                    to: best.1,
                    votes: best.0 as u8,
                });
            }
        }
        // Stable: equal counts keep their order.
        self.roots.sort_by_key(|root| Reverse(root.votes));
        self.roots.truncate(PHOTO_ROOTS_MAX);
    }
}

/// Returns the evidence of the pairs that agree with a pose. `bits` returns the number of differing
/// bits between the descriptors of a pair. `bits_max` is the most that a pair may have.
pub(crate) fn evidence(
    point_pairs: &[PointPair],
    agreed: &[PoseMatch],
    bits: impl Fn(usize) -> u16,
    bits_max: u32,
) -> Evidence {
    let mut evidence = Evidence { described: true, ..Evidence::default() };
    for it in agreed {
        let Some(pair) = point_pairs.get(it.index) else { continue };
        evidence.pairs += 1;
        evidence.kinds += u32::from(pair.probe.kind == pair.record.kind);
        evidence.length_error += (it.position_error * ERROR_SCALE as f32) as u32;
        evidence.angle_error += (it.direction_error * ERROR_SCALE as f32) as u32;
        evidence.descriptor_error += u32::from(bits(it.index)) * ERROR_SCALE / bits_max.max(1);
    }
    evidence
}

impl PairLink {
    /// Compares the edges of two tentative pairs in both images. The scale is 0 if the edges
    /// differ.
    fn between(to: u8, probe: Edge, record: Edge) -> PairLink {
        let start = angle_between(probe.start, record.start);
        let end = angle_between(probe.end, record.end);
        if start.max(end) > ANGLE_ERROR_MAX || probe.length.min(record.length) < LENGTH_MIN {
            return PairLink { to, ..PairLink::default() };
        }
        let scale = u32::from(record.length) * SCALE_ONE / u32::from(probe.length);
        let scale = if (SCALE_MIN..=SCALE_MAX).contains(&scale) { scale } else { 0 };
        PairLink { to, scale }
    }
}

fn same_scale(a: u32, b: u32) -> bool {
    a != 0 && b != 0 && a.abs_diff(b) * SCALE_PART <= b
}
