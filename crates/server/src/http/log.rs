//! `/v1/log`: shows and changes the filter of the log.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use axum::{Extension, Router};
use base::{Error, Result};
use http::HeaderMap;
use transport::access::AccessPolicy;
use transport::{Peer, Reply, RequestResources, Shared};

use crate::compose::Server;
use crate::log_filter::{LOG_FILTER_BYTES_MAX, LogFilter};

/// Describes these calls in the errors of the access check.
const ADMIN_CALL: &str = "the log is changed";

struct LogState {
    requests: Arc<RequestResources>,
    access: Arc<AccessPolicy>,
    filter: Option<Arc<dyn LogFilter>>,
}

impl LogState {
    fn filter(&self) -> Result<&dyn LogFilter> {
        let missing = || Error::unimplemented("this program's log cannot change while it runs");
        self.filter.as_deref().ok_or_else(missing)
    }
}

pub(super) fn routes(server: &Server) -> Router {
    let state = LogState {
        requests: server.requests.clone(),
        access: server.access.clone(),
        filter: server.http_options.log.clone(),
    };
    Router::new().route("/v1/log", get(show).put(change)).with_state(Arc::new(state))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct LogSettings {
    filter: String,
}

async fn show(State(state): Shared<LogState>) -> Reply {
    Reply::of(state.filter().map(reply))
}

async fn change(
    State(state): Shared<LogState>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let changed = async {
        state.access.check_admin(ADMIN_CALL, Some(peer), &headers)?;
        state.access.check_admin_page(&headers)?;
        let filter = state.filter()?;
        let body = state.requests.read_json_body(&headers, body).await?;
        let settings: LogSettings = state.requests.parse_json(body).await?;
        if settings.filter.len() > LOG_FILTER_BYTES_MAX {
            return Err(Error::too_large(format!(
                "the filter has more than {LOG_FILTER_BYTES_MAX} bytes"
            )));
        }
        filter.set(&settings.filter)?;
        tracing::info!(filter = settings.filter, "an administrator changed the log's filter");
        Ok(reply(filter))
    };
    Reply::of(changed.await)
}

fn reply(filter: &dyn LogFilter) -> Reply {
    Reply::json(serde_json::json!({ "filter": filter.get() }).to_string())
}
