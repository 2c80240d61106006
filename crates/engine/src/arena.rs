//! Memory for an engine that allocates its parameters itself.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::Result;
use memory::{PacedReader, ParameterStore, RegionMut};

/// Room in the slot pool for the parameters of one load, and the way to read them without disturbing anybody.
#[derive(Clone, Debug)]
pub struct Arena {
    /// Whose pool, and whose read rate.
    pub store: Arc<ParameterStore>,
    /// Bytes that were reserved: [`crate::Engine::arena_bytes`].
    pub bytes: usize,
    /// Set to end the load early.
    pub stop: Arc<AtomicBool>,
}

impl Arena {
    /// The memory. Holds whatever its slots held before.
    ///
    /// # Errors
    /// Those of [`memory::SlotPool::allocate_unless`].
    pub fn region(&self) -> Result<RegionMut> {
        self.store.pool().allocate_unless(self.bytes, &self.stop)
    }

    /// Opens `path` for reading past the page cache, at the store's rate.
    ///
    /// # Errors
    /// Those of [`ParameterStore::reader`].
    pub fn reader(&self, path: &Path) -> Result<PacedReader> {
        self.store.reader(path, self.stop.clone())
    }
}
