//! Hides tags at the end of recordings from readers that would take them for sound.

use super::bytes::{ID3_BYTES, InputBytes, is_id3};

/// Bytes of the footer of an APE tag, and of its header.
const APE: usize = 32;

/// Makes a recording end before its ID3 tag. A file ends before an APE tag too. The beginning of a
/// tag in a stream has been read before its end is known.
pub(super) fn hide_at_end(bytes: &mut InputBytes) {
    let Some((mut tail, length)) = bytes.tail(ID3_BYTES + APE) else {
        bytes.hold_back_tag();
        return;
    };
    let id3 = tail.len().checked_sub(ID3_BYTES).filter(|at| is_id3(&tail[*at..]));
    if let Some(at) = id3 {
        tail.truncate(at);
    }
    let ape = tail.len().checked_sub(APE).and_then(|at| ape_length(&tail[at..]));
    let hidden = id3.map_or(0, |_| ID3_BYTES as u64) + ape.unwrap_or(0);
    if hidden > 0 && hidden < length {
        bytes.end_at(length - hidden);
    }
}

/// Returns the length of the APE tag with this footer.
fn ape_length(footer: &[u8]) -> Option<u64> {
    let field = |at: usize| Some(u32::from_le_bytes(footer.get(at..at + 4)?.try_into().ok()?));
    let (size, flags) = field(12).zip(field(20)).filter(|_| footer.starts_with(b"APETAGEX"))?;
    // The size counts the footer, and not the header that the highest flag announces.
    Some(u64::from(size) + if flags >> 31 == 1 { APE as u64 } else { 0 })
}
