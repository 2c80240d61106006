//! Adds one image to a collection. If its caller waits, a thread "images-N" decodes it and the
//! scheduler embeds it like any request.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::{Error, Result};
use bytes::Bytes;
use image_features::collection::{CollectionSpec, ImageCollection};
use image_features::embedder::Embedder;
use image_features::embedding_plan::EmbeddingPlan;
use image_features::features::{self, FeatureSource, Features};
use image_features::settings::ImageSettings;
use os::CpuAccount;
use search::points::PointId;
use search::registry::Registry;
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::ingest::IngestImage;
use super::job::IngestJob;
use super::removal::remove_refused;
use super::services::ImageServices;
use super::state::ImagesState;
use super::store::{self, EmbeddedImage, PutOutcome, ReadyImage};

/// An image, and the collection to add it to.
pub(crate) struct NewImage {
    pub(crate) wanted: CollectionSpec,
    pub(crate) name: String,
    pub(crate) payload: Map<String, Value>,
    pub(crate) bytes: Bytes,
}

/// Adds an image. It is durable when this returns.
///
/// # Errors
/// Returns the errors of the image, the model, the store of originals and the collection;
/// `ResourceExhausted` with retry advice if too many images are being added.
pub(crate) async fn add(services: &Arc<ImageServices>, new: NewImage) -> Result<PutOutcome> {
    let outcome = put(services, new).await;
    services.count_put(store::status_of(&outcome));
    outcome
}

/// An image that was compared with the collection.
enum Prepared {
    Present(PutOutcome),
    New(Box<PreparedFeatures>),
}

/// Features of a new image, and the settings of its collection.
struct PreparedFeatures {
    features: Features,
    settings: ImageSettings,
    /// The model that embeds the image; `None` if it gets no embedding.
    embedder: Option<Embedder>,
}

/// Compares an image with its collection, if that exists, and extracts its features.
fn prepare(
    services: &ImageServices,
    existing: Option<&ImageCollection>,
    wanted: &CollectionSpec,
    name: &str,
    bytes: &Bytes,
) -> Result<Prepared> {
    let known = existing.map(|target| store::present(&target.named, &[features::id_of(bytes)]));
    if let Some(outcome) = known.into_iter().flatten().next().transpose()?.flatten() {
        return Ok(Prepared::Present(outcome));
    }
    let own = existing.map(ImageCollection::settings);
    let plan = EmbeddingPlan::of(own.as_ref(), &wanted.images());
    let embedder = services.embedder_of(&plan, bytes)?;
    let quality_min = wanted.quality_min;
    let file = FeatureSource { kind: plan.kind, bytes, name, quality_min };
    let decoding = file.decoding(embedder.as_ref());
    let memory = features::reserve(&services.requests.memory, &decoding)?;
    let features = features::extract(&memory, file, embedder.as_ref())?;
    let settings = plan.settings(embedder.as_ref());
    Ok(Prepared::New(Box::new(PreparedFeatures { features, settings, embedder })))
}

/// Extracts the features of an image on the pool, and writes the image. An image that the
/// collection has already is not extracted again.
async fn put(services: &Arc<ImageServices>, new: NewImage) -> Result<PutOutcome> {
    let refused = |_: &Error| services.count_refusal("image_additions_max");
    let permit = services.additions.begin().inspect_err(refused)?;
    let registry = services.registry()?;
    let NewImage { wanted, name, payload, bytes } = new;
    let existing = ImageCollection::existing(&registry, &wanted)?;
    let preparing = {
        let services = services.clone();
        let existing = existing.clone();
        let bytes = bytes.clone();
        let wanted = wanted.clone();
        move || prepare(&services, existing.as_ref(), &wanted, &name, &bytes)
    };
    let prepared = match services.pool.run_wanted(preparing).await? {
        Prepared::Present(outcome) => return Ok(outcome),
        Prepared::New(prepared) => *prepared,
    };
    let PreparedFeatures { mut features, settings, embedder } = prepared;
    let tensor = std::mem::take(&mut features.tensor);
    let embedding = match &embedder {
        Some(embedder) => services.embed(embedder, tensor).await?,
        None => Vec::new(),
    };
    let collection = wanted.name.clone();
    let target = match existing {
        Some(target) => target,
        None => create_collection(services, &registry, wanted, &settings, &embedding).await?,
    };
    let id = PointId::Uuid(features.facts.id);
    let embedding = settings.vector(&id, embedding, target.named.settings().dims);
    let addition = Addition { services: services.clone(), registry, target, name: collection };
    let work = async move {
        let _permit = permit;
        let image = EmbeddedImage { features, embedding, payload: &payload, bytes };
        addition.write(image).await
    };
    // A task of its own, so that it ends even if the client disconnects: an original that is
    // written gets its point, or is removed.
    let written = match CpuAccount::current() {
        Some(account) => tokio::spawn(account.wrap(work)),
        None => tokio::spawn(work),
    };
    written.await.map_err(|error| Error::internal("an upload ended early").caused_by(error))?
}

