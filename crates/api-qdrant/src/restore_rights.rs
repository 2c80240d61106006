//! Rights that a key needs to restore a snapshot. A client can change the settings in a snapshot,
//! which name the directory of original images and the model that embeds images.

use backup::{BackupService, RestoreTarget};
use base::{Error, Result};
use search::registry::{CollectionSettings, ListedState, Registry, check_name};
use serde_json::Value;
use transport::access::KeyGrant;

use crate::image_block::{IMAGES, NO_MODEL};

/// Maximum characters of a name in an error. A name in a snapshot may have megabytes.
const SHOWN_CHARS_MAX: usize = 80;

/// Rights of a request's key for the settings in a snapshot.
pub(crate) struct RestoreRights {
    grant: KeyGrant,
    /// Model of new collections of images if no request names a model.
    default_model: Option<String>,
}

impl RestoreRights {
    /// Returns the rights of a key. `default_model` embeds new collections of images.
    pub(crate) fn new(grant: KeyGrant, default_model: Option<String>) -> RestoreRights {
        RestoreRights { grant, default_model }
    }

    /// Checks that the key permits the original images and the model that `settings` name.
    ///
    /// # Errors
    /// `PermissionDenied` if it does not; `InvalidArgument` if the directory of original images
    /// cannot be that of a collection.
    pub(crate) fn check(
        &self,
        backups: &BackupService,
        registry: &Registry,
        settings: &CollectionSettings,
        target: &RestoreTarget,
    ) -> Result<()> {
        if let Some(space) = backups.originals_of(settings) {
            let replaced = registry.get(&target.name).ok();
            let own = replaced.and_then(|named| backups.originals_of(&named.settings()));
            // The key can already remove the images of the collection that it replaces.
            if own.as_ref() != Some(&space) {
                self.check_originals(&space)
                    .map_err(|error| error.context("the original images of the snapshot"))?;
            }
        }
        self.check_model(registry, settings)
    }

    /// Checks that the key may remove the collection `space`: removing the restored collection
    /// removes the original images of that name.
    fn check_originals(&self, space: &str) -> Result<()> {
        check_name(space)?;
        self.grant.check_create(space)
    }

    /// Checks that the key may embed images by the model of `settings`. A key may use the default
    /// model and the models of its collections, since every upload of an image does.
    fn check_model(&self, registry: &Registry, settings: &CollectionSettings) -> Result<()> {
        let Some(model) = embedding_model(settings) else { return Ok(()) };
        if self.grant.sees_model(model)
            || self.default_model.as_deref() == Some(model)
            || self.sees_collection_of(registry, model)
        {
            return Ok(());
        }
        let shown: String = model.chars().take(SHOWN_CHARS_MAX).collect();
        Err(Error::denied(format!(
            "the key \"{}\" may not use the model {shown:?}, which embeds the images of the snapshot",
            self.grant.name()
        )))
    }

    /// Returns true if the key may use a collection whose images `model` embeds.
    fn sees_collection_of(&self, registry: &Registry, model: &str) -> bool {
        let aliases = registry.aliases();
        let sees = |name: &str| {
            let mut own = aliases.iter().filter(|(_, collection)| collection == name);
            self.grant.sees_collection(name)
                || own.any(|(alias, _)| self.grant.sees_collection(alias))
        };
        registry.list().into_iter().any(|listed| match listed.state {
            ListedState::Ready(named) => {
                embedding_model(&named.settings()) == Some(model) && sees(&listed.name)
            }
            ListedState::Opening | ListedState::Broken(_) => false,
        })
    }
}

/// Returns the model that embeds the images of a collection, if any does.
fn embedding_model(settings: &CollectionSettings) -> Option<&str> {
    let images = settings.extra.get(IMAGES)?;
    let model = images.get("model")?.as_str()?;
    let is_fingerprint = images.get("kind").and_then(Value::as_str) == Some("fingerprint");
    // Photographs always have embeddings, by a model of any name.
    (model != NO_MODEL || !is_fingerprint).then_some(model)
}
