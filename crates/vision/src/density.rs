//! The resolution that a file claims in JFIF's density, EXIF's and TIFF's tags, PNG's pHYs, BMP's
//! header, WSQ's comment or ANSI/NIST-ITL's records. EXIF is in JPEG, PNG and WebP files.

use crate::bytes::{be16, be32, le32};
use crate::{Format, NistImage, nist, webp, wsq};

/// Metres per inch.
const INCH: f32 = 0.0254;
/// Tags of TIFF 6.0.
const X_RESOLUTION: u16 = 282;
const RESOLUTION_UNIT: u16 = 296;
/// Maximum entries of a directory that are read.
const ENTRIES_MAX: usize = 512;
/// Maximum segments of a JPEG file, or chunks of a PNG file, that are read.
const PARTS_MAX: usize = 256;

/// Returns the claimed dots per inch along the rows, or `None` without a plausible claim (1 to
/// 20,000).
pub fn dots_per_inch(format: Format, bytes: &[u8]) -> Option<f32> {
    let claimed = match format {
        Format::Jpeg => jpeg(bytes),
        Format::Png => png(bytes),
        Format::Tiff => tiff(bytes),
        Format::Bmp => le32(bytes, 38).map(|metre| metre as f32 * INCH),
        Format::WebP => webp::exif(bytes).and_then(tiff),
        Format::Wsq => wsq::dots_per_inch(bytes),
        Format::Nist => nist::first(bytes).ok().and_then(|image| dots_per_inch_of_record(&image)),
    };
    claimed.filter(|dots| (1.0..=20_000.0).contains(dots))
}

/// Returns the dots per inch that a record names, otherwise the dots per inch of its image file.
pub(crate) fn dots_per_inch_of_record(image: &NistImage) -> Option<f32> {
    image.dots_per_inch.or_else(|| dots_per_inch(image.file_format().ok()??, image.data))
}

/// Returns the dots per inch that JFIF states, otherwise the values of EXIF.
fn jpeg(bytes: &[u8]) -> Option<f32> {
    let mut at = 2;
    let mut exif = None;
    for _ in 0..PARTS_MAX {
        let &[0xff, marker, ..] = bytes.get(at..)? else { return exif };
        if !(0xe0..=0xef).contains(&marker) && marker != 0xfe && marker != 0xdb {
            return exif;
        }
        let length = usize::from(be16(bytes, at + 2)?);
        let segment = bytes.get(at + 4..at + 2 + length.max(2))?;
        if marker == 0xe0 && segment.starts_with(b"JFIF\0") {
            let dots = f32::from(be16(segment, 8)?);
            match segment.get(7)? {
                1 => return Some(dots),
                2 => return Some(dots * 2.54),
                _ => {}
            }
        } else if marker == 0xe1 && segment.starts_with(b"Exif\0\0") {
            exif = exif.or_else(|| tiff(segment.get(6..)?));
        }
        at += 2 + length.max(2);
    }
    exif
}

/// Returns the dots per inch that the chunk pHYs states, otherwise the value of EXIF. Chunks behind
/// the pixels are not read.
fn png(bytes: &[u8]) -> Option<f32> {
    let mut at = 8;
    let mut exif = None;
    for _ in 0..PARTS_MAX {
        let length = be32(bytes, at)? as usize;
        let kind = bytes.get(at + 4..at + 8)?;
        if kind == b"pHYs" {
            let field = bytes.get(at + 8..at + 17)?;
            if field.get(8) == Some(&1) {
                return Some(be32(field, 0)? as f32 * INCH);
            }
        }
        if kind == b"eXIf" {
            exif = bytes.get(at + 8..)?.get(..length).and_then(tiff);
        }
        if kind == b"IDAT" {
            return exif;
        }
        at = at.checked_add(length)?.checked_add(12)?;
    }
    exif
}

