//! Publishing: makes the current state durable. Writes the deletes, then the list of files, then
//! removes files that the list no longer names.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::Result;

use super::inner::{Collection, Publisher};
use super::manifest::{ManifestContent, NamedLog, SegmentEntry, uuid_text};
use super::names::CollectionFile;
use super::state::{CollectionState, SegmentContent, SegmentSlot};
use crate::deletes::{Deletes, DeletesFile};

/// Maximum damaged logs kept after their readable part was flushed.
const KEPT_LOGS_MAX: usize = 16;

impl Collection {
    /// Publishes the current state. May be called at any time. A start finds it or a later one.
    ///
    /// A published file of deletes contains changes from logs, and such a change may belong to the
    /// replacement of a point. Every log is therefore made durable first. Otherwise a crash could
    /// lose the new point after the old one was deleted for good.
    ///
    /// # Errors
    /// The error of the medium. A start then finds the previous state.
    pub(super) fn publish(&self) -> Result<()> {
        let mut publisher = self.publisher.lock();
        let has_failed = self.files.unpublished.swap(true, Ordering::Relaxed);
        let (state, logs) = {
            let mut writer = self.writer.lock();
            // A list must not name a log that does not exist.
            self.ensure_log(&mut writer)?;
            (self.state(), writer.logs.clone())
        };
        let first_log = state.memtables.iter().map(|memtable| memtable.log).min().unwrap_or(0);
        for (_, log) in logs.iter().filter(|(number, _)| *number >= first_log) {
            if log.next() > 1 {
                log.commit(log.next() - 1)?;
            }
        }
        let mut manifest = self.write_catalog(&mut publisher, &state, first_log)?;
        let named = logs.iter().filter(|(number, _)| *number >= first_log);
        manifest.logs = named.map(|(number, log)| NamedLog::new(*number, log.durable())).collect();
        manifest.damaged_logs = self.damaged_logs(&state, first_log);
        let bytes = manifest.encode()?;
        // Twice, so that both slots of the manifest name these files. No slot then needs the files
        // removed below, and losing one slot loses nothing.
        publisher.manifest.publish(&bytes)?;
        publisher.manifest.publish(&bytes)?;
        self.files.unpublished.store(false, Ordering::Relaxed);
        if has_failed {
            self.forget_publish_errors(&state);
        }
        self.writer.lock().logs.retain(|(number, _)| *number >= first_log);
        self.remove_leftovers(&manifest);
        publisher.listed = Some(manifest);
        Ok(())
    }

    /// Removes the errors of a flush and a merge whose list is written now. A merge that fails
    /// again is reported again.
    fn forget_publish_errors(&self, state: &CollectionState) {
        let mut health = self.health.lock();
        health.merge_error = None;
        // A frozen memtable may be left of the flush that failed.
        if state.memtables.len() == 1 {
            health.flush_error = None;
        }
    }

    /// Writes new versions of changed files and returns the new list.
    fn write_catalog(
        &self,
        publisher: &mut Publisher,
        state: &CollectionState,
        first_log: u64,
    ) -> Result<ManifestContent> {
        let mut entries = Vec::with_capacity(state.segments.len());
        for slot in &state.segments {
            self.write_beside(publisher, slot)?;
            let files = publisher.files.entry(slot.number).or_default();
            entries.push(SegmentEntry {
                number: slot.number,
                uuid: uuid_text(slot.uuid),
                rows: slot.rows,
                deletes: files.deletes,
                pending_deletes: files.pending_deletes,
                unread_pending: files.unread_pending.clone(),
            });
        }
        publisher
            .files
            .retain(|number, _| state.segments.iter().any(|slot| slot.number == *number));
        while publisher.kept_logs.len() > KEPT_LOGS_MAX {
            publisher.kept_logs.pop_first();
        }
        let next = self.files.next_number.load(Ordering::Relaxed);
        let mut manifest = ManifestContent::new(&self.options.shape, first_log, next, entries);
        manifest.kept_logs.clone_from(&publisher.kept_logs);
        Ok(manifest)
    }

