//! TIFF files: all files that `image` reads, and also palettes, small depths and `YCbCr`.

mod extra_samples;
mod page_bytes;

use std::io::Cursor;

use ::tiff::decoder::{ChunkType, Decoder, DecodingResult, Limits as TiffLimits};
use ::tiff::tags::Tag;
use ::tiff::{ColorType, TiffError};
use base::{Error, Result};
use image::metadata::Orientation;
use image::{DynamicImage, RgbImage};

use crate::density::ImageFileDirectory;
use crate::limits::{Announced, check_size};
use crate::{Header, Limits, jpeg};
use page_bytes::PageBytes;

/// Decoder of the pixels of a page.
type PageDecoder<'a> = Decoder<PageBytes<'a>>;

/// Bytes that the decoder allocates for one value of a directory entry: the value and its converted
/// copy.
const VALUE_BYTES: u64 = 48;
/// Maximum directory entries that are read.
const ENTRIES_MAX: u64 = 65_535;
/// Maximum bytes of all JPEG strips with their tables, as a multiple of the bytes of the file. More
/// strips overlap, so a small file could keep a thread busy for hours.
const STRIP_BYTES_FACTOR: u64 = 16;
/// Maximum pixels of all JPEG strips, as a multiple of those of the largest image. Tiles at the
/// edges are larger than their part of the image, and each colour may have strips of its own.
const STRIP_PIXELS_FACTOR: u64 = 8;

/// Reads the size and depth of the first page.
///
/// # Errors
/// `InvalidArgument` if the directory or a value of it lies outside the file. Also if a JPEG strip
/// is damaged, or if the page is a thumbnail of another one. `TooLarge` if a JPEG strip announces
/// more than `limits`, or if a tag has too many values. Also if all strips together are far larger
/// than the file or the largest image.
pub(crate) fn announced(bytes: &[u8], limits: &Limits) -> Result<Announced> {
    let outside = || {
        Error::invalid(
            "this tiff image is damaged or ends early: its directory lies outside the file",
        )
    };
    check_counts(bytes)?;
    let values = count_values(bytes).ok_or_else(outside)?;
    let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(|error| damaged(&error))?;
    check_first_page(&mut decoder)?;
    let (width, height) = decoder.dimensions().map_err(|error| damaged(&error))?;
    let samples =
        decoder.find_tag_unsigned::<u16>(Tag::SamplesPerPixel).ok().flatten().unwrap_or(1);
    let bits =
        decoder.find_tag_unsigned_vec::<u16>(Tag::BitsPerSample).ok().flatten().unwrap_or_default();
    let bits = bits.iter().copied().max().unwrap_or(1);
    // A sample that is an index becomes three colours.
    let depth_bytes = (u64::from(samples) * u64::from(bits).div_ceil(8)).max(3);
    let pixels = u64::from(width) * u64::from(height);
    // The decoder's buffer, the output, and the copied file of a palette.
    let beside =
        pixels.saturating_mul(depth_bytes).saturating_add(values.saturating_mul(VALUE_BYTES));
    let beside = beside.saturating_add(2 * bytes.len() as u64);
    let strips = jpeg_strips(&mut decoder, bytes, limits)?;
    Ok(Announced { width, height, depth_bytes, beside_bytes: beside.saturating_add(strips) })
}

/// Refuses a file whose first page is a thumbnail of another one, as in raw files of cameras (DNG,
/// NEF). A search would find images that look like the thumbnail.
///
/// # Errors
/// `InvalidArgument` with the remedy.
fn check_first_page(decoder: &mut Decoder<Cursor<&[u8]>>) -> Result<()> {
    /// Bit of the tag `NewSubfileType`.
    const REDUCED: u32 = 1;
    let stated = decoder.find_tag_unsigned::<u32>(Tag::NewSubfileType).ok().flatten();
    let is_reduced = stated.is_some_and(|bits| bits & REDUCED != 0);
    let has_others =
        decoder.more_images() || decoder.find_tag(Tag::SubIfd).ok().flatten().is_some();
    if is_reduced && has_others {
        return Err(Error::invalid(
            "the first image of this tiff file is only a thumbnail, as in raw files of cameras; \
             convert the file to JPEG or PNG",
        ));
    }
    Ok(())
}

/// Reads a number of `width` bytes in the byte order of the file.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(width)?)?;
    let append = |number: u64, &byte: &u8| number << 8 | u64::from(byte);
    let little = bytes.starts_with(b"II");
    Some(if little { field.iter().rev().fold(0, append) } else { field.iter().fold(0, append) })
}

