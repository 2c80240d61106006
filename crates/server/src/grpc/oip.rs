//! Open Inference Protocol over gRPC, with the repository, statistics and streaming extensions.

use std::sync::Arc;

use api_models::{request_key, signatures, view};
use base::{Moment, Result};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, header};
use inference::{InferenceRequest, RequestTicket};
use lifecycle::{LoadSpec, RequestKey};
use observe::TracedCall;
use os::CpuAccount;
use protocol::inference as pb;
use protocol::oip;
use tokio::sync::{OwnedSemaphorePermit, watch};
use transport::access::KeyGrant;
use transport::{CodecStep, INLINE_WORK_MAX, RequestBody, Reservation, ResponseBody};

use super::authorize::check_models;
use super::call::{InferenceCall, SmallCall, answer};
use super::messages::{self, DecodedMessage};
use super::response::{self, Response};
use super::stream;
use crate::admin;
use crate::models::ModelsState;

const PROTOCOL: &str = "oip-grpc";
/// Path of the method with a stream of requests.
const STREAM_METHOD: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
/// Triton's parameter that marks the last streamed answer to a request. Every request has one
/// answer here.
const FINAL_RESPONSE: &str = "triton_final_response";
/// Triton's metadata of a stream whose first failed request ends it with a status, if it is "true".
const ERRORS_END_STREAM: &str = "triton_grpc_error";
/// Longest id in bytes that a failed request of a stream gets back. An error must fit into memory
/// when the budget is used up.
const FAILED_ID_BYTES_MAX: usize = 256;

/// Returns the version that a request names, or `None` if the field is empty.
fn named_version(text: &str) -> Result<Option<u64>> {
    if text.is_empty() { Ok(None) } else { signatures::parse_version(text).map(Some) }
}

/// Decodes an inference request, runs the model, and encodes the outputs. Returns the reservation
/// of the request's bytes, which is released with the answer.
async fn infer(
    state: &ModelsState,
    ticket: &RequestTicket,
    decoded: DecodedMessage<pb::ModelInferRequest>,
    timeout: Option<std::time::Duration>,
    key: Option<RequestKey>,
) -> Result<(pb::ModelInferResponse, Reservation)> {
    let DecodedMessage { message: request, mut reservation, large } = decoded;
    let found = named_version(&request.model_version).and_then(|version| {
        Ok((state.inference.find(&request.model_name, version, None)?, version))
    });
    let (servable, version) = found.inspect_err(|error| state.inference.reject(ticket, error))?;
    let strings = oip::grpc::strings_bytes_max(&request);
    let large = large || strings > INLINE_WORK_MAX * oip::grpc::STRING_REFERENCES_BYTES;
    let decode = move || {
        reservation.cover(strings)?;
        let decoded = oip::grpc::decode_request(request)?;
        Ok((decoded, reservation))
    };
    let decoded = state.requests.codec.run_if(large, CodecStep::Decode, decode).await.and_then(
        |(decoded, reservation)| {
            let key = request_key::of_parameter(&decoded.request_key, key)?;
            let name = &decoded.signature;
            let route =
                signatures::assign(&state.inference, &servable, version, key.as_ref(), name)?;
            Ok((route, decoded, reservation))
        },
    );
    let (route, decoded, reservation) = decoded
        .map_err(|error| error.context(&servable.id))
        .inspect_err(|error| state.inference.reject_version(ticket, &servable.id, error))?;
    ticket.mark(Moment::Decoded);
    let timeout = [timeout, decoded.timeout].into_iter().flatten().min();
    let call = InferenceRequest {
        servable: route.servable,
        rollout: route.rollout,
        inputs: decoded.inputs,
        outputs: decoded.outputs,
        timeout,
        priority: decoded.priority,
    };
    let answer = state.inference.infer(ticket, call).await?;
    Ok((oip::grpc::encode_response(&answer.id, decoded.id, answer.outputs)?, reservation))
}

pub(super) async fn model_infer(
    state: Arc<ModelsState>,
    request: http::Request<RequestBody>,
) -> Response {
    let call = match InferenceCall::read(&state, PROTOCOL, request).await {
        Ok(call) => call,
        Err(error) => return response::failed(&error),
    };
    let answer = infer(&state, &call.ticket, call.decoded, call.timeout, call.key).await;
    response::single(&state.requests, answer, Some(call.ticket))
}

