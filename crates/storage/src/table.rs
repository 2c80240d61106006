//! The files that a reader reads from.
//!
//! A file is held while reads of it are in flight. Between reads only its entry is kept. A
//! registered descriptor stays registered for the next query, but the file closes with its last
//! other holder.

use std::sync::{Arc, Weak};

use crate::medium::Sealed;

/// Maximum idle entries kept, and maximum files registered with a ring.
pub(crate) const FILES_MAX: usize = 64;

/// A file that was read from.
pub(crate) struct TableEntry {
    id: u64,
    weak: Weak<dyn Sealed>,
    /// The file while reads are in flight.
    held: Option<Arc<dyn Sealed>>,
    /// Number of reads in flight.
    under_way: usize,
}

/// Files by index. Indexes below [`FILES_MAX`] stay with their file until another one takes them.
/// Indexes beyond are for reads of very many files at once, at most as many as reads in flight.
#[derive(Default)]
pub(crate) struct FileTable {
    entries: Vec<TableEntry>,
    /// Index of the last file found. The search for a free index starts here.
    last: usize,
    /// Index at which the search for a file without reads begins, if the table is full.
    hand: usize,
}

impl FileTable {
    /// Holds `file` for one read. Returns its index, and true if the file has just taken that
    /// index.
    pub(crate) fn hold(&mut self, file: &Arc<dyn Sealed>) -> (usize, bool) {
        let id = file.id();
        let found = match self.entries.get(self.last) {
            Some(entry) if entry.id == id => Some(self.last),
            _ => self.entries.iter().position(|entry| entry.id == id),
        };
        let place = found.unwrap_or_else(|| self.claim(file));
        self.last = place;
        let entry = &mut self.entries[place];
        entry.under_way += 1;
        if entry.under_way == 1 {
            entry.held = Some(file.clone());
        }
        (place, found.is_none())
    }

    /// Ends one read of the file at `place`.
    pub(crate) fn release(&mut self, place: usize) {
        if let Some(entry) = self.entries.get_mut(place) {
            entry.under_way -= 1;
            if entry.under_way == 0 {
                entry.held = None;
            }
        }
    }

    /// Returns the file at `place` while a read of it is in flight.
    pub(crate) fn file(&self, place: usize) -> Option<&Arc<dyn Sealed>> {
        self.entries.get(place)?.held.as_ref()
    }

    /// Forgets files without other holders and passes their indexes to `gone`.
    pub(crate) fn sweep(&mut self, mut gone: impl FnMut(usize)) {
        for (place, entry) in self.entries.iter_mut().enumerate() {
            if entry.id != 0 && entry.under_way == 0 && entry.weak.strong_count() == 0 {
                // No file has number 0.
                entry.id = 0;
                gone(place);
            }
        }
    }

    /// Adds a file and returns its place. It is a free one, or if the table is full, in turn that
    /// of a file without reads under way.
    fn claim(&mut self, file: &Arc<dyn Sealed>) -> usize {
        let entry =
            TableEntry { id: file.id(), weak: Arc::downgrade(file), held: None, under_way: 0 };
        let count = self.entries.len();
        let vacant = self.entries.iter().position(|entry| entry.id == 0);
        let idle = || {
            let full = count >= FILES_MAX;
            let mut places = (0..count).map(|step| (self.hand + step) % count);
            places.find(|&place| full && self.entries[place].under_way == 0)
        };
        match vacant.or_else(idle) {
            Some(place) => {
                self.entries[place] = entry;
                self.hand = place + 1;
                place
            }
            None => {
                self.entries.push(entry);
                count
            }
        }
    }
}
