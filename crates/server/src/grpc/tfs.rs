//! TensorFlow Serving over gRPC: Predict, GetModelMetadata, GetModelStatus.

use std::sync::Arc;
use std::time::Duration;

use api_models::{signatures, view};
use base::{Moment, Result};
use engine::Servable;
use inference::{InferenceRequest, RequestTicket};
use lifecycle::{RequestKey, Route};
use protocol::tensorflow::serving as pb;
use protocol::tfs;
use transport::access::AdminRequest;
use transport::{CodecStep, RequestBody, Reservation};

use super::call::{InferenceCall, SmallCall, answer};
use super::messages::DecodedMessage;
use super::response::{self, Response};
use crate::models::ModelsState;

/// Describes the call in the errors of the access check.
const RELOAD_CALL: &str = "the list of models is replaced";
pub(super) const PROTOCOL: &str = "tfs-grpc";
/// Maximum bytes that are filled with repeated values on the connection's thread.
const INLINE_FILLED_BYTES_MAX: u64 = 1 << 20;

/// Finds the version that a request names.
pub(super) fn find(
    state: &ModelsState,
    target: &tfs::grpc::PredictTarget,
) -> Result<Arc<Servable>> {
    signatures::find(&state.inference, &target.name, target.version, target.label.as_deref())
}

/// Finds the version that runs a request.
pub(super) fn route(
    state: &ModelsState,
    target: &tfs::grpc::PredictTarget,
    key: Option<&RequestKey>,
) -> Result<Route> {
    let tfs::grpc::PredictTarget { name, version, label, .. } = target;
    signatures::route(&state.inference, name, *version, label.as_deref(), key)
}

/// Decodes a predict request, runs the model, and encodes the outputs. Returns the reservation of
/// the request's bytes, which is released with the answer.
async fn run(
    state: &ModelsState,
    ticket: &RequestTicket,
    decoded: DecodedMessage<pb::PredictRequest>,
    timeout: Option<Duration>,
    key: Option<RequestKey>,
) -> Result<(tfs::SharedPredictResponse, Reservation)> {
    let DecodedMessage { message: request, mut reservation, large } = decoded;
    let found = tfs::grpc::target(request.model_spec.as_ref())
        .and_then(|target| Ok((route(state, &target, key.as_ref())?, target.signature)));
    let (Route { servable: version, rollout }, signature) =
        found.inspect_err(|error| state.inference.reject(ticket, error))?;
    let servable = signatures::for_predict(version.clone(), &signature, state.tfs_method_check)
        .map_err(|error| error.context(&version.id))
        .inspect_err(|error| state.inference.reject_version(ticket, &version.id, error))?;
    let filled = tfs::grpc::filled_bytes_max(&request);
    let large = large || filled > INLINE_FILLED_BYTES_MAX;
    let decode = move || {
        reservation.cover(filled)?;
        Ok((tfs::grpc::decode_predict(request)?, reservation))
    };
    let (mut decoded, reservation) = state
        .requests
        .codec
        .run_if(large, CodecStep::Decode, decode)
        .await
        .map_err(|error| error.context(&servable.id))
        .inspect_err(|error| state.inference.reject_version(ticket, &servable.id, error))?;
    ticket.mark(Moment::Decoded);
    let ranks = tfs::adapt_ranks(servable.signature(), &mut decoded.inputs);
    let call = InferenceRequest {
        servable: servable.clone(),
        inputs: decoded.inputs,
        outputs: decoded.outputs,
        timeout,
        priority: 0,
        rollout,
    };
    let mut answer = state.inference.infer(ticket, call).await?;
    ranks.restore(servable.signature(), &mut answer.outputs);
    let elements = if state.tfs_tensor_content {
        tfs::TensorFields::Content
    } else {
        tfs::TensorFields::Typed
    };
    let signature = servable.signature_name();
    Ok((tfs::grpc::encode_predict(&answer.id, signature, answer.outputs, elements), reservation))
}

pub(super) async fn predict(
    state: Arc<ModelsState>,
    request: http::Request<RequestBody>,
) -> Response {
    let call = match InferenceCall::read(&state, PROTOCOL, request).await {
        Ok(call) => call,
        Err(error) => return response::failed(&error),
    };
    let answer = run(&state, &call.ticket, call.decoded, call.timeout, call.key).await;
    response::single(&state.requests, answer, Some(call.ticket))
}

pub(super) fn model_metadata(
    state: &ModelsState,
    request: pb::GetModelMetadataRequest,
) -> Result<pb::GetModelMetadataResponse> {
    let target = tfs::grpc::target(request.model_spec.as_ref())?;
    let servable = find(state, &target)?;
    tfs::grpc::model_metadata(&servable.id, &signatures::infos(&servable), &request.metadata_field)
}

/// Replaces the named models, as an administrator may.
pub(super) async fn reload_config(
    state: Arc<ModelsState>,
    request: http::Request<RequestBody>,
) -> Response {
    answer(state.clone(), request, async |call: SmallCall<pb::ReloadConfigRequest>| {
        let request = AdminRequest {
            calls: RELOAD_CALL,
            action: "replace the list of models",
            subject: "",
            caller: call.caller(),
        };
        let list = call.message.config.clone().unwrap_or_default();
        state.access.admin(request, state.configurator.replace_list(&list)).await?;
        // TensorFlow Serving reports an increase of 0 for names that it does not know, and its
        // counters of loads are not known here.
        let metric = |name| pb::ReloadedMetric { name, int64_value_increase: 0 };
        Ok(pb::ReloadConfigResponse {
            status: Some(pb::StatusProto::default()),
            metric: call.message.metric_names.into_iter().map(metric).collect(),
        })
    })
    .await
}

pub(super) fn model_status(
    state: &ModelsState,
    request: pb::GetModelStatusRequest,
) -> Result<pb::GetModelStatusResponse> {
    let target = tfs::grpc::target(request.model_spec.as_ref())?;
    let catalog = state.inference.catalog();
    let version = match target.label {
        Some(_) => Some(find(state, &target)?.id.version),
        None => signatures::version(catalog, &target.name, target.version),
    };
    let versions = view::version_states(catalog, &target.name, version)?;
    Ok(tfs::grpc::model_status(&versions))
}
