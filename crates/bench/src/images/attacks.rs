//! Modifications of a photograph before it is searched for.

use base::{Error, Result};
use image::codecs::jpeg::JpegEncoder;
use image::imageops::{self, FilterType};
use image::{ExtendedColorType, ImageBuffer, Rgb};
use vision::Image;

use super::{lettering, screen};
use loadgen::random::RandomSequence;

/// JPEG quality of copies whose attack is another one.
const QUALITY: u8 = 90;
/// JPEG quality of the attack on quality.
const QUALITY_ATTACKED: u8 = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Attack {
    /// A crop of half of the area, or half of both sides.
    Crop,
    /// Rotation by 30 degrees to the left or the right, on a larger black canvas or within its own
    /// frame.
    Rotate,
    /// Half the width and height.
    Scale,
    /// Recompression, on its own or on a shifted grid of blocks.
    Jpeg,
    /// A Gaussian blur of 1 to 2.5 pixels.
    Blur,
    /// A change of brightness by a factor of up to 1.7, or by its gamma.
    Brightness,
    /// Two to four lines of text over the image.
    Text,
    /// A frame of 10 to 25 % of each side that mirrors the pixels beside it.
    Border,
    /// Left and right exchanged, also with a crop of 70 % of the area.
    Mirror,
    /// One quarter of a collage of four photographs, with edges at or near the middle and with
    /// gaps.
    Collage,
    /// A crop of 16 % of the area in the middle or anywhere, also enlarged.
    Crop16,
    /// A photograph of a screen: perspective, moiré, blur, gamma, noise.
    Screen,
}

/// The photograph to copy, and photographs outside the collection for collages.
pub(super) struct CopySource<'a> {
    pub(super) image: &'a Image,
    /// Three photographs; fewer if the attack needs none.
    pub(super) fillers: &'a [Image],
}

impl Attack {
    /// All attacks with their names and the number of an image's 31 copies that each makes.
    pub(super) const ALL: [(Attack, &'static str, usize); 12] = [
        (Attack::Crop, "crop50", 3),
        (Attack::Rotate, "rotate30", 3),
        (Attack::Scale, "scale50", 2),
        (Attack::Jpeg, "jpeg30", 2),
        (Attack::Blur, "blur", 2),
        (Attack::Brightness, "brightness", 2),
        (Attack::Text, "text", 3),
        (Attack::Border, "mirror_border", 3),
        (Attack::Mirror, "mirror", 2),
        (Attack::Collage, "collage", 3),
        (Attack::Crop16, "crop16", 3),
        (Attack::Screen, "screen", 3),
    ];

    /// Returns the indexes of `names` in [`Attack::ALL`], or all indexes if `names` is empty.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown name.
    pub(super) fn chosen(names: &[String]) -> Result<Vec<usize>> {
        if names.is_empty() {
            return Ok((0..Attack::ALL.len()).collect());
        }
        let number = |wanted: &String| {
            Attack::ALL.iter().position(|(_, name, _)| name == wanted).ok_or_else(|| {
                let known = Attack::ALL.map(|(_, name, _)| name).join(", ");
                Error::invalid(format!(
                    "--attack {wanted}: there is no such attack; there are {known}"
                ))
            })
        };
        names.iter().map(number).collect()
    }

    /// Returns copy number `variant` of this attack as a JPEG file, with random values of `random`.
    pub(super) fn copy(
        self,
        source: &CopySource<'_>,
        variant: usize,
        random: &mut RandomSequence,
    ) -> Result<Vec<u8>> {
        let mut quality = QUALITY;
        let image = source.image;
        let copy = match self {
            Attack::Crop => crop(image, variant, random),
            Attack::Rotate => rotate(image, variant),
            Attack::Scale => scale(image, variant)?,
            Attack::Jpeg => {
                quality = QUALITY_ATTACKED;
                if variant == 0 { image.clone() } else { part(image, (3, 5), (4, 7)) }
            }
            Attack::Blur => blur(image, 1.0 + 0.75 * (variant as f64 + random.unit()))?,
            Attack::Brightness => brightness(image, variant, random),
            Attack::Text => lettering::over(image, 2 + variant, random)?,
            Attack::Border => border(image, 0.10 + 0.05 * (variant as f64 + random.unit())),
            Attack::Mirror if variant == 0 => image.mirrored(),
            Attack::Mirror => keep(&image.mirrored(), 0.7_f64.sqrt(), random),
            Attack::Collage => screen::collage(source, variant, random),
            Attack::Crop16 => crop16(image, variant, random),
            Attack::Screen => screen::screen(image, random)?,
        };
        encode(&copy, quality)
    }
}

/// Encodes a JPEG file.
pub(super) fn encode(image: &Image, quality: u8) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    JpegEncoder::new_with_quality(&mut bytes, quality)
        .encode(&image.rgb, image.width, image.height, ExtendedColorType::Rgb8)
        .map_err(|error| Error::internal("a copy cannot be encoded").caused_by(error))?;
    Ok(bytes)
}

