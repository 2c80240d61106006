//! `/v1/log`, and Triton's `/v2/logging`: show and change the filter of the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use axum::{Extension, Router};
use base::{Error, Result};
use http::HeaderMap;
use protocol::oip::settings::{LogSettingValue, changed_log, log_settings};
use serde_json::{Map, Value};
use transport::access::{AccessPolicy, AdminRequest, Caller};
use transport::{Peer, Reply, RequestResources, Shared};

use crate::compose::Server;
use crate::log_filter::{self, LOG_ADMIN_ACTION, LOG_ADMIN_CALL, LOG_FILTER_BYTES_MAX, LogFilter};

struct LogRouteState {
    requests: Arc<RequestResources>,
    access: Arc<AccessPolicy>,
    filter: Option<Arc<dyn LogFilter>>,
}

impl LogRouteState {
    fn filter(&self) -> Result<&dyn LogFilter> {
        log_filter::changeable(&self.filter)
    }
}

/// Returns a call that changes the log, for its check.
fn admin_request(peer: Peer, headers: &HeaderMap) -> AdminRequest<'_> {
    AdminRequest {
        calls: LOG_ADMIN_CALL,
        action: LOG_ADMIN_ACTION,
        subject: "",
        caller: Caller { peer: Some(peer), headers },
    }
}

pub(super) fn routes(server: &Server) -> Router {
    let state = LogRouteState {
        requests: server.requests.clone(),
        access: server.access.clone(),
        filter: server.http_options.log.clone(),
    };
    Router::new()
        .route("/v1/log", get(show).put(change))
        .route("/v2/logging", get(show_triton).post(change_triton))
        .with_state(Arc::new(state))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct LogFilterBody {
    filter: String,
}

async fn show(State(state): Shared<LogRouteState>) -> Reply {
    Reply::of(state.filter().map(reply))
}

async fn change(
    State(state): Shared<LogRouteState>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let request = admin_request(peer, &headers);
    let changed = async {
        let filter = state.filter()?;
        let settings: LogFilterBody = state.requests.read_json(&headers, body).await?;
        if settings.filter.len() > LOG_FILTER_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the filter has more than {LOG_FILTER_BYTES_MAX} bytes"
            )));
        }
        log_filter::change(filter, &settings.filter)?;
        Ok(reply(filter))
    };
    Reply::of(state.access.admin(request, changed).await)
}

fn reply(filter: &dyn LogFilter) -> Reply {
    Reply::json(serde_json::json!({ "filter": filter.get() }).to_string())
}

async fn show_triton(State(state): Shared<LogRouteState>) -> Reply {
    Reply::of(state.filter().map(triton_reply))
}

async fn change_triton(
    State(state): Shared<LogRouteState>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let request = admin_request(peer, &headers);
    let changed = async {
        let filter = state.filter()?;
        let settings: BTreeMap<String, Value> = state.requests.read_json(&headers, body).await?;
        // A null changes nothing, as in Triton.
        let given = settings.into_iter().filter(|(_, value)| !value.is_null());
        let settings = given.map(setting).collect::<Result<_>>()?;
        log_filter::change(filter, &changed_log(&filter.get(), &settings)?)?;
        Ok(triton_reply(filter))
    };
    Reply::of(state.access.admin(request, changed).await)
}

fn setting(entry: (String, Value)) -> Result<(String, LogSettingValue)> {
    let (name, value) = entry;
    let value = match &value {
        Value::Bool(flag) => Some(LogSettingValue::Flag(*flag)),
        Value::Number(number) => {
            let number = number.as_u64().and_then(|number| u32::try_from(number).ok());
            number.map(LogSettingValue::Number)
        }
        Value::String(text) => Some(LogSettingValue::Text(text.clone())),
        _ => None,
    };
    let value =
        value.ok_or_else(|| Error::invalid(format!("the value of {name} has the wrong type")))?;
    Ok((name, value))
}

/// Returns the settings of the log in Triton's form.
fn triton_reply(filter: &dyn LogFilter) -> Reply {
    let value = |(name, value)| {
        let value = match value {
            LogSettingValue::Flag(flag) => Value::from(flag),
            LogSettingValue::Number(number) => Value::from(number),
            LogSettingValue::Text(text) => Value::from(text),
        };
        (name, value)
    };
    let settings: Map<String, Value> = log_settings(&filter.get()).into_iter().map(value).collect();
    Reply::json(Value::from(settings).to_string())
}
