//! Templates of `SourceAFIS` 3: CBOR (RFC 8949), a map of `version`, `width`, `height`,
//! `positionsX`, `positionsY`, `directions` and `types`.
//!
//! Directions are radians, clockwise as seen. A type is "E" (ending) or "B" (bifurcation). Only the
//! parts of CBOR that such a map can have are read: numbers, texts, arrays and maps, of known and
//! of indefinite length.

use std::f32::consts::TAU;

use base::{Error, Result};

use super::fields::check_vertices;
use crate::graph::{Graph, VERTICES_MAX, Vertex};

/// Version that written templates state: the last version with this format.
const VERSION: &str = "3.18.1-java";
/// Maximum nested arrays and maps of a field that is skipped.
const DEPTH_MAX: u32 = 8;
/// Largest coordinate that `SourceAFIS` accepts. The smallest is its negative.
const POSITION_MAX: i32 = 10_000;

/// Returns true if the bytes begin as a map.
pub(super) fn is_map(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| first >> 5 == MAP)
}

/// Returns true if a file with these first bytes is a map whose first key is "version", as
/// `SourceAFIS` writes it.
pub(super) fn has_magic(head: &[u8]) -> bool {
    is_map(head) && head.get(1..).is_some_and(|rest| rest.starts_with(b"\x67version"))
}

// Major types of CBOR (RFC 8949, section 3.1).
const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;
const TAG: u8 = 6;
const OTHER: u8 = 7;
/// Byte after a text, an array or a map of indefinite length.
const BREAK: u8 = 0xFF;

/// First byte of an item, and its number: a value or a count. `None` for an indefinite count.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CborHead {
    major: u8,
    minor: u8,
    number: Option<u64>,
}

/// Reader of CBOR items.
struct CborReader<'a> {
    rest: &'a [u8],
}

