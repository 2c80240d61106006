//! Walks over the fields of serialised `tensorflow.Example` messages without allocating.

use base::{Error, Result};
use bytes::Buf;
use prost::DecodeError;
use prost::encoding::{WireType, decode_key, decode_varint};

/// Fields of the messages: `Example.features`, `Features.feature`, key and value of an entry.
const FEATURES: u32 = 1;
const FEATURE: u32 = 1;
const KEY: u32 = 1;
const VALUE: u32 = 2;
/// `BytesList.value`, `FloatList.value` and `Int64List.value`.
const LIST_VALUE: u32 = 1;

/// The kind of a feature's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListKind {
    Bytes,
    Float,
    Int64,
}

impl ListKind {
    /// Returns the kind's name for a message.
    pub(super) fn name(self) -> &'static str {
        match self {
            ListKind::Bytes => "bytes",
            ListKind::Float => "float",
            ListKind::Int64 => "int64",
        }
    }
}

/// The values of one feature: a serialised list.
#[derive(Clone, Copy, Debug)]
pub(super) struct FeatureList<'a> {
    pub(super) kind: ListKind,
    list: &'a [u8],
}

/// One value of a feature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ListValue<'a> {
    Bytes(&'a [u8]),
    Float(f32),
    Int64(i64),
}

fn malformed() -> Error {
    Error::invalid("it is not a serialised tensorflow.Example")
}

fn undecodable(error: DecodeError) -> Error {
    malformed().with_source(error)
}

/// Takes the next field of a message: its number and, if it is delimited, its bytes.
fn next_field<'a>(rest: &mut &'a [u8]) -> Result<Option<(u32, RawField<'a>)>> {
    if rest.is_empty() {
        return Ok(None);
    }
    let (tag, wire_type) = decode_key(rest).map_err(undecodable)?;
    let field = match wire_type {
        WireType::Varint => RawField::Varint(decode_varint(rest).map_err(undecodable)?),
        WireType::LengthDelimited => {
            let length = decode_varint(rest).map_err(undecodable)?;
            RawField::Delimited(take(rest, length)?)
        }
        WireType::ThirtyTwoBit => RawField::Fixed32(fixed32(take(rest, 4)?)),
        WireType::SixtyFourBit => {
            take(rest, 8)?;
            RawField::Other
        }
        WireType::StartGroup | WireType::EndGroup => return Err(malformed()),
    };
    Ok(Some((tag, field)))
}

/// Content of a field, before its meaning is known.
enum RawField<'a> {
    Varint(u64),
    Fixed32(f32),
    Delimited(&'a [u8]),
    Other,
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8]> {
    let length = usize::try_from(length).ok().filter(|length| *length <= rest.len());
    let length = length.ok_or_else(malformed)?;
    let taken = &rest[..length];
    rest.advance(length);
    Ok(taken)
}

fn fixed32(bytes: &[u8]) -> f32 {
    bytes.first_chunk().map_or(0.0, |bytes| f32::from_le_bytes(*bytes))
}

/// Calls `each` with the name and the value of every feature of an example, in order. Of two
/// features with one name the last counts.
///
/// # Errors
/// `InvalidArgument` for bytes that are not an example.
pub(super) fn features<'a>(
    mut example: &'a [u8],
    mut each: impl FnMut(&'a [u8], Option<FeatureList<'a>>),
) -> Result<()> {
    while let Some((tag, field)) = next_field(&mut example)? {
        let (FEATURES, RawField::Delimited(mut entries)) = (tag, field) else { continue };
        while let Some((tag, field)) = next_field(&mut entries)? {
            let (FEATURE, RawField::Delimited(entry)) = (tag, field) else { continue };
            let (name, list) = feature(entry)?;
            each(name, list);
        }
    }
    Ok(())
}

/// Returns the name of an entry and its list, or `None` for a feature without a kind.
fn feature(mut entry: &[u8]) -> Result<(&[u8], Option<FeatureList<'_>>)> {
    let mut name = &entry[..0];
    let mut list = None;
    while let Some((tag, field)) = next_field(&mut entry)? {
        match (tag, field) {
            (KEY, RawField::Delimited(key)) => name = key,
            (VALUE, RawField::Delimited(value)) => list = feature_list(value)?,
            _ => {}
        }
    }
    Ok((name, list))
}

/// Returns the list of an encoded `Feature`, or `None` if it has none. The last list counts.
fn feature_list(mut value: &[u8]) -> Result<Option<FeatureList<'_>>> {
    let mut found = None;
    while let Some((tag, field)) = next_field(&mut value)? {
        let RawField::Delimited(list) = field else { continue };
        let kind = match tag {
            1 => ListKind::Bytes,
            2 => ListKind::Float,
            3 => ListKind::Int64,
            _ => continue,
        };
        found = Some(FeatureList { kind, list });
    }
    Ok(found)
}

impl<'a> FeatureList<'a> {
    /// Calls `each` with every value in order.
    ///
    /// # Errors
    /// The errors of `each`. `InvalidArgument` for bytes that are not a list.
    pub(super) fn values(&self, mut each: impl FnMut(ListValue<'a>) -> Result<()>) -> Result<()> {
        let mut rest = self.list;
        while let Some((tag, field)) = next_field(&mut rest)? {
            match (self.kind, tag, field) {
                (ListKind::Bytes, LIST_VALUE, RawField::Delimited(value)) => {
                    each(ListValue::Bytes(value))?;
                }
                (ListKind::Float, LIST_VALUE, RawField::Fixed32(value)) => {
                    each(ListValue::Float(value))?;
                }
                (ListKind::Float, LIST_VALUE, RawField::Delimited(packed)) => {
                    if packed.len() % 4 != 0 {
                        return Err(malformed());
                    }
                    for value in packed.chunks_exact(4) {
                        each(ListValue::Float(fixed32(value)))?;
                    }
                }
                (ListKind::Int64, LIST_VALUE, RawField::Varint(value)) => {
                    each(ListValue::Int64(value.cast_signed()))?;
                }
                (ListKind::Int64, LIST_VALUE, RawField::Delimited(mut packed)) => {
                    while !packed.is_empty() {
                        let value = decode_varint(&mut packed).map_err(undecodable)?;
                        each(ListValue::Int64(value.cast_signed()))?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the number of values.
    ///
    /// # Errors
    /// `InvalidArgument` for bytes that are not a list.
    pub(super) fn count(&self) -> Result<usize> {
        let mut count = 0;
        self.values(|_| {
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }
}
