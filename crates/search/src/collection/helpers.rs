//! Parts of one query on several threads.
//!
//! A query with many segments, or with long lists in its largest segment, offers parts to search
//! threads. These threads are not busy with a query of their own. A thread that helps stops as soon
//! as a query waits. The result is the same, bit for bit, with any number of helpers. Parts are
//! independent of each other, and work that depends on the order of segments stays with the owner.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use base::{Error, Result};
use coarse::parts::SharedParts;
use coarse::{
    CoarseRequest, PartedScan, RabitqCandidate, ReadCodes, RowSet, ScanHelpers, ScanParams,
};
use parking_lot::Mutex;

use super::best::{BestPoints, QueryHits, note_lost};
use super::deferred::{DEFERRED_HITS_MAX, DeferredRows};
use super::inner::Collection;
use super::scan::{PartLimit, note_pause};
use super::search::{CollectionQuery, HitScores, RunningQuery, SearchThread, codes_reader};
use super::state::SegmentView;
use crate::filter::Filter;
use crate::segment::{CodeReader, Segment};

/// Search threads that may take parts of a query.
pub(crate) trait Helpers: Send + Sync {
    /// Returns the number of threads that are not busy with a query.
    fn idle(&self) -> usize;

    /// Offers `work` to up to `count` threads. They may accept late or never.
    fn offer(&self, count: usize, work: Arc<dyn HelpWork>);

    /// Returns true if a query waits for a thread, so helpers should leave.
    fn queries_wait(&self) -> bool;
}

/// Work of which a thread can take parts.
pub(crate) trait HelpWork: Send + Sync {
    /// Returns true if a part is left.
    fn is_left(&self) -> bool;

    /// Does parts until none is left or a query waits. Returns their number.
    fn help(&self, collection: &Collection, thread: &mut SearchThread) -> usize;
}

impl SearchThread {
    /// Lets queries of this thread offer parts to `helpers`.
    pub(crate) fn set_helpers(&mut self, helpers: Arc<dyn Helpers>) {
        self.helpers = Some(helpers);
    }

    /// Returns the helpers if a search thread is idle.
    pub(super) fn idle_helpers(&self) -> Option<Arc<dyn Helpers>> {
        self.helpers.clone().filter(|helpers| helpers.idle() > 0)
    }

    /// Returns true if a query waits for a thread, so this helper should leave.
    pub(super) fn queries_wait(&self) -> bool {
        self.helpers.as_ref().is_some_and(|helpers| helpers.queries_wait())
    }

    /// Returns [`SearchThread::queries_wait`] as a function that does not borrow the thread.
    pub(super) fn leave_check(&self) -> impl Fn() -> bool + Sync + use<> {
        let helpers = self.helpers.clone();
        move || helpers.as_ref().is_some_and(|helpers| helpers.queries_wait())
    }
}

/// Helpers for the lists of one segment.
pub(super) struct ListHelpers<'a> {
    pub(super) helpers: &'a dyn Helpers,
    pub(super) segment: &'a Arc<Segment>,
    pub(super) allow: Option<&'a Arc<RowSet>>,
    /// Time after which helpers read no codes.
    pub(super) deadline: Option<Instant>,
    /// Search of several segments that this one belongs to.
    pub(super) search: Option<&'a SegmentsSearch>,
    /// Codes that helpers did not read, once lists were offered.
    pub(super) unread: OnceCell<Arc<UnreadCodes>>,
}

impl ListHelpers<'_> {
    /// Adds the codes that helpers did not read to the result of the query.
    pub(super) fn note_unread(&self, found: &mut QueryHits) {
        if let Some(unread) = self.unread.get() {
            note_lost(found, unread.lost.load(Ordering::Relaxed));
            found.partial |= unread.late.load(Ordering::Relaxed);
        }
    }
}

/// Codes on the medium that helpers of one scan did not read.
#[derive(Debug, Default)]
pub(super) struct UnreadCodes {
    /// Rows whose codes are damaged.
    lost: AtomicU64,
    /// True if codes were not read because the deadline had passed.
    late: AtomicBool,
}

