//! Adds one image: its original to the store, and then its point to the log.
//!
//! Other nodes may add the same image at the same moment. The owner of the shard sees all of these
//! writes in their order. So this node writes the point on the condition that no entry after the
//! last lookup has written the image. After a conflict, it looks the image up again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api_images::{
    ExtractedImage, ExtractionPriority, ImageInput, ImageKind, ImagesState, WantedImages,
    check_bulk_params, image_id, images_operation, original_key, present_answer,
};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster_node::{ShardKey, new_id};
use cluster_root::split::shard_of_id;
use cluster_root::writes::{
    OwnerDecision, ShardWrite, WriteCondition, delete_original, not_written, was_not_written,
};
use cluster_root::{NewShards, RootContext, RootState};
use http::Method;
use metrics::KindLabels;
use search::points::PointId;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::{timeout, timeout_at};
use transport::{Reply, query_flag};

use super::call::ImageCall;
use super::create::create;
use super::pass_on::{self, WrittenEntry};
use super::points::{self, LookupConsistency, PointLookup};
use super::target::ImageTarget;

/// Longest time of an image that is added at idle priority. Searches may take all cores meanwhile.
pub(super) const BACKGROUND_TIME_MAX: Duration = Duration::from_secs(300);

/// Longest time for which an image at idle priority is sent to the owner of its shard. Meanwhile it
/// holds a slot of extraction, which images of other shards need.
const IDLE_WRITE_MAX: Duration = Duration::from_secs(30);

/// Longest wait of an upload for another one of the same image.
const CLAIM_WAIT_MAX: Duration = Duration::from_secs(5);

/// Maximum writes of an image that the owner of its shard refuses. A lookup follows each.
const CONFLICTS_MAX: u32 = 3;

/// Retry advice after [`CONFLICTS_MAX`] conflicts.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Parameters of a request with one image, or with many.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RootPutParams {
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
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown kind.
    pub(super) fn wanted_images(&self) -> Result<WantedImages> {
        let kind = self.kind.as_deref().map(ImageKind::parse).transpose()?;
        Ok(WantedImages { kind, model: self.model.clone() })
    }

    /// Returns the shards of the collection, if the request creates it.
    ///
    /// # Errors
    /// As [`NewShards::checked`].
    pub(super) fn new_shards(&self) -> Result<NewShards> {
        NewShards::checked(self.shard_number, self.replication_factor)
    }

    /// Returns the image to add.
    ///
    /// # Errors
    /// As [`ImageInput::new`].
    pub(super) fn input(&self, bytes: Bytes) -> Result<ImageInput> {
        ImageInput::new(self.name.as_deref(), self.payload.as_deref(), self.quality_min, bytes)
    }

    /// Checks the parameters of a request with many images.
    ///
    /// # Errors
    /// As [`check_bulk_params`].
    pub(super) fn check_bulk(&self) -> Result<()> {
        check_bulk_params(self.name.as_deref(), self.background.as_deref())
    }

    /// Returns true if the image is added at idle priority.
    ///
    /// # Errors
    /// `InvalidArgument` for a value that is not a flag.
    fn is_background(&self) -> Result<bool> {
        query_flag("background", self.background.as_deref())
    }
}

/// Adds the image in the body.
pub(super) async fn put(mut call: ImageCall) -> Result<Reply> {
    check_media(&call.media())?;
    call.context.check_creates()?;
    let parameters: RootPutParams = call.query.route_parameters()?;
    let is_background = parameters.is_background()?;
    let wanted = parameters.wanted_images()?;
    let new = parameters.new_shards()?;
    let body = call.bytes().await?;
    let mut input = parameters.input(body.clone())?;
    if is_background {
        input.priority = ExtractionPriority::Idle;
        call.context = call.context.with_time(BACKGROUND_TIME_MAX);
    }
    let _admitted = call.admit()?;
    let Some(images) = call.context.state.extraction().cloned() else {
        return pass_on::pass_request_on(&call.context, &call.head, Method::PUT, body).await;
    };
    pass_on::see_same_collection(&call.context, &call.head).await?;
    let priority = input.priority;
    let put = ImagePut { context: &call.context, images, wanted, new, priority };
    let FileAnswer { json, entries } = match put.run_file(input).await {
        Ok(answer) => answer,
        Err(error) => return Ok(pass_on::refused(&error, &call.head)),
    };
    Ok(pass_on::with_written(Reply::json(json.to_string()), &call.head, &entries))
}

