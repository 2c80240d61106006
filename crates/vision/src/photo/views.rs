//! Views of a photograph that is searched for. They are other readings of its pixels, for
//! photographs that are not found as they are.
//!
//! - Coarse keypoints of the whole photograph. A photograph of a screen has a fine pattern and
//!   noise. A small crop has more fine keypoints than the stored photograph could keep. Keypoints
//!   of a smaller working image leave both out.
//! - The mirror image. Neither the directions of keypoints nor their descriptors survive mirroring.
//! - Parts. A collage has an embedding of its own, and each of its photographs has few keypoints.

use crate::pixels::Image;

use super::KeypointOptions;

/// Maximum views of one photograph.
pub const VIEWS_MAX: usize = 12;
/// Longer side of the working image of coarse keypoints, in pixels.
const COARSE_WORKING: u32 = 256;
/// Candidates of a coarse view for each candidate of a usual search. The embedding of a small crop
/// is often far from the embedding of its photograph, and this view costs no run of a model.
const COARSE_CANDIDATES: usize = 10;
/// Shortest side of a part, in pixels.
const PART_SIDE_MIN: u32 = 48;

/// Ways to change a photograph that was not found as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ViewKind {
    /// The whole photograph with keypoints of a smaller working image.
    Coarse,
    /// The mirror image of the whole photograph, left and right exchanged.
    Mirrored,
    /// A part of the photograph.
    Part,
}

impl ViewKind {
    /// Returns its name in responses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ViewKind::Coarse => "coarse",
            ViewKind::Mirrored => "mirrored",
            ViewKind::Part => "part",
        }
    }
}

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelRegion {
    /// First column.
    pub x: u32,
    /// First row.
    pub y: u32,
    /// Columns, at least 1.
    pub width: u32,
    /// Rows, at least 1.
    pub height: u32,
}

/// A view of a photograph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhotoView {
    /// Transformation by which the view differs from the photograph.
    pub kind: ViewKind,
    /// Pixels of the photograph that it shows.
    pub region: PixelRegion,
}

impl PhotoView {
    /// Returns the views of a photograph of this size in steps, the cheapest first. A search stops
    /// after the first step that finds the photograph. All steps have at most [`VIEWS_MAX`] views.
    #[must_use]
    pub fn steps(width: u32, height: u32) -> Vec<Vec<PhotoView>> {
        let whole = PixelRegion { x: 0, y: 0, width, height };
        let mut steps = vec![
            vec![PhotoView { kind: ViewKind::Coarse, region: whole }],
            vec![PhotoView { kind: ViewKind::Mirrored, region: whole }],
        ];
        let halves_x = halves(width);
        let halves_y = halves(height);
        let part = |(x, width): (u32, u32), (y, height): (u32, u32)| PhotoView {
            kind: ViewKind::Part,
            region: PixelRegion { x, y, width, height },
        };
        let mut parts = Vec::new();
        for &rows in &halves_y {
            parts.extend(halves_x.iter().map(|&columns| part(columns, rows)));
        }
        parts.extend(halves_x.iter().map(|&columns| part(columns, (0, height))));
        parts.extend(halves_y.iter().map(|&rows| part((0, width), rows)));
        parts.retain(|view| view.region.width.min(view.region.height) >= PART_SIDE_MIN);
        if !parts.is_empty() {
            steps.push(parts);
        }
        steps
    }

    /// Returns the pixels of the view.
    #[must_use]
    pub fn image(&self, photograph: &Image) -> Image {
        match self.kind {
            ViewKind::Coarse => photograph.clone(),
            ViewKind::Mirrored => photograph.mirrored(),
            ViewKind::Part => photograph.crop(self.region),
        }
    }

    /// Returns the options with which the keypoints of the view are found.
    #[must_use]
    pub fn options(&self) -> KeypointOptions {
        let usual = KeypointOptions::default();
        match self.kind {
            ViewKind::Coarse => KeypointOptions { working: COARSE_WORKING, ..usual },
            ViewKind::Mirrored | ViewKind::Part => usual,
        }
    }

    /// Returns the number of candidates whose keypoints are compared with the view's, if a search
    /// of the whole photograph compares `usual`.
    #[must_use]
    pub fn candidates(&self, usual: usize) -> usize {
        match self.kind {
            ViewKind::Coarse => usual.saturating_mul(COARSE_CANDIDATES),
            ViewKind::Mirrored | ViewKind::Part => usual,
        }
    }

    /// Returns true if the view has the pixels of the photograph, and therefore the embedding of
    /// the photograph.
    #[must_use]
    pub fn has_embedding_of_photograph(&self) -> bool {
        self.kind == ViewKind::Coarse
    }

    /// Returns the position in the photograph of a position in the view, both in pixels.
    #[must_use]
    pub fn to_photograph(&self, x: f64, y: f64) -> (f64, f64) {
        match self.kind {
            ViewKind::Coarse => (x, y),
            ViewKind::Mirrored => (f64::from(self.region.width) - x, y),
            ViewKind::Part => (f64::from(self.region.x) + x, f64::from(self.region.y) + y),
        }
    }
}

/// Returns offset and length of both halves of a side.
fn halves(side: u32) -> [(u32, u32); 2] {
    let first = side / 2;
    [(0, first.max(1)), (first, (side - first).max(1))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_bounded_and_lie_inside() {
        for (width, height) in [(1, 1), (95, 4000), (96, 96), (640, 481), (65_535, 3)] {
            let views: Vec<PhotoView> =
                PhotoView::steps(width, height).into_iter().flatten().collect();
            assert!((2..=VIEWS_MAX).contains(&views.len()), "{width} x {height}");
            for PhotoView { region, .. } in &views {
                assert!(region.width >= 1 && region.x + region.width <= width);
                assert!(region.height >= 1 && region.y + region.height <= height);
            }
        }
        assert_eq!(PhotoView::steps(640, 480).iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 8]);
        assert_eq!(PhotoView::steps(60, 60).len(), 2);
    }

    #[test]
    fn positions_of_a_view_are_those_of_its_pixels() {
        let rgb: Vec<u8> =
            (0..100 * 98_u32).flat_map(|at| [(at % 100) as u8, (at / 100) as u8, 7]).collect();
        let photograph = Image { width: 100, height: 98, rgb };
        for view in PhotoView::steps(100, 98).into_iter().flatten() {
            let shown = view.image(&photograph);
            for (x, y) in [(0, 0), (3, 5), (shown.width - 1, shown.height - 1)] {
                let at = (y * shown.width + x) as usize * 3;
                // The centre of the pixel.
                let (wide, high) = view.to_photograph(f64::from(x) + 0.5, f64::from(y) + 0.5);
                assert_eq!(
                    [shown.rgb[at], shown.rgb[at + 1]],
                    [wide as u8, high as u8],
                    "{view:?}"
                );
            }
        }
    }
}
