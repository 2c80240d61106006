//! Local collections that hold an archive while it is received or sent.

use std::sync::Arc;

use base::{Error, Result};
use search::registry::{CollectionSettings, NamedCollection, Registry, ScrollPage};
use tokio::runtime::Handle;

use crate::node::local::blocking;
use crate::types::new_id;

/// Prefix of the names of staged collections. They follow no log, so they are not shards.
const PREFIX: &str = "millpond-staged-";

/// A local collection under a temporary name. It may not exist yet. Dropping this removes it.
pub(super) struct StagedCollection {
    registry: Arc<Registry>,
    name: String,
    is_removed: bool,
}

impl StagedCollection {
    /// Returns a name that no collection has.
    pub(super) fn new(registry: &Arc<Registry>) -> StagedCollection {
        let name = format!("{PREFIX}{}", new_id());
        StagedCollection { registry: registry.clone(), name, is_removed: false }
    }

    /// Returns the registry of the collection.
    pub(super) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Creates the collection, empty.
    ///
    /// # Errors
    /// As [`Registry::create`].
    pub(super) async fn create(
        &self,
        settings: CollectionSettings,
    ) -> Result<Arc<NamedCollection>> {
        let registry = self.registry.clone();
        let name = self.name.clone();
        blocking(move || registry.create(&name, settings)).await
    }

    /// Removes the collection if it exists. If that fails, the next transfer removes it.
    pub(super) async fn remove(mut self) {
        self.is_removed = true;
        let registry = self.registry.clone();
        let name = self.name.clone();
        remove_later(registry, name).await;
    }

    /// Removes the collections that earlier transfers left, for example those of a node that was
    /// killed. The caller must hold the only transfer.
    pub(super) async fn remove_all(registry: &Arc<Registry>) {
        for listed in registry.list() {
            if listed.name.starts_with(PREFIX) {
                remove_later(registry.clone(), listed.name).await;
            }
        }
    }
}

impl Drop for StagedCollection {
    fn drop(&mut self) {
        if self.is_removed {
            return;
        }
        let registry = self.registry.clone();
        let name = std::mem::take(&mut self.name);
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || remove(&registry, &name))),
            Err(_) => remove(&registry, &name),
        }
    }
}

async fn remove_later(registry: Arc<Registry>, name: String) {
    let removed = blocking(move || {
        remove(&registry, &name);
        Ok(())
    });
    if let Err(error) = removed.await {
        tracing::warn!(%error, "the copy of a collection stays until the next transfer");
    }
}

fn remove(registry: &Registry, name: &str) {
    if let Err(error) = registry.remove(name) {
        tracing::warn!(name, %error, "the copy of a collection stays until the next transfer");
    }
}

/// Checks that a page of a staged collection has all of its points. Returns the page.
///
/// # Errors
/// `DataLoss` if points are damaged; `Unavailable` if a segment is not open yet.
pub(super) fn check_complete(page: ScrollPage) -> Result<ScrollPage> {
    if !page.partial {
        return Ok(page);
    }
    Err(page.unseen.unwrap_or_else(|| Error::data_loss("points of the snapshot cannot be read")))
}
