//! Finds the points that differ most from their surroundings, each at the scale of the largest
//! difference.

use super::Keypoint;
use super::scale_space::{BrightnessPlane, INTERVALS, LEVELS, Octave, SIGMA, ScaleSpace};

/// Minimum difference, of a brightness of 0 to 1. Smaller ones are noise.
const RESPONSE_MIN: f32 = 0.004;
/// Maximum ratio of the two principal curvatures (Lowe, 2004). A larger ratio means a point on an
/// edge, whose position along the edge is not stable.
const EDGE_RATIO: f32 = 10.0;
/// Distance of extrema from the border, in pixels.
const BORDER: usize = 5;
/// Maximum extrema of one image before the best are chosen, because noise has many.
const EXTREMA_MAX: usize = 20_000;
/// 2^(1/3).
const STEP: f32 = 1.259_921;
/// Cells along the longer side of the image that share the points among them.
const CELLS: usize = 6;

/// Returns the best `count` keypoints, best first.
pub(super) fn keypoints(space: &ScaleSpace, count: usize) -> Vec<Keypoint> {
    let mut found = Vec::new();
    for (index, octave) in space.octaves.iter().enumerate() {
        extrema(index, octave, &mut found);
    }
    // Stable, so equal ones keep the order in which they were found.
    found.sort_by(|a, b| b.response.total_cmp(&a.response));
    let size = space.octaves.first().and_then(|octave| octave.levels.first());
    size.map_or_else(Vec::new, |plane| spread(&found, plane, count))
}

/// Selects keypoints. Half of them are the best of the whole image. The others are the best of each
/// cell in turn, so that a plain corner has some too.
fn spread(found: &[Keypoint], plane: &BrightnessPlane, count: usize) -> Vec<Keypoint> {
    let side = plane.width.max(plane.height).div_ceil(CELLS).max(1);
    let mut ranks = [0_u32; CELLS * CELLS];
    let mut ranked: Vec<(u32, usize)> = Vec::with_capacity(found.len());
    for (index, keypoint) in found.iter().enumerate() {
        let cell = (keypoint.y as usize / side) * CELLS + keypoint.x as usize / side;
        let Some(rank) = ranks.get_mut(cell) else { continue };
        // The better half of the result is ranked by response alone.
        ranked.push((if index < count / 2 { 0 } else { *rank }, index));
        *rank += 1;
    }
    ranked.sort_unstable();
    ranked.truncate(count);
    ranked.sort_unstable_by_key(|&(_, index)| index);
    ranked.iter().filter_map(|&(_, index)| found.get(index).copied()).collect()
}

/// Adds the local extrema of the differences between neighbouring levels of an octave.
fn extrema(index: usize, octave: &Octave, found: &mut Vec<Keypoint>) {
    let Some(first) = octave.levels.first() else { return };
    let (width, height) = (first.width, first.height);
    if width <= 2 * BORDER || height <= 2 * BORDER {
        return;
    }
    let differences: Vec<Vec<f32>> = octave
        .levels
        .windows(2)
        .map(|pair| pair[1].values.iter().zip(&pair[0].values).map(|(b, a)| b - a).collect())
        .collect();
    debug_assert_eq!(differences.len(), LEVELS - 1);
    for level in 1..=INTERVALS {
        let around = [&differences[level - 1], &differences[level], &differences[level + 1]];
        for y in BORDER..height - BORDER {
            for x in BORDER..width - BORDER {
                let at = y * width + x;
                let value = around[1][at];
                if value.abs() < RESPONSE_MIN || !is_extremum(around, at, width, value) {
                    continue;
                }
                if found.len() >= EXTREMA_MAX {
                    return;
                }
                found.extend(
                    refined(around, at, width)
                        .map(|place| place.keypoint(index, level, x as f32, y as f32)),
                );
            }
        }
    }
}

/// Returns true if `value`, at the index `at` of the middle plane, is a maximum (if positive) or a
/// minimum among its 26 neighbours. `around` are the planes of one scale below, of this one, and of
/// one above.
fn is_extremum(around: [&Vec<f32>; 3], at: usize, width: usize, value: f32) -> bool {
    let beats = |other: f32| if value > 0.0 { value >= other } else { value <= other };
    // Its own level first: most candidates fail there.
    let rows = [at - width, at, at + width];
    [1, 0, 2].into_iter().all(|level| {
        rows.into_iter().all(|middle| {
            let of: &Vec<f32> = around[level];
            beats(of[middle - 1]) && beats(of[middle]) && beats(of[middle + 1])
        })
    })
}

/// An extremum between pixels and scales, as offsets of at most half a step.
struct Extremum {
    x: f32,
    y: f32,
    scale: f32,
    response: f32,
}

/// Fits a parabola along each axis. Returns `None` on edges.
fn refined(around: [&Vec<f32>; 3], at: usize, width: usize) -> Option<Extremum> {
    let now = around[1];
    let value = now[at];
    let (dxx, dyy) =
        (now[at + 1] + now[at - 1] - 2.0 * value, now[at + width] + now[at - width] - 2.0 * value);
    let dxy = (now[at + width + 1] - now[at + width - 1] - now[at - width + 1]
        + now[at - width - 1])
        * 0.25;
    let trace = dxx + dyy;
    let determinant = dxx * dyy - dxy * dxy;
    if determinant <= 0.0
        || trace * trace * EDGE_RATIO >= (EDGE_RATIO + 1.0) * (EDGE_RATIO + 1.0) * determinant
    {
        return None;
    }
    let top = |before: f32, after: f32| {
        let curve = before + after - 2.0 * value;
        if curve == 0.0 { 0.0 } else { ((before - after) / (2.0 * curve)).clamp(-0.5, 0.5) }
    };
    Some(Extremum {
        x: top(now[at - 1], now[at + 1]),
        y: top(now[at - width], now[at + width]),
        scale: top(around[0][at], around[2][at]),
        response: value.abs(),
    })
}

impl Extremum {
    /// Converts the extremum at (x, y) of this octave and level to a keypoint in pixels of the
    /// working image. Its `sigma` is in pixels of the octave.
    fn keypoint(&self, octave: usize, level: usize, x: f32, y: f32) -> Keypoint {
        let grown = (1_u32 << octave) as f32;
        let whole = (0..level).fold(SIGMA, |sigma, _| sigma * STEP);
        // 2^(s/3) to the second order; s is at most a half.
        let part = self.scale * (std::f32::consts::LN_2 / 3.0);
        Keypoint {
            x: (x + self.x) * grown,
            y: (y + self.y) * grown,
            octave,
            level,
            sigma: whole * (1.0 + part + part * part * 0.5),
            response: self.response,
            direction: 0.0,
        }
    }
}
