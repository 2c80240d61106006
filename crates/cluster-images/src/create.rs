//! New collections of images. The first image or features create the collection.

use std::time::{Duration, Instant};

use api_images::ImageSettings;
use base::{Error, Result};
use cluster_node::{CollectionRecord, new_id};
use cluster_root::collections::{wait_for, wait_for_holders};
use cluster_root::{NewShards, RootContext};
use search::DIMS_MAX;
use search::registry::check_name;
use serde_json::json;

use super::target::ImageTarget;

/// Longest wait for the record of a collection that another node has just created.
const RECORD_WAIT_MAX: Duration = Duration::from_secs(10);
/// Retry advice if that record does not appear.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Creates the collection of a request, or returns the one that another request has created
/// meanwhile. Waits for its holders.
///
/// # Errors
/// `InvalidArgument` for a name or a length of embeddings that no collection has;
/// `FailedPrecondition` if the other collection has another kind, model or length; `Unavailable` if
/// shards have no holder in time.
pub(super) async fn create(
    context: &RootContext,
    settings: &ImageSettings,
    dims: usize,
    new: NewShards,
) -> Result<ImageTarget> {
    let record = new_record(&context.collection, settings, dims, new)?;
    let is_created = context.state.catalog.create(&record).await?;
    if is_created {
        wait_for_holders(context, &record).await?;
    } else {
        let until = context.deadline.min(Instant::now() + RECORD_WAIT_MAX);
        let appeared =
            wait_for(context, until, |view| view.collections.contains_key(&context.collection));
        if !appeared.await {
            return Err(Error::unavailable(format!(
                "another request has just created or removed collection \"{}\"; send it again",
                context.collection
            ))
            .with_retry_after(RETRY_AFTER));
        }
    }
    let target = ImageTarget::open(context)?;
    target.check_features(settings, dims)?;
    if !is_created {
        // If the owner of a shard refuses the write of an image, a lookup needs a holder.
        wait_for_holders(context, &target.record).await?;
    }
    Ok(target)
}

/// Returns the record of a new collection of images with embeddings of `dims` values.
///
/// # Errors
/// `InvalidArgument` for a name or a number of dimensions that no collection has.
fn new_record(
    name: &str,
    settings: &ImageSettings,
    dims: usize,
    new: NewShards,
) -> Result<CollectionRecord> {
    check_name(name)?;
    if !(1..=DIMS_MAX).contains(&dims) {
        return Err(Error::invalid(format!(
            "the embeddings have {dims} values; a collection has 1 to {DIMS_MAX} dimensions"
        )));
    }
    Ok(CollectionRecord {
        name: name.to_owned(),
        id: new_id(),
        shards: new.shards,
        copies: new.copies,
        create: json!({ "vectors": { "size": dims, "distance": "Cosine" } }),
        images: Some(settings.clone()),
    })
}

#[cfg(test)]
mod tests {
    use api_images::ImageKind;
    use cluster_root::collections::settings;

    use super::*;

    fn photos() -> ImageSettings {
        ImageSettings { kind: ImageKind::Photo, model: "colour".to_owned() }
    }

    #[test]
    fn records_have_settings_and_a_body_for_vectors() {
        let new = NewShards { shards: 3, copies: 1 };
        let record = new_record("c", &photos(), 5, new).unwrap();
        assert_eq!((record.images.clone(), record.image_dims()), (Some(photos()), Some(5)));
        assert_eq!(settings(&record).unwrap().dims, 5);
        assert!(new_record(".c", &photos(), 5, new).is_err());
        assert!(new_record("c", &photos(), 0, new).is_err());
        assert!(new_record("c", &photos(), DIMS_MAX + 1, new).is_err());
    }
}
