//! The files a reader is reading from.
//!
//! A file is held while reads of it are under way. Between reads it is only remembered: a
//! registered descriptor stays registered, so that the next query finds it, but the file can go
//! when its last holder lets it go.

use std::sync::{Arc, Weak};

use crate::medium::Sealed;

/// Idle files remembered, at most; and files registered with a ring, at most.
pub(crate) const FILES_MAX: usize = 64;

/// A file that was read from.
pub(crate) struct Entry {
    id: u64,
    weak: Weak<dyn Sealed>,
    /// Set while reads are under way.
    held: Option<Arc<dyn Sealed>>,
    under_way: usize,
}

/// Files by place. Places below [`FILES_MAX`] keep their meaning until they are handed to another
/// file; places beyond are for reads of very many files at once, of which there are at most as many
/// as reads in flight.
#[derive(Default)]
pub(crate) struct Table {
    entries: Vec<Entry>,
    /// Where the last file was found, and where to look first for a place to give away.
    last: usize,
    hand: usize,
}

impl Table {
    /// Holds `file` for one read. Says its place, and whether that place has just become its own.
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

    /// One read of the file at `place` is done.
    pub(crate) fn release(&mut self, place: usize) {
        if let Some(entry) = self.entries.get_mut(place) {
            entry.under_way -= 1;
            if entry.under_way == 0 {
                entry.held = None;
            }
        }
    }

    /// The file at `place`, while a read of it is under way.
    pub(crate) fn file(&self, place: usize) -> Option<&Arc<dyn Sealed>> {
        self.entries.get(place)?.held.as_ref()
    }

    /// Forgets the files that nobody else has open any more, and gives their places.
    pub(crate) fn sweep(&mut self, mut gone: impl FnMut(usize)) {
        for (place, entry) in self.entries.iter_mut().enumerate() {
            if entry.id != 0 && entry.under_way == 0 && entry.weak.strong_count() == 0 {
                // No file has number 0.
                entry.id = 0;
                gone(place);
            }
        }
    }

    fn claim(&mut self, file: &Arc<dyn Sealed>) -> usize {
        let entry = Entry { id: file.id(), weak: Arc::downgrade(file), held: None, under_way: 0 };
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
