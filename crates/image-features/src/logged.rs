//! Points as the log of a shard holds them.

use base::{Error, Result};
use search::points::PointId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::checked_features::{ExpectedFeatures, of_point};
use crate::point_checks::{PAYLOAD_BYTES_MAX, check_payload_size};
use crate::point_features::{PointFeatures, parse};
use crate::settings::{ImageSettings, WantedImages};

/// Maximum bytes of the payload of logged features with the service's block. A stored original adds
/// its facts to the block when the operation is made. These are a name of 512 bytes, which is six
/// times as long in JSON, and the key. So an acknowledged operation is never too large.
const FEATURES_PAYLOAD_BYTES_MAX: usize = PAYLOAD_BYTES_MAX - (4 << 10);

/// A point of a log operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedPoint {
    /// Id of the point, which decides on its shard.
    pub id: PointId,
    /// Element of "points" as JSON.
    pub text: String,
}

/// Points of a request that a collection can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedPoints {
    /// Settings of the collection, or of the one to create for the points.
    pub settings: ImageSettings,
    /// Number of values of an embedding.
    pub dims: usize,
    /// The points, in the order of the request.
    pub points: Vec<LoggedPoint>,
}

/// A point of an image, whose payload is final.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoggedImage {
    /// Id of the point.
    pub id: PointId,
    /// Embedding, or the placeholder of a collection without embeddings.
    pub embedding: Vec<f32>,
    /// Encoded keypoint graph, in base64.
    #[serde(with = "crate::base64_text")]
    pub record: Vec<u8>,
    /// Payload with the service's block.
    pub payload: Map<String, Value>,
}

/// Reads the body of `PUT /v1/images/NAME/features` for the collection `name`. `existing` are the
/// settings of the collection and the number of values of its embeddings, if it exists.
///
/// # Errors
/// `FailedPrecondition` if the collection has other properties than `wanted`; `NotFound` if it does
/// not exist and no model is named; `TooLarge` for a body or a payload that is too large;
/// `InvalidArgument`, with the index of the wrong point or the path of the wrong field.
pub fn read_features(
    body: &[u8],
    name: &str,
    wanted: &WantedImages,
    existing: Option<(&ImageSettings, usize)>,
) -> Result<CheckedPoints> {
    let points = parse(body)?;
    let expected = match existing {
        Some((settings, dims)) => {
            wanted.check(name, settings)?;
            ExpectedFeatures { kind: settings.kind, model: settings.model.clone(), dims }
        }
        None => ExpectedFeatures::of_new(name, wanted, points.first())?,
    };
    let mut logged = Vec::with_capacity(points.len());
    for (at, point) in expected.check(points)?.iter().enumerate() {
        let payload = point.payload(None).map_err(|error| of_point(error, at))?;
        check_payload_size(&payload, FEATURES_PAYLOAD_BYTES_MAX)
            .map_err(|error| of_point(error, at))?;
        // By now, the kind and the model are known from the collection.
        let features = PointFeatures {
            kind: None,
            model: None,
            prints_left_out: None,
            ..point.features.clone()
        };
        logged.push(LoggedPoint { id: features.id, text: features.to_json()? });
    }
    let ExpectedFeatures { kind, model, dims } = expected;
    Ok(CheckedPoints { settings: ImageSettings { kind, model }, dims, points: logged })
}

/// Returns the operation that writes features, from the JSON of its points.
pub fn features_operation(points: &[&str]) -> String {
    operation("put_features", points)
}

/// Returns the operation that writes images, from the JSON of its points.
pub fn images_operation(points: &[&str]) -> String {
    operation("put_images", points)
}

fn operation(name: &str, points: &[&str]) -> String {
    format!("{{\"{name}\":{{\"points\":[{}]}}}}", points.join(","))
}

/// Returns the JSON of a point.
///
/// # Errors
/// `Internal` if it cannot be written.
pub fn text_of(point: &LoggedImage) -> Result<String> {
    serde_json::to_string(point).map_err(|error| Error::internal("an image").caused_by(error))
}