/// Returns the number of values in the first directory, all entries together. Returns `None` if the
/// values of an entry lie outside the file.
fn count_values(bytes: &[u8]) -> Option<u64> {
    let number = |at: u64, width| number(bytes, usize::try_from(at).ok()?, width);
    let big = number(2, 2)? == 43;
    // Offsets and counts have `wide` bytes.
    let (wide, entry_bytes) = if big { (8, 20) } else { (4, 12) };
    let start = if big { number(8, 8)? } else { number(4, 4)? };
    let head = if big { 8 } else { 2 };
    let count = number(start, head)?;
    if count > ENTRIES_MAX {
        return None;
    }
    let mut values: u64 = 0;
    for entry in 0..count {
        let at = start.checked_add(head as u64)?.checked_add(entry * entry_bytes)?;
        let size = match number(at.checked_add(2)?, 2)? {
            3 | 8 => 2,
            4 | 9 | 11 | 13 => 4,
            5 | 10 | 12 | 16 | 17 | 18 => 8,
            _ => 1,
        };
        let entry_values = number(at + 4, wide)?;
        let length = entry_values.checked_mul(size)?;
        let place = if length <= wide as u64 {
            at + 4 + wide as u64
        } else {
            number(at + 4 + wide as u64, wide)?
        };
        if place.checked_add(length)? > bytes.len() as u64 {
            return None;
        }
        values = values.checked_add(entry_values)?;
    }
    Some(values)
}

/// Returns the memory of the costliest strip or tile that is itself a JPEG file, 0 without one. Its
/// own header announces its size. The directory does not bound it.
fn jpeg_strips(decoder: &mut Decoder<Cursor<&[u8]>>, bytes: &[u8], limits: &Limits) -> Result<u64> {
    const JPEG: u16 = 7;
    if decoder.find_tag_unsigned::<u16>(Tag::Compression).ok().flatten() != Some(JPEG) {
        return Ok(0);
    }
    let broken =
        || Error::invalid("this tiff image is damaged or ends early: a JPEG strip has no header");
    let mut list =
        |tag| decoder.find_tag_unsigned_vec::<u64>(tag).ok().flatten().unwrap_or_default();
    let mut offsets = list(Tag::StripOffsets);
    let mut lengths = list(Tag::StripByteCounts);
    offsets.extend(list(Tag::TileOffsets));
    lengths.extend(list(Tag::TileByteCounts));
    // Tables precede each strip without their end marker; a frame in them would be the strip's.
    let tables = decoder.get_tag_u8_vec(Tag::JPEGTables).unwrap_or_default();
    let tables = tables.get(..tables.len().saturating_sub(2)).unwrap_or_default();
    let mut bytes_left = (bytes.len() as u64).saturating_mul(STRIP_BYTES_FACTOR);
    let mut pixels_left = limits.pixels_max.saturating_mul(STRIP_PIXELS_FACTOR);
    let mut most = 0;
    for (offset, length) in offsets.into_iter().zip(lengths) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let strip = bytes.get(from..).ok_or_else(broken)?;
        let strip = strip.get(..length).unwrap_or(strip);
        let read = (strip.len() + tables.len()) as u64;
        bytes_left = bytes_left.checked_sub(read).ok_or_else(strips_too_large)?;
        let found = if tables.is_empty() {
            jpeg::announced(strip)
        } else {
            let head = [tables, strip.get(2..).ok_or_else(broken)?].concat();
            jpeg::announced(&head)
        };
        let found = found.ok_or_else(broken)?;
        let pixels = u64::from(found.width) * u64::from(found.height);
        // A strip may have four colours, and they stay.
        check_size(found.width, found.height, pixels * 4, limits)?;
        pixels_left = pixels_left.checked_sub(pixels).ok_or_else(strips_too_large)?;
        most = most.max(pixels * 4 + found.beside_bytes + tables.len() as u64);
    }
    Ok(most)
}

fn strips_too_large() -> Error {
    Error::too_large(
        "the JPEG strips of this tiff image are together far larger than the file or the largest image: they \
         overlap, or their headers are wrong; save it again, as PNG or without compression",
    )
}

/// Maximum values of one tag. The decoder reserves 32 bytes for each announced value.
const VALUES_MAX: u64 = 1 << 20;
/// The last tag of TIFF 6.0. Later ones (profiles, metadata, layers) may be long, and the decoder
/// does not read them.
const TAG_LAST: u64 = 532;

