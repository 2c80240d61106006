//! Place of the codes of segments. This module computes the memory that other segments need, moves
//! codes to the medium if memory is short, and reads codes into memory after the start.

use std::sync::Arc;

use base::{ErrorKind, Result};

use super::inner::{Collection, wait_for_last_references};
use super::state::{SegmentContent, SegmentSlot};
use crate::codes::CodesPlace;
use crate::rerank::Records;
use crate::segment::{CodesOptions, Segment, kept_bytes};

impl Collection {
    /// Returns the options for opening a segment that the state has not had open. `number` is its
    /// number, if the state has it.
    pub(super) fn codes_options(&self, number: Option<u64>) -> CodesOptions {
        let state = self.state();
        let waits = |slot: &&SegmentSlot| {
            Some(slot.number) != number
                && matches!(&slot.content, SegmentContent::Closed(closed) if closed.reason.is_none())
        };
        let rows_later = state.segments.iter().filter(waits).map(|slot| u64::from(slot.rows)).sum();
        // Codes that were just written are read at once.
        let at_once_max = number.map_or(u64::MAX, |_| self.codes.at_once_max);
        CodesOptions { rows_later, at_once_max, ..self.codes.clone() }
    }

    /// Reads the codes of one segment into memory, if they are on the medium although memory has
    /// room for them. Returns false if there is no such segment.
    ///
    /// # Errors
    /// The error of the medium, `DataLoss` for damaged codes. These codes stay on the medium.
    pub(crate) fn load_codes(&self) -> Result<bool> {
        let Some(old) = self.loadable() else { return Ok(false) };
        let options = CodesOptions { at_once_max: u64::MAX, ..self.codes.clone() };
        // The same open file, so that cached records stay valid.
        let new = match Segment::open(old.file().clone(), old.name(), &self.budget, &options) {
            Ok(new) if new.codes_on_medium() == 0 => new,
            // Another thread took the memory.
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::ResourceExhausted => return Ok(false),
            Err(error) => {
                old.set_unreadable_codes();
                return Err(error);
            }
        };
        if self.live.lock().replaced(&old, Arc::new(new)) {
            tracing::debug!(
                name = old.name(),
                bytes = old.codes_on_medium(),
                "codes are in memory"
            );
            wait_for_last_references([&old]);
        }
        Ok(true)
    }

    /// Returns the first segment whose codes can be read into memory.
    fn loadable(&self) -> Option<Arc<Segment>> {
        let room = self.budget.free().saturating_sub(kept_bytes(self.budget.limit()));
        let fits =
            |segment: &Segment| segment.bytes_with_codes().is_some_and(|bytes| bytes <= room);
        self.reopenable().into_iter().find(|segment| fits(segment))
    }

    /// Returns the segments that can be opened again with their codes in another place.
    fn reopenable(&self) -> Vec<Arc<Segment>> {
        if self.options.codes != CodesPlace::Auto {
            return Vec::new();
        }
        let state = self.state();
        // A segment that is opened again has no record of the damage that was found.
        let sound = state.open().filter(|(_, _, view)| !view.is_damaged());
        sound.map(|(_, _, view)| view.segment.clone()).collect()
    }

    /// Returns true if a segment could not be opened because memory had no room.
    pub(crate) fn lacks_memory(&self) -> bool {
        let lacks = |slot: &SegmentSlot| match &slot.content {
            SegmentContent::Open(_) => false,
            SegmentContent::Closed(closed) => {
                let error = closed.delayed.as_ref().filter(|_| closed.reason.is_none());
                error.is_some_and(|error| error.kind() == ErrorKind::ResourceExhausted)
            }
        };
        self.state().segments.iter().any(lacks)
    }

    /// Returns the bytes of codes in memory that [`Collection::move_codes`] can move.
    pub(crate) fn movable_codes(&self) -> u64 {
        self.reopenable().iter().map(|segment| segment.movable_codes()).sum()
    }

    /// Returns true if a request still holds the codes in memory that moved to the medium last.
    /// Their memory is free once it ends.
    pub(crate) fn is_freeing_codes(&self) -> bool {
        self.moved.lock().strong_count() > 0
    }

