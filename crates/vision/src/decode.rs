//! From the bytes of a file to an upright [`Picture`], within limits.
//!
//! The format is told by the bytes, never by a name. What the header announces is checked before a
//! pixel is allocated, so that a small file cannot ask for gigabytes. A file that ends early is
//! refused, not filled up with grey: a collection that holds half a picture would find the wrong
//! ones.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use base::{Error, Result};
use image::codecs::bmp::BmpDecoder;
use image::codecs::jpeg::JpegDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageResult, RgbImage};

use crate::{Header, Picture, density, jpeg_end, png, tiff, webp};

/// What a file may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JPEG, baseline or progressive, grey, YCbCr, RGB, CMYK or YCCK.
    Jpeg,
    /// PNG of any depth; of an animated one the still picture.
    Png,
    /// WebP, lossy or lossless; of an animated one the first frame.
    WebP,
    /// TIFF; of several pages the first.
    Tiff,
    /// Windows bitmap.
    Bmp,
}

impl Format {
    /// The format that `bytes` begin as; `None` for any other file.
    pub fn sniff(bytes: &[u8]) -> Option<Format> {
        match bytes {
            [0xff, 0xd8, 0xff, ..] => Some(Format::Jpeg),
            [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some(Format::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Format::WebP),
            [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Some(Format::Tiff),
            [b'B', b'M', ..] => Some(Format::Bmp),
            _ => None,
        }
    }

    /// Its name in answers and payloads: "jpeg", "png", "webp", "tiff", "bmp".
    pub fn name(self) -> &'static str {
        match self {
            Format::Jpeg => "jpeg",
            Format::Png => "png",
            Format::WebP => "webp",
            Format::Tiff => "tiff",
            Format::Bmp => "bmp",
        }
    }

    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Jpeg => "image/jpeg",
            Format::Png => "image/png",
            Format::WebP => "image/webp",
            Format::Tiff => "image/tiff",
            Format::Bmp => "image/bmp",
        }
    }
}

/// What a picture may need; all of it is checked on the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pixels: width times height.
    pub pixels_max: u64,
    /// Pixels of a side.
    pub side_max: u32,
    /// Bytes of memory for the pixels in the file's own depth: 3 a pixel for most, 8 for 16-bit
    /// colour with alpha.
    pub bytes_max: u64,
}

impl Default for Limits {
    /// 64 million pixels, a side of 65,535, 512 MiB.
    fn default() -> Self {
        Limits { pixels_max: 64_000_000, side_max: 65_535, bytes_max: 512 << 20 }
    }
}

/// A decoded file.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// Its pixels, upright.
    pub picture: Picture,
    /// What the file is.
    pub format: Format,
    /// The orientation that was undone, as EXIF numbers it: 1 (upright) to 8.
    pub orientation: u8,
    /// The resolution that the file claims, in dots per inch, along its rows; `None` if it names
    /// none. Not to be trusted.
    pub dots_per_inch: Option<f32>,
}

/// Decodes a JPEG, PNG, WebP, TIFF or BMP file: EXIF orientation undone, transparency over white,
/// CMYK, 16-bit, grey and palettes as 8-bit RGB (colour profiles are not applied), of several
/// pictures the first.
///
/// # Errors
/// `InvalidArgument` for bytes that are no such file, are damaged or end early, or that use what is
/// not supported; `TooLarge` where the header announces more than `limits`, before anything is
/// allocated.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Decoded> {
    // The decoders are meant for foreign bytes and do not panic by design; if one does, it is the
    // picture that is refused.
    let decoded = catch_unwind(AssertUnwindSafe(|| {
        let header = Header::read(bytes, limits)?;
        decode_as(&header, bytes, limits).map(|decoded| (header.format, decoded))
    }));
    let (format, (image, orientation)) =
        decoded.unwrap_or_else(|_| Err(Error::invalid("this picture is damaged")))?;
    let picture = upright(image, orientation);
    Ok(Decoded {
        picture,
        format,
        orientation: orientation.to_exif(),
        dots_per_inch: density::dots_per_inch(format, bytes),
    })
}

