//! Features of one image, extracted at ordinary or at idle priority.

use base::{Error, Result};
use bytes::Bytes;
use matching::template::TemplateFormat;

use super::embedder::Embedder;
use super::features::{self, Features};
use super::services::ImageServices;
use super::settings::ImageKind;

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

/// Features of an image with its embedding. The input of the model is empty.
pub(crate) struct EmbeddedFeatures {
    pub(crate) features: Features,
    pub(crate) embedding: Vec<f32>,
}

/// Decodes and embeds an image.
///
/// # Errors
/// Returns the errors of the image and the model; `ResourceExhausted` with retry advice if too many
/// images of this priority are queued.
pub(crate) async fn extract(
    services: &ImageServices,
    embedder: &Embedder,
    file: ExtractionInput,
    priority: ExtractionPriority,
) -> Result<EmbeddedFeatures> {
    if file.kind == ImageKind::Fingerprint && TemplateFormat::of(&file.bytes).is_some() {
        return Err(Error::invalid(
            "a template has minutiae and no image to embed; send the image",
        ));
    }
    match priority {
        ExtractionPriority::Ordinary => extract_at_once(services, embedder, file).await,
        ExtractionPriority::Idle => extract_idle(services, embedder, file).await,
    }
}

/// Decodes an image on the threads of images, and embeds it by the scheduler.
async fn extract_at_once(
    services: &ImageServices,
    embedder: &Embedder,
    file: ExtractionInput,
) -> Result<EmbeddedFeatures> {
    let ExtractionInput { kind, name, bytes, quality_min } = file;
    let own = embedder.clone();
    let budget = services.requests.memory.clone();
    let work = move || {
        let memory = features::reserve(&budget, kind, &bytes, &name)?;
        features::extract(&memory, kind, &bytes, &name, &own, quality_min)
    };
    let mut features = services.pool.run(work).await?;
    let embedding = services.embed(embedder, std::mem::take(&mut features.tensor)).await?;
    Ok(EmbeddedFeatures { features, embedding })
}

/// Decodes and embeds an image on the threads of idle priority.
async fn extract_idle(
    services: &ImageServices,
    embedder: &Embedder,
    file: ExtractionInput,
) -> Result<EmbeddedFeatures> {
    let ExtractionInput { kind, name, bytes, quality_min } = file;
    let embedder = embedder.clone();
    let budget = services.requests.memory.clone();
    let work = move || {
        let memory = features::reserve_or_wait(&budget, kind, &bytes, &name, || false)?;
        let mut features = features::extract(&memory, kind, &bytes, &name, &embedder, quality_min)?;
        let tensor = std::mem::take(&mut features.tensor);
        let embedding = embedder.run(&[tensor])?.into_iter().next();
        let embedding = embedding.ok_or_else(|| Error::internal("a model gave no vector"))?;
        Ok(EmbeddedFeatures { features, embedding })
    };
    services.background.run(work).await
}
