//! PNG files without the chunks that decoding does not need.
//!
//! The decoder inflates colour profiles and texts before it reads a pixel, and keeps them. They are
//! not used here, so their chunks never reach it.

use std::borrow::Cow;

/// Largest `eXIf` chunk that is kept for its orientation, in bytes.
const EXIF_BYTES_MAX: usize = 64 << 10;
/// Bytes of a chunk besides its data: length, kind, checksum.
const FRAME_BYTES: usize = 12;

/// Returns the file with its critical chunks, transparency and small EXIF data. An incomplete chunk
/// stays, and the decoder refuses it.
pub(crate) fn essential(file: &[u8]) -> Cow<'_, [u8]> {
    let mut kept = Vec::new();
    let mut from = 0;
    let mut at = 8;
    let mut has_exif = false;
    while let Some((length, kind)) = chunk(file, at) {
        let end = at.saturating_add(length).saturating_add(FRAME_BYTES);
        // A critical chunk begins with a capital letter.
        let exif = &kind == b"eXIf" && length <= EXIF_BYTES_MAX && !has_exif;
        has_exif |= exif;
        if !(kind[0].is_ascii_uppercase() || &kind == b"tRNS" || exif) {
            kept.extend_from_slice(file.get(from..at).unwrap_or_default());
            from = end.min(file.len());
        }
        at = end;
    }
    if from == 0 {
        return Cow::Borrowed(file);
    }
    kept.extend_from_slice(file.get(from..).unwrap_or_default());
    Cow::Owned(kept)
}

fn chunk(file: &[u8], at: usize) -> Option<(usize, [u8; 4])> {
    let &[a, b, c, d, kind @ ..]: &[u8; 8] = file.get(at..)?.first_chunk()?;
    Some((u32::from_be_bytes([a, b, c, d]) as usize, kind))
}
