//! What is done to a photograph before it is looked for.

use base::{Error, Result};
use image::codecs::jpeg::JpegEncoder;
use image::imageops::{self, FilterType};
use image::{ExtendedColorType, ImageBuffer, Rgb};
use vision::Image;

use super::lettering;
use loadgen::random::RandomSequence;

/// Quality that copies are stored with where their quality is not the attack.
const QUALITY: u8 = 90;
/// The quality that is.
const QUALITY_ATTACKED: u8 = 30;

/// One kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Attack {
    /// A part is kept: half of the area, or half of both sides.
    Crop,
    /// Turned by 30 degrees, to the left or the right; on a larger black canvas, or within its own
    /// frame.
    Rotate,
    /// Half as wide and half as high.
    Scale,
    /// Recompressed, on its own or on a shifted grid of blocks.
    Jpeg,
    /// A Gaussian of 1 to 2.5 pixels.
    Blur,
    /// Brighter or darker by a factor of up to 1.7, or by its gamma.
    Brightness,
    /// Two to four lines of text over it.
    Text,
    /// A frame of 10 to 25 % of each side that mirrors what is beside it.
    Border,
}

impl Attack {
    /// All of them, each with its name and how many of a picture's 20 copies it makes.
    pub(super) const ALL: [(Attack, &'static str, usize); 8] = [
        (Attack::Crop, "crop50", 3),
        (Attack::Rotate, "rotate30", 3),
        (Attack::Scale, "scale50", 2),
        (Attack::Jpeg, "jpeg30", 2),
        (Attack::Blur, "blur", 2),
        (Attack::Brightness, "brightness", 2),
        (Attack::Text, "text", 3),
        (Attack::Border, "mirror_border", 3),
    ];

    /// Copy number `variant` of this attack as a JPEG file; what is random in it comes from
    /// `random`.
    pub(super) fn copy(
        self,
        picture: &Image,
        variant: usize,
        random: &mut RandomSequence,
    ) -> Result<Vec<u8>> {
        let mut quality = QUALITY;
        let copy = match self {
            Attack::Crop => crop(picture, variant, random),
            Attack::Rotate => rotate(picture, variant),
            Attack::Scale => scale(picture, variant)?,
            Attack::Jpeg => {
                quality = QUALITY_ATTACKED;
                if variant == 0 { picture.clone() } else { part(picture, (3, 5), (4, 7)) }
            }
            Attack::Blur => blur(picture, 1.0 + 0.75 * (variant as f64 + random.unit()))?,
            Attack::Brightness => brightness(picture, variant, random),
            Attack::Text => lettering::over(picture, 2 + variant, random)?,
            Attack::Border => border(picture, 0.10 + 0.05 * (variant as f64 + random.unit())),
        };
        encode(&copy, quality)
    }
}

/// A JPEG file.
pub(super) fn encode(picture: &Image, quality: u8) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    JpegEncoder::new_with_quality(&mut bytes, quality)
        .encode(&picture.rgb, picture.width, picture.height, ExtendedColorType::Rgb8)
        .map_err(|error| Error::internal(format!("a copy cannot be encoded: {error}")))?;
    Ok(bytes)
}

fn pixels(picture: &Image) -> Result<ImageBuffer<Rgb<u8>, &[u8]>> {
    ImageBuffer::from_raw(picture.width, picture.height, picture.rgb.as_slice())
        .ok_or_else(|| Error::internal("a picture has fewer pixels than its size says"))
}

/// A picture whose pixel at (x, y) is `of` that place.
fn made(width: u32, height: u32, of: impl Fn(u32, u32) -> [u8; 3]) -> Image {
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    Image { width, height, rgb: places.flat_map(|(x, y)| of(x, y)).collect() }
}

fn pixel(picture: &Image, x: u32, y: u32) -> [u8; 3] {
    let at = y as usize * picture.width as usize + x as usize;
    picture.rgb.as_chunks().0.get(at).copied().unwrap_or_default()
}

/// Without so many columns at the left and right, and rows at the top and bottom.
fn part(picture: &Image, columns: (u32, u32), rows: (u32, u32)) -> Image {
    let width = picture.width.saturating_sub(columns.0 + columns.1).max(1);
    let height = picture.height.saturating_sub(rows.0 + rows.1).max(1);
    made(width, height, |x, y| pixel(picture, x + columns.0, y + rows.0))
}

fn crop(picture: &Image, variant: usize, random: &mut RandomSequence) -> Image {
    // The last variant keeps half of both sides, the others half of the area.
    let share = if variant == 2 { 0.5 } else { std::f64::consts::FRAC_1_SQRT_2 };
    let mut sides = |side: u32| {
        let off = side - (f64::from(side) * share) as u32;
        let before = (f64::from(off) * random.unit()) as u32;
        (before, off - before)
    };
    let columns = sides(picture.width);
    part(picture, columns, sides(picture.height))
}

fn rotate(picture: &Image, variant: usize) -> Image {
    let angle = if variant == 1 { -30.0_f64 } else { 30.0 };
    let (sin, cos) = angle.to_radians().sin_cos();
    let (width, height) = (f64::from(picture.width), f64::from(picture.height));
    // The second and third variant keep the frame, so their corners are lost.
    let (wide, high) = if variant == 0 {
        (width * cos + height * sin.abs(), width * sin.abs() + height * cos)
    } else {
        (width, height)
    };
    let (wide, high) = (wide.ceil(), high.ceil());
    made(wide as u32, high as u32, |x, y| {
        let (along, down) = (f64::from(x) - (wide - 1.0) / 2.0, f64::from(y) - (high - 1.0) / 2.0);
        let (from_x, from_y) = (cos * along - sin * down, sin * along + cos * down);
        between(picture, from_x + (width - 1.0) / 2.0, from_y + (height - 1.0) / 2.0)
    })
}

