//! Features of an image that a caller waits for.

use base::{Error, Result};
use bytes::Bytes;
use matching::template::TemplateFormat;

use super::embedder::Embedder;
use super::features::{self, Features};
use super::services::ImageServices;
use super::settings::ImageKind;

/// A file whose features are wanted.
pub(crate) struct ImageFile {
    pub(crate) kind: ImageKind,
    /// Name of the image, which errors show.
    pub(crate) name: String,
    pub(crate) bytes: Bytes,
    /// Least quality of a fingerprint, 0 to 100.
    pub(crate) quality_min: u8,
}

/// Features of an image with its embedding. The input of the model is empty.
pub(crate) struct EmbeddedFeatures {
    pub(crate) features: Features,
    pub(crate) embedding: Vec<f32>,
}

/// Decodes an image on the threads of images, and embeds it by the scheduler.
///
/// # Errors
/// Returns the errors of the image and the model.
pub(crate) async fn extract(
    services: &ImageServices,
    embedder: &Embedder,
    file: ImageFile,
) -> Result<EmbeddedFeatures> {
    let ImageFile { kind, name, bytes, quality_min } = file;
    if kind == ImageKind::Fingerprint && TemplateFormat::of(&bytes).is_some() {
        return Err(Error::invalid(
            "a template has minutiae and no picture to embed; send the picture",
        ));
    }
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
