//! Answers: the envelope around all of them, and points in them.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{PointId, VERSION, Vector};

/// A point as an answer has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PointRecord {
    /// What it is called by.
    pub id: PointId,
    /// What was asked for of its payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Map<String, Value>>,
    /// Its vector, bare or under its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector: Option<Vector>,
}

/// A point that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScoredPoint {
    /// What it is called by.
    pub id: PointId,
    /// There are no versions of points here; always 0.
    pub version: u64,
    /// How alike it is.
    pub score: f32,
    /// What was asked for of its payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Map<String, Value>>,
    /// Its vector, bare or under its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector: Option<Vector>,
}

/// A result, JSON text already, in its envelope.
pub fn envelope(result: &[u8], took: Duration) -> Vec<u8> {
    let tail = format!(",\"status\":\"ok\",\"time\":{}}}", took.as_secs_f64());
    [b"{\"result\":", result, tail.as_bytes()].concat()
}

/// An error in its envelope.
pub fn error(message: &str, took: Duration) -> Vec<u8> {
    serde_json::json!({ "status": { "error": message }, "time": took.as_secs_f64() }).to_string().into_bytes()
}

/// What a client that looks for Qdrant wants to see at the root: `name` and `version` are this server's own.
pub fn version(name: &str, version: &str) -> Vec<u8> {
    let title = format!("qdrant - interface of {name} {version}");
    serde_json::json!({ "title": title, "version": VERSION }).to_string().into_bytes()
}
