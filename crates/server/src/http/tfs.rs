//! TensorFlow Serving's REST API:
//! `/v1/models/NAME[/versions/N|/labels/L][:predict|:classify|:regress|/metadata]`.

use std::sync::Arc;
use std::time::Duration;

use api_models::{ExampleCall, ExampleMethod, ExamplePlan, request_key, signatures, view};
use axum::body::Body;
use axum::extract::{Path, State};
use base::{Error, ErrorKind, Moment, Result};
use bytes::Bytes;
use engine::Servable;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use inference::{InferenceRequest, RequestTicket, default_timeout, tensor_bytes};
use lifecycle::{RequestKey, RolloutPart, Route};
use observe::TracedCall;
use protocol::tfs;
use tokio::sync::OwnedSemaphorePermit;
use transport::{INLINE_BYTES_MAX, Reply, Shared};

use super::tensors::{AnswerSize, TensorBody, parse_tensors, write_answer};
use crate::grpc;
use crate::models::ModelsState;

const PROTOCOL: &str = "tfs-http";
/// Header for the time limit of a request.
const TIMEOUT: &str = "grpc-timeout";

/// The parts of a path.
#[derive(Debug, PartialEq, Eq)]
struct ServingPath<'a> {
    model: &'a str,
    version: Option<u64>,
    label: Option<&'a str>,
    /// The method after the colon.
    verb: Option<ServingVerb>,
    metadata: bool,
}

/// The method of POST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServingVerb {
    Predict,
    Examples(ExampleMethod),
}

impl ServingPath<'_> {
    fn find(&self, state: &ModelsState) -> Result<Arc<Servable>> {
        signatures::find(&state.inference, self.model, self.version, self.label)
    }

    fn route(&self, state: &ModelsState, key: Option<&RequestKey>) -> Result<Route> {
        signatures::route(&state.inference, self.model, self.version, self.label, key)
    }
}

/// Returns the error for a malformed path, in TensorFlow Serving's words.
pub(super) fn malformed(path: &str) -> Error {
    Error::invalid(format!(
        "Malformed request: {path}; paths are /v1/models/NAME[/versions/N|/labels/L][:predict|:classify|:regress|/metadata]"
    ))
}

/// Parses the part of a path after `/v1/models/`. Words of the API may have any case, as in
/// TensorFlow Serving.
fn parse(rest: &str) -> Result<ServingPath<'_>> {
    let unknown = || malformed(&format!("/v1/models/{rest}"));
    let (path, verb) = match rest.rsplit_once(':') {
        Some((path, verb)) => (path, Some(verb.to_ascii_lowercase())),
        None => (rest, None),
    };
    let verb = match verb.as_deref() {
        None => None,
        Some("predict") => Some(ServingVerb::Predict),
        Some("classify") => Some(ServingVerb::Examples(ExampleMethod::Classify)),
        Some("regress") => Some(ServingVerb::Examples(ExampleMethod::Regress)),
        Some(other) => {
            let path = format!("/v1/models/{rest}: there is no method \"{other}\"");
            return Err(malformed(&path));
        }
    };
    let (path, metadata) = match path.rsplit_once('/') {
        Some((path, last)) if last.eq_ignore_ascii_case("metadata") => (path, true),
        _ => (path, false),
    };
    let segments: Vec<&str> = path.split('/').collect();
    let (model, version, label) = match segments.as_slice() {
        [model] => (*model, None, None),
        [model, word, version] if word.eq_ignore_ascii_case("versions") => {
            (*model, Some(version_number(version)?), None)
        }
        [model, word, label] if word.eq_ignore_ascii_case("labels") => (*model, None, Some(*label)),
        _ => return Err(unknown()),
    };
    if model.is_empty() || (metadata && verb.is_some()) {
        return Err(unknown());
    }
    Ok(ServingPath { model, version, label, verb, metadata })
}

/// Returns the number of a version, which TensorFlow Serving keeps in 63 bits.
///
/// # Errors
/// `InvalidArgument` for anything else.
fn version_number(text: &str) -> Result<u64> {
    signatures::parse_version(text).and_then(|version| match i64::try_from(version) {
        Ok(_) => Ok(version),
        Err(_) => Err(Error::invalid(format!("\"{text}\" is not a version number"))),
    })
}

/// Answers GET: the status of versions, or the metadata.
pub(super) async fn read(State(state): Shared<ModelsState>, Path(rest): Path<String>) -> Reply {
    reply(parse(&rest).and_then(|target| {
        if target.verb.is_some() {
            let error = Error::invalid(format!("/v1/models/{rest} takes POST"));
            return Ok(wrong_method(Reply::error(&error), "POST"));
        }
        if target.metadata {
            let servable = target.find(&state)?;
            return Ok(Reply::json(tfs::json::metadata(
                &servable.id,
                &signatures::infos(&servable),
            )));
        }
        let version = match target.label {
            Some(_) => Some(target.find(&state)?.id.version),
            None => signatures::version(state.inference.catalog(), target.model, target.version),
        };
        Ok(Reply::json(tfs::json::status(&view::version_states(
            state.inference.catalog(),
            target.model,
            version,
        )?)))
    }))
}

