//! Opening a collection: the list of files, the logs, and then, one after the other and without making anybody wait, the
//! segments. Nothing that is damaged keeps the rest from being served.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use storage::Medium;
use storage::manifest::Manifest;

use super::disk::DiskGuard;
use super::filters::FilterCache;
use super::inner::{CollectionHealth, CollectionInner, LogWriter, Publisher, SegmentFiles, lock};
use super::manifest::{ManifestContent, SegmentEntry, uuid_of};
use super::names::CollectionFile;
use super::options::CollectionOptions;
use super::progress::LogProgress;
use super::resources::Resources;
use super::state::{ClosedSegment, KnownIds, LiveState, SegmentContent, SegmentSlot, SegmentView};
use crate::deletes::{Deletes, DeletesFile};
use crate::rerank::SharedCaches;
use crate::segment::{self, Quarantined, Segment, SegmentIds};

/// Until it is known how long sealing takes: two cores of a virtual machine seal some 13 MB of points a second, and 4 beside
/// queries without pause.
const SEALED_BYTES_A_SECOND: f64 = 4e6;

impl CollectionInner {
    /// Opens the collection on `medium`, or makes one. Segments are not open yet.
    pub(super) fn open(
        medium: Arc<dyn Medium>,
        options: CollectionOptions,
        resources: &Resources,
        outside: bool,
        shared: Arc<SharedCaches>,
    ) -> Result<Arc<CollectionInner>> {
        let (manifest, catalog) = read_list(&medium, &options)?;
        let problems = manifest.problems().to_vec();
        let is_new = catalog.is_none();
        let catalog = catalog.unwrap_or_else(|| ManifestContent::new(&options.shape, 0, 0, Vec::new()));
        let list = medium.list()?;
        let found: Vec<CollectionFile> =
            list.iter().filter_map(|(name, _)| CollectionFile::of(name)).collect();
        if is_new && found.iter().any(|file| matches!(file, CollectionFile::Segment(_))) {
            return Err(Error::data_loss("there are segments and no manifest; restore it from a copy"));
        }
        let (progress, logs) = LogProgress::open(&medium, &catalog, is_new, &list)?;
        // No file gets the number of a log that is gone.
        let numbers = found.iter().map(|file| file.number()).chain(logs.numbers.iter().copied());
        let next = AtomicU64::new(catalog.next.max(numbers.max().map_or(0, |highest| highest + 1)));
        let first = logs.numbers.first().copied().unwrap_or(catalog.first_log);
        let (slots, files) = closed(&catalog);
        let there = |log: &&u64| found.contains(&CollectionFile::Log(**log));
        let kept_logs = catalog.kept_logs.iter().filter(there).copied().collect();
        let first_seconds = options.memtable_bytes as f64 / SEALED_BYTES_A_SECOND;
        let inner = Arc::new(CollectionInner {
            medium,
            pacer: resources.pacer.clone(),
            disk: DiskGuard::new(options.disk_reserve),
            options,
            budget: resources.budget.clone(),
            writer: Mutex::new(LogWriter { logs: Vec::new(), unused: None }),
            live: Mutex::new(LiveState::new(slots, first)),
            publisher: Mutex::new(Publisher { manifest, files, kept_logs }),
            flushing: resources.flushing.clone(),
            merging: Mutex::new(BTreeSet::new()),
            filters: FilterCache::default(),
            next,
            busy: Mutex::default(),
            events: resources.events.clone(),
            outside,
            stall: resources.stall.clone(),
            flush_time: Mutex::new(Duration::from_secs_f64(first_seconds)),
            merging_escalated: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            unpublished: AtomicBool::new(false),
            shared,
            health: Mutex::new(CollectionHealth::default()),
            progress: Mutex::new(progress),
        });
        inner.remove_leftovers(&catalog);
        inner.read_waiting(&catalog);
        inner.restore_damaged(&catalog);
        inner.replay_logs(&logs)?;
        inner.record_progress();
        // A loss of power while a slot of the manifest is written leaves it torn; the other one says the same.
        if is_new || logs.numbers.is_empty() || !problems.is_empty() {
            inner.publish_first(is_new)?;
        }
        lock(&inner.health).mended.extend(problems);
        Ok(inner)
    }

