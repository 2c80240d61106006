//! Samples of a pixel besides its colours (TIFF 6.0, section 18): transparency, masks, layers.

use ::tiff::ColorType;
use ::tiff::tags::Tag;
use base::{Error, Result};
use image::codecs::tiff::TiffDecoder;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder};

use super::{PageBytes, PageDecoder, damaged, with_value};
use crate::limits::{decode_checked, refused};
use crate::{Format, Header, Limits};

/// Value of the tag ExtraSamples for a sample without a meaning.
const UNSPECIFIED: u16 = 0;
/// Value for transparency by which the file's colours are multiplied.
const ASSOCIATED_ALPHA: u16 = 1;
/// Value for transparency by which the file's colours are not multiplied.
const UNASSOCIATED_ALPHA: u16 = 2;

/// Decodes the first page of a file, which `page` has opened. One read returns at most `piece_max`
/// bytes. Only an extra sample that is transparency changes the image.
///
/// # Errors
/// As [`crate::decode()`].
pub(super) fn decode(
    header: &Header,
    mut page: PageDecoder<'_>,
    bytes: &[u8],
    piece_max: usize,
    limits: &Limits,
) -> Result<(DynamicImage, Orientation)> {
    let extra: Vec<u16> =
        page.find_tag_unsigned_vec(Tag::ExtraSamples).ok().flatten().unwrap_or_default();
    let colour = page.colortype().map_err(|error| damaged(&error))?;
    let rewritten = if is_misread(&mut page, colour) {
        Some(with_mask_as_alpha(bytes, colour, &extra)?)
    } else {
        None
    };
    let file = PageBytes::new(rewritten.as_deref().unwrap_or(bytes), piece_max);
    let decoder = TiffDecoder::new(file).map_err(|error| refused(Format::Tiff, &error))?;
    let (image, orientation) = decode_checked(header, decoder, limits, ImageDecoder::orientation)?;
    let image = if rewritten.is_some() {
        // That sample is not transparency.
        DynamicImage::ImageRgb8(image.into_rgb8())
    } else if extra.first() == Some(&ASSOCIATED_ALPHA) && image.color().has_alpha() {
        divided_by_alpha(image)
    } else {
        image
    };
    Ok((image, orientation))
}

/// Returns true for a page that the decoder reads wrongly without an error. It removes extra
/// samples before it undoes the predictor, which was applied to all samples.
fn is_misread(page: &mut PageDecoder<'_>, colour: ColorType) -> bool {
    let mut number = |tag| page.find_tag_unsigned::<u16>(tag).ok().flatten().unwrap_or(1);
    let has_predictor = number(Tag::Predictor) != 1;
    let is_planar = number(Tag::PlanarConfiguration) != 1;
    has_predictor && !is_planar && number(Tag::SamplesPerPixel) != colour.num_samples()
}

/// Returns a file of red, green, blue and one other sample with that sample called transparency,
/// because the decoder keeps all samples of such a page.
///
/// # Errors
/// `InvalidArgument` with the remedy for other pages.
fn with_mask_as_alpha(bytes: &[u8], colour: ColorType, extra: &[u16]) -> Result<Vec<u8>> {
    const EXTRA_SAMPLES: u16 = 338;
    let is_known = matches!(colour, ColorType::RGB(_)) && extra == [UNSPECIFIED];
    let file = if is_known { with_value(bytes, EXTRA_SAMPLES, UNASSOCIATED_ALPHA) } else { None };
    file.ok_or_else(|| {
        Error::invalid(
            "this kind of tiff cannot be read: extra channels with a predictor; save it without \
             extra channels, or without compression",
        )
    })
}

/// Returns the image with the colours that they had before a program multiplied them by alpha.
fn divided_by_alpha(image: DynamicImage) -> DynamicImage {
    let mut image = image.into_rgba8();
    for pixel in image.pixels_mut() {
        let [red, green, blue, alpha] = pixel.0;
        let divided = |level: u8| {
            let scaled = u32::from(level) * 255 + u32::from(alpha) / 2;
            // A level above alpha is damage.
            scaled.checked_div(u32::from(alpha)).map_or(level, |quotient| quotient.min(255) as u8)
        };
        pixel.0 = [divided(red), divided(green), divided(blue), alpha];
    }
    DynamicImage::ImageRgba8(image)
}
