//! WSQ, the wavelet format of fingerprint images: FBI specification IAFIS-IC-0110, version 3.1.
//!
//! The image is split into 64 subbands by a two-channel filter bank, each subband is quantised, and
//! the indices are Huffman-coded in blocks. Decoding undoes this in the reverse order. Filters,
//! quantiser and codes come from the file.
//!
//! Sums are single-precision floats, as in NIST's decoder. A pixel may differ from that decoder by
//! one level, because the order of the sums is another one.

mod coefficients;
mod filter;
mod huffman;
mod stream;
mod synthesis;
mod tables;
mod tree;

use base::{Error, Result};
use image::{DynamicImage, GrayImage};

use crate::Header;
use crate::limits::Announced;
use coefficients::Coefficients;
use filter::FilterBank;
use huffman::{HuffmanTable, TABLES_MAX};
use stream::{Stream, marker};
use tables::{Quantizer, WsqFrame};
use tree::SubbandTree;

/// Maximum segments before the first block that are read for the resolution.
const SEGMENTS_MAX: usize = 256;
/// Bytes per pixel of the plane of coefficients and of the plane between two filter passes.
const PLANE_BYTES: u64 = 8;

/// Reads the size from the frame header.
///
/// # Errors
/// `InvalidArgument` if the file ends before it or has none.
pub(crate) fn announced(bytes: &[u8]) -> Result<Announced> {
    let mut stream = Stream::open(bytes)?;
    loop {
        let segment = stream.segment()?;
        match segment.marker {
            marker::START_OF_FRAME => {
                let WsqFrame { width, height, .. } = WsqFrame::parse(segment.body)?;
                let pixels = u64::from(width) * u64::from(height);
                return Ok(Announced {
                    width: width.into(),
                    height: height.into(),
                    depth_bytes: 1,
                    beside_bytes: PLANE_BYTES * pixels,
                });
            }
            marker::START_OF_BLOCK | marker::END_OF_IMAGE => {
                return Err(damaged("it has no frame header"));
            }
            _ => {}
        }
    }
}

/// Returns the resolution in NIST's comment ("PPI 500"), or `None` without one.
pub(crate) fn dots_per_inch(bytes: &[u8]) -> Option<f32> {
    let mut stream = Stream::open(bytes).ok()?;
    for _ in 0..SEGMENTS_MAX {
        let segment = stream.segment().ok()?;
        match segment.marker {
            marker::COMMENT if segment.body.starts_with(b"NIST_COM") => {
                return comment_value(segment.body, "PPI");
            }
            marker::START_OF_BLOCK | marker::END_OF_IMAGE => return None,
            _ => {}
        }
    }
    None
}

/// Returns a number of NIST's comment. Each line has a name and a value.
fn comment_value(comment: &[u8], name: &str) -> Option<f32> {
    let mut lines = comment.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    lines.find_map(|line| {
        let value = line.strip_prefix(name.as_bytes())?.strip_prefix(b" ")?;
        str::from_utf8(value).ok()?.trim().parse().ok()
    })
}

/// Decodes the image.
///
/// # Errors
/// `InvalidArgument` if the file is damaged or ends early.
pub(crate) fn decode(header: &Header, bytes: &[u8]) -> Result<DynamicImage> {
    let mut decoder = WsqDecoder::default();
    let mut stream = Stream::open(bytes)?;
    while decoder.step(&mut stream, header)? {}
    let (frame, filters, coefficients) = decoder.finish()?;
    let tree = SubbandTree::of(frame.width.into(), frame.height.into());
    let plane = synthesis::image(coefficients.finish()?, &tree, &filters);
    let level = |value: f32| (value * frame.scale + frame.shift + 0.5) as u8;
    let pixels = plane.iter().map(|&value| level(value)).collect();
    GrayImage::from_raw(frame.width.into(), frame.height.into(), pixels)
        .map(DynamicImage::ImageLuma8)
        .ok_or_else(|| damaged("rows are missing"))
}

