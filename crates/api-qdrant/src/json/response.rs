//! Responses: the envelope and the points in it.

use std::time::Duration;

use search::points::PointId;
use serde::Serialize;
use serde_json::{Map, Number, Value};

use super::{INTERFACE_VERSION, Vector};

/// A point in a response.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PointRecord {
    /// Id of the point.
    pub id: PointId,
    /// The requested part of its payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Map<String, Value>>,
    /// Vector of the point, bare or under its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector: Option<Vector>,
    /// The value that it was ordered by; a date as microseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_value: Option<Number>,
}

/// A hit of a query.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ScoredPoint {
    /// Id of the point.
    pub id: PointId,
    /// Always 0, because points have no versions here.
    pub version: u64,
    /// The score by the collection's distance.
    pub score: f32,
    /// The requested part of its payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Map<String, Value>>,
    /// Vector of the point, bare or under its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector: Option<Vector>,
    /// The value that it was ordered by; a date as microseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_value: Option<Number>,
}

/// Puts a result, which is JSON text, into its envelope.
pub(crate) fn envelope(result: &[u8], took: Duration) -> Vec<u8> {
    let tail = format!(",\"status\":\"ok\",\"time\":{}}}", took.as_secs_f64());
    [b"{\"result\":", result, tail.as_bytes()].concat()
}

/// Puts an error's message into its envelope.
pub(crate) fn error(message: &str, took: Duration) -> Vec<u8> {
    serde_json::json!({ "status": { "error": message }, "time": took.as_secs_f64() })
        .to_string()
        .into_bytes()
}

/// Returns the body by which clients recognise Qdrant at the root. `name` and `version` are this
/// server's.
pub(crate) fn version(name: &str, version: &str) -> Vec<u8> {
    let title = title(name, version);
    serde_json::json!({ "title": title, "version": INTERFACE_VERSION }).to_string().into_bytes()
}

/// Returns the title by which clients recognise Qdrant. `name` and `version` are this server's.
pub fn title(name: &str, version: &str) -> String {
    format!("qdrant - interface of {name} {version}")
}
