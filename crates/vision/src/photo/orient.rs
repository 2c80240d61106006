//! Directions of keypoints: along the strongest gradients around them.

use super::Keypoint;
use super::scale_space::ScaleSpace;
use super::tables::{direction, exp_minus};

/// Number of directions in which gradients are counted.
const BINS: usize = 36;
/// Standard deviation of the window, in standard deviations of the keypoint (Lowe).
const WINDOW_SIGMAS: f32 = 1.5;
/// Minimum share of the strongest direction with which another one makes a second keypoint (Lowe).
const SECOND_PEAK_MIN: f32 = 0.8;
/// Number of times that the histogram of directions is smoothed.
const SMOOTHINGS: usize = 3;

/// A keypoint with one of its directions.
struct OrientedKeypoint {
    keypoint: Keypoint,
    /// True if this is the strongest direction of the keypoint.
    strongest: bool,
}

/// Returns the keypoints with their directions, at most `count`, in the order of `found`.
///
/// Further directions of a keypoint take only the room that the strongest directions of all
/// keypoints leave. Otherwise they would displace the last keypoints of `found`, which are those of
/// plain areas.
pub(super) fn oriented(space: &ScaleSpace, found: &[Keypoint], count: usize) -> Vec<Keypoint> {
    let all = all_directions(space, found);
    let strongest = all.iter().filter(|oriented| oriented.strongest).count();
    let mut room = count.saturating_sub(strongest);
    let mut out = Vec::with_capacity(count.min(all.len()));
    for OrientedKeypoint { keypoint, strongest } in all {
        if !strongest {
            if room == 0 {
                continue;
            }
            room -= 1;
        }
        out.push(keypoint);
    }
    out.truncate(count);
    out
}

/// Returns the keypoints once for each of their directions.
fn all_directions(space: &ScaleSpace, found: &[Keypoint]) -> Vec<OrientedKeypoint> {
    let mut all = Vec::new();
    for keypoint in found {
        let histogram = histogram(space, keypoint);
        let most = histogram.iter().fold(0.0_f32, |most, &value| most.max(value));
        for bin in 0..BINS {
            let (before, here, after) =
                (histogram[(bin + BINS - 1) % BINS], histogram[bin], histogram[(bin + 1) % BINS]);
            if here <= 0.0 || here < SECOND_PEAK_MIN * most || here <= before || here < after {
                continue;
            }
            let off = 0.5 * (before - after) / (before + after - 2.0 * here);
            let turns = (bin as f32 + 0.5 + off) / BINS as f32;
            let keypoint = Keypoint { direction: turns - turns.floor(), ..*keypoint };
            all.push(OrientedKeypoint { keypoint, strongest: here >= most });
        }
    }
    all
}

/// Returns the directions of brightness around a keypoint, weighted by their strength and
/// nearness.
fn histogram(space: &ScaleSpace, keypoint: &Keypoint) -> [f32; BINS] {
    let mut bins = [0.0; BINS];
    let level =
        space.octaves.get(keypoint.octave).and_then(|octave| octave.levels.get(keypoint.level));
    let Some(plane) = level else { return bins };
    let shrunk = 1.0 / (1_u32 << keypoint.octave) as f32;
    let (x, y) = (keypoint.x * shrunk, keypoint.y * shrunk);
    let sigma = WINDOW_SIGMAS * keypoint.sigma;
    let radius = (3.0 * sigma) as isize;
    let (column, row) = ((x + 0.5) as isize, (y + 0.5) as isize);
    let rows = (row - radius).max(1)..(row + radius + 1).min(plane.height as isize - 1);
    let (left, right) =
        ((column - radius).max(1), (column + radius + 1).min(plane.width as isize - 1));
    let reach = (radius * radius) as f32;
    for py in rows {
        let at = py as usize;
        let (above, here, below) = (plane.row(at - 1), plane.row(at), plane.row(at + 1));
        for px in left..right {
            let (ox, oy) = (px as f32 - x, py as f32 - y);
            let square = ox * ox + oy * oy;
            if square > reach {
                continue;
            }
            let px = px as usize;
            // Rows count downwards, directions turn counter-clockwise as seen.
            let (dx, dy) = (here[px + 1] - here[px - 1], above[px] - below[px]);
            let weight = exp_minus(square / (2.0 * sigma * sigma)) * (dx * dx + dy * dy).sqrt();
            let bin = ((direction(dx, dy) * BINS as f32) as usize).min(BINS - 1);
            bins[bin] += weight;
        }
    }
    for _ in 0..SMOOTHINGS {
        let old = bins;
        for (bin, value) in bins.iter_mut().enumerate() {
            *value = (old[(bin + BINS - 1) % BINS] + old[bin] + old[(bin + 1) % BINS]) / 3.0;
        }
    }
    bins
}