impl<'a> CborReader<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8]> {
        let split = usize::try_from(count).ok().and_then(|at| self.rest.split_at_checked(at));
        let (taken, rest) = split.ok_or_else(|| malformed("it ends in the middle of a value"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads the head of the next item.
    fn head(&mut self) -> Result<CborHead> {
        let first = self.take(1)?[0];
        let major = first >> 5;
        let minor = first & 31;
        let number = match minor {
            0..24 => Some(u64::from(minor)),
            24..28 => {
                let bytes = self.take(1 << (minor - 24))?;
                Some(bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
            }
            31 => None,
            _ => return Err(malformed("it has a reserved CBOR value")),
        };
        Ok(CborHead { major, minor, number })
    }

    /// Skips the end of an indefinite list. Returns true if it was there.
    fn ended(&mut self) -> bool {
        let ended = self.rest.first() == Some(&BREAK);
        if ended {
            self.rest = &self.rest[1..];
        }
        ended
    }

    /// Calls `each` for every entry of a list with this head.
    fn entries(
        &mut self,
        head: CborHead,
        mut each: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        match head.number {
            Some(count) => (0..count).try_for_each(|_| each(self)),
            None => {
                while !self.ended() {
                    each(self)?;
                }
                Ok(())
            }
        }
    }

    /// Reads a text of definite or indefinite length.
    fn text(&mut self) -> Result<String> {
        let head = self.head()?;
        if head.major != TEXT {
            return Err(malformed("a text is missing"));
        }
        let mut text = Vec::new();
        match head.number {
            Some(count) => text.extend(self.take(count)?),
            None => {
                while !self.ended() {
                    let part = self.head()?;
                    let count = part.number.filter(|_| part.major == TEXT);
                    text.extend(self.take(count.ok_or_else(|| malformed("a text is broken"))?)?);
                }
            }
        }
        String::from_utf8(text)
            .map_err(|error| malformed("a text is not UTF-8").with_source(error.utf8_error()))
    }

    fn number(&mut self) -> Result<f64> {
        let head = self.head()?;
        match (head.major, head.minor, head.number) {
            (UNSIGNED, _, Some(number)) => Ok(number as f64),
            (NEGATIVE, _, Some(number)) => Ok(-1.0 - number as f64),
            (OTHER, 25, Some(bits)) => Ok(half(bits as u16)),
            (OTHER, 26, Some(bits)) => Ok(f64::from(f32::from_bits(bits as u32))),
            (OTHER, 27, Some(bits)) => Ok(f64::from_bits(bits)),
            _ => Err(malformed("a number is missing")),
        }
    }

    /// Reads an array of numbers.
    fn numbers(&mut self) -> Result<Vec<f64>> {
        let head = self.head()?;
        if head.major != ARRAY {
            return Err(malformed("an array is missing"));
        }
        let mut numbers = Vec::new();
        self.entries(head, |input| {
            numbers.push(input.number()?);
            if numbers.len() > VERTICES_MAX {
                return Err(malformed("it has more than 256 minutiae"));
            }
            Ok(())
        })?;
        Ok(numbers)
    }

    /// Skips a value of any type. `depth` is the maximum number of values inside each other.
    fn skip(&mut self, depth: u32) -> Result<()> {
        if depth == 0 {
            return Err(malformed("its values are nested too deeply"));
        }
        let head = self.head()?;
        match head.major {
            ARRAY => self.entries(head, |input| input.skip(depth - 1)),
            MAP => self.entries(head, |input| {
                input.skip(depth - 1)?;
                input.skip(depth - 1)
            }),
            BYTES | TEXT => match head.number {
                Some(count) => self.take(count).map(|_| ()),
                None => self.entries(head, |input| input.skip(depth - 1)),
            },
            TAG => self.skip(depth - 1),
            _ if head.number.is_none() => Err(malformed("a list ends too often")),
            _ => Ok(()),
        }
    }
}

/// Returns the number that the bits of a float of 16 bits stand for. Encoders that write the
/// shortest form use such floats (RFC 8949, section 4.1).
fn half(bits: u16) -> f64 {
    let fraction = f64::from(bits & 0x3FF);
    let magnitude = match bits >> 10 & 31 {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * 2_f64.powi(i32::from(exponent) - 25),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

fn malformed(what: &str) -> Error {
    Error::invalid(format!("not a template of SourceAFIS: {what}"))
}

/// Fields of a template.
#[derive(Default)]
struct StoredTemplate {
    width: f64,
    height: f64,
    x: Vec<f64>,
    y: Vec<f64>,
    directions: Vec<f64>,
    types: String,
}

/// Reads a template of SourceAFIS, which is a CBOR map.
pub(super) fn read(bytes: &[u8]) -> Result<Graph> {
    let mut input = CborReader { rest: bytes };
    let head = input.head()?;
    if head.major != MAP {
        return Err(malformed("it is not a map"));
    }
    let mut stored = StoredTemplate::default();
    input.entries(head, |input| {
        match input.text()?.as_str() {
            "width" => stored.width = input.number()?,
            "height" => stored.height = input.number()?,
            "positionsX" => stored.x = input.numbers()?,
            "positionsY" => stored.y = input.numbers()?,
            "directions" => stored.directions = input.numbers()?,
            "types" => stored.types = input.text()?,
            _ => input.skip(DEPTH_MAX)?,
        }
        Ok(())
    })?;
    if !input.rest.is_empty() {
        return Err(malformed("bytes follow it"));
    }
    stored.graph()
}

impl StoredTemplate {
    /// Returns the graph of the stored minutiae.
    fn graph(&self) -> Result<Graph> {
        let count = self.types.len();
        if [self.x.len(), self.y.len(), self.directions.len()] != [count; 3] {
            return Err(malformed("its positions, directions and types differ in number"));
        }
        let points = self.x.iter().zip(&self.y).zip(self.directions.iter().zip(self.types.bytes()));
        let vertices = points.map(|((&x, &y), (&direction, kind))| vertex(x, y, direction, kind));
        let side = |pixels: f64| pixels.clamp(0.0, f64::from(u16::MAX)) as u16;
        Ok(Graph {
            width: side(self.width),
            height: side(self.height),
            vertices: vertices.collect::<Result<_>>()?,
            descriptors: Vec::new(),
        })
    }
}

/// Converts a minutia of a template. `direction` is in radians, clockwise. `kind` is `E` (ending)
/// or `B` (bifurcation).
fn vertex(x: f64, y: f64, direction: f64, kind: u8) -> Result<Vertex> {
    let max = f64::from(POSITION_MAX);
    if !(x.abs() <= max && y.abs() <= max) {
        return Err(malformed("a position is out of range"));
    }
    if !(0.0..std::f64::consts::TAU).contains(&direction) {
        return Err(malformed("a direction is out of range"));
    }
    // Clockwise to counter-clockwise.
    let steps = (256.0 - direction / std::f64::consts::TAU * 256.0).round() as u16;
    let kind = match kind {
        b'E' => 1,
        b'B' => 2,
        _ => return Err(malformed("a type is neither E nor B")),
    };
    Ok(Vertex { x: x as i16, y: y as i16, direction: (steps % 256) as u8, kind })
}

/// Writes the template of one graph as a CBOR map.
pub(super) fn write(graph: &Graph) -> Result<Vec<u8>> {
    check_vertices(graph, VERTICES_MAX, &(-POSITION_MAX..=POSITION_MAX))?;
    let mut out = Vec::new();
    head(MAP, 7, &mut out);
    text("version", &mut out);
    text(VERSION, &mut out);
    text("width", &mut out);
    head(UNSIGNED, usize::from(graph.width), &mut out);
    text("height", &mut out);
    head(UNSIGNED, usize::from(graph.height), &mut out);
    let count = graph.vertices.len();
    for (name, of) in [
        ("positionsX", (|vertex: &Vertex| vertex.x) as fn(&Vertex) -> i16),
        ("positionsY", |vertex: &Vertex| vertex.y),
    ] {
        text(name, &mut out);
        head(ARRAY, count, &mut out);
        graph.vertices.iter().for_each(|vertex| integer(of(vertex), &mut out));
    }
    text("directions", &mut out);
    head(ARRAY, count, &mut out);
    for vertex in &graph.vertices {
        let clockwise = vertex.direction.wrapping_neg();
        out.push(OTHER << 5 | 26);
        out.extend((f32::from(clockwise) / 256.0 * TAU).to_be_bytes());
    }
    text("types", &mut out);
    let types = graph.vertices.iter().map(|vertex| if vertex.kind == 2 { 'B' } else { 'E' });
    text(&types.collect::<String>(), &mut out);
    Ok(out)
}

fn text(text: &str, out: &mut Vec<u8>) {
    head(TEXT, text.len(), out);
    out.extend(text.as_bytes());
}

/// Appends a whole number. CBOR stores a negative number `n` as `-1 - n`.
fn integer(number: i16, out: &mut Vec<u8>) {
    let magnitude = usize::from(number.unsigned_abs());
    if number < 0 { head(NEGATIVE, magnitude - 1, out) } else { head(UNSIGNED, magnitude, out) }
}

/// Appends a type and its number in the shortest form, as RFC 8949 prefers. Numbers are below
/// 65536.
fn head(major: u8, number: usize, out: &mut Vec<u8>) {
    let major = major << 5;
    match number {
        0..24 => out.push(major | number as u8),
        24..256 => out.extend([major | 24, number as u8]),
        _ => {
            out.push(major | 25);
            out.extend((number as u16).to_be_bytes());
        }
    }
}

const _: () = assert!(VERTICES_MAX < 65_536);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_any_length() {
        let number = |bytes: &[u8]| CborReader { rest: bytes }.number().unwrap();
        // RFC 8949, appendix A.
        for (bytes, value) in [
            (&[0xF9, 0x00, 0x00][..], 0.0),
            (&[0xF9, 0x3C, 0x00], 1.0),
            (&[0xF9, 0x3E, 0x00], 1.5),
            (&[0xF9, 0x7B, 0xFF], 65_504.0),
            (&[0xF9, 0x00, 0x01], 5.960_464_477_539_063e-8),
            (&[0xF9, 0xC4, 0x00], -4.0),
            (&[0xF9, 0x7C, 0x00], f64::INFINITY),
            (&[0xFA, 0x47, 0xC3, 0x50, 0x00], 100_000.0),
            (&[0x19, 0x03, 0xE8], 1000.0),
        ] {
            assert_eq!(number(bytes), value, "{bytes:?}");
        }
        assert!(number(&[0xF9, 0x7E, 0x00]).is_nan());
    }
}
