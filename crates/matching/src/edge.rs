//! Edges: quantities between two points that stay the same when an image is moved or turned.
//!
//! Lengths are in quarters of a pixel and angles in 65536 steps of a turn. So both fit 16 bits,
//! angles wrap by themselves, and a vector register holds eight of them. Square roots are correctly
//! rounded everywhere, and the rest is integer arithmetic. So the same edge gives the same bits on
//! every machine.

use crate::graph::Vertex;

/// Steps of a length in a pixel.
pub(crate) const PER_PIXEL: u32 = 4;
/// Lengths beyond this (8191 pixels) are cut to it, so that a difference of two fits a signed
/// 16-bit number.
pub(crate) const LENGTH_MAX: u16 = i16::MAX as u16 - 1;
/// Coordinates beyond this are moved to it, so that squared distances fit 32 bits. No image reaches
/// it.
pub(crate) const COORDINATE_MAX: i16 = 16_383;
/// One degree in steps of an angle.
pub(crate) const DEGREE: f32 = 65_536.0 / 360.0;

/// An edge from one vertex to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// Quarters of a pixel.
    pub(crate) length: u16,
    /// Direction of the start against the way to the end.
    pub(crate) start: u16,
    /// Direction of the end against the way back to the start.
    pub(crate) end: u16,
}

impl Edge {
    /// Returns the edge from `a` to `b`. Positions must be within [`COORDINATE_MAX`]: see
    /// [`clamp_position`].
    pub(crate) fn between(a: Vertex, b: Vertex) -> Edge {
        let dx = i32::from(b.x) - i32::from(a.x);
        // Rows count downwards, directions turn counter-clockwise as seen.
        let dy = i32::from(a.y) - i32::from(b.y);
        let way = heading(dx, dy);
        Edge {
            length: length(dx, dy),
            start: to_angle(a.direction).wrapping_sub(way),
            end: to_angle(b.direction).wrapping_sub(way).wrapping_add(1 << 15),
        }
    }
}

/// Returns the vertex with its coordinates clamped to [`COORDINATE_MAX`].
pub(crate) fn clamp_position(vertex: Vertex) -> Vertex {
    Vertex {
        x: vertex.x.clamp(-COORDINATE_MAX, COORDINATE_MAX),
        y: vertex.y.clamp(-COORDINATE_MAX, COORDINATE_MAX),
        ..vertex
    }
}

/// Converts a direction of 256 steps to an angle of 65536 steps.
pub(crate) fn to_angle(direction: u8) -> u16 {
    u16::from(direction) << 8
}

/// Returns the difference of two angles, at most half a turn.
pub(crate) fn angle_between(a: u16, b: u16) -> u16 {
    (a.wrapping_sub(b) as i16).unsigned_abs()
}

/// Returns the length of (dx, dy) pixels in quarters of a pixel, at most [`LENGTH_MAX`].
fn length(dx: i32, dy: i32) -> u16 {
    let square = dx.unsigned_abs().pow(2) + dy.unsigned_abs().pow(2);
    let quarters = (square as f32).sqrt() * PER_PIXEL as f32 + 0.5;
    (quarters as u32).min(u32::from(LENGTH_MAX)) as u16
}

/// Returns the direction of (dx, dy), dy upwards, as an angle of 65536 steps, or 0 for (0, 0).
///
/// For a quotient q in 0 to 1 the arc tangent is q(45° + (1 - q)(14.02° + 3.80° q)) within 0.1°
/// (Rajan, Wang, Inkol and Joyal, "Efficient approximations for the arctangent function", 2006).
/// That is a fourteenth of one of 256 steps of a direction.
pub(crate) fn heading(dx: i32, dy: i32) -> u16 {
    let (ax, ay) = (dx.unsigned_abs(), dy.unsigned_abs());
    let (low, high) = if ax < ay { (ax, ay) } else { (ay, ax) };
    // With nothing to divide by, the quotient is 0.
    let quotient = ((low << 15) / high.max(1)) as i64;
    let rest = (1 << 15) - quotient;
    // All in steps of a turn: 8192 is 45°, 2552 and 692 are 14.02° and 3.80°.
    let octant =
        ((quotient * (8192 + ((rest * (2552 + ((quotient * 692) >> 15))) >> 15))) >> 15) as u16;
    let quadrant = if ax < ay { (1 << 14) - octant } else { octant };
    match (dx < 0, dy < 0) {
        (false, false) => quadrant,
        (true, false) => (1 << 15) - quadrant,
        (true, true) => (1 << 15) + quadrant,
        (false, true) => quadrant.wrapping_neg(),
    }
}