/// Answers POST: predict, classify and regress.
pub(super) async fn run(
    State(state): Shared<ModelsState>,
    Path(rest): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let mut ticket = state.starter.start(PROTOCOL, &headers, || traced(&rest));
    if let Ok(ServingPath { verb: Some(ServingVerb::Examples(method)), .. }) = parse(&rest) {
        ticket = ticket.for_method(match method {
            ExampleMethod::Classify => "Classify",
            ExampleMethod::Regress => "Regress",
        });
    }
    let answered = answer(&state, &mut ticket, &rest, &headers, body).await;
    let answered = answered.inspect_err(|error| ticket.fail(error));
    let reply = reply(answered.map(|reply| reply.with_clock(ticket.into_encoded())));
    match parse(&rest) {
        Ok(ServingPath { verb: None, .. }) => wrong_method(reply, "GET"),
        _ => reply,
    }
}

/// Returns the call to the path after `/v1/models/` for its trace.
fn traced(rest: &str) -> TracedCall {
    let verb = parse(rest).ok().and_then(|target| target.verb);
    let route = match verb {
        Some(ServingVerb::Predict) => "/v1/models/{model}:predict",
        Some(ServingVerb::Examples(ExampleMethod::Classify)) => "/v1/models/{model}:classify",
        Some(ServingVerb::Examples(ExampleMethod::Regress)) => "/v1/models/{model}:regress",
        None => "/v1/models/{model}",
    };
    TracedCall::Http { route, path: format!("/v1/models/{rest}") }
}

/// Returns the reply of `result`. TensorFlow Serving answers 400 if the state of a model forbids a
/// request.
fn reply(result: Result<Reply>) -> Reply {
    result.unwrap_or_else(|error| match error.kind() {
        ErrorKind::FailedPrecondition => Reply::error(&error).with_status(StatusCode::BAD_REQUEST),
        _ => Reply::error(&error),
    })
}

/// Turns `reply` into a 405 answer that lists the `allowed` method.
fn wrong_method(reply: Reply, allowed: &'static str) -> Reply {
    reply
        .with_status(StatusCode::METHOD_NOT_ALLOWED)
        .with_header(header::ALLOW, HeaderValue::from_static(allowed))
}

/// A request that was read and admitted, and the version that answers it.
struct AdmittedTfsRequest {
    verb: ServingVerb,
    timeout: Option<Duration>,
    route: Route,
    body: Bytes,
    permit: OwnedSemaphorePermit,
}

/// Answers a POST under `/v1/models/`. Reads its body, and runs the call that its path names. A
/// failure before the run is counted here.
async fn answer(
    state: &ModelsState,
    ticket: &mut RequestTicket,
    rest: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<Reply> {
    let admitted = async {
        state.requests.check_room()?;
        let target = parse(rest)?;
        let Some(verb) = target.verb else {
            let path = format!("/v1/models/{rest}");
            return Err(Error::invalid(format!(
                "{path} does not take POST; did you mean {path}:predict?"
            )));
        };
        let client = client_timeout(headers)?;
        let key = request_key::of_headers(headers)?;
        // A request to an unknown model is refused before its body is read. The version is chosen
        // afterwards, so that a slow upload holds neither a version nor room of a candidate.
        target.find(state)?;
        let body = state.requests.read_body(headers, body).await?;
        ticket.mark(Moment::BodyComplete);
        ticket.count_from_now();
        let permit = state.requests.admit()?;
        let route = target.route(state, key.as_ref())?;
        // Requests of this protocol have no priority.
        let timeout = client.or_else(|| default_timeout(route.servable.schedule(), 0));
        let timeout = timeout.into_iter().chain(state.rest_timeout).min();
        Ok(AdmittedTfsRequest { verb, timeout, route, body, permit })
    };
    let AdmittedTfsRequest { verb, timeout, route, body, permit: _permit } =
        admitted.await.inspect_err(|error| state.inference.reject(ticket, error))?;
    let Route { servable, rollout } = route;
    let call = TfsCall { state, ticket, servable, rollout, timeout, body };
    match verb {
        ServingVerb::Predict => call.predict().await,
        ServingVerb::Examples(method) => call.run_examples(method).await,
    }
}

/// Returns the time limit in the header `Grpc-Timeout`, in gRPC's form, or `None` without this
/// header.
///
/// # Errors
/// `InvalidArgument` for a header in another form.
fn client_timeout(headers: &HeaderMap) -> Result<Option<Duration>> {
    if !headers.contains_key(TIMEOUT) {
        return Ok(None);
    }
    let limit = grpc::timeout(headers).ok_or_else(|| {
        Error::invalid(
            "the header Grpc-Timeout takes up to eight digits and a unit, as in 250m or 2S",
        )
    })?;
    Ok(Some(limit))
}

/// A request whose version was found, and which was admitted.
struct TfsCall<'a> {
    state: &'a ModelsState,
    ticket: &'a RequestTicket,
    /// The version under its default signature.
    servable: Arc<Servable>,
    rollout: Option<RolloutPart>,
    timeout: Option<Duration>,
    body: Bytes,
}

