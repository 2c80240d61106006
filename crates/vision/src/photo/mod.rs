//! Keypoints of photographs, which survive cropping, turning, scaling, recompression and
//! overdrawing.
//!
//! Points are extrema of the difference of Gaussians (Lowe, "Distinctive image features from
//! scale-invariant keypoints", 2004). They are at their scale of strongest response, and are turned
//! to their strongest gradient. A descriptor is 256 comparisons in a histogram of gradients around
//! the point. Two points are compared by the bits in which they differ. An image is first brought
//! to one working size, so that its cost and its points do not depend on its stored size.
//!
//! All arithmetic is single precision in a fixed order, without functions of the system's
//! mathematics library. So the same image gives the same graph on every machine.

mod describe;
mod detect;
mod orient;
mod scale_space;
mod tables;
mod views;

use matching::{Graph, VERTICES_MAX, Vertex};

use crate::Gray;

pub use views::{PhotoView, PixelRegion, VIEWS_MAX, ViewKind};

/// Minimum score that accepts two photographs as one scene. `matching::rank` uses it.
pub const ACCEPT: f32 = 125.0;

/// Shortest side with room for a keypoint.
const SIDE_MIN: u32 = 16;
/// Largest coordinate of a graph. The matcher's arithmetic holds it.
const COORDINATE_MAX: u32 = 16_000;

/// Options of keypoint detection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeypointOptions {
    /// Longer side of the working image, in pixels. An image is enlarged at most twice.
    pub working: u32,
    /// Maximum points, up to [`VERTICES_MAX`].
    pub vertices_max: usize,
}

impl Default for KeypointOptions {
    fn default() -> KeypointOptions {
        KeypointOptions { working: 512, vertices_max: VERTICES_MAX }
    }
}

/// A point of the working image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Keypoint {
    /// Column in the working image.
    x: f32,
    y: f32,
    /// Octave, and the level in it.
    octave: usize,
    level: usize,
    /// Standard deviation of the Gaussian, in pixels of its octave.
    sigma: f32,
    /// Difference from the surroundings.
    response: f32,
    /// Direction in turns, counter-clockwise as seen.
    direction: f32,
}

/// Finds the keypoints of an image, at most 256, the most distinct first. Finds none if it is flat
/// or narrower than 16 pixels.
///
/// Positions are pixels of `image`. If its longer side has more than 16,000 pixels, they are pixels
/// of `image` scaled to that. The graph has that width and height. A vertex's kind is its scale in
/// the graph's pixels, from 1 in eight steps to a doubling.
#[must_use]
pub fn keypoints(image: &Gray, options: &KeypointOptions) -> Graph {
    let frame = GraphFrame::of(image, options);
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
    for keypoint in orient::oriented(&space, &found, count) {
        if let Some(descriptor) = describe::descriptor(&space, &keypoint) {
            graph.vertices.push(frame.vertex(&keypoint));
            graph.descriptors.push(descriptor);
        }
    }
    graph
}

/// Map from pixels of the working image to pixels of the graph.
struct GraphFrame {
    width: u32,
    height: u32,
    /// Width and height of the working image.
    working: (usize, usize),
    /// Pixels of the graph for each pixel of the working image.
    scale: f32,
}

impl GraphFrame {
    /// Chooses the sizes of the working image and of the graph.
    fn of(image: &Gray, options: &KeypointOptions) -> GraphFrame {
        let longer = image.width.max(image.height).max(1);
        let to = |side: u32, longest: u32| {
            (u64::from(side) * u64::from(longest) / u64::from(longer)).max(1) as u32
        };
        let outer = longer.min(COORDINATE_MAX);
        let inner = options.working.clamp(SIDE_MIN, 4096).min(longer.saturating_mul(2));
        GraphFrame {
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
