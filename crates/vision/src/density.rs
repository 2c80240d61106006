//! The resolution that a file claims in JFIF's density, EXIF's and TIFF's tags, PNG's pHYs, BMP's
//! header, WSQ's comment or ANSI/NIST-ITL's records.

use crate::bytes::{be16, be32, le32};
use crate::{Format, NistImage, nist, wsq};

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
        Format::WebP => None,
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

/// Returns the dots per inch that the chunk pHYs states.
fn png(bytes: &[u8]) -> Option<f32> {
    let mut at = 8;
    for _ in 0..PARTS_MAX {
        let length = be32(bytes, at)? as usize;
        let kind = bytes.get(at + 4..at + 8)?;
        if kind == b"pHYs" {
            let field = bytes.get(at + 8..at + 17)?;
            return (field.get(8) == Some(&1)).then_some(be32(field, 0)? as f32 * INCH);
        }
        if kind == b"IDAT" {
            return None;
        }
        at = at.checked_add(length)?.checked_add(12)?;
    }
    None
}

/// The first directory of a TIFF file or of EXIF data.
pub(crate) struct ImageFileDirectory<'a> {
    bytes: &'a [u8],
    /// True if numbers are little-endian.
    pub(crate) little: bool,
    /// Offset and number of the entries.
    first: usize,
    count: usize,
}

impl<'a> ImageFileDirectory<'a> {
    /// Opens the directory. Returns `None` if the bytes are not a classic TIFF file.
    pub(crate) fn open(bytes: &'a [u8]) -> Option<ImageFileDirectory<'a>> {
        let mut directory =
            ImageFileDirectory { bytes, little: bytes.starts_with(b"II"), first: 0, count: 0 };
        if directory.u16_at(2)? != 42 {
            return None;
        }
        let start = directory.u32_at(4)? as usize;
        directory.count = usize::from(directory.u16_at(start)?).min(ENTRIES_MAX);
        directory.first = start.checked_add(2)?;
        Some(directory)
    }

    /// Offsets of the entries: tag, type, count, and at 8 the value.
    pub(crate) fn entries(&self) -> impl Iterator<Item = usize> {
        let first = self.first;
        (0..self.count).map(move |entry| first + 12 * entry)
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
}

/// Returns the dots per inch that the first directory states, of a TIFF file or of EXIF.
fn tiff(bytes: &[u8]) -> Option<f32> {
    let directory = ImageFileDirectory::open(bytes)?;
    let mut dots = None;
    let mut unit = 2;
    for at in directory.entries() {
        match directory.u16_at(at)? {
            X_RESOLUTION => {
                let value = directory.u32_at(at + 8)? as usize;
                let over = directory.u32_at(value)?;
                let under = directory.u32_at(value.checked_add(4)?)?;
                dots = (under != 0).then_some(over as f32 / under as f32);
            }
            RESOLUTION_UNIT => unit = directory.u16_at(at + 8)?,
            _ => {}
        }
    }
    match unit {
        2 => dots,
        3 => dots.map(|dots| dots * 2.54),
        _ => None,
    }
}