/// Answers a stream of requests, in their order.
pub(super) fn model_stream_infer(
    state: &Arc<ModelsState>,
    stopped: watch::Receiver<bool>,
    request: http::Request<RequestBody>,
) -> Response {
    let call = Arc::new(StreamCall {
        state: state.clone(),
        grant: request.extensions().get::<KeyGrant>().cloned(),
        headers: traced_headers(request.headers()),
        key: request_key::of_headers(request.headers()),
        errors_end_stream: request
            .headers()
            .get(ERRORS_END_STREAM)
            .is_some_and(|value| value == "true"),
    });
    stream::respond(state, stopped, request, move |message| {
        let call = call.clone();
        // Before the request runs, because the stream is read further while permits are free.
        let permit = call.state.requests.admit();
        async move {
            match call.account() {
                Some(account) => account.wrap(call.infer(message, permit)).await,
                None => call.infer(message, permit).await,
            }
        }
    })
}

/// One stream of requests.
struct StreamCall {
    state: Arc<ModelsState>,
    /// Rights that the call's key had when the call began.
    grant: Option<KeyGrant>,
    /// Headers of the call that its requests' traces need.
    headers: HeaderMap,
    /// Key for rollouts of requests that have none of their own.
    key: Result<Option<RequestKey>>,
    /// True if the first failed request ends the stream with its status. Clients that request this
    /// do not read the errors in answers.
    errors_end_stream: bool,
}

/// Returns the headers that traces need.
fn traced_headers(headers: &HeaderMap) -> HeaderMap {
    let names = ["traceparent", "tracestate", header::USER_AGENT.as_str()];
    let found = names
        .into_iter()
        .filter_map(|name| Some((HeaderName::from_static(name), headers.get(name)?.clone())));
    found.collect()
}

impl StreamCall {
    /// Returns the present account of the call's key, to which the work of a request is charged. A
    /// change of the key's quota opens a new account.
    fn account(&self) -> Option<Arc<CpuAccount>> {
        let grant = self.state.access.renewed(self.grant.as_ref()?).ok()?;
        Some(grant.cpu_account())
    }

    /// Checks a request against the present rights of the call's key, which counts each request of
    /// a stream.
    fn check(&self, request: &pb::ModelInferRequest) -> Result<()> {
        let Some(grant) = &self.grant else { return Ok(()) };
        let grant = self.state.access.renewed(grant)?;
        check_models(Some(&grant), request)?;
        self.state.access.count_request(&grant)
    }

    /// Answers one request, if `permit` admits it. The answer to a failed one has its id and is
    /// marked as the last, as in Triton. A client may have sent several, and count the last
    /// answers.
    ///
    /// # Errors
    /// The errors of a request, if the client wants them to end the stream. Otherwise those of
    /// [`response::encode_streamed`].
    async fn infer(
        &self,
        request: Bytes,
        permit: Result<OwnedSemaphorePermit>,
    ) -> Result<ResponseBody> {
        let state = &self.state;
        let call = || TracedCall::Grpc { path: STREAM_METHOD.to_owned() };
        let ticket = state.starter.start(PROTOCOL, &self.headers, call);
        ticket.mark(Moment::BodyComplete);
        let mut id = String::new();
        let admitted = async {
            let permit = permit?;
            let decoded: DecodedMessage<pb::ModelInferRequest> =
                messages::decode(&state.requests, request).await?;
            if decoded.message.id.len() <= FAILED_ID_BYTES_MAX {
                id.clone_from(&decoded.message.id);
            }
            self.check(&decoded.message)?;
            Ok((permit, decoded, self.key.clone()?))
        };
        let answer = match admitted.await {
            Ok((_permit, decoded, key)) => infer(state, &ticket, decoded, None, key).await,
            Err(error) => {
                state.inference.reject(&ticket, &error);
                Err(error)
            }
        };
        let answer = answer.and_then(|(mut response, reservation)| {
            response.parameters.insert(FINAL_RESPONSE.into(), oip::grpc::boolean(true));
            let answer = pb::ModelStreamInferResponse {
                error_message: String::new(),
                infer_response: Some(response),
            };
            response::encode_streamed(&state.requests, &answer, reservation)
        });
        let answer = answer
            .inspect_err(|error| ticket.fail(error))
            .map(|body| body.with_clock(Some(ticket.into_encoded())));
        if self.errors_end_stream {
            return answer;
        }
        answer.or_else(|error| {
            let mut response = pb::ModelInferResponse { id, ..Default::default() };
            response.parameters.insert(FINAL_RESPONSE.into(), oip::grpc::boolean(true));
            let answer = pb::ModelStreamInferResponse {
                error_message: error.to_string(),
                infer_response: Some(response),
            };
            response::encode_streamed(&state.requests, &answer, state.requests.memory.empty())
        })
    }
}

