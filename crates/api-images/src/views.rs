//! Further views of a photograph that is not found as it is: coarse keypoints, the mirror image and
//! parts ([`vision::photo::PhotoView`]).
//!
//! They are searched for in steps only if the whole photograph has no accepted match, so a usual
//! query costs nothing more. The file is decoded again for each step, so that no query holds pixels
//! while it waits for a model or a search thread.

use std::time::{Duration, Instant};

use base::Result;
use bytes::Bytes;
use image_features::collection::ImageCollection;
use image_features::embedder::Embedder;
use image_features::features::{self, DecodingInput};
use image_features::settings::ImageKind;
use matching::rank::best_first;
use search::registry::Registry;
use serde::{Deserialize, Serialize};
use vision::photo::{PhotoView, PixelRegion, ViewKind};

use super::hits::ShownHit;
use super::plan::SearchPlan;
use super::query_features::{QueryFeatures, Stages};
use super::services::ImageServices;

/// A search for the views of one query.
pub(crate) struct ViewSearch<'a> {
    pub(crate) services: &'a ImageServices,
    pub(crate) registry: &'a Registry,
    pub(crate) target: &'a ImageCollection,
    pub(crate) plan: &'a SearchPlan,
}

/// Outcome of a search for views.
#[derive(Default)]
pub(crate) struct ViewsResult {
    /// Accepted hits.
    pub(crate) hits: Vec<ShownHit>,
    /// Number of views that were searched for.
    pub(crate) searched: usize,
    /// True if hits may be missing.
    pub(crate) partial: bool,
    pub(crate) took: Duration,
}

/// A view and the features of its pixels, with the model's input if its embedding is its own.
pub(crate) struct ViewFeatures {
    pub(crate) view: PhotoView,
    pub(crate) features: QueryFeatures,
    pub(crate) tensor: Option<Vec<f32>>,
}

/// A view, as nodes and responses have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueryView {
    kind: QueryViewKind,
    x: u32,
    y: u32,
    width: u32,
    height: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum QueryViewKind {
    Coarse,
    Mirrored,
    Part,
}

impl From<PhotoView> for QueryView {
    fn from(PhotoView { kind, region }: PhotoView) -> QueryView {
        let kind = match kind {
            ViewKind::Coarse => QueryViewKind::Coarse,
            ViewKind::Mirrored => QueryViewKind::Mirrored,
            ViewKind::Part => QueryViewKind::Part,
        };
        let PixelRegion { x, y, width, height } = region;
        QueryView { kind, x, y, width, height }
    }
}

impl From<QueryView> for PhotoView {
    fn from(QueryView { kind, x, y, width, height }: QueryView) -> PhotoView {
        let kind = match kind {
            QueryViewKind::Coarse => ViewKind::Coarse,
            QueryViewKind::Mirrored => ViewKind::Mirrored,
            QueryViewKind::Part => ViewKind::Part,
        };
        PhotoView { kind, region: PixelRegion { x, y, width, height } }
    }
}

impl QueryView {
    /// Returns the number of candidates whose keypoints are compared with the view's, if a search
    /// of the whole photograph compares `usual`.
    pub fn candidates(self, usual: usize) -> usize {
        PhotoView::from(self).candidates(usual).min(search::collection::CANDIDATES_MAX)
    }
}

/// Returns the number of steps in which the views of a photograph of this size are searched for.
pub fn view_steps(width: u32, height: u32) -> usize {
    PhotoView::steps(width, height).len()
}

/// Extracts the keypoints of the views of one step.
///
/// # Errors
/// The errors of the image.
pub(crate) async fn extract_step(
    services: &ImageServices,
    embedder: &Embedder,
    bytes: Bytes,
    step: usize,
) -> Result<Vec<ViewFeatures>> {
    let budget = services.requests.memory.clone();
    let embedder = embedder.clone();
    let work = move || {
        let kind = ImageKind::Photo;
        let decoding = DecodingInput {
            kind,
            bytes: &bytes,
            name: "",
            embedder: Some(&embedder),
            has_view: true,
        };
        let memory = features::reserve(&budget, &decoding)?;
        let decoded = features::decoded(&memory, &bytes, "")?;
        let extract = |view: PhotoView| -> Result<ViewFeatures> {
            let shown = view.image(&decoded.image);
            let graph = vision::photo::keypoints(&shown.gray(), &view.options());
            let own = !view.has_embedding_of_photograph();
            let tensor = own.then(|| embedder.tensor(&shown)).transpose()?;
            let features = QueryFeatures {
                width: f64::from(shown.width),
                height: f64::from(shown.height),
                graph,
                embedding: Vec::new(),
                stages: Stages::default(),
            };
            Ok(ViewFeatures { view, features, tensor })
        };
        let steps = PhotoView::steps(decoded.image.width, decoded.image.height);
        steps.into_iter().nth(step).unwrap_or_default().into_iter().map(extract).collect()
    };
    services.pool.run_wanted(work).await
}