/// Between pixels, linearly; black outside.
fn between(picture: &Image, x: f64, y: f64) -> [u8; 3] {
    let inside = |at: f64, side: u32| at > -0.5 && at < f64::from(side) - 0.5;
    if !inside(x, picture.width) || !inside(y, picture.height) {
        return [0; 3];
    }
    let (x, y) = (x.max(0.0), y.max(0.0));
    let (left, top) = (x as u32, y as u32);
    let (right, below) = ((left + 1).min(picture.width - 1), (top + 1).min(picture.height - 1));
    let (px, py) = (x - f64::from(left), y - f64::from(top));
    let corners = [pixel(picture, left, top), pixel(picture, right, top)];
    let lower = [pixel(picture, left, below), pixel(picture, right, below)];
    std::array::from_fn(|channel| {
        let mix = |pair: &[[u8; 3]; 2]| {
            f64::from(pair[0][channel]) * (1.0 - px) + f64::from(pair[1][channel]) * px
        };
        (mix(&corners) * (1.0 - py) + mix(&lower) * py).round() as u8
    })
}

fn scale(picture: &Image, variant: usize) -> Result<Image> {
    let filter = if variant == 0 { FilterType::Triangle } else { FilterType::Lanczos3 };
    let (width, height) = ((picture.width / 2).max(1), (picture.height / 2).max(1));
    let rgb = imageops::resize(&pixels(picture)?, width, height, filter).into_raw();
    Ok(Image { width, height, rgb })
}

fn blur(picture: &Image, sigma: f64) -> Result<Image> {
    let rgb = imageops::blur(&pixels(picture)?, sigma as f32).into_raw();
    Ok(Image { rgb, ..*picture })
}

fn brightness(picture: &Image, variant: usize, random: &mut RandomSequence) -> Image {
    let strength = 1.3 + 0.4 * random.unit();
    let upwards = random.bits() & 1 == 0;
    let table: Vec<u8> = (0..=255_u16)
        .map(|value| {
            let value = f64::from(value) / 255.0;
            let changed = match (variant, upwards) {
                (0, true) => value * strength,
                (0, false) => value / strength,
                (_, true) => value.powf(1.0 / strength),
                (_, false) => value.powf(strength),
            };
            (changed.min(1.0) * 255.0).round() as u8
        })
        .collect();
    let rgb = picture
        .rgb
        .iter()
        .map(|&value| table.get(usize::from(value)).copied().unwrap_or(value))
        .collect();
    Image { rgb, ..*picture }
}

fn border(picture: &Image, share: f64) -> Image {
    let (wide, high) =
        ((f64::from(picture.width) * share) as u32, (f64::from(picture.height) * share) as u32);
    // Ever further out, the picture is passed forwards and backwards.
    let mirrored = |at: u32, border: u32, side: u32| {
        let place = (i64::from(at) - i64::from(border)).rem_euclid(2 * i64::from(side)) as u32;
        if place < side { place } else { 2 * side - 1 - place }
    };
    made(picture.width + 2 * wide, picture.height + 2 * high, |x, y| {
        pixel(picture, mirrored(x, wide, picture.width), mirrored(y, high, picture.height))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_the_size_and_the_pixels_they_should() {
        let picture = made(60, 40, |x, y| [4 * x as u8, 6 * y as u8, 100]);
        let size = |attack: Attack, variant| {
            let bytes = attack.copy(&picture, variant, &mut RandomSequence::new(5)).unwrap();
            let copy = vision::decode(&bytes, &vision::Limits::default()).unwrap().image;
            (copy.width, copy.height)
        };
        assert_eq!((size(Attack::Crop, 0), size(Attack::Crop, 2)), ((42, 28), (30, 20)));
        assert_eq!((size(Attack::Rotate, 0), size(Attack::Rotate, 1)), ((72, 65), (60, 40)));
        assert_eq!((size(Attack::Scale, 0), size(Attack::Jpeg, 1)), ((30, 20), (52, 29)));
        for same in [Attack::Blur, Attack::Brightness, Attack::Text] {
            assert_eq!(size(same, 1), (60, 40));
        }
        let framed = border(&picture, 0.1);
        assert_eq!((framed.width, framed.height), (72, 48));
        // The frame mirrors about the picture's edge; inside, all is where it was.
        assert_eq!(pixel(&framed, 5, 4), pixel(&picture, 0, 0));
        assert_eq!(pixel(&framed, 0, 10), pixel(&picture, 5, 6));
        assert_eq!(pixel(&framed, 71, 10), pixel(&picture, 54, 6));
        assert_eq!(pixel(&framed, 6 + 20, 4 + 30), pixel(&picture, 20, 30));
        let turned = rotate(&picture, 1);
        assert_eq!((pixel(&turned, 0, 0), pixel(&turned, 30, 20)[2]), ([0; 3], 100));
    }

    #[test]
    fn twenty_copies_are_made_of_a_picture() {
        assert_eq!(Attack::ALL.iter().map(|&(_, _, copies)| copies).sum::<usize>(), 20);
    }
}