    /// Writes the deletes of a segment to a new file if they have changed. Those of a segment that
    /// is not open are pending deletes.
    fn write_beside(&self, publisher: &mut Publisher, slot: &SegmentSlot) -> Result<()> {
        let files = publisher.files.entry(slot.number).or_default();
        match &slot.content {
            SegmentContent::Open(view) => {
                let written = files.deletes_written.as_ref();
                let same =
                    written.map_or(view.deletes.count() == 0, |w| Arc::ptr_eq(w, &view.deletes));
                if !same {
                    let file = self.new_file_number();
                    let deletes = (*view.deletes).clone();
                    self.write_deletes(
                        CollectionFile::Deletes(file),
                        slot.uuid,
                        deletes,
                        Vec::new(),
                    )?;
                    files.deletes = Some(file);
                    files.deletes_written = Some(view.deletes.clone());
                }
                // The pending deletes were applied when the segment was opened.
                files.pending_deletes = None;
                files.pending_written = None;
                files.unread_pending.clear();
            }
            SegmentContent::Closed(closed) => {
                let written = files.pending_written.as_ref();
                let same = written.map_or(closed.pending_deletes.is_empty(), |w| {
                    Arc::ptr_eq(w, &closed.pending_deletes)
                });
                if !same {
                    let file = self.new_file_number();
                    let mut pending_deletes: Vec<u64> =
                        closed.pending_deletes.iter().copied().collect();
                    pending_deletes.sort_unstable();
                    self.write_deletes(
                        CollectionFile::PendingDeletes(file),
                        slot.uuid,
                        Deletes::none(0),
                        pending_deletes,
                    )?;
                    files.pending_deletes = Some(file);
                    files.pending_written = Some(closed.pending_deletes.clone());
                }
            }
        }
        Ok(())
    }

    /// Writes the deletes of the segment with the UUID `segment` to `file`. Removes the file after
    /// an error.
    fn write_deletes(
        &self,
        file: CollectionFile,
        segment: [u8; 16],
        deletes: Deletes,
        pending_deletes: Vec<u64>,
    ) -> Result<()> {
        let pending = self.pending_file(file);
        let bytes = DeletesFile { segment, deletes, pending_deletes }.encode();
        let written = self.medium.create(&pending.name).and_then(|mut writer| {
            writer.append(&bytes)?;
            writer.persist()
        });
        if written.is_err() {
            pending.remove();
        }
        written
    }

    /// Removes files of the collection that `manifest` does not name and that are not being
    /// written. A failure only costs space.
    pub(super) fn remove_leftovers(&self, manifest: &ManifestContent) {
        let entries = &manifest.segments;
        let named: BTreeSet<String> = entries
            .iter()
            .flat_map(|entry| {
                let beside = [
                    entry.deletes.map(CollectionFile::Deletes),
                    entry.pending_deletes.map(CollectionFile::PendingDeletes),
                ];
                let unread =
                    entry.unread_pending.iter().copied().map(CollectionFile::PendingDeletes);
                beside
                    .into_iter()
                    .flatten()
                    .chain(unread)
                    .chain([CollectionFile::Segment(entry.number)])
            })
            .map(CollectionFile::name)
            .collect();
        let files = match self.medium.list() {
            Ok(files) => files,
            Err(error) => return tracing::warn!(%error, "leftover files stay"),
        };
        for (name, _) in files {
            let leftover = match CollectionFile::of(&name) {
                None => false,
                Some(CollectionFile::Log(number)) => {
                    number < manifest.first_log && !manifest.kept_logs.contains(&number)
                }
                Some(_) => !named.contains(&name) && !self.files.pending.lock().contains(&name),
            };
            if leftover
                && !self.is_pinned(&name)
                && let Err(error) = self.medium.remove(&name)
            {
                tracing::warn!(%error, name, "a leftover file stays");
            }
        }
    }
}
