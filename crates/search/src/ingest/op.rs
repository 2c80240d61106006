//! Content of the log: one change to a collection, as bytes.
//!
//! Numbers are little-endian. A removal ends after 24 bytes, and its lengths are 0. The frames of
//! the log are checksummed. Lengths are checked here nevertheless.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | kind: 1 replaces or adds a point, 2 removes one |
//! | 1..4 | zeros |
//! | 4..8 | values of the embedding |
//! | 8..16 | id |
//! | 16..20 | bytes of the record |
//! | 20..24 | bytes of the payload |
//! | 24.. | the embedding in 32-bit floats, the record, the payload |

use base::{Error, Result};

const HEADER_BYTES: usize = 24;
const KIND_UPSERT: u8 = 1;
const KIND_DELETE: u8 = 2;

/// Borrowed point to be written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PointRef<'a> {
    /// Internal id.
    pub id: u64,
    /// Values, one for each dimension of the collection.
    pub embedding: &'a [f32],
    /// Bytes that a scorer compares.
    pub record: &'a [u8],
    /// JSON object, or empty.
    pub payload: &'a [u8],
}

/// Change of a collection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op<'a> {
    /// Adds a point, or replaces the point of its id.
    Upsert(PointRef<'a>),
    /// Deletes the point of this id, if there is one.
    Delete(u64),
}

impl Op<'_> {
    /// Appends the encoded change to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, id, point) = match self {
            Op::Upsert(point) => (KIND_UPSERT, point.id, Some(point)),
            Op::Delete(id) => (KIND_DELETE, *id, None),
        };
        let length = |bytes: Option<usize>| (bytes.unwrap_or(0) as u32).to_le_bytes();
        out.extend_from_slice(&[kind, 0, 0, 0]);
        out.extend_from_slice(&length(point.map(|point| point.embedding.len())));
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&length(point.map(|point| point.record.len())));
        out.extend_from_slice(&length(point.map(|point| point.payload.len())));
        if let Some(point) = point {
            out.extend(point.embedding.iter().flat_map(|value| value.to_le_bytes()));
            out.extend_from_slice(point.record);
            out.extend_from_slice(point.payload);
        }
    }
}

/// Change read from a log.
#[derive(Clone, Debug, PartialEq)]
pub enum LoggedOp {
    /// Adds or replaces a point.
    Upsert(StoredPoint),
    /// Deletes a point.
    Delete(u64),
}

/// A point as it is logged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredPoint {
    /// Internal id.
    pub id: u64,
    /// Embedding, rounded to the encoding of the collection.
    pub embedding: Vec<f32>,
    /// Bytes that a scorer compares.
    pub record: Vec<u8>,
    /// JSON object, or empty.
    pub payload: Vec<u8>,
}

impl LoggedOp {
    /// Decodes the output of [`Op::encode`].
    ///
    /// # Errors
    /// `DataLoss` for any other bytes.
    pub fn decode(bytes: &[u8]) -> Result<LoggedOp> {
        let odd = || {
            Error::data_loss(format!(
                "{} bytes of the log are not a change to a collection",
                bytes.len()
            ))
        };
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or_else(odd)?;
        let field = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
                as usize
        };
        let id = (field(8) as u64) | (field(12) as u64) << 32;
        let dims = field(4);
        let record = field(16);
        let payload = field(20);
        let body = &bytes[HEADER_BYTES..];
        match header[0] {
            KIND_DELETE if body.is_empty() && (dims, record, payload) == (0, 0, 0) => {
                Ok(LoggedOp::Delete(id))
            }
            KIND_UPSERT
                if dims as u64 * 4 + record as u64 + payload as u64 == body.len() as u64 =>
            {
                let (embedding, rest) = body.split_at(dims * 4);
                let (record, payload) = rest.split_at(record);
                let embedding = embedding
                    .as_chunks()
                    .0
                    .iter()
                    .map(|value| f32::from_le_bytes(*value))
                    .collect();
                Ok(LoggedOp::Upsert(StoredPoint {
                    id,
                    embedding,
                    record: record.to_vec(),
                    payload: payload.to_vec(),
                }))
            }
            _ => Err(odd()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_delete_with_lengths_is_refused() {
        let mut bytes = Vec::new();
        Op::Delete(7).encode(&mut bytes);
        for at in [4, 16, 20] {
            let mut other = bytes.clone();
            other[at] = 1;
            assert_eq!(
                LoggedOp::decode(&other).unwrap_err().kind(),
                base::ErrorKind::DataLoss,
                "byte {at}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_change_round_trips(
            id in any::<u64>(),
            embedding in prop::collection::vec(-1e9_f32..1e9, 0..20),
            record in prop::collection::vec(any::<u8>(), 0..50),
            payload in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let point = PointRef { id, embedding: &embedding, record: &record, payload: &payload };
            let mut bytes = Vec::new();
            Op::Upsert(point).encode(&mut bytes);
            let stored = StoredPoint { id, embedding: embedding.clone(), record: record.clone(), payload: payload.clone() };
            prop_assert_eq!(LoggedOp::decode(&bytes), Ok(LoggedOp::Upsert(stored)));
            prop_assert!(LoggedOp::decode(&bytes[..bytes.len() - 1]).is_err());
            bytes.clear();
            Op::Delete(id).encode(&mut bytes);
            prop_assert_eq!(LoggedOp::decode(&bytes), Ok(LoggedOp::Delete(id)));
        }

        #[test]
        fn any_bytes_cause_no_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0_u8..4) {
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let _ = LoggedOp::decode(&bytes);
        }
    }
}
