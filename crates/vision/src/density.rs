//! The resolution that a file claims: JFIF's density, EXIF's and TIFF's tags, PNG's pHYs, BMP's
//! header.

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
pub fn dots_per_inch(format: Format, bytes: &[u8]) -> Option<f32> {
    let claimed = match format {
        Format::Jpeg => jpeg(bytes),
        Format::Png => png(bytes),
        Format::Tiff => tiff(bytes),
        Format::Bmp => bytes.get(38..42).and_then(le32).map(|metre| metre as f32 * INCH),
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

/// The first directory of a TIFF file, which EXIF data is too.
pub(crate) struct Directory<'a> {
    bytes: &'a [u8],
    /// Whether numbers have their low byte first.
    pub(crate) little: bool,
    /// Where its entries begin, and how many there are.
    first: usize,
    count: usize,
}

impl<'a> Directory<'a> {
    /// `None` for what is no TIFF file of the usual kind.
    pub(crate) fn open(bytes: &'a [u8]) -> Option<Directory<'a>> {
        let mut directory =
            Directory { bytes, little: bytes.starts_with(b"II"), first: 0, count: 0 };
        if directory.number(2)? != 42 {
            return None;
        }
        let start = directory.long(4)? as usize;
        directory.count = usize::from(directory.number(start)?).min(ENTRIES_MAX);
        directory.first = start.checked_add(2)?;
        Some(directory)
    }

    /// Where each entry begins: tag, type, count, and at 8 the value.
    pub(crate) fn entries(&self) -> impl Iterator<Item = usize> {
        let first = self.first;
        (0..self.count).map(move |entry| first + 12 * entry)
    }

    /// Sixteen bits.
    pub(crate) fn number(&self, at: usize) -> Option<u16> {
        let field = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.little { u16::from_le_bytes(field) } else { u16::from_be_bytes(field) })
    }

    /// Thirty-two bits.
    fn long(&self, at: usize) -> Option<u32> {
        let field = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.little { u32::from_le_bytes(field) } else { u32::from_be_bytes(field) })
    }
}

fn tiff(bytes: &[u8]) -> Option<f32> {
    let directory = Directory::open(bytes)?;
    let (mut dots, mut unit) = (None, 2);
    for at in directory.entries() {
        match directory.number(at)? {
            X_RESOLUTION => {
                let value = directory.long(at + 8)? as usize;
                let (over, under) =
                    (directory.long(value)?, directory.long(value.checked_add(4)?)?);
                dots = (under != 0).then_some(over as f32 / under as f32);
            }
            RESOLUTION_UNIT => unit = directory.number(at + 8)?,
            _ => {}
        }
    }
    match unit {
        2 => dots,
        3 => dots.map(|dots| dots * 2.54),
        _ => None,
    }
}
