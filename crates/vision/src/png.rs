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
/// stays, and the decoder refuses it. EXIF data after the pixels, which the standard allows, is
/// moved before them, because the decoder's orientation is read before the pixels.
pub(crate) fn essential(file: &[u8]) -> Cow<'_, [u8]> {
    let mut kept = Vec::new();
    let mut from = 0;
    let mut at = 8;
    let mut has_exif = false;
    // Position of the first pixels in the result.
    let mut pixels_at = None;
    let mut late_exif: &[u8] = &[];
    while let Some((length, kind)) = chunk(file, at) {
        let end = at.saturating_add(length).saturating_add(FRAME_BYTES);
        // A critical chunk begins with a capital letter.
        let exif = &kind == b"eXIf" && length <= EXIF_BYTES_MAX && !has_exif;
        has_exif |= exif;
        if &kind == b"IDAT" && pixels_at.is_none() {
            pixels_at = Some(kept.len() + (at - from));
        }
        let mut is_moved = false;
        if let Some(data) = file.get(at..end).filter(|_| exif && pixels_at.is_some()) {
            late_exif = data;
            is_moved = true;
        }
        if is_moved || !(kind[0].is_ascii_uppercase() || &kind == b"tRNS" || exif) {
            if from == 0 {
                // Allocated at once, because a growing copy would take more memory than the header
                // announces.
                kept.reserve_exact(file.len());
            }
            kept.extend_from_slice(file.get(from..at).unwrap_or_default());
            from = end.min(file.len());
        }
        at = end;
    }
    if from == 0 {
        return Cow::Borrowed(file);
    }
    kept.extend_from_slice(file.get(from..).unwrap_or_default());
    if let Some(at) = pixels_at.filter(|_| !late_exif.is_empty()) {
        kept.extend_from_slice(late_exif);
        // Done in place, because a copy of the pixels is not in the bound of the memory.
        if let Some(pixels_and_exif) = kept.get_mut(at..) {
            pixels_and_exif.rotate_right(late_exif.len());
        }
    }
    Cow::Owned(kept)
}

fn chunk(file: &[u8], at: usize) -> Option<(usize, [u8; 4])> {
    let &[a, b, c, d, kind @ ..]: &[u8; 8] = file.get(at..)?.first_chunk()?;
    Some((u32::from_be_bytes([a, b, c, d]) as usize, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
        [&(data.len() as u32).to_be_bytes()[..], kind, data, &[0; 4]].concat()
    }

    #[test]
    fn exif_after_the_pixels_is_moved_before_them() {
        let signature = b"\x89PNG\r\n\x1a\n".to_vec();
        let head = chunk(b"IHDR", &[7; 13]);
        let text = chunk(b"tEXt", b"a text");
        let pixels = [chunk(b"IDAT", &[1; 9]), chunk(b"IDAT", &[2; 5])].concat();
        let exif = chunk(b"eXIf", b"MM\0*");
        let end = chunk(b"IEND", b"");
        let wanted = [&signature, &head, &exif, &pixels, &end].map(Vec::as_slice).concat();
        let late = [&signature, &head, &text, &pixels, &text, &exif, &end].map(Vec::as_slice);
        assert_eq!(*essential(&late.concat()), wanted);
        let early = [&signature, &head, &exif, &text, &pixels, &end].map(Vec::as_slice);
        assert_eq!(*essential(&early.concat()), wanted);
        // The first EXIF data counts.
        let other = chunk(b"eXIf", b"II*\0");
        let both = [&signature, &head, &exif, &pixels, &other, &end].map(Vec::as_slice);
        assert_eq!(*essential(&both.concat()), wanted);
        assert!(matches!(essential(&wanted), Cow::Borrowed(_)));
    }

    #[test]
    fn a_copy_takes_no_more_memory_than_the_file() {
        let part = [chunk(b"tEXt", b"a"), chunk(b"IDAT", &[1; 100])].concat();
        let file = [&b"\x89PNG\r\n\x1a\n"[..], &part.repeat(300)].concat();
        let Cow::Owned(kept) = essential(&file) else { panic!("texts are left out") };
        assert_eq!(kept.len(), 8 + 300 * 112);
        assert!(kept.capacity() <= file.len(), "{} bytes", kept.capacity());
    }
}
