//! The member of payloads that the service of images owns.

use base::{Error, Result};
use search::points::PayloadChange;
use search::registry::CollectionSettings;
use serde_json::Value;

/// Key of the settings of images in the extra settings of a collection that holds images.
pub const IMAGES: &str = "images";
/// Key of a payload with the service's own facts of an image, such as its name and the key of its
/// original.
pub const IMAGE_BLOCK: &str = "image";

/// Name of the model in the settings of a collection of fingerprints that has no embeddings.
pub const NO_MODEL: &str = "none";

/// Checks that queries can compare the vectors of a collection. The vectors of fingerprints without
/// a model are placeholders.
///
/// # Errors
/// `InvalidArgument` with the remedy. Each holder of a cluster returns the same error.
pub(crate) fn check_embeddings(settings: &CollectionSettings) -> Result<()> {
    let text = |key: &str| settings.extra.get(IMAGES)?.get(key).and_then(Value::as_str);
    if text("kind") != Some("fingerprint") || text("model") != Some(NO_MODEL) {
        return Ok(());
    }
    Err(Error::invalid(
        "the collection holds fingerprints without embeddings, so no query compares its vectors; search it with \
         /v1/images, or filter, scroll and count its points",
    ))
}

/// Returns a change that replaces, deletes or clears payloads, and that keeps the [`IMAGE_BLOCK`]
/// in a collection of images. A payload that has this block replaces it.
pub fn keep_image_block(settings: &CollectionSettings, change: PayloadChange) -> PayloadChange {
    if settings.extra.get(IMAGES).is_none() {
        return change;
    }
    PayloadChange::Keep { key: IMAGE_BLOCK, change: Box::new(change) }
}
