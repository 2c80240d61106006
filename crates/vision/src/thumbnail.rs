//! Thumbnails: an image as a small JPEG file.

use base::{Error, Result};
use image::ExtendedColorType;
use image::codecs::jpeg::JpegEncoder;

use crate::Image;
use crate::pixels::{FittedSize, RESIZED_BYTES, RGB_BYTES};

/// JPEG quality of thumbnails.
const QUALITY: u8 = 82;

/// Returns an upper bound of the bytes that the image and its [`thumbnail`] take at once.
pub fn thumbnail_bytes(image: &Image, longest: u32) -> u64 {
    let FittedSize { width, height } = image.fitted_size(longest.max(1));
    let is_copy = (width, height) == (image.width, image.height);
    let between =
        if is_copy { 0 } else { RESIZED_BYTES * u64::from(image.width) * u64::from(height) };
    // The pixels of the thumbnail, and its file.
    let small = 2 * RGB_BYTES * u64::from(width) * u64::from(height);
    image.rgb.len() as u64 + between + small
}

/// Encodes the image as JPEG with its longer side at most `longest` pixels. It is never enlarged.
///
/// # Errors
/// `InvalidArgument` for a side that JPEG cannot have (above 65,535).
pub fn thumbnail(image: &Image, longest: u32) -> Result<Vec<u8>> {
    let small = image.fitted(longest.max(1));
    let mut file = Vec::new();
    JpegEncoder::new_with_quality(&mut file, QUALITY)
        .encode(&small.rgb, small.width, small.height, ExtendedColorType::Rgb8)
        .map_err(|error| {
            Error::invalid(format!("a thumbnail of {longest} pixels cannot be made"))
                .caused_by(error)
        })?;
    Ok(file)
}
