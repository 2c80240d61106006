//! Bulk work: images of an archive, a folder, a rebuild, or sent with `background=1`.
//!
//! Threads "ingest-N" take images from one bounded queue, several of a collection at a time. They
//! do long work at idle priority, the model's runs included, so that bulk work does not slow
//! queries. Threads of ordinary priority access the collections. An error fails only its own image.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Error, Result};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use image_features::collection::ImageCollection;
use image_features::embedder::Embedder;
use image_features::embedding_plan::EmbeddingPlan;
use image_features::features::{self, FeatureSource, Features};
use image_features::settings::ImageSettings;
use image_features::template_file::check_kind;
use search::points::PointId;
use serde_json::{Map, Value};

use super::claims::Claims;
use super::job::IngestJob;
use super::pool::threads;
use super::store::{self, EmbeddedImage, PutOutcome, ReadyImage};

/// Maximum queued images, with their bytes.
const QUEUE_MAX: usize = 16;
/// Maximum images that one thread handles together.
const BATCH_MAX: usize = 8;
/// Retry advice to a refused client.
const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(crate) struct IngestImage {
    pub(crate) job: Arc<IngestJob>,
    pub(crate) name: String,
    pub(crate) bytes: Bytes,
    pub(crate) payload: Map<String, Value>,
    /// Callback that gets the result. It is dropped if the thread panics.
    pub(crate) done: Box<dyn FnOnce(Result<PutOutcome>) + Send>,
}

/// The threads and their queue, started with the first image.
#[derive(Default)]
pub(crate) struct Ingest {
    claims: Arc<Claims>,
    queue: OnceLock<Sender<IngestImage>>,
}

impl Ingest {
    /// Queues an image, and waits while the queue is full.
    ///
    /// # Errors
    /// `ResourceExhausted` if no thread can be started.
    pub(crate) fn send(&self, item: IngestImage) -> Result<()> {
        self.queue()?
            .send(item)
            .map_err(|_| Error::internal("the threads for bulk work have ended"))
    }

    /// Returns the queue of the threads. Starts them at the first call.
    fn queue(&self) -> Result<&Sender<IngestImage>> {
        if let Some(queue) = self.queue.get() {
            return Ok(queue);
        }
        // After a failure the next caller tries again. The threads of a second queue end at once.
        let queue = start(&self.claims)?;
        Ok(self.queue.get_or_init(|| queue))
    }

    /// Queues an image without waiting.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if the queue is full.
    pub(crate) fn try_send(&self, item: IngestImage) -> Result<()> {
        let services = item.job.services.clone();
        let queue = self.queue()?;
        queue.try_send(item).map_err(|error| match error {
            TrySendError::Full(_) => {
                services.count_refusal("ingest_queue_max");
                Error::exhausted(format!(
                    "{QUEUE_MAX} images are queued for bulk work already; try again later"
                ))
                .with_retry_after(RETRY_AFTER)
            }
            TrySendError::Disconnected(_) => {
                Error::internal("the threads for bulk work have ended")
            }
        })
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.get().map_or(0, Sender::len)
    }
}

/// Starts the threads that process images. Returns the sender of their queue.
fn start(claims: &Arc<Claims>) -> Result<Sender<IngestImage>> {
    let (sender, receiver) = bounded(QUEUE_MAX);
    for number in 0..threads() {
        let queue: Receiver<IngestImage> = receiver.clone();
        let claims = claims.clone();
        let body = move || {
            os::thread::enter_background("putting images in");
            while let Ok(first) = queue.recv() {
                let rest = queue.try_iter().take(BATCH_MAX - 1);
                let batch = std::iter::once(first).chain(rest).collect();
                // A panic fails only the images of this batch: it drops their callbacks.
                drop(catch_unwind(AssertUnwindSafe(|| process_by_job(batch, &claims))));
            }
        };
        os::thread::spawn(format!("ingest-{number}"), body)?;
    }
    Ok(sender)
}

/// Groups images by job, and processes each group.
fn process_by_job(items: Vec<IngestImage>, claims: &Claims) {
    let mut jobs: Vec<Vec<IngestImage>> = Vec::new();
    for item in items {
        match jobs
            .iter_mut()
            .find(|job| job.first().is_some_and(|first| Arc::ptr_eq(&first.job, &item.job)))
        {
            Some(job) => job.push(item),
            None => jobs.push(vec![item]),
        }
    }
    for items in jobs {
        let Some(job) = items.first().map(|item| item.job.clone()) else { continue };
        let outcomes = outcomes(&job, &items, claims);
        for (item, outcome) in items.into_iter().zip(outcomes) {
            job.services.count_put(store::status_of(&outcome));
            (item.done)(outcome);
        }
    }
}

