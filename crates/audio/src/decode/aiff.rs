//! Reads headers of aiff files.

use base::{Error, Result};

use super::bytes::InputBytes;
use super::pcm::{PcmLayout, SampleCoding};

/// Maximum chunks before the sound.
const CHUNKS_MAX: usize = 1000;
/// Bytes that are read of the chunk that describes the sound, up to the name of a compression.
const COMMON: usize = 22;

/// Returns true for the first bytes of an aiff file.
pub(super) fn is(start: &[u8]) -> bool {
    start.get(..4) == Some(b"FORM") && matches!(start.get(8..12), Some(b"AIFF" | b"AIFC"))
}

/// Reads the header up to the sound itself.
///
/// # Errors
/// `DataLoss` if the header ends early or is inconsistent, `Unimplemented` for compressed sound.
pub(super) fn open(bytes: &mut InputBytes) -> Result<PcmLayout> {
    bytes.skip(12);
    let mut format = None;
    for _ in 0..CHUNKS_MAX {
        let Ok::<[u8; 8], _>(head) = bytes.peek(8).try_into() else { break };
        bytes.advance(8);
        let length = big(&head[4..8]);
        match &head[..4] {
            b"COMM" => format = Some(describe(bytes.peek((length as usize).min(COMMON)))?),
            b"SSND" => {
                let Some(layout) = format else {
                    return Err(Error::data_loss(
                        "this aiff file does not describe its audio (no COMM chunk)",
                    ));
                };
                // An offset aligns the sound.
                let offset = big(bytes.peek(4));
                if !bytes.skip(8 + u64::from(offset)) {
                    break;
                }
                let known = u64::from(length).checked_sub(8 + u64::from(offset));
                return Ok(PcmLayout {
                    length: known.filter(|known| *known > 0 && length != u32::MAX),
                    ..layout
                });
            }
            _ => {}
        }
        if !bytes.skip(u64::from(length) + u64::from(length % 2)) {
            break;
        }
    }
    Err(Error::data_loss("this aiff file ends before any audio (no SSND chunk)"))
}

fn big(four: &[u8]) -> u32 {
    four.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// Reads a COMM chunk.
fn describe(chunk: &[u8]) -> Result<PcmLayout> {
    if chunk.len() < 18 {
        return Err(Error::data_loss("the COMM chunk of this aiff file is too short"));
    }
    let channels = big(&chunk[..2]) as usize;
    let bits = big(&chunk[6..8]) as u16;
    let coding = match (chunk.get(18..22).unwrap_or(b"NONE"), bits) {
        (b"NONE" | b"twos", 1..=32) => {
            SampleCoding::Signed { bytes: usize::from(bits.div_ceil(8)), big: true }
        }
        (b"sowt", 1..=32) => {
            SampleCoding::Signed { bytes: usize::from(bits.div_ceil(8)), big: false }
        }
        (b"fl32" | b"FL32", _) => SampleCoding::Float32 { big: true },
        (b"fl64" | b"FL64", _) => SampleCoding::Float64 { big: true },
        (b"alaw" | b"ALAW", _) => SampleCoding::ALaw,
        (b"ulaw" | b"ULAW", _) => SampleCoding::MuLaw,
        (name, _) => {
            return Err(Error::unimplemented(format!(
                "this aiff file's audio has an unsupported encoding ({:?}, {bits} bits); \
                 convert it to PCM or flac",
                String::from_utf8_lossy(name)
            )));
        }
    };
    // An 80-bit number: sign and exponent, then the mantissa with its leading one.
    let exponent = (big(&chunk[8..10]) & 0x7fff) as i32 - 16383 - 31;
    let rate = f64::from(big(&chunk[10..14])) * 2.0_f64.powi(exponent);
    Ok(PcmLayout { container: "aiff", coding, rate: rate.round() as u32, channels, length: None })
}
