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

/// Opens the collections of a directory on a disk that counts as full.
pub(crate) fn open_registry_without_room(directory: &Path) -> Arc<Registry> {
    // More bytes are kept free than a disk has.
    let disk_reserve = Some(1 << 60);
    let options = RegistryOptions { disk_reserve, ..RegistryOptions::for_tests(directory) };
    Registry::open(options).unwrap()
}

/// Opens the collections of a directory, which is created if it is absent.
pub(crate) fn open_registry(directory: &Path) -> Arc<Registry> {
    std::fs::create_dir_all(directory).unwrap();
    Registry::open(RegistryOptions::for_tests(directory)).unwrap()
}
