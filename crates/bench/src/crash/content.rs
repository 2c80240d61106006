//! What is written: every change follows from seed, thread and number.

use search::ingest::{PointRef, StoredPoint};

use loadgen::random;

/// Values of an embedding.
pub(super) const DIMS: usize = 32;
/// Of so many changes, one removes a point.
const DELETE_EVERY: u64 = 5;
/// Bytes of a record, at most; every so many records there is a long one.
const RECORD_BYTES: u64 = 900;
const LONG_EVERY: u64 = 40;
const LONG_BYTES: u64 = 9000;

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScriptedChange {
    pub(super) id: u64,
    /// What is written; `None` where the point is removed.
    pub(super) version: Option<u64>,
}

/// The changes of one thread, of `writers`, each with `ids` points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    pub(super) seed: u64,
    pub(super) writers: u64,
    pub(super) ids: u64,
}

impl Script {
    /// The change `number` of the thread `writer`; threads have no point in common.
    pub(super) fn change(&self, writer: u64, number: u64) -> ScriptedChange {
        let draw = random::at(self.seed ^ writer << 48, number);
        let id = (draw >> 8) % self.ids * self.writers + writer;
        let version = (!draw.is_multiple_of(DELETE_EVERY)).then_some(number);
        ScriptedChange { id, version }
    }
}

/// The point `id` as it was written as `version`.
pub(super) fn stored(seed: u64, id: u64, version: u64) -> StoredPoint {
    let seed = random::at(seed ^ id, version);
    let draw = |at: u64| random::at(seed, at);
    let embedding = (0..DIMS as u64).map(|at| random::signed_unit(seed, 1000 + at)).collect();
    let most = if draw(0).is_multiple_of(LONG_EVERY) { LONG_BYTES } else { RECORD_BYTES };
    let record = (0..(draw(1) % most).div_ceil(8)).flat_map(|at| draw(2000 + at).to_le_bytes()).collect();
    let payload = format!(r#"{{"id":{id},"version":{version}}}"#).into_bytes();
    StoredPoint { id, embedding, record, payload }
}

/// The same, to be handed in.
pub(super) fn point(stored: &StoredPoint) -> PointRef<'_> {
    PointRef { id: stored.id, embedding: &stored.embedding, record: &stored.record, payload: &stored.payload }
}