impl ViewSearch<'_> {
    /// Searches for the views of `file` step by step until one has an accepted match or the time of
    /// the request is up. `whole` are the features of the whole photograph. After an error the
    /// result is partial, since the whole photograph has been searched for.
    pub(crate) async fn run(&self, file: Bytes, whole: &QueryFeatures) -> ViewsResult {
        let started = Instant::now();
        let mut found = ViewsResult::default();
        if let Err(error) = self.steps(file, whole, &mut found).await {
            tracing::debug!(%error, "further views of a photograph are not searched for");
            found.partial = true;
        }
        found.took = started.elapsed();
        found
    }

    /// Searches for the views of one step after the other, until a step has an accepted hit or the
    /// time is up.
    async fn steps(
        &self,
        file: Bytes,
        whole: &QueryFeatures,
        found: &mut ViewsResult,
    ) -> Result<()> {
        let embedder = self.services.embedder(Some(self.target), None)?;
        for step in 0..view_steps(whole.width as u32, whole.height as u32) {
            if Instant::now() >= self.plan.deadline {
                found.partial = true;
                break;
            }
            let views = extract_step(self.services, &embedder, file.clone(), step).await?;
            for extracted in views {
                self.search(&embedder, extracted, whole, found).await?;
            }
            if !found.hits.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Searches for one view and adds its accepted hits.
    async fn search(
        &self,
        embedder: &Embedder,
        extracted: ViewFeatures,
        whole: &QueryFeatures,
        found: &mut ViewsResult,
    ) -> Result<()> {
        let ViewFeatures { view, mut features, tensor } = extracted;
        features.embedding = match tensor {
            Some(tensor) => self.services.embed(embedder, tensor).await?,
            None => whole.embedding.clone(),
        };
        let plan = plan_of(self.plan, view.into());
        let result = plan.submit(self.registry, self.target, &features).await?;
        found.searched += 1;
        found.partial |= result.partial;
        let accepted = result.hits.iter().filter(|hit| hit.hit.score >= self.plan.threshold);
        let shown = accepted.map(|hit| ShownHit::new(&features, Some(view), hit, self.plan));
        found.hits.extend(shown);
        Ok(())
    }
}

/// Returns the plan of the search for a view. `plan` is that of the whole photograph.
fn plan_of(plan: &SearchPlan, view: QueryView) -> SearchPlan {
    // The whole photograph is compared with as many images as hits are wanted, or more.
    SearchPlan { most: view.candidates(plan.most.max(plan.k)), ..plan.clone() }
}

/// Adds the hits of views to the hits of the whole photograph. Each image keeps its best score.
/// Then keeps the best images.
pub(crate) fn add(shown: &mut Vec<ShownHit>, hits: Vec<ShownHit>, plan: &SearchPlan) {
    for new in hits {
        match shown.iter_mut().find(|hit| hit.id == new.id) {
            Some(old) if old.scores.score >= new.scores.score => {}
            Some(old) => *old = new,
            None => shown.push(new),
        }
    }
    let order = |a: &ShownHit, b: &ShownHit| {
        best_first(plan.threshold, a.scores, b.scores).then(a.id.cmp(&b.id))
    };
    shown.sort_by(order);
    shown.truncate(plan.k);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::CandidateSource;

    #[test]
    fn more_hits_have_more_candidates_of_a_view() {
        let candidates = |k, most| {
            let plan = SearchPlan {
                k,
                most,
                cut: false,
                threshold: 1.0,
                explain: false,
                clause: None,
                source: CandidateSource::Embeddings,
                deadline: Instant::now(),
            };
            let view = |kind| QueryView { kind, x: 0, y: 0, width: 640, height: 480 };
            [QueryViewKind::Coarse, QueryViewKind::Part].map(|kind| plan_of(&plan, view(kind)).most)
        };
        assert_eq!(candidates(10, 100), [1000, 100]);
        assert_eq!(candidates(500, 100), [5000, 500]);
    }
}
