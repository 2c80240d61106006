//! Points whose content follows from id and version, and media for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use memory::{PoolConfig, SlotPool};
use os::Rate;
use search::Scorer;
use search::coarse::Metric;
use search::collection::{Collection, CollectionOptions, Merging};
use search::ingest::{PointRef, StoredPoint};
use search::rerank::{SearchLimits, SharedCaches};
use storage::{DramMedium, Medium};

pub(crate) const DIMS: usize = 8;
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns pseudo-random numbers of a seed (SplitMix64).
pub(crate) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub(crate) fn stored(id: u64, version: u64) -> StoredPoint {
    let draw = |at: u64| mix(id.wrapping_mul(1_000_003) ^ version.wrapping_mul(7919) ^ at << 40);
    let embedding = (0..DIMS as u64).map(|at| (draw(at) % 20_001) as f32 / 10_000.0 - 1.0).collect();
    let bytes = match draw(100) % 12 {
        0 => 0,
        1 => 5000 + draw(101) % 4000,
        _ => draw(101) % 600,
    };
    let record = (0..bytes).map(|at| draw(200 + at / 8) as u8 ^ at as u8).collect();
    let payload = match draw(102) % 5 {
        0 => Vec::new(),
        colour => format!(r#"{{"id":{id},"version":{version},"colour":{colour}}}"#).into_bytes(),
    };
    StoredPoint { id, embedding, record, payload }
}

pub(crate) fn point(stored: &StoredPoint) -> PointRef<'_> {
    PointRef { id: stored.id, embedding: &stored.embedding, record: &stored.record, payload: &stored.payload }
}

pub(crate) fn memory_medium() -> Arc<dyn Medium> {
    let config = PoolConfig { bytes_max: 256 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
    Arc::new(DramMedium::new(SlotPool::new(config).unwrap(), None).unwrap())
}

/// Returns options with small memtables and merges.
pub(crate) fn options() -> CollectionOptions {
    CollectionOptions {
        memtable_bytes: 64 << 10,
        background: false,
        merging: Merging { fan_in: 3, ..Merging::default() },
        ..CollectionOptions::new(DIMS, Metric::L2, 32 << 20)
    }
}

pub(crate) fn shared() -> Arc<SharedCaches> {
    Arc::new(SharedCaches::new(0, 512))
}

pub(crate) fn open(medium: &Arc<dyn Medium>, options: CollectionOptions) -> Collection {
    let collection = Collection::open(medium.clone(), options, shared()).unwrap();
    assert!(collection.wait_open(TIMEOUT));
    collection
}

/// Returns limits for the records of [`stored`].
pub(crate) fn limits() -> SearchLimits {
    SearchLimits::default()
}

/// Scores by a checksum, which depends on the whole record.
pub(crate) struct Sum(pub(crate) u64);

impl Sum {
    pub(crate) fn of(&self, record: &[u8]) -> f32 {
        (mix(self.0 ^ u64::from(crc32c::crc32c(record))) % 1_000_000) as f32
    }
}

impl Scorer for Sum {
    type Scratch = ();
    fn scratch(&self) {}
    fn score(&self, record: &[u8], (): &mut ()) -> base::Result<f32> {
        Ok(self.of(record))
    }
}

/// Expected points by id.
pub(crate) type Model = BTreeMap<u64, StoredPoint>;

pub(crate) fn distance(query: &[f32], point: &StoredPoint) -> f32 {
    query.iter().zip(&point.embedding).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// Returns all points, nearest first.
pub(crate) fn ranked<'m>(model: &'m Model, query: &[f32]) -> Vec<(&'m StoredPoint, f32)> {
    let mut all: Vec<_> = model.values().map(|point| (point, distance(query, point))).collect();
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    all
}
