//! Making the current state durable: deletes, then the list of files, then what the list no longer names is removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::Result;

use super::inner::{CollectionInner, Publisher, lock};
use super::manifest::{ManifestContent, NamedLog, SegmentEntry, uuid_text};
use super::names::CollectionFile;
use super::state::{CollectionState, SegmentContent, SegmentSlot};
use crate::deletes::{Deletes, DeletesFile};

/// Damaged logs that are kept after what could be read of them is sealed.
const KEPT_LOGS_MAX: usize = 16;

impl CollectionInner {
    /// Publishes the current state. It may be called at any time; once it returns, a start finds this state or a later
    /// one.
    ///
    /// Deletes that a published file holds stem from changes in logs, and such a change may be the replacement of a
    /// point. So every log is made durable before: else the old point could be gone for good while the new one is not
    /// there yet.
    ///
    /// # Errors
    /// What the medium says; the state before is then the one that a start finds.
    pub(super) fn publish(&self) -> Result<()> {
        let mut publisher = lock(&self.publisher);
        self.unpublished.store(true, Ordering::Relaxed);
        let (state, logs) = {
            let mut writer = lock(&self.writer);
            // A list names no log that is not there.
            self.ensure_log(&mut writer)?;
            (self.state(), writer.logs.clone())
        };
        let first_log = state.memtables.iter().map(|memtable| memtable.log).min().unwrap_or(0);
        for (_, log) in logs.iter().filter(|(number, _)| *number >= first_log) {
            if log.next() > 1 {
                log.commit(log.next() - 1)?;
            }
        }
        let mut catalog = self.write_catalog(&mut publisher, &state, first_log)?;
        let named = logs.iter().filter(|(number, _)| *number >= first_log);
        catalog.logs = named.map(|(number, log)| NamedLog::new(*number, log.durable())).collect();
        catalog.damaged_logs = self.damaged_logs(first_log);
        let bytes = catalog.encode()?;
        // Twice, so that both slots of the manifest name this list's files: what is removed below is then needed by no
        // slot, and losing one of them loses nothing.
        publisher.manifest.publish(&bytes)?;
        publisher.manifest.publish(&bytes)?;
        self.unpublished.store(false, Ordering::Relaxed);
        lock(&self.writer).logs.retain(|(number, _)| *number >= first_log);
        self.remove_leftovers(&catalog);
        Ok(())
    }

    /// Writes new versions of what changed and says which files there are now.
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
        publisher.files.retain(|number, _| state.segments.iter().any(|slot| slot.number == *number));
        while publisher.kept_logs.len() > KEPT_LOGS_MAX {
            publisher.kept_logs.pop_first();
        }
        let next = self.next.load(Ordering::Relaxed);
        let mut catalog = ManifestContent::new(&self.options.shape, first_log, next, entries);
        catalog.kept_logs.clone_from(&publisher.kept_logs);
        Ok(catalog)
    }

    fn write_beside(&self, publisher: &mut Publisher, slot: &SegmentSlot) -> Result<()> {
        let files = publisher.files.entry(slot.number).or_default();
        match &slot.content {
            SegmentContent::Open(view) => {
                let written = files.deletes_written.as_ref();
                let same = written.map_or(view.deletes.count() == 0, |w| Arc::ptr_eq(w, &view.deletes));
                if !same {
                    let file = self.number();
                    let deletes = (*view.deletes).clone();
                    self.write_deletes(CollectionFile::Deletes(file), slot.uuid, deletes, Vec::new())?;
                    files.deletes = Some(file);
                    files.deletes_written = Some(view.deletes.clone());
                }
                // Those that waited are among the deletes since the segment was opened.
                files.pending_deletes = None;
                files.pending_written = None;
                files.unread_pending.clear();
            }
            SegmentContent::Closed(closed) => {
                let written = files.pending_written.as_ref();
                let same = written
                    .map_or(closed.pending_deletes.is_empty(), |w| Arc::ptr_eq(w, &closed.pending_deletes));
                if !same {
                    let file = self.number();
                    let mut pending_deletes: Vec<u64> = closed.pending_deletes.iter().copied().collect();
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

    fn write_deletes(
        &self,
        file: CollectionFile,
        segment: [u8; 16],
        deletes: Deletes,
        pending_deletes: Vec<u64>,
    ) -> Result<()> {
        let busy = self.busy(file);
        let bytes = DeletesFile { segment, deletes, pending_deletes }.encode();
        let written = self.medium.create(&busy.name).and_then(|mut writer| {
            writer.append(&bytes)?;
            writer.persist()
        });
        if written.is_err() {
            busy.remove();
        }
        written
    }

    /// Removes files of the collection that `catalog` does not name and nobody is writing. Costs only space where it
    /// fails.
    pub(super) fn remove_leftovers(&self, catalog: &ManifestContent) {
        let entries = &catalog.segments;
        let named: BTreeSet<String> = entries
            .iter()
            .flat_map(|entry| {
                let beside = [
                    entry.deletes.map(CollectionFile::Deletes),
                    entry.pending_deletes.map(CollectionFile::PendingDeletes),
                ];
                let unread = entry.unread_pending.iter().copied().map(CollectionFile::PendingDeletes);
                beside.into_iter().flatten().chain(unread).chain([CollectionFile::Segment(entry.number)])
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
                    number < catalog.first_log && !catalog.kept_logs.contains(&number)
                }
                Some(_) => !named.contains(&name) && !lock(&self.busy).contains(&name),
            };
            if leftover && let Err(error) = self.medium.remove(&name) {
                tracing::warn!(%error, name, "a leftover file stays");
            }
        }
    }
}
