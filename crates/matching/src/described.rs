//! Photographs: points match only where their descriptors do, and lengths only up to a scale.
//!
//! Descriptors leave few candidates, so the order of work is the other way round than for fingerprints. First each
//! point gets the one partner whose descriptor is nearest, where both agree on that and the descriptors differ in few
//! bits. Then edges between near ones of these tentative pairs are compared in both images: angles have to agree as
//! they do for fingerprints, the ratio of lengths is taken as a scale. Each pair's scale is the one that most of its
//! edges agree on; the pairs with the most such edges are the roots, and from each a pairing grows along edges that
//! agree with its scale and turn.

use std::cmp::Reverse;

use kernels::binary::hamming256_many;
use kernels::graph::NEAREST;

use crate::edge::{Edge, PER_PIXEL, apart, turn};
use crate::evidence::{ERROR_SCALE, Evidence};
use crate::graph::{DESCRIPTOR_BYTES, VERTICES_MAX, Vertex};
use crate::matcher::Pair;
use crate::star::{Coordinates, Star, stars};
use crate::tuning::{ANGLE_ERROR_MAX, PHOTO_ROOTS_MAX, TURN_ERROR_MAX};

/// Steps of a scale of 1.
const SCALE_ONE: u32 = 1024;
/// Scales from a quarter to four times are looked for.
const SCALE_MAX: u32 = 4 * SCALE_ONE;
const SCALE_MIN: u32 = SCALE_ONE / 4;
/// Two scales are the same where they are within a part of this of each other: a sixth.
const SCALE_PART: u32 = 6;
/// Edges shorter than this in either image say nothing about scale.
const LENGTH_MIN: u16 = (4 * PER_PIXEL) as u16;

/// One image: its points and their descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Described<'a> {
    pub(crate) vertices: &'a [Vertex],
    pub(crate) descriptors: &'a [[u8; DESCRIPTOR_BYTES]],
}

/// Two points whose descriptors are alike.
#[derive(Clone, Copy, Debug)]
struct Tentative {
    pair: Pair,
    bits: u16,
}

/// An edge between two tentative pairs, compared in both images.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// The other pair.
    to: u8,
    /// Length in the record by length in the probe; 0 where the edges are not alike.
    scale: u32,
    /// Of both angles together, 0 to [`ERROR_SCALE`].
    angle_error: u32,
}

/// Where to grow from.
#[derive(Clone, Copy, Debug)]
struct Root {
    tentative: u8,
    votes: u8,
    scale: u32,
}

/// Working memory, reused from record to record.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    distances: Vec<u16>,
    /// For each probe vertex the nearest record vertex and how many bits it is away.
    nearest: Vec<(u16, u8)>,
    tentative: Vec<Tentative>,
    points: Vec<Vertex>,
    others: Vec<Vertex>,
    coordinates: Coordinates,
    stars: Vec<Star>,
    links: Vec<[Link; NEAREST]>,
    roots: Vec<Root>,
    taken: Vec<bool>,
    members: Vec<u8>,
    pairs: Vec<Pair>,
}

impl Desk {
    /// The best pairing of two photographs, into `pairs`, and what speaks for it.
    pub(crate) fn compare(
        &mut self,
        probe: Described<'_>,
        record: Described<'_>,
        bits_max: u32,
        pairs: &mut Vec<Pair>,
    ) -> Evidence {
        self.propose(probe, record, bits_max);
        self.link(probe, record);
        self.pick();
        let mut best = Evidence { described: true, ..Evidence::default() };
        for at in 0..self.roots.len() {
            let root = self.roots[at];
            let start = self.tentative[usize::from(root.tentative)].pair;
            if pairs.contains(&start) {
                continue;
            }
            let evidence = self.grow(root, bits_max);
            if evidence.weight() > best.weight() {
                best = evidence;
                std::mem::swap(pairs, &mut self.pairs);
            }
        }
        best
    }

    /// Pairs of points that are each other's nearest by descriptor, and near enough.
    fn propose(&mut self, probe: Described<'_>, record: Described<'_>, bits_max: u32) {
        self.tentative.clear();
        self.nearest.clear();
        self.nearest.resize(probe.descriptors.len(), (u16::MAX, 0));
        self.distances.resize(probe.descriptors.len(), 0);
        let mut forward = [None; VERTICES_MAX];
        for (index, (descriptor, forward)) in record.descriptors.iter().zip(&mut forward).enumerate() {
            hamming256_many(descriptor, probe.descriptors, &mut self.distances);
            let least = self.distances.iter().fold(u16::MAX, |least, &bits| least.min(bits));
            // Most points have no partner at all; one that is too far from everything is nobody's either.
            if u32::from(least) > bits_max {
                continue;
            }
            for (&bits, nearest) in self.distances.iter().zip(&mut self.nearest) {
                // Strictly less: of equal ones the lower index stays.
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
                self.tentative.push(Tentative { pair, bits });
            }
        }
    }

