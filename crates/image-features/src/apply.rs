//! Operations of images, made in the local collection of a shard.
//!
//! An operation can be repeated after later ones: if all later ones are repeated too, the points
//! are the same. A holder relies on this after a restart.

use std::collections::HashSet;

use base::{Error, Result};
use search::points::{FetchedPoint, NewPoint, PointId};
use search::registry::NamedCollection;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::logged::{LoggedImage, LoggedPoint, text_of};
use crate::checked_features::{ExpectedFeatures, of_point, payloads, upsert};
use crate::collection::image_settings;
use crate::features::{BLOCK, uuid};
use crate::point_checks::{
    SHARD_PAYLOAD_BYTES_MAX, check_embedding, check_payload_depth, check_payload_size,
    check_reserved_keys, decode_graph,
};
use crate::point_features::{PointFeatures, PointList, parse_json};
use crate::settings::ImageSettings;

/// Name of the operation that writes features.
const PUT_FEATURES: &[u8] = b"\"put_features\"";
/// Name of the operation that writes images.
const PUT_IMAGES: &[u8] = b"\"put_images\"";

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ImageOperation {
    /// Writes features. A stored original and its facts stay.
    PutFeatures(PointList<PointFeatures>),
    /// Writes images as they are.
    PutImages(PointList<LoggedImage>),
}

/// Returns true for an operation of images. All other operations are Qdrant's.
pub fn is_image_operation(operation: &[u8]) -> bool {
    has_name(operation, PUT_FEATURES) || has_name(operation, PUT_IMAGES)
}

fn has_name(operation: &[u8], name: &[u8]) -> bool {
    let members = operation.trim_ascii_start().strip_prefix(b"{");
    members.is_some_and(|members| members.trim_ascii_start().starts_with(name))
}

/// Returns the ids of the images that an operation writes as they are, with their originals. Empty
/// for every other operation: only images change the original of a point. Points with numbers have
/// no originals and are left out.
pub fn written_images(operation: &[u8]) -> Vec<[u8; 16]> {
    #[derive(Deserialize)]
    struct WrittenImages {
        put_images: PointList<WrittenImage>,
    }
    #[derive(Deserialize)]
    struct WrittenImage {
        id: PointId,
    }
    if !has_name(operation, PUT_IMAGES) {
        return Vec::new();
    }
    let parsed: Result<WrittenImages> = parse_json(operation);
    // Holders skip an operation that has another form.
    let images = parsed.and_then(|it| it.put_images.checked()).unwrap_or_default();
    images.iter().filter_map(|image| uuid(&image.id)).collect()
}

/// Makes an operation of images. Durable when this returns. Only one thread at a time may change
/// the collection.
///
/// # Errors
/// `InvalidArgument`, `TooLarge` or `AlreadyExists` for an operation that no holder can make;
/// nothing is changed then. `DataLoss` if a stored point that decides on the new one is damaged,
/// and the errors of [`NamedCollection::upsert`].
pub fn apply_image_operation(named: &NamedCollection, operation: &[u8]) -> Result<()> {
    let settings = image_settings(named).ok_or_else(|| {
        Error::invalid(format!("collection \"{}\" holds no images", named.name()))
    })?;
    let dims = named.settings().dims;
    let expected = ExpectedFeatures { kind: settings.kind, model: settings.model, dims };
    match parse_json(operation)? {
        ImageOperation::PutFeatures(points) => put_features(named, &expected, points.checked()?),
        ImageOperation::PutImages(points) => put_images(named, &expected, &points.checked()?),
    }
}

/// Checks that an operation of images has the form that [`apply_image_operation`] reads.
///
/// # Errors
/// `InvalidArgument` with the reason.
pub fn check_image_operation(operation: &[u8]) -> Result<()> {
    match parse_json(operation)? {
        ImageOperation::PutFeatures(points) => points.checked().map(drop),
        ImageOperation::PutImages(points) => points.checked().map(drop),
    }
}

/// Returns a stored point as one of an operation `put_images` for another collection of the same
/// settings, with embeddings of `dims` values. The point loses its original, which is not a part of
/// the collection.
///
/// # Errors
/// `InvalidArgument` or `TooLarge` for a point that no holder can write, such as one without
/// keypoints.
pub fn moved_image(
    point: FetchedPoint,
    settings: &ImageSettings,
    dims: usize,
) -> Result<LoggedPoint> {
    let FetchedPoint { id, embedding, record, payload } = point;
    let payload = without_original(payload);
    let image = LoggedImage { id, embedding, record, payload };
    let expected = ExpectedFeatures { kind: settings.kind, model: settings.model.clone(), dims };
    check_image(&image, &expected)
        .and_then(|()| check_payload_depth(&image.payload))
        .map_err(|error| error.context(format_args!("point {}", image.id)))?;
    Ok(LoggedPoint { id, text: text_of(&image)? })
}

/// Returns the payload of an image without the key of its original.
pub fn without_original(mut payload: Map<String, Value>) -> Map<String, Value> {
    if let Some(block) = payload.get_mut(BLOCK).and_then(Value::as_object_mut) {
        block.remove("original");
    }
    payload
}

/// Checks the points of an operation, and writes them.
fn put_features(
    named: &NamedCollection,
    expected: &ExpectedFeatures,
    points: Vec<PointFeatures>,
) -> Result<()> {
    let points = expected.check(points)?;
    let ids: Vec<PointId> = points.iter().map(|point| point.features.id).collect();
    // A damaged point is not a new point: other holders know its original.
    let before = payloads(named, &ids);
    let before = before.into_iter().collect::<Result<Vec<Option<Map<String, Value>>>>>()?;
    upsert(named, &points, &before)
}

/// Checks the images of an operation, and writes their points.
fn put_images(
    named: &NamedCollection,
    expected: &ExpectedFeatures,
    images: &[LoggedImage],
) -> Result<()> {
    let mut seen = HashSet::new();
    for (at, image) in images.iter().enumerate() {
        if !seen.insert(image.id) {
            let twice = Error::invalid(format!("the id {} is there twice", image.id));
            return Err(of_point(twice, at));
        }
        check_image(image, expected).map_err(|error| of_point(error, at))?;
    }
    let new = images.iter().map(|image| NewPoint {
        id: image.id,
        embedding: &image.embedding,
        record: &image.record,
        payload: &image.payload,
    });
    named.upsert(&new.collect::<Vec<_>>())
}

fn check_image(image: &LoggedImage, expected: &ExpectedFeatures) -> Result<()> {
    check_embedding(&image.embedding, expected.dims)?;
    decode_graph(&image.record, expected.kind)?;
    check_reserved_keys(&image.payload)?;
    check_payload_size(&image.payload, SHARD_PAYLOAD_BYTES_MAX)
}
