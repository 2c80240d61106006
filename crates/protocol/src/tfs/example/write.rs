//! Writes serialised examples.

use bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint};

/// Writer of one feature, which collects its values.
#[derive(Debug, Default)]
pub(crate) enum FeatureWriter {
    /// No value yet.
    #[default]
    Empty,
    Bytes(Vec<u8>),
    Float(Vec<u8>),
    Int64(Vec<u8>),
}

/// A value whose kind differs from the values before it.
#[derive(Debug)]
pub(crate) struct MixedKinds;

impl FeatureWriter {
    pub(crate) fn bytes(&mut self, value: &[u8]) -> Result<(), MixedKinds> {
        if matches!(self, FeatureWriter::Empty) {
            *self = FeatureWriter::Bytes(Vec::new());
        }
        let FeatureWriter::Bytes(list) = self else { return Err(MixedKinds) };
        delimited(list, 1, value);
        Ok(())
    }

    pub(crate) fn float(&mut self, value: f32) -> Result<(), MixedKinds> {
        if matches!(self, FeatureWriter::Empty) {
            *self = FeatureWriter::Float(Vec::new());
        }
        let FeatureWriter::Float(packed) = self else { return Err(MixedKinds) };
        packed.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    pub(crate) fn int64(&mut self, value: i64) -> Result<(), MixedKinds> {
        if matches!(self, FeatureWriter::Empty) {
            *self = FeatureWriter::Int64(Vec::new());
        }
        let FeatureWriter::Int64(packed) = self else { return Err(MixedKinds) };
        encode_varint(value.cast_unsigned(), packed);
        Ok(())
    }

    /// Returns the kind of the values for a message.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            FeatureWriter::Empty => "UNKNOWN",
            FeatureWriter::Bytes(_) => "bytes",
            FeatureWriter::Float(_) => "float",
            FeatureWriter::Int64(_) => "int64",
        }
    }

    /// Returns the serialised `Feature`.
    fn finish(self) -> Vec<u8> {
        let (tag, list) = match self {
            FeatureWriter::Empty => return Vec::new(),
            FeatureWriter::Bytes(list) => (1, list),
            FeatureWriter::Float(packed) => (2, packed_list(&packed)),
            FeatureWriter::Int64(packed) => (3, packed_list(&packed)),
        };
        let mut feature = Vec::with_capacity(list.len() + 16);
        delimited(&mut feature, tag, &list);
        feature
    }
}

fn packed_list(packed: &[u8]) -> Vec<u8> {
    let mut list = Vec::with_capacity(packed.len() + 16);
    delimited(&mut list, 1, packed);
    list
}

fn delimited(out: &mut Vec<u8>, tag: u32, bytes: &[u8]) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Writer of one example, feature by feature. Of two features with one name the last counts.
#[derive(Debug, Default)]
pub(crate) struct ExampleWriter(Vec<u8>);

impl ExampleWriter {
    pub(crate) fn feature(&mut self, name: &str, values: FeatureWriter) {
        let mut entry = Vec::new();
        delimited(&mut entry, 1, name.as_bytes());
        delimited(&mut entry, 2, &values.finish());
        delimited(&mut self.0, 1, &entry);
    }

    /// Returns the serialised `Example`.
    pub(crate) fn finish(self) -> Bytes {
        let mut example = Vec::with_capacity(self.0.len() + 16);
        delimited(&mut example, 1, &self.0);
        example.into()
    }
}
