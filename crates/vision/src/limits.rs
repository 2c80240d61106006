//! Formats, limits, and the checks that all decoders share.

use base::{Error, Result};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageResult};

use crate::Header;

/// Format of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JPEG, baseline or progressive, grey, YCbCr, RGB, CMYK or YCCK.
    Jpeg,
    /// PNG of any depth. Of an animated one, the still image.
    Png,
    /// WebP, lossy or lossless. Of an animated one, the first frame.
    WebP,
    /// TIFF, the first page.
    Tiff,
    /// Windows bitmap.
    Bmp,
    /// WSQ, the wavelet format of fingerprint images.
    Wsq,
    /// ANSI/NIST-ITL file in the traditional encoding. It gives the first fingerprint image that
    /// can be read.
    Nist,
}

impl Format {
    /// All formats that can be decoded.
    pub const ALL: [Format; 7] = [
        Format::Jpeg,
        Format::Png,
        Format::WebP,
        Format::Tiff,
        Format::Bmp,
        Format::Wsq,
        Format::Nist,
    ];

    /// Returns the format that `bytes` begin with, or `None` for other files.
    pub fn sniff(bytes: &[u8]) -> Option<Format> {
        match bytes {
            [0xff, 0xd8, 0xff, ..] => Some(Format::Jpeg),
            [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some(Format::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Format::WebP),
            [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Some(Format::Tiff),
            [b'B', b'M', ..] => Some(Format::Bmp),
            [0xff, 0xa0, 0xff, 0xa2..=0xa8 | 0xff, ..] => Some(Format::Wsq),
            // The first field: the length of the record of type 1.
            [b'1', b'.', b'0', b'1', b':', b'0'..=b'9', ..]
            | [b'1', b'.', b'0', b'0', b'1', b':', b'0'..=b'9', ..] => Some(Format::Nist),
            _ => None,
        }
    }

    /// Returns the name in responses and payloads: "jpeg", "png", "webp", "tiff", "bmp", "wsq",
    /// "nist".
    pub fn name(self) -> &'static str {
        match self {
            Format::Jpeg => "jpeg",
            Format::Png => "png",
            Format::WebP => "webp",
            Format::Tiff => "tiff",
            Format::Bmp => "bmp",
            Format::Wsq => "wsq",
            Format::Nist => "nist",
        }
    }

    /// Returns the media type, such as `image/jpeg`. ANSI/NIST-ITL files have no media type of
    /// their own.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Jpeg => "image/jpeg",
            Format::Png => "image/png",
            Format::WebP => "image/webp",
            Format::Tiff => "image/tiff",
            Format::Bmp => "image/bmp",
            Format::Wsq => "image/x-wsq",
            Format::Nist => "application/octet-stream",
        }
    }
}

/// Largest image that is decoded. All limits are checked on the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Width times height in pixels.
    pub pixels_max: u64,
    /// Longer side in pixels.
    pub side_max: u32,
    /// Bytes of memory for the pixels in the file's own depth: mostly 3 a pixel, 8 for 16-bit
    /// colour with alpha.
    pub bytes_max: u64,
}

impl Default for Limits {
    /// Returns 64 million pixels, a side of 65,535 pixels, and 512 MiB.
    fn default() -> Self {
        Limits { pixels_max: 64_000_000, side_max: 65_535, bytes_max: 512 << 20 }
    }
}

/// Size and memory that a format's header announces.
pub(crate) struct Announced {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Bytes per pixel in the file's own depth.
    pub(crate) depth_bytes: u64,
    /// Bytes that the decoder allocates besides the pixels.
    pub(crate) beside_bytes: u64,
}

/// Reads the pixels if the decoder sees the image that the header announced, whose memory is
/// bounded.
pub(crate) fn decode_checked<D: ImageDecoder>(
    header: &Header,
    mut decoder: D,
    limits: &Limits,
    orientation: impl FnOnce(&mut D) -> ImageResult<Orientation>,
) -> Result<(DynamicImage, Orientation)> {
    let format = header.format;
    let (width, height) = decoder.dimensions();
    check_size(width, height, decoder.total_bytes(), limits)?;
    if (width, height) != (header.width, header.height)
        || decoder.total_bytes() > header.decode_bytes
    {
        return Err(Error::invalid(format!(
            "this {} image is damaged: its headers disagree",
            format.name()
        )));
    }
    // An image with unreadable EXIF data counts as upright.
    let orientation = orientation(&mut decoder).unwrap_or(Orientation::NoTransforms);
    let unreadable = |error: ImageError| refused(format, &error);
    decoder.set_limits(allowed(limits)).map_err(unreadable)?;
    let image = DynamicImage::from_decoder(decoder).map_err(unreadable)?;
    Ok((image, orientation))
}

/// Checks the size in pixels and the decoded bytes that an image announces.
///
/// # Errors
/// `InvalidArgument` for an image without pixels, `TooLarge` if it exceeds a limit.
pub(crate) fn check_size(width: u32, height: u32, bytes: u64, limits: &Limits) -> Result<()> {
    if width == 0 || height == 0 {
        return Err(Error::invalid("this image has no pixels"));
    }
    let pixels = u64::from(width) * u64::from(height);
    let too_many = pixels > limits.pixels_max || width.max(height) > limits.side_max;
    if too_many || bytes > limits.bytes_max {
        return Err(Error::too_large(format!(
            "this image has {width} x {height} pixels in {bytes} bytes; at most {} pixels, {} per side and {} bytes are \
             decoded: make it smaller",
            limits.pixels_max, limits.side_max, limits.bytes_max
        )));
    }
    Ok(())
}

/// Returns the limits for a decoder. In addition to the pixels, a decoder may need twice their
/// bytes (coefficients of a progressive JPEG).
pub(crate) fn allowed(limits: &Limits) -> image::Limits {
    let mut allowed = image::Limits::no_limits();
    (allowed.max_image_width, allowed.max_image_height) =
        (Some(limits.side_max), Some(limits.side_max));
    allowed.max_alloc = Some(limits.bytes_max.saturating_mul(3));
    allowed
}

pub(crate) fn refused(format: Format, error: &ImageError) -> Error {
    let name = format.name();
    match error {
        ImageError::Limits(error) => {
            Error::too_large(format!("this {name} image needs too much memory: {error}"))
        }
        ImageError::Unsupported(error) => {
            Error::invalid(format!("this kind of {name} cannot be read: {error}"))
        }
        error => Error::invalid(format!("this {name} image is damaged or ends early: {error}")),
    }
}
