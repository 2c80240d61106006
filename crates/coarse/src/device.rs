//! Rows of large flat indexes on a GPU, if one was opened for the process.
//!
//! Failures here are harmless: the index keeps its codes in memory and ranks on the CPU whenever
//! the GPU does not. For byte codes the GPU computes the same costs to the last bit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use base::{Error, Result};
pub use gpu::GpuOptions;
use gpu::{Coding, DeviceRows, Gpu, Queries, RowPlacement, Rows};
use kernels::TopK;

use crate::RowSet;

/// Bytes of codes from which an index is copied to the GPU. The CPU scans fewer in about a
/// millisecond, the time of a few launches and copies.
pub(crate) const BYTES_MIN: usize = 16 << 20;
/// Maximum queries per GPU call.
pub(super) const QUERIES_MAX: usize = 256;
/// A hit after all others: a search that continues after it finds nothing.
const LAST_HIT: (f32, u32) = (f32::INFINITY, u32::MAX);

/// GPU of the process.
static GPU: OnceLock<Arc<Gpu>> = OnceLock::new();
/// Number of queries ranked by the GPU.
static SEARCHES: AtomicU64 = AtomicU64::new(0);
/// Number of failed copies or rankings, after which the CPU ranked.
static FALLBACKS: AtomicU64 = AtomicU64::new(0);
/// See [`DeviceCounters::limited`].
static LIMITED: AtomicU64 = AtomicU64::new(0);
/// See [`DeviceCounters::passes`].
static PASSES: AtomicU64 = AtomicU64::new(0);
/// True once a fallback was logged.
static FALLBACK_LOGGED: AtomicBool = AtomicBool::new(false);

/// Counts since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Number of queries ranked by the GPU.
    pub queries: u64,
    /// Failed copies or rankings, after which the CPU ranked.
    pub fallbacks: u64,
    /// Number of queries for more than [`gpu::K_MAX`] rows that the CPU ranked, because several
    /// passes over codes in pinned memory take longer.
    pub limited: u64,
    /// Number of passes over codes for queries for more than [`gpu::K_MAX`] rows.
    pub passes: u64,
    /// Number of queries that ran in a search of another thread, with one pass over the codes.
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
    DeviceCounters {
        queries: SEARCHES.load(Ordering::Relaxed),
        fallbacks: FALLBACKS.load(Ordering::Relaxed),
        limited: LIMITED.load(Ordering::Relaxed),
        passes: PASSES.load(Ordering::Relaxed),
        joined: gpu.map_or(0, |gpu| gpu.joined()),
        device_bytes: gpu.map_or(0, |gpu| gpu.device_bytes()),
        pinned_bytes: gpu.map_or(0, |gpu| gpu.pinned_bytes()),
    }
}

/// Returns true if a new index should be flat, so that the GPU searches it. The GPU must be open,
/// the codes large enough for it, and its memory must have room for them.
pub(super) fn has_room_for(rows: usize, dims: usize) -> bool {
    // Squared lengths are needed for distances only.
    let bytes = Coding::Bytes.device_bytes(rows, dims, true);
    let left = |gpu: &Arc<Gpu>| gpu.device_bytes_left().is_ok_and(|left| bytes <= left);
    rows * dims >= BYTES_MIN && GPU.get().is_some_and(left)
}

/// Copies rows to the GPU if there is one, `bytes` of codes are enough and it has room.
pub(super) fn upload(bytes: usize, rows: &Rows) -> Option<Arc<DeviceRows>> {
    let gpu = GPU.get().filter(|_| bytes >= BYTES_MIN)?;
    gpu.upload(rows, RowPlacement::Auto).inspect_err(record_fallback).ok().map(Arc::new)
}

/// Offers the best rows of each query to its list. Returns false, without an offer, if the CPU has
/// to rank.
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
    let count = match queries {
        Queries::Bytes { scales, .. } => scales.len(),
        Queries::Floats(values) => values.len() / rows.dims(),
    };
    if kept > gpu::K_MAX && rows.is_pinned() {
        LIMITED.fetch_add(count as u64, Ordering::Relaxed);
        return false;
    }
    let found = if kept > gpu::K_MAX {
        let search = |k: usize, after: &[(f32, u32)]| {
            PASSES.fetch_add(1, Ordering::Relaxed);
            rows.search_after(queries, k, words, after)
        };
        in_passes(count, kept, search)
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

/// Returns the best `kept` rows of each of `count` queries, best first, by searches for at most
/// [`gpu::K_MAX`] rows of each. `search` continues after the hits of its second argument, one a
/// query, or begins with the best rows if there are none.
fn in_passes(
    count: usize,
    kept: usize,
    search: impl Fn(usize, &[(f32, u32)]) -> Result<Vec<Vec<(f32, u32)>>>,
) -> Result<Vec<Vec<(f32, u32)>>> {
    let mut found = vec![Vec::new(); count];
    let mut last = Vec::new();
    let mut left = kept;
    while left > 0 {
        let k = left.min(gpu::K_MAX);
        let next = search(k, &last)?;
        // Fewer hits than requested are all that a query has.
        last = next.iter().map(|hits| hits.get(k - 1).copied().unwrap_or(LAST_HIT)).collect();
        for (found, next) in found.iter_mut().zip(next) {
            found.extend(next);
        }
        if last.iter().all(|hit| *hit == LAST_HIT) {
            break;
        }
        left -= k;
    }
    Ok(found)
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
        // Costs of rows in a scrambled order, many of them equal. The second query has few rows.
        let rows = [5000_u32, 2500];
        let cost = |row: u32| (row.wrapping_mul(2_654_435_761) >> 23) as f32;
        let all = rows.map(|rows| {
            let mut all: Vec<(f32, u32)> = (0..rows).map(|row| (cost(row), row)).collect();
            all.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
            all
        });
        for (kept, expected) in [(gpu::K_MAX + 1, 2), (4000, 3), (16_384, 3)] {
            let passes = std::cell::Cell::new(0);
            let search = |k: usize, after: &[(f32, u32)]| {
                assert!(k <= gpu::K_MAX && [0, all.len()].contains(&after.len()));
                passes.set(passes.get() + 1);
                let behind = |query: usize, hit: &(f32, u32)| {
                    after.get(query).is_none_or(|last| (hit.0, hit.1) > *last)
                };
                let best = |(query, all): (usize, &Vec<(f32, u32)>)| -> Vec<(f32, u32)> {
                    all.iter().filter(|hit| behind(query, hit)).take(k).copied().collect()
                };
                Ok(all.iter().enumerate().map(best).collect())
            };
            let found = in_passes(all.len(), kept, search).unwrap();
            for (found, all) in found.iter().zip(&all) {
                assert_eq!(found[..], all[..kept.min(all.len())]);
            }
            // All queries share the passes.
            assert_eq!(passes.get(), expected, "{kept}");
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
