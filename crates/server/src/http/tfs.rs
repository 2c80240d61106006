//! TensorFlow Serving's REST API: `/v1/models/NAME[/versions/N|/labels/L][:predict|/metadata]`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use base::{Error, ErrorKind, Result};
use engine::Servable;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use inference::{InferenceRequest, RequestTicket, tensor_bytes};
use protocol::tfs;
use transport::{Reply, Shared};

use super::tensors::{AnswerSize, TensorBody, parse_tensors, parse_version, write_answer};
use crate::models::ModelsState;
use crate::view;

const PROTOCOL: &str = "tfs-http";

/// The parts of a path.
#[derive(Debug, PartialEq, Eq)]
struct ServingPath<'a> {
    model: &'a str,
    version: Option<u64>,
    label: Option<&'a str>,
    /// The text after the colon, such as "predict".
    verb: Option<&'a str>,
    metadata: bool,
}

impl ServingPath<'_> {
    fn find(&self, state: &ModelsState) -> Result<Arc<Servable>> {
        state.inference.find(self.model, self.version, self.label)
    }
}

/// Returns the error for a malformed path, in TensorFlow Serving's words.
pub(super) fn malformed(path: &str) -> Error {
    Error::invalid(format!(
        "Malformed request: {path}; paths are /v1/models/NAME[/versions/N|/labels/L][:predict|/metadata]"
    ))
}

fn parse(rest: &str) -> Result<ServingPath<'_>> {
    let unknown = || malformed(&format!("/v1/models/{rest}"));
    let (path, verb) = match rest.rsplit_once(':') {
        Some((path, verb)) => (path, Some(verb)),
        None => (rest, None),
    };
    let (path, metadata) = match path.strip_suffix("/metadata") {
        Some(path) => (path, true),
        None => (path, false),
    };
    let segments: Vec<&str> = path.split('/').collect();
    let (model, version, label) = match segments.as_slice() {
        [model] => (*model, None, None),
        [model, "versions", version] => (*model, Some(version_number(version)?), None),
        [model, "labels", label] => (*model, None, Some(*label)),
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
    parse_version(text).and_then(|version| match i64::try_from(version) {
        Ok(_) => Ok(version),
        Err(_) => Err(Error::invalid(format!("\"{text}\" is not a version number"))),
    })
}

/// Answers GET: the status of versions, or the metadata.
pub(super) async fn read(State(state): Shared<ModelsState>, Path(rest): Path<String>) -> Reply {
    reply(parse(&rest).and_then(|target| {
        if let Some(verb) = target.verb {
            let error = Error::invalid(format!("{verb} takes POST"));
            return Ok(wrong_method(Reply::error(&error), "POST"));
        }
        if target.metadata {
            let servable = target.find(&state)?;
            return Ok(Reply::json(tfs::json::metadata(&servable.id, servable.signature())));
        }
        let version = match target.label {
            Some(_) => Some(target.find(&state)?.id.version),
            None => target.version,
        };
        Ok(Reply::json(tfs::json::status(&view::version_states(
            state.inference.catalog(),
            target.model,
            version,
        )?)))
    }))
}

/// Answers POST: predict. Classify and regress are not offered.
pub(super) async fn predict(
    State(state): Shared<ModelsState>,
    Path(rest): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let ticket = RequestTicket::start(PROTOCOL);
    let reply = reply(answer(&state, &ticket, &rest, &headers, body).await);
    match parse(&rest) {
        Ok(ServingPath { verb: None, .. }) => wrong_method(reply, "GET"),
        _ => reply,
    }
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

async fn answer(
    state: &ModelsState,
    ticket: &RequestTicket,
    rest: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<Reply> {
    let admitted = async {
        state.requests.check_room()?;
        let target = parse(rest)?;
        match target.verb {
            Some("predict") => {}
            Some(verb @ ("classify" | "regress")) => {
                return Err(Error::unimplemented(format!("{verb} is not offered; use predict")));
            }
            Some(verb) => {
                return Err(malformed(&format!(
                    "/v1/models/{rest}: there is no method \"{verb}\""
                )));
            }
            None => {
                let path = format!("/v1/models/{rest}");
                return Err(Error::invalid(format!(
                    "{path} does not take POST; did you mean {path}:predict?"
                )));
            }
        }
        let servable = target.find(state)?;
        let body = state.requests.read_body(headers, body).await?;
        let permit = state.requests.admit()?;
        Ok((permit, servable, body))
    };
    let (_permit, servable, body) =
        admitted.await.inspect_err(|error| state.inference.reject(ticket, error))?;
    let tensors = TensorBody::new(body, None, servable.signature());
    let model = servable.clone();
    let parse = move |body| tfs::json::parse_predict(&body, model.signature());
    let (mut request, held) = parse_tensors(&state.requests, tensors, parse)
        .await
        .map_err(|error| error.context(&servable.id))
        .inspect_err(|error| state.inference.reject_version(ticket, &servable.id, error))?;
    let ranks = tfs::adapt_ranks(servable.signature(), &mut request.inputs);
    let call = InferenceRequest {
        servable: servable.clone(),
        inputs: request.inputs,
        outputs: Vec::new(),
        timeout: state.rest_timeout,
        priority: 0,
    };
    let mut answer = state.inference.infer(ticket, call).await?;
    ranks.restore(servable.signature(), &mut answer.outputs);
    let text = protocol::text_bytes_max(&answer.outputs);
    let memory = text as u64 + tensor_bytes(&answer.outputs);
    let write = move || tfs::json::predict_response(&answer.outputs, request.form);
    let (body, held) =
        write_answer(&state.requests, held, AnswerSize { text, memory }, write).await?;
    Ok(Reply::json(body).with_reservation(&state.requests, held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let plain =
            ServingPath { model: "m", version: None, label: None, verb: None, metadata: false };
        assert_eq!(parse("m").unwrap(), plain);
        assert_eq!(parse("m:predict").unwrap().verb, Some("predict"));
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
