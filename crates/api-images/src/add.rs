//! Puts one image into a collection. If its caller waits, a thread "images-N" decodes it and the
//! scheduler embeds it like any request.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::{Error, Result};
use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::collection::{CollectionSpec, ImageCollection};
use super::embedder::Embedder;
use super::features::{self, Features};
use super::ingest::IngestImage;
use super::job::IngestJob;
use super::services::ImageServices;
use super::settings::ImageKind;
use super::state::ImagesState;
use super::store::{self, EmbeddedImage, PutOutcome};

/// An image, and the collection to put it into.
pub(crate) struct NewImage {
    pub(crate) wanted: CollectionSpec,
    pub(crate) name: String,
    pub(crate) payload: Map<String, Value>,
    pub(crate) bytes: Bytes,
}

/// Adds an image. It is durable when this returns.
///
/// # Errors
/// Returns the errors of the image, the model, the store of originals and the collection.
pub(crate) async fn add(services: &Arc<ImageServices>, new: NewImage) -> Result<PutOutcome> {
    let outcome = put(services, new).await;
    services.count_put(store::status_of(&outcome));
    outcome
}

/// An image that was compared with the collection.
enum Prepared {
    Present(PutOutcome),
    New(Box<Features>, Embedder),
}

async fn put(services: &Arc<ImageServices>, new: NewImage) -> Result<PutOutcome> {
    let registry = services.registry()?;
    let NewImage { wanted, name, payload, bytes } = new;
    let existing = ImageCollection::existing(&registry, &wanted)?;
    let prepare = {
        let services = services.clone();
        let existing = existing.clone();
        let bytes = bytes.clone();
        let model = wanted.model.clone();
        let kind = wanted.kind;
        let quality_min = wanted.quality_min;
        move || {
            let known = existing
                .as_ref()
                .map(|target| store::present(&target.named, &[features::id_of(&bytes)]));
            if let Some(outcome) = known.into_iter().flatten().next().transpose()?.flatten() {
                return Ok(Prepared::Present(outcome));
            }
            let embedder = services.embedder(existing.as_ref(), model.as_deref())?;
            let kind = existing.as_ref().map(|target| target.kind).or(kind);
            let kind = kind.unwrap_or(ImageKind::Photo);
            let memory = features::reserve(&services.requests.memory, kind, &bytes, &name)?;
            let features = features::extract(&memory, kind, &bytes, &name, &embedder, quality_min)?;
            Ok(Prepared::New(Box::new(features), embedder))
        }
    };
    let (mut features, embedder) = match services.pool.run(prepare).await? {
        Prepared::Present(outcome) => return Ok(outcome),
        Prepared::New(features, embedder) => (features, embedder),
    };
    let embedding = services.embed(&embedder, std::mem::take(&mut features.tensor)).await?;
    let collection = wanted.name.clone();
    let target = match existing {
        Some(target) => target,
        None => {
            let registry = registry.clone();
            let dims = embedding.len();
            let model = embedder.name().to_owned();
            let make = move || ImageCollection::make(&registry, &wanted, dims, &model);
            services.pool.run(make).await?
        }
    };
    let image = EmbeddedImage { features: *features, embedding, payload: &payload, bytes };
    let image = store::with_original(services, &target, image).await?;
    let own = services.clone();
    let runtime = Handle::current();
    let write = move || {
        let ids = [image.features.facts.id];
        let _claim = own.writes.take(&ids);
        // Another request may have put the image in meanwhile.
        let known = store::present(&target.named, &ids).into_iter().next();
        if let Some(outcome) = known.transpose()?.flatten() {
            return Ok(outcome);
        }
        runtime.block_on(own.originals.keep(&image.original))?;
        let _writing = target.writing(&registry, &collection)?;
        store::write(&target.named, &image)?;
        Ok(PutOutcome::added(&image.features))
    };
    services.pool.run(write).await
}

/// Puts an image in as [`add`] does, at idle priority. It is put in even if the caller disconnects.
///
/// # Errors
/// As [`add`]; `ResourceExhausted` if too many images are queued.
pub(crate) async fn add_in_background(state: &ImagesState, new: NewImage) -> Result<PutOutcome> {
    let (sender, receiver) = oneshot::channel();
    let job = IngestJob::new(&state.services, new.wanted, Arc::new(AtomicBool::new(false)));
    // The send fails only if the caller has disconnected.
    let done = Box::new(move |outcome| drop(sender.send(outcome)));
    state.ingest.try_send(IngestImage {
        job,
        name: new.name,
        bytes: new.bytes,
        payload: new.payload,
        done,
    })?;
    receiver.await.unwrap_or_else(|_| Err(Error::internal("a panic ended the work on this image")))
}
