//! Walks over protobuf in a file.
//!
//! Every length is compared with that of the enclosing message before it is used. So a damaged file
//! causes an error that names the byte, never excessive memory or an endless loop.

use std::ops::Range;
use std::path::Path;

use base::{Error, Result};

use super::encode::{WIRE_BYTES, WIRE_FIXED32, WIRE_FIXED64, WIRE_VARINT};
use super::source::WindowedFile;

/// Protobuf's largest field number.
const FIELD_MAX: u64 = (1 << 29) - 1;
/// Bytes of the longest varint.
const VARINT_BYTES_MAX: u32 = 10;

/// A varint that was read from a file.
pub(super) struct Varint {
    pub(super) value: u64,
    /// Position of the byte after it.
    pub(super) end: u64,
}

/// One field of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WireField {
    /// Number in the schema.
    pub(super) number: u32,
    /// Wire type.
    pub(super) wire: u8,
    /// Range of the whole field with its key.
    pub(super) whole: Range<u64>,
    /// Range of its payload.
    pub(super) payload: Range<u64>,
    /// Value of a field of the wire type varint, otherwise 0.
    pub(super) varint: u64,
}

impl WireField {
    /// Returns true for the field `number` in the wire type `wire`. A field of another type than
    /// the schema's counts as unknown, as in protobuf.
    pub(super) fn is(&self, number: u32, wire: u8) -> bool {
        self.number == number && self.wire == wire
    }
}

/// A file read as protobuf.
pub(super) struct Walker {
    file: WindowedFile,
}

impl Walker {
    /// Opens `path` with a window of `window_bytes`.
    ///
    /// # Errors
    /// `DataLoss` for an empty file and for a known format that is not ONNX, with its name; the
    /// errors of opening the file.
    pub(super) fn open(path: &Path, window_bytes: usize, direct: bool) -> Result<Walker> {
        if let Some(other) = engine::foreign::identify(path) {
            return Err(Error::data_loss(format!("{} is {other}", path.display())));
        }
        Ok(Walker { file: WindowedFile::open(path, window_bytes, direct)? })
    }

    pub(super) fn file(&mut self) -> &mut WindowedFile {
        &mut self.file
    }

    /// Returns the range of the whole file.
    pub(super) fn whole(&self) -> Range<u64> {
        0..self.file.length()
    }

    /// Returns an error about position `at`.
    pub(super) fn damaged(&self, at: u64, what: impl std::fmt::Display) -> Error {
        let path = self.file.path().display();
        Error::data_loss(format!(
            "{path}: no ONNX model, or a damaged one: byte {at}: {what}; export or copy the file again"
        ))
    }

    /// Reads the field at `at` of a message that ends at `end`.
    pub(super) fn field(&mut self, at: u64, end: u64) -> Result<WireField> {
        let Varint { value: key, end: after } = self.varint(at, end)?;
        let number = key >> 3;
        let wire = (key & 7) as u8;
        if number == 0 || number > FIELD_MAX {
            return Err(self.damaged(at, format_args!("no protobuf field has the number {number}")));
        }
        let mut varint = 0;
        let payload = match wire {
            WIRE_VARINT => {
                let read = self.varint(after, end)?;
                varint = read.value;
                after..read.end
            }
            WIRE_FIXED64 => self.take(after, 8, end)?,
            WIRE_FIXED32 => self.take(after, 4, end)?,
            WIRE_BYTES => {
                let length = self.varint(after, end)?;
                self.take(length.end, length.value, end)?
            }
            _ => {
                return Err(
                    self.damaged(at, format_args!("wire type {wire}, which ONNX does not use"))
                );
            }
        };
        Ok(WireField { number: number as u32, wire, whole: at..payload.end, payload, varint })
    }

    /// Reads the varint at `at` of a message that ends at `end`.
    pub(super) fn varint(&mut self, at: u64, end: u64) -> Result<Varint> {
        let mut value = 0u64;
        let mut position = at;
        let mut shift = 0;
        while shift < 7 * VARINT_BYTES_MAX {
            if position >= end {
                return Err(self.damaged(at, "a number runs over the end of its message"));
            }
            let byte = self.file.peek(position)?[0];
            position += 1;
            // The tenth byte holds one bit; protobuf drops the others.
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(Varint { value, end: position });
            }
            shift += 7;
        }
        Err(self.damaged(at, "a number of more than ten bytes"))
    }

    /// Reads a short payload.
    pub(super) fn bytes(&mut self, range: Range<u64>, bytes_max: u64) -> Result<Vec<u8>> {
        let length = range.end - range.start;
        if length > bytes_max {
            return Err(self.damaged(
                range.start,
                format_args!("{length} bytes, but at most {bytes_max} are possible"),
            ));
        }
        let mut bytes = Vec::with_capacity(length as usize);
        self.file.stream(range, &mut |slice| {
            bytes.extend_from_slice(slice);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Returns the range of `length` bytes from `start` on.
    ///
    /// # Errors
    /// `DataLoss` if it exceeds `end`.
    fn take(&self, start: u64, length: u64, end: u64) -> Result<Range<u64>> {
        match start.checked_add(length) {
            Some(stop) if stop <= end => Ok(start..stop),
            _ => Err(self.damaged(
                start,
                format_args!(
                    "{length} bytes announced, {} left in the message",
                    end.saturating_sub(start)
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::encode;
    use base::ErrorKind;

    fn walker(bytes: &[u8]) -> (tempfile::TempDir, Walker) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        let walker = Walker::open(&path, 4096, false).unwrap();
        (dir, walker)
    }

    #[test]
    fn fields_are_read_as_written() {
        let mut bytes = Vec::new();
        encode::int(&mut bytes, 3, -2);
        encode::bytes(&mut bytes, 9, b"raw");
        encode::float(&mut bytes, 2, 1.5);
        let (_dir, mut walker) = walker(&bytes);
        let end = walker.whole().end;
        let first = walker.field(0, end).unwrap();
        assert!(first.is(3, WIRE_VARINT) && first.varint as i64 == -2);
        let second = walker.field(first.whole.end, end).unwrap();
        assert!(second.is(9, WIRE_BYTES));
        assert_eq!(walker.bytes(second.payload.clone(), 3).unwrap(), b"raw");
        assert!(walker.bytes(second.payload, 2).is_err());
        let third = walker.field(second.whole.end, end).unwrap();
        assert!(third.is(2, WIRE_FIXED32) && third.whole.end == end);
    }

    #[test]
    fn damage_names_its_byte() {
        for (bytes, at) in [
            (&[0x0a, 5, 1][..], 2),    // longer than the rest
            (&[0x80; 12][..], 0),      // never ends
            (&[0x08][..], 1),          // no value
            (&[0x00, 1][..], 0),       // field 0
            (&[0x0b, 0x0c][..], 0),    // a group
            (&[0x0d, 1, 2, 3][..], 1), // three of four bytes
            (&[0x0a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1][..], 11), // length of 2^64 - 1
        ] {
            let (_dir, mut walker) = walker(bytes);
            let error = walker.field(0, bytes.len() as u64).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DataLoss);
            assert!(error.message().contains(&format!("byte {at}:")), "{error}");
        }
    }
}
