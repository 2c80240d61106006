//! Preload of embeddings, payloads and payload indexes into memory that nothing else uses. New
//! segments are read before they replace others that were in memory. Background work reads the
//! other segments.

use std::sync::Arc;

use base::{Error, Result};

use super::inner::Collection;
use super::state::{SegmentSlot, SegmentView};
use crate::segment::{IoStep, PreloadScope, Segment};

impl Collection {
    /// Reads one section of a segment into unused memory, if it has room for all of it. The section
    /// is the embeddings, the payloads or the payload index. Chooses a segment that existed at the
    /// start, or one that requests have often read from the medium. If no points arrive and nothing
    /// is merged, chooses any segment. Returns false if there is no such segment.
    ///
    /// # Errors
    /// The error of the medium.
    pub(crate) fn preload(&self) -> Result<bool> {
        let is_quiet = self.quiet_time() >= self.options.quiet.flush && !self.is_optimizing();
        let scope = |slot: &SegmentSlot| {
            let all = is_quiet || slot.number < self.optimizer.first_new_file;
            if all { PreloadScope::All } else { PreloadScope::Missed }
        };
        let room = self.budget.unused();
        let state = self.state();
        let found = state.open().find_map(|(_, slot, view)| {
            let segment = &view.segment;
            segment.wants_preload(scope(slot), room).then(|| (segment.clone(), scope(slot)))
        });
        drop(state);
        let Some((segment, scope)) = found else { return Ok(false) };
        segment.preload(scope, room, &|bytes| {
            self.pacer.wait(bytes);
            self.check_open()?;
            // A merge may have replaced the segment.
            if Arc::strong_count(&segment) > 1 {
                Ok(())
            } else {
                Err(Error::cancelled("the segment was replaced"))
            }
        })?;
        tracing::debug!(name = segment.name(), "a section was read into memory");
        Ok(true)
    }

