//! Sections of a segment, and the settings needed to read them.

use base::{Error, Result};
use coarse::{DIMS_MAX, Metric};

/// Kinds of sections. Kinds from 0x100 on belong to the coarse index.
pub(crate) mod kind {
    /// [`super::SegmentSettings`].
    pub(crate) const SETTINGS: u32 = 1;
    /// Id of every row, u64.
    pub(crate) const IDS: u32 = 2;
    /// Rows in the order of their ids, u32.
    pub(crate) const ID_ORDER: u32 = 3;
    /// Embedding of every row, for exact scores.
    pub(crate) const VECTORS: u32 = 4;
    /// Pages of records.
    pub(crate) const RECORDS: u32 = 5;
    /// Record page of each row.
    pub(crate) const RECORD_MAP: u32 = 6;
    /// Pages of payloads.
    pub(crate) const PAYLOADS: u32 = 7;
    /// Payload page of each row.
    pub(crate) const PAYLOAD_MAP: u32 = 8;
    /// Checksum of every page of the sections whose pages have none.
    pub(crate) const CHECKS: u32 = 9;
    /// Index of the edges of fingerprints, [`matching::index::EdgeIndex`]. Optional.
    pub(crate) const EDGES: u32 = 10;
    /// Payload index. Segments of older programs have none.
    pub(crate) const PAYLOAD_INDEX: u32 = 11;
    /// First kind of the coarse index.
    pub(crate) const COARSE_FIRST: u32 = 0x100;
}

/// Returns the name of a section for messages.
pub(crate) fn kind_name(kind: u32) -> &'static str {
    match kind {
        kind::SETTINGS => "settings",
        kind::IDS => "ids",
        kind::ID_ORDER => "id order",
        kind::VECTORS => "vectors",
        kind::RECORDS => "records",
        kind::RECORD_MAP => "record map",
        kind::PAYLOADS => "payloads",
        kind::PAYLOAD_MAP => "payload map",
        kind::CHECKS => "page checksums",
        kind::EDGES => "fingerprint index",
        kind::PAYLOAD_INDEX => "payload index",
        kind::COARSE_FIRST.. => "coarse index",
        _ => "unknown section",
    }
}

/// Stored format of embeddings, for exact scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VectorEncoding {
    /// Unchanged: 4 bytes per value.
    #[default]
    F32,
    /// Upper half of each value, rounded to nearest: 2 bytes, about 3 significant digits.
    Bf16,
}

impl VectorEncoding {
    /// Returns the bytes per value.
    pub fn bytes(self) -> usize {
        match self {
            VectorEncoding::F32 => 4,
            VectorEncoding::Bf16 => 2,
        }
    }

    /// Rounds values to the stored format.
    pub fn round(self, values: &mut [f32]) {
        if self == VectorEncoding::Bf16 {
            for value in values {
                *value = f32::from_bits(u32::from(bf16_bits(*value)) << 16);
            }
        }
    }

    /// Appends the encoded values to `out`.
    pub fn encode(self, values: &[f32], out: &mut Vec<u8>) {
        match self {
            VectorEncoding::F32 => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            VectorEncoding::Bf16 => {
                out.extend(values.iter().flat_map(|&value| bf16_bits(value).to_le_bytes()))
            }
        }
    }

    /// Appends the decoded values of `bytes` to `out`.
    pub fn decode(self, bytes: &[u8], out: &mut Vec<f32>) {
        match self {
            VectorEncoding::F32 => {
                out.extend(bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)))
            }
            VectorEncoding::Bf16 => {
                let values = bytes.as_chunks().0.iter();
                out.extend(
                    values.map(|value| f32::from_bits(u32::from(u16::from_le_bytes(*value)) << 16)),
                );
            }
        }
    }
}

/// Returns the nearest bf16, ties to even. Values that would round to infinity become the largest
/// finite value.
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if rounded & 0x7f80 == 0x7f80 { (bits >> 16) as u16 } else { rounded as u16 }
}

/// Content of the records of a collection, which decides how candidates are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordKind {
    /// Any bytes. Candidates are the points with the most similar embeddings.
    #[default]
    Opaque,
    /// Minutiae of a fingerprint ([`matching::Graph`]): segments have an index of their edges.
    Fingerprint,
}

const SETTINGS_VERSION: u32 = 1;
const SETTINGS_BYTES: usize = 32;

/// Shape of the rows of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSettings {
    /// Values per embedding.
    pub dims: usize,
    /// Measure of similarity.
    pub metric: Metric,
    /// Stored format of embeddings.
    pub encoding: VectorEncoding,
}

impl SegmentSettings {
    /// Returns the bytes of one embedding in the section of vectors.
    pub(crate) fn stride(&self) -> usize {
        self.dims * self.encoding.bytes()
    }

    /// Encodes the section: version u32, dims u32, metric u8, encoding u8, zeros.
    pub fn encode(&self) -> [u8; SETTINGS_BYTES] {
        let mut out = [0; SETTINGS_BYTES];
        out[..4].copy_from_slice(&SETTINGS_VERSION.to_le_bytes());
        out[4..8].copy_from_slice(&(self.dims as u32).to_le_bytes());
        out[8] = self.metric.code();
        out[9] = match self.encoding {
            VectorEncoding::F32 => 0,
            VectorEncoding::Bf16 => 1,
        };
        out
    }

    /// Decodes the section.
    ///
    /// # Errors
    /// `DataLoss` if this program does not write such a section.
    pub fn decode(bytes: &[u8]) -> Result<SegmentSettings> {
        let odd = || {
            Error::data_loss("this program cannot read the segment's settings; use a newer program")
        };
        let bytes: &[u8; SETTINGS_BYTES] = bytes.try_into().map_err(|_| odd())?;
        let field = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let dims = field(4) as usize;
        let metric = Metric::from_code(bytes[8].into()).ok_or_else(odd)?;
        let encoding = match bytes[9] {
            0 => VectorEncoding::F32,
            1 => VectorEncoding::Bf16,
            _ => return Err(odd()),
        };
        if field(0) != SETTINGS_VERSION || !(1..=DIMS_MAX).contains(&dims) {
            return Err(odd());
        }
        Ok(SegmentSettings { dims, metric, encoding })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn settings_decode_to_themselves(values in prop::collection::vec(-1e30_f32..1e30, 0..64)) {
            for encoding in [VectorEncoding::F32, VectorEncoding::Bf16] {
                let mut bytes = Vec::new();
                let mut back = Vec::new();
                let mut rounded = values.clone();
                encoding.encode(&values, &mut bytes);
                prop_assert_eq!(bytes.len(), values.len() * encoding.bytes());
                encoding.decode(&bytes, &mut back);
                encoding.round(&mut rounded);
                prop_assert_eq!(&back, &rounded);
                for (value, back) in values.iter().zip(&back) {
                    prop_assert!((value - back).abs() <= value.abs() / 256.0);
                }
                // Rounding again changes nothing, so merges do not degrade values.
                encoding.round(&mut rounded);
                prop_assert_eq!(&back, &rounded);
            }
        }

        #[test]
        fn any_settings_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = SegmentSettings::decode(&bytes);
        }
    }

    #[test]
    fn settings_round_trip() {
        for metric in [Metric::Cosine, Metric::Dot, Metric::L2] {
            for encoding in [VectorEncoding::F32, VectorEncoding::Bf16] {
                let settings = SegmentSettings { dims: 77, metric, encoding };
                assert_eq!(SegmentSettings::decode(&settings.encode()), Ok(settings));
            }
        }
        assert_eq!(bf16_bits(f32::MAX), 0x7f7f, "finite stays finite");
    }
}
