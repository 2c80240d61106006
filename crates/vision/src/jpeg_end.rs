//! Whether a JPEG file is whole: its markers are followed to the end of the picture.
//!
//! Decoders fill what is missing with grey and say nothing, so the end is looked for here. Marker
//! syntax after ITU-T T.81, annex B.

use base::{Error, Result};

const END_OF_IMAGE: u8 = 0xd9;
const START_OF_SCAN: u8 = 0xda;

/// Follows the markers from the start of the file to the end of the image; what comes after that
/// does not matter.
///
/// # Errors
/// `InvalidArgument` for a file without an end.
pub(crate) fn check(bytes: &[u8]) -> Result<()> {
    let truncated =
        || Error::invalid("this jpeg picture ends early: the file is truncated; send all of it");
    // After the start of image.
    let mut rest = bytes.get(2..).ok_or_else(truncated)?;
    loop {
        let (marker, after) = next_marker(rest).ok_or_else(truncated)?;
        rest = match marker {
            END_OF_IMAGE => return Ok(()),
            // No length follows: a fill byte, a stuffed one, TEM and restarts.
            0x00 | 0x01 | 0xd0..=0xd8 => after,
            _ => {
                let &[high, low, ..] = after else { return Err(truncated()) };
                let length = usize::from(u16::from_be_bytes([high, low]));
                let segment_end = after.get(length.max(2)..).ok_or_else(truncated)?;
                // A scan's data follows its header and is searched for the next marker.
                if marker == START_OF_SCAN && segment_end.is_empty() {
                    return Err(truncated());
                }
                segment_end
            }
        };
    }
}

/// The next marker's code, and what follows it.
pub(crate) fn next_marker(mut bytes: &[u8]) -> Option<(u8, &[u8])> {
    loop {
        let start = bytes.iter().position(|&byte| byte == 0xff)?;
        bytes = bytes.get(start + 1..)?;
        match bytes {
            [] => return None,
            // Any number of fill bytes may come before a marker.
            [0xff, ..] => {}
            [code, after @ ..] => return Some((*code, after)),
        }
    }
}
