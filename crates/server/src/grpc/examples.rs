//! TensorFlow Serving over gRPC: Classify, Regress, MultiInference.

use std::sync::Arc;
use std::time::Duration;

use api_models::{ExampleCall, ExampleMethod, ExamplePlan, plan_tasks};
use base::{Error, Result};
use inference::RequestTicket;
use lifecycle::{RequestKey, Route};
use protocol::tensorflow::serving as pb;
use protocol::tfs::warmup::ExampleTask;
use protocol::tfs::{self, ExampleResult, Examples};
use transport::{RequestBody, Reservation};

use super::call::InferenceCall;
use super::response::{self, Response};
use super::tfs::{PROTOCOL, route};
use crate::models::ModelsState;

/// A request with examples, once its message was read.
struct ExampleRequest {
    spec: Option<pb::ModelSpec>,
    input: Option<pb::Input>,
    reservation: Reservation,
    timeout: Option<Duration>,
    key: Option<RequestKey>,
    large: bool,
}

/// Finds the version that `target` names, and returns the call to it with the reservation of the
/// request's bytes. Counts a request that fails.
fn find_call<'a>(
    state: &'a ModelsState,
    ticket: &'a RequestTicket,
    target: &tfs::grpc::PredictTarget,
    request: ExampleRequest,
) -> Result<(ExampleCall<'a>, Reservation)> {
    let Route { servable, rollout } = route(state, target, request.key.as_ref())
        .inspect_err(|error| state.inference.reject(ticket, error))?;
    let examples = Examples::from_message(request.input)
        .inspect_err(|error| state.inference.reject_version(ticket, &servable.id, error))?;
    let call = ExampleCall {
        requests: &state.requests,
        inference: &state.inference,
        ticket,
        servable,
        rollout,
        examples: Arc::new(examples),
        timeout: request.timeout,
        large: request.large,
    };
    state.inference.count_examples(ticket, &call.servable.id.model, call.examples.count());
    Ok((call, request.reservation))
}

/// Answers a request of one method.
async fn run(
    state: &ModelsState,
    ticket: &RequestTicket,
    mut request: ExampleRequest,
    method: ExampleMethod,
) -> Result<(ExampleResult, pb::ModelSpec, Reservation)> {
    let target = tfs::grpc::target(request.spec.take().as_ref())
        .inspect_err(|error| state.inference.reject(ticket, error))?;
    let (call, reservation) = find_call(state, ticket, &target, request)?;
    let id = &call.servable.id;
    let plan = ExamplePlan::new(&call.servable, &target.signature, method, state.tfs_method_check)
        .map_err(|error| error.context(id))
        .inspect_err(|error| state.inference.reject_version(ticket, id, error))?;
    let spec = tfs::grpc::version_spec(&call.servable.id, &plan.signature);
    let (result, reservation) = call.run(plan, reservation).await?;
    result.check_labels().map_err(|error| error.context(id))?;
    Ok((result, spec, reservation))
}

fn mismatch() -> Error {
    Error::internal("the result is of another method")
}

pub(super) async fn classify(
    state: Arc<ModelsState>,
    request: http::Request<RequestBody>,
) -> Response {
    let call: InferenceCall<pb::ClassificationRequest> =
        match InferenceCall::read(&state, PROTOCOL, request).await {
            Ok(call) => call.for_method("Classify"),
            Err(error) => return response::failed(&error),
        };
    let ticket = call.ticket;
    let answered = async {
        let message = call.decoded.message;
        let request = ExampleRequest {
            spec: message.model_spec,
            input: message.input,
            reservation: call.decoded.reservation,
            timeout: call.timeout,
            key: call.key,
            large: call.decoded.large,
        };
        match run(&state, &ticket, request, ExampleMethod::Classify).await? {
            (ExampleResult::Classes(result), spec, reservation) => {
                let response =
                    pb::ClassificationResponse { result: Some(result), model_spec: Some(spec) };
                Ok((response, reservation))
            }
            _ => Err(mismatch()),
        }
    };
    let answered = answered.await;
    response::single(&state.requests, answered, Some(ticket))
}