impl TfsCall<'_> {
    /// Counts a request that could not be decoded, and names its version.
    fn refuse<T>(&self, outcome: Result<T>) -> Result<T> {
        let id = &self.servable.id;
        outcome
            .map_err(|error| error.context(id))
            .inspect_err(|error| self.state.inference.reject_version(self.ticket, id, error))
    }

    /// Decodes a predict request, runs the model, and encodes the outputs.
    async fn predict(self) -> Result<Reply> {
        let TfsCall { state, ticket, .. } = self;
        let tensors = TensorBody::new(self.body.clone(), None, self.servable.signature());
        let model = self.servable.clone();
        let check_method = state.tfs_method_check;
        let parse = move |body| {
            let name = tfs::json::signature_name(&body)?;
            let servable = signatures::for_predict(model, &name, check_method)?;
            let request = tfs::json::parse_predict(&body, servable.signature())?;
            Ok((servable, request))
        };
        let parsed = parse_tensors(&state.requests, tensors, parse).await;
        let ((servable, mut request), held) = self.refuse(parsed)?;
        let timeout = self.timeout;
        let rollout = self.rollout.clone();
        ticket.mark(Moment::Decoded);
        // The tensors share the parts of the body that they need.
        drop(self);
        let ranks = tfs::adapt_ranks(servable.signature(), &mut request.inputs);
        let call = InferenceRequest {
            servable: servable.clone(),
            inputs: request.inputs,
            outputs: Vec::new(),
            timeout,
            priority: 0,
            rollout,
        };
        let mut answer = state.inference.infer(ticket, call).await?;
        ranks.restore(servable.signature(), &mut answer.outputs);
        let text = tfs::json::predict_bytes_max(&answer.outputs, request.form);
        let memory = text as u64 + tensor_bytes(&answer.outputs);
        let write = move || tfs::json::predict_response(&answer.outputs, request.form);
        let (body, held) =
            write_answer(&state.requests, held, AnswerSize { text, memory }, write).await?;
        Ok(Reply::json(body).with_reservation(&state.requests, held))
    }

    /// Decodes a request with examples, runs the model, and encodes its result.
    async fn run_examples(self, method: ExampleMethod) -> Result<Reply> {
        let TfsCall { state, ticket, .. } = self;
        let parse =
            |body| Ok((tfs::json::signature_name(&body)?, tfs::json::parse_examples(&body)?));
        let large = self.body.len() > INLINE_BYTES_MAX;
        let body = TensorBody::of_examples(self.body.clone());
        let parsed = parse_tensors(&state.requests, body, parse).await;
        let ((signature, examples), held) = self.refuse(parsed)?;
        let plan = self.refuse(ExamplePlan::new(
            &self.servable,
            &signature,
            method,
            state.tfs_method_check,
        ))?;
        let servable = self.servable.clone();
        let timeout = self.timeout;
        let rollout = self.rollout.clone();
        drop(self);
        let examples = Arc::new(examples);
        state.inference.count_examples(ticket, &servable.id.model, examples.count());
        let call = ExampleCall {
            requests: &state.requests,
            inference: &state.inference,
            ticket,
            servable,
            rollout,
            examples,
            timeout,
            large,
        };
        let (result, held) = call.run(plan, held).await?;
        drop(call);
        let text = tfs::json::result_text_bytes_max(&result);
        // A label or a score takes fewer bytes in the result than twice its text.
        let size = AnswerSize { text, memory: 3 * text as u64 };
        let write = move || Ok(tfs::json::result_response(&result));
        let (body, held) = write_answer(&state.requests, held, size, write).await?;
        Ok(Reply::json(body).with_reservation(&state.requests, held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let plain =
            ServingPath { model: "m", version: None, label: None, verb: None, metadata: false };
        assert_eq!(parse("m").unwrap(), plain);
        assert_eq!(parse("m:Predict").unwrap().verb, Some(ServingVerb::Predict));
        assert_eq!(parse("m/versions/12:predict").unwrap().version, Some(12));
        assert_eq!(parse("m/labels/stable").unwrap().label, Some("stable"));
        assert!(parse("m/versions/3/metadata").unwrap().metadata);
        assert!(parse("m/versions/x").is_err());
        assert!(parse("m/elsewhere").is_err());
        assert!(parse(":predict").is_err());
        for malformed in [
            "",
            "m/elsewhere",
            "m/versions/x",
            "m/versions/18446744073709551615",
            "m/metadata:predict",
            "m/",
        ] {
            assert_eq!(
                parse(malformed).unwrap_err().kind(),
                ErrorKind::InvalidArgument,
                "{malformed}"
            );
        }
    }
}
