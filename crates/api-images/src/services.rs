//! Services and settings that all endpoints of images use.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api_qdrant::RegistrySource;
use base::{Error, Result};
use image_features::collection::ImageCollection;
use image_features::embedder::Embedder;
use image_features::embedding_plan::EmbeddingPlan;
use image_features::template_file::check_kind;
use inference::{InferenceRequest, InferenceService};
use metrics::KindLabels;
use search::registry::Registry;
use tokio::runtime::Handle;
use transport::RequestResources;

use super::addition_limit::AdditionLimit;
use super::claims::Claims;
use super::originals::Originals;
use super::pool::Pool;
use super::removed_collections::RemovedCollections;

/// The protocol's name in metrics.
const PROTOCOL: &str = "images";

pub(crate) struct ImageServices {
    pub(crate) requests: Arc<RequestResources>,
    pub(crate) inference: Arc<InferenceService>,
    pub(crate) registry: Arc<dyn RegistrySource>,
    pub(crate) pool: Pool,
    /// Threads for extraction at idle priority.
    pub(crate) background: Pool,
    /// Threads that wait for the store of originals.
    pub(crate) store_waits: Pool,
    /// Limit of the images that are being added while their clients wait.
    pub(crate) additions: AdditionLimit,
    /// Ids of the images whose points are being written.
    pub(crate) writes: Claims,
    pub(crate) originals: Originals,
    pub(crate) removed: RemovedCollections,
    /// Runtime of the task that removes originals; the caller's by default.
    pub(crate) removal_runtime: OnceLock<Handle>,
    /// Model of collections that name none.
    pub(crate) embedding_model: Option<String>,
}

impl ImageServices {
    /// Returns the registry, and opens it if it is not open yet.
    ///
    /// # Errors
    /// `FailedPrecondition` with the remedy if the server has no collections.
    pub(crate) fn registry(&self) -> Result<Arc<Registry>> {
        self.registry.registry()
    }

    /// Returns the embedding model of `collection`. Without a collection, returns the model
    /// `wanted`, or the configured model if none is wanted.
    ///
    /// # Errors
    /// Returns the errors of [`Embedder::find`].
    pub(crate) fn embedder(
        &self,
        collection: Option<&ImageCollection>,
        wanted: Option<&str>,
    ) -> Result<Embedder> {
        let own = collection.map(|collection| collection.model.as_str());
        let name = own.or(wanted).or(self.embedding_model.as_deref());
        Embedder::find(self.inference.catalog(), name)
    }

    /// Returns the model of a plan.
    ///
    /// # Errors
    /// Returns the errors of [`Embedder::find`].
    pub(crate) fn planned_embedder(&self, plan: &EmbeddingPlan) -> Result<Embedder> {
        self.embedder(None, plan.model.as_deref())
    }

    /// Returns the model that embeds a file by a plan, or `None` if the file gets no embedding.
    ///
    /// # Errors
    /// As [`ImageServices::planned_embedder`]; `InvalidArgument` for a template among photographs.
    pub(crate) fn embedder_of(
        &self,
        plan: &EmbeddingPlan,
        file: &[u8],
    ) -> Result<Option<Embedder>> {
        check_kind(plan.kind, file)?;
        plan.embeds(file).then(|| self.planned_embedder(plan)).transpose()
    }

    /// Embeds one image by the scheduler.
    ///
    /// # Errors
    /// Returns the errors of [`InferenceService::infer`]; `FailedPrecondition` for an output that
    /// is not a vector.
    pub(crate) async fn embed(&self, embedder: &Embedder, tensor: Vec<f32>) -> Result<Vec<f32>> {
        let request = InferenceRequest {
            servable: embedder.servable.clone(),
            inputs: embedder.inputs(&[tensor])?,
            outputs: embedder.outputs(),
            timeout: None,
            priority: 0,
            // Embeddings of one collection come from one version.
            rollout: None,
        };
        let ticket = self.inference.start(PROTOCOL);
        let response = self.inference.infer(&ticket, request).await?;
        drop(ticket.into_encoded());
        let embedding = embedder.embeddings(&response.outputs, 1)?.into_iter().next();
        embedding.ok_or_else(|| Error::internal("the model returned no vector"))
    }

    /// Counts the attempt to add an image. `kind` is "added", "present" or the kind of error.
    pub(crate) fn count_put(&self, kind: &'static str) {
        self.requests.metrics.images.put.get_or_create(&KindLabels { kind }).inc();
    }

    /// Counts a request that was refused because of the limit `kind`.
    pub(crate) fn count_refusal(&self, kind: &'static str) {
        self.requests.metrics.refused.get_or_create(&KindLabels { kind }).inc();
    }

    /// Records the time of a step of a search.
    pub(crate) fn observe(&self, kind: &'static str, time: Duration) {
        let seconds = &self.requests.metrics.images.search_seconds;
        seconds.get_or_create(&KindLabels { kind }).observe(time.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_embeddings_end_with_their_version() {
        assert!(metrics::PROTOCOLS.contains(&PROTOCOL));
    }
}
