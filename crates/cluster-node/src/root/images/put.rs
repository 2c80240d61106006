//! Puts one image in: its original into the store, and then its point into the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_images::{
    ExtractedImage, ImageInput, ImageKind, ImagesState, WantedImages, image_id, images_operation,
    present_answer,
};
use base::{Error, Result};
use bytes::Bytes;
use http::Method;
use metrics::KindLabels;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout_at;
use transport::{Reply, query_flag};

use super::super::call::RootContext;
use super::super::collections::new_id;
use super::super::split::shard_of_id;
use super::super::state::RootState;
use super::super::write::{deliver, was_not_written};
use super::call::ImageCall;
use super::create::{NewShards, create};
use super::points::{self, LookupConsistency, PointWish};
use super::target::ImageTarget;
use super::{delete, pass_on};

/// Parameters of a request with an image.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RootPutParams {
    name: Option<String>,
    kind: Option<String>,
    model: Option<String>,
    background: Option<String>,
    payload: Option<String>,
    quality_min: Option<u8>,
    shard_number: Option<u32>,
    replication_factor: Option<u32>,
}

impl RootPutParams {
    /// Returns the wanted properties of the collection.
    fn wanted(&self) -> Result<WantedImages> {
        let kind = self.kind.as_deref().map(ImageKind::parse).transpose()?;
        Ok(WantedImages { kind, model: self.model.clone() })
    }

    fn check_background(&self) -> Result<()> {
        if query_flag("background", self.background.as_deref())? {
            return Err(Error::unimplemented(
                "background=1 is not offered by a cluster: leave it out, and send fewer images at the same time",
            ));
        }
        Ok(())
    }
}

/// Puts the image in the body in.
pub(super) async fn put(mut call: ImageCall) -> Result<Reply> {
    check_media(&call.media())?;
    let parameters: RootPutParams = call.query.own()?;
    parameters.check_background()?;
    let wanted = parameters.wanted()?;
    let new = NewShards::checked(parameters.shard_number, parameters.replication_factor)?;
    let body = call.bytes().await?;
    let (name, payload) = (parameters.name.as_deref(), parameters.payload.as_deref());
    let input = ImageInput::new(name, payload, parameters.quality_min, body.clone())?;
    let _admitted = call.admit()?;
    let Some(images) = call.context.state.extraction().cloned() else {
        return pass_on::whole(&call.context, &call.head, Method::PUT, body).await;
    };
    pass_on::see_same_collection(&call.context, &call.head).await?;
    let put = ImagePut { context: &call.context, images, wanted, new };
    let outcome = put.run(input, body).await;
    count(
        &call.context.state,
        outcome.as_ref().map_or_else(|error| error.kind().name(), |it| it.status),
    );
    let PutAnswer { json, entry, .. } = outcome?;
    let reply = Reply::json(json.to_string());
    Ok(match entry {
        Some(at) => pass_on::with_written(reply, &call.head, &at.target.record, at.shard, at.entry),
        None => reply,
    })
}

/// Checks the type of the body.
fn check_media(media: &str) -> Result<()> {
    match media {
        "application/zip" | "application/x-zip-compressed" => Err(Error::unimplemented(
            "a cluster takes no archives: send each image on its own, or extract the features elsewhere and send them \
             with PUT /v1/images/NAME/features, as examples/bulk does",
        )),
        "application/json" => Err(Error::unimplemented(
            "a cluster reads no folders: send each image on its own, or extract the features elsewhere and send them \
             with PUT /v1/images/NAME/features, as examples/bulk does",
        )),
        "" | "application/octet-stream" | "application/x-www-form-urlencoded" => Ok(()),
        image if image.starts_with("image/") => Ok(()),
        other => Err(Error::invalid(format!(
            "the body's type is \"{other}\"; send an image as image/* or application/octet-stream"
        ))),
    }
}

