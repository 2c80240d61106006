//! Selection: the area of the fingerprint, and the line ends that are minutiae.

use std::f32::consts::TAU;

use matching::Vertex;

use super::plane::Plane;
use super::ridges::CELL;
use super::trace::End;

/// Minimum share of the variance that passes the filters in a fingerprint.
const QUALITY_MIN: f32 = 0.12;
/// Deviation in cells of the smoothing of this share.
const SHARE_SMOOTHING: f32 = 2.0;
/// Deviation in cells of the smoothing of the area in which this share is enough.
const AREA_SMOOTHING: f32 = 3.0;
/// Minimum contrast of a fingerprint, as a share of the contrast of the better parts of the image.
const CONTRAST_SHARE: f32 = 0.25;
/// Minimum contrast of a fingerprint in steps of brightness.
const CONTRAST_MIN: f32 = 4.0;
/// Percentile of contrast that stands for the better parts.
const BETTER_PERCENTILE: usize = 85;
/// Minimum pixels from a minutia to the border of the area. All lines end at that border.
const MARGIN: f32 = 6.0;
/// Pixels ahead of a line's end at which ridges must continue.
const AHEAD: f32 = 16.0;
/// Two ends that face each other within this many pixels are a broken line.
const GAP: f32 = 12.0;
/// Maximum angle, in turns, between the direction of such an end and the line to the other end.
const GAP_ANGLE: f32 = 0.14;
/// A minutia with this many others within `NOISE_RADIUS` is noise.
const NOISE_NEIGHBOURS: usize = 5;
/// Distance in pixels within which two minutiae count as neighbours.
const NOISE_RADIUS: f32 = 24.0;
/// Maximum minutiae that are examined, the best ones.
const CANDIDATES_MAX: usize = 1024;
/// Maximum minutiae that are kept, the best ones. A fingerprint has fewer. More come from dirt and
/// help impostors.
pub(super) const KEPT_MAX: usize = 80;

/// Returns the least contrast of a fingerprint in this image.
pub(super) fn contrast_min(contrast: &Plane) -> f32 {
    let mut sorted = contrast.values.clone();
    sorted.sort_by(f32::total_cmp);
    let better = sorted.get(sorted.len() * BETTER_PERCENTILE / 100).copied().unwrap_or(0.0);
    (better * CONTRAST_SHARE).max(CONTRAST_MIN)
}

/// Quality of each cell, and the cells of the fingerprint.
#[derive(Clone, Debug)]
pub(super) struct Area {
    /// Share of the variance that the filters let pass, 0 to about 1.
    pub(super) quality: Plane,
    inside: Vec<bool>,
}

impl Area {
    /// Finds the area. `ridges` is the filtered `even`.
    pub(super) fn of(even: &Plane, ridges: &Plane, contrast: &Plane, contrast_min: f32) -> Area {
        let power = |plane: &Plane| plane.squared().cells(CELL).smoothed(SHARE_SMOOTHING);
        let quality = power(ridges).with(&power(even), |passed, whole| passed / (whole + 0.05));
        let good = quality.with(contrast, |quality, contrast| {
            f32::from(u8::from(quality > QUALITY_MIN && contrast > contrast_min))
        });
        let inside =
            good.smoothed(AREA_SMOOTHING).values.iter().map(|&share| share > 0.5).collect();
        Area { quality, inside }
    }

    /// Returns the quality in 256 steps, 0 outside of the fingerprint.
    pub(super) fn map(&self) -> Vec<u8> {
        let step = |(&quality, &inside): (&f32, &bool)| {
            if inside { (quality * 255.0).clamp(0.0, 255.0) as u8 } else { 0 }
        };
        self.quality.values.iter().zip(&self.inside).map(step).collect()
    }

    /// Returns true if the pixel belongs to the fingerprint.
    pub(super) fn holds(&self, x: usize, y: usize) -> bool {
        self.inside[y / CELL * self.quality.width + x / CELL]
    }

    /// Returns the cell of a position, or `None` outside of the image.
    fn cell(&self, x: f32, y: f32) -> Option<usize> {
        let (column, row) = ((x / CELL as f32).floor(), (y / CELL as f32).floor());
        let within = column >= 0.0 && row >= 0.0 && (column as usize) < self.quality.width;
        within
            .then(|| row as usize * self.quality.width + column as usize)
            .filter(|&cell| cell < self.inside.len())
    }

