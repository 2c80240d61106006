//! ISO/IEC 19794-2:2005 finger minutiae records ("FMR"), read and written.
//!
//! Layout, numbers big-endian: "FMR\0", version " 20\0", length (4), capture equipment (2), width
//! and height (2 + 2), resolution across and down in pixels per centimetre (2 + 2), views (1),
//! reserved (1); then per view: finger position, view and impression, quality, minutiae (1 each),
//! per minutia kind in the two high bits and x in the other fourteen (2), y (2), angle in 256 steps
//! counter-clockwise (1), quality (1); length of the extended data (2) and that data, which is
//! skipped.

use base::{Error, Result};

use crate::graph::{Graph, VERTICES_MAX, Vertex};

const MAGIC: &[u8; 8] = b"FMR\0 20\0";
/// Bytes of magic, length, equipment, size, resolution, views and reserved.
const HEADER_BYTES: usize = 24;
const MINUTIA_BYTES: usize = 6;
/// 500 dots per inch in pixels per centimetre, as the standard rounds it: the resolution of
/// fingerprint graphs.
const PER_CENTIMETRE: u32 = 197;
/// Coordinates have 14 bits.
const COORDINATE_MAX: i32 = 0x3FFF;
/// Most minutiae of a view: the count is a byte.
const MINUTIAE_MAX: usize = 255;

/// Reads the finger views of a template, each as a graph at 500 dots per inch.
///
/// # Errors
/// `InvalidArgument` if the bytes are not such a template. The text says what is wrong and where.
pub fn read(bytes: &[u8]) -> Result<Vec<Graph>> {
    let mut input = Input { bytes, at: 0 };
    let magic = input.take(MAGIC.len())?;
    if magic != MAGIC {
        return Err(Error::invalid(
            "not an ISO/IEC 19794-2:2005 template: it does not begin with \"FMR\", version 20",
        ));
    }
    let length = input.number(4)?;
    if length as usize != bytes.len() {
        return Err(Error::invalid(format!(
            "a template of {} bytes announces {length}: it was truncated or extended",
            bytes.len()
        )));
    }
    let _equipment = input.number(2)?;
    let (width, height) = (input.number(2)?, input.number(2)?);
    let (across, down) = (input.number(2)?, input.number(2)?);
    if across == 0 || down == 0 {
        return Err(Error::invalid(
            "a template's resolution is 0: it must be in pixels per centimetre",
        ));
    }
    let (views, _reserved) = (input.number(1)?, input.number(1)?);
    let size = (scaled(width, across).min(0xFFFF) as u16, scaled(height, down).min(0xFFFF) as u16);
    let mut graphs = Vec::new();
    for _ in 0..views {
        let vertices = view(&mut input, across, down)?;
        graphs.push(Graph { width: size.0, height: size.1, vertices, descriptors: Vec::new() });
    }
    if input.at != bytes.len() {
        return Err(Error::invalid(format!(
            "a template has {} bytes behind its last view",
            bytes.len() - input.at
        )));
    }
    Ok(graphs)
}

fn view(input: &mut Input<'_>, across: u32, down: u32) -> Result<Vec<Vertex>> {
    let _position_impression_quality = input.take(3)?;
    let count = input.number(1)?;
    let mut vertices = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (x, y) = (input.number(2)?, input.number(2)?);
        let (direction, _quality) = (input.number(1)?, input.number(1)?);
        vertices.push(Vertex {
            x: scaled(x & COORDINATE_MAX as u32, across).min(i16::MAX as u32) as i16,
            y: scaled(y & COORDINATE_MAX as u32, down).min(i16::MAX as u32) as i16,
            direction: direction as u8,
            kind: (x >> 14) as u8,
        });
    }
    let extended = input.number(2)?;
    input.take(extended as usize)?;
    Ok(vertices)
}

/// Converts `pixels` at `resolution` pixels per centimetre to 500 dots per inch.
fn scaled(pixels: u32, resolution: u32) -> u32 {
    if resolution == PER_CENTIMETRE {
        pixels
    } else {
        (pixels * PER_CENTIMETRE + resolution / 2) / resolution
    }
}

/// Writes the template of one graph: one view, 500 dots per inch, no extended data.
///
/// # Errors
/// `InvalidArgument` if the format cannot hold the graph: descriptors, more than 255 vertices,
/// coordinates outside 0 to 16383, or a kind above 2.
pub fn write(graph: &Graph) -> Result<Vec<u8>> {
    let count = graph.vertices.len();
    if count > MINUTIAE_MAX || !graph.descriptors.is_empty() {
        return Err(Error::invalid(format!(
            "an ISO/IEC 19794-2 template holds up to {MINUTIAE_MAX} minutiae and no descriptors; this graph has {count} vertices and {} descriptors",
            graph.descriptors.len()
        )));
    }
    let length = HEADER_BYTES + 4 + count * MINUTIA_BYTES + 2;
    let mut out = Vec::with_capacity(length);
    out.extend(MAGIC);
    out.extend((length as u32).to_be_bytes());
    out.extend([0, 0]);
    out.extend(graph.width.to_be_bytes());
    out.extend(graph.height.to_be_bytes());
    out.extend((PER_CENTIMETRE as u16).to_be_bytes());
    out.extend((PER_CENTIMETRE as u16).to_be_bytes());
    out.extend([1, 0]);
    // Finger position unknown, first view of a live scan, quality not stated.
    out.extend([0, 0, 0, count as u8]);
    for vertex in &graph.vertices {
        let (x, y) = (i32::from(vertex.x), i32::from(vertex.y));
        if !(0..=COORDINATE_MAX).contains(&x)
            || !(0..=COORDINATE_MAX).contains(&y)
            || vertex.kind > 2
        {
            return Err(Error::invalid(format!(
                "an ISO/IEC 19794-2 template cannot hold a vertex of kind {} at ({x}, {y})",
                vertex.kind
            )));
        }
        out.extend((u16::from(vertex.kind) << 14 | x as u16).to_be_bytes());
        out.extend((y as u16).to_be_bytes());
        out.extend([vertex.direction, 0]);
    }
    out.extend([0, 0]);
    Ok(out)
}

/// Reads numbers one after the other.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let taken =
            self.bytes.get(self.at..).and_then(|rest| rest.get(..count)).ok_or_else(|| {
                Error::invalid(format!(
                    "a template ends after {} bytes, in the middle of a field",
                    self.bytes.len()
                ))
            })?;
        self.at += count;
        Ok(taken)
    }

    /// Reads a number of up to four bytes.
    fn number(&mut self, bytes: usize) -> Result<u32> {
        Ok(self.take(bytes)?.iter().fold(0, |number, &byte| number << 8 | u32::from(byte)))
    }
}

const _: () = assert!(MINUTIAE_MAX <= VERTICES_MAX);