/// Decodes the first page of a file.
///
/// # Errors
/// As [`crate::decode()`].
pub(crate) fn decode(
    header: &Header,
    bytes: &[u8],
    limits: &Limits,
) -> Result<(DynamicImage, Orientation)> {
    let ordered = with_usual_bit_order(bytes);
    let bytes = ordered.as_deref().unwrap_or(bytes);
    let decoded = decode_page(header, bytes, usize::MAX, limits);
    if decoded.is_err() && is_lzw(bytes) {
        // The decoder of LZW refuses a read for which it needs no further bytes of the file. That
        // happens near the ends of tiles with flat areas. Bytes that come one by one are never
        // there before they are needed.
        return decode_page(header, bytes, 1, limits);
    }
    decoded
}

/// Returns true if the pixels of the first page are compressed by LZW.
fn is_lzw(bytes: &[u8]) -> bool {
    const LZW: u16 = 5;
    let Ok(mut decoder) = Decoder::new(Cursor::new(bytes)) else { return false };
    decoder.find_tag_unsigned::<u16>(Tag::Compression).ok().flatten() == Some(LZW)
}

/// Decodes the first page of a file, of which one read returns at most `piece_max` bytes.
fn decode_page(
    header: &Header,
    bytes: &[u8],
    piece_max: usize,
    limits: &Limits,
) -> Result<(DynamicImage, Orientation)> {
    let as_grey = palette_as_grey(bytes);
    let page = PageBytes::new(as_grey.as_deref().unwrap_or(bytes), piece_max);
    let mut decoder = Decoder::new(page).map_err(|error| damaged(&error))?;
    let mut allowed = TiffLimits::default();
    allowed.decoding_buffer_size = usize::try_from(limits.bytes_max).unwrap_or(usize::MAX);
    decoder = decoder.with_limits(allowed);
    check_planes(&mut decoder)?;
    match decoder.colortype().map_err(|error| damaged(&error))? {
        ColorType::Gray(bits @ (1 | 2 | 4 | 8)) if as_grey.is_some() => {
            let table = palette(&mut decoder)?;
            indexed(decoder, bits, &table, limits)
        }
        _ if as_grey.is_some() => Err(Error::invalid(
            "this kind of tiff cannot be read: a palette of other depths than 1 to 8",
        )),
        ColorType::Gray(bits @ (2 | 4)) => {
            // The decoder has inverted a page whose zero is white.
            let steps = (1_u32 << bits) - 1;
            let table: Vec<[u8; 3]> =
                (0..=steps).map(|step| [(step * 255 / steps) as u8; 3]).collect();
            indexed(decoder, bits, &table, limits)
        }
        ColorType::YCbCr(8) => luma_and_chroma(decoder, limits),
        _ => extra_samples::decode(header, decoder, bytes, piece_max, limits),
    }
}

/// Refuses a first page with a tag of more than [`VALUES_MAX`] values. The decoder refuses a page
/// that is cut off.
fn check_counts(bytes: &[u8]) -> Result<()> {
    const BIG: u64 = 43;
    let field = |at, width| number(bytes, at, width);
    // Offsets and counts have 8 bytes in a BigTIFF file and 4 in others.
    let (width, number_width, entry_bytes) =
        if field(2, 2) == Some(BIG) { (8, 8, 20) } else { (4, 2, 12) };
    let Some(start) = field(width, width).and_then(|start| usize::try_from(start).ok()) else {
        return Ok(());
    };
    let first = start.saturating_add(number_width);
    for entry in 0..field(start, number_width).unwrap_or(0) {
        let at = first.saturating_add((entry as usize).saturating_mul(entry_bytes));
        let (Some(tag), Some(count)) = (field(at, 2), field(at.saturating_add(4), width)) else {
            break;
        };
        if tag <= TAG_LAST && count > VALUES_MAX {
            return Err(Error::too_large(format!(
                "this tiff image's tag {tag} has {count} values, at most {VALUES_MAX} are read"
            )));
        }
    }
    Ok(())
}

/// Refuses tiles that have one colour each, if rows of padding end the last tile. The decoder
/// asserts that only the tiles of the first colour have such rows.
///
/// # Errors
/// `InvalidArgument` with the remedy.
fn check_planes(decoder: &mut PageDecoder<'_>) -> Result<()> {
    const PLANAR: u32 = 2;
    // The decoder reads strips. A file of strips may state a length of tiles, too.
    if decoder.get_chunk_type() != ChunkType::Tile {
        return Ok(());
    }
    let (_, height) = decoder.dimensions().map_err(|error| damaged(&error))?;
    let mut number = |tag| decoder.find_tag_unsigned::<u32>(tag).ok().flatten();
    let is_planar = number(Tag::PlanarConfiguration) == Some(PLANAR);
    let colours = number(Tag::SamplesPerPixel).unwrap_or(1);
    let padded = |rows: u32| rows != 0 && !height.is_multiple_of(rows);
    if is_planar && colours > 1 && number(Tag::TileLength).is_some_and(padded) {
        return Err(Error::invalid(
            "this kind of tiff cannot be read: tiles with separate colours; save it with strips, or with \
             interleaved colours (PlanarConfiguration 1)",
        ));
    }
    Ok(())
}

