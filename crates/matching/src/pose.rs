//! The pose of one photograph over another: rotation, scale and shift, found from two pairs and
//! fitted to all that agree.
//!
//! All arithmetic is in single precision and in the order of the pairs. Complex numbers avoid the
//! sine of every angle.

use crate::edge::{angle_between, to_angle};
use crate::graph::Vertex;
use crate::tuning::{POSE_ANGLE_ERROR_MAX, POSE_CONE, POSE_CONE_FITTED, POSE_NEAR, POSE_SCALE_MAX};

/// Times that a pose is fitted to the pairs that agree with it.
const FITS: usize = 2;
/// Steps of a vertex's kind to a doubling of its scale.
const KINDS_PER_DOUBLING: i32 = 8;
/// Maximum difference of the scales of two points, in such steps.
const KIND_ERROR_MAX: i32 = 5;
/// 2^(0/8), 2^(1/8) and so on.
const DOUBLING: [f32; 8] = [
    1.0,
    1.090_507_7,
    1.189_207_1,
    1.296_839_6,
    std::f32::consts::SQRT_2,
    1.542_210_8,
    1.681_792_8,
    1.834_008,
];

/// A map from probe positions to record positions: `from` goes to `to`, turned and scaled about it
/// by (re, im).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pose {
    from: (f32, f32),
    to: (f32, f32),
    re: f32,
    im: f32,
}

/// Two vertices that may be one point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointPair {
    pub(crate) probe: Vertex,
    pub(crate) record: Vertex,
}

/// Squared distances of a pair under a pose, in the record's pixels.
struct PairDistances {
    /// Distance of the record's vertex from the position that the pose gives the probe's vertex.
    from_expected: f32,
    /// Distance of that position from the pose's centre.
    from_centre: f32,
}

/// A pair that agrees with a pose, and its errors, each 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PoseMatch {
    /// Index of the pair.
    pub(crate) index: usize,
    /// Error of the position, as a share of its tolerance.
    pub(crate) position_error: f32,
    /// Error of the direction, as a share of its tolerance.
    pub(crate) direction_error: f32,
}

impl Pose {
    /// Returns the pose that lays `a` and `b` over each other, or `None` if they are one position
    /// or the scale is out of range.
    fn between(a: PointPair, b: PointPair) -> Option<Pose> {
        let (px, py) = minus(b.probe, a.probe);
        let (rx, ry) = minus(b.record, a.record);
        let square = px * px + py * py;
        if square == 0.0 {
            return None;
        }
        let (re, im) = ((rx * px + ry * py) / square, (ry * px - rx * py) / square);
        Pose { from: place(a.probe), to: place(a.record), re, im }.checked()
    }

    /// Returns the pose with the least sum of squared distances over the `pairs` that agreed.
    fn fitted(pairs: &[PointPair], agreed: &[PoseMatch]) -> Option<Pose> {
        let of = || agreed.iter().filter_map(|it| pairs.get(it.index));
        let share = 1.0 / agreed.len().max(1) as f32;
        let (mut from, mut to) = ((0.0, 0.0), (0.0, 0.0));
        for PointPair { probe, record } in of() {
            from = (from.0 + f32::from(probe.x) * share, from.1 + f32::from(probe.y) * share);
            to = (to.0 + f32::from(record.x) * share, to.1 + f32::from(record.y) * share);
        }
        let mut square = 0.0;
        let mut re = 0.0;
        let mut im = 0.0;
        for PointPair { probe, record } in of() {
            let (px, py) = (f32::from(probe.x) - from.0, f32::from(probe.y) - from.1);
            let (rx, ry) = (f32::from(record.x) - to.0, f32::from(record.y) - to.1);
            square += px * px + py * py;
            re += rx * px + ry * py;
            im += ry * px - rx * py;
        }
        if square == 0.0 {
            return None;
        }
        Pose { from, to, re: re / square, im: im / square }.checked()
    }

    fn checked(self) -> Option<Pose> {
        let square = self.re * self.re + self.im * self.im;
        let most = POSE_SCALE_MAX * POSE_SCALE_MAX;
        (square <= most && square * most >= 1.0).then_some(self)
    }

    /// Returns the distances of a pair under this pose.
    fn distances(&self, pair: PointPair) -> PairDistances {
        let (x, y) = (f32::from(pair.probe.x) - self.from.0, f32::from(pair.probe.y) - self.from.1);
        let (sx, sy) = (self.re * x - self.im * y, self.re * y + self.im * x);
        let (dx, dy) =
            (self.to.0 + sx - f32::from(pair.record.x), self.to.1 + sy - f32::from(pair.record.y));
        PairDistances { from_expected: dx * dx + dy * dy, from_centre: sx * sx + sy * sy }
    }

