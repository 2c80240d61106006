//! Opening a collection: reads the list of files and the logs, and then opens the segments one by
//! one in the background. Damage never prevents the rest from being served.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use storage::manifest::Manifest;
use storage::{LOAD_BYTES_MAX, Medium};

use super::disk::DiskGuard;
use super::filters::FilterCache;
use super::inner::{
    Collection, CollectionFiles, CollectionHealth, CollectionLogs, OptimizerState, Publisher,
    SegmentFiles,
};
use super::manifest::{ManifestContent, SegmentEntry, uuid_of};
use super::names::{CollectionFile, FILE_NUMBER_MAX};
use super::options::CollectionOptions;
use super::progress::{LogProgress, Logs};
use super::resources::Resources;
use super::state::{ClosedSegment, KnownIds, LiveState, SegmentContent, SegmentSlot, SegmentView};
use crate::deletes::{Deletes, DeletesFile};
use crate::rerank::SharedCaches;
use crate::segment::{self, CodesOptions, Quarantined, Segment, SegmentIds};

/// Assumed speed of a flush until one was measured. Two cores of a virtual machine flush about 13
/// MB of points per second, and 4 MB with queries running.
const FLUSH_BYTES_A_SECOND: f64 = 4e6;

/// Returns the expected time of the first flush of a memtable of `bytes`.
fn first_flush_time(bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / FLUSH_BYTES_A_SECOND)
}

impl Collection {
    /// Opens the collection on `medium`, or creates an empty one. It starts no threads and shares
    /// `resources` with other collections. `caches` are the record caches.
    ///
    /// The caller calls [`Collection::open_segments`] once. It calls [`Collection::flush_oldest`]
    /// and [`Collection::merge`] on threads of low priority while they return true, and
    /// [`Collection::flush_if_stalled`] and [`Collection::merge_if_behind`] on threads of ordinary
    /// priority. [`Resources`] counts an event when there is new work. A write that finds no room
    /// waits for this work.
    ///
    /// # Errors
    /// `InvalidArgument` for invalid options. `FailedPrecondition` if the collection has another
    /// shape or was written by a newer program. `DataLoss` if its manifest is lost.
    /// `ResourceExhausted` if its log does not fit the memory. Otherwise the error of the medium.
    pub fn open(
        medium: Arc<dyn Medium>,
        options: CollectionOptions,
        resources: &Resources,
        caches: Arc<SharedCaches>,
    ) -> Result<Collection> {
        options.check(resources.memory().limit, resources.memtable_bytes)?;
        let (manifest, content) = read_list(&medium, &options)?;
        let problems = manifest.problems().to_vec();
        let is_new = content.is_none();
        let content =
            content.unwrap_or_else(|| ManifestContent::new(&options.shape, 0, 0, Vec::new()));
        let list = medium.list()?;
        let found: Vec<CollectionFile> =
            list.iter().filter_map(|(name, _)| CollectionFile::of(name)).collect();
        if is_new {
            check_no_segments(&found)?;
        }
        let (progress, logs) = LogProgress::open(&medium, &content, is_new, &list)?;
        let first_new_file = next_file_number(&content, &found, &logs)?;
        let first = logs.numbers.first().copied().unwrap_or(content.first_log);
        let (slots, files) = closed(&content);
        let there = |log: &&u64| found.contains(&CollectionFile::Log(**log));
        let kept_logs = content.kept_logs.iter().filter(there).copied().collect();
        let collection = Collection {
            identity: Arc::default(),
            medium,
            pacer: resources.pacer.clone(),
            disk: DiskGuard::new(options.disk_reserve),
            codes: CodesOptions::new(options.codes, &resources.segment_cache),
            moved: Mutex::default(),
            options,
            memtable_bytes: resources.memtable_bytes,
            budget: resources.budget.clone(),
            writer: Mutex::new(CollectionLogs { logs: Vec::new(), unused: None }),
            live: Mutex::new(LiveState::new(slots, first)),
            publisher: Mutex::new(Publisher { manifest, files, kept_logs, listed: None }),
            flushing: resources.flushing.clone(),
            merging: Mutex::new(BTreeSet::new()),
            filters: FilterCache::new(resources.filters.clone(), &resources.filter_caches),
            files: CollectionFiles {
                next_number: AtomicU64::new(first_new_file),
                ..CollectionFiles::default()
            },
            events: resources.events.clone(),
            stall: resources.stall.clone(),
            flush_time: Mutex::new(first_flush_time(resources.memtable_bytes)),
            merge_backlog: AtomicUsize::new(0),
            optimizer: OptimizerState { first_new_file, ..OptimizerState::default() },
            merging_escalated: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            caches,
            retired: Mutex::default(),
            health: Mutex::new(CollectionHealth::default()),
            progress: Mutex::new(progress),
        };
        collection.remove_leftovers(&content);
        collection.read_pending_deletes(&content)?;
        collection.restore_damaged(&content);
        collection.replay_logs(&logs)?;
        collection.record_progress();
        // A power loss during a write of the manifest tears one slot. The other one has the list.
        if is_new || logs.numbers.is_empty() || !problems.is_empty() {
            collection.publish_first(is_new)?;
        }
        collection.health.lock().repairs.extend(problems);
        Ok(collection)
    }

