//! Strips images and tags from the beginning of flac files, so that no reader has to read them.

use base::{Error, Result};

use super::bytes::InputBytes;

/// Maximum metadata blocks before the sound.
const PARTS_MAX: usize = 1000;
/// Length of the block that describes the sound.
const DESCRIPTION: usize = 34;

/// Reduces `bytes` to a flac file with its description and its sound only.
///
/// # Errors
/// `DataLoss` if there is no description or no end of metadata.
pub(super) fn strip(bytes: &mut InputBytes) -> Result<()> {
    bytes.skip(4);
    let mut description = None;
    for _ in 0..PARTS_MAX {
        let Ok::<[u8; 4], _>(head) = bytes.peek(4).try_into() else { break };
        let length = head[1..].iter().fold(0, |sum: usize, byte| sum << 8 | usize::from(*byte));
        bytes.advance(4);
        if head[0] & 0x7f == 0 && length == DESCRIPTION {
            description = Some(bytes.peek(DESCRIPTION).to_vec());
        }
        if !bytes.skip(length as u64) {
            break;
        }
        if head[0] & 0x80 != 0 {
            let Some(description) = description else {
                return Err(Error::data_loss(
                    "this flac file does not describe its audio (no STREAMINFO)",
                ));
            };
            let mut front = b"fLaC\x80\0\0\x22".to_vec();
            front.extend(description);
            bytes.put_back(&front);
            return Ok(());
        }
    }
    Err(Error::data_loss("this flac file ends before any audio"))
}
