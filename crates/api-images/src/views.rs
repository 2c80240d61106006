//! Further views of a photograph that is not found as it is: coarse keypoints, the mirror image and
//! parts ([`vision::photo::PhotoView`]).
//!
//! They are searched for in steps only if the whole photograph has no accepted match, so a usual
//! query costs nothing more. The file is decoded again for each step, so that no query holds pixels
//! while it waits for a model or a search thread.

use std::time::{Duration, Instant};

use base::Result;
use bytes::Bytes;
use matching::rank::best_first;
use search::registry::Registry;
use vision::photo::PhotoView;

use super::collection::ImageCollection;
use super::embedder::Embedder;
use super::features;
use super::hits::ShownHit;
use super::plan::SearchPlan;
use super::query_features::{QueryFeatures, Stages};
use super::services::ImageServices;
use super::settings::ImageKind;

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
struct ExtractedView {
    view: PhotoView,
    features: QueryFeatures,
    tensor: Option<Vec<f32>>,
}

impl ViewSearch<'_> {
    /// Searches for the views of `file` step by step until one has an accepted match or the time of
    /// the request is up. `whole` are the features of the whole photograph.
    ///
    /// # Errors
    /// The errors of the image, the model and the collection.
    pub(crate) async fn run(&self, file: Bytes, whole: &QueryFeatures) -> Result<ViewsResult> {
        let started = Instant::now();
        let embedder = self.services.embedder(Some(self.target), None)?;
        let mut found = ViewsResult::default();
        for step in PhotoView::steps(whole.width as u32, whole.height as u32) {
            if Instant::now() >= self.plan.deadline {
                found.partial = true;
                break;
            }
            for extracted in self.extract(&embedder, file.clone(), step).await? {
                self.search(&embedder, extracted, whole, &mut found).await?;
            }
            if !found.hits.is_empty() {
                break;
            }
        }
        found.took = started.elapsed();
        Ok(found)
    }

    /// Extracts the keypoints of the views of one step.
    async fn extract(
        &self,
        embedder: &Embedder,
        bytes: Bytes,
        step: Vec<PhotoView>,
    ) -> Result<Vec<ExtractedView>> {
        let budget = self.services.requests.memory.clone();
        let embedder = embedder.clone();
        let work = move || {
            let memory = features::reserve(&budget, ImageKind::Photo, &bytes, "")?;
            let decoded = features::decoded(&memory, &bytes, "")?;
            let extract = |view: PhotoView| -> Result<ExtractedView> {
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
                Ok(ExtractedView { view, features, tensor })
            };
            step.into_iter().map(extract).collect()
        };
        self.services.pool.run(work).await
    }

    /// Searches for one view and adds its accepted hits.
    async fn search(
        &self,
        embedder: &Embedder,
        extracted: ExtractedView,
        whole: &QueryFeatures,
        found: &mut ViewsResult,
    ) -> Result<()> {
        let ExtractedView { view, mut features, tensor } = extracted;
        features.embedding = match tensor {
            Some(tensor) => self.services.embed(embedder, tensor).await?,
            None => whole.embedding.clone(),
        };
        let most = view.candidates(self.plan.most).min(search::collection::CANDIDATES_MAX);
        let plan = SearchPlan { most, ..self.plan.clone() };
        let result = plan.submit(self.registry, self.target, &features).await?;
        found.searched += 1;
        found.partial |= result.partial;
        let accepted = result.hits.iter().filter(|hit| hit.hit.score >= self.plan.threshold);
        let shown = accepted.map(|hit| ShownHit::new(&features, Some(view), hit, self.plan));
        found.hits.extend(shown);
        Ok(())
    }
}

/// Adds the hits of views to those of the whole photograph. Each image keeps its best score. Then
/// keeps the best.
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