pub(super) async fn regress(
    state: Arc<ModelsState>,
    request: http::Request<RequestBody>,
) -> Response {
    let call: InferenceCall<pb::RegressionRequest> =
        match InferenceCall::read(&state, PROTOCOL, request).await {
            Ok(call) => call.for_method("Regress"),
            Err(error) => return response::failed(&error),
        };
    let ticket = call.ticket;
    let answered = async {
        let message = call.decoded.message;
        let request = ExampleRequest {
            spec: message.model_spec,
            input: message.input,
            reservation: call.decoded.reservation,
            timeout: call.timeout,
            key: call.key,
            large: call.decoded.large,
        };
        match run(&state, &ticket, request, ExampleMethod::Regress).await? {
            (ExampleResult::Values(result), spec, reservation) => {
                let response =
                    pb::RegressionResponse { result: Some(result), model_spec: Some(spec) };
                Ok((response, reservation))
            }
            _ => Err(mismatch()),
        }
    };
    let answered = answered.await;
    response::single(&state.requests, answered, Some(ticket))
}

pub(super) async fn multi_inference(
    state: Arc<ModelsState>,
    request: http::Request<RequestBody>,
) -> Response {
    let call: InferenceCall<pb::MultiInferenceRequest> =
        match InferenceCall::read(&state, PROTOCOL, request).await {
            Ok(call) => call.for_method("MultiInference"),
            Err(error) => return response::failed(&error),
        };
    let ticket = call.ticket;
    let answered = async {
        let ticket = &ticket;
        let message = call.decoded.message;
        let request = ExampleRequest {
            spec: None,
            input: message.input,
            reservation: call.decoded.reservation,
            timeout: call.timeout,
            key: call.key,
            large: call.decoded.large,
        };
        let target = common_target(&message.tasks)
            .inspect_err(|error| state.inference.reject(ticket, error))?;
        let (call, mut reservation) = find_call(&state, ticket, &target, request)?;
        let task = |task: pb::InferenceTask| ExampleTask {
            method: task.method_name,
            signature: task.model_spec.unwrap_or_default().signature_name,
        };
        let tasks: Vec<_> = message.tasks.into_iter().map(task).collect();
        let id = &call.servable.id;
        let plans = plan_tasks(&call.servable, &tasks, state.tfs_method_check)
            .map_err(|error| error.context(id))
            .inspect_err(|error| state.inference.reject_version(ticket, id, error))?;
        let mut results = Vec::with_capacity(plans.len());
        for plan in plans {
            let spec = tfs::grpc::version_spec(&call.servable.id, &plan.signature);
            let (result, kept) = call.run(plan, reservation).await?;
            result.check_labels().map_err(|error| error.context(id))?;
            reservation = kept;
            results.push(result.into_task(spec));
        }
        Ok((pb::MultiInferenceResponse { results }, reservation))
    };
    let answered = answered.await;
    response::single(&state.requests, answered, Some(ticket))
}

/// Returns the version that all tasks name.
///
/// # Errors
/// `InvalidArgument` for no task and for tasks of several models or versions.
fn common_target(tasks: &[pb::InferenceTask]) -> Result<tfs::grpc::PredictTarget> {
    let spec = |task: &pb::InferenceTask| task.model_spec.clone().unwrap_or_default();
    if tasks.iter().any(|task| spec(task).name.is_empty()) {
        return Err(Error::invalid("Found ModelSpec with an empty model name."));
    }
    let first =
        tasks.first().map(spec).ok_or_else(|| Error::invalid("Inference request has no tasks."))?;
    for other in tasks.iter().map(spec) {
        if other.name != first.name {
            return Err(Error::invalid(
                "All ModelSpecs in a MultiInferenceRequest must access the same model name.",
            ));
        }
        if other.version_choice != first.version_choice {
            return Err(Error::invalid(
                "All ModelSpecs in a MultiInferenceRequest must access the same model version.",
            ));
        }
    }
    tfs::grpc::target(Some(&first))
}
