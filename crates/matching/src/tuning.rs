//! What counts as the same, and how much each agreement is worth.

use crate::edge::{DEGREE, PER_PIXEL};

/// The most by which the lengths of one edge in two impressions differ.
pub(crate) const LENGTH_ERROR_MAX: u16 = (13 * PER_PIXEL) as u16;
/// The most by which an angle at its ends differs.
pub(crate) const ANGLE_ERROR_MAX: u16 = (15.0 * DEGREE) as u16;
/// How far the turn of a pair may be from the turn of the root.
pub(crate) const TURN_ERROR_MAX: u16 = (25.0 * DEGREE) as u16;
/// Roots that are grown at most.
pub(crate) const ROOTS_MAX: usize = 12;
/// Votes that a pair needs to be a root.
pub(crate) const VOTES_MIN: u8 = 2;
/// The same for photographs, whose roots are surer.
pub(crate) const PHOTO_ROOTS_MAX: usize = 6;
/// How far off a place may be between two photographs of one thing, as a share of the record's
/// longer side.
pub(crate) const POSE_NEAR: f32 = 0.01;
/// And how much more by distance: while only two pairs say how the photographs lie, and when it is
/// fitted to many.
pub(crate) const POSE_CONE: f32 = 0.12;
/// See [`POSE_CONE`].
pub(crate) const POSE_CONE_FITTED: f32 = 0.015;
/// How far off a direction may be.
pub(crate) const POSE_ANGLE_ERROR_MAX: u16 = (20.0 * DEGREE) as u16;
/// Scales from a quarter to four times are looked for.
pub(crate) const POSE_SCALE_MAX: f32 = 4.0;

// The worth of each piece of evidence: a logistic regression of "the same finger" on it, over the
// pairs of FVC2002's DB1_B and DB2_B, its coefficients times ten. That is little data, so it was
// also fitted on either alone: what is missed of the other at a false match rate of 0.1 % then
// grows by less than a point.
/// A pair of vertices.
pub(crate) const PAIR: f32 = 13.0;
/// That its vertices are of one kind.
pub(crate) const SAME_KIND: f32 = 8.7;
/// A supporting edge.
pub(crate) const SUPPORT: f32 = 2.3;
/// Each edge of the tree whose length is as far off as is tolerated.
pub(crate) const LENGTH_ERROR: f32 = 8.0;
/// The same of its angles.
pub(crate) const ANGLE_ERROR: f32 = 15.6;
/// Each vertex in the shared part, of the graph that has more there.
pub(crate) const COVERED: f32 = 2.6;
/// What there is before any evidence: enough for most impostors to stay above 0, so that scores can
/// be told apart.
pub(crate) const OFFSET: f32 = 40.0;
/// A pair of vertices of photographs, whose descriptors are alike.
pub(crate) const PHOTO_PAIR: f32 = 25.0;
/// That they differ in as many bits as is tolerated.
pub(crate) const DESCRIPTOR_ERROR: f32 = 12.0;
