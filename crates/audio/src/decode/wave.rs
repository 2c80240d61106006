//! Reads headers of wav files, correct and incorrect ones.

use base::{Error, Result};

use super::bytes::InputBytes;
use super::pcm::{PcmLayout, SampleCoding};

/// Maximum bytes of a format description.
const FORMAT_MAX: usize = 1024;
/// Maximum chunks before the sound.
const CHUNKS_MAX: usize = 1000;
/// Placeholders for an unknown length lie near these values. Writers use the largest multiple of
/// the frame's size below 2 GiB (`arecord` and `sox` to a pipe) or below 4 GiB.
const MOSTS: [u32; 2] = [0x8000_0000, u32::MAX];
/// Maximum distance of a placeholder below its value in [`MOSTS`].
const MOSTS_BELOW: u32 = 0x2000;
/// Longest length of a file above 4 GiB. Placeholders of writers to a pipe are 0 or above it.
const LONG_MAX: u64 = i64::MAX as u64;
/// Codes of `WAVE_FORMAT_*`.
const PCM: u16 = 1;
const FLOAT: u16 = 3;
const A_LAW: u16 = 6;
const MU_LAW: u16 = 7;
const EXTENSIBLE: u16 = 0xfffe;

/// Returns true for the first bytes of a wav file.
pub(super) fn is(start: &[u8]) -> bool {
    matches!(start.get(..4), Some(b"RIFF" | b"RF64" | b"BW64")) && start.get(8..12) == Some(b"WAVE")
}

/// Reads the header up to the sound itself.
///
/// # Errors
/// `DataLoss` if the header ends early or is inconsistent, `Unimplemented` for compressed sound.
pub(super) fn open(bytes: &mut InputBytes) -> Result<PcmLayout> {
    bytes.skip(12);
    let mut format = None;
    // The length lies in a chunk for files above 4 GiB.
    let mut long = None;
    for _ in 0..CHUNKS_MAX {
        let Ok::<[u8; 8], _>(head) = bytes.peek(8).try_into() else { break };
        bytes.advance(8);
        let length = little(&head[4..8]);
        match &head[..4] {
            b"fmt " => {
                let seen = bytes.peek(length.min(FORMAT_MAX as u32) as usize).to_vec();
                format = Some(describe(&seen)?);
            }
            b"ds64" => {
                long = bytes
                    .peek(16)
                    .get(8..16)
                    .and_then(|size| Some(u64::from_le_bytes(size.try_into().ok()?)))
                    .filter(|size| (1..=LONG_MAX).contains(size))
            }
            b"data" => {
                let Some(layout) = format else {
                    return Err(Error::data_loss(
                        "this wav file does not describe its audio (no fmt chunk)",
                    ));
                };
                let known = match long {
                    Some(long) if length == u32::MAX => Some(long),
                    _ => (!unknown(length, bytes.file_length())).then_some(u64::from(length)),
                };
                return Ok(PcmLayout { length: known, ..layout });
            }
            _ => {}
        }
        // Chunks begin at even offsets.
        if !bytes.skip(u64::from(length) + u64::from(length % 2)) {
            break;
        }
    }
    Err(Error::data_loss("this wav file ends before any audio (no data chunk)"))
}

/// Returns true for a placeholder length. A plausible one counts as a placeholder too, unless a
/// file of `whole` bytes shows the opposite. A length that leaves out 4 GiB of the file or more is
/// only the lower half of the true one.
fn unknown(length: u32, whole: Option<u64>) -> bool {
    let most = MOSTS.iter().any(|most| (most - MOSTS_BELOW..=*most).contains(&length));
    let behind = whole.map_or(0, |whole| whole.saturating_sub(u64::from(length)));
    matches!(length, 0 | u32::MAX)
        || most && whole.is_none_or(|whole| whole < u64::from(length))
        || behind > u64::from(u32::MAX)
}

fn little(four: &[u8]) -> u32 {
    four.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// Reads a format chunk.
fn describe(chunk: &[u8]) -> Result<PcmLayout> {
    if chunk.len() < 16 {
        return Err(Error::data_loss("the fmt chunk of this wav file is too short"));
    }
    let two = |at: usize| little(chunk.get(at..at + 2).unwrap_or_default()) as u16;
    let mut code = two(0);
    let bits = two(14);
    if code == EXTENSIBLE && chunk.len() >= 26 {
        code = two(24);
    }
    let rate = little(&chunk[4..8]);
    let channels = usize::from(two(2));
    let coding = match (code, bits) {
        (PCM, 24) if is_padded(chunk, rate, channels) => SampleCoding::Signed24In32,
        (PCM, 8) => SampleCoding::Unsigned8,
        (PCM, 16 | 24 | 32) => SampleCoding::Signed { bytes: usize::from(bits / 8), big: false },
        // Other bit counts are padded at the low end to whole bytes.
        (PCM, 9..=31) => SampleCoding::Signed { bytes: usize::from(bits.div_ceil(8)), big: false },
        (FLOAT, 32) => SampleCoding::Float32 { big: false },
        (FLOAT, 64) => SampleCoding::Float64 { big: false },
        (A_LAW, _) => SampleCoding::ALaw,
        (MU_LAW, _) => SampleCoding::MuLaw,
        _ => {
            return Err(Error::unimplemented(format!(
                "this wav file's audio has an unsupported encoding (code {code}, {bits} bits); \
                 convert it to PCM or flac"
            )));
        }
    };
    Ok(PcmLayout { container: "wav", coding, rate, channels, length: None })
}

/// Returns true if samples of 24 bits lie in four bytes each, as `arecord -f S24_LE` writes them.
/// Both fields that depend on it must say so: some programs write a wrong size of frames.
fn is_padded(chunk: &[u8], rate: u32, channels: usize) -> bool {
    let code = little(&chunk[..2]);
    let frame = u64::from(little(&chunk[12..14]));
    let second = u64::from(little(&chunk[8..12]));
    code == u32::from(PCM) && frame == 4 * channels as u64 && second == frame * u64::from(rate)
}