    /// Returns true if the fingerprint holds the circle of [`MARGIN`] pixels around the end of a
    /// line, and the point [`AHEAD`] pixels ahead of it.
    fn holds_surroundings(&self, end: &End) -> bool {
        let inside = |x: f32, y: f32| {
            self.cell(x, y).and_then(|cell| self.inside.get(cell)).copied().unwrap_or(false)
        };
        let is_inside_at = |turns: f32, distance: f32| {
            let (sin, cos) = (turns * TAU).sin_cos();
            inside(end.x + distance * cos, end.y - distance * sin)
        };
        (0..16_u8).all(|step| is_inside_at(f32::from(step) / 16.0, MARGIN))
            && is_inside_at(end.angle + 0.5, AHEAD)
    }
}

/// A minutia and the quality of its surroundings.
#[derive(Clone, Copy, Debug)]
pub(super) struct MinutiaCandidate {
    pub(super) vertex: Vertex,
    quality: f32,
}

/// Appends the `ends` (sorted from the top down) that are not a break of a line and not at the
/// border.
pub(super) fn candidates(ends: &[End], kind: u8, area: &Area, out: &mut Vec<MinutiaCandidate>) {
    for (index, end) in ends.iter().enumerate() {
        let near = |other: &&End| (other.y - end.y).abs() <= GAP;
        let above = ends[..index].iter().rev().take_while(near);
        let below = ends[index + 1..].iter().take_while(near);
        if !area.holds_surroundings(end) || above.chain(below).any(|other| facing(end, other)) {
            continue;
        }
        let quality = area.cell(end.x, end.y).map_or(0.0, |cell| area.quality.values[cell]);
        let vertex = Vertex {
            x: end.x.round() as i16,
            y: end.y.round() as i16,
            direction: ((end.angle * 256.0).round() as u16 % 256) as u8,
            kind,
        };
        out.push(MinutiaCandidate { vertex, quality });
    }
}

/// Returns true if two ends belong to one broken line.
fn facing(one: &End, other: &End) -> bool {
    let right = other.x - one.x;
    let up = one.y - other.y;
    let way = up.atan2(right) / TAU;
    let apart = |a: f32, b: f32| {
        let between = (a - b).rem_euclid(1.0);
        between.min(1.0 - between)
    };
    right.hypot(up) <= GAP
        && apart(one.angle, way + 0.5) < GAP_ANGLE
        && apart(other.angle, way) < GAP_ANGLE
}

/// Returns at most [`KEPT_MAX`] minutiae, best first. A minutia with [`NOISE_NEIGHBOURS`] others
/// nearby is left out.
pub(super) fn select_minutiae(mut candidates: Vec<MinutiaCandidate>) -> Vec<Vertex> {
    candidates.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    candidates.truncate(CANDIDATES_MAX);
    let near = |a: &MinutiaCandidate, b: &MinutiaCandidate| {
        let (across, down) = (a.vertex.x.abs_diff(b.vertex.x), a.vertex.y.abs_diff(b.vertex.y));
        f32::from(across).hypot(f32::from(down)) < NOISE_RADIUS
    };
    candidates
        .iter()
        // A minutia is near to itself.
        .filter(|one| {
            candidates.iter().filter(|other| near(one, other)).count() <= NOISE_NEIGHBOURS
        })
        .map(|candidate| candidate.vertex)
        .take(KEPT_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(x: i16, y: i16, quality: f32) -> MinutiaCandidate {
        MinutiaCandidate { vertex: Vertex { x, y, direction: 0, kind: 1 }, quality }
    }

    #[test]
    fn a_broken_line_is_two_ends_that_face_each_other() {
        // An end's angle leads along its line, away from the gap.
        let (left, right) =
            (End { x: 20.0, y: 30.0, angle: 0.5 }, End { x: 28.0, y: 31.0, angle: 0.02 });
        assert!(facing(&left, &right) && facing(&right, &left));
        assert!(!facing(&left, &End { angle: 0.5, ..right }), "both lines on one side");
        assert!(!facing(&left, &End { y: 40.0, ..right }), "past each other");
        assert!(!facing(&left, &End { x: 36.0, ..right }), "too far");
    }

    #[test]
    fn crowds_are_removed_and_the_best_come_first() {
        let crowd = (0..6).map(|at| candidate(10 + at, 10, 0.9));
        let alone = [candidate(100, 100, 0.2), candidate(200, 100, 0.5)];
        let kept = select_minutiae(crowd.chain(alone).collect());
        assert_eq!(kept.iter().map(|vertex| vertex.x).collect::<Vec<_>>(), [200, 100]);
        let many = (0..200).map(|at| candidate(at * 30, 0, f32::from(at))).collect();
        assert_eq!(select_minutiae(many).len(), KEPT_MAX);
    }
}
