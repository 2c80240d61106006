//! Features without images: extracted for a client and not stored, written by extraction servers
//! and bulk jobs, and returned in the same form.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use image_features::checked_features::{
    CheckedFeatures, ExpectedFeatures, of_point, payloads, upsert,
};
use image_features::collection::{CollectionSpec, ImageCollection};
use image_features::embedding_plan::EmbeddingPlan;
use image_features::features::uuid;
use image_features::point_features::{PointFeatures, parse};
use search::collection::PointParts;
use search::points::PointId;
use search::registry::Registry;
use serde_json::{Map, Value, json};

use super::browse;
use super::extraction::{self, EmbeddedFeatures, ExtractionInput, ExtractionPriority};
use super::services::ImageServices;

/// An image whose features are wanted.
pub(crate) struct FeatureExtraction {
    /// The collection that decides on kind and model. If it does not exist, these properties
    /// decide.
    pub(crate) wanted: CollectionSpec,
    pub(crate) name: String,
    pub(crate) bytes: Bytes,
}

/// Extracts an image's features, and stores nothing.
///
/// # Errors
/// Returns the errors of the image and the model; `NotFound` if the collection does not exist and
/// no model of photographs is named.
pub(crate) async fn extract(
    services: &Arc<ImageServices>,
    request: FeatureExtraction,
) -> Result<PointFeatures> {
    let FeatureExtraction { wanted, name, bytes } = request;
    let existing = existing(services, &wanted)?;
    let own = existing.as_ref().map(ImageCollection::settings);
    let plan = EmbeddingPlan::of(own.as_ref(), &wanted.images());
    if plan.model.is_none() {
        return Err(Error::not_found(format!(
            "there is no collection \"{}\"; name a model with model= to extract without one",
            wanted.name
        )));
    }
    let embedder = services.embedder_of(&plan, &bytes)?;
    let quality_min = wanted.quality_min;
    let file = ExtractionInput { kind: plan.kind, name, bytes, quality_min };
    let priority = ExtractionPriority::Ordinary;
    let EmbeddedFeatures { features, embedding, prints_left_out } =
        extraction::extract(services, embedder.as_ref(), file, priority).await?;
    let settings = plan.settings(embedder.as_ref());
    let dims = match &existing {
        Some(target) => target.named.settings().dims,
        None => settings.new_dims(&embedding)?,
    };
    let id = PointId::Uuid(features.facts.id);
    let embedding = settings.vector(&id, embedding, dims);
    settings.check_dims(dims, embedding.len())?;
    let features = PointFeatures::extracted(&features, &embedding, &settings);
    Ok(features.with_prints_left_out(prints_left_out))
}

