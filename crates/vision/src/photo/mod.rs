//! Keypoints of photographs: what stays of an image when it is cropped, turned, scaled,
//! recompressed or drawn over.
//!
//! Points are extrema of the difference of Gaussians (Lowe, "Distinctive image features from
//! scale-invariant keypoints", 2004), at the scale where they stand out most and turned to their
//! strongest gradient. What a point looks like is a histogram of gradients around it, of which 256
//! comparisons are kept: two points are compared by the bits they differ in. An image is brought
//! to one working size first, so that its cost and its points do not depend on how large it was
//! stored.
//!
//! All arithmetic is single precision in a fixed order, with no function of the system's
//! mathematics library: the same image gives the same graph on every machine.

mod describe;
mod detect;
mod orient;
mod scale_space;
mod tables;

use matching::{Graph, VERTICES_MAX, Vertex};

use crate::Gray;

/// A pair of photographs that scores this is one scene; see `matching::rank` for what is made of
/// it.
pub const ACCEPT: f32 = 125.0;

/// Sides shorter than this have no room for a keypoint.
const SIDE_MIN: u32 = 16;
/// Coordinates reach up to here, so that they fit what the matcher calculates with.
const COORDINATE_MAX: u32 = 16_000;

/// How keypoints are looked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeypointOptions {
    /// The longer side that an image is brought to, in pixels. It is enlarged twice at most.
    pub working: u32,
    /// Points at most, up to [`VERTICES_MAX`].
    pub vertices_max: usize,
}

impl Default for KeypointOptions {
    fn default() -> KeypointOptions {
        KeypointOptions { working: 512, vertices_max: VERTICES_MAX }
    }
}

/// A place in the working image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Keypoint {
    /// Columns of the working image.
    x: f32,
    y: f32,
    /// Which octave, and which of its levels.
    octave: usize,
    level: usize,
    /// Standard deviation of the Gaussian, in pixels of its octave.
    sigma: f32,
    /// How much it stands out.
    response: f32,
    /// In turns, counter-clockwise as seen.
    direction: f32,
}

/// The keypoints of an image, at most 256, the most distinct first; none if it is flat or narrower
/// than 16 pixels.
///
/// Positions are pixels of `image`, of the image scaled so that its longer side is 16,000 if it
/// is longer than that: the graph's width and height say which. A vertex's kind is its scale: 1 and
/// up, eight steps to a doubling in the graph's pixels.
#[must_use]
pub fn keypoints(image: &Gray, options: &KeypointOptions) -> Graph {
    let frame = Frame::of(image, options);
    let mut graph =
        Graph { width: frame.width as u16, height: frame.height as u16, ..Graph::default() };
    if image.width.min(image.height) < SIDE_MIN
        || frame.working.0.min(frame.working.1) < SIDE_MIN as usize
    {
        return graph;
    }
    let space = scale_space::ScaleSpace::of(image, frame.working);
    let count = options.vertices_max.min(VERTICES_MAX);
    let found = detect::keypoints(&space, count);
    for keypoint in orient::turned(&space, &found, count) {
        if let Some(descriptor) = describe::descriptor(&space, &keypoint) {
            graph.vertices.push(frame.vertex(&keypoint));
            graph.descriptors.push(descriptor);
        }
    }
    graph
}

/// How the pixels of the working image lie in those of the graph.
struct Frame {
    width: u32,
    height: u32,
    working: (usize, usize),
    scale: f32,
}

impl Frame {
    fn of(image: &Gray, options: &KeypointOptions) -> Frame {
        let longer = image.width.max(image.height).max(1);
        let to = |side: u32, longest: u32| {
            (u64::from(side) * u64::from(longest) / u64::from(longer)).max(1) as u32
        };
        let outer = longer.min(COORDINATE_MAX);
        let inner = options.working.clamp(SIDE_MIN, 4096).min(longer.saturating_mul(2));
        Frame {
            width: to(image.width, outer),
            height: to(image.height, outer),
            working: (to(image.width, inner) as usize, to(image.height, inner) as usize),
            scale: outer as f32 / inner as f32,
        }
    }

    fn vertex(&self, keypoint: &Keypoint) -> Vertex {
        // Centres of pixels lie at halves.
        let place = |at: f32| ((at + 0.5) * self.scale) as i16;
        let sigma = keypoint.sigma * (1_u32 << keypoint.octave.min(16)) as f32 * self.scale;
        Vertex {
            x: place(keypoint.x),
            y: place(keypoint.y),
            direction: (keypoint.direction * 256.0 + 0.5) as i32 as u8,
            kind: tables::eighths_of_doubling(sigma),
        }
    }
}
