//! `/v2/slow`: the last slow requests and their causes.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use inference::{SlowLog, SlowRequest};
use serde_json::{Value, json};
use transport::{Reply, Shared};

use crate::compose::Server;

pub(super) fn routes(server: &Server) -> Router {
    Router::new().route("/v2/slow", get(list)).with_state(server.core.slow.clone())
}

async fn list(State(log): Shared<SlowLog>) -> Reply {
    let slow: Vec<Value> = log.list().iter().map(describe).collect();
    Reply::json(json!({ "slow": slow }).to_string())
}

/// Returns the JSON of a slow request.
fn describe(slow: &Arc<SlowRequest>) -> Value {
    let causes: Vec<Value> = slow
        .causes
        .iter()
        .map(|cause| {
            json!({ "cause": cause.cause, "ms": rounded(cause.ms), "detail": cause.detail })
        })
        .collect();
    let since = base::unix_time(slow.time);
    json!({
        "number": slow.number,
        "time": (since.as_secs_f64() * 1e3).round() / 1e3,
        "model": slow.id.model,
        "version": slow.id.version,
        "protocol": slow.protocol,
        "status": slow.status,
        "total_ms": rounded(slow.total.as_secs_f64() * 1e3),
        "expected_ms": rounded(slow.expected.as_secs_f64() * 1e3),
        "causes": causes,
    })
}

/// Rounds to microseconds.
fn rounded(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}