fn pixels(image: &Image) -> Result<ImageBuffer<Rgb<u8>, &[u8]>> {
    ImageBuffer::from_raw(image.width, image.height, image.rgb.as_slice())
        .ok_or_else(|| Error::internal("an image has fewer pixels than its size says"))
}

/// Makes an image whose pixel at (x, y) is `of(x, y)`.
pub(super) fn image_of(width: u32, height: u32, of: impl Fn(u32, u32) -> [u8; 3]) -> Image {
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    Image { width, height, rgb: places.flat_map(|(x, y)| of(x, y)).collect() }
}

pub(super) fn pixel(image: &Image, x: u32, y: u32) -> [u8; 3] {
    let at = y as usize * image.width as usize + x as usize;
    image.rgb.as_chunks().0.get(at).copied().unwrap_or_default()
}

/// Cuts off so many columns at the left and right, and rows at the top and bottom.
fn part(image: &Image, columns: (u32, u32), rows: (u32, u32)) -> Image {
    let width = image.width.saturating_sub(columns.0 + columns.1).max(1);
    let height = image.height.saturating_sub(rows.0 + rows.1).max(1);
    image_of(width, height, |x, y| pixel(image, x + columns.0, y + rows.0))
}

fn crop(image: &Image, variant: usize, random: &mut RandomSequence) -> Image {
    // The last variant keeps half of both sides, the others half of the area.
    keep(image, if variant == 2 { 0.5 } else { std::f64::consts::FRAC_1_SQRT_2 }, random)
}

/// Keeps 16 % of the area: the middle, any place, or any place enlarged to the image's size.
fn crop16(image: &Image, variant: usize, random: &mut RandomSequence) -> Image {
    let share = 0.4;
    if variant == 0 {
        let off = |side: u32| (f64::from(side) * (1.0 - share) / 2.0) as u32;
        let (columns, rows) = (off(image.width), off(image.height));
        return part(image, (columns, columns), (rows, rows));
    }
    let copy = keep(image, share, random);
    if variant == 1 { copy } else { copy.resized(image.width, image.height) }
}

/// Keeps this share of both sides, at a random place.
fn keep(image: &Image, share: f64, random: &mut RandomSequence) -> Image {
    let mut sides = |side: u32| {
        let off = side - (f64::from(side) * share) as u32;
        let before = (f64::from(off) * random.unit()) as u32;
        (before, off - before)
    };
    let columns = sides(image.width);
    part(image, columns, sides(image.height))
}

/// Rotates the image by 30 degrees to one side, or for variant 1 to the other. Variant 0 enlarges
/// the image so that it keeps its corners.
fn rotate(image: &Image, variant: usize) -> Image {
    let angle = if variant == 1 { -30.0_f64 } else { 30.0 };
    let (sin, cos) = angle.to_radians().sin_cos();
    let (width, height) = (f64::from(image.width), f64::from(image.height));
    // The second and third variant keep the frame, so their corners are lost.
    let (new_width, new_height) = if variant == 0 {
        (width * cos + height * sin.abs(), width * sin.abs() + height * cos)
    } else {
        (width, height)
    };
    let new_width = new_width.ceil();
    let new_height = new_height.ceil();
    image_of(new_width as u32, new_height as u32, |x, y| {
        let along = f64::from(x) - (new_width - 1.0) / 2.0;
        let down = f64::from(y) - (new_height - 1.0) / 2.0;
        let from_x = cos * along - sin * down;
        let from_y = sin * along + cos * down;
        between(image, from_x + (width - 1.0) / 2.0, from_y + (height - 1.0) / 2.0)
    })
}

/// Interpolates linearly between pixels. Returns black outside the image.
pub(super) fn between(image: &Image, x: f64, y: f64) -> [u8; 3] {
    let inside = |at: f64, side: u32| at > -0.5 && at < f64::from(side) - 0.5;
    if !inside(x, image.width) || !inside(y, image.height) {
        return [0; 3];
    }
    let (x, y) = (x.max(0.0), y.max(0.0));
    let (left, top) = (x as u32, y as u32);
    let right = (left + 1).min(image.width - 1);
    let below = (top + 1).min(image.height - 1);
    let (px, py) = (x - f64::from(left), y - f64::from(top));
    let corners = [pixel(image, left, top), pixel(image, right, top)];
    let lower = [pixel(image, left, below), pixel(image, right, below)];
    std::array::from_fn(|channel| {
        let mix = |pair: &[[u8; 3]; 2]| {
            f64::from(pair[0][channel]) * (1.0 - px) + f64::from(pair[1][channel]) * px
        };
        (mix(&corners) * (1.0 - py) + mix(&lower) * py).round() as u8
    })
}