/// Returns the results of images of one job, in their order.
fn outcomes(job: &IngestJob, items: &[IngestImage], claims: &Claims) -> Vec<Result<PutOutcome>> {
    let ids: Vec<[u8; 16]> = items.iter().map(|item| features::id_of(&item.bytes)).collect();
    // Claimed first: while this thread waits, another may add one of them and create the
    // collection.
    let _claim = claims.take(&ids);
    let services = job.services.clone();
    let wanted = job.wanted.clone();
    let sought = ids.clone();
    let prepared = job.at_ordinary_priority(move || {
        let existing = ImageCollection::existing(&*services.registry()?, &wanted)?;
        let own = existing.as_ref().map(ImageCollection::settings);
        let plan = EmbeddingPlan::of(own.as_ref(), &wanted.images());
        // Templates need no model. If the model is missing, only files with pixels fail.
        let embedder = plan.has_embeddings().then(|| services.planned_embedder(&plan));
        let known = existing.as_ref().map(|target| store::present(&target.named, &sought));
        let known = known.unwrap_or_else(|| sought.iter().map(|_| Ok(None)).collect());
        Ok((PlannedBatch { plan, embedder, existing }, known))
    });
    match prepared {
        Ok((planned, known)) => IngestBatch { job, planned }.add_images(items, &ids, known),
        Err(error) => items.iter().map(|_| Err(error.clone())).collect(),
    }
}

/// Collection and model of a batch.
struct PlannedBatch {
    plan: EmbeddingPlan,
    /// The model or its error; `None` for a collection without embeddings.
    embedder: Option<Result<Embedder>>,
    /// The collection, if it exists.
    existing: Option<ImageCollection>,
}

impl PlannedBatch {
    /// Returns the model that embeds a file, or `None` if the file gets no embedding.
    ///
    /// # Errors
    /// The error of the model; `InvalidArgument` for a template among photographs.
    fn embedder_of(&self, file: &[u8]) -> Result<Option<&Embedder>> {
        check_kind(self.plan.kind, file)?;
        if !self.plan.embeds(file) {
            return Ok(None);
        }
        let found = self.embedder.as_ref();
        found.map(|found| found.as_ref().map_err(Clone::clone)).transpose()
    }

    /// Returns the settings of the collection.
    fn settings(&self) -> ImageSettings {
        let embedder = self.embedder.as_ref().and_then(|found| found.as_ref().ok());
        self.plan.settings(embedder)
    }
}

struct IngestBatch<'a> {
    job: &'a IngestJob,
    planned: PlannedBatch,
}

