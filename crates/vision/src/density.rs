//! The resolution that a file claims: JFIF's density, EXIF's and TIFF's tags, PNG's pHYs, BMP's header.

use crate::Format;

/// Metres of an inch.
const INCH: f32 = 0.0254;
/// Tags of TIFF 6.0.
const X_RESOLUTION: u16 = 282;
const RESOLUTION_UNIT: u16 = 296;
/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 512;
/// Segments of a JPEG file and chunks of a PNG file that are looked at.
const PARTS_MAX: usize = 256;

/// Dots per inch along the rows, where the file says something believable (1 to 20,000).
pub(crate) fn dots_per_inch(format: Format, bytes: &[u8]) -> Option<f32> {
    let claimed = match format {
        Format::Jpeg => jpeg(bytes),
        Format::Png => png(bytes),
        Format::Tiff => tiff(bytes),
        Format::Bmp => bytes.get(38..42).and_then(|field| le32(field)).map(|metre| metre as f32 * INCH),
        Format::WebP => None,
    };
    claimed.filter(|dots| (1.0..=20_000.0).contains(dots))
}

fn be16(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().map(|field| u16::from_be_bytes(*field))
}

fn be32(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|field| u32::from_be_bytes(*field))
}

fn le32(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|field| u32::from_le_bytes(*field))
}

fn jpeg(bytes: &[u8]) -> Option<f32> {
    let (mut at, mut exif) = (2, None);
    for _ in 0..PARTS_MAX {
        let &[0xff, marker, ..] = bytes.get(at..)? else { return exif };
        if !(0xe0..=0xef).contains(&marker) && marker != 0xfe && marker != 0xdb {
            return exif;
        }
        let length = usize::from(be16(bytes.get(at + 2..)?)?);
        let segment = bytes.get(at + 4..at + 2 + length.max(2))?;
        if marker == 0xe0 && segment.starts_with(b"JFIF\0") {
            let dots = f32::from(be16(segment.get(8..)?)?);
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

fn png(bytes: &[u8]) -> Option<f32> {
    let mut at = 8;
    for _ in 0..PARTS_MAX {
        let length = be32(bytes.get(at..)?)? as usize;
        let kind = bytes.get(at + 4..at + 8)?;
        if kind == b"pHYs" {
            let field = bytes.get(at + 8..at + 17)?;
            return (field.get(8) == Some(&1)).then_some(be32(field)? as f32 * INCH);
        }
        if kind == b"IDAT" {
            return None;
        }
        at = at.checked_add(length)?.checked_add(12)?;
    }
    None
}

/// Of the first directory of a TIFF file, which EXIF data is too.
fn tiff(bytes: &[u8]) -> Option<f32> {
    let little = bytes.starts_with(b"II");
    let u16_at = |at: usize| {
        let field = *bytes.get(at..)?.first_chunk()?;
        Some(if little { u16::from_le_bytes(field) } else { u16::from_be_bytes(field) })
    };
    let u32_at = |at: usize| {
        let field = *bytes.get(at..)?.first_chunk()?;
        Some(if little { u32::from_le_bytes(field) } else { u32::from_be_bytes(field) })
    };
    if u16_at(2)? != 42 {
        return None;
    }
    let directory = u32_at(4)? as usize;
    let (mut dots, mut unit) = (None, 2);
    for entry in 0..usize::from(u16_at(directory)?).min(ENTRIES_MAX) {
        let at = directory.checked_add(2 + 12 * entry)?;
        match u16_at(at)? {
            X_RESOLUTION => {
                let value = u32_at(at + 8)? as usize;
                let (over, under) = (u32_at(value)?, u32_at(value.checked_add(4)?)?);
                dots = (under != 0).then_some(over as f32 / under as f32);
            }
            RESOLUTION_UNIT => unit = u16_at(at + 8)?,
            _ => {}
        }
    }
    match unit {
        2 => dots,
        3 => dots.map(|dots| dots * 2.54),
        _ => None,
    }
}
