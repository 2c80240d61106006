//! Memory for an engine that allocates its parameters itself.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::Result;
use memory::{PacedReader, ParameterStore, RegionMut};

/// Reserved memory in the slot pool for the parameters of one load, and the way to read them
/// without disturbing requests.
#[derive(Clone, Debug)]
pub struct Arena {
    /// Store whose pool and read rate are used.
    pub store: Arc<ParameterStore>,
    /// Reserved bytes: [`crate::Engine::arena_bytes`].
    pub bytes: usize,
    /// Flag that ends the load early.
    pub stop: Arc<AtomicBool>,
}

impl Arena {
    /// Allocates the memory. Its contents are undefined.
    ///
    /// # Errors
    /// Returns the errors of [`memory::SlotPool::allocate_unless`].
    pub fn region(&self) -> Result<RegionMut> {
        self.store.pool().allocate_unless(self.bytes, &self.stop)
    }

    /// Opens `path` for reading past the page cache, at the store's rate.
    ///
    /// # Errors
    /// Returns the errors of [`ParameterStore::reader`].
    pub fn reader(&self, path: &Path) -> Result<PacedReader> {
        self.store.reader(path, self.stop.clone())
    }
}