impl IngestBatch<'_> {
    /// Adds images. `known` are the results of images that the collection has.
    fn add_images(
        &self,
        items: &[IngestImage],
        ids: &[[u8; 16]],
        known: Vec<Result<Option<PutOutcome>>>,
    ) -> Vec<Result<PutOutcome>> {
        let mut outcomes: Vec<Option<Result<PutOutcome>>> =
            known.into_iter().map(Result::transpose).collect();
        // A file that occurs twice in a batch is processed once.
        let mut first: HashMap<[u8; 16], usize> = HashMap::new();
        let new: Vec<usize> = (0..items.len())
            .filter(|&at| outcomes.get(at).is_some_and(Option::is_none))
            .filter(|&at| ids.get(at).is_some_and(|id| *first.entry(*id).or_insert(at) == at))
            .collect();
        let mut ready = Vec::new();
        for at in new {
            let Some(item) = items.get(at) else { continue };
            match self.extract(item) {
                Ok(features) => ready.push((at, item, features)),
                Err(error) => set(&mut outcomes, at, Err(error)),
            }
        }
        for (at, outcome) in self.finish(ready) {
            set(&mut outcomes, at, outcome);
        }
        let twin = |at: usize| {
            let twin = ids
                .get(at)
                .and_then(|id| first.get(id))
                .and_then(|&first| outcomes.get(first)?.clone());
            twin.unwrap_or_else(|| Err(Error::internal("an image has no result")))
                .map(|outcome| outcome.of_repetition())
        };
        (0..items.len())
            .map(|at| outcomes.get(at).cloned().flatten().unwrap_or_else(|| twin(at)))
            .collect()
    }

    /// Decodes an image and extracts its features.
    fn extract(&self, item: &IngestImage) -> Result<Features> {
        let file = FeatureSource {
            kind: self.planned.plan.kind,
            bytes: &item.bytes,
            name: &item.name,
            quality_min: self.job.wanted.quality_min,
        };
        let embedder = self.planned.embedder_of(file.bytes)?;
        let budget = &self.job.services.requests.memory;
        let stopped = || self.job.stopped();
        let memory = features::reserve_or_wait(budget, &file.decoding(embedder), stopped)?;
        features::extract(&memory, file, embedder)
    }

    /// Embeds the images, writes their originals and their points.
    fn finish(
        &self,
        ready: Vec<(usize, &IngestImage, Features)>,
    ) -> Vec<(usize, Result<PutOutcome>)> {
        let tensors: Vec<&Vec<f32>> =
            ready.iter().map(|(_, _, features)| &features.tensor).collect();
        let embeddings = self.embed(&tensors);
        let target = self.target(&embeddings);
        let mut outcomes = Vec::new();
        let mut kept = Vec::new();
        for ((at, item, features), embedding) in ready.into_iter().zip(embeddings) {
            match self.write_original(item, features, embedding, &target) {
                Ok(image) => kept.push((at, image)),
                Err(error) => outcomes.push((at, Err(features::of_image(error, &item.name)))),
            }
        }
        if let Ok(target) = &target {
            outcomes.extend(self.write(target, kept));
        }
        outcomes
    }

    /// Returns the collection, which is created if it does not exist.
    fn target(&self, embeddings: &[Result<Vec<f32>>]) -> Result<ImageCollection> {
        if let Some(existing) = &self.planned.existing {
            return Ok(existing.clone());
        }
        // Templates have no embedding. The embedding of a file with pixels has the full length.
        let longest = embeddings.iter().flatten().max_by_key(|embedding| embedding.len());
        let longest = longest.ok_or_else(|| Error::internal("there is no collection"))?;
        let settings = self.planned.settings();
        let dims = settings.new_dims(longest)?;
        let services = self.job.services.clone();
        let wanted = self.job.wanted.clone();
        let model = settings.model;
        self.job.at_ordinary_priority(move || {
            ImageCollection::make(&*services.registry()?, &wanted, dims, &model)
        })
    }

    /// Writes the original of an image, if its embedding fits the collection.
    fn write_original(
        &self,
        item: &IngestImage,
        features: Features,
        embedding: Result<Vec<f32>>,
        target: &Result<ImageCollection>,
    ) -> Result<ReadyImage> {
        let embedding = embedding?;
        let target = target.as_ref().map_err(Clone::clone)?;
        let id = PointId::Uuid(features.facts.id);
        let dims = target.named.settings().dims;
        let embedding = self.planned.settings().vector(&id, embedding, dims);
        let bytes = item.bytes.clone();
        let image = EmbeddedImage { features, embedding, payload: &item.payload, bytes };
        self.job.runtime.block_on(store::with_original(&self.job.services, target, image))
    }

    /// Writes all images together, and one by one if that fails. Removes the originals of images
    /// that are refused.
    fn write(
        &self,
        target: &ImageCollection,
        kept: Vec<(usize, ReadyImage)>,
    ) -> Vec<(usize, Result<PutOutcome>)> {
        if kept.is_empty() {
            return Vec::new();
        }
        let (places, images): (Vec<usize>, Vec<ReadyImage>) = kept.into_iter().unzip();
        let images = Arc::new(images);
        let write = |which| store::write_or_wait(self.job, target, &images, which);
        let outcomes: Vec<Result<PutOutcome>> = match write(0..images.len()) {
            Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
            Err(_) => {
                let missing = || Error::internal("an image has no result");
                let alone = |at| {
                    let written = write(at..at + 1);
                    let written = written.and_then(|mut one| one.pop().ok_or_else(missing));
                    written.inspect_err(|_| store::discard(self.job, target, &images, at))
                };
                (0..images.len()).map(alone).collect()
            }
        };
        places.into_iter().zip(outcomes).collect()
    }

    /// Returns a vector for each input. The vector of an empty input is empty.
    fn embed(&self, tensors: &[&Vec<f32>]) -> Vec<Result<Vec<f32>>> {
        let inputs: Vec<&Vec<f32>> =
            tensors.iter().copied().filter(|tensor| !tensor.is_empty()).collect();
        let mut embeddings = match &self.planned.embedder {
            Some(Ok(embedder)) => embed_all(embedder, &inputs).into_iter(),
            // Without the model, `extract` has refused each file with pixels.
            Some(Err(_)) | None => Vec::new().into_iter(),
        };
        let missing = || Err(Error::internal("the model returned no vector"));
        let embedding = |tensor: &&Vec<f32>| {
            if tensor.is_empty() {
                return Ok(Vec::new());
            }
            embeddings.next().unwrap_or_else(missing)
        };
        tensors.iter().map(embedding).collect()
    }
}

/// Returns a vector for each input. If a batch fails, runs each image alone, so that one bad image
/// does not fail others.
fn embed_all(embedder: &Embedder, tensors: &[&Vec<f32>]) -> Vec<Result<Vec<f32>>> {
    let mut embeddings = Vec::with_capacity(tensors.len());
    for batch in tensors.chunks(embedder.batch_max.max(1)) {
        let owned: Vec<Vec<f32>> = batch.iter().map(|tensor| (*tensor).clone()).collect();
        match embedder.run(&owned) {
            Ok(vectors) => embeddings.extend(vectors.into_iter().map(Ok)),
            Err(error) if batch.len() == 1 => embeddings.push(Err(error)),
            Err(_) => embeddings.extend(owned.into_iter().map(|one| {
                let vectors = embedder.run(&[one])?;
                vectors
                    .into_iter()
                    .next()
                    .ok_or_else(|| Error::internal("the model returned no vector"))
            })),
        }
    }
    embeddings
}

fn set(outcomes: &mut [Option<Result<PutOutcome>>], at: usize, outcome: Result<PutOutcome>) {
    if let Some(place) = outcomes.get_mut(at) {
        *place = Some(outcome);
    }
}
