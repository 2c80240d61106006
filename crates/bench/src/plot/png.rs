//! A picture as PNG, at twice its size. The font lies in the program: a server has none.

use std::io::Cursor;

use ab_glyph::{Font, FontRef, PxScale, ScaleFont, point};
use base::{Error, Result};
use image::{ImageFormat, Rgb, RgbImage};

use super::{Anchor, Colour, Picture, Place, Shape};

/// Pixels of the file for each of the picture.
const SCALE: f64 = 2.0;
/// Height of a font's line for its size: what `font-size` means in SVG.
const LINE_HEIGHT: f64 = 1.164;

/// The picture as the bytes of a file.
///
/// # Errors
/// `Internal` when it cannot be encoded.
pub(crate) fn png(picture: &Picture) -> Result<Vec<u8>> {
    let internal = |what: &dyn std::fmt::Display| Error::internal(format!("picture: {what}"));
    let font = FontRef::try_from_slice(dejavu::sans::regular()).map_err(|error| internal(&error))?;
    let size = |length: f64| (length * SCALE).round() as u32;
    let mut image = RgbImage::from_pixel(size(picture.width), size(picture.height), Rgb([255; 3]));
    for shape in &picture.shapes {
        match shape {
            Shape::Line { points, colour, width } => {
                for pair in points.windows(2) {
                    if let [from, to] = pair {
                        stroke(&mut image, scaled(*from), scaled(*to), width * SCALE / 2.0, *colour);
                    }
                }
            }
            Shape::Dot { at, radius, colour, .. } => {
                stroke(&mut image, scaled(*at), scaled(*at), radius * SCALE, *colour);
            }
            Shape::Text { at, text, anchor, size, colour, upwards } => {
                let line = Line { at: scaled(*at), anchor: *anchor, size: size * SCALE, upwards: *upwards };
                line.write(&mut image, &font, text, *colour);
            }
        }
    }
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, ImageFormat::Png).map_err(|error| internal(&error))?;
    Ok(bytes.into_inner())
}

fn scaled((x, y): Place) -> Place {
    (x * SCALE, y * SCALE)
}

/// Everything within `reach` of the line from `from` to `to`, its edge one pixel soft.
fn stroke(image: &mut RgbImage, from: Place, to: Place, reach: f64, colour: Colour) {
    let margin = reach + 1.0;
    let low = |one: f64, other: f64| (one.min(other) - margin).floor() as i64;
    let high = |one: f64, other: f64| (one.max(other) + margin).ceil() as i64;
    for y in low(from.1, to.1)..=high(from.1, to.1) {
        for x in low(from.0, to.0)..=high(from.0, to.0) {
            let distance = distance((x as f64 + 0.5, y as f64 + 0.5), from, to);
            blend(image, (x, y), colour, (reach + 0.5 - distance) as f32);
        }
    }
}

/// From a place to the nearest one of a line.
fn distance((x, y): Place, from: Place, to: Place) -> f64 {
    let (width, height) = (to.0 - from.0, to.1 - from.1);
    let length = width * width + height * height;
    let along = if length > 0.0 { ((x - from.0) * width + (y - from.1) * height) / length } else { 0.0 };
    let along = along.clamp(0.0, 1.0);
    (x - from.0 - along * width).hypot(y - from.1 - along * height)
}

/// Puts `colour` over a pixel; `cover` is 0 to 1.
fn blend(image: &mut RgbImage, (x, y): (i64, i64), colour: Colour, cover: f32) {
    let cover = cover.clamp(0.0, 1.0);
    let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { return };
    let Some(pixel) = image.get_pixel_mut_checked(x, y) else { return };
    for (below, over) in pixel.0.iter_mut().zip(colour) {
        *below = (f32::from(*below) * (1.0 - cover) + f32::from(over) * cover).round() as u8;
    }
}

/// Where a text goes.
struct Line {
    at: Place,
    anchor: Anchor,
    size: f64,
    upwards: bool,
}

impl Line {
    fn write(&self, image: &mut RgbImage, font: &FontRef<'_>, text: &str, colour: Colour) {
        let font = font.as_scaled(PxScale::from((self.size * LINE_HEIGHT) as f32));
        let ids: Vec<_> = text.chars().map(|c| font.glyph_id(c)).collect();
        let width: f32 = ids.iter().map(|&id| font.h_advance(id)).sum();
        let mut right = match self.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => -width / 2.0,
            Anchor::End => -width,
        };
        for id in ids {
            // Along the line and away from its foot; turned afterwards, where it goes upwards.
            let glyph = id.with_scale_and_position(font.scale(), point(right, 0.0));
            right += font.h_advance(id);
            let Some(outline) = font.outline_glyph(glyph) else { continue };
            let corner = outline.px_bounds().min;
            outline.draw(|x, y, cover| {
                let (along, down) = (f64::from(corner.x) + f64::from(x), f64::from(corner.y) + f64::from(y));
                let (right, below) = if self.upwards { (down, -along) } else { (along, down) };
                let place = ((self.at.0 + right).round() as i64, (self.at.1 + below).round() as i64);
                blend(image, place, colour, cover);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_dots_and_text_leave_traces() {
        let bytes = png(&super::super::tests::chart().picture()).unwrap();
        let image = image::load_from_memory(&bytes).unwrap().to_rgb8();
        assert_eq!(image.dimensions(), (1720, 840));
        let seen = |colour: Colour| image.pixels().filter(|pixel| pixel.0 == colour).count();
        for colour in [super::super::COLOURS[0], super::super::COLOURS[1], super::super::GRID] {
            assert!(seen(colour) > 100, "{colour:?}");
        }
        // The name of the left axis stands at the left edge, upwards.
        let dark = |x: u32, y: u32| image.get_pixel(x, y).0.iter().all(|&part| part < 160);
        let rows = (0..840).filter(|&y| (10..45).any(|x| dark(x, y))).count();
        assert!((40..400).contains(&rows), "{rows}");
    }

    #[test]
    fn distances() {
        assert_eq!(distance((1.0, 1.0), (0.0, 0.0), (2.0, 0.0)), 1.0);
        assert_eq!(distance((5.0, 4.0), (0.0, 0.0), (2.0, 0.0)), 5.0);
        assert_eq!(distance((3.0, 4.0), (0.0, 0.0), (0.0, 0.0)), 5.0);
    }
}
