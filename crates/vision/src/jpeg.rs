//! JPEG files: the size in the header, and a check that the file is whole.
//!
//! Decoders silently fill missing data with grey, so the end of the image is searched here. Marker
//! syntax after ITU-T T.81, annex B.

use base::{Error, Result};

use crate::bytes::be16;
use crate::limits::Announced;

/// Bytes per column of a JPEG decoder's rows: 8 rows of up to 4 components, upsampled.
const JPEG_COLUMN_BYTES: u64 = 1024;
/// Largest sampling factor of a JPEG component.
const SAMPLING_MAX: u64 = 4;

const END_OF_IMAGE: u8 = 0xd9;
const START_OF_SCAN: u8 = 0xda;
/// Start of a frame of JPEG-LS (ITU-T T.87).
const JPEG_LS_FRAME: u8 = 0xf7;

/// Follows the markers from the start of the file to the end of the image. Later bytes do not
/// matter.
///
/// # Errors
/// `InvalidArgument` if the image has no end.
pub(crate) fn check(bytes: &[u8]) -> Result<()> {
    let truncated =
        || Error::invalid("this jpeg image ends early: the file is truncated; send all of it");
    // After the start-of-image marker.
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
                // A scan's data follows its header; the next marker is searched in it.
                if marker == START_OF_SCAN && segment_end.is_empty() {
                    return Err(truncated());
                }
                segment_end
            }
        };
    }
}

/// Returns the code of the next marker and the bytes after it.
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

/// Refuses codings of JPEG that the decoder does not read. It would call such files damaged.
///
/// # Errors
/// `InvalidArgument` with the name of the coding.
pub(crate) fn check_coding(bytes: &[u8]) -> Result<()> {
    let Some(FrameStart { marker, precision }) = frame_start(bytes) else { return Ok(()) };
    let coding = match marker {
        0xc0..=0xc2 if precision == 8 => return Ok(()),
        0xc0..=0xc2 => format!("samples of {precision} bits"),
        0xc3 | 0xc7 | 0xcb | 0xcf => "lossless coding".to_owned(),
        0xc9 | 0xca => "arithmetic coding".to_owned(),
        JPEG_LS_FRAME => "JPEG-LS".to_owned(),
        _ => "hierarchical coding".to_owned(),
    };
    Err(Error::invalid(format!(
        "this kind of jpeg cannot be read: {coding}; save it as a baseline or progressive JPEG of 8 bits, or as PNG"
    )))
}

/// Start of a frame header.
struct FrameStart {
    marker: u8,
    /// Bits of a sample.
    precision: u8,
}

/// Returns the start of the first frame header, or `None` if there is none before the first scan.
fn frame_start(bytes: &[u8]) -> Option<FrameStart> {
    let mut rest = bytes.get(2..)?;
    loop {
        let (marker, after) = next_marker(rest)?;
        rest = match marker {
            0x00 | 0x01 | 0xd0..=0xd8 => after,
            END_OF_IMAGE | START_OF_SCAN => return None,
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf | JPEG_LS_FRAME => {
                return Some(FrameStart { marker, precision: *after.get(2)? });
            }
            _ => after.get(usize::from(be16(after, 0)?)..)?,
        };
    }
}

/// Reads the frame's header. The decoder copies the file and its application segments. It keeps the
/// coefficients of all components if the scans do not have all of them at once.
pub(crate) fn announced(bytes: &[u8]) -> Option<Announced> {
    let mut rest = bytes.get(2..)?;
    let mut frame = None;
    let mut aside = 0;
    loop {
        let (marker, after) = next_marker(rest)?;
        rest = match marker {
            0x00 | 0x01 | 0xd0..=0xd8 => after,
            _ => {
                let length = usize::from(be16(after, 0)?);
                let segment = after.get(2..length)?;
                match marker {
                    // Start of frame, all codings.
                    0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                        frame = frame.or(Some((marker, segment)));
                    }
                    0xda => {
                        let (kind, frame) = frame?;
                        let scans = kind != 0xc0 && kind != 0xc1 || segment.first() != frame.get(5);
                        return frame_size(frame, scans, bytes.len() as u64 + 2 * aside);
                    }
                    0xd9 => return None,
                    _ => aside += segment.len() as u64,
                }
                after.get(length..)?
            }
        };
    }
}

/// Parses the size from the header of a frame. A file with `several_scans` keeps the coefficients
/// of all its blocks in memory.
fn frame_size(frame: &[u8], several_scans: bool, file_bytes: u64) -> Option<Announced> {
    let (height, width) = (be16(frame, 1)?, be16(frame, 3)?);
    let components = usize::from(*frame.get(5)?);
    let factors = (0..components).map(|at| {
        let &factors = frame.get(7 + 3 * at)?;
        Some((u64::from(factors >> 4).min(SAMPLING_MAX), u64::from(factors & 15).min(SAMPLING_MAX)))
    });
    let factors: Vec<(u64, u64)> = factors.collect::<Option<_>>()?;
    let largest = |of: fn(&(u64, u64)) -> u64| factors.iter().map(of).max().unwrap_or(1).max(1);
    let (across, down) = (largest(|it| it.0), largest(|it| it.1));
    let blocks = u64::from(width).div_ceil(8 * across) * u64::from(height).div_ceil(8 * down);
    let samples: u64 = factors.iter().map(|(across, down)| across * down * 64 * blocks).sum();
    let coefficients = if several_scans { 2 * samples } else { 0 };
    let columns = (u64::from(width) + 8 * SAMPLING_MAX) * JPEG_COLUMN_BYTES;
    Some(Announced {
        width: width.into(),
        height: height.into(),
        depth_bytes: if components == 1 { 1 } else { 3 },
        beside_bytes: coefficients + columns + file_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coding_that_cannot_be_read_is_named() {
        let file = |marker: u8, precision: u8| {
            let frame = [0xff, marker, 0, 11, precision, 0, 8, 0, 8, 1, 1, 0x11, 0];
            [&[0xff, 0xd8, 0xff, 0xe0, 0, 4, 1, 2][..], &frame, &[0xff, START_OF_SCAN]].concat()
        };
        for (marker, precision, name) in [
            (0xc1, 12, "samples of 12 bits"),
            (0xc3, 8, "lossless"),
            (0xc5, 8, "hierarchical"),
            (0xc9, 8, "arithmetic"),
            (JPEG_LS_FRAME, 8, "JPEG-LS"),
        ] {
            let error = check_coding(&file(marker, precision)).unwrap_err();
            assert!(error.message().contains(name), "{error}");
        }
        for marker in [0xc0, 0xc1, 0xc2] {
            assert!(check_coding(&file(marker, 8)).is_ok());
        }
        // The decoder refuses a file without a frame.
        assert!(check_coding(&[0xff, 0xd8, 0xff, START_OF_SCAN]).is_ok());
        assert!(check_coding(&[0xff, 0xd8, 0xff]).is_ok());
    }
}
