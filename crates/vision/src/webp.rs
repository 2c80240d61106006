//! WebP containers (RFC 9649): their size and their EXIF data.

use crate::limits::Announced;

/// Start of EXIF data in a JPEG segment. Some programs, such as Pillow before 9.3, also write it
/// into the chunk of a WebP file, which needs no such start.
const EXIF_START: &[u8] = b"Exif\0\0";
/// Largest token partition that a lossy frame can announce: 24 bits of length.
const PARTITION_BYTES: u64 = 16 << 20;

/// Reads size and coding. `None` if a frame is larger than its canvas, because the decoder would
/// allocate the frame first.
pub(crate) fn announced(file: &[u8]) -> Option<Announced> {
    let RiffChunk { kind, data } = chunks(file).next()?;
    let partitions = PARTITION_BYTES + 2 * file.len() as u64;
    let (size, depth_bytes, work) = match &kind {
        b"VP8 " => (lossy(data)?, 3, 2),
        b"VP8L" => (lossless(data)?, 4, 4),
        b"VP8X" => {
            let canvas = (u24(data, 4)? + 1, u24(data, 7)? + 1);
            for RiffChunk { kind, data } in chunks(file).flat_map(frames) {
                let fits = |(width, height)| width <= canvas.0 && height <= canvas.1;
                if kind == *b"VP8 " && !fits(lossy(data)?)
                    || kind == *b"VP8L" && !fits(lossless(data)?)
                {
                    return None;
                }
            }
            // Canvas, frame, planes and alpha of an animation; planes and alpha of a still image.
            let animated = data.first()? & 2 != 0;
            (canvas, 4, if animated { 12 } else { 8 })
        }
        _ => return None,
    };
    let (width, height) = size;
    // Lossy frames are stored in whole blocks of 16 pixels.
    let padded = u64::from(width + 16) * u64::from(height + 16);
    Some(Announced { width, height, depth_bytes, beside_bytes: padded * work + partitions })
}

/// Returns the EXIF data of a file, in the form of TIFF. Does not use the decoder, which allocates
/// as many bytes as the chunk claims.
pub(crate) fn exif(file: &[u8]) -> Option<&[u8]> {
    let data = chunks(file).find(|chunk| &chunk.kind == b"EXIF")?.data;
    Some(data.strip_prefix(EXIF_START).unwrap_or(data))
}

/// A chunk's kind and data. The data ends with the file if the chunk claims more.
#[derive(Clone, Copy)]
struct RiffChunk<'a> {
    kind: [u8; 4],
    data: &'a [u8],
}

/// Iterator over the chunks in the bytes of a file.
struct Chunks<'a>(&'a [u8]);

impl<'a> Iterator for Chunks<'a> {
    type Item = RiffChunk<'a>;

    fn next(&mut self) -> Option<RiffChunk<'a>> {
        let &[a, b, c, d, length @ ..]: &[u8; 8] = self.0.first_chunk()?;
        let length = u32::from_le_bytes(length) as usize;
        let data = self.0.get(8..)?;
        let end = length.saturating_add(length % 2).min(data.len());
        self.0 = data.get(end..)?;
        Some(RiffChunk { kind: [a, b, c, d], data: data.get(..length.min(data.len()))? })
    }
}

fn chunks(file: &[u8]) -> Chunks<'_> {
    Chunks(file.get(12..).unwrap_or_default())
}

/// Yields a chunk and, if it is a frame of an animation, the chunks in it.
fn frames(chunk: RiffChunk<'_>) -> impl Iterator<Item = RiffChunk<'_>> {
    let inner = if &chunk.kind == b"ANMF" { chunk.data.get(16..).unwrap_or_default() } else { &[] };
    std::iter::once(chunk).chain(Chunks(inner))
}

fn u24(data: &[u8], at: usize) -> Option<u32> {
    let &[a, b, c]: &[u8; 3] = data.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes([a, b, c, 0]))
}

/// Returns width and height of a lossy image in pixels. Its header (RFC 6386, 9.1) has a tag, a
/// start code, and two sides of 14 bits.
fn lossy(data: &[u8]) -> Option<(u32, u32)> {
    let &[a, b, c, d]: &[u8; 4] = data.get(6..)?.first_chunk()?;
    let side = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
    Some((side(a, b), side(c, d)))
}

/// Returns width and height of a lossless image in pixels. Its header (RFC 9649, 3.4) has a
/// signature, and two sides of 14 bits, each stored less one.
fn lossless(data: &[u8]) -> Option<(u32, u32)> {
    let sides = u32::from_le_bytes(*data.get(1..)?.first_chunk()?);
    Some(((sides & 0x3fff) + 1, ((sides >> 14) & 0x3fff) + 1))
}

#[cfg(test)]
mod tests {
    use image::metadata::Orientation;

    use super::*;

    #[test]
    fn exif_data_with_the_start_of_a_jpeg_segment_is_read() {
        let data = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
        for start in [&b""[..], EXIF_START] {
            let length = ((start.len() + data.len()) as u32).to_le_bytes();
            let file = [&b"RIFF\0\0\0\0WEBPEXIF"[..], &length, start, data].concat();
            let found = exif(&file).and_then(Orientation::from_exif_chunk);
            assert_eq!(found, Some(Orientation::Rotate90), "{start:?}");
        }
    }
}
