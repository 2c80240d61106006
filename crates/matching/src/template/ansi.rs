//! ANSI INCITS 378-2004 and 378-2009.
//!
//! The layouts are in this order. The bytes of a field are in parentheses. Angles are in steps of
//! two degrees. A minutia has six bytes.
//!
//! * Header of 2004: "FMR\0", " 20\0", length (2, or 0 and 4), vendor and format (2 + 2), sensor
//!   (2), size (2 + 2), resolution (2 + 2), views (1), zero (1).
//! * View of 2004: finger position (1), view and impression (1), quality (1), number of minutiae
//!   (1), the minutiae, length of the extended data (2).
//! * Header of 2009: "FMR\0", "030\0", length (4), vendor and format (2 + 2), certification (1),
//!   sensor (2), views (1), zero (1).
//! * View of 2009: finger position (1), view (1), impression (1), quality (1 + 2 + 2), size
//!   (2 + 2), resolution (2 + 2), number of minutiae (1), the minutiae, length of the extended data
//!   (2).

use base::Result;

use super::fields::{
    Fields, MINUTIA_BYTES, check, put_minutiae, put_size, stated_finger, stated_quality,
};
use super::{StatedPrint, TemplateView};
use crate::graph::Graph;

const MAGIC_2004: &[u8; 8] = b"FMR\0 20\0";
const MAGIC_2009: &[u8; 8] = b"FMR\x00030\0";
/// Steps of an angle in a turn.
const STEPS: u32 = 180;
/// Bytes of the shortest template of ANSI INCITS 378-2004.
const BYTES_MIN: u32 = 26;
const HEADER_2004: usize = 26;
const HEADER_2009: usize = 21;
const VIEW_2004: usize = 6;
const VIEW_2009: usize = 19;

/// Returns true if the length field is an ANSI one. It has two bytes, or six of which the first
/// four are small. ISO/IEC 19794-2:2005, with the same first bytes, has four bytes.
pub(super) fn is_2004(bytes: &[u8]) -> bool {
    let mut input = Fields { bytes, at: MAGIC_2004.len() };
    match (input.number(2), input.number(2)) {
        (Ok(0), Ok(low)) => low < BYTES_MIN - 2,
        (Ok(high), _) => high >= BYTES_MIN,
        _ => false,
    }
}

pub(super) fn read_2004(bytes: &[u8]) -> Result<Vec<TemplateView>> {
    let mut input = Fields { bytes, at: MAGIC_2004.len() };
    let length = match input.number(2)? {
        0 => input.number(4)?,
        length => length,
    };
    input.check_length(length)?;
    let _vendor_and_sensor = input.take(6)?;
    input.views_of_one_size(STEPS)
}

/// Reads the finger views of a template of ANSI INCITS 378-2009.
pub(super) fn read_2009(bytes: &[u8]) -> Result<Vec<TemplateView>> {
    let mut input = Fields { bytes, at: MAGIC_2009.len() };
    let length = input.number(4)?;
    input.check_length(length)?;
    let _vendor_and_sensor = input.take(7)?;
    let views = input.number(1)?;
    let _zero = input.number(1)?;
    let mut found = Vec::new();
    for _ in 0..views {
        let start = input.at;
        let finger = stated_finger(input.byte()?);
        let _view_and_impression = input.take(2)?;
        let quality = stated_quality(input.byte()?);
        let _quality_owner_and_algorithm = input.take(4)?;
        let (width, height) = (input.number(2)?, input.number(2)?);
        let resolution = input.resolution()?;
        let count = input.number(1)?;
        let vertices = input.minutiae(count, MINUTIA_BYTES, STEPS, resolution)?;
        input.skip_extended()?;
        let graph = resolution.graph(width, height, vertices);
        found.push(TemplateView { graph, quality, finger, bytes: start..input.at });
    }
    input.end()?;
    Ok(found)
}

/// Writes the template of one graph in the format of ANSI INCITS 378-2004.
pub(super) fn write_2004(graph: &Graph, stated: StatedPrint) -> Result<Vec<u8>> {
    check(graph)?;
    let length = HEADER_2004 + VIEW_2004 + graph.vertices.len() * 6;
    let mut out = Vec::with_capacity(length);
    out.extend(MAGIC_2004);
    // At most 1562 bytes, so the short length suffices.
    out.extend((length as u16).to_be_bytes());
    out.extend([0; 6]);
    put_size(graph, &mut out);
    out.extend([1, 0]);
    let count = graph.vertices.len() as u8;
    out.extend([stated.finger_byte(), 0, stated.quality_byte(), count]);
    put_minutiae(graph, STEPS, &mut out);
    out.extend([0, 0]);
    Ok(out)
}

/// Writes the template of one graph in the format of ANSI INCITS 378-2009.
pub(super) fn write_2009(graph: &Graph, stated: StatedPrint) -> Result<Vec<u8>> {
    check(graph)?;
    let length = HEADER_2009 + VIEW_2009 + graph.vertices.len() * 6;
    let mut out = Vec::with_capacity(length);
    out.extend(MAGIC_2009);
    out.extend((length as u32).to_be_bytes());
    out.extend([0; 7]);
    out.extend([1, 0]);
    out.extend([stated.finger_byte(), 0, 0, stated.quality_byte(), 0, 0, 0, 0]);
    put_size(graph, &mut out);
    out.push(graph.vertices.len() as u8);
    put_minutiae(graph, STEPS, &mut out);
    out.extend([0, 0]);
    Ok(out)
}
