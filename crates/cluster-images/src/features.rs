//! Features without images: written by clients that extract elsewhere, or extracted for a client
//! and not stored.

use std::collections::{BTreeMap, HashSet};

use api_images::{
    CheckedPoints, ImageInput, ImageKind, LoggedPoint, WantedImages, features_operation,
    read_features,
};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use cluster_root::split::{OPERATION_BYTES_MAX, ShardOperations, chunks, shard_of_id};
use cluster_root::writes::{check_ids, deliver_each};
use cluster_root::{NewShards, RootContext, check};
use http::Method;
use search::points::PointId;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout_at;
use transport::Reply;

use super::call::ImageCall;
use super::create::create;
use super::points::{FoundIds, LookupConsistency, find_ids};
use super::target::ImageTarget;
use super::{pass_on, put};

/// Parameters of a request with features.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RootFeaturesParams {
    kind: Option<String>,
    model: Option<String>,
    shard_number: Option<u32>,
    replication_factor: Option<u32>,
}

/// Writes the points of the body. A wrong point refuses the whole request. If a shard refuses its
/// points, those of the other shards are written, and the error names the points that failed.
pub(super) async fn write(mut call: ImageCall) -> Result<Reply> {
    call.context.check_creates()?;
    let parameters: RootFeaturesParams = call.query.route_parameters()?;
    let wanted = wanted_images(parameters.kind.as_deref(), parameters.model)?;
    let new = NewShards::checked(parameters.shard_number, parameters.replication_factor)?;
    let body = call.json_bytes().await?;
    let _admitted = call.admit()?;
    let context = &call.context;
    // The texts of the points, and the operations that are made of them.
    let _texts = context.state.requests.memory.reserve(2 * body.len() as u64)?;
    let written = write_points(context, wanted, new, body).await;
    match &written {
        Ok(written) => {
            let points = written.added + written.replaced + written.unknown;
            (0..points).for_each(|_| put::count(&context.state, "added"));
            let failed = written.failed.iter();
            failed.for_each(|point| put::count(&context.state, point.error.kind().name()));
        }
        Err(error) => put::count(&context.state, error.kind().name()),
    }
    Ok(written?.to_reply())
}

fn wanted_images(kind: Option<&str>, model: Option<String>) -> Result<WantedImages> {
    Ok(WantedImages { kind: kind.map(ImageKind::parse).transpose()?, model })
}

/// Checks the features in `body`, and writes them as points. Creates the collection if it does not
/// exist.
async fn write_points(
    context: &RootContext,
    wanted: WantedImages,
    new: NewShards,
    body: Bytes,
) -> Result<WrittenFeatures> {
    let existing = ImageTarget::existing(context, &wanted)?;
    let bytes = body.len();
    let read = {
        let name = context.collection.clone();
        let existing = existing.clone();
        move || {
            check::depth(&body)?;
            let properties = existing.as_ref().map(ImageTarget::properties);
            read_features(&body, &name, &wanted, properties)
        }
    };
    let CheckedPoints { settings, dims, points } = context.compute(bytes, read).await?;
    let ids: Vec<PointId> = points.iter().map(|point| point.id).collect();
    check_ids(&context.state, &ids)?;
    let target = match existing {
        Some(target) => target,
        None => create(context, &settings, dims, new).await?,
    };
    target.check_features(&settings, dims)?;
    let before = find_ids(context, &target.record, &ids, LookupConsistency::Default).await?;
    let shards = target.record.shards;
    let operations = context.compute(bytes, move || operations(points, shards)).await?;
    let errors = deliver_each(context, &target.record, operations).await;
    // The same request creates the collection again, or finds a newer one.
    if errors.values().any(|error| error.kind() == ErrorKind::NotFound) {
        return Err(context.state.removed(&target.record, context.deadline).await);
    }
    let failed = failed_points(&ids, &errors, shards)?;
    Ok(WrittenFeatures::of(&ids, &before, failed))
}

/// Returns the points of the shards that have an error, in the order of the request.
fn failed_points(
    ids: &[PointId],
    errors: &BTreeMap<u32, Error>,
    shards: u32,
) -> Result<Vec<FailedPoint>> {
    let mut failed = Vec::new();
    // Most requests have no error, and then no id is hashed.
    if errors.is_empty() {
        return Ok(failed);
    }
    for id in ids {
        if let Some(error) = errors.get(&shard_of_id(id, shards)?) {
            failed.push(FailedPoint { id: *id, error: error.clone() });
        }
    }
    Ok(failed)
}

/// Returns the operations that write points, by shard.
fn operations(points: Vec<LoggedPoint>, shards: u32) -> Result<ShardOperations> {
    let mut texts: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for point in points {
        texts.entry(shard_of_id(&point.id, shards)?).or_default().push(point.text);
    }
    let operations = |texts: Vec<String>| {
        let chunks = chunks(&texts, OPERATION_BYTES_MAX).into_iter();
        let text = |chunk: &[String]| {
            let points: Vec<&str> = chunk.iter().map(String::as_str).collect();
            features_operation(&points)
        };
        chunks.map(text).collect()
    };
    Ok(texts.into_iter().map(|(shard, texts)| (shard, operations(texts))).collect())
}

