//! Attacks that show a photograph in another one: a part of a collage, and a screen.

use base::Result;
use vision::Image;

use super::attacks::{CopySource, between, blur, image_of, pixel};
use loadgen::random::RandomSequence;

/// Size of a collage by that of its photograph.
const COLLAGE: f64 = 1.5;
/// Maximum shift of a corner of a screen, as a share of the side.
const CORNER: f64 = 0.05;
/// Share of the frame that the screen fills.
const FILLED: f64 = 0.85;
/// Brightness around a screen.
const WALL: [u8; 3] = [38, 36, 40];
/// Amplitude of the moiré pattern, as a share of the brightness.
const MOIRE: f64 = 0.10;
/// Standard deviation of the noise, in steps of brightness.
const NOISE: f64 = 4.0;
/// White between the photographs of a collage.
const GAP: [u8; 3] = [255; 3];

/// Returns a collage of the photograph and three fillers. Variant 0 has four equal cells. The
/// others have edges at 42 to 58 % of the sides. Variant 2 also has gaps.
pub(super) fn collage(
    source: &CopySource<'_>,
    variant: usize,
    random: &mut RandomSequence,
) -> Image {
    let side = |of: u32| ((f64::from(of) * COLLAGE) as u32).max(2);
    let (width, height) = (side(source.image.width), side(source.image.height));
    let mut edge = |side: u32| {
        let share = if variant == 0 { 0.5 } else { 0.42 + 0.16 * random.unit() };
        ((f64::from(side) * share) as u32).clamp(1, side - 1)
    };
    let (column, row) = (edge(width), edge(height));
    let own = (random.bits() % 4) as usize;
    let mut fillers = source.fillers.iter();
    let cells: Vec<Image> = (0..4)
        .map(|cell| {
            let cell_width = if cell % 2 == 0 { column } else { width - column };
            let cell_height = if cell < 2 { row } else { height - row };
            let shown =
                if cell == own { source.image } else { fillers.next().unwrap_or(source.image) };
            covering(shown, cell_width, cell_height)
        })
        .collect();
    let gap = if variant == 2 { width / 100 + 1 } else { 0 };
    image_of(width, height, |x, y| {
        if x.abs_diff(column) < gap || y.abs_diff(row) < gap {
            return GAP;
        }
        let right = x >= column;
        let below = y >= row;
        let left = if right { column } else { 0 };
        let top = if below { row } else { 0 };
        let cell = cells.get(usize::from(right) + 2 * usize::from(below));
        cell.map_or(GAP, |cell| pixel(cell, x - left, y - top))
    })
}

/// Scales an image until it covers the size, and cuts off the rest equally on both sides.
fn covering(image: &Image, width: u32, height: u32) -> Image {
    let factor = (f64::from(width) / f64::from(image.width))
        .max(f64::from(height) / f64::from(image.height));
    let side = |of: u32, least: u32| ((f64::from(of) * factor).round() as u32).max(least);
    let scaled = image.resized(side(image.width, width), side(image.height, height));
    let (left, top) = ((scaled.width - width) / 2, (scaled.height - height) / 2);
    image_of(width, height, |x, y| pixel(&scaled, x + left, y + top))
}

