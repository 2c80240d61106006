//! Headers of wav files, as they should be and as they are.

use base::{Error, Result};

use super::bytes::InputBytes;
use super::pcm::{PcmLayout, SampleCoding};

/// The longest format description.
const FORMAT_MAX: usize = 1024;
/// The chunks before the sound.
const CHUNKS_MAX: usize = 1000;
/// Around these lengths lie those of writers that do not know yet and put the most there that can be: a multiple of the
/// frame's size below 2 GiB (`arecord` and `sox` to a pipe), or below 4 GiB.
const MOSTS: [u32; 2] = [0x8000_0000, u32::MAX];
/// How far below.
const MOSTS_BELOW: u32 = 0x2000;
/// The codes of `WAVE_FORMAT_*`.
const PCM: u16 = 1;
const FLOAT: u16 = 3;
const A_LAW: u16 = 6;
const MU_LAW: u16 = 7;
const EXTENSIBLE: u16 = 0xfffe;

/// Whether these are the first bytes of a wav file.
pub(super) fn is(start: &[u8]) -> bool {
    matches!(start.get(..4), Some(b"RIFF" | b"RF64" | b"BW64")) && start.get(8..12) == Some(b"WAVE")
}

/// Reads the header up to the sound itself.
///
/// # Errors
/// `DataLoss` when the header ends or makes no sense, `Unimplemented` for compressed sound.
pub(super) fn open(bytes: &mut InputBytes) -> Result<PcmLayout> {
    bytes.pass(12);
    let mut format = None;
    // The length in a chunk for files above 4 GiB.
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
                long =
                    bytes.peek(16).get(8..16).and_then(|size| Some(u64::from_le_bytes(size.try_into().ok()?)))
            }
            b"data" => {
                let Some(layout) = format else {
                    return Err(Error::data_loss(
                        "this wav file does not say what its sound is like (no fmt chunk)",
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
        // Chunks begin at even places.
        if !bytes.pass(u64::from(length) + u64::from(length % 2)) {
            break;
        }
    }
    Err(Error::data_loss("this wav file ends before any sound (no data chunk)"))
}

/// Whether a length is none. One that may be true is, unless a file of `whole` bytes shows that it is not.
fn unknown(length: u32, whole: Option<u64>) -> bool {
    let most = MOSTS.iter().any(|most| (most - MOSTS_BELOW..=*most).contains(&length));
    matches!(length, 0 | u32::MAX) || most && whole.is_none_or(|whole| whole < u64::from(length))
}

fn little(four: &[u8]) -> u32 {
    four.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// What a format chunk says.
fn describe(chunk: &[u8]) -> Result<PcmLayout> {
    if chunk.len() < 16 {
        return Err(Error::data_loss("the fmt chunk of this wav file is too short"));
    }
    let two = |at: usize| little(chunk.get(at..at + 2).unwrap_or_default()) as u16;
    let (mut code, bits) = (two(0), two(14));
    if code == EXTENSIBLE && chunk.len() >= 26 {
        code = two(24);
    }
    let coding = match (code, bits) {
        (PCM, 8) => SampleCoding::Unsigned8,
        (PCM, 16 | 24 | 32) => SampleCoding::Signed { bytes: usize::from(bits / 8), big: false },
        // Other counts of bits are padded at the low end to whole bytes.
        (PCM, 9..=31) => SampleCoding::Signed { bytes: usize::from(bits.div_ceil(8)), big: false },
        (FLOAT, 32) => SampleCoding::Float32 { big: false },
        (FLOAT, 64) => SampleCoding::Float64 { big: false },
        (A_LAW, _) => SampleCoding::ALaw,
        (MU_LAW, _) => SampleCoding::MuLaw,
        _ => {
            return Err(Error::unimplemented(format!(
                "this wav file's sound is coded in a way that is not known here (code {code}, {bits} bits)"
            )));
        }
    };
    let (rate, channels) = (little(&chunk[4..8]), usize::from(two(2)));
    Ok(PcmLayout { container: "wav", coding, rate, channels, length: None })
}