    /// Moves the codes of the segment with the most movable codes to the medium, which frees that
    /// memory. Returns false if there is no such segment, or no memory to open it again.
    ///
    /// # Errors
    /// The error of the medium.
    pub(crate) fn move_codes(&self) -> Result<bool> {
        let mut segments = self.reopenable();
        segments.retain(|segment| segment.movable_codes() > 0);
        segments.sort_by_key(|segment| std::cmp::Reverse(segment.movable_codes()));
        let options = CodesOptions { place: CodesPlace::Medium, ..self.codes.clone() };
        for old in segments {
            // The same open file, so that cached records stay valid.
            let new = Segment::open(old.file().clone(), old.name(), &self.budget, &options);
            match new {
                Ok(new) => {
                    let bytes = new.codes_on_medium();
                    if self.live.lock().replaced(&old, Arc::new(new)) {
                        *self.moved.lock() = Arc::downgrade(&old);
                        tracing::info!(
                            name = old.name(),
                            bytes,
                            "--search-memory is nearly full: codes moved to the medium"
                        );
                        wait_for_last_references([&old]);
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == ErrorKind::ResourceExhausted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use coarse::{CoarseKind, Metric};
    use os::Rate;
    use storage::UringMedium;
    use storage::page::PAGE_BYTES;
    use storage::superblock::Superblock;

    use super::*;
    use crate::budget::MemoryBudget;
    use crate::collection::helpers::tests::limits;
    use crate::collection::{CollectionOptions, CollectionQuery, Merging, QueryHit, Resources};
    use crate::ingest::{Op, PointRef};
    use crate::rerank::SharedCaches;

    const DIMS: usize = 16;
    const ROWS: u64 = 700;

    fn vector(seed: u64) -> Vec<f32> {
        let value = |at: u64| (seed * 131 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        (0..DIMS as u64).map(|at| value(at) as f32 / (1 << 24) as f32).collect()
    }

    fn opened(root: &std::path::Path, codes: CodesPlace, resources: &Resources) -> Collection {
        let medium = Arc::new(UringMedium::plain(root.to_owned()).unwrap());
        let merging = Merging { fan_in: 100, ..Merging::default() };
        let kind = CoarseKind::IvfPq;
        let options =
            CollectionOptions { kind, codes, merging, ..CollectionOptions::new(DIMS, Metric::L2) };
        let shared = Arc::new(SharedCaches::new(0, 512));
        Collection::open(medium, options, resources, shared).unwrap()
    }

    fn filled(root: &std::path::Path, codes: CodesPlace, resources: &Resources) -> Collection {
        let collection = opened(root, codes, resources);
        for segment in 0..3 {
            let ids = segment * ROWS..(segment + 1) * ROWS;
            let points: Vec<(u64, Vec<f32>)> = ids.map(|id| (id, vector(id))).collect();
            let ops: Vec<Op<'_>> = points
                .iter()
                .map(|(id, embedding)| {
                    Op::Upsert(PointRef { id: *id, embedding, record: &[], payload: b"{}" })
                })
                .collect();
            collection.apply(&ops).unwrap().commit().unwrap();
            collection.flush().unwrap();
        }
        (0..3 * ROWS).step_by(11).for_each(|id| collection.delete(id).unwrap());
        collection
    }

    fn resources() -> Resources {
        Resources::new(MemoryBudget::new(128 << 20), 8 << 20, Rate::unlimited()).unwrap()
    }

    fn near(collection: &Collection) -> Vec<QueryHit> {
        let mut thread = collection.thread(limits()).unwrap();
        let embedding = vector(7);
        let query = CollectionQuery::nearest(&embedding, 50);
        let found = collection.nearest(&mut thread, &query).unwrap();
        assert!(!found.partial);
        found.hits
    }

    fn on_medium(collection: &Collection) -> usize {
        let segments = collection.status().segments;
        segments.iter().filter(|segment| segment.codes_on_medium > 0).count()
    }

    #[test]
    fn moved_codes_free_memory_and_change_no_answer() {
        let root = tempfile::tempdir().unwrap();
        let resources = resources();
        let collection = filled(root.path(), CodesPlace::Auto, &resources);
        let wanted = near(&collection);
        for moved in 1..=3 {
            let (used, movable) = (resources.memory().used, collection.movable_codes());
            assert!(collection.move_codes().unwrap());
            assert_eq!(on_medium(&collection), moved);
            assert!(collection.movable_codes() < movable);
            let moved_bytes = movable - collection.movable_codes();
            assert!(resources.memory().used < used - moved_bytes / 2);
            assert_eq!(near(&collection), wanted);
        }
        assert!(!collection.move_codes().unwrap());
        assert_eq!(collection.movable_codes(), 0);
        // Deletes continue in the segments that replaced the old ones.
        let first = wanted[0].id;
        collection.delete(first).unwrap();
        assert!(near(&collection).iter().all(|hit| hit.id != first));
    }

    /// Opens a filled collection again with all codes on the medium.
    fn reopened(root: &std::path::Path, codes: CodesPlace, resources: &Resources) -> Collection {
        let mut collection = opened(root, codes, resources);
        collection.codes.at_once_max = 0;
        assert!(!collection.open_segments());
        collection
    }

    #[test]
    fn codes_are_read_into_memory_after_a_start() {
        let root = tempfile::tempdir().unwrap();
        let collection = filled(root.path(), CodesPlace::Auto, &resources());
        assert_eq!(on_medium(&collection), 0, "new codes are in memory at once");
        let wanted = near(&collection);
        drop(collection);
        let resources = resources();
        let collection = reopened(root.path(), CodesPlace::Auto, &resources);
        for left in (0..3).rev() {
            let used = resources.memory().used;
            assert_eq!(near(&collection), wanted);
            assert!(collection.load_codes().unwrap());
            assert_eq!(on_medium(&collection), left);
            assert!(resources.memory().used > used);
        }
        assert!(!collection.load_codes().unwrap());
        assert_eq!(near(&collection), wanted);
    }

    #[test]
    fn codes_without_room_stay_on_the_medium() {
        let root = tempfile::tempdir().unwrap();
        drop(filled(root.path(), CodesPlace::Auto, &resources()));
        let budget = MemoryBudget::new(128 << 20);
        let resources = Resources::new(budget.clone(), 8 << 20, Rate::unlimited()).unwrap();
        let collection = reopened(root.path(), CodesPlace::Auto, &resources);
        // An eighth of the memory stays free for flushes and merges.
        let rest = budget.free() - (16 << 20) - 1000;
        let others = budget.reserve(rest, "others").unwrap();
        assert!(!collection.load_codes().unwrap());
        assert_eq!((on_medium(&collection), resources.memory().refused), (3, 0));
        drop(others);
        assert!(collection.load_codes().unwrap());
    }

    #[test]
    fn damaged_codes_stay_on_the_medium() {
        let root = tempfile::tempdir().unwrap();
        drop(filled(root.path(), CodesPlace::Auto, &resources()));
        let collection = reopened(root.path(), CodesPlace::Auto, &resources());
        damage_codes(&root.path().join(collection.loadable().unwrap().name()));
        assert_eq!(collection.load_codes().unwrap_err().kind(), ErrorKind::DataLoss);
        for _ in 0..2 {
            assert!(collection.load_codes().unwrap());
        }
        assert!(!collection.load_codes().unwrap(), "the damaged one is not tried again");
        assert_eq!(on_medium(&collection), 1);
    }

    /// Changes a byte of a segment's codes.
    fn damage_codes(file: &std::path::Path) {
        let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
        let mut page = [0; PAGE_BYTES];
        file.read_exact_at(&mut page, 0).unwrap();
        let sections = Superblock::decode(&page).unwrap().sections;
        let codes = sections.iter().find(|section| coarse::is_codes(section.kind)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, codes.offset).unwrap();
        file.write_all_at(&[!byte[0]], codes.offset).unwrap();
        file.sync_all().unwrap();
    }

    #[test]
    fn settings_decide_on_the_place() {
        for codes in [CodesPlace::Dram, CodesPlace::Medium] {
            let root = tempfile::tempdir().unwrap();
            let resources = resources();
            let collection = filled(root.path(), codes, &resources);
            assert_eq!(collection.movable_codes(), 0, "{codes:?}");
            assert!(!collection.move_codes().unwrap());
            drop(collection);
            let collection = reopened(root.path(), codes, &resources);
            let moved = if codes == CodesPlace::Medium { 3 } else { 0 };
            assert!(!collection.load_codes().unwrap());
            assert_eq!(on_medium(&collection), moved);
        }
    }

    #[test]
    fn codes_are_moved_within_the_memory() {
        let root = tempfile::tempdir().unwrap();
        let budget = MemoryBudget::new(128 << 20);
        let resources = Resources::new(budget.clone(), 8 << 20, Rate::unlimited()).unwrap();
        let collection = filled(root.path(), CodesPlace::Auto, &resources);
        assert_eq!(on_medium(&collection), 0);
        // All memory except the bytes for opening one segment again.
        let state = collection.state();
        let segment = state.open().map(|(_, _, view)| view.segment.clone()).next().unwrap();
        let bytes = segment.memory_bytes() + segment.file_bytes() / 4;
        drop(state);
        let held = budget.reserve(budget.free() - bytes, "the rest").unwrap();
        drop(segment);
        assert!(!collection.lacks_memory());
        assert!(collection.move_codes().unwrap());
        assert_eq!(on_medium(&collection), 1);
        let none = budget.reserve(budget.free(), "all").unwrap();
        assert!(!collection.move_codes().unwrap(), "no room to open it again");
        drop((held, none));
    }
}