    /// Compares the edges between near pairs.
    fn link(&mut self, probe: Described<'_>, record: Described<'_>) {
        self.points.clear();
        self.others.clear();
        self.points.extend(self.tentative.iter().map(|t| probe.vertices[usize::from(t.pair.probe)]));
        self.others.extend(self.tentative.iter().map(|t| record.vertices[usize::from(t.pair.record)]));
        stars(&self.points, &mut self.coordinates, &mut self.stars);
        self.links.clear();
        for (star, &from) in self.stars.iter().zip(&self.others) {
            let mut links = [Link::default(); NEAREST];
            for ((link, edge), &to) in links.iter_mut().zip(star.edges()).zip(&star.to) {
                *link = Link::between(to, edge, Edge::between(from, self.others[usize::from(to)]));
            }
            self.links.push(links);
        }
    }

    /// The pairs with the most edges that agree on a scale, most first.
    fn pick(&mut self) {
        self.roots.clear();
        for (index, links) in self.links.iter().enumerate() {
            let votes = |scale: u32| links.iter().filter(|link| same_scale(link.scale, scale)).count();
            // The first of the best.
            let best = links.iter().filter(|link| link.scale != 0).fold((0, 0), |best, link| {
                let count = votes(link.scale);
                if count > best.0 { (count, link.scale) } else { best }
            });
            if best.0 > 0 {
                self.roots.push(Root { tentative: index as u8, votes: best.0 as u8, scale: best.1 });
            }
        }
        // Stable: equal ones stay in their order.
        self.roots.sort_by_key(|root| Reverse(root.votes));
        self.roots.truncate(PHOTO_ROOTS_MAX);
    }

    /// Grows a pairing from `root` into `self.pairs`.
    fn grow(&mut self, root: Root, bits_max: u32) -> Evidence {
        let turned =
            |at: usize| turn(self.points[at].direction).wrapping_sub(turn(self.others[at].direction));
        let about = turned(usize::from(root.tentative));
        let mut evidence = Evidence { described: true, ..Evidence::default() };
        self.taken.clear();
        self.taken.resize(self.tentative.len(), false);
        self.members.clear();
        self.members.push(root.tentative);
        self.taken[usize::from(root.tentative)] = true;
        let mut next = 0;
        while let Some(&from) = self.members.get(next) {
            next += 1;
            for link in &self.links[usize::from(from)] {
                let to = usize::from(link.to);
                if !same_scale(link.scale, root.scale) || apart(turned(to), about) > TURN_ERROR_MAX {
                    continue;
                }
                if self.taken[to] {
                    evidence.supports += 1;
                } else {
                    self.taken[to] = true;
                    self.members.push(link.to);
                    evidence.length_error += scale_error(link.scale, root.scale);
                    evidence.angle_error += link.angle_error;
                }
            }
        }
        self.pairs.clear();
        for &member in &self.members {
            let tentative = self.tentative[usize::from(member)];
            let at = usize::from(member);
            self.pairs.push(tentative.pair);
            evidence.pairs += 1;
            evidence.kinds += u32::from(self.points[at].kind == self.others[at].kind);
            evidence.descriptor_error += u32::from(tentative.bits) * ERROR_SCALE / bits_max.max(1);
        }
        evidence
    }
}

impl Link {
    fn between(to: u8, probe: Edge, record: Edge) -> Link {
        let (start, end) = (apart(probe.start, record.start), apart(probe.end, record.end));
        if start.max(end) > ANGLE_ERROR_MAX || probe.length.min(record.length) < LENGTH_MIN {
            return Link { to, ..Link::default() };
        }
        let scale = u32::from(record.length) * SCALE_ONE / u32::from(probe.length);
        let scale = if (SCALE_MIN..=SCALE_MAX).contains(&scale) { scale } else { 0 };
        let angle_error =
            (u32::from(start) + u32::from(end)) * ERROR_SCALE / (2 * u32::from(ANGLE_ERROR_MAX));
        Link { to, scale, angle_error }
    }
}

fn same_scale(a: u32, b: u32) -> bool {
    a != 0 && b != 0 && a.abs_diff(b) * SCALE_PART <= b
}

/// 0 to [`ERROR_SCALE`] for scales that are the same.
fn scale_error(a: u32, b: u32) -> u32 {
    a.abs_diff(b) * SCALE_PART * ERROR_SCALE / b.max(1)
}