fn decode_as(
    header: &Header,
    bytes: &[u8],
    limits: &Limits,
) -> Result<(DynamicImage, Orientation)> {
    let format = header.format;
    let file = Cursor::new(bytes);
    let unreadable = |error: ImageError| refused(format, &error);
    match format {
        Format::Jpeg => {
            jpeg_end::check(bytes)?;
            checked(
                header,
                JpegDecoder::new(file).map_err(unreadable)?,
                limits,
                ImageDecoder::orientation,
            )
        }
        Format::Png => {
            let file = Cursor::new(png::essential(bytes));
            let decoder = PngDecoder::with_limits(file, allowed(limits)).map_err(unreadable)?;
            checked(header, decoder, limits, ImageDecoder::orientation)
        }
        Format::WebP => {
            let orientation = webp::exif(bytes).and_then(Orientation::from_exif_chunk);
            let orientation = |_: &mut _| Ok(orientation.unwrap_or(Orientation::NoTransforms));
            checked(header, WebPDecoder::new(file).map_err(unreadable)?, limits, orientation)
        }
        Format::Bmp => checked(
            header,
            BmpDecoder::new(file).map_err(unreadable)?,
            limits,
            ImageDecoder::orientation,
        ),
        Format::Tiff => tiff::decode(header, bytes, limits),
    }
}

/// Reads the pixels if the decoder sees the image that the header announced: memory was bounded by
/// the header.
pub(crate) fn checked<D: ImageDecoder>(
    header: &Header,
    mut decoder: D,
    limits: &Limits,
    orientation: impl FnOnce(&mut D) -> ImageResult<Orientation>,
) -> Result<(DynamicImage, Orientation)> {
    let format = header.format;
    let (width, height) = decoder.dimensions();
    within(width, height, decoder.total_bytes(), limits)?;
    if (width, height) != (header.width, header.height)
        || decoder.total_bytes() > header.decode_bytes
    {
        return Err(Error::invalid(format!(
            "this {} picture is damaged: its headers disagree",
            format.name()
        )));
    }
    // A picture with unreadable EXIF data is taken to be upright.
    let orientation = orientation(&mut decoder).unwrap_or(Orientation::NoTransforms);
    let unreadable = |error: ImageError| refused(format, &error);
    decoder.set_limits(allowed(limits)).map_err(unreadable)?;
    let image = DynamicImage::from_decoder(decoder).map_err(unreadable)?;
    Ok((image, orientation))
}

/// Compares a header with the limits.
pub(crate) fn within(width: u32, height: u32, bytes: u64, limits: &Limits) -> Result<()> {
    if width == 0 || height == 0 {
        return Err(Error::invalid("this picture has no pixels"));
    }
    let pixels = u64::from(width) * u64::from(height);
    let too_many = pixels > limits.pixels_max || width.max(height) > limits.side_max;
    if too_many || bytes > limits.bytes_max {
        return Err(Error::too_large(format!(
            "this picture has {width} x {height} pixels in {bytes} bytes; at most {} pixels, {} a side and {} bytes are \
             decoded: make it smaller",
            limits.pixels_max, limits.side_max, limits.bytes_max
        )));
    }
    Ok(())
}

/// The same for the decoders; what they need besides the pixels may be as much again, twice (a
/// progressive JPEG's coefficients).
fn allowed(limits: &Limits) -> image::Limits {
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
            Error::too_large(format!("this {name} picture needs too much memory: {error}"))
        }
        ImageError::Unsupported(error) => {
            Error::invalid(format!("this kind of {name} cannot be read: {error}"))
        }
        error => Error::invalid(format!("this {name} picture is damaged or ends early: {error}")),
    }
}

/// Returns the picture turned as it is meant to be seen, on white. Pixels become 8-bit RGB before
/// they are turned, so that the copy that turning makes is a small one.
fn upright(image: DynamicImage, orientation: Orientation) -> Picture {
    let (width, height) = (image.width(), image.height());
    let rgb = match image {
        DynamicImage::ImageRgb8(image) => image.into_raw(),
        image if image.color().has_alpha() => on_white(image.into_rgba8().into_raw()),
        image => image.into_rgb8().into_raw(),
    };
    let Some(rgb) = RgbImage::from_raw(width, height, rgb) else {
        return Picture { width, height, rgb: Vec::new() };
    };
    let mut image = DynamicImage::ImageRgb8(rgb);
    image.apply_orientation(orientation);
    Picture { width: image.width(), height: image.height(), rgb: image.into_rgb8().into_raw() }
}

/// Blends RGBA over white, in the same memory.
fn on_white(mut pixels: Vec<u8>) -> Vec<u8> {
    let count = pixels.len() / 4;
    for at in 0..count {
        let Some(&[red, green, blue, alpha]) = pixels.get(4 * at..).and_then(<[u8]>::first_chunk)
        else {
            break;
        };
        let over = |colour: u8| {
            let blended = u32::from(colour) * u32::from(alpha) + 255 * (255 - u32::from(alpha));
            ((blended + 127) / 255) as u8
        };
        if let Some(place) = pixels.get_mut(3 * at..).and_then(<[u8]>::first_chunk_mut) {
            *place = [over(red), over(green), over(blue)];
        }
    }
    pixels.truncate(3 * count);
    pixels
}