    /// Writes the first list of segments after an opening. A full disk is an error only for a new
    /// collection.
    fn publish_first(&self, is_new: bool) -> Result<()> {
        match self.publish() {
            // The collection can be read without it, and the next flush publishes.
            Err(error) if !is_new && error.kind() == ErrorKind::StorageFull => {
                tracing::warn!(%error, "there is no space for a list; the stored points are served");
                Ok(())
            }
            published => published,
        }
    }

    /// Reads the pending deletes of all segments. If they are lost, the segment is not served,
    /// because deleted points would reappear.
    ///
    /// # Errors
    /// An error that may be temporary, such as too many open files. A segment that is whole must
    /// not be reported as damaged.
    fn read_pending_deletes(&self, manifest: &ManifestContent) -> Result<()> {
        for entry in &manifest.segments {
            let uuid = uuid_of(&entry.uuid).unwrap_or_default();
            let mut pending_deletes = HashSet::new();
            let mut unread = Vec::new();
            let mut failure = None;
            for &file in entry.pending_deletes.iter().chain(&entry.unread_pending) {
                let name = CollectionFile::PendingDeletes(file).name();
                match self.medium.load(&name).and_then(|bytes| DeletesFile::decode(&bytes, uuid, 0))
                {
                    Ok((found, _)) => pending_deletes.extend(found.pending_deletes),
                    Err(error) if is_temporary(&error) && !self.is_too_long(&name) => {
                        return Err(error.context(name));
                    }
                    Err(error) => {
                        unread.push(file);
                        failure = Some(error.context(name));
                    }
                }
            }
            let pending_deletes = Arc::new(pending_deletes);
            if let Some(files) = self.publisher.lock().files.get_mut(&entry.number) {
                files.pending_deletes = entry.pending_deletes.filter(|file| !unread.contains(file));
                // The content of several files is rewritten as one.
                let same = files.pending_deletes.is_some() && unread == entry.unread_pending;
                files.pending_written = same.then(|| pending_deletes.clone());
                files.unread_pending = unread;
            }
            self.live.lock().set_pending_deletes(entry.number, pending_deletes);
            if let Some(error) = failure {
                self.close_for_good(entry.number, &error);
            }
        }
        Ok(())
    }

    /// Returns true if a file has a length that no program wrote. It is refused like a file for
    /// which memory has no room, but no later attempt can read it.
    fn is_too_long(&self, name: &str) -> bool {
        let is_it = |(found, bytes): &(String, u64)| found == name && *bytes > LOAD_BYTES_MAX;
        self.medium.list().is_ok_and(|files| files.iter().any(is_it))
    }

    /// Opens the segments on the calling thread. Each is searched as soon as it is open. Returns
    /// true if some segments could not be opened yet, for lack of memory for example, so the caller
    /// should call this again later. With [`CodesPlace::Auto`](crate::codes::CodesPlace), codes
    /// above 4 MiB a segment stay on the medium. A thread of the registry reads them into memory
    /// afterwards.
    pub fn open_segments(&self) -> bool {
        let is_closed = |slot: &&SegmentSlot| matches!(&slot.content, SegmentContent::Closed(closed) if closed.reason.is_none());
        // No reference to open segments, whose codes may have to be released.
        let closed: Vec<SegmentSlot> =
            self.state().segments.iter().rev().filter(is_closed).cloned().collect();
        let mut again = false;
        for slot in &closed {
            if self.check_open().is_err() {
                return false;
            }
            match self.open_with_room(slot) {
                Ok(()) => {}
                Err(error) if error.is_retryable() => {
                    let name = CollectionFile::Segment(slot.number).name();
                    tracing::warn!(%error, name, "a segment cannot be opened now, and is tried again");
                    self.live.lock().delayed(slot.number, error);
                    again = true;
                }
                Err(error) => self.close_for_good(slot.number, &error),
            }
            self.events.notify();
        }
        again
    }

