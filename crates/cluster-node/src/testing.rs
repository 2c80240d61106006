//! Parts of a node for the tests of this crate.

use std::path::Path;
use std::sync::Arc;

use api_qdrant::RegistrySource;
use base::{Error, Result};
use parking_lot::Mutex;
use search::registry::{Registry, RegistryOptions};

/// The collections of a node.
pub(crate) struct TestRegistry(pub(crate) Arc<Registry>);

impl RegistrySource for TestRegistry {
    fn registry(&self) -> Result<Arc<Registry>> {
        Ok(self.0.clone())
    }

    fn opened(&self) -> Option<Arc<Registry>> {
        Some(self.0.clone())
    }
}

/// The collections of a node that can be closed and opened again.
#[derive(Default)]
pub(crate) struct SwitchedRegistry(Mutex<Option<Arc<Registry>>>);

impl SwitchedRegistry {
    pub(crate) fn open(&self, registry: Arc<Registry>) {
        *self.0.lock() = Some(registry);
    }

    pub(crate) fn close(&self) {
        *self.0.lock() = None;
    }
}

impl RegistrySource for SwitchedRegistry {
    fn registry(&self) -> Result<Arc<Registry>> {
        self.opened().ok_or_else(|| Error::unavailable("the collections are closed"))
    }

    fn opened(&self) -> Option<Arc<Registry>> {
        self.0.lock().clone()
    }
}

/// Opens the collections of a directory, which is created if it is absent.
pub(crate) fn open_registry(directory: &Path) -> Arc<Registry> {
    std::fs::create_dir_all(directory).unwrap();
    Registry::open(RegistryOptions::for_tests(directory)).unwrap()
}