    fn publish_first(&self, is_new: bool) -> Result<()> {
        match self.publish() {
            // What is there can be read without it, and sealing publishes later.
            Err(error) if !is_new && error.kind() == ErrorKind::StorageFull => {
                tracing::warn!(%error, "there is no room for a list; what is stored is served");
                Ok(())
            }
            published => published,
        }
    }

    /// Reads which ids wait for which segment. Where that is lost, the segment is not served: it would give back points
    /// that were removed.
    fn read_waiting(&self, catalog: &ManifestContent) {
        for entry in &catalog.segments {
            let uuid = uuid_of(&entry.uuid).unwrap_or_default();
            let (mut pending_deletes, mut unread, mut failure) = (HashSet::new(), Vec::new(), None);
            for &file in entry.pending_deletes.iter().chain(&entry.unread_pending) {
                let name = CollectionFile::PendingDeletes(file).name();
                match self.medium.load(&name).and_then(|bytes| DeletesFile::decode(&bytes, uuid, 0)) {
                    Ok((found, _)) => pending_deletes.extend(found.pending_deletes),
                    Err(error) => {
                        unread.push(file);
                        failure = Some(error.context(name));
                    }
                }
            }
            let pending_deletes = Arc::new(pending_deletes);
            if let Some(files) = lock(&self.publisher).files.get_mut(&entry.number) {
                files.pending_deletes = entry.pending_deletes.filter(|file| !unread.contains(file));
                // What is in several files is written anew, as one.
                let same = files.pending_deletes.is_some() && unread == entry.unread_pending;
                files.pending_written = same.then(|| pending_deletes.clone());
                files.unread_pending = unread;
            }
            lock(&self.live).stall_stats(entry.number, pending_deletes);
            if let Some(error) = failure {
                self.close_for_good(entry.number, &error);
            }
        }
    }

    /// Opens all segments that are not open, the one with the highest number first: it is the one most written to.
    /// Whether one of them is to be tried again later.
    pub(super) fn open_segments(&self) -> bool {
        let (state, mut again) = (self.state(), false);
        for slot in state.segments.iter().rev() {
            if self.go_on().is_err() {
                return false;
            }
            if matches!(&slot.content, SegmentContent::Closed(closed) if closed.reason.is_none()) {
                match self.open_segment(slot) {
                    Ok(()) => {}
                    Err(error) if may_pass(&error) => {
                        let name = CollectionFile::Segment(slot.number).name();
                        tracing::warn!(%error, name, "a segment cannot be opened now, and is tried again");
                        lock(&self.live).delayed(slot.number, error);
                        again = true;
                    }
                    Err(error) => self.close_for_good(slot.number, &error),
                }
                self.events.notify();
            }
        }
        again
    }

    fn open_segment(&self, slot: &SegmentSlot) -> Result<()> {
        let name = CollectionFile::Segment(slot.number).name();
        let segment = Segment::open(self.medium.open(&name)?, &name, &self.budget)?;
        if segment.uuid() != slot.uuid || segment.rows() != slot.rows {
            return Err(Error::data_loss(format!("{name} is not the segment that the manifest names")));
        }
        if *segment.settings() != self.options.shape.settings() {
            return Err(Error::data_loss(format!(
                "{name} has points of another kind: {:?}",
                segment.settings()
            )));
        }
        // The manifest's files of a segment change only while it is open, or for ids that wait, so this is current.
        let file = lock(&self.publisher).files.get(&slot.number).and_then(|files| files.deletes);
        let deletes = Arc::new(match file {
            Some(file) => self.read_deletes(file, slot)?,
            None => Deletes::none(slot.rows),
        });
        let mut publisher = lock(&self.publisher);
        if let Some(files) = publisher.files.get_mut(&slot.number) {
            files.deletes_written = files.deletes.map(|_| deletes.clone());
        }
        lock(&self.live).opened(slot.number, Ok(SegmentView::new(Arc::new(segment), deletes)));
        Ok(())
    }