    /// Opens a segment. If memory has no room, moves codes of others to the medium.
    fn open_with_room(&self, slot: &SegmentSlot) -> Result<()> {
        loop {
            match self.open_segment(slot) {
                Err(error) if error.kind() == ErrorKind::ResourceExhausted => {
                    if !self.move_codes()? {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Opens the segment of `slot` with its deletes, and lets queries search it.
    fn open_segment(&self, slot: &SegmentSlot) -> Result<()> {
        let name = CollectionFile::Segment(slot.number).name();
        let codes = self.codes_options(Some(slot.number));
        let segment = Segment::open(self.medium.open(&name)?, &name, &self.budget, &codes)?;
        if segment.uuid() != slot.uuid || segment.rows() != slot.rows {
            return Err(Error::data_loss(format!(
                "{name} is not the segment that the manifest names"
            )));
        }
        if *segment.settings() != self.options.shape.settings() {
            return Err(Error::data_loss(format!(
                "{name} has points of another kind: {:?}",
                segment.settings()
            )));
        }
        // A segment's files change only while it is open, or for pending deletes, so this is
        // current.
        let file = self.publisher.lock().files.get(&slot.number).and_then(|files| files.deletes);
        let deletes = Arc::new(match file {
            Some(file) => self.read_deletes(file, slot)?,
            None => Deletes::none(slot.rows),
        });
        let mut publisher = self.publisher.lock();
        if let Some(files) = publisher.files.get_mut(&slot.number) {
            files.deletes_written = files.deletes.map(|_| deletes.clone());
        }
        self.live.lock().opened(slot.number, Ok(SegmentView::new(Arc::new(segment), deletes)));
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
        self.live.lock().opened(number, Err((reason, known)));
    }

    /// Reads the ids of a segment that cannot be opened.
    fn ids_alone(&self, slot: &SegmentSlot) -> Result<Arc<KnownIds>> {
        let name = CollectionFile::Segment(slot.number).name();
        let file = self.medium.open(&name)?;
        let mut held = self.budget.reserve(SegmentIds::bytes_of(slot.rows), &name)?;
        let ids = segment::ids_alone(&*file, slot.uuid, slot.rows)?;
        held.resize(ids.memory_bytes(), &name)?;
        Ok(Arc::new(KnownIds { ids, _held: held }))
    }
}

/// Returns true if another attempt to read a file may succeed. An unknown failure (`Internal`) may
/// be permanent, so it counts as damage.
fn is_temporary(error: &Error) -> bool {
    error.is_retryable() && error.kind() != ErrorKind::Internal
}

/// Returns the number of the next file. No new file may get the number of a lost log.
///
/// # Errors
/// `DataLoss` if a name has no room for that number. The next start would not find the file.
fn next_file_number(
    content: &ManifestContent,
    found: &[CollectionFile],
    logs: &Logs,
) -> Result<u64> {
    let numbers = found.iter().map(|file| file.number()).chain(logs.numbers.iter().copied());
    let next = content.next.max(numbers.max().map_or(0, |highest| highest.saturating_add(1)));
    if next > FILE_NUMBER_MAX {
        return Err(Error::data_loss(format!(
            "the next file of the collection would have the number {next}, and {FILE_NUMBER_MAX} is the \
             highest; restore the collection from a copy"
        )));
    }
    Ok(next)
}

/// Opens the manifest and reads the current list, if there is one.
fn read_list(
    medium: &Arc<dyn Medium>,
    options: &CollectionOptions,
) -> Result<(Manifest, Option<ManifestContent>)> {
    let (manifest, payload) = Manifest::open(medium)?;
    let content = payload.as_deref().map(ManifestContent::decode).transpose()?;
    if let Some(content) = &content
        && content.shape() != options.shape
    {
        return Err(Error::precondition(format!(
            "the collection is of {:?}, not of {:?}; open it with its own shape, or create another one",
            content.shape(),
            options.shape
        )));
    }
    Ok((manifest, content))
}

/// Returns the listed segments, all closed, and the files that belong to them.
fn closed(manifest: &ManifestContent) -> (Vec<SegmentSlot>, BTreeMap<u64, SegmentFiles>) {
    let slot = |entry: &SegmentEntry| SegmentSlot {
        number: entry.number,
        // An invalid UUID matches no segment, so opening it reports the problem.
        uuid: uuid_of(&entry.uuid).unwrap_or_default(),
        rows: entry.rows,
        content: SegmentContent::Closed(ClosedSegment::default()),
    };
    let beside = |entry: &SegmentEntry| {
        let deletes = entry.deletes;
        let pending_deletes = entry.pending_deletes;
        let unread = entry.unread_pending.clone();
        let files = SegmentFiles {
            deletes,
            pending_deletes,
            unread_pending: unread,
            ..SegmentFiles::default()
        };
        (entry.number, files)
    };
    (manifest.segments.iter().map(slot).collect(), manifest.segments.iter().map(beside).collect())
}

/// Checks the files of a collection that has no manifest.
///
/// # Errors
/// `DataLoss` if there are segments: their manifest is lost.
fn check_no_segments(files: &[CollectionFile]) -> Result<()> {
    if files.iter().any(|file| matches!(file, CollectionFile::Segment(_))) {
        return Err(Error::data_loss("there are segments and no manifest; restore it from a copy"));
    }
    Ok(())
}