/// Tables read so far, and the coefficients once the first block begins.
#[derive(Default)]
struct WsqDecoder {
    frame: Option<WsqFrame>,
    filters: Option<FilterBank>,
    quantizer: Option<Quantizer>,
    tables: [Option<HuffmanTable>; TABLES_MAX],
    coefficients: Option<Coefficients>,
}

impl WsqDecoder {
    /// Reads one segment, or a block with its data. Returns false at the end of the image.
    fn step(&mut self, stream: &mut Stream, header: &Header) -> Result<bool> {
        let segment = stream.segment()?;
        match segment.marker {
            marker::START_OF_FRAME => {
                let frame = WsqFrame::parse(segment.body)?;
                let announced = (u32::from(frame.width), u32::from(frame.height));
                if self.frame.is_some() || announced != (header.width, header.height) {
                    return Err(damaged("it has two frame headers"));
                }
                self.frame = Some(frame);
            }
            marker::TRANSFORM => self.filters = Some(FilterBank::parse(segment.body)?),
            marker::QUANTIZATION => {
                let quantizer = Quantizer::parse(segment.body)?;
                let changed = self.quantizer.as_ref().is_some_and(|old| *old != quantizer);
                if changed && self.coefficients.is_some() {
                    return Err(damaged("its quantisation changes between blocks"));
                }
                self.quantizer = Some(quantizer);
            }
            marker::HUFFMAN => HuffmanTable::parse(segment.body, &mut self.tables)?,
            marker::START_OF_BLOCK => self.block(stream, segment.body)?,
            marker::END_OF_IMAGE => return Ok(false),
            marker::COMMENT | marker::RESTART_INTERVAL => {}
            other => return Err(damaged(&format!("the marker ff{other:02x} is unknown"))),
        }
        Ok(true)
    }

    /// Decodes a block of coefficients. The first block creates the plane.
    fn block(&mut self, stream: &mut Stream, head: &[u8]) -> Result<()> {
        let table = head.first().and_then(|&id| self.tables.get(usize::from(id))?.as_ref());
        let table = table.ok_or_else(|| damaged("a block has no Huffman table"))?;
        let coefficients = match &mut self.coefficients {
            Some(coefficients) => coefficients,
            none => {
                let frame = self.frame.as_ref().ok_or_else(|| damaged("it has no frame header"))?;
                let quantizer = self.quantizer.as_ref();
                let quantizer = quantizer.ok_or_else(|| damaged("it has no quantisation table"))?;
                let tree = SubbandTree::of(frame.width.into(), frame.height.into());
                none.insert(Coefficients::new(&tree, quantizer))
            }
        };
        huffman::block(stream, table, coefficients)
    }

    fn finish(self) -> Result<(WsqFrame, FilterBank, Coefficients)> {
        let frame = self.frame.ok_or_else(|| damaged("it has no frame header"))?;
        let filters = self.filters.ok_or_else(|| damaged("it has no transform table"))?;
        let coefficients = self.coefficients.ok_or_else(|| damaged("it has no blocks"))?;
        Ok((frame, filters, coefficients))
    }
}

fn damaged(what: &str) -> Error {
    Error::invalid(format!("this wsq image is damaged: {what}"))
}

fn truncated() -> Error {
    Error::invalid("this wsq image ends early: the file is truncated; send all of it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolution_of_a_comment() {
        let comment = b"NIST_COM 3\nPIX_WIDTH 30\nPPI 500\nLOSSY 1\n";
        assert_eq!(comment_value(comment, "PPI"), Some(500.0));
        assert_eq!(comment_value(b"NIST_COM 1\nPPI -1", "PPI"), Some(-1.0));
        assert_eq!(comment_value(b"NIST_COM 1\nPPIX 4\nPPI x", "PPI"), None);
    }
}
