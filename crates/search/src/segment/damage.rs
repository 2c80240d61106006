//! Damaged files and pages.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, Result};
use parking_lot::Mutex;

use super::check::SegmentFileDamage;

/// Maximum damaged pages that a segment remembers. Further ones still fail when they are read.
const DAMAGED_MAX: usize = 1024;

/// File or page that is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Name of the file in the directory of the collection.
    pub file: String,
    /// Damaged page, or `None` for the whole file.
    pub page: Option<u64>,
    /// Description of the damage.
    pub reason: String,
}

impl fmt::Display for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.page {
            Some(page) => write!(f, "{} page {page}: {}", self.file, self.reason),
            None => write!(f, "{}: {}", self.file, self.reason),
        }
    }
}

/// Damaged pages of one file that were found so far.
#[derive(Debug)]
pub(super) struct DamagedPages {
    file: String,
    pages: Mutex<Vec<Quarantined>>,
    /// True if a damaged page has data that is stored nowhere else.
    loses_data: AtomicBool,
}

impl DamagedPages {
    pub(super) fn new(file: &str) -> Arc<DamagedPages> {
        let pages = Mutex::default();
        let loses_data = AtomicBool::new(false);
        Arc::new(DamagedPages { file: file.to_owned(), pages, loses_data })
    }

    /// Returns true if a copy of the segment would make a loss permanent.
    pub(super) fn loses_data(&self) -> bool {
        self.loses_data.load(Ordering::Relaxed)
    }

    /// Records a page, counted from the start of the file, and returns the error that names it.
    pub(super) fn record_page(&self, page: u64, reason: &str) -> Error {
        self.loses_data.store(true, Ordering::Relaxed);
        self.record_derived_page(page, reason)
    }

    /// Records a page of codes or of the payload index as [`DamagedPages::record_page`] does. They
    /// are computed from embeddings and payloads, so a merge loses nothing and makes them whole.
    pub(super) fn record_derived_page(&self, page: u64, reason: &str) -> Error {
        self.record(Some(page), reason)
    }

    /// Records damage that a copy of the file found.
    pub(super) fn record_copied(&self, damage: &SegmentFileDamage) {
        if damage.loses_data {
            self.loses_data.store(true, Ordering::Relaxed);
        }
        let _ = self.record(damage.page, &damage.reason);
    }

    /// Returns the error of a damaged page. Records and logs each page once, and at most
    /// [`DAMAGED_MAX`] pages.
    fn record(&self, page: Option<u64>, reason: &str) -> Error {
        let found = Quarantined { file: self.file.clone(), page, reason: reason.to_owned() };
        let error = Error::data_loss(found.to_string());
        let mut pages = self.pages.lock();
        if pages.len() < DAMAGED_MAX && !pages.iter().any(|known| known.page == found.page) {
            tracing::error!(
                file = self.file,
                page,
                reason,
                "damaged; the rest is served without it"
            );
            pages.push(found);
        }
        error
    }

    pub(super) fn list(&self) -> Vec<Quarantined> {
        self.pages.lock().clone()
    }

    /// Turns an error for lost bytes into the error for a damaged page, and passes other errors on.
    pub(super) fn check_read(&self, page: u64, result: Result<()>) -> Result<()> {
        result.map_err(|error| match error.kind() {
            base::ErrorKind::DataLoss => self.record_page(page, error.message()),
            _ => error.context(&self.file),
        })
    }

    /// Does the same as [`DamagedPages::check_read`], for pages that
    /// [`DamagedPages::record_derived_page`] records.
    pub(super) fn check_derived_read(&self, page: u64, result: Result<()>) -> Result<()> {
        result.map_err(|error| match error.kind() {
            base::ErrorKind::DataLoss => self.record_derived_page(page, error.message()),
            _ => error.context(&self.file),
        })
    }
}
