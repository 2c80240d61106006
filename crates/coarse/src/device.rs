//! Rows of large flat indexes on a GPU, if one was opened for the process.
//!
//! Failures here are harmless: the index keeps its codes in memory and ranks on the CPU whenever
//! the GPU does not. For byte codes the GPU computes the same costs to the last bit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use base::{Error, Result};
pub use gpu::GpuOptions;
use gpu::{Coding, DeviceRows, Gpu, PIECE_BYTES, Queries, RowPlacement, Rows};
use kernels::TopK;

use crate::RowSet;

/// Bytes of codes from which an index is copied to the GPU. The CPU scans fewer in about a
/// millisecond, the time of a few launches and copies.
pub(crate) const BYTES_MIN: usize = 16 << 20;
/// Maximum queries per GPU call.
pub(super) const QUERIES_MAX: usize = 256;

/// GPU of the process.
static GPU: OnceLock<Arc<Gpu>> = OnceLock::new();
static SEARCHES: AtomicU64 = AtomicU64::new(0);
static FALLBACKS: AtomicU64 = AtomicU64::new(0);
static LIMITED: AtomicU64 = AtomicU64::new(0);
static PASSES: AtomicU64 = AtomicU64::new(0);
static FALLBACK_LOGGED: AtomicBool = AtomicBool::new(false);

/// Counts since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Queries ranked by the GPU.
    pub queries: u64,
    /// Failed copies or rankings, after which the CPU ranked.
    pub fallbacks: u64,
    /// Queries for more than [`gpu::K_MAX`] rows that the CPU ranked, because several passes over
    /// codes in pinned memory take longer.
    pub limited: u64,
    /// Passes over codes for queries for more than [`gpu::K_MAX`] rows.
    pub passes: u64,
    /// Queries that ran in a search of another thread, with one pass over the codes.
    pub joined: u64,
    /// Bytes of codes on the GPU.
    pub device_bytes: u64,
    /// Bytes of codes in pinned host memory. Limited by [`gpu::GpuOptions`]; not part of a
    /// collection's memory.
    pub pinned_bytes: u64,
}

/// Opens the GPU for the process and returns its name. Large indexes built from now on are flat,
/// and flat indexes of at least `BYTES_MIN` opened from now on rank there.
///
/// # Errors
/// As [`Gpu::open`]; `FailedPrecondition` if one is open already. Searches then stay on the CPU.
pub fn start(options: &GpuOptions) -> Result<String> {
    let gpu = Gpu::open(options)?;
    let name = gpu.name().to_owned();
    GPU.set(gpu).map_err(|_| {
        Error::precondition("a GPU is open for this process; options cannot change any more")
    })?;
    Ok(name)
}

/// Returns the counts so far.
pub fn counters() -> DeviceCounters {
    let gpu = GPU.get();
    let (device_bytes, pinned_bytes) = gpu.map_or((0, 0), |gpu| gpu.bytes());
    DeviceCounters {
        queries: SEARCHES.load(Ordering::Relaxed),
        fallbacks: FALLBACKS.load(Ordering::Relaxed),
        limited: LIMITED.load(Ordering::Relaxed),
        passes: PASSES.load(Ordering::Relaxed),
        joined: gpu.map_or(0, |gpu| gpu.joined()),
        device_bytes,
        pinned_bytes,
    }
}

/// Returns true if a new index should be flat: the GPU is open, the rows are large enough for it,
/// and it has room for them.
pub(super) fn has_room_for(rows: usize, dims: usize) -> bool {
    let bytes = rows * Coding::Bytes.row_pieces(dims) * PIECE_BYTES;
    let left = |gpu: &Arc<Gpu>| gpu.device_bytes_left().is_ok_and(|left| bytes as u64 <= left);
    rows * dims >= BYTES_MIN && GPU.get().is_some_and(left)
}

