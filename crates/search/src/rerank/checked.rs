//! Pages of files in memory whose checksum was verified.
//!
//! A page read from a device is verified each time. A page that the processor loads directly (DRAM,
//! DAX, mmap) is verified on first use after its file was opened. To verify all pages at once would
//! delay a start by a pass over every byte. To verify a page each time would cost more than the
//! load itself. Once the medium has lost pages of a file, its pages are verified each time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use storage::page::PAGE_BYTES;

/// One bit per page of a file.
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

    /// Returns true if the record page that starts at `offset` was verified.
    pub(super) fn is(&self, offset: u64) -> bool {
        self.bit(offset).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Marks the page at `offset` as verified.
    pub(super) fn set(&self, offset: u64) {
        if let Some((word, bit)) = self.bit(offset) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

/// Verified pages of all open files, by id.
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
