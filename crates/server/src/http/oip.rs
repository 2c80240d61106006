//! Open Inference Protocol over HTTP: health, metadata, infer with the binary-tensor extension,
//! statistics.

use std::sync::Arc;

use api_models::{request_key, signatures, view};
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use base::{Error, Moment, Result};
use bytes::Bytes;
use engine::Servable;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use inference::{InferenceRequest, RequestTicket, tensor_bytes};
use lifecycle::RequestKey;
use observe::TracedCall;
use protocol::oip;
use tokio::sync::OwnedSemaphorePermit;
use transport::access::{Caller, KeyGrant};
use transport::{Peer, Reply, Shared};

use super::tensors::{AnswerSize, TensorBody, parse_tensors, write_answer};
use crate::models::ModelsState;

const PROTOCOL: &str = "oip-http";
/// Header with the length of the JSON before raw tensors in a body.
const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// The model and the version in a path.
#[derive(serde::Deserialize)]
pub(super) struct ModelPath {
    pub(super) model: String,
    version: Option<String>,
}

impl ModelPath {
    fn version(&self) -> Result<Option<u64>> {
        self.version.as_deref().map(signatures::parse_version).transpose()
    }

    /// Returns the infer call to this model for its trace.
    fn traced(&self) -> TracedCall {
        let ModelPath { model, version } = self;
        match version {
            None => TracedCall::Http {
                route: "/v2/models/{model}/infer",
                path: format!("/v2/models/{model}/infer"),
            },
            Some(version) => TracedCall::Http {
                route: "/v2/models/{model}/versions/{version}/infer",
                path: format!("/v2/models/{model}/versions/{version}/infer"),
            },
        }
    }

    fn find(&self, state: &ModelsState) -> Result<Arc<Servable>> {
        state.inference.find(&self.model, self.version()?, None)
    }
}

/// Returns the alternative to a route of Triton that is not offered, or `None` for any other path.
pub(super) fn not_offered(path: &str) -> Option<&'static str> {
    let rest = path.strip_prefix("/v2/")?;
    let first = rest.split('/').next().unwrap_or_default();
    match first {
        "systemsharedmemory" | "cudasharedmemory" => return Some("send tensors in the request"),
        _ => {}
    }
    if first != "models" {
        return None;
    }
    let generates = rest.ends_with("/generate") || rest.ends_with("/generate_stream");
    generates.then_some("use infer")
}

pub(super) async fn server_metadata() -> Reply {
    Reply::json(oip::json::server_metadata(crate::NAME, crate::VERSION))
}