    /// Replaces the content of `agreed` by the pairs that agree with the pose. A position may be
    /// off by `tolerance` plus the share `cone` of the distance from the centre. The tolerances of
    /// direction and scale are fixed.
    fn agree(&self, pairs: &[PointPair], tolerance: f32, cone: f32, agreed: &mut Vec<PoseMatch>) {
        agreed.clear();
        // Rows count downwards, so a turn towards greater y is one clockwise as seen.
        let turned = crate::edge::heading((self.re * 1024.0) as i32, (-self.im * 1024.0) as i32);
        let square = self.re * self.re + self.im * self.im;
        for (index, &pair) in pairs.iter().enumerate() {
            let PointPair { probe, record } = pair;
            let PairDistances { from_expected, from_centre } = self.distances(pair);
            let reach = tolerance + cone * from_centre.sqrt();
            if from_expected > reach * reach || !same_scale(probe.kind, record.kind, square) {
                continue;
            }
            let error = angle_between(
                to_angle(record.direction).wrapping_sub(to_angle(probe.direction)),
                turned,
            );
            if error <= POSE_ANGLE_ERROR_MAX {
                let direction_error = f32::from(error) / f32::from(POSE_ANGLE_ERROR_MAX);
                agreed.push(PoseMatch {
                    index,
                    position_error: (from_expected / (reach * reach)).sqrt(),
                    direction_error,
                });
            }
        }
    }
}

/// Replaces the content of `agreed` by the pairs that agree with one pose. The first pose is that
/// of the two pairs `root`, which are indexes of `pairs`. It is then fitted to the agreeing pairs,
/// [`FITS`] times. `tolerance` is the tolerance of a position in pixels of the record. `agreed` is
/// empty if no pose can be computed.
pub(crate) fn verify(
    pairs: &[PointPair],
    root: (usize, usize),
    tolerance: f32,
    agreed: &mut Vec<PoseMatch>,
) {
    agreed.clear();
    let (Some(&a), Some(&b)) = (pairs.get(root.0), pairs.get(root.1)) else { return };
    let Some(mut pose) = Pose::between(a, b) else { return };
    pose.agree(pairs, tolerance, POSE_CONE, agreed);
    for _ in 0..FITS {
        match Pose::fitted(pairs, agreed) {
            Some(fitted) => pose = fitted,
            None => return agreed.clear(),
        }
        pose.agree(pairs, tolerance, POSE_CONE_FITTED, agreed);
    }
}

/// Returns the tolerance of a position for a record with these vertices, in pixels.
pub(crate) fn position_tolerance(vertices: &[Vertex]) -> f32 {
    let span = |of: fn(&Vertex) -> i16| {
        let (low, high) = vertices
            .iter()
            .map(of)
            .fold((i16::MAX, i16::MIN), |(low, high), at| (low.min(at), high.max(at)));
        if low > high { 0.0 } else { f32::from(high) - f32::from(low) }
    };
    1.0 + POSE_NEAR * span(|vertex| vertex.x).max(span(|vertex| vertex.y))
}

/// Returns true if the scales of two points differ as the images do. `square` is the squared scale
/// of the images.
pub(crate) fn same_scale(probe: u8, record: u8, square: f32) -> bool {
    if probe == 0 || record == 0 {
        return true;
    }
    let steps = i32::from(record) - i32::from(probe);
    let low = power(2 * (steps - KIND_ERROR_MAX));
    let high = power(2 * (steps + KIND_ERROR_MAX));
    (low..=high).contains(&square)
}

/// Returns 2^(steps/8).
fn power(steps: i32) -> f32 {
    let whole = steps.div_euclid(KINDS_PER_DOUBLING).clamp(-126, 127);
    let part = DOUBLING[steps.rem_euclid(KINDS_PER_DOUBLING) as usize];
    f32::from_bits(((whole + 127) as u32) << 23) * part
}

fn place(vertex: Vertex) -> (f32, f32) {
    (f32::from(vertex.x), f32::from(vertex.y))
}

fn minus(a: Vertex, b: Vertex) -> (f32, f32) {
    (f32::from(a.x) - f32::from(b.x), f32::from(a.y) - f32::from(b.y))
}
