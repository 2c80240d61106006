//! The records of an ANSI/NIST-ITL file, and the fields of a record.

use base::Result;

use super::{damaged, truncated};
use crate::bytes::be32;

/// Byte after a record.
pub(super) const RECORD_END: u8 = 0x1c;
/// Byte between two fields of a record.
const FIELD_END: u8 = 0x1d;
/// Byte between two subfields of a field.
const SUBFIELD_END: u8 = 0x1e;
/// Byte between two items of a subfield.
const ITEM_END: u8 = 0x1f;

/// Field of a record of type 1 with the contents of the file.
pub(super) const CONTENTS: u32 = 3;
/// Field of a record of type 1 with the native resolution in pixels per millimetre.
const NATIVE_RESOLUTION: u32 = 11;
/// Field with an image, always the last of a record. It may hold separators.
pub(super) const IMAGE_DATA: u32 = 999;
/// Millimetres per inch.
const INCH: f32 = 25.4;
/// Bytes of the length of a record without tags.
const LENGTH_BYTES: usize = 4;
/// Longest head of a record with tags ("14.001:1234567890") in bytes.
const HEAD_BYTES_MAX: usize = 24;

/// A record with its head.
pub(super) struct Record<'a> {
    pub(super) record_type: u8,
    pub(super) bytes: &'a [u8],
}

/// A file at one of its records.
pub(super) struct Transaction<'a> {
    /// The record of type 1.
    pub(super) first: &'a [u8],
    /// Types of the records that follow, one a subfield.
    contents: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Transaction<'a> {
    /// Reads the record of type 1, which lists the others.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Transaction<'a>> {
        let length = tagged_length(bytes, 1)?;
        let (first, rest) = bytes.split_at_checked(length).ok_or_else(truncated)?;
        let contents = field(first, CONTENTS);
        let contents = contents.ok_or_else(|| damaged("its list of records (1.003) is missing"))?;
        // The first subfield describes the record of type 1 itself.
        let at = contents.iter().position(|&byte| byte == SUBFIELD_END);
        let contents = at.and_then(|at| contents.get(at + 1..)).unwrap_or_default();
        Ok(Transaction { first, contents, rest })
    }

    /// Returns the resolution of images in records of type 4 that were not scaled.
    pub(super) fn dots_per_inch(&self) -> Option<f32> {
        let per_millimetre: f32 = number(field(self.first, NATIVE_RESOLUTION)?)?;
        plausible(per_millimetre * INCH)
    }

    /// Returns the next record, or `None` after the last.
    pub(super) fn next_record(&mut self) -> Result<Option<Record<'a>>> {
        if self.contents.is_empty() {
            return Ok(None);
        }
        let (entry, contents) = split(self.contents, SUBFIELD_END);
        let record_type = number(split(entry, ITEM_END).0);
        let record_type: u8 =
            record_type.ok_or_else(|| damaged("its list of records (1.003) has no type"))?;
        let length = match record_type {
            // Records without tags.
            3..=8 => be32(self.rest, 0).ok_or_else(truncated)? as usize,
            _ => tagged_length(self.rest, record_type)?,
        };
        if length <= LENGTH_BYTES {
            return Err(damaged("a record has no length"));
        }
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or_else(truncated)?;
        (self.contents, self.rest) = (contents, rest);
        Ok(Some(Record { record_type, bytes }))
    }
}

/// Reads the length in bytes of the record with tags at the start of `bytes`. Its first field,
/// `TYPE.001`, states the length.
fn tagged_length(bytes: &[u8], record_type: u8) -> Result<usize> {
    let head = bytes.get(..HEAD_BYTES_MAX).unwrap_or(bytes);
    let ended = head.iter().any(|byte| [FIELD_END, RECORD_END].contains(byte));
    if !ended && bytes.len() < HEAD_BYTES_MAX {
        return Err(truncated());
    }
    let first = fields(head).next().filter(|it| (it.record_type, it.number) == (record_type, 1));
    first.and_then(|it| number(split(it.value, RECORD_END).0)).ok_or_else(|| {
        damaged(&format!("a record of type {record_type} does not begin with its length"))
    })
}

