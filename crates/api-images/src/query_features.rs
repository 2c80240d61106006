//! Features of an image that others are searched by.

use std::time::{Duration, Instant};

use base::Result;
use bytes::Bytes;
use image_features::features::{self, DecodingInput};
use image_features::settings::{ImageKind, ImageSettings};
use matching::Graph;

use super::prints;
use super::services::ImageServices;

/// Keypoints and embedding of a query, and the size of its image in pixels.
pub(crate) struct QueryFeatures {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) graph: Graph,
    pub(crate) embedding: Vec<f32>,
    pub(crate) stages: Stages,
}

/// Times of the steps that made the features.
#[derive(Clone, Default)]
pub(crate) struct Stages {
    pub(crate) decode: Duration,
    pub(crate) embed: Duration,
    pub(crate) keypoints: Duration,
}

impl Stages {
    /// Records the times in the metrics.
    pub(crate) fn record(&self, services: &ImageServices) {
        self.done().for_each(|(kind, time)| services.observe(kind, time));
    }

    /// Returns the steps that were done. A search for a stored image has none, and a fingerprint
    /// gets no embedding.
    fn done(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        let steps = [("decode", self.decode), ("embed", self.embed), ("keypoints", self.keypoints)];
        steps.into_iter().filter(|(_, time)| !time.is_zero())
    }
}

/// Extracts the features of a file for a search of a collection with these settings, whose
/// embeddings have `dims` values.
///
/// # Errors
/// Returns the errors of the image and the model; `FailedPrecondition` for embeddings of another
/// length.
pub(crate) async fn extract(
    services: &ImageServices,
    settings: &ImageSettings,
    dims: usize,
    bytes: Bytes,
) -> Result<QueryFeatures> {
    let kind = settings.kind;
    if kind == ImageKind::Fingerprint {
        return extract_print(services, bytes).await;
    }
    let embedder = services.embedder(None, Some(&settings.model))?;
    let own = embedder.clone();
    let budget = services.requests.memory.clone();
    let work = move || {
        let decoding =
            DecodingInput { kind, bytes: &bytes, name: "", embedder: Some(&own), has_view: false };
        let memory = features::reserve(&budget, &decoding)?;
        let started = Instant::now();
        let decoded = features::decoded(&memory, &bytes, "")?;
        let after_decode = Instant::now();
        let graph = features::keypoints(kind, &decoded)?.graph;
        let after_keypoints = Instant::now();
        let tensor = own.tensor(&decoded.image)?;
        let stages = Stages {
            decode: after_decode - started,
            keypoints: after_keypoints - after_decode,
            embed: after_keypoints.elapsed(),
        };
        let width = f64::from(decoded.image.width);
        let height = f64::from(decoded.image.height);
        Ok((QueryFeatures { width, height, graph, embedding: Vec::new(), stages }, tensor))
    };
    let (mut features, tensor) = services.pool.run_wanted(work).await?;
    let started = Instant::now();
    features.embedding = services.embed(&embedder, tensor).await?;
    features.stages.embed += started.elapsed();
    settings.check_dims(dims, features.embedding.len())?;
    Ok(features)
}

/// Extracts the minutiae of a file. The index needs no embedding, so no model runs.
///
/// # Errors
/// As [`prints::read_to_compare`]: an empty result for a print without minutiae would say that the
/// collection does not have the finger.
async fn extract_print(services: &ImageServices, bytes: Bytes) -> Result<QueryFeatures> {
    let budget = services.requests.memory.clone();
    let work = move || {
        let print = prints::read_to_compare(&budget, &bytes)?;
        Ok(QueryFeatures {
            width: f64::from(print.width),
            height: f64::from(print.height),
            graph: print.graph,
            embedding: Vec::new(),
            stages: Stages {
                decode: print.decode,
                keypoints: print.keypoints,
                embed: Duration::ZERO,
            },
        })
    };
    services.pool.run_wanted(work).await
}

/// Returns milliseconds to a thousandth.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_were_not_done_have_no_time() {
        let time = Duration::from_millis(3);
        let print = Stages { decode: time, embed: Duration::ZERO, keypoints: 2 * time };
        let done: Vec<_> = print.done().collect();
        assert_eq!(done, [("decode", time), ("keypoints", 2 * time)]);
        assert_eq!(Stages::default().done().count(), 0);
    }
}