/// An image that is being added to an existing collection.
struct Addition {
    services: Arc<ImageServices>,
    registry: Arc<Registry>,
    target: ImageCollection,
    /// Name by which the collection was found.
    name: String,
}

/// Result of the first attempt to write a point.
enum WriteStep {
    Done(PutOutcome),
    /// The write has to wait for the store of originals.
    Waits(Box<(Addition, ReadyImage)>),
}

impl Addition {
    /// Writes the original and the point of an image. If the point is refused, removes the
    /// original.
    ///
    /// # Errors
    /// Returns the errors of the store of originals and of the collection.
    async fn write(self, image: EmbeddedImage<'_>) -> Result<PutOutcome> {
        let image = store::with_original(&self.services, &self.target, image).await?;
        let original = image.stored_original();
        let services = self.services.clone();
        let target = self.target.clone();
        let runtime = Handle::current();
        let written = self.write_on_thread(image, &runtime).await;
        if written.is_err() {
            let discard = move || remove_refused(&services, &runtime, &target, original);
            if let Err(error) = tokio::task::spawn_blocking(discard).await {
                tracing::warn!(%error, "the original of an image that was not added stays");
            }
        }
        written
    }

    /// Writes the point of an image on a thread for decoding. The write may have to wait for the
    /// store of originals, or for a removal of the same image. It then moves to a thread for such
    /// waits.
    ///
    /// # Errors
    /// As [`Addition::write_waiting`]; `ResourceExhausted` if too many images wait.
    async fn write_on_thread(self, image: ReadyImage, runtime: &Handle) -> Result<PutOutcome> {
        let services = self.services.clone();
        let work = move || match self.try_write_point(&image)? {
            Some(outcome) => Ok(WriteStep::Done(outcome)),
            None => Ok(WriteStep::Waits(Box::new((self, image)))),
        };
        match services.pool.run(work).await? {
            WriteStep::Done(outcome) => Ok(outcome),
            WriteStep::Waits(waiting) => {
                let runtime = runtime.clone();
                let work = move || {
                    let (addition, image) = *waiting;
                    addition.write_waiting(&image, &runtime)
                };
                services.store_waits.run(work).await
            }
        }
    }

    /// Writes the point of an image whose original is written. Returns `None` if that has to wait
    /// for the store of originals or for another request with the same image.
    ///
    /// # Errors
    /// Returns the errors of the collection.
    fn try_write_point(&self, image: &ReadyImage) -> Result<Option<PutOutcome>> {
        let Some(_claim) = self.services.writes.try_take(&[image.features.facts.id]) else {
            return Ok(None);
        };
        if let Some(outcome) = self.present(image)? {
            return Ok(Some(outcome));
        }
        // No removal of this image runs while its id is claimed.
        if !self.services.originals.is_kept(&image.original) {
            return Ok(None);
        }
        self.write_point(image).map(Some)
    }

    /// Writes the point of an image whose original may have been removed.
    ///
    /// # Errors
    /// Returns the errors of the store of originals and of the collection.
    fn write_waiting(&self, image: &ReadyImage, runtime: &Handle) -> Result<PutOutcome> {
        let _claim = self.services.writes.take(&[image.features.facts.id]);
        if let Some(outcome) = self.present(image)? {
            return Ok(outcome);
        }
        runtime.block_on(self.services.originals.keep(&image.original))?;
        self.write_point(image)
    }

    /// Returns the outcome of an image that another request has added meanwhile.
    ///
    /// # Errors
    /// Returns the errors of the collection.
    fn present(&self, image: &ReadyImage) -> Result<Option<PutOutcome>> {
        let known = store::present(&self.target.named, &[image.features.facts.id]);
        Ok(known.into_iter().next().transpose()?.flatten())
    }

    /// Writes the point of an image whose original is in the store. The caller has claimed its id.
    ///
    /// # Errors
    /// Returns the errors of the collection.
    fn write_point(&self, image: &ReadyImage) -> Result<PutOutcome> {
        let _writing = self.target.writing(&self.registry, &self.name)?;
        store::write(&self.target.named, image)?;
        Ok(PutOutcome::added(&image.features))
    }
}

/// Creates the collection of an image. `embedding` is empty if the image has none.
///
/// # Errors
/// As [`ImageCollection::make`] and [`ImageSettings::new_dims`].
async fn create_collection(
    services: &ImageServices,
    registry: &Arc<Registry>,
    wanted: CollectionSpec,
    settings: &ImageSettings,
    embedding: &[f32],
) -> Result<ImageCollection> {
    let registry = registry.clone();
    let dims = settings.new_dims(embedding)?;
    let model = settings.model.clone();
    services.pool.run(move || ImageCollection::make(&registry, &wanted, dims, &model)).await
}

/// Adds an image as [`add`] does, at idle priority. It is added even if the caller disconnects.
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
