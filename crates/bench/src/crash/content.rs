//! Points and changes. Every change follows from seed, thread and number.

use loadgen::random;
use search::points::{FetchedPoint, NewPoint, PointId};
use serde_json::Map;

/// Number of values of an embedding.
pub(super) const DIMS: usize = 32;
/// Number of changes of which one removes a point.
const DELETE_EVERY: u64 = 5;
/// Maximum size of a record in bytes, except for long ones.
const RECORD_BYTES: u64 = 900;
/// One in this many records is long.
const LONG_EVERY: u64 = 40;
/// Maximum size of a long record in bytes.
const LONG_BYTES: u64 = 9000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScriptedChange {
    pub(super) id: u64,
    /// Version that is written; `None` if the point is deleted.
    pub(super) version: Option<u64>,
}

/// Changes of one thread of `writers`, each with `ids` points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    pub(super) seed: u64,
    pub(super) writers: u64,
    pub(super) ids: u64,
}

impl Script {
    /// Returns the change `number` of the thread `writer`. Threads have no point in common.
    pub(super) fn change(&self, writer: u64, number: u64) -> ScriptedChange {
        let draw = random::at(self.seed ^ writer << 48, number);
        let id = (draw >> 8) % self.ids * self.writers + writer;
        let version = (!draw.is_multiple_of(DELETE_EVERY)).then_some(number);
        ScriptedChange { id, version }
    }
}

/// Returns the point `id` as it is written for `version`.
pub(super) fn point(seed: u64, id: u64, version: u64) -> FetchedPoint {
    let seed = random::at(seed ^ id, version);
    let draw = |at: u64| random::at(seed, at);
    let embedding = (0..DIMS as u64).map(|at| random::signed_unit(seed, 1000 + at)).collect();
    let most = if draw(0).is_multiple_of(LONG_EVERY) { LONG_BYTES } else { RECORD_BYTES };
    let record =
        (0..(draw(1) % most).div_ceil(8)).flat_map(|at| draw(2000 + at).to_le_bytes()).collect();
    let payload =
        Map::from_iter([("id".to_owned(), id.into()), ("version".to_owned(), version.into())]);
    FetchedPoint { id: PointId::Number(id), embedding, record, payload }
}

/// Returns the same point for a write.
pub(super) fn new_point(point: &FetchedPoint) -> NewPoint<'_> {
    NewPoint {
        id: point.id,
        embedding: &point.embedding,
        record: &point.record,
        payload: &point.payload,
    }
}