pub(super) async fn server_ready(
    State(state): Shared<ModelsState>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Reply {
    let caller = Caller { peer: Some(peer), headers: &headers };
    match state.readiness.unready_for(&state.access, caller) {
        None => Reply::json(oip::json::ready(None)),
        Some(unready) => {
            let body = oip::json::ready(Some(&unready.reason));
            Reply::json(body).with_status(StatusCode::SERVICE_UNAVAILABLE)
        }
    }
}

pub(super) async fn server_live() -> Reply {
    Reply::json(oip::json::live())
}

pub(super) async fn ready(
    State(state): Shared<ModelsState>,
    Path(target): Path<ModelPath>,
) -> Reply {
    Reply::of(
        target.find(&state).map(|servable| Reply::json(oip::json::model_ready(&servable.id.model))),
    )
}

pub(super) async fn metadata(
    State(state): Shared<ModelsState>,
    Path(target): Path<ModelPath>,
) -> Reply {
    Reply::of(target.find(&state).map(|servable| {
        let versions = view::ready_versions(state.inference.catalog(), &servable.id.model);
        let body = oip::json::model_metadata(
            &servable.id.model,
            &versions,
            view::platform(servable.engine),
            servable.signature(),
        );
        Reply::json(body)
    }))
}

pub(super) async fn config(
    State(state): Shared<ModelsState>,
    Path(target): Path<ModelPath>,
) -> Reply {
    Reply::of(target.find(&state).map(|servable| {
        let id = &servable.id;
        let signature = servable.signature();
        let batching = view::batching(&servable);
        let engine = view::platform(servable.engine);
        let facts = servable.metadata();
        Reply::json(oip::json::model_config(&id.model, engine, signature, facts, batching.as_ref()))
    }))
}

pub(super) async fn stats(
    State(state): Shared<ModelsState>,
    Path(target): Path<ModelPath>,
) -> Reply {
    let entries = target
        .version()
        .and_then(|version| view::statistics(&state.inference, &target.model, version, None));
    Reply::of(entries.map(|entries| Reply::json(oip::json::statistics(&entries))))
}

pub(super) async fn all_stats(
    State(state): Shared<ModelsState>,
    grant: Option<Extension<KeyGrant>>,
) -> Reply {
    Reply::of(
        view::statistics(&state.inference, "", None, grant.as_deref())
            .map(|entries| Reply::json(oip::json::statistics(&entries))),
    )
}

pub(super) async fn infer(
    State(state): Shared<ModelsState>,
    Path(target): Path<ModelPath>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let mut ticket = state.starter.start(PROTOCOL, &headers, || target.traced());
    let answered = answer(&state, &mut ticket, &target, &headers, body).await;
    let answered = answered.inspect_err(|error| ticket.fail(error));
    Reply::of(answered.map(|reply| reply.with_clock(ticket.into_encoded())))
}

/// A request that was read and admitted, and the version that it names.
struct AdmittedOipRequest {
    servable: Arc<Servable>,
    /// Key of the request's header.
    key: Option<RequestKey>,
    /// Bytes of JSON before the binary tensors.
    header_length: Option<usize>,
    body: Bytes,
    permit: OwnedSemaphorePermit,
}

/// Answers an inference request. Reads and decodes its body, runs the model, and encodes the
/// outputs. A failure before the run is counted here.
async fn answer(
    state: &ModelsState,
    ticket: &mut RequestTicket,
    target: &ModelPath,
    headers: &HeaderMap,
    body: Body,
) -> Result<Reply> {
    let admitted = async {
        state.requests.check_room()?;
        // A request to an unknown model is refused before its body is read. The version is found
        // again afterwards, so that a slow upload does not delay its release.
        target.find(state)?;
        let key = request_key::of_headers(headers)?;
        let header_length = header_length(headers)?;
        let body = state.requests.read_body(headers, body).await?;
        ticket.mark(Moment::BodyComplete);
        ticket.count_from_now();
        let permit = state.requests.admit()?;
        let servable = target.find(state)?;
        Ok(AdmittedOipRequest { servable, key, header_length, body, permit })
    };
    let AdmittedOipRequest { servable, key, header_length, body, permit: _permit } =
        admitted.await.inspect_err(|error| state.inference.reject(ticket, error))?;
    let tensors = TensorBody::new(body, header_length, servable.signature());
    let model = servable.clone();
    let parse = move |body| oip::json::parse_infer(body, header_length, model.signature());
    let parsed = parse_tensors(&state.requests, tensors, parse).await;
    let (route, request, held) = parsed
        .and_then(|(request, held)| {
            let key = request_key::of_parameter(&request.request_key, key)?;
            let version = target.version()?;
            let name = &request.signature;
            let route =
                signatures::assign(&state.inference, &servable, version, key.as_ref(), name)?;
            Ok((route, request, held))
        })
        .map_err(|error| error.context(&servable.id))
        .inspect_err(|error| state.inference.reject_version(ticket, &servable.id, error))?;
    ticket.mark(Moment::Decoded);
    let id = request.id.clone();
    let encoding = request.encoding();
    let call = InferenceRequest {
        servable: route.servable,
        rollout: route.rollout,
        inputs: request.inputs,
        outputs: request.outputs.iter().map(|output| output.name.clone()).collect(),
        timeout: request.timeout,
        priority: request.priority,
    };
    let answer = state.inference.infer(ticket, call).await?;
    let size = oip::json::response_bytes_max(&id, &answer.outputs, &encoding);
    let memory = (size.text + size.raw) as u64 + tensor_bytes(&answer.outputs);
    let write = move || oip::json::infer_response(&answer.id, &id, &answer.outputs, &encoding);
    let (response, held) =
        write_answer(&state.requests, held, AnswerSize { text: size.text, memory }, write).await?;
    let reply = match response.header_length {
        None => Reply::json(response.body),
        Some(length) => Reply::body("application/octet-stream", response.body)
            .with_header(HEADER_LENGTH, HeaderValue::from(length)),
    };
    Ok(reply.with_reservation(&state.requests, held))
}

fn header_length(headers: &HeaderMap) -> Result<Option<usize>> {
    let Some(value) = headers.get(HEADER_LENGTH) else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(|text| text.parse().ok());
    parsed
        .map(Some)
        .ok_or_else(|| Error::invalid("Inference-Header-Content-Length is not a number"))
}
