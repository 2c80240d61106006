//! Settings of a collection of images: the subject of its images and the model that embeds them.

use std::sync::Arc;

use base::{Error, Result};
use search::coarse::Metric;
use search::registry::{CollectionSettings, NamedCollection, Registry};
use search::segment::RecordKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Key of these settings in the settings that a collection keeps for its endpoints.
pub(crate) const SECTION: &str = api_qdrant::IMAGES;

/// Subject of the images, which decides how keypoints are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageKind {
    /// Photographs: keypoints with descriptors.
    Photo,
    /// Fingerprints: minutiae.
    Fingerprint,
}

impl ImageKind {
    /// Reads a kind by its name.
    ///
    /// # Errors
    /// `InvalidArgument` for another text than "photo" and "fingerprint".
    pub fn parse(text: &str) -> Result<ImageKind> {
        match text {
            "photo" => Ok(ImageKind::Photo),
            "fingerprint" => Ok(ImageKind::Fingerprint),
            other => Err(Error::invalid(format!(
                "there is no kind \"{other}\"; there are photo and fingerprint"
            ))),
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            ImageKind::Photo => "photo",
            ImageKind::Fingerprint => "fingerprint",
        }
    }
}

/// Settings of a collection of images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSettings {
    /// Subject of the images.
    pub kind: ImageKind,
    /// Name of the model that embeds them.
    pub model: String,
}

impl ImageSettings {
    /// Creates the empty local collection of a shard, without an alias, for embeddings of `dims`
    /// values. `space` is the prefix of the keys of originals.
    ///
    /// # Errors
    /// Returns the errors of [`Registry::create`].
    pub fn create_shard(
        &self,
        registry: &Registry,
        name: &str,
        dims: usize,
        space: &str,
    ) -> Result<Arc<NamedCollection>> {
        registry.create(name, self.stored(dims, space))
    }

    /// Returns the settings of images in the settings of a collection, or `None` if it holds none.
    pub fn of(settings: &CollectionSettings) -> Option<ImageSettings> {
        let section = settings.extra.get(SECTION)?;
        let text = |key: &str| section.get(key).and_then(Value::as_str);
        let kind = ImageKind::parse(text("kind")?).ok()?;
        Some(ImageSettings { kind, model: text("model")?.to_owned() })
    }

    /// Returns the settings of a local collection.
    pub fn stored(&self, dims: usize, space: &str) -> CollectionSettings {
        let records = match self.kind {
            ImageKind::Photo => RecordKind::Opaque,
            ImageKind::Fingerprint => RecordKind::Fingerprint,
        };
        let section = json!({ "kind": self.kind.name(), "model": self.model, "originals": space });
        CollectionSettings {
            records,
            extra: json!({ SECTION: section }),
            ..CollectionSettings::new(dims, Metric::Cosine)
        }
    }

    /// Checks that an embedding of `found` values fits a collection of `own` values.
    ///
    /// # Errors
    /// `FailedPrecondition` with the remedy.
    pub(crate) fn check_dims(&self, own: usize, found: usize) -> Result<()> {
        if found == own {
            return Ok(());
        }
        Err(Error::precondition(format!(
            "model \"{}\" now gives {found} values and the collection has {own}: serve the earlier version, or rebuild the \
             collection",
            self.model
        )))
    }
}

/// Properties of a collection that a request names (`kind=`, `model=`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedImages {
    /// Subject of the images; any if `None`.
    pub kind: Option<ImageKind>,
    /// Name of the model; any if `None`.
    pub model: Option<String>,
}

impl WantedImages {
    /// Checks that the collection `name` has these properties.
    ///
    /// # Errors
    /// `FailedPrecondition` for another kind or model.
    pub fn check(&self, name: &str, settings: &ImageSettings) -> Result<()> {
        if self.kind.is_some_and(|kind| kind != settings.kind) {
            return Err(Error::precondition(format!(
                "collection \"{name}\" is of kind {}; use another collection",
                settings.kind.name()
            )));
        }
        if self.model.as_ref().is_some_and(|model| *model != settings.model) {
            return Err(Error::precondition(format!(
                "collection \"{name}\" was made with model \"{}\"; rebuild it to change that",
                settings.model
            )));
        }
        Ok(())
    }
}
