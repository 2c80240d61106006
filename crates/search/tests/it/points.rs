//! Points whose content follows from id and version, and media for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::ErrorKind;
use memory::{PoolConfig, SlotPool};
use os::Rate;
use search::Metric;
use search::Scorer;
use search::budget::MemoryBudget;
use search::collection::{Applied, Collection, CollectionOptions, Merging, Resources};
use search::ingest::{Op, PointRef, StoredPoint};
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
    let embedding =
        (0..DIMS as u64).map(|at| (draw(at) % 20_001) as f32 / 10_000.0 - 1.0).collect();
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
    PointRef {
        id: stored.id,
        embedding: &stored.embedding,
        record: &stored.record,
        payload: &stored.payload,
    }
}

pub(crate) fn memory_medium() -> Arc<dyn Medium> {
    let config =
        PoolConfig { bytes_max: 256 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
    Arc::new(DramMedium::new(SlotPool::new(config).unwrap(), None).unwrap())
}

pub(crate) const MEMORY_BYTES: u64 = 32 << 20;
pub(crate) const MEMTABLE_BYTES: u64 = 64 << 10;

pub(crate) fn options() -> CollectionOptions {
    CollectionOptions {
        merging: Merging { fan_in: 3, ..Merging::default() },
        ..CollectionOptions::new(DIMS, Metric::L2)
    }
}

pub(crate) fn resources(memory_bytes: u64, memtable_bytes: u64) -> Resources {
    Resources::new(MemoryBudget::new(memory_bytes), memtable_bytes, Rate::unlimited()).unwrap()
}

pub(crate) fn shared() -> Arc<SharedCaches> {
    Arc::new(SharedCaches::new(0, 512))
}

/// Collection without background threads: a write that finds no room flushes on its own thread.
pub(crate) struct TestCollection(Collection);

impl std::ops::Deref for TestCollection {
    type Target = Collection;

    fn deref(&self) -> &Collection {
        &self.0
    }
}

impl TestCollection {
    pub(crate) fn upsert(&self, point: PointRef<'_>) -> base::Result<()> {
        self.write(&[Op::Upsert(point)])
    }

    pub(crate) fn delete(&self, id: u64) -> base::Result<()> {
        self.write(&[Op::Delete(id)])
    }

    pub(crate) fn write(&self, ops: &[Op<'_>]) -> base::Result<()> {
        let applied: Vec<Applied> =
            ops.iter().map(|op| self.apply_one(op)).collect::<base::Result<_>>()?;
        // The last one first: its commit makes the others durable.
        applied.into_iter().rev().try_for_each(Applied::commit)
    }

    fn apply_one(&self, op: &Op<'_>) -> base::Result<Applied> {
        loop {
            match self.0.try_apply(std::slice::from_ref(op)) {
                Err(error) if error.kind() == ErrorKind::ResourceExhausted => {
                    if !self.0.flush_oldest()? {
                        return Err(error);
                    }
                }
                applied => return applied,
            }
        }
    }
}

/// Opens a collection and its segments, with resources of its own.
pub(crate) fn try_open(
    medium: Arc<dyn Medium>,
    options: CollectionOptions,
    resources: &Resources,
) -> base::Result<TestCollection> {
    let collection = Collection::open(medium, options, resources, shared())?;
    collection.open_segments();
    Ok(TestCollection(collection))
}

pub(crate) fn open(medium: &Arc<dyn Medium>, options: CollectionOptions) -> TestCollection {
    try_open(medium.clone(), options, &resources(MEMORY_BYTES, MEMTABLE_BYTES)).unwrap()
}

/// Returns limits for the records of [`stored`].
pub(crate) fn limits() -> SearchLimits {
    SearchLimits::default()
}

/// Scores by a checksum, which depends on the whole record.
#[derive(Clone)]
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