/// Copies rows to the GPU if there is one, `bytes` of codes are enough and it has room.
pub(super) fn upload(bytes: usize, rows: &Rows) -> Option<Arc<DeviceRows>> {
    let gpu = GPU.get().filter(|_| bytes >= BYTES_MIN)?;
    gpu.upload(rows, RowPlacement::Auto).inspect_err(record_fallback).ok().map(Arc::new)
}

/// Offers the best rows of each query to its list. Returns false if the CPU has to rank; nothing
/// was offered then.
pub(super) fn rank(
    rows: &DeviceRows,
    queries: &Queries,
    kept: usize,
    allow: Option<&RowSet>,
    tops: &mut [TopK],
) -> bool {
    let words = allow.map(RowSet::words);
    // The GPU cannot serve this; not a failure.
    if kept == 0 || words.is_some_and(|words| words.len() < rows.rows().div_ceil(64)) {
        return false;
    }
    let (_, pinned) = rows.bytes();
    if kept > gpu::K_MAX && pinned {
        let count = match queries {
            Queries::Bytes { scales, .. } => scales.len(),
            Queries::Floats(values) => values.len() / rows.dims(),
        };
        LIMITED.fetch_add(count as u64, Ordering::Relaxed);
        return false;
    }
    let found = if kept > gpu::K_MAX {
        let search = |query: &Queries, k: usize, words: &[u64]| {
            PASSES.fetch_add(1, Ordering::Relaxed);
            let mut found = rows.search(query, k, Some(words))?;
            Ok(found.pop().unwrap_or_default())
        };
        in_passes(queries, rows.dims(), rows.rows(), kept, words, search)
    } else {
        rows.search(queries, kept, words)
    };
    match found {
        Ok(found) => {
            SEARCHES.fetch_add(found.len() as u64, Ordering::Relaxed);
            for (found, top) in found.iter().zip(tops) {
                found.iter().for_each(|(cost, row)| top.push(*cost, *row));
            }
            true
        }
        Err(error) => {
            record_fallback(&error);
            false
        }
    }
}

/// Returns the best `kept` rows of each query, best first, by searches for [`gpu::K_MAX`] rows at
/// most. Each search leaves out the rows found before it.
fn in_passes(
    queries: &Queries,
    dims: usize,
    rows: usize,
    kept: usize,
    words: Option<&[u64]>,
    search: impl Fn(&Queries, usize, &[u64]) -> Result<Vec<(f32, u32)>>,
) -> Result<Vec<Vec<(f32, u32)>>> {
    let all = || RowSet::all(rows as u32).words().to_vec();
    let allowed = words.map_or_else(all, <[u64]>::to_vec);
    let one = |query: &Queries| {
        let mut left = allowed.clone();
        let mut found = Vec::new();
        while found.len() < kept {
            let k = (kept - found.len()).min(gpu::K_MAX);
            let next = search(query, k, &left)?;
            for (_, row) in &next {
                left[*row as usize / 64] &= !(1 << (row % 64));
            }
            let complete = next.len() < k;
            found.extend(next);
            if complete {
                break;
            }
        }
        Ok(found)
    };
    match queries {
        Queries::Bytes { codes, scales } => codes
            .chunks_exact(dims)
            .zip(scales.chunks_exact(1))
            .map(|(codes, scales)| one(&Queries::Bytes { codes, scales }))
            .collect(),
        Queries::Floats(values) => {
            values.chunks_exact(dims).map(|values| one(&Queries::Floats(values))).collect()
        }
    }
}

