//! Fields that the template formats share, read and written.

use std::ops::RangeInclusive;

use base::{Error, Result};

use super::{StatedPrint, TemplateView};
use crate::graph::{Graph, VERTICES_MAX, Vertex};

/// 500 dots per inch in pixels per centimetre, as the standards round it. It is the resolution of
/// fingerprint graphs.
pub(crate) const PER_CENTIMETRE: u32 = 197;
/// Coordinates have 14 bits.
pub(crate) const COORDINATE_MAX: i32 = 0x3FFF;
/// Maximum minutiae of a view. The count is a byte.
pub(crate) const MINUTIAE_MAX: usize = 255;
/// Bytes of a minutia with its quality.
pub(crate) const MINUTIA_BYTES: u32 = 6;

/// Returns the quality that a byte states. 0 and values above 100 state none, because many programs
/// write 0 if they do not measure the quality.
pub(crate) fn stated_quality(byte: u8) -> Option<u8> {
    (1..=100).contains(&byte).then_some(byte)
}

/// Returns the finger that a byte states. 0 states none, and 13 to 15 several fingers.
pub(crate) fn stated_finger(byte: u8) -> Option<u8> {
    (1..=10).contains(&byte).then_some(byte)
}

impl StatedPrint {
    /// Returns the byte of the finger: 0 if it is unknown.
    pub(crate) fn finger_byte(self) -> u8 {
        self.finger.and_then(stated_finger).unwrap_or(0)
    }

    /// Returns the byte of the quality: 0 if it is unknown.
    pub(crate) fn quality_byte(self) -> u8 {
        self.quality.and_then(stated_quality).unwrap_or(0)
    }
}

/// Reader of a template's fields, in order. Numbers are big-endian.
pub(crate) struct Fields<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
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

    /// Reads one byte.
    pub(crate) fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    /// Reads a number of up to four bytes.
    pub(crate) fn number(&mut self, bytes: usize) -> Result<u32> {
        Ok(self.take(bytes)?.iter().fold(0, |number, &byte| number << 8 | u32::from(byte)))
    }

    /// Checks that the announced length equals the length of the bytes.
    pub(crate) fn check_length(&self, length: u32) -> Result<()> {
        if length as usize == self.bytes.len() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a template of {} bytes announces {length}: it was truncated or extended",
            self.bytes.len()
        )))
    }

    /// Checks that no bytes follow.
    pub(crate) fn end(&self) -> Result<()> {
        if self.at == self.bytes.len() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a template has {} bytes after its last view",
            self.bytes.len() - self.at
        )))
    }

    /// Reads the resolution across and down.
    pub(crate) fn resolution(&mut self) -> Result<Resolution> {
        let (across, down) = (self.number(2)?, self.number(2)?);
        if across == 0 || down == 0 {
            return Err(Error::invalid(
                "a template's resolution is 0: it must be in pixels per centimetre",
            ));
        }
        Ok(Resolution { across, down })
    }

    /// Reads `count` minutiae of `minutia_bytes` bytes with angles of `steps` a turn. A minutia has
    /// [`MINUTIA_BYTES`], or one less without a quality.
    pub(crate) fn minutiae(
        &mut self,
        count: u32,
        minutia_bytes: u32,
        steps: u32,
        resolution: Resolution,
    ) -> Result<Vec<Vertex>> {
        let mut vertices = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let (x, y) = (self.number(2)?, self.number(2)?);
            let direction = self.number(1)?;
            if minutia_bytes == MINUTIA_BYTES {
                let _quality = self.number(1)?;
            }
            vertices.push(Vertex {
                x: scaled(x & COORDINATE_MAX as u32, resolution.across).min(i16::MAX as u32) as i16,
                y: scaled(y & COORDINATE_MAX as u32, resolution.down).min(i16::MAX as u32) as i16,
                direction: ((direction * 256 + steps / 2) / steps) as u8,
                kind: kind(x >> 14),
            });
        }
        Ok(vertices)
    }

    /// Skips the extended data of a view.
    pub(crate) fn skip_extended(&mut self) -> Result<()> {
        let extended = self.number(2)?;
        self.take(extended as usize).map(|_| ())
    }

    /// Reads the rest of a template that states one size and one resolution. It has these, the
    /// number of views, a byte of zero, and the views. Angles have `steps` in a turn.
    pub(crate) fn views_of_one_size(mut self, steps: u32) -> Result<Vec<TemplateView>> {
        let (width, height) = (self.number(2)?, self.number(2)?);
        let resolution = self.resolution()?;
        let views = self.number(1)?;
        let _zero = self.number(1)?;
        let mut found = Vec::new();
        for _ in 0..views {
            let start = self.at;
            let finger = stated_finger(self.byte()?);
            let _impression = self.number(1)?;
            let quality = stated_quality(self.byte()?);
            let count = self.number(1)?;
            let vertices = self.minutiae(count, MINUTIA_BYTES, steps, resolution)?;
            self.skip_extended()?;
            let graph = resolution.graph(width, height, vertices);
            found.push(TemplateView { graph, quality, finger, bytes: start..self.at });
        }
        self.end()?;
        Ok(found)
    }
}

