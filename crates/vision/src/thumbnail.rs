//! Thumbnails.

use base::{Error, Result};
use image::ExtendedColorType;
use image::codecs::jpeg::JpegEncoder;

use crate::Image;

/// JPEG quality of thumbnails.
const QUALITY: u8 = 82;

/// Encodes the image as JPEG with its longer side at most `longest` pixels; never enlarged.
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