/// Counts a failure of the GPU. Logs the first one.
fn record_fallback(error: &Error) {
    FALLBACKS.fetch_add(1, Ordering::Relaxed);
    if !FALLBACK_LOGGED.swap(true, Ordering::Relaxed) {
        tracing::warn!(%error, "a flat index is searched by the processor instead of the GPU; logged once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BuildThreads, Coarse, CoarseBuild, CoarseHit, CoarseKind, CoarseRequest, CoarseScratch,
        Metric, build, open,
    };

    const DIMS: usize = 1024;
    const ROWS: usize = BYTES_MIN / DIMS + 77;

    /// Returns reproducible numbers between -1 and 1 (Knuth's linear congruential generator).
    fn numbers(count: usize) -> Vec<f32> {
        let mut state = 1_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn hits(index: &dyn Coarse, queries: &[f32], allow: Option<&RowSet>) -> Vec<Vec<CoarseHit>> {
        let mut out = Vec::new();
        index
            .search_many(
                queries,
                &CoarseRequest { allow, ..CoarseRequest::best(30) },
                &mut CoarseScratch::default(),
                &mut out,
            )
            .unwrap();
        out
    }

    #[test]
    fn many_hits_are_found_in_passes() {
        let rows = 5000_u32;
        let allow = RowSet::from_rows(rows, (0..rows).filter(|row| row % 7 != 0));
        // Costs of rows in a scrambled order, many of them equal.
        let cost = |query: f32, row: u32| query + (row.wrapping_mul(2_654_435_761) >> 23) as f32;
        let best = |query: f32, k: usize, words: &[u64]| {
            let set = |row: &u32| words[*row as usize / 64] >> (row % 64) & 1 == 1;
            let mut all: Vec<(f32, u32)> =
                (0..rows).filter(set).map(|row| (cost(query, row), row)).collect();
            all.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
            all.truncate(k);
            all
        };
        let search = |query: &Queries, k: usize, words: &[u64]| {
            assert!(k <= gpu::K_MAX);
            let Queries::Floats(query) = query else { panic!("other queries") };
            Ok(best(query[0], k, words))
        };
        let every = RowSet::all(rows);
        for kept in [gpu::K_MAX + 1, 4000, 16_384] {
            for filter in [None, Some(&allow)] {
                let words = filter.map(RowSet::words);
                let found = in_passes(
                    &Queries::Floats(&[1.0, -3.0]),
                    1,
                    rows as usize,
                    kept,
                    words,
                    search,
                )
                .unwrap();
                let words = filter.unwrap_or(&every).words();
                assert_eq!(found, [best(1.0, kept, words), best(-3.0, kept, words)]);
            }
        }
    }

    #[test]
    fn gpu_and_cpu_results_are_equal() {
        let codes = gpu::Codes::Bytes { codes: &[1; 4], scales: &[1.0; 2] };
        assert!(upload(BYTES_MIN - 1, &Rows { dims: 2, codes, squares: None }).is_none());
        if let Err(error) = start(&GpuOptions::default()) {
            assert!(
                upload(BYTES_MIN, &Rows { dims: 2, codes, squares: None }).is_none()
                    && !has_room_for(ROWS, DIMS)
            );
            assert_eq!(counters(), DeviceCounters::default());
            return println!("SKIPPED the comparison with a GPU: {error}");
        }
        let vectors = numbers(ROWS * DIMS);
        let few = RowSet::from_rows(ROWS as u32, (0..ROWS as u32).filter(|row| row % 3 == 1));
        for metric in [Metric::Cosine, Metric::Dot, Metric::L2] {
            let built = build(
                CoarseKind::Auto,
                &CoarseBuild {
                    vectors: &vectors,
                    dims: DIMS,
                    metric,
                    threads: BuildThreads::of(2),
                    seed: 1,
                },
            );
            let built = built.unwrap().index;
            let sections = built.sections();
            let sections: Vec<(u32, &[u8])> =
                sections.iter().map(|(kind, bytes)| (*kind, &**bytes)).collect();
            let before = counters().queries;
            let opened = open(&sections).unwrap();
            for allow in [None, Some(&few)] {
                let queries = &vectors[..19 * DIMS];
                assert_eq!(hits(&*opened, queries, allow), hits(&*built, queries, allow));
            }
            assert_eq!(counters().queries, before + 2 * 19);
        }
    }
}