/// A field of a record with tags.
pub(super) struct TaggedField<'a> {
    record_type: u8,
    pub(super) number: u32,
    pub(super) value: &'a [u8],
}

/// Returns the fields of a record up to the first that has no tag.
pub(super) fn fields(record: &[u8]) -> impl Iterator<Item = TaggedField<'_>> {
    let mut rest = record.strip_suffix(&[RECORD_END]).unwrap_or(record);
    std::iter::from_fn(move || {
        let (tag, value) = rest.split_at_checked(rest.iter().position(|&byte| byte == b':')?)?;
        let dot = tag.iter().position(|&byte| byte == b'.')?;
        let record_type = number(tag.get(..dot)?)?;
        let field_number = number(tag.get(dot + 1..)?)?;
        let value = value.get(1..)?;
        let (value, after) =
            if field_number == IMAGE_DATA { (value, &[][..]) } else { split(value, FIELD_END) };
        rest = after;
        Some(TaggedField { record_type, number: field_number, value })
    })
}

fn field(record: &[u8], number: u32) -> Option<&[u8]> {
    fields(record).find(|field| field.number == number).map(|field| field.value)
}

/// Returns the numbers that the subfields of a field begin with.
pub(super) fn numbers(value: &[u8]) -> impl Iterator<Item = Option<u8>> {
    value.split(|&byte| byte == SUBFIELD_END).map(|subfield| number(split(subfield, ITEM_END).0))
}

/// Splits at the first `separator`. The second part is empty without one.
fn split(bytes: &[u8], separator: u8) -> (&[u8], &[u8]) {
    let at = bytes.iter().position(|&byte| byte == separator).unwrap_or(bytes.len());
    (bytes.get(..at).unwrap_or_default(), bytes.get(at + 1..).unwrap_or_default())
}

/// Reads a decimal number.
pub(super) fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Returns a resolution if it can be one.
pub(super) fn plausible(dots_per_inch: f32) -> Option<f32> {
    (1.0..=20_000.0).contains(&dots_per_inch).then_some(dots_per_inch)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENTS_ONLY: &[u8] =
        b"1.001:72\x1d1.002:0400\x1d1.003:1\x1f2\x1e2\x1f00\x1e4\x1f01\x1d\
          1.011:19.69\x1d1.012:19.69\x1d1.013:x\x1c";

    #[test]
    fn records_are_walked_by_their_lengths() {
        let file = [CONTENTS_ONLY, b"2.001:16\x1d2.002:\x1c\0\0\0\x06ab"].concat();
        let mut transaction = Transaction::open(&file).unwrap();
        assert_eq!(transaction.dots_per_inch().map(f32::round), Some(500.0));
        let record = transaction.next_record().unwrap().unwrap();
        assert_eq!((record.record_type, record.bytes.len()), (2, 16));
        let record = transaction.next_record().unwrap().unwrap();
        assert_eq!((record.record_type, record.bytes), (4, &b"\0\0\0\x06ab"[..]));
        assert!(transaction.next_record().unwrap().is_none());
    }

    #[test]
    fn fields_end_at_separators_but_the_image() {
        let record = b"14.001:40\x1d14.013:1\x1e2\x1f9\x1d14.999:a\x1db\x1c\x1c";
        let found: Vec<(u32, &[u8])> = fields(record).map(|it| (it.number, it.value)).collect();
        assert_eq!(found, [(1, &b"40"[..]), (13, b"1\x1e2\x1f9"), (999, b"a\x1db\x1c")]);
        assert_eq!(numbers(found[1].1).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert_eq!(fields(b"").count() + fields(b"14001:\x1d").count(), 0);
    }

    #[test]
    fn a_record_that_begins_otherwise_is_refused() {
        for head in
            [&b"1.002:9\x1d"[..], b"1.001:x\x1d", b"2.001:9\x1d", b"1.001:9", b"1.001:8\x1d"]
        {
            assert!(Transaction::open(head).is_err(), "{head:?}");
        }
    }
}
