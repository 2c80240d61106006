//! Points as clients know them: an id (number or UUID), an embedding, a record and a JSON object.
//!
//! A collection stores points by 64-bit ids. A number is its own id. A UUID becomes 2^63 plus 63
//! bits of its hash ([`uuid_hash`]). UUIDs, and numbers from 2^63 on, are kept in the payload under
//! a key that clients cannot write. Two ids of the same 64 bits cannot both be in a collection, so
//! the second one is refused. Among 10^9 points with UUIDs the chance that this ever happens is
//! about one in twenty. Points are stored, and scrolled, by the 64-bit id: numbers below 2^63
//! first, then UUIDs by their hash and not by their value.

mod change;
mod payload;
mod upsert;

pub(crate) use filter::RESERVED_KEY;
pub use filter::{NUMBERS_MAX, PointId, uuid_hash};
use serde_json::{Map, Value};

pub(crate) use change::apply;
pub use change::{PayloadChange, PointSelection};
pub use payload::check_levels;
pub(crate) use payload::{decode, encode};
pub(crate) use upsert::accepts;
pub use upsert::{UpsertCondition, UpsertMode, VectorChange};

/// A point to be written.
#[derive(Clone, Copy, Debug)]
pub struct NewPoint<'a> {
    /// Number or UUID that clients use.
    pub id: PointId,
    /// Embedding of the point, with as many values as the collection has dimensions.
    pub embedding: &'a [f32],
    /// Bytes that a scorer compares. May be empty.
    pub record: &'a [u8],
    /// The JSON object that filters read.
    pub payload: &'a Map<String, Value>,
}

/// A point as it was read. Parts that were not requested are empty.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchedPoint {
    /// Number or UUID that clients use.
    pub id: PointId,
    /// Embedding, rounded to the encoding of the collection.
    pub embedding: Vec<f32>,
    /// Bytes that a scorer compares. Empty if the point has none.
    pub record: Vec<u8>,
    /// JSON object. Empty if the point has none.
    pub payload: Map<String, Value>,
}
