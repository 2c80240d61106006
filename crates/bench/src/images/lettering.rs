//! Text drawn over an image. The program contains the font.

use ab_glyph::{Font, FontRef, PxScale, ScaleFont, point};
use base::{Error, Result};
use vision::Image;

use loadgen::random::RandomSequence;

const WORDS: [&str; 12] = [
    "SALE",
    "breaking",
    "news",
    "from",
    "the",
    "market",
    "Sunday",
    "2026",
    "when",
    "you",
    "wait",
    "www.example.org",
];
const LINE_WORDS: usize = 4;

/// Draws `lines` lines of text over the image, each with its own size, position and colour.
pub(super) fn over(image: &Image, lines: usize, random: &mut RandomSequence) -> Result<Image> {
    let font = FontRef::try_from_slice(dejavu::sans::bold())
        .map_err(|error| Error::internal("the font that lies in the program").caused_by(error))?;
    let mut out = image.clone();
    for _ in 0..lines {
        let words: Vec<&str> =
            (0..LINE_WORDS).map(|_| WORDS[(random.bits() % WORDS.len() as u64) as usize]).collect();
        let height = f64::from(image.height) * (0.06 + 0.06 * random.unit());
        let left = f64::from(image.width) * 0.3 * random.unit();
        let baseline = f64::from(image.height) * (0.1 + 0.88 * random.unit());
        let tone = random.bits();
        let colour = if tone & 1 == 0 {
            [(tone >> 8) as u8, (tone >> 16) as u8, (tone >> 24) as u8]
        } else {
            [255; 3]
        };
        let line = TextPosition { left, baseline, height, colour };
        write(&mut out, &font, &words.join(" "), line);
    }
    Ok(out)
}

/// Position, height (pixels) and colour of a line of text.
#[derive(Clone, Copy)]
struct TextPosition {
    left: f64,
    baseline: f64,
    height: f64,
    colour: [u8; 3],
}

/// Draws a line of text onto the image.
fn write(image: &mut Image, font: &FontRef<'_>, text: &str, line: TextPosition) {
    let font = font.as_scaled(PxScale::from(line.height as f32));
    let mut right = line.left as f32;
    for id in text.chars().map(|letter| font.glyph_id(letter)) {
        let glyph = id.with_scale_and_position(font.scale(), point(right, line.baseline as f32));
        right += font.h_advance(id);
        let Some(outline) = font.outline_glyph(glyph) else { continue };
        let corner = outline.px_bounds().min;
        outline.draw(|x, y, cover| {
            let x = corner.x as i64 + i64::from(x);
            let y = corner.y as i64 + i64::from(y);
            blend(image, x, y, line.colour, cover.clamp(0.0, 1.0));
        });
    }
}

fn blend(image: &mut Image, x: i64, y: i64, colour: [u8; 3], cover: f32) {
    if x < 0 || y < 0 || x >= i64::from(image.width) || y >= i64::from(image.height) {
        return;
    }
    let at = (y * i64::from(image.width) + x) as usize;
    if let Some(pixel) = image.rgb.as_chunks_mut::<3>().0.get_mut(at) {
        for (below, over) in pixel.iter_mut().zip(colour) {
            *below = (f32::from(*below) * (1.0 - cover) + f32::from(over) * cover).round() as u8;
        }
    }
}
