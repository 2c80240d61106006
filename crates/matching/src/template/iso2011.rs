//! ISO/IEC 19794-2:2011, off-card format.
//!
//! The layout is in this order. The bytes of a field are in parentheses.
//!
//! * Header: "FMR\0", "030\0", length (4), representations (2), certification flag (1).
//! * For each representation: its length (4), date (9), sensor type, vendor and id (1 + 2 + 2),
//!   number of quality records (1), quality records of five bytes.
//! * With the certification flag: number of certificates (1), certificates of three bytes.
//! * Finger position and view (1 + 1), resolution (2 + 2), impression (1), size (2 + 2), bytes of a
//!   minutia and kind of ridge ending (half a byte each), number of minutiae (1).
//! * The minutiae, length of the extended data (2) and that data.

use base::{Error, Result};

use super::fields::{Fields, check, put_minutiae, put_resolution, stated_finger, stated_quality};
use super::{StatedPrint, TemplateView};
use crate::graph::Graph;

const MAGIC: &[u8; 8] = b"FMR\x00030\0";
const HEADER_BYTES: usize = 15;
/// Bytes of a representation without minutiae, quality records and extended data.
const VIEW_BYTES: usize = 34;
/// Bytes of a quality record: quality, vendor and algorithm.
const QUALITY_BYTES: usize = 5;
/// Steps of an angle in a turn.
const STEPS: u32 = 256;

/// Returns true for a template of ISO/IEC 19794-2:2011. An ANSI template of 2009 has the same first
/// bytes, but its lengths of representations do not add up to the length of the template.
pub(super) fn is_iso2011(bytes: &[u8]) -> bool {
    let mut input = Fields { bytes, at: MAGIC.len() };
    let mut sum = || -> Result<bool> {
        let total = input.number(4)? as usize;
        let views = input.number(2)?;
        input.number(1)?;
        for _ in 0..views {
            let length = input.number(4)? as usize;
            if length < VIEW_BYTES {
                return Ok(false);
            }
            input.take(length - 4)?;
        }
        Ok(total == input.at)
    };
    sum().unwrap_or(false)
}

/// Reads the representations.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<TemplateView>> {
    let mut input = Fields { bytes, at: MAGIC.len() };
    let length = input.number(4)?;
    input.check_length(length)?;
    let views = input.number(2)?;
    let certified = input.number(1)? != 0;
    let found = (0..views).map(|_| view(&mut input, certified)).collect::<Result<_>>()?;
    input.end()?;
    Ok(found)
}

/// Reads one representation. `certified` is true if it has the list of certificates.
fn view(input: &mut Fields<'_>, certified: bool) -> Result<TemplateView> {
    let start = input.at;
    let length = input.number(4)? as usize;
    let _date_and_sensor = input.take(14)?;
    let records = input.number(1)? as usize;
    let scores = input.take(records * QUALITY_BYTES)?.iter().step_by(QUALITY_BYTES);
    let quality = scores.copied().find_map(stated_quality);
    if certified {
        let certificates = input.number(1)? as usize;
        input.take(certificates * 3)?;
    }
    let finger = stated_finger(input.byte()?);
    let _view = input.number(1)?;
    let resolution = input.resolution()?;
    let _impression = input.number(1)?;
    let (width, height) = (input.number(2)?, input.number(2)?);
    let minutia_bytes = input.number(1)? >> 4;
    if !(5..=6).contains(&minutia_bytes) {
        return Err(Error::invalid(format!(
            "a template has minutiae of {minutia_bytes} bytes; they have 5 or 6"
        )));
    }
    let count = input.number(1)?;
    let vertices = input.minutiae(count, minutia_bytes, STEPS, resolution)?;
    input.skip_extended()?;
    if input.at - start != length {
        return Err(Error::invalid(format!(
            "a view of {} bytes announces {length}",
            input.at - start
        )));
    }
    let graph = resolution.graph(width, height, vertices);
    Ok(TemplateView { graph, quality, finger, bytes: start..input.at })
}

/// Writes the template of one graph, as one representation.
pub(super) fn write(graph: &Graph, stated: StatedPrint) -> Result<Vec<u8>> {
    check(graph)?;
    let quality = stated.quality_byte();
    let records = usize::from(quality != 0);
    let view = VIEW_BYTES + records * QUALITY_BYTES + graph.vertices.len() * 6;
    let mut out = Vec::with_capacity(HEADER_BYTES + view + 2);
    out.extend(MAGIC);
    out.extend(((HEADER_BYTES + view) as u32).to_be_bytes());
    out.extend([0, 1, 0]);
    out.extend((view as u32).to_be_bytes());
    // The date is not stated; sensor unknown.
    out.extend([0xFF; 9]);
    out.extend([0; 5]);
    out.push(records as u8);
    if records > 0 {
        // Vendor and algorithm are not stated.
        out.extend([quality, 0, 0, 0, 0]);
    }
    // First view of the finger.
    out.extend([stated.finger_byte(), 0]);
    put_resolution(&mut out);
    out.push(0);
    out.extend(graph.width.to_be_bytes());
    out.extend(graph.height.to_be_bytes());
    // Minutiae of six bytes; an ending is the end of the ridge's skeleton.
    out.extend([6 << 4 | 1, graph.vertices.len() as u8]);
    put_minutiae(graph, STEPS, &mut out);
    out.extend([0, 0]);
    Ok(out)
}
