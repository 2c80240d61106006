//! The graph and its record: the bytes of a page, scored in place.

use base::{Error, Result};

/// Maximum vertices of a graph. An index fits a byte.
pub const VERTICES_MAX: usize = 256;
/// Bytes of a binary descriptor of a keypoint: 256 bits.
pub const DESCRIPTOR_BYTES: usize = 32;

/// Version, flags, vertices (u16), width (u16), height (u16).
const HEADER_BYTES: usize = 8;
/// x (i16), y (i16), direction, kind.
const VERTEX_BYTES: usize = 6;
const VERSION: u8 = 1;
/// Flag: a descriptor for each vertex follows the vertices.
const DESCRIBED: u8 = 1;

/// A point of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vertex {
    /// Pixels from the left. Fingerprints have 500 dots per inch.
    pub x: i16,
    /// Pixels from the top.
    pub y: i16,
    /// Direction in 256 steps of a turn, counter-clockwise as seen, 0 to the right.
    pub direction: u8,
    /// Kind. For minutiae, 0 is other, 1 a ridge ending and 2 a bifurcation. For photographs, the
    /// extractor defines it.
    pub kind: u8,
}

/// The points of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// Width of the image in pixels, 0 if unknown.
    pub width: u16,
    /// Height of the image in pixels, 0 if unknown.
    pub height: u16,
    /// Vertices, at most [`VERTICES_MAX`]. Further ones are neither encoded nor matched.
    pub vertices: Vec<Vertex>,
    /// Empty, or one per vertex.
    pub descriptors: Vec<[u8; DESCRIPTOR_BYTES]>,
}

impl Graph {
    /// Returns true if each vertex has a descriptor.
    #[must_use]
    pub fn described(&self) -> bool {
        !self.vertices.is_empty() && self.descriptors.len() == self.vertices.len()
    }

    /// Appends the record: 8 bytes, 6 per vertex, 32 per descriptor, little-endian.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let vertices = self.vertices.get(..VERTICES_MAX).unwrap_or(&self.vertices);
        out.push(VERSION);
        out.push(if self.described() { DESCRIBED } else { 0 });
        out.extend((vertices.len() as u16).to_le_bytes());
        out.extend(self.width.to_le_bytes());
        out.extend(self.height.to_le_bytes());
        for vertex in vertices {
            out.extend(vertex.x.to_le_bytes());
            out.extend(vertex.y.to_le_bytes());
            out.push(vertex.direction);
            out.push(vertex.kind);
        }
        if self.described() {
            for descriptor in self.descriptors.iter().take(vertices.len()) {
                out.extend(descriptor);
            }
        }
    }

    /// Reads the graph of a record.
    ///
    /// # Errors
    /// `DataLoss` if the bytes are not a whole record of a known version.
    pub fn decode(record: &[u8]) -> Result<Graph> {
        let view = GraphView::open(record)?;
        Ok(Graph {
            width: view.width,
            height: view.height,
            vertices: view.vertices().collect(),
            descriptors: view.descriptors.to_vec(),
        })
    }
}

/// A checked record, read in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphView<'a> {
    width: u16,
    height: u16,
    points: &'a [[u8; VERTEX_BYTES]],
    /// Empty, or one per vertex.
    pub(crate) descriptors: &'a [[u8; DESCRIPTOR_BYTES]],
}

impl<'a> GraphView<'a> {
    /// Checks the version, and that the length is exactly the announced one.
    pub(crate) fn open(record: &'a [u8]) -> Result<GraphView<'a>> {
        let Some((&[version, flags, n0, n1, w0, w1, h0, h1], body)) =
            record.split_first_chunk::<HEADER_BYTES>()
        else {
            return Err(Error::data_loss(format!(
                "a graph record of {} bytes has no header",
                record.len()
            )));
        };
        if version != VERSION || flags & !DESCRIBED != 0 {
            return Err(Error::data_loss(format!(
                "a graph record of version {version} with flags {flags:#04x}: this program knows version {VERSION}"
            )));
        }
        let count = usize::from(u16::from_le_bytes([n0, n1]));
        let described = if flags & DESCRIBED != 0 { DESCRIPTOR_BYTES } else { 0 };
        if count > VERTICES_MAX || body.len() != count * (VERTEX_BYTES + described) {
            return Err(Error::data_loss(format!(
                "a graph record of {} bytes cannot hold {count} vertices",
                record.len()
            )));
        }
        let (points, descriptors) = body.split_at(count * VERTEX_BYTES);
        Ok(GraphView {
            width: u16::from_le_bytes([w0, w1]),
            height: u16::from_le_bytes([h0, h1]),
            points: points.as_chunks().0,
            descriptors: descriptors.as_chunks().0,
        })
    }

    pub(crate) fn vertices(&self) -> impl Iterator<Item = Vertex> + 'a {
        self.points.iter().map(|&[x0, x1, y0, y1, direction, kind]| Vertex {
            x: i16::from_le_bytes([x0, x1]),
            y: i16::from_le_bytes([y0, y1]),
            direction,
            kind,
        })
    }
}
