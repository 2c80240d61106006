//! Tolerances, and the worth of each piece of evidence.

use crate::edge::{DEGREE, PER_PIXEL};

/// Maximum difference of the lengths of one edge in two impressions.
pub(crate) const LENGTH_ERROR_MAX: u16 = (13 * PER_PIXEL) as u16;
/// Maximum difference of an angle at its ends.
pub(crate) const ANGLE_ERROR_MAX: u16 = (15.0 * DEGREE) as u16;
/// Maximum difference between the rotation of a pair and the rotation of the root.
pub(crate) const TURN_ERROR_MAX: u16 = (25.0 * DEGREE) as u16;
/// Maximum roots that are grown.
pub(crate) const ROOTS_MAX: usize = 12;
/// Minimum votes of a root.
pub(crate) const VOTES_MIN: u8 = 2;
/// Maximum roots of photographs, which are more certain.
pub(crate) const PHOTO_ROOTS_MAX: usize = 6;
/// Tolerance of a position between two photographs of one thing, as a share of the record's
/// longer side.
pub(crate) const POSE_NEAR: f32 = 0.01;
/// Further tolerance by distance from the centre, while only two pairs give the pose.
pub(crate) const POSE_CONE: f32 = 0.12;
/// The same once the pose is fitted to many pairs.
pub(crate) const POSE_CONE_FITTED: f32 = 0.015;
/// Tolerance of a direction.
pub(crate) const POSE_ANGLE_ERROR_MAX: u16 = (20.0 * DEGREE) as u16;
/// Largest scale; the smallest is its inverse.
pub(crate) const POSE_SCALE_MAX: f32 = 4.0;

// Weights: a logistic regression of "the same finger" over the pairs of FVC2002's DB1_B and DB2_B,
// its coefficients times ten. That is little data, so it was also fitted on either set alone: the
// misses on the other set at a false match rate of 0.1 % then grow by less than a point.
/// A pair of vertices.
pub(crate) const PAIR: f32 = 13.0;
/// A pair whose vertices are of one kind.
pub(crate) const SAME_KIND: f32 = 8.7;
/// A supporting edge.
pub(crate) const SUPPORT: f32 = 2.3;
/// An edge of the tree whose length is at its tolerance.
pub(crate) const LENGTH_ERROR: f32 = 8.0;
/// An edge of the tree whose angles are at their tolerance.
pub(crate) const ANGLE_ERROR: f32 = 15.6;
/// A vertex in the shared part, of the graph that has more there.
pub(crate) const COVERED: f32 = 2.6;
/// Constant offset. Most impostors stay above 0 with it, so that their scores can be compared.
pub(crate) const OFFSET: f32 = 40.0;
/// A pair of vertices of photographs with similar descriptors.
pub(crate) const PHOTO_PAIR: f32 = 25.0;
/// A pair whose descriptors differ in as many bits as the tolerance allows.
pub(crate) const DESCRIPTOR_ERROR: f32 = 12.0;