    fn read_deletes(&self, file: u64, slot: &SegmentSlot) -> Result<Deletes> {
        let name = CollectionFile::Deletes(file).name();
        let bytes = self.medium.load(&name)?;
        let decoded = DeletesFile::decode(&bytes, slot.uuid, slot.rows);
        let (found, damaged) = decoded.map_err(|error| error.context(&name))?;
        for page in damaged {
            let reason = "it does not match its checksum; none of its rows is served".to_owned();
            self.quarantine(Quarantined { file: name.clone(), page: Some(page.into()), reason });
        }
        Ok(found.deletes)
    }

    fn close_for_good(&self, number: u64, error: &Error) {
        let file = CollectionFile::Segment(number).name();
        let reason = Quarantined { file, page: None, reason: error.message().to_owned() };
        self.quarantine(reason.clone());
        let slot = self.state().segments.iter().find(|slot| slot.number == number).cloned();
        let known = slot.and_then(|slot| self.ids_alone(&slot).ok());
        lock(&self.live).opened(number, Err((reason, known)));
    }

    /// The ids of a segment that cannot be opened, where at least those can be read.
    fn ids_alone(&self, slot: &SegmentSlot) -> Result<Arc<KnownIds>> {
        let name = CollectionFile::Segment(slot.number).name();
        let file = self.medium.open(&name)?;
        let mut held = self.budget.reserve(2 * SegmentIds::bytes_of(slot.rows), &name)?;
        let ids = segment::ids_alone(&*file, slot.uuid, slot.rows)?;
        held.resize(ids.memory_bytes(), &name)?;
        Ok(Arc::new(KnownIds { ids, _held: held }))
    }
}

/// Opens the manifest and reads the list that counts, if there is one.
fn read_list(
    medium: &Arc<dyn Medium>,
    options: &CollectionOptions,
) -> Result<(Manifest, Option<ManifestContent>)> {
    let (manifest, payload) = Manifest::open(medium)?;
    let catalog = payload.as_deref().map(ManifestContent::decode).transpose()?;
    if let Some(catalog) = &catalog
        && catalog.shape()? != options.shape
    {
        return Err(Error::precondition(format!(
            "the collection is of {:?}, not of {:?}; open it as what it is, or make another one",
            catalog.shape()?,
            options.shape
        )));
    }
    Ok((manifest, catalog))
}

/// Whether what failed may work later: memory may be free then, or the medium have descriptors again.
pub(crate) fn may_pass(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ResourceExhausted
            | ErrorKind::StorageFull
            | ErrorKind::Unavailable
            | ErrorKind::DeadlineExceeded
            | ErrorKind::Internal
            | ErrorKind::Cancelled
    )
}

/// The catalog's segments, none of them open, and the files beside them.
fn closed(catalog: &ManifestContent) -> (Vec<SegmentSlot>, BTreeMap<u64, SegmentFiles>) {
    let slot = |entry: &SegmentEntry| SegmentSlot {
        number: entry.number,
        // A uuid that cannot be read is no segment's, so opening it will say so.
        uuid: uuid_of(&entry.uuid).unwrap_or_default(),
        rows: entry.rows,
        content: SegmentContent::Closed(ClosedSegment::default()),
    };
    let beside = |entry: &SegmentEntry| {
        let (deletes, pending_deletes, unread) =
            (entry.deletes, entry.pending_deletes, entry.unread_pending.clone());
        let files =
            SegmentFiles { deletes, pending_deletes, unread_pending: unread, ..SegmentFiles::default() };
        (entry.number, files)
    };
    (catalog.segments.iter().map(slot).collect(), catalog.segments.iter().map(beside).collect())
}