/// Returns a palette file with its pixels called grey. The decoder refuses palettes, and keeps the
/// numbers of grey pixels. `None` for any other file.
fn palette_as_grey(bytes: &[u8]) -> Option<Vec<u8>> {
    const PHOTOMETRIC: u16 = 262;
    const PALETTE: u16 = 3;
    const BLACK_IS_ZERO: u16 = 1;
    let directory = ImageFileDirectory::open(bytes)?;
    let at = directory.entries().find(|&at| directory.u16_at(at) == Some(PHOTOMETRIC))? + 8;
    if directory.u16_at(at) != Some(PALETTE) {
        return None;
    }
    with_value(bytes, PHOTOMETRIC, BLACK_IS_ZERO)
}

/// Returns a copy of the file with another value of a tag that has one number of 16 bits. `None` if
/// the first page has no such tag, and for BigTIFF.
fn with_value(bytes: &[u8], tag: u16, value: u16) -> Option<Vec<u8>> {
    let directory = ImageFileDirectory::open(bytes)?;
    let at = directory.entries().find(|&at| directory.u16_at(at) == Some(tag))? + 8;
    let mut file = bytes.to_vec();
    let value = if directory.little { value.to_le_bytes() } else { value.to_be_bytes() };
    file.get_mut(at..at + 2)?.copy_from_slice(&value);
    Some(file)
}

/// Returns a file whose bytes begin with their lowest bit (FillOrder 2), as programs for faxes
/// write it, with its bits in the usual order. The decoder ignores the tag. `None` for any other
/// file, and for strips of JPEG, whose bits have one order only.
fn with_usual_bit_order(bytes: &[u8]) -> Option<Vec<u8>> {
    const LOWEST_BIT_FIRST: u64 = 2;
    const JPEG: u64 = 7;
    let mut decoder = Decoder::new(Cursor::new(bytes)).ok()?;
    let mut list =
        |tag| decoder.find_tag_unsigned_vec::<u64>(tag).ok().flatten().unwrap_or_default();
    if list(Tag::FillOrder) != [LOWEST_BIT_FIRST] || list(Tag::Compression) == [JPEG] {
        return None;
    }
    let mut offsets = list(Tag::StripOffsets);
    let mut lengths = list(Tag::StripByteCounts);
    offsets.extend(list(Tag::TileOffsets));
    lengths.extend(list(Tag::TileByteCounts));
    let mut strips: Vec<(u64, u64)> = offsets.into_iter().zip(lengths).collect();
    strips.sort_unstable();
    let mut file = bytes.to_vec();
    // Strips that overlap are changed once.
    let mut done = 0;
    for (offset, length) in strips {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).max(done);
        let end = usize::try_from(offset.saturating_add(length)).unwrap_or(usize::MAX);
        let end = end.min(file.len());
        for byte in file.get_mut(start..end).unwrap_or_default() {
            *byte = byte.reverse_bits();
        }
        done = done.max(end);
    }
    Some(file)
}

/// Reads the colours of a palette. The file has all reds, then all greens, then all blues, 16 bits
/// each. Some old programs write levels of 8 bits, so a palette without any higher level has those.
fn palette(decoder: &mut PageDecoder<'_>) -> Result<Vec<[u8; 3]>> {
    let map = decoder.get_tag_u16_vec(Tag::ColorMap).map_err(|error| damaged(&error))?;
    let (reds, rest) = map.split_at(map.len() / 3);
    let (greens, blues) = rest.split_at(rest.len() / 2);
    let shift = if map.iter().all(|&level| level <= u16::from(u8::MAX)) { 0 } else { 8 };
    let colours = reds.iter().zip(greens).zip(blues);
    Ok(colours
        .map(|((&red, &green), &blue)| [red, green, blue].map(|level| (level >> shift) as u8))
        .collect())
}

/// Returns the orientation that the page states, or upright if it states none.
fn orientation(decoder: &mut PageDecoder<'_>) -> Orientation {
    let stated = decoder.find_tag_unsigned::<u8>(Tag::Orientation).ok().flatten();
    stated.and_then(Orientation::from_exif).unwrap_or(Orientation::NoTransforms)
}