/// Checks the type of the body with one image.
fn check_media(media: &str) -> Result<()> {
    match media {
        ""
        | "application/octet-stream"
        | "application/x-www-form-urlencoded"
        | "application/cbor" => Ok(()),
        image if image.starts_with("image/") => Ok(()),
        other => Err(Error::invalid(format!(
            "the body's type is \"{other}\"; send an image as image/* or application/octet-stream, many as \
             application/zip, or {{\"folder\": PATH}} as application/json"
        ))),
    }
}

/// Counts the attempt to add an image or its features. `kind` is "added", "present" or the kind of
/// error.
pub(super) fn count(state: &RootState, kind: &'static str) {
    state.requests.metrics.images.put.get_or_create(&KindLabels { kind }).inc();
}

/// Outcome of a file: of one image, or of the prints of a file with several.
pub(super) struct FileAnswer {
    pub(super) json: Value,
    /// Entries of the images that were added.
    entries: Vec<WrittenEntry>,
}

/// Outcome of an image.
struct PutAnswer {
    json: Value,
    /// "added" or "present".
    status: &'static str,
    /// Entry of the log that has it; `None` if the collection had the image before.
    entry: Option<WrittenEntry>,
}

impl PutAnswer {
    /// Returns the outcome of an image that the collection had before.
    fn present(json: Value) -> PutAnswer {
        PutAnswer { json, status: "present", entry: None }
    }
}

/// An image whose original is in the store, and whose point is not in the log.
struct StoredUpload {
    target: ImageTarget,
    id: PointId,
    shard: u32,
    /// Operation that writes the point.
    operation: String,
    /// Key of the original.
    original: String,
}

/// An image that the collection has with its original.
struct PresentImage {
    /// Answer to another upload of it.
    json: Value,
    /// Key of its original, as its payload names it.
    original: String,
}

impl PresentImage {
    /// Reads the payload of a point. Returns `None` for a point without an original.
    fn of(id: &PointId, payload: &Map<String, Value>) -> Option<PresentImage> {
        let json = present_answer(id, payload)?;
        let original = original_key(payload)?.to_owned();
        Some(PresentImage { json, original })
    }
}

enum PointWriteOutcome {
    /// Number of the entry that has the point.
    Added(u64),
    /// Answer for the image, which another upload has added.
    Present(Value),
}

/// An image that is being added to the collection of a request, on a node that extracts.
pub(super) struct ImagePut<'a> {
    pub(super) context: &'a RootContext,
    pub(super) images: Arc<ImagesState>,
    pub(super) wanted: WantedImages,
    pub(super) new: NewShards,
    pub(super) priority: ExtractionPriority,
}

