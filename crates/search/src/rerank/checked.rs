//! Which pages of files in memory have had their checksum verified.
//!
//! A page that was read from a device is verified each time. One that the processor loads from directly (DRAM, DAX,
//! mmap) is verified when it is first used after its file was opened: all at once would make a start wait for every
//! byte of every segment, each time would cost more than the load itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use storage::page::PAGE_BYTES;

/// The pages of one file, a bit each.
#[derive(Debug)]
pub(super) struct Checked {
    bits: Box<[AtomicU64]>,
}

impl Checked {
    fn of(bytes: u64) -> Checked {
        let pages = bytes.div_ceil(PAGE_BYTES as u64);
        Checked { bits: (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    fn bit(&self, offset: u64) -> Option<(&AtomicU64, u64)> {
        let page = offset / PAGE_BYTES as u64;
        Some((self.bits.get((page / 64) as usize)?, 1 << (page % 64)))
    }

    /// Whether the record page that starts at `offset` was verified.
    pub(super) fn is(&self, offset: u64) -> bool {
        self.bit(offset).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// It is verified now.
    pub(super) fn set(&self, offset: u64) {
        if let Some((word, bit)) = self.bit(offset) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

/// Those of all files in use, by their id.
#[derive(Debug, Default)]
pub(super) struct CheckedFiles {
    files: Mutex<HashMap<u64, Arc<Checked>>>,
}

impl CheckedFiles {
    pub(super) fn of(&self, file: &dyn storage::Sealed) -> Arc<Checked> {
        let mut files = self.files.lock();
        files.entry(file.id()).or_insert_with(|| Arc::new(Checked::of(file.bytes()))).clone()
    }

    pub(super) fn forget(&self, file: u64) {
        self.files.lock().remove(&file);
    }
}