/// Decodes a page of luma and chroma (`YCbCr`), as scanners write it with strips of JPEG. The
/// decoder returns all three at full size.
fn luma_and_chroma(
    mut decoder: PageDecoder<'_>,
    limits: &Limits,
) -> Result<(DynamicImage, Orientation)> {
    let (width, height) = decoder.dimensions().map_err(|error| damaged(&error))?;
    let bytes = u64::from(width) * u64::from(height) * 3;
    check_size(width, height, bytes, limits)?;
    let orientation = orientation(&mut decoder);
    let unsupported = || Error::invalid("this kind of tiff cannot be read: YCbCr in this form");
    let DecodingResult::U8(mut pixels) = decoder.read_image().map_err(|error| damaged(&error))?
    else {
        return Err(unsupported());
    };
    // One plane of separate colours is shorter.
    if pixels.len() as u64 != bytes {
        return Err(unsupported());
    }
    for pixel in pixels.as_chunks_mut::<3>().0 {
        *pixel = rgb(*pixel);
    }
    let image = RgbImage::from_raw(width, height, pixels).ok_or_else(unsupported)?;
    Ok((DynamicImage::ImageRgb8(image), orientation))
}

/// Converts full-range `YCbCr` to RGB by the default coefficients of TIFF 6.0 (section 21), which
/// are those of JFIF.
fn rgb([luma, blue, red]: [u8; 3]) -> [u8; 3] {
    let luma = f32::from(luma);
    let (blue, red) = (f32::from(blue) - 128.0, f32::from(red) - 128.0);
    // The cast saturates.
    [luma + 1.402 * red, luma - 0.344_136 * blue - 0.714_136 * red, luma + 1.772 * blue]
        .map(|level| level.round() as u8)
}

/// Decodes a page whose pixels are colour numbers of `bits` each. Rows begin on a byte.
fn indexed(
    mut decoder: PageDecoder<'_>,
    bits: u8,
    table: &[[u8; 3]],
    limits: &Limits,
) -> Result<(DynamicImage, Orientation)> {
    let (width, height) = decoder.dimensions().map_err(|error| damaged(&error))?;
    check_size(width, height, u64::from(width) * u64::from(height) * 3, limits)?;
    let orientation = orientation(&mut decoder);
    let DecodingResult::U8(packed) = decoder.read_image().map_err(|error| damaged(&error))? else {
        return Err(Error::invalid(
            "this kind of tiff cannot be read: a palette of more than 256 colours",
        ));
    };
    let per_byte = 8 / usize::from(bits);
    let row_bytes = (width as usize).div_ceil(per_byte);
    let mask = ((1_u16 << bits) - 1) as u8;
    let mut rgb = Vec::with_capacity(width as usize * height as usize * 3);
    for row in packed.chunks(row_bytes).take(height as usize) {
        for column in 0..width as usize {
            let shift = 8 - usize::from(bits) * (column % per_byte + 1);
            let index = row.get(column / per_byte).map_or(0, |byte| (byte >> shift) & mask);
            rgb.extend(table.get(usize::from(index)).copied().unwrap_or_default());
        }
    }
    let image = RgbImage::from_raw(width, height, rgb).ok_or_else(|| {
        Error::invalid("this tiff image is damaged or ends early: rows are missing")
    })?;
    Ok((DynamicImage::ImageRgb8(image), orientation))
}

fn damaged(error: &TiffError) -> Error {
    match error {
        TiffError::LimitsExceeded => {
            Error::too_large("this tiff image needs too much memory; make it smaller")
        }
        TiffError::UnsupportedError(error) => {
            Error::invalid(format!("this kind of tiff cannot be read: {error}"))
        }
        error => Error::invalid(format!("this tiff image is damaged or ends early: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    /// Returns a page with one tag, ImageWidth, in the form of TIFF or of BigTIFF.
    fn page(big: bool, count: u64) -> Vec<u8> {
        let count_bytes = count.to_le_bytes();
        if big {
            let header = b"II\x2b\0\x08\0\0\0\x10\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\x01\x04\0";
            [&header[..], &count_bytes, &[0; 16]].concat()
        } else {
            [&b"II*\0\x08\0\0\0\x01\0\0\x01\x04\0"[..], &count_bytes[..4], &[0; 8]].concat()
        }
    }

    #[test]
    fn a_tag_of_millions_of_values_is_refused_before_they_are_reserved() {
        for big in [false, true] {
            let kind = |count| {
                announced(&page(big, count), &Limits::default()).map(drop).unwrap_err().kind()
            };
            assert_eq!(kind(VALUES_MAX + 1), ErrorKind::TooLarge, "BigTIFF: {big}");
            assert_eq!(kind(1), ErrorKind::InvalidArgument, "BigTIFF: {big}");
        }
    }
}