/// Counts an image, or features of one, that was to be put in. `kind` is "added", "present" or the
/// kind of error.
pub(super) fn count(state: &RootState, kind: &'static str) {
    state.requests.metrics.images.put.get_or_create(&KindLabels { kind }).inc();
}

/// Entry of the log that has an image.
struct ImageEntry {
    target: ImageTarget,
    shard: u32,
    entry: u64,
}

/// Outcome of an image.
struct PutAnswer {
    json: Value,
    /// "added" or "present".
    status: &'static str,
    /// `None` if the image was there before.
    entry: Option<ImageEntry>,
}

/// An image on its way into the collection of a request, on a node that extracts.
struct ImagePut<'a> {
    context: &'a RootContext,
    images: Arc<ImagesState>,
    wanted: WantedImages,
    new: NewShards,
}

impl ImagePut<'_> {
    async fn run(&self, input: ImageInput, bytes: Bytes) -> Result<PutAnswer> {
        let existing = ImageTarget::existing(self.context, &self.wanted)?;
        if let Some(target) = &existing
            && let Some(json) = self.present(target, &bytes).await?
        {
            return Ok(PutAnswer { json, status: "present", entry: None });
        }
        let properties = existing.as_ref().map(ImageTarget::properties);
        let extracted = self.images.extract_image(input, &self.wanted, properties);
        let extracted =
            timeout_at(self.context.deadline.into(), extracted).await.map_err(|_| {
                Error::deadline("the time was up before the image's features were found")
            })??;
        let (settings, dims) = (extracted.settings(), extracted.dims());
        let target = match existing {
            Some(target) => target,
            None => create(self.context, settings, dims, self.new).await?,
        };
        target.check_features(settings, dims)?;
        let entry = self.write(target, &extracted, bytes).await?;
        Ok(PutAnswer { json: extracted.added(), status: "added", entry: Some(entry) })
    }

    /// Returns the answer for an image that the collection has with its original. A holder that
    /// lags may still have an image whose removal was acknowledged, so a second look is strong.
    async fn present(&self, target: &ImageTarget, bytes: &Bytes) -> Result<Option<Value>> {
        let id = image_id(bytes);
        let first = LookupConsistency::Default.or_strong(self.context.params.strong);
        let mut present = None;
        for consistency in [first, LookupConsistency::Strong] {
            let wish = PointWish { payload: true, consistency };
            let point = points::find(self.context, &target.record, id, wish).await?;
            present = point.and_then(|point| present_answer(&id, &point.payload));
            if consistency == LookupConsistency::Strong || present.is_none() {
                break;
            }
        }
        Ok(present)
    }

    /// Writes the original, and then the point. The original has a key of its own, so that a
    /// removal of the same image at this moment does not remove it.
    async fn write(
        &self,
        target: ImageTarget,
        extracted: &ExtractedImage,
        bytes: Bytes,
    ) -> Result<ImageEntry> {
        let space = target.record.originals_space();
        let original = extracted.original_key(&space, &new_id());
        // A payload that is too large leaves no original.
        let point = extracted.logged(&original)?;
        self.images.put_original(&original, bytes).await?;
        let shard = shard_of_id(&point.id, target.record.shards)?;
        let operation = images_operation(&[&point.text]);
        let operations = BTreeMap::from([(shard, vec![operation])]);
        match deliver(self.context, &target.record, operations).await {
            Ok(entry) => Ok(ImageEntry { target, shard, entry }),
            Err(error) => {
                if was_not_written(&error) {
                    delete::original(&self.images, &original).await;
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn archives_and_folders_are_refused_with_a_remedy() {
        for media in ["application/zip", "application/x-zip-compressed", "application/json"] {
            let error = check_media(media).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unimplemented, "{media}");
            assert!(error.message().contains("PUT /v1/images/NAME/features"), "{error}");
        }
        for media in ["", "image/png", "application/octet-stream"] {
            assert!(check_media(media).is_ok(), "{media}");
        }
        assert_eq!(check_media("text/plain").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
