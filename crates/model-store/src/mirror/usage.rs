//! Bytes of the copies of all stores.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Bytes of the copies of each store, by directory of models. A version counts before it is
/// fetched, once there is room for it. So other stores do not use the same room meanwhile.
#[derive(Default)]
pub(crate) struct CacheUsage(RefCell<BTreeMap<PathBuf, u64>>);

impl CacheUsage {
    pub(super) fn set(&self, models_dir: &Path, bytes: u64) {
        self.0.borrow_mut().insert(models_dir.to_owned(), bytes);
    }

    pub(super) fn remove(&self, models_dir: &Path) {
        self.0.borrow_mut().remove(models_dir);
    }

    /// Returns the bytes of all stores.
    pub(super) fn total(&self) -> u64 {
        self.0.borrow().values().sum()
    }

    /// Returns the bytes of all stores but the one at `models_dir`.
    pub(super) fn of_others(&self, models_dir: &Path) -> u64 {
        self.0.borrow().iter().filter(|(dir, _)| *dir != models_dir).map(|(_, bytes)| bytes).sum()
    }
}