/// The first directory of a TIFF file or of EXIF data.
pub(crate) struct ImageFileDirectory<'a> {
    bytes: &'a [u8],
    /// True if numbers are little-endian.
    pub(crate) little: bool,
    /// Offset and number of the entries.
    first: usize,
    count: usize,
    /// True for BigTIFF, whose offsets and counts have 64 bits.
    is_big: bool,
}

impl<'a> ImageFileDirectory<'a> {
    /// Opens the directory. Returns `None` if the bytes are not a classic TIFF file.
    pub(crate) fn open(bytes: &'a [u8]) -> Option<ImageFileDirectory<'a>> {
        let mut directory = ImageFileDirectory::before_entries(bytes);
        if directory.u16_at(2)? != 42 {
            return None;
        }
        let start = directory.u32_at(4)? as usize;
        directory.count = usize::from(directory.u16_at(start)?).min(ENTRIES_MAX);
        directory.first = start.checked_add(2)?;
        Some(directory)
    }

    /// Opens the directory of a classic TIFF file or of a BigTIFF file. Returns `None` for other
    /// bytes.
    fn open_any(bytes: &'a [u8]) -> Option<ImageFileDirectory<'a>> {
        let mut directory = ImageFileDirectory::before_entries(bytes);
        if directory.u16_at(2)? != 43 {
            return ImageFileDirectory::open(bytes);
        }
        let start = usize::try_from(directory.u64_at(8)?).ok()?;
        let count = usize::try_from(directory.u64_at(start)?).ok()?;
        directory.is_big = true;
        directory.count = count.min(ENTRIES_MAX);
        directory.first = start.checked_add(8)?;
        Some(directory)
    }

    /// Returns a directory whose entries are not known yet.
    fn before_entries(bytes: &'a [u8]) -> ImageFileDirectory<'a> {
        let little = bytes.starts_with(b"II");
        ImageFileDirectory { bytes, little, first: 0, count: 0, is_big: false }
    }

    /// Offsets of the entries: tag, type, count and value. The value is at 8, or at 12 in BigTIFF.
    pub(crate) fn entries(&self) -> impl Iterator<Item = usize> {
        let first = self.first;
        let entry_bytes = if self.is_big { 20 } else { 12 };
        (0..self.count).map(move |entry| first + entry_bytes * entry)
    }

    /// Returns the offset of the value of the entry at `at`.
    fn value(&self, at: usize) -> usize {
        at + if self.is_big { 12 } else { 8 }
    }

    /// Returns the offset of the two numbers of a ratio, the value of the entry at `at`. An entry
    /// of BigTIFF has room for them.
    fn ratio(&self, at: usize) -> Option<usize> {
        let value = self.value(at);
        if self.is_big { Some(value) } else { self.u32_at(value).map(|offset| offset as usize) }
    }

    /// Returns the unsigned 16-bit number at the offset `at`.
    pub(crate) fn u16_at(&self, at: usize) -> Option<u16> {
        let field = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.little { u16::from_le_bytes(field) } else { u16::from_be_bytes(field) })
    }

    /// Returns the unsigned 32-bit number at the offset `at`.
    fn u32_at(&self, at: usize) -> Option<u32> {
        let field = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.little { u32::from_le_bytes(field) } else { u32::from_be_bytes(field) })
    }

    /// Returns the unsigned 64-bit number at the offset `at`.
    fn u64_at(&self, at: usize) -> Option<u64> {
        let field = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.little { u64::from_le_bytes(field) } else { u64::from_be_bytes(field) })
    }
}

