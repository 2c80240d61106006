//! ISO/IEC 19794-2:2005 finger minutiae records ("FMR"), read and written.
//!
//! The layout is in this order. Numbers are big-endian. The bytes of a field are in parentheses.
//!
//! * Header: "FMR\0", version " 20\0", length (4), capture equipment (2), width and height (2 + 2),
//!   resolution across and down in pixels per centimetre (2 + 2), views (1), reserved (1).
//! * For each view: finger position, view and impression, quality, number of minutiae (1 each).
//! * For each minutia: kind in the two high bits and x in the other fourteen (2), y (2), angle in
//!   256 steps counter-clockwise (1), quality (1).
//! * After the minutiae of a view: length of the extended data (2) and that data, which is skipped.
//!
//! # Example: a template, written and read
//! ```
//! use millpond_matching::{Graph, Vertex, iso};
//!
//! let ridge_ending = Vertex { x: 10, y: 20, direction: 64, kind: 1 };
//! let graph =
//!     Graph { width: 300, height: 400, vertices: vec![ridge_ending], descriptors: Vec::new() };
//! let template = iso::write(&graph)?;
//! assert_eq!(iso::read(&template)?, [graph]);
//! # Ok::<(), base::Error>(())
//! ```

use base::{Error, Result};

use crate::graph::Graph;
use crate::template::fields::{Fields, check, put_minutiae, put_size};
use crate::template::{StatedPrint, TemplateView};

const MAGIC: &[u8; 8] = b"FMR\0 20\0";
/// Bytes of magic, length, equipment, size, resolution, views and reserved.
const HEADER_BYTES: usize = 24;
const MINUTIA_BYTES: usize = 6;
/// Steps of an angle in a turn.
const STEPS: u32 = 256;

/// Reads the finger views of a template, each as a graph at 500 dots per inch.
///
/// # Errors
/// `InvalidArgument` if the bytes are not such a template. The message names the fault and its
/// place.
pub fn read(bytes: &[u8]) -> Result<Vec<Graph>> {
    Ok(views(bytes)?.into_iter().map(|view| view.graph).collect())
}

/// Reads the finger views of a template with their qualities.
///
/// # Errors
/// As [`read`].
pub(crate) fn views(bytes: &[u8]) -> Result<Vec<TemplateView>> {
    let mut input = Fields { bytes, at: 0 };
    let magic = input.take(MAGIC.len())?;
    if magic != MAGIC {
        return Err(Error::invalid(
            "not an ISO/IEC 19794-2:2005 template: it does not begin with \"FMR\", version 20",
        ));
    }
    let length = input.number(4)?;
    input.check_length(length)?;
    let _equipment = input.number(2)?;
    input.views_of_one_size(STEPS)
}

/// Writes the template of one graph: one view, 500 dots per inch, no extended data.
///
/// # Errors
/// `InvalidArgument` if the format cannot hold the graph: descriptors, more than 255 vertices,
/// coordinates outside 0 to 16383, or a kind above 2.
pub fn write(graph: &Graph) -> Result<Vec<u8>> {
    write_stating(graph, StatedPrint::default())
}

/// Writes a template as [`write()`] does, with the finger and the quality of the print.
///
/// # Errors
/// As [`write()`].
pub(crate) fn write_stating(graph: &Graph, stated: StatedPrint) -> Result<Vec<u8>> {
    check(graph)?;
    let count = graph.vertices.len();
    let length = HEADER_BYTES + 4 + count * MINUTIA_BYTES + 2;
    let mut out = Vec::with_capacity(length);
    out.extend(MAGIC);
    out.extend((length as u32).to_be_bytes());
    out.extend([0, 0]);
    put_size(graph, &mut out);
    out.extend([1, 0]);
    // First view of a live scan.
    out.extend([stated.finger_byte(), 0, stated.quality_byte(), count as u8]);
    put_minutiae(graph, STEPS, &mut out);
    out.extend([0, 0]);
    Ok(out)
}
