//! Points of images, and a registry to write them to, for tests.
//!
//! A failed step panics, as an assertion does.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use matching::{Graph, synthetic};
use search::collection::PointParts;
use search::points::FetchedPoint;
use search::registry::{NamedCollection, Registry, RegistryOptions};
use serde_json::{Value, json};

use super::settings::{ImageKind, ImageSettings};

/// Name of the model of [`photos`] and [`fingers`].
pub const MODEL: &str = "colour";

/// Opens a registry in `directory`.
pub fn open(directory: &Path) -> Arc<Registry> {
    Registry::open(RegistryOptions::for_tests(directory)).unwrap()
}

/// Returns the settings of a collection of photographs.
pub fn photos() -> ImageSettings {
    ImageSettings { kind: ImageKind::Photo, model: MODEL.to_owned() }
}

/// Returns the settings of a collection of fingerprints with embeddings.
pub fn fingers() -> ImageSettings {
    ImageSettings { kind: ImageKind::Fingerprint, model: MODEL.to_owned() }
}

/// Returns all points in the order of their internal ids.
pub fn points(named: &NamedCollection) -> Vec<FetchedPoint> {
    let page = named.scroll(None, 1000, None, PointParts::ALL).unwrap();
    assert!(!page.partial && page.next.is_none());
    page.points
}

/// Returns the base64 of the record of a graph.
pub fn record(graph: &Graph) -> String {
    let mut record = Vec::new();
    graph.encode(&mut record);
    STANDARD.encode(record)
}

/// Returns an element of the body of features, with its id, features and `members`.
pub fn element(id: &Value, seed: u64, members: &Value) -> Value {
    let embedding: Vec<f64> =
        (0..3).map(|at| f64::from((seed * 7 + at * 3 + 1) as u32 % 11) / 8.0).collect();
    let graph = synthetic::photo(seed);
    let mut element = json!({ "id": id, "embedding": embedding, "record": record(&graph) });
    for (key, value) in members.as_object().unwrap() {
        element[key] = value.clone();
    }
    element
}

/// Returns an element of `put_images`.
pub fn image(id: &Value, seed: u64, payload: &Value) -> Value {
    let mut image = element(id, seed, &json!({}));
    image["payload"] = payload.clone();
    image
}

/// Returns the payload of an image with an original.
pub fn with_original(name: &str) -> Value {
    json!({ "seed": 1, "image": {
        "name": name, "format": "png", "width": 10, "height": 20, "bytes": 9, "keypoints": 3,
        "original": "c-1/originals/5c/x.png",
    } })
}
