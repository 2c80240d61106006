//! What a collection is, and what it may use.

use std::time::Duration;

use base::{Error, Result};
use memory::Rate;

use crate::coarse::{CoarseKind, DIMS_MAX, Metric};
use crate::segment::{SegmentSettings, VectorEncoding};

/// Bytes of a record at most.
pub const RECORD_BYTES_MAX: usize = storage::page::RECORD_BYTES_MAX;
/// Bytes of a payload at most.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Candidates of one query at most.
pub const CANDIDATES_MAX: usize = crate::coarse::HITS_MAX;
/// Points that are not sealed take this much at most, however large the budget.
const MEMTABLE_BYTES_MAX: u64 = 64 << 20;
/// Two parts, and three times as much to seal one: its embeddings once more, the index, the opened segment.
const MEMTABLES_IN_BUDGET: u64 = 5;
/// Several times what sealing takes on a machine with time to spare.
const FLUSH_WAIT: Duration = Duration::from_secs(10);
/// Buffers for sealing, however small the part.
const FLUSH_BYTES: u64 = 5 << 20;

/// What a collection is; fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectionShape {
    /// Values of an embedding.
    pub dims: usize,
    /// What alike means.
    pub metric: Metric,
    /// How embeddings are kept.
    pub encoding: VectorEncoding,
}

impl CollectionShape {
    /// What its segments are told.
    pub fn settings(&self) -> SegmentSettings {
        SegmentSettings { dims: self.dims, metric: self.metric, encoding: self.encoding }
    }
}

/// What a collection may use; may differ from start to start.
#[derive(Clone, Debug)]
pub struct CollectionOptions {
    /// What it is.
    pub shape: CollectionShape,
    /// Which coarse index new segments get.
    pub kind: CoarseKind,
    /// Most bytes of memory that its data may take: rows not sealed yet, codes, ids and maps of open segments, the
    /// working memory of sealing and merging. Kept always.
    pub memory_bytes: u64,
    /// Bytes of rows that are not sealed yet, after which they are; 0: a share of the memory.
    pub memtable_bytes: u64,
    /// Threads for building a coarse index.
    pub build_threads: usize,
    /// Bytes a second that sealing and merging read and write together.
    pub background_rate: Rate,
    /// Whether threads of the collection seal and merge. Without, somebody calls [`super::Collection::seal`] and
    /// [`super::Collection::merge`].
    pub background: bool,
    /// How long a write waits for room before it is refused.
    pub room_wait: Duration,
    /// How long a part that is full waits for its sealing before that is hurried. Queries go through all of its points
    /// meanwhile, so that giving way to them for longer costs them more than it spares.
    pub flush_wait: Duration,
    /// How segments are merged.
    pub merging: Merging,
    /// Bytes of the disk that stay free: with less, changes are refused. `None` is a hundredth of the file system, at
    /// least 64 MiB and at most 4 GiB, and at most an eighth; 0 switches the check off.
    pub disk_reserve: Option<u64>,
}

/// When segments are merged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merging {
    /// So many segments of about the same size become one.
    pub fan_in: usize,
    /// A segment that has lost this share of its rows is written anew.
    pub deleted_share: f64,
    /// Live rows of a merged segment at most.
    pub rows_max: u32,
}

impl Default for Merging {
    fn default() -> Merging {
        Merging { fan_in: 4, deleted_share: 0.25, rows_max: 8 << 20 }
    }
}

impl CollectionOptions {
    /// A collection of embeddings of `dims` values within `memory_bytes`, with threads that seal and merge.
    pub fn new(dims: usize, metric: Metric, memory_bytes: u64) -> CollectionOptions {
        CollectionOptions {
            shape: CollectionShape { dims, metric, encoding: VectorEncoding::F32 },
            kind: CoarseKind::Auto,
            memory_bytes,
            memtable_bytes: 0,
            build_threads: 1,
            background_rate: Rate::unlimited(),
            background: true,
            room_wait: Duration::from_secs(10),
            flush_wait: FLUSH_WAIT,
            merging: Merging::default(),
            disk_reserve: None,
        }
    }

    /// With every default filled in.
    ///
    /// # Errors
    /// `InvalidArgument` for what cannot work.
    pub(super) fn resolved(mut self) -> Result<CollectionOptions> {
        if !(1..=DIMS_MAX).contains(&self.shape.dims) || self.build_threads == 0 {
            return Err(Error::invalid(format!(
                "a collection has 1 to {DIMS_MAX} dimensions and at least one thread to build with, not {} and {}",
                self.shape.dims, self.build_threads
            )));
        }
        if self.memtable_bytes == 0 {
            let share = self.memory_bytes.saturating_sub(FLUSH_BYTES) / (2 * MEMTABLES_IN_BUDGET);
            self.memtable_bytes = share.min(MEMTABLE_BYTES_MAX);
        }
        let least = 4 * (self.shape.dims as u64 * 4 + 256);
        let all = self.memtable_bytes.saturating_mul(MEMTABLES_IN_BUDGET).saturating_add(FLUSH_BYTES);
        if self.memtable_bytes < least || all > self.memory_bytes {
            return Err(Error::invalid(format!(
                "{} bytes of memory with {} for unflushed points are too little: unflushed points need at least {least}, \
                 and the memory {MEMTABLES_IN_BUDGET} times that and {FLUSH_BYTES}; give the collection more",
                self.memory_bytes, self.memtable_bytes
            )));
        }
        if self.merging.fan_in < 2 {
            return Err(Error::invalid("merging takes at least two segments at once"));
        }
        Ok(self)
    }

    /// What is set aside for sealing, always.
    pub(super) fn headroom_bytes(&self) -> u64 {
        headroom_bytes(self.memtable_bytes)
    }
}

/// What is set aside for sealing a part of so many bytes.
pub(super) fn headroom_bytes(memtable_bytes: u64) -> u64 {
    (MEMTABLES_IN_BUDGET - 2) * memtable_bytes + FLUSH_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_is_refused_and_shares_are_filled_in() {
        let options = CollectionOptions::new(512, Metric::Cosine, 100 << 20).resolved().unwrap();
        assert_eq!(options.memtable_bytes, (95 << 20) / 10);
        assert_eq!(options.headroom_bytes(), 3 * options.memtable_bytes + FLUSH_BYTES);
        assert_eq!(
            CollectionOptions::new(512, Metric::Cosine, 64 << 30).resolved().unwrap().memtable_bytes,
            MEMTABLE_BYTES_MAX
        );
        assert!(CollectionOptions::new(512, Metric::Cosine, 40_000).resolved().is_err());
        assert!(CollectionOptions::new(0, Metric::Cosine, 1 << 30).resolved().is_err());
        let much =
            CollectionOptions { memtable_bytes: 1 << 30, ..CollectionOptions::new(8, Metric::L2, 2 << 30) };
        assert!(much.resolved().unwrap_err().message().contains("give the collection more"));
    }
}
