//! Job of the collection of a request.

use std::sync::Arc;
use std::time::Duration;

use api_images::no_duplicates;
use base::{Error, Result};
use cluster_node::{CollectionRecord, new_id};
use metrics::KindLabels;
use transport::UploadPermit;

use super::super::call::ImageCall;
use super::super::running_duplicates::JobControl;
use super::super::state::ImageRootState;
use super::observer::RunObserver;
use super::steps::{JobStep, JobSteps, StoredStep, now_ms};

/// Retry advice to a client that is refused.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Job of a collection, as a request of a client uses it.
pub(super) struct CollectionJob {
    pub(super) state: Arc<ImageRootState>,
    pub(super) record: Arc<CollectionRecord>,
    pub(super) steps: JobSteps,
}

impl CollectionJob {
    /// Returns the job of the collection of a request.
    ///
    /// # Errors
    /// `NotFound` if there is no collection of this name; `FailedPrecondition` without a store.
    pub(super) fn open(call: &ImageCall) -> Result<CollectionJob> {
        let state = call.state.clone();
        let record = state.root.record(&call.context.collection)?;
        let Some(place) = state.store.clone() else {
            return Err(Error::precondition("this root has no store for searches for duplicates"));
        };
        let steps = JobSteps::new(place, &record.id);
        Ok(CollectionJob { record, steps, state })
    }

    /// Returns the newest step, unless the result was removed.
    ///
    /// # Errors
    /// `NotFound` if there was no job; the store's error.
    pub(super) async fn newest(&self) -> Result<StoredStep> {
        let newest = self.steps.newest().await?.filter(|newest| !newest.step.removed);
        newest.ok_or_else(|| no_duplicates(&self.record.name))
    }

    /// Returns the job if it runs on this node.
    pub(super) fn local_job(&self) -> Option<Arc<JobControl>> {
        self.state.duplicates.find(&self.record.id)
    }

    /// Returns true if a root works on the job of this step. `own` is the job of this node from
    /// before the step was read. A job that has ended since then has written a newer step.
    pub(super) fn runs(&self, step: &JobStep, own: Option<&JobControl>) -> bool {
        let observer = RunObserver {
            node: &self.state.root.node,
            run: own.map(|own| own.run.as_str()),
            is_alive: self.state.root.view.current().nodes.contains_key(&step.node),
            now_ms: now_ms(),
        };
        observer.runs(step)
    }

    /// Makes this node the one that creates the step.
    pub(super) fn sign(&self, step: &mut JobStep) {
        step.node.clone_from(&self.state.root.node);
        step.run = new_id();
        step.written_ms = now_ms();
    }

    /// Returns a permit for a job or its groups.
    ///
    /// # Errors
    /// `ResourceExhausted` with retry advice if all are taken.
    pub(super) async fn permit(&self) -> Result<UploadPermit> {
        self.state.duplicates.permit().await.ok_or_else(|| {
            let refused = &self.state.root.requests.metrics.refused;
            refused.get_or_create(&KindLabels { kind: "images_bulk_max" }).inc();
            Error::exhausted(
                "several searches for duplicates are worked on already; try again later",
            )
            .with_retry_after(RETRY_AFTER)
        })
    }
}
