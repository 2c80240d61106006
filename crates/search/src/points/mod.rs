//! Points as clients know them: called by a number or a UUID, with a JSON object beside the embedding and the record.
//!
//! A collection knows points by 64-bit ids. A number below 2^63 is its own id. A UUID becomes 2^63 plus 63 bits of its
//! hash ([`uuid_hash`]), and is kept in the payload under [`RESERVED_KEY`], where nobody else may write. Two UUIDs of
//! the same hash cannot both be there; whoever comes second is refused. With a milliard of points the chance that this
//! ever happens is about one in twenty.

mod change;
mod id;
mod payload;

use serde_json::{Map, Value};

pub(crate) use change::apply;
pub use change::{PATH_STEPS_MAX, PayloadChange, PointSelection};
pub use id::{NUMBERS_MAX, PointId, uuid_hash};
pub use payload::RESERVED_KEY;
pub(crate) use payload::{decode, encode};

/// A point as it is handed in.
#[derive(Clone, Copy, Debug)]
pub struct NewPoint<'a> {
    /// What it is called by.
    pub id: PointId,
    /// Its embedding, of as many values as the collection has dimensions.
    pub embedding: &'a [f32],
    /// What a scorer compares; may be empty.
    pub record: &'a [u8],
    /// What conditions are about.
    pub payload: &'a Map<String, Value>,
}

/// A point as it is given out; parts that were not asked for are empty.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchedPoint {
    /// What it is called by.
    pub id: PointId,
    /// Its embedding.
    pub embedding: Vec<f32>,
    /// Its record.
    pub record: Vec<u8>,
    /// Its payload.
    pub payload: Map<String, Value>,
}
