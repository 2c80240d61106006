//! Tolerances, and the weight of each piece of evidence.

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
/// Largest scale. The smallest is its inverse.
pub(crate) const POSE_SCALE_MAX: f32 = 4.0;

// The weights are the coefficients, times 13, of a logistic regression of "the same finger" over
// pairs of one database. It was fitted to fingers 101 to 105 of the B sets of FVC2002 and FVC2004,
// images and ISO templates. `docs/measurements/image-search.md` has the rates of the other fingers.
/// Weight of a pair of vertices.
pub(crate) const PAIR_WEIGHT: f32 = 9.5;
/// Weight of a pair whose vertices are of one kind.
pub(crate) const SAME_KIND_WEIGHT: f32 = 7.5;
/// Weight of a supporting edge.
pub(crate) const SUPPORT_WEIGHT: f32 = 7.0;
/// Deduction for a supporting edge whose length is at its tolerance, or whose angles are.
pub(crate) const SUPPORT_ERROR_WEIGHT: f32 = 4.6;
/// Deduction for an edge of the tree whose length is at its tolerance.
pub(crate) const LENGTH_ERROR_WEIGHT: f32 = 15.0;
/// Deduction for an edge of the tree whose angles are at their tolerance.
pub(crate) const ANGLE_ERROR_WEIGHT: f32 = 18.0;
/// Weight of full agreement, in which all vertices in the shared part are paired.
pub(crate) const AGREEMENT_WEIGHT: f32 = 162.0;
/// Vertices without partners that are added to those in the shared part of either graph. Small
/// shared parts agree by chance.
pub(crate) const AGREEMENT_PRIOR: f32 = 2.0;
/// Constant offset. Most impostors stay above 0 with it, so that their scores can be compared. Of
/// impostors, one in a thousand scores about 130.
pub(crate) const SCORE_OFFSET: f32 = 4.0;
/// Weight of a pair of vertices of photographs with similar descriptors.
pub(crate) const PHOTO_PAIR_WEIGHT: f32 = 25.0;
/// Weight of a supporting edge of photographs.
pub(crate) const PHOTO_SUPPORT_WEIGHT: f32 = 2.3;
/// Deduction for a pair of photographs whose position is at its tolerance.
pub(crate) const PHOTO_LENGTH_ERROR_WEIGHT: f32 = 8.0;
/// Deduction for a pair of photographs whose direction is at its tolerance.
pub(crate) const PHOTO_ANGLE_ERROR_WEIGHT: f32 = 15.6;
/// Deduction for a pair whose descriptors differ in as many bits as the tolerance allows.
pub(crate) const DESCRIPTOR_ERROR_WEIGHT: f32 = 12.0;