/// A point of a shard whose writes failed. A part of them may be made if the error says so.
struct FailedPoint {
    id: PointId,
    error: Error,
}

impl FailedPoint {
    fn to_json(&self) -> Value {
        json!({ "id": self.id, "error": self.error.message() })
    }
}

/// Numbers of points that a request has written, and the points that failed.
struct WrittenFeatures {
    added: usize,
    replaced: usize,
    /// Number of points of shards that could not say if they have them.
    unknown: usize,
    failed: Vec<FailedPoint>,
}

impl WrittenFeatures {
    /// Counts the points of a request. `before` has the points that existed before it.
    fn of(ids: &[PointId], before: &FoundIds, failed: Vec<FailedPoint>) -> WrittenFeatures {
        let lost: HashSet<PointId> = failed.iter().map(|point| point.id).collect();
        let counted = |known: &HashSet<PointId>| {
            ids.iter().filter(|id| known.contains(id) && !lost.contains(id)).count()
        };
        let replaced = counted(&before.found);
        let unknown = counted(&before.unknown);
        let added = ids.len() - failed.len() - replaced - unknown;
        WrittenFeatures { added, replaced, unknown, failed }
    }

    /// Returns the answer. Its status is that of the first error, so that a client which reads only
    /// the status sends the points again.
    fn to_reply(&self) -> Reply {
        let mut json = json!({ "added": self.added, "replaced": self.replaced });
        if self.unknown > 0 {
            json["unknown"] = self.unknown.into();
        }
        let Some(FailedPoint { error, .. }) = self.failed.first() else {
            return Reply::json(json.to_string());
        };
        let written = self.added + self.replaced + self.unknown;
        let points = written + self.failed.len();
        let failed: Vec<Value> = self.failed.iter().map(FailedPoint::to_json).collect();
        // The outcome of a write may be unknown.
        let message = format!("{} of {points} points failed: {error}", failed.len());
        json["error"] = message.into();
        json["failed"] = failed.into();
        Reply::error_with_body(error, json.to_string())
    }
}

/// Parameters of an extraction.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RootExtractParams {
    name: Option<String>,
    kind: Option<String>,
    model: Option<String>,
    quality_min: Option<u8>,
}

/// Extracts the features of the image in the body, and stores nothing.
pub(super) async fn extract(mut call: ImageCall) -> Result<Reply> {
    let parameters: RootExtractParams = call.query.route_parameters()?;
    let wanted = wanted_images(parameters.kind.as_deref(), parameters.model)?;
    if call.media() == "application/json" {
        return Err(Error::invalid(
            "the body is an image; GET .../ID/features returns the features of a stored one, PUT writes features",
        ));
    }
    let existing = ImageTarget::existing(&call.context, &wanted)?;
    let kind = existing.as_ref().map(|target| target.settings.kind).or(wanted.kind);
    let needs_model = kind != Some(ImageKind::Fingerprint);
    if existing.is_none() && wanted.model.is_none() && needs_model {
        return Err(Error::not_found(format!(
            "there is no collection \"{}\"; name a model with model= to extract without one",
            call.context.collection
        )));
    }
    let body = call.bytes().await?;
    let name = parameters.name.as_deref();
    let input = ImageInput::new(name, None, parameters.quality_min, body.clone())?;
    let _admitted = call.admit()?;
    let Some(images) = call.context.state.extraction() else {
        return pass_on::pass_request_on(&call.context, &call.head, Method::POST, body).await;
    };
    let properties = existing.as_ref().map(ImageTarget::properties);
    let extracted = images.extract_image(input, &wanted, properties);
    let extracted = timeout_at(call.context.deadline.into(), extracted)
        .await
        .map_err(|_| Error::deadline(super::FEATURES_LATE))??;
    Ok(Reply::json(extracted.features()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_split_by_shard_and_size() {
        let text = |id: u64| format!("{{\"id\":{id},\"x\":\"{}\"}}", "x".repeat(400 << 10));
        let point = |id| LoggedPoint { id: PointId::Number(id), text: text(id) };
        let split = operations((0..12).map(point).collect(), 3).unwrap();
        let mut found = Vec::new();
        for (shard, operations) in split {
            let mut points = 0;
            for operation in &operations {
                assert!(operation.len() <= OPERATION_BYTES_MAX + 64);
                let operation: Value = serde_json::from_str(operation).unwrap();
                for point in operation["put_features"]["points"].as_array().unwrap() {
                    let id = point["id"].as_u64().unwrap();
                    assert_eq!(shard_of_id(&PointId::Number(id), 3).unwrap(), shard);
                    found.push(id);
                    points += 1;
                }
            }
            assert_eq!(operations.len(), usize::div_ceil(points, 2), "two fit into one operation");
        }
        found.sort_unstable();
        assert_eq!(found, (0..12).collect::<Vec<_>>());
    }
}
