//! Alignment of two images, and the vertices of each within the other's outline.
//!
//! Two impressions of a finger share a part of it. Within that part most points should have
//! partners. The outline is an octagon (the extent along eight directions): nearly as tight as a
//! convex hull, and tested in a few additions.

use crate::evidence::{Evidence, Pair};
use crate::graph::Vertex;

/// Margin of the outline in pixels. It is not a whole number, so that rounding decides nothing
/// about points on the outline of an image aligned with itself.
const MARGIN: f32 = 6.4;

/// The extent of points across, down and along both diagonals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outline {
    low: [f32; 4],
    high: [f32; 4],
}

impl Outline {
    /// Returns the outline of a graph's vertices, with a margin.
    pub(crate) fn around(vertices: &[Vertex]) -> Outline {
        let mut outline = Outline { low: [f32::MAX; 4], high: [f32::MIN; 4] };
        for vertex in vertices {
            let along = directions(f32::from(vertex.x), f32::from(vertex.y));
            for ((low, high), along) in outline.low.iter_mut().zip(&mut outline.high).zip(along) {
                *low = low.min(along - MARGIN);
                *high = high.max(along + MARGIN);
            }
        }
        outline
    }

    fn contains(&self, x: f32, y: f32) -> bool {
        let along = directions(x, y);
        (0..4).fold(true, |inside, axis| {
            inside & (along[axis] >= self.low[axis]) & (along[axis] <= self.high[axis])
        })
    }
}

fn directions(x: f32, y: f32) -> [f32; 4] {
    // The diagonals are not made to unit length, so their margin is a little narrower.
    [x, y, x + y, x - y]
}

/// A rotation and a shift from probe to record.
#[derive(Clone, Copy, Debug)]
struct RigidTransform {
    cos: f32,
    sin: f32,
    probe: [f32; 2],
    record: [f32; 2],
}

impl RigidTransform {
    /// Returns the rotation and shift with the least squared distance between partners: the
    /// two-dimensional case of Kabsch's solution (1976). Sums are of integers, so their order does
    /// not matter.
    fn of(pairs: &[Pair], probe: &[Vertex], record: &[Vertex]) -> Option<RigidTransform> {
        let count = pairs.len() as i64;
        let (mut p, mut r) = ([0_i64; 2], [0_i64; 2]);
        let mut along = 0_i64;
        let mut across = 0_i64;
        for pair in pairs {
            let a = probe.get(usize::from(pair.probe))?;
            let b = record.get(usize::from(pair.record))?;
            let (ax, ay, bx, by) = (i64::from(a.x), i64::from(a.y), i64::from(b.x), i64::from(b.y));
            p = [p[0] + ax, p[1] + ay];
            r = [r[0] + bx, r[1] + by];
            along += ax * bx + ay * by;
            across += ax * by - ay * bx;
        }
        let along = (count * along - p[0] * r[0] - p[1] * r[1]) as f32;
        let across = (count * across - p[0] * r[1] + p[1] * r[0]) as f32;
        let norm = (along * along + across * across).sqrt();
        if norm <= 0.0 || !norm.is_finite() {
            return None;
        }
        let mean = |sum: [i64; 2]| [sum[0] as f32 / count as f32, sum[1] as f32 / count as f32];
        Some(RigidTransform {
            cos: along / norm,
            sin: across / norm,
            probe: mean(p),
            record: mean(r),
        })
    }

    /// Returns the position in the record that a vertex of the probe has under this alignment.
    fn position_in_record(&self, vertex: Vertex) -> (f32, f32) {
        let (x, y) = (f32::from(vertex.x) - self.probe[0], f32::from(vertex.y) - self.probe[1]);
        (self.cos * x - self.sin * y + self.record[0], self.sin * x + self.cos * y + self.record[1])
    }

    /// Returns the position in the probe that a vertex of the record has under this alignment.
    fn position_in_probe(&self, vertex: Vertex) -> (f32, f32) {
        let (x, y) = (f32::from(vertex.x) - self.record[0], f32::from(vertex.y) - self.record[1]);
        (self.cos * x + self.sin * y + self.probe[0], self.cos * y - self.sin * x + self.probe[1])
    }
}

/// Counts the vertices of each graph that lie within the other.
pub(crate) fn measure_overlap(
    pairs: &[Pair],
    probe: (&[Vertex], &Outline),
    record: (&[Vertex], &Outline),
    evidence: &mut Evidence,
) {
    let Some(placement) = RigidTransform::of(pairs, probe.0, record.0) else {
        evidence.probe_covered = probe.0.len() as u32;
        evidence.record_covered = record.0.len() as u32;
        return;
    };
    let inside = |(x, y): (f32, f32), outline: &Outline| u32::from(outline.contains(x, y));
    evidence.probe_covered =
        probe.0.iter().map(|&vertex| inside(placement.position_in_record(vertex), record.1)).sum();
    evidence.record_covered =
        record.0.iter().map(|&vertex| inside(placement.position_in_probe(vertex), probe.1)).sum();
}
