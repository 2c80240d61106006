//! Recognises the format of a recording, or of other files.

use base::{Error, Result};

use super::bytes::InputBytes;
use super::{aiff, mpeg, wave};

/// Bytes that are read to recognise files that are not audio.
const SNIFFED_BYTES: usize = 512;

/// Known formats of recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Wave,
    Aiff,
    Flac,
    Ogg,
    Mp4,
    Mp3,
}

/// Returns the format of the recording at the beginning of `bytes`, after tags.
///
/// # Errors
/// `InvalidArgument` or `Unimplemented` with the name of the other format.
pub(super) fn kind(bytes: &mut InputBytes, hint: Option<&str>) -> Result<FileKind> {
    if bytes.peek(1).is_empty() {
        return Err(read_error_or(bytes, Error::invalid("the recording is empty")));
    }
    if let Some(kind) = named(bytes.peek(12)) {
        return Ok(kind);
    }
    if bytes.peek(3) == b"ID3" {
        mpeg::pass_tags(bytes);
        // A reader counts positions from here, and would seek to those of the file.
        bytes.forward_only();
        if let Some(kind) = named(bytes.peek(12)).filter(|kind| *kind != FileKind::Mp4) {
            return Ok(kind);
        }
        if bytes.peek(1).is_empty() {
            let what = "the recording ends inside its tags, before any audio; is it complete?";
            return Err(read_error_or(bytes, Error::data_loss(what)));
        }
    }
    let other = other_format(bytes.peek(SNIFFED_BYTES));
    if other.is_none() && mpeg::find(bytes).is_some() {
        return Ok(FileKind::Mp3);
    }
    let hint = hint.map(|hint| format!(" ({hint:?} by its name)")).unwrap_or_default();
    Err(match other {
        Some(OtherFormat { name, is_audio: true }) => {
            Error::unimplemented(format!("{name} is not supported{hint}; {KNOWN}"))
        }
        Some(OtherFormat { name, is_audio: false }) => {
            Error::invalid(format!("this is not a recording{hint}: it is {name}; {KNOWN}"))
        }
        None => {
            Error::invalid(format!("this is not a recording in a supported format{hint}; {KNOWN}"))
        }
    })
}

/// Returns the error that ended the bytes, or else `error`.
fn read_error_or(bytes: &InputBytes, error: Error) -> Error {
    match bytes.broken() {
        Some(why) => Error::data_loss(format!("the recording cannot be read: {why}")),
        None => error,
    }
}

/// Remedy for a recording that cannot be decoded.
pub(super) const KNOWN: &str = "send wav, flac, mp3, ogg vorbis, m4a or aiff";

/// Returns a format that begins with a name of its own.
fn named(start: &[u8]) -> Option<FileKind> {
    match start {
        _ if wave::is(start) => Some(FileKind::Wave),
        _ if aiff::is(start) => Some(FileKind::Aiff),
        [b'f', b'L', b'a', b'C', ..] => Some(FileKind::Flac),
        [b'O', b'g', b'g', b'S', ..] => Some(FileKind::Ogg),
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => Some(FileKind::Mp4),
        _ => None,
    }
}

/// A format that no reader here takes.
#[derive(Clone, Copy)]
struct OtherFormat {
    /// Name for messages.
    name: &'static str,
    is_audio: bool,
}

impl OtherFormat {
    const fn audio(name: &'static str) -> OtherFormat {
        OtherFormat { name, is_audio: true }
    }

    const fn not_audio(name: &'static str) -> OtherFormat {
        OtherFormat { name, is_audio: false }
    }
}

/// Returns another format that begins with `start`.
fn other_format(start: &[u8]) -> Option<OtherFormat> {
    let known: [(&[u8], OtherFormat); 19] = [
        (b"\x89PNG", OtherFormat::not_audio("an image (png)")),
        (b"\xff\xd8\xff", OtherFormat::not_audio("an image (jpeg)")),
        (b"GIF8", OtherFormat::not_audio("an image (gif)")),
        (b"BM", OtherFormat::not_audio("an image (bmp)")),
        (b"%PDF", OtherFormat::not_audio("a document (pdf)")),
        (b"PK\x03\x04", OtherFormat::not_audio("an archive (zip)")),
        (b"\x1f\x8b", OtherFormat::not_audio("a compressed file (gzip)")),
        (b"\x7fELF", OtherFormat::not_audio("a program")),
        (b"riff\x2e\x91\xcf\x11", OtherFormat::audio("wave64")),
        (b"RIFF", OtherFormat::not_audio("another kind of RIFF file than wav")),
        (b"\x1a\x45\xdf\xa3", OtherFormat::audio("webm or matroska")),
        (b"wvpk", OtherFormat::audio("wavpack")),
        (b"MAC ", OtherFormat::audio("monkey's audio")),
        (b"\x30\x26\xb2\x75", OtherFormat::audio("wma or asf")),
        (b"#!AMR", OtherFormat::audio("amr")),
        (b"caff", OtherFormat::audio("caf")),
        (b".snd", OtherFormat::audio("au")),
        (b"MThd", OtherFormat::not_audio("midi")),
        (b"ADIF", OtherFormat::audio("aac without a container")),
    ];
    if let Some((_, format)) = known.iter().find(|(name, _)| start.starts_with(name)) {
        return Some(*format);
    }
    // Films from before mp4, which no reader here takes.
    if matches!(start.get(4..8), Some(b"moov" | b"mdat" | b"wide" | b"pnot")) {
        return Some(OtherFormat::audio("an old quicktime film (without an ftyp atom)"));
    }
    // Frames of aac have the sync of mp3 with a layer that mp3 does not have.
    if let [0xff, second, ..] = start
        && second & 0xf6 == 0xf0
    {
        return Some(OtherFormat::audio("aac without a container"));
    }
    let text =
        start.iter().all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..=0x7e | 0x80..=0xff));
    let plain = start.iter().filter(|byte| byte.is_ascii()).count() * 10 >= start.len() * 7;
    (text && plain).then_some(OtherFormat::not_audio("text"))
}