impl ImagePut<'_> {
    /// Adds the image of a file, or all prints of a file with several.
    ///
    /// # Errors
    /// As [`ImagePut::run`] and [`ImagesState::upload_prints`]. If a file has several prints, an
    /// error of one print is part of the answer, unless all prints have an error.
    pub(super) async fn run_file(&self, input: ImageInput) -> Result<FileAnswer> {
        let counted = |error: &Error| count(&self.context.state, error.kind().name());
        let prints = self.images.upload_prints(input, self.kind()).await;
        let prints = prints.inspect_err(counted)?;
        let mut entries = Vec::new();
        let mut results = Vec::new();
        for input in prints.inputs() {
            let result = match input {
                Ok(input) => {
                    let bytes = input.bytes.clone();
                    Box::pin(self.run(input, bytes)).await
                }
                Err(error) => {
                    counted(&error);
                    Err(error)
                }
            };
            match result {
                Ok(PutAnswer { json, entry, .. }) => {
                    entries.extend(entry);
                    results.push(Ok(json));
                }
                Err(error) if prints.is_ended_by(&error) => return Err(error),
                Err(error) => results.push(Err(error)),
            }
        }
        Ok(FileAnswer { json: prints.answer(results)?, entries })
    }

    /// Returns the kind of the collection, or of the collection to create.
    fn kind(&self) -> ImageKind {
        match ImageTarget::existing(self.context, &self.wanted) {
            Ok(Some(target)) => target.settings.kind,
            Ok(None) => self.wanted.kind.unwrap_or(ImageKind::Photo),
            // The upload of the whole file reports the error.
            Err(_) => ImageKind::Photo,
        }
    }

    /// Adds the image, and counts it.
    ///
    /// # Errors
    /// The errors of the image and the model; `FailedPrecondition` if the collection has another
    /// kind or model; the errors of the store and of the log's owner.
    async fn run(&self, input: ImageInput, bytes: Bytes) -> Result<PutAnswer> {
        let outcome = self.put(input, bytes).await;
        let kind = outcome.as_ref().map_or_else(|error| error.kind().name(), |it| it.status);
        count(&self.context.state, kind);
        outcome
    }

    /// Adds an image: looks it up, has its features extracted, stores its original, and writes its
    /// point. Returns the present image if the collection has it.
    async fn put(&self, input: ImageInput, bytes: Bytes) -> Result<PutAnswer> {
        let id = image_id(&bytes);
        let claim = self.images.claim_upload(id);
        // An upload does not wait longer than this for one at idle priority. The owner of the shard
        // then decides which of them adds the image.
        let claim = timeout(CLAIM_WAIT_MAX, claim).await.ok();
        let has_waited = claim.as_ref().is_none_or(|claim| claim.has_waited);
        let existing = ImageTarget::existing(self.context, &self.wanted)?;
        let mut seen = 0;
        if let Some(target) = &existing {
            seen = self.seen_by_lookups(target, &id)?;
            let first = LookupConsistency::Default.or_strong(has_waited);
            if let Some(image) = self.present(target, id, first).await? {
                return Ok(PutAnswer::present(image.json));
            }
        }
        let was_there = existing.is_some();
        let properties = existing.as_ref().map(ImageTarget::properties);
        let extracted = self.images.extract_image(input, &self.wanted, properties);
        let extracted = timeout_at(self.context.deadline.into(), extracted)
            .await
            .map_err(|_| Error::deadline(super::FEATURES_LATE))??;
        let settings = extracted.settings();
        let dims = extracted.dims();
        let target = match existing {
            Some(target) => target,
            None => create(self.context, settings, dims, self.new).await?,
        };
        target.check_features(settings, dims)?;
        // The extraction takes most of the time, and another node may have added the image in this
        // time. If this lookup fails, the first one counts.
        if was_there {
            let seen_now = self.seen_by_lookups(&target, &id)?;
            match self.present(&target, id, LookupConsistency::Default).await {
                Ok(Some(image)) => return Ok(PutAnswer::present(image.json)),
                Ok(None) => seen = seen_now,
                Err(error) => tracing::debug!(%id, %error, "an image is not looked up again"),
            }
        }
        let record = target.record.clone();
        let upload = self.store_original(target, &extracted, bytes).await?;
        match Box::pin(self.write(upload, seen, extracted.added())).await {
            // The next upload of the image creates the collection again, or finds a newer one.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(self.context.state.removed(&record, self.context.deadline).await)
            }
            written => written,
        }
    }

    /// Returns the number of an entry that every later lookup of the image sees.
    fn seen_by_lookups(&self, target: &ImageTarget, id: &PointId) -> Result<u64> {
        let shard = shard_of_id(id, target.record.shards)?;
        Ok(self.context.state.last_written(&ShardKey::new(&target.record.id, shard)))
    }

    /// Looks up an image. Returns `None` unless the collection has it with its original. A holder
    /// that lags may still have an image whose removal was acknowledged. So a second, strong lookup
    /// confirms the first one. `first` is the consistency of the first lookup. It is strong in any
    /// case if the client requests that.
    ///
    /// # Errors
    /// As [`points::find`]; `Unavailable` with retry advice if the image is in a removed
    /// collection.
    async fn present(
        &self,
        target: &ImageTarget,
        id: PointId,
        first: LookupConsistency,
    ) -> Result<Option<PresentImage>> {
        let first = first.or_strong(self.context.params.strong);
        let mut present = None;
        for consistency in [first, LookupConsistency::Strong] {
            let lookup = PointLookup { payload: true, consistency };
            let point = points::find(self.context, &target.record, id, lookup).await?;
            present = point.and_then(|point| PresentImage::of(&id, &point.payload));
            if consistency == LookupConsistency::Strong || present.is_none() {
                break;
            }
        }
        // A client that removed the collection at another root sends its images again.
        if present.is_some() {
            let deadline = self.context.deadline;
            self.context.state.check_current(&target.record, deadline).await?;
        }
        Ok(present)
    }

    /// Writes the original. It has a key of its own. So neither a removal of the same image at this
    /// moment nor the end of another upload removes it.
    async fn store_original(
        &self,
        target: ImageTarget,
        extracted: &ExtractedImage,
        bytes: Bytes,
    ) -> Result<StoredUpload> {
        let space = target.record.originals_space();
        let original = extracted.original_key(&space, &new_id());
        // A payload that is too large leaves no original.
        let point = extracted.logged(&original)?;
        let shard = shard_of_id(&point.id, target.record.shards)?;
        self.images.put_original(&original, bytes).await?;
        let operation = images_operation(&[&point.text]);
        Ok(StoredUpload { target, id: point.id, shard, operation, original })
    }

    /// Writes the point of an image, which a lookup that has seen the entry `seen` did not find.
    /// Removes the original of this upload if the point is in no entry and never will be. Keeps the
    /// original if the point of the image names it.
    async fn write(&self, upload: StoredUpload, seen: u64, added: Value) -> Result<PutAnswer> {
        let outcome = self.write_unless_present(&upload, seen).await;
        let may_be_written = match &outcome {
            Ok(PointWriteOutcome::Added(_)) => true,
            Ok(PointWriteOutcome::Present(_)) => false,
            Err(error) => !was_not_written(error),
        };
        if !may_be_written {
            delete_original(&self.images, &upload.original).await;
        }
        Ok(match outcome? {
            PointWriteOutcome::Added(entry) => {
                let StoredUpload { target, shard, .. } = upload;
                let key = ShardKey::new(&target.record.id, shard);
                PutAnswer { json: added, status: "added", entry: Some(WrittenEntry { key, entry }) }
            }
            PointWriteOutcome::Present(json) => PutAnswer::present(json),
        })
    }

    /// Returns the time until which the point is sent to the owner of its shard.
    fn write_deadline(&self) -> Instant {
        let deadline = self.context.deadline;
        match self.priority {
            ExtractionPriority::Ordinary => deadline,
            ExtractionPriority::Idle => deadline.min(Instant::now() + IDLE_WRITE_MAX),
        }
    }

    /// Writes the point. If another upload may have added the image after the entry `seen`, looks
    /// the image up and tries again.
    ///
    /// A proxy between the nodes may send a write twice. The owner then refuses the repetition, and
    /// the image that the lookup finds is this upload's own.
    ///
    /// # Errors
    /// `Unavailable` with retry advice after [`CONFLICTS_MAX`] conflicts; errors of the lookup and
    /// of the write. [`was_not_written`] is false if the outcome of a write is unknown, or if the
    /// lookup after a conflict fails. Such a lookup does not show that no point names the original.
    async fn write_unless_present(
        &self,
        upload: &StoredUpload,
        mut seen: u64,
    ) -> Result<PointWriteOutcome> {
        let write = ShardWrite {
            state: self.context.state.clone(),
            key: ShardKey::new(&upload.target.record.id, upload.shard),
            deadline: self.write_deadline(),
        };
        for _ in 0..CONFLICTS_MAX {
            let condition = WriteCondition { id: upload.id, after: seen };
            match Box::pin(write.run_on_condition(condition, &upload.operation)).await? {
                OwnerDecision::Made(entry) => return Ok(PointWriteOutcome::Added(entry)),
                // Other writes of this node may have seen later entries meanwhile.
                OwnerDecision::Conflict(entry) => {
                    seen = entry.max(self.seen_by_lookups(&upload.target, &upload.id)?);
                }
            }
            self.context.state.requests.metrics.cluster.write_conflicts.inc();
            let first = LookupConsistency::Strong;
            if let Some(image) = self.present(&upload.target, upload.id, first).await? {
                return Ok(if image.original == upload.original {
                    PointWriteOutcome::Added(seen)
                } else {
                    PointWriteOutcome::Present(image.json)
                });
            }
        }
        let shard = &write.key;
        let error = Error::unavailable(format!(
            "shard {shard}: other requests write so many images that {} was refused; send it again later",
            upload.id
        ));
        Err(not_written(error.with_retry_after(RETRY_AFTER)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bodies_are_refused_with_a_remedy() {
        for media in ["", "image/png", "application/octet-stream", "application/cbor"] {
            assert!(check_media(media).is_ok(), "{media}");
        }
        let error = check_media("text/plain").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("application/zip"), "{error}");
    }
}