impl UnreadCodes {
    fn add(&self, codes: &CodeReader<'_>) {
        self.lost.fetch_add(codes.lost(), Ordering::Relaxed);
        self.late.fetch_or(codes.is_late(), Ordering::Relaxed);
    }
}

impl ScanHelpers for ListHelpers<'_> {
    fn idle(&self) -> usize {
        let idle = self.helpers.idle();
        let rows = u64::from(self.segment.index().rows());
        let divides = self.search.is_none_or(|search| search.divides(rows, idle));
        if divides { idle } else { 0 }
    }

    fn offer(&self, count: usize, scan: Arc<PartedScan>) {
        let lists = Arc::new(ListScan {
            segment: self.segment.clone(),
            allow: self.allow.cloned(),
            deadline: self.deadline,
            scan,
            unread: self.unread.get_or_init(Arc::default).clone(),
        });
        if let Some(search) = self.search {
            search.offer_lists(lists.clone());
        }
        self.helpers.offer(count, lists);
    }
}

/// Lists of one segment.
struct ListScan {
    segment: Arc<Segment>,
    allow: Option<Arc<RowSet>>,
    deadline: Option<Instant>,
    scan: Arc<PartedScan>,
    unread: Arc<UnreadCodes>,
}

impl ListScan {
    /// Scans parts until none is left or `leave` returns true. Returns their number.
    fn run(
        &self,
        collection: &Collection,
        thread: &mut SearchThread,
        leave: &dyn Fn() -> bool,
    ) -> usize {
        // Dropped last: the owner then reads `unread`.
        let _helper = self.scan.enter();
        collection.ready_codes(thread, &self.segment);
        let SearchThread { scratch, codes, .. } = thread;
        let codes = self.segment.codes(codes_reader(codes), self.deadline);
        let request = CoarseRequest {
            allow: self.allow.as_deref(),
            codes: codes.as_ref().map(|codes| codes as &dyn ReadCodes),
            ..CoarseRequest::best(0)
        };
        let parts = self.segment.index().scan_parts(&self.scan, &request, scratch, leave);
        if let Some(codes) = &codes {
            self.unread.add(codes);
        }
        parts
    }
}

impl HelpWork for ListScan {
    fn is_left(&self) -> bool {
        self.scan.is_left()
    }

    fn help(&self, collection: &Collection, thread: &mut SearchThread) -> usize {
        let leave = thread.leave_check();
        self.run(collection, thread, &leave)
    }
}

/// Query over several segments, which owns all that a helper needs of it.
pub(super) struct SegmentsSearch {
    embedding: Vec<f32>,
    params: ScanParams,
    filter: Option<Filter>,
    exact: bool,
    deadline: Option<Instant>,
    /// Limits of passes over payloads: the limits of the owner, who waits for helpers.
    limit: PartLimit,
    count: usize,
    /// Segments in the order of the search, with their numbers in the state.
    segments: Vec<(u32, SegmentView)>,
    /// Rows of the segments from each index in `segments` on, or 0 at the end.
    rows_from: Vec<u64>,
    /// Lists that threads of this search scan, at most one scan a thread.
    lists: Mutex<Vec<Arc<ListScan>>>,
    /// True if the floor does not affect which rows are found. Segments can then use the newest.
    floor_is_exact: bool,
    parts: SharedParts,
    found: Mutex<SharedHits>,
}

/// Hits of all threads so far.
struct SharedHits {
    best: BestPoints<'static>,
    /// Results of segments whose order matters, by place in `segments`.
    waiting: Vec<Option<SegmentCandidates>>,
    partial: bool,
    damaged: u64,
    error: Option<Error>,
    /// True if a helper paused a pass over payloads at the end of the owner's slice.
    paused: bool,
}

/// Result of a segment before the floor is known.
enum SegmentCandidates {
    Hits(Vec<coarse::CoarseHit>),
    /// Rows to compare exactly together with those of other segments. Scores are upper bounds.
    Bounds(Vec<coarse::CoarseHit>),
    Candidates(Vec<RabitqCandidate>),
}

