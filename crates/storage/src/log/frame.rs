//! The bytes of a log: a header, then frames.
//!
//! The header has 64 bytes. Numbers are little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `MPLOG` and three zeros |
//! | 8..12 | version |
//! | 16..24 | number of the first payload |
//! | 60..64 | crc32c of bytes 0..60 |
//!
//! A frame is a head of 32 bytes, then the payload, then zeros to a multiple of 8.
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | `mpfr` |
//! | 4..8 | bytes of the payload |
//! | 8..16 | its number |
//! | 16..20 | crc32c of the payload |
//! | 20..28 | the number before which all was durable when it was written |
//! | 28..32 | crc32c of bytes 0..28 |
//!
//! A hole that opening found is closed by such a head with `mpcl`. Its length is the length of the
//! rest of the hole, and its number is the number of the next frame. Any bytes may follow it in the
//! hole.
//!
//! After payloads with keys, each flush ends with such a head too. After it come the keys of the
//! frames of that flush and of some earlier ones. So a damaged frame leaves its key.
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | `mpky` |
//! | 4..8 | crc32c of the bytes from 8 |
//! | 8..16 | number of the first of these frames |
//! | 16..20 | number of keys |
//! | 20..24 | zeros |
//! | 24.. | the keys, 8 bytes each |

use base::{Error, Result};

use crate::bytes::{put, u32_at, u64_at};

/// Maximum bytes of a payload.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// Bytes of the log's header.
pub(super) const HEADER_BYTES: usize = 64;
/// Alignment of frames in bytes.
pub(super) const ALIGNMENT: usize = 8;
/// Bytes before a frame's payload.
pub(super) const FRAME_BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"MPLOG\0\0\0";
const VERSION: u32 = 1;
const MARK: &[u8; 4] = b"mpfr";
const CLOSED: &[u8; 4] = b"mpcl";
const KEYS: &[u8; 4] = b"mpky";
/// Bytes of the head of a list of keys. The keys follow it.
const KEYS_HEAD_BYTES: usize = 24;

/// Returns the header of a new log.
pub(super) fn header(first: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    put(&mut header, 0, MAGIC);
    put(&mut header, 8, &VERSION.to_le_bytes());
    put(&mut header, 16, &first.to_le_bytes());
    let sum = crc32c::crc32c(&header[..60]);
    put(&mut header, 60, &sum.to_le_bytes());
    header
}

/// Returns the number of a log's first payload, or `None` for a damaged header.
pub(super) fn first(log: &[u8]) -> Option<u64> {
    let header = whole_header(log).filter(|header| u32_at(header, 8) == VERSION);
    header.map(|header| u64_at(header, 16))
}

/// Checks the version of a log. A damaged header is not an error.
///
/// # Errors
/// `FailedPrecondition` for a whole header of another version.
pub(super) fn check_version(log: &[u8]) -> Result<()> {
    let version = whole_header(log).map_or(VERSION, |header| u32_at(header, 8));
    if version == VERSION {
        return Ok(());
    }
    Err(Error::precondition(format!(
        "the log has version {version}, this program reads {VERSION}; use the program that wrote it"
    )))
}

/// Returns the header of a log of any version, or `None` for a damaged one.
fn whole_header(log: &[u8]) -> Option<&[u8]> {
    let header = log.get(..HEADER_BYTES)?;
    let is_whole = crc32c::crc32c(&header[..60]) == u32_at(header, 60);
    (is_whole && &header[..8] == MAGIC).then_some(header)
}

/// Returns the bytes that a payload takes in the log.
pub(super) fn frame_bytes(payload: usize) -> Result<usize> {
    if payload > PAYLOAD_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a payload of {payload} bytes is longer than a log's {PAYLOAD_BYTES_MAX}"
        )));
    }
    Ok(FRAME_BYTES + payload.next_multiple_of(ALIGNMENT))
}

/// Appends a frame. The payload must be short enough.
pub(super) fn encode(number: u64, durable: u64, payload: &[u8], out: &mut Vec<u8>) {
    let sum = crc32c::crc32c(payload);
    out.extend_from_slice(&encode_head(MARK, payload.len() as u32, number, sum, durable));
    out.extend_from_slice(payload);
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
}

/// Returns the bytes that [`encode_keys`] appends for `count` keys.
pub(super) fn keys_bytes(count: usize) -> usize {
    FRAME_BYTES + KEYS_HEAD_BYTES + 8 * count
}

