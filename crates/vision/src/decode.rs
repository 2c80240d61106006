//! Decodes the bytes of a file to an upright [`Image`], within limits.
//!
//! The format is detected from the bytes, never from a name. The header's claims are checked before
//! a pixel is allocated, so a small file cannot cause the allocation of gigabytes. A file that ends
//! early is refused and not filled up with grey, because a search with half of an image would find
//! wrong images.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use base::{Error, Result};
use image::codecs::bmp::BmpDecoder;
use image::codecs::jpeg::JpegDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, RgbImage};

use crate::limits::{allowed, decode_checked, refused};
use crate::{
    Format, Header, Image, Limits, NistImage, density, header, jpeg, nist, png, tiff, webp, wsq,
};

/// A decoded file.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// Upright pixels.
    pub image: Image,
    /// Format of the file.
    pub format: Format,
    /// The orientation that was undone, as EXIF numbers it: 1 (upright) to 8.
    pub orientation: u8,
    /// Resolution that the file claims along its rows, in dots per inch, or `None` if it names
    /// none. Not to be trusted.
    pub dots_per_inch: Option<f32>,
}

/// Decodes a JPEG, PNG, WebP, TIFF, BMP, WSQ or ANSI/NIST-ITL file, the first image if it has
/// several. Undoes the EXIF orientation, puts transparency over white, and converts CMYK, 16-bit,
/// grey and palettes to 8-bit RGB. Colour profiles are not applied.
///
/// An ANSI/NIST-ITL file gives the first image whose compression is supported.
/// [`crate::nist_images`] lists all.
///
/// # Errors
/// `InvalidArgument` if the bytes are not such a file, are damaged, end early, or use an
/// unsupported feature. `TooLarge` if the header announces more than `limits`, before anything is
/// allocated.
///
/// # Example: a file within the limits, and beyond them
/// ```
/// use base::ErrorKind;
/// use millpond_vision::{Format, Image, Limits, decode, thumbnail};
///
/// let red = Image { width: 64, height: 32, rgb: [255, 0, 0].repeat(64 * 32) };
/// let file = thumbnail(&red, 16)?;
/// let decoded = decode(&file, &Limits::default())?;
/// assert_eq!(decoded.format, Format::Jpeg);
/// assert_eq!([decoded.image.width, decoded.image.height], [16, 8]);
///
/// let limits = Limits { pixels_max: 100, ..Limits::default() };
/// assert!(decode(&file, &limits).is_err_and(|error| error.kind() == ErrorKind::TooLarge));
/// # Ok::<(), base::Error>(())
/// ```
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Decoded> {
    guarded(|| {
        let header = Header::read(bytes, limits)?;
        let pixels = decode_as(&header, bytes, limits)?;
        let dots_per_inch = density::dots_per_inch(header.format, bytes);
        Ok(DecodedFile { format: header.format, pixels, dots_per_inch })
    })
}

/// Result of a decoder.
struct DecodedFile {
    format: Format,
    /// Pixels in the file's depth, as stored.
    pixels: (DynamicImage, Orientation),
    dots_per_inch: Option<f32>,
}

impl NistImage<'_> {
    /// Decodes the image.
    ///
    /// # Errors
    /// As [`decode`]. `InvalidArgument` for an unsupported compression.
    pub fn decode(&self, limits: &Limits) -> Result<Decoded> {
        guarded(|| {
            let pixels = decode_record(self, limits)?;
            let dots_per_inch = density::dots_per_inch_of_record(self);
            Ok(DecodedFile { format: Format::Nist, pixels, dots_per_inch })
        })
    }
}

/// Runs a decoder and turns its image upright.
fn guarded(decoder: impl FnOnce() -> Result<DecodedFile>) -> Result<Decoded> {
    // The decoders are made for foreign bytes and do not panic by design. A panic refuses the
    // image.
    let decoded = catch_unwind(AssertUnwindSafe(decoder));
    let decoded = decoded.unwrap_or_else(|_| Err(Error::invalid("this image is damaged")))?;
    let DecodedFile { format, pixels: (image, orientation), dots_per_inch } = decoded;
    let image = upright(image, orientation);
    Ok(Decoded { image, format, orientation: orientation.to_exif(), dots_per_inch })
}

/// Decodes a file to its own depth, as stored.
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
            jpeg::check(bytes)?;
            decode_checked(
                header,
                JpegDecoder::new(file).map_err(unreadable)?,
                limits,
                ImageDecoder::orientation,
            )
        }
        Format::Png => {
            let file = Cursor::new(png::essential(bytes));
            let decoder = PngDecoder::with_limits(file, allowed(limits)).map_err(unreadable)?;
            decode_checked(header, decoder, limits, ImageDecoder::orientation)
        }
        Format::WebP => {
            let orientation = webp::exif(bytes).and_then(Orientation::from_exif_chunk);
            let orientation = |_: &mut _| Ok(orientation.unwrap_or(Orientation::NoTransforms));
            decode_checked(header, WebPDecoder::new(file).map_err(unreadable)?, limits, orientation)
        }
        Format::Bmp => {
            let decoder = BmpDecoder::new(file).map_err(unreadable)?;
            let (image, orientation) =
                decode_checked(header, decoder, limits, ImageDecoder::orientation)?;
            Ok((without_unset_alpha(image), orientation))
        }
        Format::Tiff => tiff::decode(header, bytes, limits),
        Format::Wsq => Ok((wsq::decode(header, bytes)?, Orientation::NoTransforms)),
        Format::Nist => decode_record(&nist::first(bytes)?, limits),
    }
}

/// Returns an image without its transparency if all of it is transparent. Some programs announce a
/// byte of transparency in a bitmap and leave it 0. Browsers show such bitmaps, too.
fn without_unset_alpha(image: DynamicImage) -> DynamicImage {
    match image {
        DynamicImage::ImageRgba8(pixels) if pixels.pixels().all(|pixel| pixel.0[3] == 0) => {
            DynamicImage::ImageRgb8(DynamicImage::ImageRgba8(pixels).into_rgb8())
        }
        image => image,
    }
}

fn decode_record(image: &NistImage, limits: &Limits) -> Result<(DynamicImage, Orientation)> {
    let Some(format) = image.file_format()? else {
        image.header(limits)?;
        return Ok((image.levels()?, Orientation::NoTransforms));
    };
    let announced = header::announced(format, image.data, limits)?;
    decode_as(&Header::of(format, announced, limits)?, image.data, limits)
}

/// Returns the image upright and on white. Pixels become 8-bit RGB before they are turned, so that
/// the copy for turning is small.
fn upright(image: DynamicImage, orientation: Orientation) -> Image {
    let (width, height) = (image.width(), image.height());
    let rgb = match image {
        DynamicImage::ImageRgb8(image) => image.into_raw(),
        image if image.color().has_alpha() => on_white(image.into_rgba8().into_raw()),
        image => image.into_rgb8().into_raw(),
    };
    let Some(rgb) = RgbImage::from_raw(width, height, rgb) else {
        return Image { width, height, rgb: Vec::new() };
    };
    let mut image = DynamicImage::ImageRgb8(rgb);
    image.apply_orientation(orientation);
    Image { width: image.width(), height: image.height(), rgb: image.into_rgb8().into_raw() }
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
