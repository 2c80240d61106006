//! The member of payloads that the service of images owns.

use search::points::PayloadChange;
use search::registry::CollectionSettings;

/// Key of the settings of images in the extra settings of a collection that holds images.
pub const IMAGES: &str = "images";
/// Key of a payload with the service's own facts of an image, such as its name and the key of its
/// original.
pub const IMAGE_BLOCK: &str = "image";

/// Returns a change that replaces, deletes or clears payloads, and that keeps the [`IMAGE_BLOCK`]
/// in a collection of images. A payload that has this block replaces it.
pub fn keep_image_block(settings: &CollectionSettings, change: PayloadChange) -> PayloadChange {
    if settings.extra.get(IMAGES).is_none() {
        return change;
    }
    PayloadChange::Keep { key: IMAGE_BLOCK, change: Box::new(change) }
}
