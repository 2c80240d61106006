//! Settings of a collection of images: the subject of its images and the model that embeds them.

use std::sync::Arc;

use base::{Error, Result};
use search::Metric;
use search::points::PointId;
use search::registry::{CollectionSettings, NamedCollection, Registry};
use search::segment::RecordKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Key of these settings in the settings that a collection keeps for its endpoints.
pub(crate) const SECTION: &str = api_qdrant::IMAGES;

/// Name instead of a model, for a collection of fingerprints without embeddings.
pub(crate) const NO_MODEL: &str = api_qdrant::NO_MODEL;
/// Number of dimensions of the vector of a print in a collection without embeddings. Storage
/// requires a vector, and no query compares it.
pub const PLACEHOLDER_DIMS: usize = 4;

/// Returns the model of a new collection if no request names a model: [`NO_MODEL`] for
/// fingerprints, and `None` for photographs, which need a model.
pub(crate) fn default_model(kind: ImageKind) -> Option<String> {
    (kind == ImageKind::Fingerprint).then(|| NO_MODEL.to_owned())
}

/// Returns the vector of a point without an embedding. The values depend on the id alone. They are
/// not equal, because an index of equal vectors has one long list and takes long to build.
pub(crate) fn placeholder(id: &PointId) -> Vec<f32> {
    let hash = blake3::hash(&id.internal().to_le_bytes());
    let bytes = hash.as_bytes().iter().take(PLACEHOLDER_DIMS);
    // No value is 0, so the vector has a direction.
    bytes.map(|byte| f32::from(*byte) - 127.5).collect()
}

/// Returns true if the points of a collection have embeddings.
pub(crate) fn has_embeddings(kind: ImageKind, model: &str) -> bool {
    kind == ImageKind::Photo || model != NO_MODEL
}

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
    /// Name of the model that embeds them; "none" for fingerprints without embeddings.
    pub model: String,
}

impl ImageSettings {
    /// Checks that the points of the collection `name` have embeddings.
    ///
    /// # Errors
    /// `FailedPrecondition` with the remedy.
    pub fn check_embeddings(&self, name: &str) -> Result<()> {
        if self.has_embeddings() {
            return Ok(());
        }
        Err(Error::precondition(format!(
            "collection \"{name}\" holds fingerprints without embeddings, which this request compares; find \
             fingers with /v1/images/{name}/identify, or use a collection that was created with model="
        )))
    }

    /// Returns true if the points of the collection have embeddings.
    pub fn has_embeddings(&self) -> bool {
        has_embeddings(self.kind, &self.model)
    }

    /// Returns the dimensions of a new collection. `embedding` is that of the first image, or empty
    /// if the image has none.
    ///
    /// # Errors
    /// `InvalidArgument` if the collection has embeddings and the first image has none.
    pub fn new_dims(&self, embedding: &[f32]) -> Result<usize> {
        if !self.has_embeddings() {
            return Ok(PLACEHOLDER_DIMS);
        }
        if embedding.is_empty() {
            return Err(Error::invalid(format!(
                "a template has minutiae and no pixels to embed, so the size of the embeddings of model \"{}\" is \
                 not known: leave out model=, or send an image with pixels first",
                self.model
            )));
        }
        Ok(embedding.len())
    }

    /// Returns the vector to store for the point `id`: its `embedding`, or `dims` zeros if the
    /// embedding is empty. Zeros are similar to nothing. In a collection without embeddings,
    /// returns the placeholder.
    pub fn vector(&self, id: &PointId, embedding: Vec<f32>, dims: usize) -> Vec<f32> {
        if !self.has_embeddings() {
            return placeholder(id);
        }
        if embedding.is_empty() { vec![0.0; dims] } else { embedding }
    }

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
    pub fn check_dims(&self, own: usize, found: usize) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn prints(model: &str) -> ImageSettings {
        ImageSettings { kind: ImageKind::Fingerprint, model: model.to_owned() }
    }

    #[test]
    fn placeholders_follow_from_ids() {
        let [one, two] = [1, 2].map(|id| placeholder(&PointId::Number(id)));
        assert_eq!(one.len(), PLACEHOLDER_DIMS);
        assert_ne!(one, two);
        assert_eq!(one, placeholder(&PointId::Number(1)));
        for value in one.iter().chain(&two) {
            // Exact in JSON, and never 0.
            assert_eq!(value.abs().fract(), 0.5, "{value}");
        }
    }

    #[test]
    fn a_missing_embedding_has_a_vector() {
        let id = PointId::Number(7);
        assert_eq!(prints("m").vector(&id, vec![0.5, 1.0], 2), [0.5, 1.0]);
        assert_eq!(prints("m").vector(&id, Vec::new(), 2), [0.0; 2]);
        assert_eq!(prints(NO_MODEL).vector(&id, Vec::new(), 9), placeholder(&id));
        assert_eq!(prints(NO_MODEL).new_dims(&[]), Ok(PLACEHOLDER_DIMS));
        let photos = ImageSettings { kind: ImageKind::Photo, ..prints(NO_MODEL) };
        assert!(photos.has_embeddings(), "a model may have this name");
    }
}
