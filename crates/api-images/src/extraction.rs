//! Features of one image, extracted at ordinary or at idle priority.

use std::sync::Arc;

use base::{Error, Result};
use bytes::Bytes;
use image_features::embedder::Embedder;
use image_features::features::{self, FeatureSource, Features};
use image_features::print_files;
use image_features::settings::ImageKind;

use super::services::ImageServices;

/// Priority of the extraction of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExtractionPriority {
    /// As any request: the scheduler embeds the image.
    #[default]
    Ordinary,
    /// Idle, the model's run included. It waits for memory instead of being refused.
    Idle,
}

/// A file whose features are wanted.
pub(crate) struct ExtractionInput {
    pub(crate) kind: ImageKind,
    /// Name of the image, which errors show.
    pub(crate) name: String,
    pub(crate) bytes: Bytes,
    /// Minimum quality of a fingerprint, 0 to 100.
    pub(crate) quality_min: u8,
}

impl ExtractionInput {
    /// Returns the number of prints besides the first, whose features are not extracted.
    fn prints_left_out(&self) -> usize {
        match self.kind {
            ImageKind::Photo => 0,
            ImageKind::Fingerprint => print_files::count(&self.bytes) - 1,
        }
    }

    fn source(&self) -> FeatureSource<'_> {
        let ExtractionInput { kind, name, bytes, quality_min } = self;
        FeatureSource { kind: *kind, bytes, name, quality_min: *quality_min }
    }
}

/// Features of an image with its embedding. The input of the model is empty.
pub(crate) struct EmbeddedFeatures {
    pub(crate) features: Features,
    /// Empty if the image gets no embedding.
    pub(crate) embedding: Vec<f32>,
    /// Number of prints of the file besides the first, whose features are not extracted.
    pub(crate) prints_left_out: usize,
}

/// Decodes an image, and embeds it if there is an `embedder`.
///
/// # Errors
/// Returns the errors of the image and the model; `ResourceExhausted` with retry advice if too many
/// images of this priority are queued.
pub(crate) async fn extract(
    services: &ImageServices,
    embedder: Option<&Embedder>,
    file: ExtractionInput,
    priority: ExtractionPriority,
) -> Result<EmbeddedFeatures> {
    match priority {
        ExtractionPriority::Ordinary => extract_at_once(services, embedder, file).await,
        ExtractionPriority::Idle => extract_idle(services, embedder, file).await,
    }
}

/// Decodes an image on the threads of images, and embeds it by the scheduler.
async fn extract_at_once(
    services: &ImageServices,
    embedder: Option<&Embedder>,
    file: ExtractionInput,
) -> Result<EmbeddedFeatures> {
    let own = embedder.cloned();
    let budget = services.requests.memory.clone();
    let work = move || {
        let source = file.source();
        let memory = features::reserve(&budget, &source.decoding(own.as_ref()))?;
        let features = features::extract(&memory, source, own.as_ref())?;
        Ok((features, file.prints_left_out()))
    };
    let (mut features, prints_left_out) = services.pool.run_wanted(work).await?;
    let tensor = std::mem::take(&mut features.tensor);
    let embedding = match embedder {
        Some(embedder) => services.embed(embedder, tensor).await?,
        None => Vec::new(),
    };
    Ok(EmbeddedFeatures { features, embedding, prints_left_out })
}

/// Decodes and embeds an image on the threads of idle priority. Does not wait for memory any longer
/// if the caller disconnects.
async fn extract_idle(
    services: &ImageServices,
    embedder: Option<&Embedder>,
    file: ExtractionInput,
) -> Result<EmbeddedFeatures> {
    let embedder = embedder.cloned();
    let budget = services.requests.memory.clone();
    // It is dropped with this future.
    let caller = Arc::new(());
    let watch = Arc::downgrade(&caller);
    let work = move || {
        let source = file.source();
        let decoding = source.decoding(embedder.as_ref());
        let disconnected = || watch.strong_count() == 0;
        let memory = features::reserve_or_wait(&budget, &decoding, disconnected)?;
        let mut features = features::extract(&memory, source, embedder.as_ref())?;
        let tensor = std::mem::take(&mut features.tensor);
        let prints_left_out = file.prints_left_out();
        let Some(embedder) = &embedder else {
            return Ok(EmbeddedFeatures { features, embedding: Vec::new(), prints_left_out });
        };
        let embedding = embedder.run(&[tensor])?.into_iter().next();
        let embedding = embedding.ok_or_else(|| Error::internal("the model returned no vector"))?;
        Ok(EmbeddedFeatures { features, embedding, prints_left_out })
    };
    let extracted = services.background.run_wanted(work).await;
    drop(caller);
    extracted
}
