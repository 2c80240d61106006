//! Lists of one search, scanned by several threads.
//!
//! The thread that searches claims parts like every helper. Each collects its own best rows, and
//! the owner joins them. The best rows of all lists do not depend on the thread that scanned a
//! list. So the result is the same with any number of threads. If the codes are on a medium, each
//! thread reads the lists of its parts.

use std::sync::Arc;

use base::{Error, Result};
use parking_lot::Mutex;

use crate::parts::{PartsHelper, PartsOwner, SharedParts};

/// Number of rows of the probed lists from which parts are offered. A core scans them in about the
/// time that an idle thread takes to wake up.
const ROWS_MIN: usize = 16 << 10;
/// Number of rows of a part, so that claims cost little.
const PART_ROWS: usize = 4 << 10;
/// Maximum number of lists of a part on a medium, if they hold [`PART_ROWS`] rows. A thread has the
/// reads of that many lists in flight, two a list. Shorter lists have fewer bytes, so a part can
/// have more.
const MEDIUM_LISTS_MAX: usize = 32;

/// Idle threads that may scan lists of a search.
pub trait ScanHelpers {
    /// Returns the number of threads that are not busy with a query.
    fn idle(&self) -> usize;

    /// Offers `scan` to up to `count` threads. A thread that accepts the offer calls
    /// [`super::Coarse::scan_parts`] of the same index with the same allowed rows. Threads may
    /// accept late or never.
    fn offer(&self, count: usize, scan: Arc<PartedScan>);
}

/// Lists that one thread would scan without helpers.
pub(super) struct OfferedLists<'a> {
    /// Query as the index compares it.
    pub(super) query: &'a [f32],
    /// Cost of the centre, and number, of each list.
    pub(super) lists: &'a [(f32, u32)],
    /// Number of rows of all lists.
    pub(super) rows: usize,
    /// Number of rows that each thread keeps.
    pub(super) kept: usize,
    /// True if threads read the codes from a medium.
    pub(super) on_medium: bool,
}

impl OfferedLists<'_> {
    /// Returns the number of lists of a part for `threads` threads.
    fn step(&self, threads: usize) -> usize {
        let count = self.lists.len();
        let step = (count * PART_ROWS / self.rows.max(1)).max(1);
        if !self.on_medium {
            return step;
        }
        // All reads of a part are in flight together, so long parts wait less. Each thread gets
        // equally many parts, so that the threads end together.
        let rounds = count.div_ceil(threads * MEDIUM_LISTS_MAX).max(1);
        count.div_ceil(threads * rounds).max(step)
    }
}

/// Lists to scan, and the rows that helpers found.
#[derive(Debug)]
pub struct PartedScan {
    /// Query as the index compares it.
    pub(super) query: Vec<f32>,
    /// Cost of the centre, and number, of each list.
    lists: Vec<(f32, u32)>,
    /// Number of lists of a part.
    step: usize,
    /// Number of rows that each thread keeps.
    pub(super) kept: usize,
    parts: SharedParts,
    found: Mutex<HelperRows>,
}

/// Results of the helpers so far.
#[derive(Debug, Default)]
struct HelperRows {
    /// Cost and number of each row.
    rows: Vec<(f32, u32)>,
    error: Option<Error>,
}

impl PartedScan {
    /// Offers the scan of `offered`. Returns `None` if the caller should scan the lists alone. They
    /// are then short, or no thread is idle.
    pub(super) fn offer(
        helpers: Option<&dyn ScanHelpers>,
        offered: &OfferedLists<'_>,
    ) -> Option<Arc<PartedScan>> {
        let long = offered.rows >= ROWS_MIN && offered.lists.len() > 1;
        let helpers = helpers.filter(|_| long)?;
        let idle = helpers.idle();
        if idle == 0 {
            return None;
        }
        let step = offered.step(idle + 1);
        let count = offered.lists.len().div_ceil(step);
        let scan = Arc::new(PartedScan {
            query: offered.query.to_vec(),
            lists: offered.lists.to_vec(),
            step,
            kept: offered.kept,
            parts: SharedParts::new(count),
            found: Mutex::default(),
        });
        helpers.offer(idle.min(count - 1), scan.clone());
        Some(scan)
    }

    /// Returns true if a part is left.
    pub fn is_left(&self) -> bool {
        self.parts.is_left()
    }

    /// Returns the next lists, or `None` if all are claimed.
    pub(super) fn claim(&self) -> Option<&[(f32, u32)]> {
        let start = self.parts.claim()? * self.step;
        Some(&self.lists[start..self.lists.len().min(start + self.step)])
    }