/// Returns the collection if it exists on this server.
fn existing(services: &ImageServices, wanted: &CollectionSpec) -> Result<Option<ImageCollection>> {
    match services.registry() {
        Ok(registry) => ImageCollection::existing(&registry, wanted),
        // A server that only extracts may have no directory of collections.
        Err(error) if error.kind() == ErrorKind::FailedPrecondition => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the features of a stored point.
///
/// # Errors
/// `NotFound`; `DataLoss` for a damaged point.
pub(crate) async fn read(
    services: &Arc<ImageServices>,
    name: &str,
    id: PointId,
) -> Result<PointFeatures> {
    let target = ImageCollection::open(&*services.registry()?, name)?;
    let point = browse::point(services, &target.named, id, PointParts::ALL).await?;
    PointFeatures::stored(point, &target)
}

/// Numbers of points that a request has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrittenPoints {
    pub(crate) added: usize,
    pub(crate) replaced: usize,
}

impl WrittenPoints {
    pub(crate) fn to_json(self) -> Value {
        json!({ "added": self.added, "replaced": self.replaced })
    }
}

/// Writes the points of a request, which are durable when this returns. A wrong point refuses the
/// whole request. After an error of the collection some points may have been written. If the write
/// has to wait for another request with the same image, it moves to a thread for waits. Such a wait
/// can be long, because a removal waits for the store of originals.
///
/// # Errors
/// Returns the errors of [`parse`] and [`ExpectedFeatures::check`], and the errors of the
/// collection; `ResourceExhausted` if too many requests wait.
pub(crate) async fn write(
    services: &Arc<ImageServices>,
    wanted: CollectionSpec,
    body: Bytes,
) -> Result<WrittenPoints> {
    let registry = services.registry()?;
    let attempt = |may_wait: bool| {
        let own = services.clone();
        let registry = registry.clone();
        let wanted = wanted.clone();
        let body = body.clone();
        move || {
            // The body has reserved the numbers of its points. Their records need at most its
            // length.
            let _records = own.requests.memory.reserve(body.len() as u64)?;
            let write = FeatureWrite { services: &own, registry: &registry, wanted, may_wait };
            write.run(parse(&body)?)
        }
    };
    let written = match services.pool.run(attempt(false)).await {
        Ok(None) => services.store_waits.run(attempt(true)).await,
        written => written,
    };
    let written = written.and_then(|written| {
        written.ok_or_else(|| Error::internal("a write of features that may wait did not wait"))
    });
    match &written {
        Ok(written) => {
            (0..written.added + written.replaced).for_each(|_| services.count_put("added"));
        }
        Err(error) => services.count_put(error.kind().name()),
    }
    written
}

struct FeatureWrite<'a> {
    services: &'a ImageServices,
    registry: &'a Registry,
    wanted: CollectionSpec,
    /// True if it may wait for other requests with the same images.
    may_wait: bool,
}

impl FeatureWrite<'_> {
    /// Writes the points. Returns `None` if that has to wait for another request with one of the
    /// images and may not.
    fn run(mut self, points: Vec<PointFeatures>) -> Result<Option<WrittenPoints>> {
        let existing = ImageCollection::existing(self.registry, &self.wanted)?;
        let expected = match &existing {
            Some(target) => ExpectedFeatures::of(target),
            None => {
                ExpectedFeatures::of_new(&self.wanted.name, &self.wanted.images(), points.first())?
            }
        };
        let points = expected.check(points)?;
        let target = match existing {
            Some(target) => target,
            None => {
                // A refused request creates no collection.
                for (at, point) in points.iter().enumerate() {
                    point.payload(None).map_err(|error| of_point(error, at))?;
                }
                let ExpectedFeatures { kind, dims, model } = expected;
                self.wanted.kind = Some(kind);
                self.wanted.model = Some(model.clone());
                let made = ImageCollection::make(self.registry, &self.wanted, dims, &model)?;
                // Another request may have created it with other embeddings.
                made.check_dims(dims)?;
                made
            }
        };
        self.write(&target, &points)
    }

    /// Writes checked points. Returns `None` if the write would have to wait and may not.
    fn write(
        &self,
        target: &ImageCollection,
        points: &[CheckedFeatures],
    ) -> Result<Option<WrittenPoints>> {
        let ids: Vec<PointId> = points.iter().map(|point| point.features.id).collect();
        // Only points of UUIDs have originals. Until the points are written, no image adds one.
        let with_originals: Vec<[u8; 16]> = ids.iter().filter_map(uuid).collect();
        let claims = &self.services.writes;
        let claim = if self.may_wait {
            Some(claims.take(&with_originals))
        } else {
            claims.try_take(&with_originals)
        };
        let Some(_claim) = claim else { return Ok(None) };
        let writing = target.writing(self.registry, &self.wanted.name)?;
        let before: Vec<Option<Map<String, Value>>> = payloads(&writing, &ids)
            .into_iter()
            // A damaged point is lost until it is written again.
            .map(|before| before.or_else(|error| is_lost(&error).then_some(None).ok_or(error)))
            .collect::<Result<_>>()?;
        let added = before.iter().filter(|before| before.is_none()).count();
        upsert(&writing, points, &before)?;
        Ok(Some(WrittenPoints { added, replaced: points.len() - added }))
    }
}

fn is_lost(error: &Error) -> bool {
    error.kind() == ErrorKind::DataLoss
}
