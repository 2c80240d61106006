//! Local collections that hold an archive while it is received or sent.

use std::sync::Arc;

use base::Result;
use search::registry::Registry;

use crate::node::local::blocking;
use crate::types::new_id;

/// Start of the names of these collections. They follow no log, so they are not shards.
const PREFIX: &str = "millpond-staged-";

/// A local collection under a temporary name. It may not exist yet.
pub(super) struct StagedCollection {
    registry: Arc<Registry>,
    name: String,
}

impl StagedCollection {
    /// Returns a name that no collection has.
    pub(super) fn new(registry: &Arc<Registry>) -> StagedCollection {
        StagedCollection { registry: registry.clone(), name: format!("{PREFIX}{}", new_id()) }
    }

    /// Returns the registry of the collection.
    pub(super) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Returns the name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Removes the collection if it exists. If that fails, the next transfer removes it.
    pub(super) async fn remove(self) {
        let StagedCollection { registry, name } = self;
        remove(&registry, name).await;
    }

    /// Removes the collections that earlier transfers left, for example those of a node that was
    /// killed. The caller must hold the only transfer.
    pub(super) async fn remove_all(registry: &Arc<Registry>) {
        for listed in registry.list() {
            if listed.name.starts_with(PREFIX) {
                remove(registry, listed.name).await;
            }
        }
    }
}

async fn remove(registry: &Arc<Registry>, name: String) {
    let (own, removed) = (registry.clone(), name.clone());
    let done: Result<bool> = blocking(move || own.remove(&removed)).await;
    if let Err(error) = done {
        tracing::warn!(name, %error, "a collection of a transfer stays until the next one");
    }
}