/// Returns the dots per inch that the first directory states, of a TIFF file or of EXIF.
fn tiff(bytes: &[u8]) -> Option<f32> {
    let directory = ImageFileDirectory::open_any(bytes)?;
    let mut dots = None;
    let mut unit = 2;
    for at in directory.entries() {
        match directory.u16_at(at)? {
            X_RESOLUTION => {
                let value = directory.ratio(at)?;
                let over = directory.u32_at(value)?;
                let under = directory.u32_at(value.checked_add(4)?)?;
                dots = (under != 0).then_some(over as f32 / under as f32);
            }
            RESOLUTION_UNIT => unit = directory.u16_at(directory.value(at))?,
            _ => {}
        }
    }
    match unit {
        2 => dots,
        3 => dots.map(|dots| dots * 2.54),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the directory of a BigTIFF file with a resolution and its unit.
    fn big_tiff(is_little: bool, dots: u32, unit: u16) -> Vec<u8> {
        let number = |number: u64, bytes: usize| {
            let mut field = number.to_le_bytes()[..bytes].to_vec();
            if !is_little {
                field.reverse();
            }
            field
        };
        let entry = |tag: u16, of_type: u64, value: Vec<u8>| {
            [number(tag.into(), 2), number(of_type, 2), number(1, 8), value].concat()
        };
        let ratio = [number(dots.into(), 4), number(1, 4)].concat();
        let short = [number(unit.into(), 2), vec![0; 6]].concat();
        let head = [number(43, 2), number(8, 2), number(0, 2), number(16, 8), number(2, 8)];
        let entries = [entry(X_RESOLUTION, 5, ratio), entry(RESOLUTION_UNIT, 3, short)];
        let order = if is_little { b"II" } else { b"MM" };
        [order.to_vec(), head.concat(), entries.concat()].concat()
    }

    /// EXIF data with a resolution of 1000 dots per inch.
    const EXIF: &[u8] = b"II*\0\x08\0\0\0\x02\0\
        \x1a\x01\x05\0\x01\0\0\0\x26\0\0\0\
        \x28\x01\x03\0\x01\0\0\0\x02\0\0\0\
        \0\0\0\0\xe8\x03\0\0\x01\0\0\0";

    #[test]
    fn the_resolution_in_exif_is_read() {
        assert_eq!(tiff(EXIF), Some(1000.0));
        let length = (EXIF.len() as u32).to_le_bytes();
        let webp = [&b"RIFF\0\0\0\0WEBPEXIF"[..], &length, EXIF].concat();
        assert_eq!(dots_per_inch(Format::WebP, &webp), Some(1000.0));
        // The checksums are not read.
        let chunk = |kind: &[u8; 4], data: &[u8]| {
            let length = (data.len() as u32).to_be_bytes();
            [&length[..], kind, data, &[0; 4]].concat()
        };
        let file = |resolution: &[u8]| {
            let parts = [chunk(b"eXIf", EXIF), chunk(b"pHYs", resolution), chunk(b"IDAT", b"")];
            [b"\x89PNG\r\n\x1a\n".to_vec(), parts.concat()].concat()
        };
        // 19,685 pixels per metre are 500 dots per inch. Without a unit, they are a ratio of sides.
        let metre = [0, 0, 0x4c, 0xe5, 0, 0, 0x4c, 0xe5, 1];
        let found = dots_per_inch(Format::Png, &file(&metre)).unwrap();
        assert_eq!(found.round(), 500.0);
        let ratio = [0, 0, 0, 1, 0, 0, 0, 1, 0];
        assert_eq!(dots_per_inch(Format::Png, &file(&ratio)), Some(1000.0));
    }

    #[test]
    fn the_resolution_of_big_tiff_is_read() {
        for is_little in [true, false] {
            let file = big_tiff(is_little, 1000, 2);
            assert_eq!(dots_per_inch(Format::Tiff, &file), Some(1000.0));
            let centimetre = big_tiff(is_little, 200, 3);
            assert_eq!(dots_per_inch(Format::Tiff, &centimetre), Some(508.0));
            assert_eq!(dots_per_inch(Format::Tiff, &big_tiff(is_little, 500, 1)), None);
            // The last 6 bytes fill up the field of the unit.
            for end in 0..file.len() - 6 {
                assert_eq!(dots_per_inch(Format::Tiff, &file[..end]), None, "{end}");
            }
        }
    }
}