/// Resolution in pixels per centimetre.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolution {
    across: u32,
    down: u32,
}

impl Resolution {
    /// Returns a graph of an image of this size.
    pub(crate) fn graph(self, width: u32, height: u32, vertices: Vec<Vertex>) -> Graph {
        let side = |pixels, resolution| scaled(pixels, resolution).min(0xFFFF) as u16;
        Graph {
            width: side(width, self.across),
            height: side(height, self.down),
            vertices,
            descriptors: Vec::new(),
        }
    }
}

/// Returns the kind of a minutia by its two bits. The formats reserve 3, which is read as "other",
/// because a graph with the kind 3 cannot be written as a template.
fn kind(bits: u32) -> u8 {
    match bits {
        1 => 1,
        2 => 2,
        _ => 0,
    }
}

/// Converts `pixels` at `resolution` pixels per centimetre to 500 dots per inch.
fn scaled(pixels: u32, resolution: u32) -> u32 {
    if resolution == PER_CENTIMETRE {
        pixels
    } else {
        (pixels * PER_CENTIMETRE + resolution / 2) / resolution
    }
}

/// Checks that the formats of ISO and ANSI can hold a graph.
///
/// # Errors
/// `InvalidArgument` for descriptors, more than 255 vertices, coordinates outside 0 to 16383, or a
/// kind above 2.
pub(crate) fn check(graph: &Graph) -> Result<()> {
    check_vertices(graph, MINUTIAE_MAX, &(0..=COORDINATE_MAX))
}

/// Checks that a format can hold a graph, if the format holds `minutiae_max` minutiae with
/// coordinates in the range `coordinates`.
///
/// # Errors
/// `InvalidArgument` for descriptors, more vertices, other coordinates, or a kind above 2.
pub(super) fn check_vertices(
    graph: &Graph,
    minutiae_max: usize,
    coordinates: &RangeInclusive<i32>,
) -> Result<()> {
    let count = graph.vertices.len();
    if count > minutiae_max || !graph.descriptors.is_empty() {
        return Err(Error::invalid(format!(
            "a template holds up to {minutiae_max} minutiae and no descriptors; this graph has {count} vertices and {} descriptors",
            graph.descriptors.len()
        )));
    }
    let within = |at: i16| coordinates.contains(&i32::from(at));
    let is_foreign = |vertex: &&Vertex| !within(vertex.x) || !within(vertex.y) || vertex.kind > 2;
    graph.vertices.iter().find(is_foreign).map_or(Ok(()), |vertex| {
        Err(Error::invalid(format!(
            "a template cannot hold a vertex of kind {} at ({}, {})",
            vertex.kind, vertex.x, vertex.y
        )))
    })
}

/// Appends the minutiae, six bytes each, with angles of `steps` a turn.
pub(crate) fn put_minutiae(graph: &Graph, steps: u32, out: &mut Vec<u8>) {
    for vertex in &graph.vertices {
        out.extend((u16::from(vertex.kind) << 14 | vertex.x as u16).to_be_bytes());
        out.extend((vertex.y as u16).to_be_bytes());
        let direction = (u32::from(vertex.direction) * steps + 128) / 256 % steps;
        out.extend([direction as u8, 0]);
    }
}

/// Appends the size of the image and the resolution.
pub(crate) fn put_size(graph: &Graph, out: &mut Vec<u8>) {
    out.extend(graph.width.to_be_bytes());
    out.extend(graph.height.to_be_bytes());
    put_resolution(out);
}

/// Appends 500 dots per inch, across and down.
pub(crate) fn put_resolution(out: &mut Vec<u8>) {
    out.extend((PER_CENTIMETRE as u16).to_be_bytes());
    out.extend((PER_CENTIMETRE as u16).to_be_bytes());
}

const _: () = assert!(MINUTIAE_MAX <= VERTICES_MAX);
