//! `/v1/trace` and Triton's `/v2/trace/setting`: show and change which requests are traced.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Extension, Router};
use base::{Error, Result};
use http::HeaderMap;
use protocol::oip::settings::TraceSettingValues;
use serde_json::{Map, Value, json};
use transport::access::{AdminRequest, Caller};
use transport::{Peer, Reply, Shared};

use super::oip::ModelPath;
use crate::models::ModelsState;
use crate::trace_settings::{TRACE_ADMIN_ACTION, TRACE_ADMIN_CALL, TraceRateChange};

/// Setting whose value is a list.
const LEVEL: &str = "trace_level";

pub(super) fn routes() -> Router<Arc<ModelsState>> {
    Router::new()
        .route("/v1/trace", get(show).put(change))
        .route("/v2/trace/setting", get(server_settings).post(change_server))
        .route("/v2/models/{model}/trace/setting", get(model_settings).post(change_model))
}

async fn show(State(state): Shared<ModelsState>) -> Reply {
    Reply::of(rates(&state))
}

fn rates(state: &ModelsState) -> Result<Reply> {
    let rates = state.traces.rates()?;
    let body = json!({
        "sample": rates.rate,
        "models": rates.models,
        "parent_based": rates.parent_based,
    });
    Ok(Reply::json(body.to_string()))
}

async fn change(
    State(state): Shared<ModelsState>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let request = admin_request("", peer, &headers);
    let changed = async {
        let change: TraceRateChange = state.requests.read_json(&headers, body).await?;
        state.traces.change(&change)?;
        rates(&state)
    };
    Reply::of(state.access.admin(request, changed).await)
}

/// Returns a call that changes the sampling of `model`, for its check.
fn admin_request<'a>(model: &'a str, peer: Peer, headers: &'a HeaderMap) -> AdminRequest<'a> {
    AdminRequest {
        calls: TRACE_ADMIN_CALL,
        action: TRACE_ADMIN_ACTION,
        subject: model,
        caller: Caller { peer: Some(peer), headers },
    }
}

async fn server_settings(State(state): Shared<ModelsState>) -> Reply {
    settings(&state, "")
}

async fn model_settings(State(state): Shared<ModelsState>, Path(target): Path<ModelPath>) -> Reply {
    Reply::of(known(&state, &target.model).map(|()| settings(&state, &target.model)))
}

fn settings(state: &ModelsState, model: &str) -> Reply {
    let value = |(name, mut values): (String, Vec<String>)| {
        let value = match name.as_str() {
            LEVEL => Value::from(values),
            _ => Value::from(values.pop()),
        };
        (name, value)
    };
    let settings: Map<String, Value> = state.traces.triton(model).into_iter().map(value).collect();
    Reply::json(Value::from(settings).to_string())
}

/// Checks that there is a model of this name.
fn known(state: &ModelsState, model: &str) -> Result<()> {
    match state.lifecycle.catalog().status(model) {
        Some(_) => Ok(()),
        None => Err(Error::not_found(format!("there is no model \"{model}\""))),
    }
}

async fn change_server(
    State(state): Shared<ModelsState>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    Reply::of(change_settings(&state, "", peer, &headers, body).await)
}

async fn change_model(
    State(state): Shared<ModelsState>,
    Path(target): Path<ModelPath>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let changed = async {
        known(&state, &target.model)?;
        change_settings(&state, &target.model, peer, &headers, body).await
    };
    Reply::of(changed.await)
}

/// Changes the trace settings of `model` as an admin call. An empty name stands for the server.
async fn change_settings(
    state: &ModelsState,
    model: &str,
    peer: Peer,
    headers: &HeaderMap,
    body: Body,
) -> Result<Reply> {
    let changed = async {
        let given: BTreeMap<String, Value> = state.requests.read_json(headers, body).await?;
        state.traces.change_triton(model, &values(given)?)?;
        Ok(settings(state, model))
    };
    state.access.admin(admin_request(model, peer, headers), changed).await
}

/// Returns the values of settings in JSON: a text, a number, a list of texts, or null to clear it.
fn values(settings: BTreeMap<String, Value>) -> Result<TraceSettingValues> {
    let wrong = |name: &str| {
        Error::invalid(format!("the value of {name} must be a text, a list of texts or null"))
    };
    let text = |name: &str, value: Value| match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(wrong(name)),
    };
    let setting = |(name, value): (String, Value)| {
        let values = match value {
            Value::Null => Vec::new(),
            Value::Array(values) => {
                values.into_iter().map(|value| text(&name, value)).collect::<Result<_>>()?
            }
            value => vec![text(&name, value)?],
        };
        Ok((name, values))
    };
    settings.into_iter().map(setting).collect()
}
