//! Probes of Kubernetes and of Qdrant's clients. They need no key.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Extension, Router};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};
use transport::access::{AccessPolicy, Caller};
use transport::{Peer, Reply, Shared};

use crate::cluster::{ClusterServing, NodeReadiness};
use crate::collections::Collections;
use crate::compose::Server;
use crate::readiness::{Readiness, Unready};

/// Maximum models that an answer names.
const MODELS_NAMED_MAX: usize = 100;

struct ProbeState {
    readiness: Arc<Readiness>,
    access: Arc<AccessPolicy>,
    collections: Arc<Collections>,
    /// Readiness of this node, if there is a cluster.
    node: Option<NodeReadiness>,
}

pub(super) fn routes(server: &Server) -> Router {
    let state = ProbeState {
        readiness: server.readiness.clone(),
        access: server.access.clone(),
        collections: server.collections.clone(),
        node: server.cluster.get().map(ClusterServing::readiness),
    };
    Router::new()
        .route("/healthz", get(live))
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .with_state(Arc::new(state))
}

/// Answers in Qdrant's words, which some of its clients compare.
async fn live() -> Reply {
    Reply::text("healthz check passed")
}

/// Answers 200 if the server is ready and no collection is being opened. A node of a cluster must
/// also have joined it and caught up with its shards.
async fn ready(
    State(state): Shared<ProbeState>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Reply {
    let caller = Caller { peer: Some(peer), headers: &headers };
    let opening =
        state.collections.opened().is_some_and(|registry| registry.stats().collections.opening > 0);
    let opening = opening.then(|| "collections are still being opened".to_owned());
    let node = || state.node.as_ref().and_then(|unready| unready());
    let unready = state.readiness.unready_for(&state.access, caller);
    let unready = unready.or_else(|| opening.or_else(node).map(Unready::new));
    match unready {
        None => Reply::json(json!({ "ready": true }).to_string()),
        Some(unready) => {
            Reply::json(body(unready).to_string()).with_status(StatusCode::SERVICE_UNAVAILABLE)
        }
    }
}

/// Returns the body of a server that is not ready: the reason, and the models that wait.
fn body(unready: Unready) -> Value {
    let Unready { reason, models, .. } = unready;
    let mut body = json!({ "ready": false, "error": reason });
    let unnamed = models.len().saturating_sub(MODELS_NAMED_MAX);
    if unnamed > 0 {
        body["unnamed_models"] = unnamed.into();
    }
    let named = models.into_iter().take(MODELS_NAMED_MAX);
    let named = named.map(|(name, reason)| (name.to_string(), Value::String(reason)));
    body["models"] = named.collect::<Map<_, _>>().into();
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_a_bounded_number_of_models() {
        let models = (0..150).map(|n| (format!("m{n:03}").into(), "why".to_owned())).collect();
        let body = body(Unready { models, ..Unready::new("r".to_owned()) });
        assert_eq!(body["models"].as_object().unwrap().len(), MODELS_NAMED_MAX);
        assert_eq!(body["unnamed_models"], 50);
        assert_eq!((&body["models"]["m000"], &body["ready"]), (&json!("why"), &json!(false)));
    }
}
