//! Shape and limits of a collection.

use std::time::Duration;

use base::{Error, Result};
use coarse::{CoarseKind, DIMS_MAX, Metric};

use crate::codes::CodesPlace;
use crate::segment::{RecordKind, SegmentForm, SegmentSettings, VectorEncoding};

/// Maximum bytes of a record.
pub(crate) const RECORD_BYTES_MAX: usize = storage::page::RECORD_BYTES_MAX;
/// Default of [`CollectionOptions::payload_bytes_max`].
pub(crate) const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Maximum candidates of one query.
pub const CANDIDATES_MAX: usize = coarse::HITS_MAX;
/// Maximum candidates of one query by minutiae: about a second of exact comparisons on two cores.
pub const PRINT_CANDIDATES_MAX: usize = 1 << 16;
/// Memtables that the budget must hold: two, and three for a flush (a copy of the embeddings, the
/// index, the opened segment).
const MEMTABLES_IN_BUDGET: u64 = 5;
/// Default of [`CollectionOptions::shared_values_min`]. A thread scans 50 million values in less
/// than 100 us, and to share them takes 25 us (`millpond bench vectors`, 2 cores; ADR 0032).
pub(crate) const SHARED_VALUES_MIN: u64 = 64 << 20;
/// Default of [`CollectionOptions::flush_wait`]: the time of several flushes on an idle machine.
const FLUSH_WAIT: Duration = Duration::from_secs(10);
/// Buffers of a flush, however small the memtable is.
const FLUSH_BYTES: u64 = 5 << 20;

/// Shape of a collection. Fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectionShape {
    /// Values per embedding.
    pub dims: usize,
    /// Measure of similarity.
    pub metric: Metric,
    /// Stored format of embeddings.
    pub encoding: VectorEncoding,
}

impl CollectionShape {
    /// Returns the settings of its segments.
    pub fn settings(&self) -> SegmentSettings {
        SegmentSettings { dims: self.dims, metric: self.metric, encoding: self.encoding }
    }
}

/// Limits of a collection. May change with each start.
#[derive(Clone, Debug)]
pub struct CollectionOptions {
    /// Shape of the points.
    pub shape: CollectionShape,
    /// Content of the records.
    pub records: RecordKind,
    /// Coarse index of new segments.
    pub kind: CoarseKind,
    /// Place of the codes of segments.
    pub codes: CodesPlace,
    /// Threads that build a coarse index.
    pub build_threads: usize,
    /// Longest wait of a write for room before it is refused.
    pub room_wait: Duration,
    /// Longest wait of a full memtable before its flush is escalated. Queries scan all points of
    /// the memtable meanwhile, so a longer wait costs queries more than it saves them.
    pub flush_wait: Duration,
    /// When segments are merged.
    pub merging: Merging,
    /// When a collection that gets no points prepares for reads.
    pub quiet: QuietTimes,
    /// Minimum number of values of the embeddings in all segments. From this number on, idle
    /// threads take segments of a query without a filter. A query with a filter is always shared.
    pub shared_values_min: u64,
    /// Maximum bytes of a new payload. More than 1 MiB count as 1 MiB.
    pub payload_bytes_max: usize,
    /// Bytes of disk to keep free. Changes are refused below that. `None` is a hundredth of the
    /// file system, at least 64 MiB, at most 4 GiB and at most an eighth. 0 switches the check off.
    pub disk_reserve: Option<u64>,
}

/// When segments are merged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merging {
    /// Segments of similar size that are merged into one.
    pub fan_in: usize,
    /// Share of deleted rows at which a segment is rewritten.
    pub deleted_share: f64,
    /// Maximum live rows of a merged segment.
    pub rows_max: u32,
}

impl Default for Merging {
    fn default() -> Merging {
        Merging { fan_in: 4, deleted_share: 0.25, rows_max: 8 << 20 }
    }
}

/// Times after which a collection prepares for reads. They begin with the last new point, if not
/// stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuietTimes {
    /// Time until unflushed points are flushed, if they are enough to slow queries down.
    pub flush: Duration,
    /// Time from the start of the last flush until such points are flushed although more arrive.
    pub age: Duration,
    /// Time until merges join half as many segments as [`Merging::fan_in`].
    pub merge: Duration,
}

impl Default for QuietTimes {
    fn default() -> QuietTimes {
        let seconds = Duration::from_secs;
        QuietTimes { flush: seconds(5), age: seconds(60), merge: seconds(30) }
    }
}

impl CollectionOptions {
    /// Creates options for embeddings of `dims` values, with default values.
    pub fn new(dims: usize, metric: Metric) -> CollectionOptions {
        CollectionOptions {
            shape: CollectionShape { dims, metric, encoding: VectorEncoding::F32 },
            records: RecordKind::Opaque,
            kind: CoarseKind::Auto,
            codes: CodesPlace::Auto,
            build_threads: 1,
            room_wait: Duration::from_secs(10),
            flush_wait: FLUSH_WAIT,
            merging: Merging::default(),
            quiet: QuietTimes::default(),
            shared_values_min: SHARED_VALUES_MIN,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            disk_reserve: None,
        }
    }

    /// Returns the properties that decide the memory of a segment besides its number of rows.
    pub(crate) fn segment_form(&self) -> SegmentForm {
        SegmentForm { kind: self.kind, dims: self.shape.dims, records: self.records }
    }

    /// Checks the options, and that memory for them is large enough.
    ///
    /// # Errors
    /// `InvalidArgument` for values that cannot work.
    pub(super) fn check(&self, memory_bytes: u64, memtable_bytes: u64) -> Result<()> {
        if !(1..=DIMS_MAX).contains(&self.shape.dims) || self.build_threads == 0 {
            return Err(Error::invalid(format!(
                "a collection has 1 to {DIMS_MAX} dimensions and a build thread, not {} and {}",
                self.shape.dims, self.build_threads
            )));
        }
        let least = 4 * (self.shape.dims as u64 * 4 + 256);
        let all = memtable_bytes.saturating_mul(MEMTABLES_IN_BUDGET).saturating_add(FLUSH_BYTES);
        if memtable_bytes < least || all > memory_bytes {
            return Err(Error::invalid(format!(
                "{memory_bytes} bytes of memory with {memtable_bytes} for unflushed points are too \
                 little: unflushed points need at least {least}, and the memory \
                 {MEMTABLES_IN_BUDGET} times that and {FLUSH_BYTES}; give the collection more"
            )));
        }
        if self.merging.fan_in < 2 {
            return Err(Error::invalid("merging takes at least two segments at once"));
        }
        Ok(())
    }
}

/// Returns the bytes reserved for the flush of a memtable of `memtable_bytes`.
pub(super) fn headroom_bytes(memtable_bytes: u64) -> u64 {
    (MEMTABLES_IN_BUDGET - 2) * memtable_bytes + FLUSH_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_is_refused() {
        let check = |dims: usize, memory_bytes: u64, memtable_bytes: u64| {
            CollectionOptions::new(dims, Metric::Cosine).check(memory_bytes, memtable_bytes)
        };
        assert!(check(512, 64 << 20, 1 << 20).is_ok());
        assert!(check(512, 64 << 20, 4096).is_err());
        assert!(check(0, 64 << 20, 1 << 20).is_err());
        let error = check(8, 4 * (8 << 20), 8 << 20).unwrap_err();
        assert!(error.message().contains("give the collection more"), "{error}");
    }
}