/// Returns a photograph of a screen that shows the image.
pub(super) fn screen(image: &Image, random: &mut RandomSequence) -> Result<Image> {
    let (width, height) = (f64::from(image.width), f64::from(image.height));
    let mut way = || CORNER * (2.0 * random.unit() - 1.0);
    let inset = (1.0 - FILLED) / 2.0;
    let mut corner = |x: f64, y: f64| ((x + way()) * width, (y + way()) * height);
    let near = inset;
    let far = 1.0 - inset;
    let corners = [corner(near, near), corner(far, near), corner(far, far), corner(near, far)];
    let map = SquareMap::onto(corners);
    let gamma = 0.8 + 0.45 * random.unit();
    let turn = random.unit() * std::f64::consts::TAU;
    let period = 3.0 + 4.0 * random.unit();
    let along = turn.cos() / period;
    let down = turn.sin() / period;
    let light = random.unit() - 0.5;
    let shown = image_of(image.width, image.height, |x, y| {
        let (u, v) = map.inverse(f64::from(x), f64::from(y));
        if !(0.0..=1.0).contains(&u) || !(0.0..=1.0).contains(&v) {
            return WALL;
        }
        let wave = (std::f64::consts::TAU * (f64::from(x) * along + f64::from(y) * down)).sin();
        let gain = (1.0 + MOIRE * wave) * (1.0 + 0.3 * light * (u - 0.5));
        between(image, u * (width - 1.0), v * (height - 1.0)).map(|value| {
            ((f64::from(value) / 255.0).powf(gamma) * gain * 255.0).clamp(0.0, 255.0) as u8
        })
    });
    let mut shown = blur(&shown, 0.7 + 0.5 * random.unit())?;
    for value in &mut shown.rgb {
        // The sum of four uniform numbers, scaled, is near enough to a normal one.
        let noise = (0..4).map(|_| random.unit() - 0.5).sum::<f64>() * 3.0_f64.sqrt() * NOISE;
        *value = (f64::from(*value) + noise).clamp(0.0, 255.0) as u8;
    }
    Ok(shown)
}

/// The projective map of the unit square onto four corners (Heckbert, "Fundamentals of texture
/// mapping and image warping", 1989, 2.2.3).
struct SquareMap([[f64; 3]; 3]);

impl SquareMap {
    /// Returns the map onto `corners`: the images of (0, 0), (1, 0), (1, 1) and (0, 1), in this
    /// order.
    fn onto(corners: [(f64, f64); 4]) -> SquareMap {
        let [a, b, c, d] = corners;
        let (dx1, dx2, sx) = (b.0 - c.0, d.0 - c.0, a.0 - b.0 + c.0 - d.0);
        let (dy1, dy2, sy) = (b.1 - c.1, d.1 - c.1, a.1 - b.1 + c.1 - d.1);
        let whole = dx1 * dy2 - dx2 * dy1;
        let g = (sx * dy2 - dx2 * sy) / whole;
        let h = (dx1 * sy - sx * dy1) / whole;
        SquareMap([
            [b.0 - a.0 + g * b.0, d.0 - a.0 + h * d.0, a.0],
            [b.1 - a.1 + g * b.1, d.1 - a.1 + h * d.1, a.1],
            [g, h, 1.0],
        ])
    }

    /// Returns the point of the square that is mapped to (x, y): the adjugate matrix.
    fn inverse(&self, x: f64, y: f64) -> (f64, f64) {
        let [[a, b, c], [d, e, f], [g, h, i]] = self.0;
        let u = (e * i - f * h) * x + (c * h - b * i) * y + (b * f - c * e);
        let v = (f * g - d * i) * x + (a * i - c * g) * y + (c * d - a * f);
        let w = (d * h - e * g) * x + (b * g - a * h) * y + (a * e - b * d);
        (u / w, v / w)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_maps_its_corners_back() {
        let corners = [(10.0, 12.0), (190.0, 5.0), (200.0, 150.0), (3.0, 140.0)];
        let map = SquareMap::onto(corners);
        for ((x, y), (u, v)) in
            corners.into_iter().zip([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
        {
            let found = map.inverse(x, y);
            assert!((found.0 - u).abs() < 1e-9 && (found.1 - v).abs() < 1e-9, "{found:?}");
        }
    }

    #[test]
    fn a_collage_shows_the_photograph_in_one_quarter() {
        let flat = |value: u8| Image { width: 40, height: 20, rgb: vec![value; 2400] };
        let (own, fillers) = (flat(200), vec![flat(50); 3]);
        for variant in 0..3 {
            let source = CopySource { image: &own, fillers: &fillers };
            let shown = collage(&source, variant, &mut RandomSequence::new(9));
            let share = shown.rgb.iter().filter(|&&value| value == 200).count() as f64
                / shown.rgb.len() as f64;
            assert!((0.15..0.36).contains(&share), "{share}");
        }
    }
}
