//! Making the current state durable: deletes, then the list of files, then what the list no longer names is removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::Result;

use super::catalog::{Catalog, Entry, NamedLog, uuid_text};
use super::inner::{Inner, Publisher, lock};
use super::names::File;
use super::state::{Content, Slot, State};
use crate::deletes::{Deletes, DeletesFile};

/// Damaged logs that are kept after what could be read of them is sealed.
const KEPT_LOGS_MAX: usize = 16;

impl Inner {
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
        let first_log = state.parts.iter().map(|part| part.log).min().unwrap_or(0);
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
    fn write_catalog(&self, publisher: &mut Publisher, state: &State, first_log: u64) -> Result<Catalog> {
        let mut entries = Vec::with_capacity(state.segments.len());
        for slot in &state.segments {
            self.write_beside(publisher, slot)?;
            let files = publisher.files.entry(slot.number).or_default();
            entries.push(Entry {
                number: slot.number,
                uuid: uuid_text(slot.uuid),
                rows: slot.rows,
                deletes: files.deletes,
                waiting: files.waiting,
                waiting_unread: files.waiting_unread.clone(),
            });
        }
        publisher.files.retain(|number, _| state.segments.iter().any(|slot| slot.number == *number));
        while publisher.kept_logs.len() > KEPT_LOGS_MAX {
            publisher.kept_logs.pop_first();
        }
        let next = self.next.load(Ordering::Relaxed);
        let mut catalog = Catalog::new(&self.options.shape, first_log, next, entries);
        catalog.kept_logs.clone_from(&publisher.kept_logs);
        Ok(catalog)
    }

    fn write_beside(&self, publisher: &mut Publisher, slot: &Slot) -> Result<()> {
        let files = publisher.files.entry(slot.number).or_default();
        match &slot.content {
            Content::Open(view) => {
                let written = files.deletes_written.as_ref();
                let same = written.map_or(view.deletes.count() == 0, |w| Arc::ptr_eq(w, &view.deletes));
                if !same {
                    let file = self.number();
                    let deletes = (*view.deletes).clone();
                    self.write_deletes(File::Deletes(file), slot.uuid, deletes, Vec::new())?;
                    files.deletes = Some(file);
                    files.deletes_written = Some(view.deletes.clone());
                }
                // Those that waited are among the deletes since the segment was opened.
                files.waiting = None;
                files.waiting_written = None;
                files.waiting_unread.clear();
            }
            Content::Closed(closed) => {
                let written = files.waiting_written.as_ref();
                let same = written.map_or(closed.waiting.is_empty(), |w| Arc::ptr_eq(w, &closed.waiting));
                if !same {
                    let file = self.number();
                    let mut waiting: Vec<u64> = closed.waiting.iter().copied().collect();
                    waiting.sort_unstable();
                    self.write_deletes(File::Waiting(file), slot.uuid, Deletes::none(0), waiting)?;
                    files.waiting = Some(file);
                    files.waiting_written = Some(closed.waiting.clone());
                }
            }
        }
        Ok(())
    }

    fn write_deletes(
        &self,
        file: File,
        segment: [u8; 16],
        deletes: Deletes,
        waiting: Vec<u64>,
    ) -> Result<()> {
        let busy = self.busy(file);
        let bytes = DeletesFile { segment, deletes, waiting }.encode();
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
    pub(super) fn remove_leftovers(&self, catalog: &Catalog) {
        let entries = &catalog.segments;
        let named: BTreeSet<String> = entries
            .iter()
            .flat_map(|entry| {
                let beside = [entry.deletes.map(File::Deletes), entry.waiting.map(File::Waiting)];
                let unread = entry.waiting_unread.iter().copied().map(File::Waiting);
                beside.into_iter().flatten().chain(unread).chain([File::Segment(entry.number)])
            })
            .map(File::name)
            .collect();
        let files = match self.medium.list() {
            Ok(files) => files,
            Err(error) => return tracing::warn!(%error, "leftover files stay"),
        };
        for (name, _) in files {
            let leftover = match File::of(&name) {
                None => false,
                Some(File::Log(number)) => number < catalog.first_log && !catalog.kept_logs.contains(&number),
                Some(_) => !named.contains(&name) && !lock(&self.busy).contains(&name),
            };
            if leftover && let Err(error) = self.medium.remove(&name) {
                tracing::warn!(%error, name, "a leftover file stays");
            }
        }
    }
}