impl SegmentsSearch {
    pub(super) fn new(
        query: &CollectionQuery<'_>,
        count: usize,
        floor: f32,
        segments: Vec<(u32, SegmentView)>,
    ) -> SegmentsSearch {
        let floor_is_exact = segments.iter().all(|(_, view)| view.segment.index().floor_is_exact());
        let best = BestPoints::new(count, floor);
        let waiting = segments.iter().map(|_| None).collect();
        let mut rows_from = vec![0; segments.len() + 1];
        for (place, (_, view)) in segments.iter().enumerate().rev() {
            rows_from[place] = rows_from[place + 1] + u64::from(view.segment.index().rows());
        }
        let found =
            SharedHits { best, waiting, partial: false, damaged: 0, error: None, paused: false };
        SegmentsSearch {
            embedding: query.embedding.to_vec(),
            params: query.params,
            filter: query.filter.cloned(),
            exact: query.exact,
            deadline: query.deadline,
            limit: PartLimit::of_this_thread(query.deadline),
            count,
            floor_is_exact,
            parts: SharedParts::new(segments.len()),
            segments,
            rows_from,
            lists: Mutex::default(),
            found: Mutex::new(found),
        }
    }

    /// Returns true if the lists of a segment of `rows` rows should be divided. Then `idle` threads
    /// can search the segments that are left before one thread has searched this one. Otherwise
    /// whole segments use the threads better, because their reads are in flight together.
    fn divides(&self, rows: u64, idle: usize) -> bool {
        let left = self.rows_from[self.segments.len() - self.parts.unclaimed()];
        left < rows.saturating_mul(idle as u64)
    }

    /// Returns true if exact comparisons wait until all segments are searched, and then run
    /// together. Needs an exact query whose indexes give bounds of scores.
    pub(super) fn defers(&self) -> bool {
        self.exact && self.floor_is_exact && self.count <= DEFERRED_HITS_MAX
    }

    /// Offers lists of a segment to the owner, which may wait for the thread that scans them.
    fn offer_lists(&self, lists: Arc<ListScan>) {
        let mut offered = self.lists.lock();
        offered.retain(|lists| lists.is_left());
        offered.push(lists);
        drop(offered);
        self.parts.wake();
    }

    /// Scans lists of the segments that helpers still search. Only the owner calls this, if no
    /// segment is left.
    fn help_helpers(&self, collection: &Collection, thread: &mut SearchThread) {
        let find = || self.lists.lock().iter().find(|lists| lists.is_left()).cloned();
        while let Some(lists) = self.parts.wait_or(find) {
            lists.run(collection, thread, &|| false);
        }
    }

    /// Returns the segments that helpers can take.
    pub(super) fn parts(&self) -> usize {
        self.segments.len()
    }

    /// Searches segments until all are claimed, scans lists of helpers until they are done, and
    /// offers all hits to `best`. For the owner.
    ///
    /// # Errors
    /// The first error of a segment.
    pub(super) fn finish(
        &self,
        running: &mut RunningQuery<'_>,
        best: &mut BestPoints<'_>,
    ) -> Result<()> {
        let _owner = self.parts.owner();
        while let Some(part) = self.parts.claim() {
            self.search_segment(part, running.collection, running.thread);
        }
        self.help_helpers(running.collection, running.thread);
        self.parts.wait()?;
        let mut shared = self.found.lock();
        if shared.paused {
            note_pause();
        }
        if let Some(error) = shared.error.take() {
            return Err(error);
        }
        running.found.partial |= shared.partial;
        running.found.damaged += shared.damaged;
        std::mem::take(&mut shared.best.ranked).into_iter().for_each(|hit| best.offer(hit));
        let waiting = std::mem::take(&mut shared.waiting);
        drop(shared);
        let mut deferred = DeferredRows::default();
        for (place, ((at, view), result)) in self.segments.iter().zip(waiting).enumerate() {
            match result {
                None => {}
                Some(SegmentCandidates::Bounds(bounds)) => deferred.add(place, &bounds),
                Some(SegmentCandidates::Hits(hits)) => best.offer_hits(*at, view, &hits),
                Some(SegmentCandidates::Candidates(candidates)) => {
                    running.compare_segment(view, self.request(best.floor), &candidates)?;
                    best.offer_hits(*at, view, &running.thread.hits);
                }
            }
            best.keep();
        }
        best.keep();
        let vectors = &mut *running.thread.vectors;
        deferred.compare(vectors, &self.embedding, &self.segments, best, running.found)
    }

