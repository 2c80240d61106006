//! `grpc.health.v1`: the status of the server, of its services and of its models.
//!
//! The empty name and the services have the readiness of the server. A model serves if a version is
//! ready.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_models::view;
use base::{Error, Result};
use metrics::KindLabels;
use protocol::grpc::health::v1::health_check_response::ServingStatus;
use protocol::grpc::health::v1::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use protocol::reflection;
use tokio::sync::{OwnedSemaphorePermit, watch};
use transport::access::KeyGrant;
use transport::{RequestBody, Reservation};

use super::call::SmallCall;
use super::response::{self, Response};
use super::stream::{AnswerSender, answer_channel};
use crate::models::ModelsState;
use crate::readiness::WATCHERS_MAX;

/// Maximum unread statuses of a call of Watch, and its end.
const STATUSES_MAX: usize = 2;
/// Services as TensorFlow Serving's health service names them, for which its probes ask.
const SHORT_NAMES: [&str; 2] = ["ModelService", "PredictionService"];

/// Returns the status of the server (empty name), a service or a model, or `None` for another name.
fn status(state: &ModelsState, name: &str) -> Option<ServingStatus> {
    let is_server = name.is_empty() || reflection::is_service(name);
    let ready = if is_server { None } else { state.lifecycle.catalog().ready(name) };
    let serves = match ready {
        Some(ready) => !ready.is_empty() && !state.readiness.is_stopping(),
        None if is_server || SHORT_NAMES.contains(&name) => state.readiness.check().is_ok(),
        None => return None,
    };
    Some(if serves { ServingStatus::Serving } else { ServingStatus::NotServing })
}

fn message(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

pub(super) fn check(
    state: &ModelsState,
    request: HealthCheckRequest,
) -> Result<HealthCheckResponse> {
    let name = &request.service;
    status(state, name).map(message).ok_or_else(|| state.lifecycle.catalog().unknown(name))
}

pub(super) fn list(
    state: &ModelsState,
    _: HealthListRequest,
    grant: Option<&KeyGrant>,
) -> Result<HealthListResponse> {
    let models = state.lifecycle.catalog().names();
    let models = models.iter().filter(|name| view::sees_model(grant, name));
    let models = models.map(|name| name.to_string());
    let names = std::iter::once(String::new()).chain(reflection::services()).chain(models);
    let known = |name: String| Some((name.clone(), message(status(state, &name)?)));
    Ok(HealthListResponse { statuses: names.filter_map(known).collect::<BTreeMap<_, _>>() })
}

pub(super) async fn watch(
    state: Arc<ModelsState>,
    stopped: watch::Receiver<bool>,
    request: http::Request<RequestBody>,
) -> Response {
    let unread = request.extensions().get().cloned();
    let watched = match WatchedService::read(&state, request).await {
        Ok(watched) => watched,
        Err(error) => return response::failed(&error),
    };
    let (answers, receiver) = answer_channel(STATUSES_MAX, unread);
    tokio::spawn(async move { follow(&state, watched, &answers, stopped).await });
    response::stream(receiver)
}

/// The name that a call of Watch follows, and its share of the limits.
struct WatchedService {
    name: String,
    _permit: OwnedSemaphorePermit,
    _reservation: Reservation,
}

impl WatchedService {
    /// Reads the call.
    ///
    /// # Errors
    /// `ResourceExhausted` if there are [`WATCHERS_MAX`], and the errors of any call.
    async fn read(
        state: &ModelsState,
        request: http::Request<RequestBody>,
    ) -> Result<WatchedService> {
        let (call, reservation) = SmallCall::<HealthCheckRequest>::read(state, request).await?;
        let permit = state.watchers.permits.clone().try_acquire_owned().map_err(|_| {
            let labels = KindLabels { kind: "watchers_max" };
            state.requests.metrics.refused.get_or_create(&labels).inc();
            Error::exhausted(format!(
                "{WATCHERS_MAX} clients watch the health of this server, which is the limit; call Check"
            ))
        })?;
        let name = call.message.service;
        Ok(WatchedService { name, _permit: permit, _reservation: reservation })
    }
}

/// Sends the status, and again after each change, until the client disconnects or the server stops.
async fn follow(
    state: &ModelsState,
    watched: WatchedService,
    answers: &AnswerSender,
    mut stopped: watch::Receiver<bool>,
) {
    let encode = |status| {
        response::encode_streamed(&state.requests, &message(status), state.requests.memory.empty())
    };
    // Taken before the first read of the status, so that no change is missed.
    let mut changes = state.watchers.changes.clone();
    let mut sent = None;
    loop {
        let now = status(state, &watched.name).unwrap_or(ServingStatus::ServiceUnknown);
        let next = async {
            if sent != Some(now) && !answers.send(encode(now)).await {
                return false;
            }
            sent = Some(now);
            tokio::select! {
                () = answers.sender.closed() => false,
                changed = changes.changed() => changed.is_ok(),
            }
        };
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => break,
            goes_on = next => if !goes_on { return },
        }
    }
    // If the client has unread statuses, the end of the connection tells it the same.
    if sent != Some(ServingStatus::NotServing) {
        let _ = answers.sender.try_send(encode(ServingStatus::NotServing));
    }
    let _ = answers.sender.try_send(Err(Error::unavailable("the server is shutting down")));
}
