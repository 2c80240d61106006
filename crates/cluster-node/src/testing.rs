//! Parts of a node for the tests of this crate.

use std::path::Path;
use std::sync::Arc;

use api_qdrant::RegistrySource;
use base::Result;
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

/// Opens the collections of a directory, which is created if it is absent.
pub(crate) fn open_registry(directory: &Path) -> Arc<Registry> {
    std::fs::create_dir_all(directory).unwrap();
    Registry::open(RegistryOptions::for_tests(directory)).unwrap()
}