pub(super) fn model_ready(
    state: &ModelsState,
    request: pb::ModelReadyRequest,
) -> Result<pb::ModelReadyResponse> {
    let version = named_version(&request.version)?;
    Ok(pb::ModelReadyResponse { ready: state.inference.find(&request.name, version, None).is_ok() })
}

pub(super) fn server_metadata(
    _: &ModelsState,
    _: pb::ServerMetadataRequest,
) -> Result<pb::ServerMetadataResponse> {
    Ok(pb::ServerMetadataResponse {
        name: crate::NAME.into(),
        version: crate::VERSION.into(),
        extensions: oip::EXTENSIONS.iter().map(|name| (*name).into()).collect(),
    })
}

pub(super) fn model_metadata(
    state: &ModelsState,
    request: pb::ModelMetadataRequest,
) -> Result<pb::ModelMetadataResponse> {
    let servable = state.inference.find(&request.name, named_version(&request.version)?, None)?;
    let model = &servable.id.model;
    let versions = view::ready_versions(state.inference.catalog(), model);
    Ok(oip::grpc::model_metadata(
        model,
        &versions,
        view::platform(servable.engine),
        servable.signature(),
    ))
}

pub(super) fn model_config(
    state: &ModelsState,
    request: pb::ModelConfigRequest,
) -> Result<pb::ModelConfigResponse> {
    let servable = state.inference.find(&request.name, named_version(&request.version)?, None)?;
    let config = oip::grpc::model_config(
        &servable.id.model,
        view::platform(servable.engine),
        servable.signature(),
        servable.metadata(),
        view::batching(&servable).as_ref(),
    );
    Ok(pb::ModelConfigResponse { config: Some(config) })
}

pub(super) fn model_statistics(
    state: &ModelsState,
    request: pb::ModelStatisticsRequest,
    grant: Option<&KeyGrant>,
) -> Result<pb::ModelStatisticsResponse> {
    let version = named_version(&request.version)?;
    let entries = view::statistics(&state.inference, &request.name, version, grant)?;
    Ok(oip::grpc::model_statistics(&entries))
}

pub(super) fn repository_index(
    state: &ModelsState,
    request: pb::RepositoryIndexRequest,
    grant: Option<&KeyGrant>,
) -> Result<pb::RepositoryIndexResponse> {
    let entries = view::repository_index(&state.lifecycle, request.ready, grant);
    Ok(oip::grpc::repository_index(&entries))
}

pub(super) async fn load(state: Arc<ModelsState>, request: http::Request<RequestBody>) -> Response {
    answer(state.clone(), request, async |call: SmallCall<pb::RepositoryModelLoadRequest>| {
        let message = &call.message;
        let target = oip::RepositoryTarget::new(&message.repository_name, &message.model_name);
        let request = admin::request("load model", target.model, call.caller());
        let loaded = async {
            let version = oip::grpc::load_version(&message.parameters)?;
            let spec = LoadSpec { version, ..LoadSpec::default() };
            admin::load(&state, target.model, spec).await
        };
        state.access.admin(request, loaded).await?;
        Ok(target.response())
    })
    .await
}

pub(super) async fn unload(
    state: Arc<ModelsState>,
    request: http::Request<RequestBody>,
) -> Response {
    answer(state.clone(), request, async |call: SmallCall<pb::RepositoryModelUnloadRequest>| {
        let message = &call.message;
        let target = oip::RepositoryTarget::new(&message.repository_name, &message.model_name);
        let request = admin::request("unload model", target.model, call.caller());
        state.access.admin(request, admin::unload(&state.lifecycle, target.model)).await?;
        Ok(target.response())
    })
    .await
}