/// Appends the keys of the last frames before the one with number `next`.
pub(super) fn encode_keys(next: u64, durable: u64, keys: &[u64], out: &mut Vec<u8>) {
    let mut section = vec![0; KEYS_HEAD_BYTES];
    put(&mut section, 0, KEYS);
    put(&mut section, 8, &next.saturating_sub(keys.len() as u64).to_le_bytes());
    put(&mut section, 16, &(keys.len() as u32).to_le_bytes());
    section.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
    let sum = crc32c::crc32c(&section[8..]);
    put(&mut section, 4, &sum.to_le_bytes());
    out.extend_from_slice(&encode_head(CLOSED, section.len() as u32, next, 0, durable));
    out.extend_from_slice(&section);
}

/// Returns the number of the first frame and the keys after the head at the start of `bytes`.
/// Returns `None` if there are none or they are damaged.
pub(super) fn keys<'a>(
    bytes: &'a [u8],
    head: &FrameHead,
) -> Option<(u64, impl Iterator<Item = u64> + 'a)> {
    let section = bytes.get(FRAME_BYTES..head.next).filter(|_| head.kind == FrameKind::Closed)?;
    let count = u32_at(section, 16) as usize;
    let listed = section.get(KEYS_HEAD_BYTES..)?;
    let whole = section.starts_with(KEYS)
        && listed.len() == count.checked_mul(8)?
        && crc32c::crc32c(&section[8..]) == u32_at(section, 4);
    whole.then(|| (u64_at(section, 8), listed.chunks_exact(8).map(|key| u64_at(key, 0))))
}

/// Returns the head that closes a hole of `bytes` before frame `number`. Returns `None` if the hole
/// is too short.
pub(super) fn closing(bytes: u64, number: u64) -> Option<[u8; FRAME_BYTES]> {
    let rest = u32::try_from(bytes.checked_sub(FRAME_BYTES as u64)?).ok()?;
    Some(encode_head(CLOSED, rest, number, 0, 0))
}

/// Encodes the head of a frame. `mark` states its kind. `bytes` and `sum` are the length and the
/// checksum of its content. `durable` is the number before which all payloads are durable.
fn encode_head(
    mark: &[u8; 4],
    bytes: u32,
    number: u64,
    sum: u32,
    durable: u64,
) -> [u8; FRAME_BYTES] {
    let mut head = [0; FRAME_BYTES];
    put(&mut head, 0, mark);
    put(&mut head, 4, &bytes.to_le_bytes());
    put(&mut head, 8, &number.to_le_bytes());
    put(&mut head, 16, &sum.to_le_bytes());
    put(&mut head, 20, &durable.to_le_bytes());
    let sum = crc32c::crc32c(&head[..28]);
    put(&mut head, 28, &sum.to_le_bytes());
    head
}

/// Content that follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    Payload,
    /// A closed hole.
    Closed,
}

/// A frame's head with a valid checksum.
pub(super) struct FrameHead {
    pub(super) kind: FrameKind,
    pub(super) number: u64,
    /// The number before which all was durable when the frame was written.
    pub(super) durable: u64,
    /// Offset of the next frame from the start of this one.
    pub(super) next: usize,
    payload_end: usize,
    /// Checksum of the payload.
    sum: u32,
}

/// Reads the head at the start of `bytes`.
pub(super) fn head(bytes: &[u8]) -> Option<FrameHead> {
    let head = bytes.get(..FRAME_BYTES)?;
    let kind = match &head[..4] {
        mark if mark == MARK => FrameKind::Payload,
        mark if mark == CLOSED => FrameKind::Closed,
        _ => return None,
    };
    if crc32c::crc32c(&head[..28]) != u32_at(head, 28) {
        return None;
    }
    let payload = u32_at(head, 4) as usize;
    let next = match kind {
        FrameKind::Payload => frame_bytes(payload).ok()?,
        FrameKind::Closed => {
            FRAME_BYTES.checked_add(payload).filter(|next| next.is_multiple_of(ALIGNMENT))?
        }
    };
    Some(FrameHead {
        kind,
        number: u64_at(head, 8),
        durable: u64_at(head, 20),
        next,
        payload_end: FRAME_BYTES + payload,
        sum: u32_at(head, 16),
    })
}

/// Returns the payload after a head if it is whole. It is empty after a closed hole. The zeros
/// after a payload are not checked.
pub(super) fn payload<'a>(bytes: &'a [u8], head: &FrameHead) -> Option<&'a [u8]> {
    if bytes.len() < head.next {
        return None;
    }
    match head.kind {
        FrameKind::Closed => Some(&[]),
        FrameKind::Payload => {
            let payload = bytes.get(FRAME_BYTES..head.payload_end)?;
            (crc32c::crc32c(payload) == head.sum).then_some(payload)
        }
    }
}