    /// Reads sections of a new segment into unused memory, if those of the segments in `replaced`
    /// are mostly there. Searches would read them from the medium otherwise, all at once. An error
    /// only ends the preload. Queries that need a page report it.
    pub(super) fn preload_new(&self, new: &Segment, replaced: &[SegmentView], step: IoStep<'_>) {
        let replaced: Vec<&Segment> = replaced.iter().map(|view| &*view.segment).collect();
        if let Err(error) = new.preload_as(&replaced, step) {
            tracing::debug!(name = new.name(), %error, "a new segment was not read into memory");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use coarse::Metric;
    use os::Rate;
    use storage::UringMedium;
    use storage::page::PAGE_BYTES;
    use storage::superblock::Superblock;

    use super::*;
    use crate::budget::MemoryBudget;
    use crate::collection::helpers::tests::limits;
    use crate::collection::{
        CollectionOptions, CollectionQuery, Merging, PointParts, QuietTimes, Resources,
    };
    use crate::ingest::{Op, PointRef};
    use crate::rerank::SharedCaches;
    use crate::segment::layout::kind;

    const DIMS: usize = 128;
    /// Points of a segment.
    const ROWS: u64 = 1500;
    const MEMORY_BYTES: u64 = 64 << 20;
    /// Bytes of a payload: few fit into a page.
    const PAYLOAD_BYTES: usize = 600;

    fn payload() -> Vec<u8> {
        format!(r#"{{"text":"{}"}}"#, "x".repeat(PAYLOAD_BYTES)).into_bytes()
    }

    fn vector(seed: u64) -> Vec<f32> {
        let value = |at: u64| (seed * 131 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        (0..DIMS as u64).map(|at| value(at) as f32 / (1 << 24) as f32).collect()
    }

    fn opened(root: &std::path::Path, resources: &Resources) -> Collection {
        opened_with(root, resources, QuietTimes::default())
    }

    fn opened_with(root: &std::path::Path, resources: &Resources, quiet: QuietTimes) -> Collection {
        let medium = Arc::new(UringMedium::plain(root.to_owned()).unwrap());
        let merging = Merging { fan_in: 3, ..Merging::default() };
        let options = CollectionOptions::new(DIMS, Metric::L2);
        let options = CollectionOptions { merging, quiet, ..options };
        let shared = Arc::new(SharedCaches::new(0, 512));
        Collection::open(medium, options, resources, shared).unwrap()
    }

    fn add_segment(collection: &Collection, number: u64) {
        let ids = number * ROWS..(number + 1) * ROWS;
        let points: Vec<(u64, Vec<f32>)> = ids.map(|id| (id, vector(id))).collect();
        let payload = &payload();
        let ops: Vec<Op<'_>> = points
            .iter()
            .map(|(id, embedding)| {
                Op::Upsert(PointRef { id: *id, embedding, record: &[], payload })
            })
            .collect();
        collection.apply(&ops).unwrap().commit().unwrap();
        collection.flush().unwrap();
    }

    fn resources() -> Resources {
        resources_of(&MemoryBudget::new(MEMORY_BYTES))
    }

    fn resources_of(budget: &Arc<MemoryBudget>) -> Resources {
        Resources::new(budget.clone(), 8 << 20, Rate::unlimited()).unwrap()
    }

    /// Searches near many points, and reads their payloads.
    fn ask(collection: &Collection) {
        let mut thread = collection.thread(limits()).unwrap();
        for seed in (0..ROWS).step_by(29) {
            let embedding = vector(seed);
            let query = CollectionQuery::nearest(&embedding, 20);
            let hits = collection.nearest(&mut thread, &query).unwrap().hits;
            let ids: Vec<u64> = hits.iter().map(|hit| hit.id).collect();
            let points = collection.points(&ids, PointParts::PAYLOAD);
            assert!(points.into_iter().all(|point| point.unwrap().unwrap().payload == payload()));
        }
    }

    /// Reads embeddings, payloads and payload index into memory, if they are not there.
    fn preload_all(collection: &Collection) {
        assert!(collection.preload().unwrap());
        let again = (0..3).all(|_| collection.preload().unwrap());
        assert!(!again, "one segment has three sections");
    }

    /// Returns the reads of embeddings and payloads so far.
    fn reads(resources: &Resources) -> [u64; 2] {
        let stats = resources.segment_cache_stats();
        [stats.vectors.reads, stats.payloads.reads]
    }

    #[test]
    fn sections_that_requests_miss_are_read_into_free_memory() {
        let root = tempfile::tempdir().unwrap();
        let budget = MemoryBudget::new(MEMORY_BYTES);
        let resources = resources_of(&budget);
        let collection = opened(root.path(), &resources);
        add_segment(&collection, 0);
        assert!(!collection.preload().unwrap(), "nothing was requested");
        ask(&collection);
        let before = reads(&resources);
        assert!(before.iter().all(|count| *count > 64), "{before:?}");
        let held = budget.reserve(budget.unused() - 1000, "other data").unwrap();
        assert!(!collection.preload().unwrap(), "memory has no room");
        drop(held);
        preload_all(&collection);
        let stats = resources.segment_cache_stats();
        assert!(stats.preloaded > 0 && stats.evicted == 0, "{stats:?}");
        // Every row, not only the ones found before.
        let ids: Vec<u64> = (0..ROWS).collect();
        let parts = PointParts { embedding: true, ..PointParts::PAYLOAD };
        assert_eq!(collection.points(&ids, parts).len() as u64, ROWS);
        assert_eq!(reads(&resources), before);
        drop(collection);
        assert_eq!(resources.segment_cache_stats().bytes, 0);
    }

    #[test]
    fn old_segments_are_read_into_free_memory_after_a_start() {
        let root = tempfile::tempdir().unwrap();
        add_segment(&opened(root.path(), &resources()), 0);
        let resources = resources();
        let collection = opened(root.path(), &resources);
        assert!(!collection.open_segments(), "all are open");
        preload_all(&collection);
        ask(&collection);
        assert_eq!(reads(&resources), [0, 0]);
    }

    #[test]
    fn a_damaged_page_is_left_to_the_request_that_needs_it() {
        let root = tempfile::tempdir().unwrap();
        let collection = opened(root.path(), &resources());
        add_segment(&collection, 0);
        let name = collection.state().open().next().unwrap().2.segment.name().to_owned();
        drop(collection);
        let file = root.path().join(name);
        let mut bytes = std::fs::read(&file).unwrap();
        let sections = Superblock::decode(&bytes[..PAGE_BYTES]).unwrap().sections;
        let vectors = sections.iter().find(|section| section.kind == kind::VECTORS).unwrap();
        bytes[vectors.offset as usize + PAGE_BYTES] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let resources = resources();
        let collection = opened(root.path(), &resources);
        assert!(!collection.open_segments(), "all are open");
        preload_all(&collection);
        let state = collection.state();
        assert!(!state.open().any(|(_, _, view)| view.loses_data()), "no request needed it");
        let ids: Vec<u64> = (0..ROWS).collect();
        let parts = PointParts { embedding: true, ..PointParts::NONE };
        let lost = collection.points(&ids, parts).into_iter().filter(Result::is_err).count();
        assert!((1..50).contains(&lost), "{lost}");
        assert!(!collection.preload().unwrap());
    }

    #[test]
    fn without_new_points_all_segments_are_read_into_free_memory() {
        let root = tempfile::tempdir().unwrap();
        let resources = resources();
        let quiet = QuietTimes { flush: Duration::ZERO, ..QuietTimes::default() };
        let collection = opened_with(root.path(), &resources, quiet);
        add_segment(&collection, 0);
        preload_all(&collection);
        ask(&collection);
        assert_eq!(reads(&resources), [0, 0]);
    }

    #[test]
    fn a_new_segment_is_in_memory_if_the_old_ones_were() {
        let root = tempfile::tempdir().unwrap();
        let resources = resources();
        let collection = opened(root.path(), &resources);
        add_segment(&collection, 0);
        assert_eq!(resources.segment_cache_stats().preloaded, 0, "no request was there");
        ask(&collection);
        preload_all(&collection);
        let before = reads(&resources);
        add_segment(&collection, 1);
        add_segment(&collection, 2);
        ask(&collection);
        assert_eq!(reads(&resources), before, "flushed segments");
        assert!(collection.merge().unwrap() && collection.status().segments.len() == 1);
        ask(&collection);
        assert_eq!(reads(&resources), before, "the merged segment");
    }
}