    fn query(&self) -> CollectionQuery<'_> {
        CollectionQuery {
            params: self.params,
            filter: self.filter.as_ref(),
            exact: self.exact,
            deadline: self.deadline,
            ..CollectionQuery::nearest(&self.embedding, self.count)
        }
    }

    fn request(&self, floor: f32) -> CoarseRequest<'static> {
        CoarseRequest { params: self.params, floor, ..CoarseRequest::best(self.count) }
    }

    /// Searches one segment. Adds its hits to the best ones, or keeps its candidates for the owner
    /// if rows are compared exactly later.
    fn search_segment(&self, part: usize, collection: &Collection, thread: &mut SearchThread) {
        let (at, view) = &self.segments[part];
        let mut found = QueryHits::default();
        let floor = {
            let shared = self.found.lock();
            // The query fails, or runs again after a pause.
            if shared.error.is_some() {
                return;
            }
            shared.best.floor
        };
        let request = self.request(floor);
        let waits = !self.floor_is_exact;
        let two_steps = waits && self.exact && !view.segment.index().floor_is_exact();
        let query = self.query();
        let mut running = RunningQuery { collection, thread, query: &query, found: &mut found };
        let result = if two_steps {
            running.segment_candidates(view, request).map(SegmentCandidates::Candidates)
        } else {
            running.coarse_segment(view, request, Some(self)).map(|scores| {
                let hits = std::mem::take(&mut running.thread.hits);
                match scores {
                    HitScores::Final => SegmentCandidates::Hits(hits),
                    HitScores::UpperBounds => SegmentCandidates::Bounds(hits),
                }
            })
        };
        let mut shared = self.found.lock();
        shared.partial |= running.found.partial;
        shared.damaged += running.found.damaged;
        match result {
            Ok(SegmentCandidates::Hits(hits)) if !waits => {
                shared.best.offer_hits(*at, view, &hits);
                shared.best.keep();
                running.thread.hits = hits;
            }
            Ok(result) => shared.waiting[part] = Some(result),
            Err(error) => shared.error = shared.error.take().or(Some(error)),
        }
    }
}

impl HelpWork for SegmentsSearch {
    fn is_left(&self) -> bool {
        self.parts.is_left()
    }

    fn help(&self, collection: &Collection, thread: &mut SearchThread) -> usize {
        let _helper = self.parts.enter();
        let mut parts = 0;
        while !thread.queries_wait()
            && let Some(part) = self.parts.claim()
        {
            if self.limit.run(|| self.search_segment(part, collection, thread)) {
                self.found.lock().paused = true;
            }
            parts += 1;
        }
        parts
    }
}

/// Open segments with their numbers, largest first. The largest hold most of the result, so the
/// others have little left to read.
pub(super) struct SegmentOrder<'v>(Vec<(u32, &'v SegmentView)>);

impl<'v> SegmentOrder<'v> {
    pub(super) fn new(views: impl Iterator<Item = &'v SegmentView>) -> SegmentOrder<'v> {
        let mut order: Vec<(u32, &SegmentView)> = (0..).zip(views).collect();
        order.sort_by_key(|(_, view)| std::cmp::Reverse(view.segment.index().rows()));
        SegmentOrder(order)
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (u32, &'v SegmentView)> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
#[path = "helpers_tests.rs"]
pub(super) mod tests;