/// Halves both sides, by one of two filters.
fn scale(image: &Image, variant: usize) -> Result<Image> {
    let filter = if variant == 0 { FilterType::Triangle } else { FilterType::Lanczos3 };
    let (width, height) = ((image.width / 2).max(1), (image.height / 2).max(1));
    let rgb = imageops::resize(&pixels(image)?, width, height, filter).into_raw();
    Ok(Image { width, height, rgb })
}

pub(super) fn blur(image: &Image, sigma: f64) -> Result<Image> {
    let rgb = imageops::blur(&pixels(image)?, sigma as f32).into_raw();
    Ok(Image { rgb, ..*image })
}

/// Makes the image brighter or darker, at random. Variant 0 multiplies the values, and the other
/// variants raise them to a power.
fn brightness(image: &Image, variant: usize, random: &mut RandomSequence) -> Image {
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
    let rgb = image
        .rgb
        .iter()
        .map(|&value| table.get(usize::from(value)).copied().unwrap_or(value))
        .collect();
    Image { rgb, ..*image }
}

/// Adds a border to the image. `share` is the width of the border as a share of each side. The
/// border mirrors the image at its edges.
fn border(image: &Image, share: f64) -> Image {
    let columns = (f64::from(image.width) * share) as u32;
    let rows = (f64::from(image.height) * share) as u32;
    let mirrored = |at: u32, border: u32, side: u32| {
        let position = (i64::from(at) - i64::from(border)).rem_euclid(2 * i64::from(side)) as u32;
        if position < side { position } else { 2 * side - 1 - position }
    };
    image_of(image.width + 2 * columns, image.height + 2 * rows, |x, y| {
        pixel(image, mirrored(x, columns, image.width), mirrored(y, rows, image.height))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_the_expected_size_and_pixels() {
        let image = image_of(60, 40, |x, y| [4 * x as u8, 6 * y as u8, 100]);
        let fillers = vec![image.clone(); 3];
        let size = |attack: Attack, variant| {
            let source = CopySource { image: &image, fillers: &fillers };
            let bytes = attack.copy(&source, variant, &mut RandomSequence::new(5)).unwrap();
            let copy = vision::decode(&bytes, &vision::Limits::default()).unwrap().image;
            (copy.width, copy.height)
        };
        assert_eq!((size(Attack::Crop, 0), size(Attack::Crop, 2)), ((42, 28), (30, 20)));
        assert_eq!((size(Attack::Rotate, 0), size(Attack::Rotate, 1)), ((72, 65), (60, 40)));
        assert_eq!((size(Attack::Scale, 0), size(Attack::Jpeg, 1)), ((30, 20), (52, 29)));
        for same in [Attack::Blur, Attack::Brightness, Attack::Text] {
            assert_eq!(size(same, 1), (60, 40));
        }
        assert_eq!((size(Attack::Mirror, 0), size(Attack::Mirror, 1)), ((60, 40), (50, 33)));
        assert_eq!((size(Attack::Crop16, 1), size(Attack::Crop16, 2)), ((24, 16), (60, 40)));
        assert_eq!((size(Attack::Collage, 0), size(Attack::Screen, 0)), ((90, 60), (60, 40)));
        let framed = border(&image, 0.1);
        assert_eq!((framed.width, framed.height), (72, 48));
        // The frame mirrors at the image's edge. The pixels inside keep their positions.
        assert_eq!(pixel(&framed, 5, 4), pixel(&image, 0, 0));
        assert_eq!(pixel(&framed, 0, 10), pixel(&image, 5, 6));
        assert_eq!(pixel(&framed, 71, 10), pixel(&image, 54, 6));
        assert_eq!(pixel(&framed, 6 + 20, 4 + 30), pixel(&image, 20, 30));
        let turned = rotate(&image, 1);
        assert_eq!((pixel(&turned, 0, 0), pixel(&turned, 30, 20)[2]), ([0; 3], 100));
    }

    #[test]
    fn each_image_gets_31_copies() {
        assert_eq!(Attack::ALL.iter().map(|&(_, _, copies)| copies).sum::<usize>(), 31);
    }
}
