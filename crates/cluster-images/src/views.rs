//! Further views of a photograph that is not found as it is. They are coarse keypoints, the mirror
//! image and parts. They are searched in steps, as on one server. A node with the role extract
//! makes their features, and each is searched in all shards.

use std::time::{Duration, Instant};

use api_images::{ExtractedQuery, ExtractedView, ImageKind, view_steps};
use base::{Error, Result};
use bytes::Bytes;
use cluster_root::RootContext;
use cluster_root::reads::result_bytes;
use transport::Reservation;

use super::extraction;
use super::merge::{self, ViewHit};
use super::rounds::{self, RoundsPlan};
use super::target::ImageTarget;

/// Accepted hits of views.
#[derive(Default)]
pub(super) struct ViewsAnswer {
    pub(super) hits: Vec<ViewHit>,
    /// Number of views that were searched for.
    pub(super) searched: u32,
    /// True if hits may be missing.
    pub(super) partial: bool,
    pub(super) took: Duration,
    /// Bytes of the answers with these hits.
    reservations: Vec<Reservation>,
}

/// A search for the views of one photograph.
pub(super) struct RootViewSearch<'a> {
    pub(super) context: &'a RootContext,
    pub(super) target: &'a ImageTarget,
    /// Settings of the search for the whole photograph.
    pub(super) plan: &'a RoundsPlan,
}

impl RootViewSearch<'_> {
    /// Searches for the views of `file` step by step until one has an accepted match. An error ends
    /// the search and makes the answer partial. The hits of the whole photograph are kept.
    pub(super) async fn run(&self, file: &Bytes, whole: &ExtractedQuery) -> ViewsAnswer {
        let started = Instant::now();
        let mut found = ViewsAnswer::default();
        for step in 0..view_steps(whole.width, whole.height) {
            if let Err(error) = self.step(step, file, whole, &mut found).await {
                tracing::debug!(%error, "views of a photograph are not searched for");
                found.partial = true;
                break;
            }
            if !found.hits.is_empty() {
                break;
            }
        }
        found.took = started.elapsed();
        found
    }

    /// Searches for the views of step number `step`, and adds their hits to `found`.
    async fn step(
        &self,
        step: usize,
        file: &Bytes,
        whole: &ExtractedQuery,
        found: &mut ViewsAnswer,
    ) -> Result<()> {
        if Instant::now() >= self.context.deadline {
            return Err(Error::deadline(
                "the request timed out before all views were searched for; allow more time with \
                 timeout=, or leave the views out with views=0",
            ));
        }
        let usual =
            self.plan.candidates.unwrap_or(api_images::default_candidates(ImageKind::Photo));
        let usual = usual.max(self.plan.k);
        let views = extraction::of_views(self.context, self.target, file.clone(), step).await?;
        for ExtractedView { view, mut query } in views {
            if query.embedding.is_empty() {
                query.embedding.clone_from(&whole.embedding);
            }
            let candidates = Some(view.candidates(usual));
            let plan = RoundsPlan { candidates, view: Some(view), ..self.plan.clone() };
            let answer = rounds::run(self.context, self.target, &query, &plan).await?;
            found.searched += 1;
            found.partial |= answer.partial || !answer.coverage.is_whole();
            let results = answer.results;
            let threshold = self.plan.threshold_among(ImageKind::Photo, 1);
            let bytes = result_bytes(&results);
            let read = move || merge::accepted(&results, threshold);
            let accepted = self.context.compute(bytes, read).await?;
            found.partial |= accepted.partial;
            if !accepted.hits.is_empty() {
                found.hits.extend(accepted.hits);
                found.reservations.push(answer.reservation);
            }
        }
        Ok(())
    }
}