    /// Returns a guard for the owner, which drops all parts that are left at its end.
    pub(super) fn owner(&self) -> PartsOwner<'_> {
        self.parts.owner()
    }

    /// Registers a helper before its first claim. The owner waits until the guard is dropped.
    pub fn enter(&self) -> PartsHelper<'_> {
        self.parts.enter()
    }

    /// Adds the best rows of a helper: cost and row.
    pub(super) fn add(&self, found: impl Iterator<Item = (f32, u32)>) {
        self.found.lock().rows.extend(found);
    }

    /// Records the error of a helper, and drops the parts that are not claimed yet.
    pub(super) fn fail(&self, error: Error) {
        self.parts.stop();
        self.found.lock().error.get_or_insert(error);
    }

    /// Waits for the helpers and returns the rows that they added.
    ///
    /// # Errors
    /// The first error of a helper; `Internal` if a helper panicked.
    pub(super) fn finish(&self) -> Result<Vec<(f32, u32)>> {
        self.parts.wait()?;
        let HelperRows { rows, error } = std::mem::take(&mut *self.found.lock());
        match error {
            Some(error) => Err(error),
            None => Ok(rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use base::ErrorKind;

    use super::*;
    use crate::{
        BuildThreads, Coarse, CoarseBuild, CoarseKind, CoarseRequest, CoarseScratch, CodeBlock,
        CodeRange, Metric, ReadCodes, RowSet, ScanParams, build, open_on_medium, section,
    };

    const DIMS: usize = 8;
    const ROWS: usize = 20_000;

    /// Helper that starts at once and stops after some parts.
    struct EagerHelper<'a> {
        index: &'a dyn Coarse,
        allow: Option<&'a RowSet>,
        codes: Option<&'a dyn ReadCodes>,
        parts: usize,
        done: AtomicUsize,
    }

    /// Codes of an index, which lie in memory.
    struct SectionCodes {
        sections: Vec<(u32, Vec<u8>)>,
        /// True if each read fails.
        fails: bool,
        /// Groups of rows whose bytes were read.
        byte_groups: AtomicUsize,
        /// Ranges of codes of lists that were read.
        list_ranges: AtomicUsize,
    }

    /// Copy of a range of [`SectionCodes`].
    struct MemoryBlock {
        bytes: Vec<u8>,
        floats: Vec<f32>,
    }

    impl CodeBlock for MemoryBlock {
        fn bytes(&self) -> &[u8] {
            &self.bytes
        }

        fn floats(&self) -> &[f32] {
            &self.floats
        }
    }

    impl SectionCodes {
        fn new(sections: &[(u32, Vec<u8>)], fails: bool) -> SectionCodes {
            let sections = sections.to_vec();
            let (byte_groups, list_ranges) = Default::default();
            SectionCodes { sections, fails, byte_groups, list_ranges }
        }
    }

    impl ReadCodes for SectionCodes {
        fn read(
            &self,
            wanted: &[CodeRange],
            out: &mut Vec<Option<Arc<dyn CodeBlock>>>,
        ) -> Result<()> {
            if self.fails {
                return Err(Error::unavailable("on purpose"));
            }
            out.clear();
            for range in wanted {
                match range.kind {
                    section::BYTE_CODES => self.byte_groups.fetch_add(1, Ordering::Relaxed),
                    section::CODES => self.list_ranges.fetch_add(1, Ordering::Relaxed),
                    _ => 0,
                };
                let of_kind = |(kind, _): &&(u32, Vec<u8>)| *kind == range.kind;
                let (_, bytes) = self.sections.iter().find(of_kind).unwrap();
                let start = range.start as usize;
                let bytes = &bytes[start..start + range.bytes];
                let block = if range.floats {
                    let values = bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it));
                    MemoryBlock { bytes: Vec::new(), floats: values.collect() }
                } else {
                    MemoryBlock { bytes: bytes.to_vec(), floats: Vec::new() }
                };
                out.push(Some(Arc::new(block)));
            }
            Ok(())
        }
    }

    impl ScanHelpers for EagerHelper<'_> {
        fn idle(&self) -> usize {
            1
        }

        fn offer(&self, _: usize, scan: Arc<PartedScan>) {
            let checks = AtomicUsize::new(0);
            let leave = || checks.fetch_add(1, Ordering::Relaxed) >= self.parts;
            let mut scratch = CoarseScratch::default();
            let EagerHelper { allow, codes, .. } = *self;
            let request = CoarseRequest { allow, codes, ..CoarseRequest::best(0) };
            let parts = self.index.scan_parts(&scan, &request, &mut scratch, &leave);
            self.done.fetch_add(parts, Ordering::Relaxed);
        }
    }

    /// Returns vectors with few distinct values, so that many costs are equal.
    fn vectors() -> Vec<f32> {
        let value = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 8;
        (0..(ROWS * DIMS) as u64).map(|at| value(at) as f32).collect()
    }

    fn built(vectors: &[f32]) -> Box<dyn Coarse> {
        let threads = BuildThreads::of(2);
        let plan = CoarseBuild { vectors, dims: DIMS, metric: Metric::L2, threads, seed: 1 };
        build(CoarseKind::IvfPq, &plan).unwrap().index
    }

    fn sections_of(index: &dyn Coarse) -> Vec<(u32, Vec<u8>)> {
        index.sections().into_iter().map(|(kind, bytes)| (kind, bytes.into_owned())).collect()
    }

    fn on_medium(sections: &[(u32, Vec<u8>)]) -> Box<dyn Coarse> {
        let parts: Vec<(u32, &[u8])> =
            sections.iter().map(|(kind, bytes)| (*kind, bytes.as_slice())).collect();
        let medium =
            open_on_medium(&|kind| section::find(&parts, kind).map(Cow::Borrowed), &|kind| {
                section::find(&parts, kind).map(|bytes| bytes.len() as u64)
            });
        medium.unwrap()
    }

    #[test]
    fn a_search_of_all_rows_reads_each_group_of_codes_once() {
        let vectors = vectors();
        let sections = sections_of(&*built(&vectors));
        let codes = SectionCodes::new(&sections, false);
        let params = ScanParams::EXACT;
        let request = CoarseRequest { params, codes: Some(&codes), ..CoarseRequest::best(10) };
        let mut hits = Vec::new();
        let mut scratch = CoarseScratch::default();
        on_medium(&sections).search(&vectors[..DIMS], &request, &mut scratch, &mut hits).unwrap();
        assert_eq!(hits.len(), 10);
        // A group has 4096 bytes.
        assert_eq!(codes.byte_groups.load(Ordering::Relaxed), ROWS.div_ceil(4096 / DIMS));
    }

    #[test]
    fn few_allowed_rows_of_lists_are_ranked_by_their_bytes() {
        let vectors = vectors();
        let sections = sections_of(&*built(&vectors));
        let index = on_medium(&sections);
        let few = RowSet::from_rows(ROWS as u32, (0..ROWS as u32).step_by(40));
        let params = ScanParams { probes: 2, refine: 20 };
        let list_ranges = |allow: Option<&RowSet>| {
            let codes = SectionCodes::new(&sections, false);
            let codes_of = Some(&codes as &dyn ReadCodes);
            let request =
                CoarseRequest { params, allow, codes: codes_of, ..CoarseRequest::best(10) };
            let mut hits = Vec::new();
            let mut scratch = CoarseScratch::default();
            index.search(&vectors[..DIMS], &request, &mut scratch, &mut hits).unwrap();
            assert_eq!(hits.len(), 10);
            assert!(allow.is_none_or(|allow| hits.iter().all(|hit| allow.contains(hit.row))));
            codes.list_ranges.load(Ordering::Relaxed)
        };
        assert_eq!(list_ranges(Some(&few)), 0);
        assert!(list_ranges(None) > 0);
    }

    #[test]
    fn helpers_do_not_change_the_rows_of_lists() {
        let vectors = vectors();
        let memory = built(&vectors);
        let sections = sections_of(&*memory);
        let medium = on_medium(&sections);
        let codes = SectionCodes::new(&sections, false);
        let allow = RowSet::from_rows(ROWS as u32, (0..ROWS as u32).filter(|row| row % 5 != 0));
        let params = ScanParams { probes: 100_000, refine: 60 };
        let mut scratch = CoarseScratch::default();
        for query in vectors.chunks_exact(DIMS).step_by(1999) {
            for (parts, allow) in [(0, None), (1, None), (2, Some(&allow)), (99, None)] {
                let request = CoarseRequest { params, allow, ..CoarseRequest::best(10) };
                let mut alone = Vec::new();
                memory.search(query, &request, &mut scratch, &mut alone).unwrap();
                for (index, codes) in [(&memory, None), (&medium, Some(&codes as &dyn ReadCodes))] {
                    let done = AtomicUsize::new(0);
                    let helper = EagerHelper { index: &**index, allow, codes, parts, done };
                    let request = CoarseRequest { helpers: Some(&helper), codes, ..request };
                    let mut helped = Vec::new();
                    index.search(query, &request, &mut scratch, &mut helped).unwrap();
                    assert_eq!(helped, alone);
                    let done = helper.done.load(Ordering::Relaxed);
                    assert!(done == parts || parts == 99 && done >= 2, "{done} of {parts}");
                }
            }
        }
        // A helper that cannot read fails the search.
        let failing = SectionCodes::new(&sections, true);
        let done = AtomicUsize::new(0);
        let failing = Some(&failing as &dyn ReadCodes);
        let helper = EagerHelper { index: &*medium, allow: None, codes: failing, parts: 1, done };
        let request = CoarseRequest {
            params,
            helpers: Some(&helper),
            codes: Some(&codes),
            ..CoarseRequest::best(10)
        };
        let error = medium.search(&vectors[..DIMS], &request, &mut scratch, &mut Vec::new());
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn parts_on_a_medium_are_equally_many_for_each_thread() {
        let lists = [(0.0_f32, 0_u32); 70];
        let offered = |rows: usize, on_medium: bool| OfferedLists {
            query: &[],
            lists: &lists,
            rows,
            kept: 1,
            on_medium,
        };
        assert_eq!(offered(70_000, false).step(2), 4);
        // Two parts for each of two threads, one for each of three.
        assert_eq!([2, 3, 70].map(|threads| offered(70_000, true).step(threads)), [18, 24, 4]);
        // Short lists: no part has fewer rows than one in memory.
        assert_eq!(offered(16_384, true).step(8), 17);
    }
}
