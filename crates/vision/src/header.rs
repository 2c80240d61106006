//! Reads the header of a file and bounds the memory that decoding the file takes.
//!
//! A decoder allocates by the header's claims, so they are checked before a decoder is built. The
//! bound covers the decoder's buffers, the conversion to 8-bit RGB, the rotation, and the keypoints
//! of a photograph.

use base::{Error, Result};

use crate::bytes::{be32, le16, le32};
use crate::limits::{Announced, check_size};
use crate::{Format, Limits, NistImage, jpeg, nist, tiff, unsupported, webp, wsq};

/// Bytes that every decoder may use besides its pixels: windows, tables, rows of narrow images.
const FIXED_BYTES: u64 = 2 << 20;
/// Bytes per pixel that remain after decoding: RGB, and its rotated copy or its brightness with a
/// halved plane.
const UPRIGHT_BYTES: u64 = 6;
/// Bytes per pixel that the conversion to 8-bit RGB adds to the pixels in the file's depth.
const CONVERTED_BYTES: u64 = 4;
/// Size of an image, and the memory that decoding it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Format of the file.
    pub format: Format,
    /// Columns, as stored.
    pub width: u32,
    /// Rows, as stored.
    pub height: u32,
    /// Upper bound of the bytes that `crate::decode()` and [`crate::photo::keypoints`] allocate
    /// at once.
    pub decode_bytes: u64,
}

impl Header {
    /// Reads the header of a JPEG, PNG, WebP, TIFF, BMP, WSQ or ANSI/NIST-ITL file.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are not such a file or end early, `TooLarge` if the file
    /// announces more than `limits`.
    pub fn read(bytes: &[u8], limits: &Limits) -> Result<Header> {
        if bytes.is_empty() {
            return Err(Error::invalid("the file is empty; send the bytes of an image"));
        }
        let format = Format::sniff(bytes).ok_or_else(|| not_supported(bytes))?;
        Header::of(format, announced(format, bytes, limits)?, limits)
    }

    /// Checks an announced size, and bounds the memory that decoding takes.
    pub(crate) fn of(format: Format, announced: Announced, limits: &Limits) -> Result<Header> {
        let Announced { width, height, depth_bytes, beside_bytes } = announced;
        let pixels = u64::from(width) * u64::from(height);
        let stored = pixels.saturating_mul(depth_bytes);
        check_size(width, height, stored, limits)?;
        let converted = stored.saturating_add(pixels * CONVERTED_BYTES);
        let peak = stored.saturating_add(beside_bytes).max(converted).max(pixels * UPRIGHT_BYTES);
        Ok(Header { format, width, height, decode_bytes: peak.saturating_add(FIXED_BYTES) })
    }
}

/// Returns the refusal of a file whose format is not supported. It names the format if it is known.
fn not_supported(bytes: &[u8]) -> Error {
    const SUPPORTED: &str = "supported: JPEG, PNG, WebP, TIFF, BMP, WSQ, ANSI/NIST-ITL";
    if is_json_object(bytes) {
        return Error::invalid(
            "this is JSON and not an image; a request in JSON needs the header \
             content-type: application/json",
        );
    }
    Error::invalid(match unsupported::format_name(bytes) {
        Some(name) => {
            format!("{name} files are not supported; convert the file to JPEG or PNG ({SUPPORTED})")
        }
        None => format!("not a readable image ({SUPPORTED})"),
    })
}

/// Returns true for bytes that begin like an object in JSON. `curl -d` sends a request in JSON as
/// another type.
fn is_json_object(bytes: &[u8]) -> bool {
    let members = bytes.trim_ascii_start().strip_prefix(b"{");
    members.is_some_and(|members| members.trim_ascii_start().starts_with(b"\""))
}

/// Reads the size and depth of a file of `format`.
pub(crate) fn announced(format: Format, bytes: &[u8], limits: &Limits) -> Result<Announced> {
    let announced = match format {
        Format::Jpeg => {
            jpeg::check_coding(bytes)?;
            jpeg::announced(bytes)
        }
        Format::Png => png(bytes),
        Format::WebP => webp::announced(bytes),
        Format::Tiff => Some(tiff::announced(bytes, limits)?),
        Format::Bmp => bmp(bytes),
        Format::Wsq => Some(wsq::announced(bytes)?),
        Format::Nist => Some(announced_by_record(&nist::first(bytes)?, limits)?),
    };
    announced.ok_or_else(|| {
        Error::invalid(format!(
            "this {} image is damaged or ends early: its header is not whole",
            format.name()
        ))
    })
}

impl NistImage<'_> {
    /// Reads the size of the image from its data, and bounds the memory that decoding it takes.
    ///
    /// # Errors
    /// As [`Header::read`]. `InvalidArgument` for an unsupported compression.
    pub fn header(&self, limits: &Limits) -> Result<Header> {
        Header::of(Format::Nist, announced_by_record(self, limits)?, limits)
    }
}

/// Returns the size that a record's image announces. If the image is itself a file, the size is
/// that in the header of the file.
fn announced_by_record(image: &NistImage, limits: &Limits) -> Result<Announced> {
    if let Some(format) = image.file_format()? {
        return announced(format, image.data, limits);
    }
    image.check_levels()?;
    let (width, height) = (image.width, image.height);
    Ok(Announced { width, height, depth_bytes: 1, beside_bytes: 0 })
}

/// Returns an upper bound of the bytes that decoding a file allocates at once, from its header
/// alone.
///
/// # Errors
/// As [`Header::read`].
pub fn decode_bytes(bytes: &[u8], limits: &Limits) -> Result<u64> {
    Header::read(bytes, limits).map(|header| header.decode_bytes)
}

/// Reads the header of a PNG file (third edition, 11.2.1: IHDR is the first chunk). The decoder
/// expands palettes and transparency.
fn png(bytes: &[u8]) -> Option<Announced> {
    let (width, height) = (be32(bytes, 16)?, be32(bytes, 20)?);
    let &[depth, colour] = bytes.get(24..)?.first_chunk()?;
    let sample = if depth == 16 { 2 } else { 1 };
    let depth_bytes = match colour {
        0 | 4 => 2 * sample,
        3 => 4,
        _ => 4 * sample,
    };
    // The file without its ancillary chunks, the current chunk, and two rows.
    let beside = 2 * bytes.len() as u64 + 16 * u64::from(width);
    Some(Announced { width, height, depth_bytes, beside_bytes: beside })
}

/// Reads the header of a BMP file. BITMAPCOREHEADER has sides of 16 bits, all later headers have
/// sides of 32 bits. A negative height means that the rows begin at the top.
fn bmp(bytes: &[u8]) -> Option<Announced> {
    let core = le32(bytes, 14)? == 12;
    let (width, height) = if core {
        (le16(bytes, 18)?.into(), le16(bytes, 20)?.into())
    } else {
        ((le32(bytes, 18)? as i32).unsigned_abs(), (le32(bytes, 22)? as i32).unsigned_abs())
    };
    Some(Announced { width, height, depth_bytes: 4, beside_bytes: 16 * u64::from(width) })
}
