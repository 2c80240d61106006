//! Qdrant's interface over gRPC. A call is answered by the route of the REST interface that does
//! the same, on one server and in a cluster.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use protocol::qdrant as pb;
use qdrant_grpc::{QdrantCall, RestRequest, RestResponse};
use serde_json::Value;
use tower::Service;
use transport::{CodecStep, Peer, RequestResources, Reservation};

use super::call::{SMALL_BYTES_MAX, timeout};
use super::response::{self, Response};
use super::status::GRPC_STATUS;
use super::{Request, messages};

/// gRPC's code for a call without valid credentials.
const UNAUTHENTICATED: u32 = 16;
/// Calls whose name can be taken. Status 409 of the others means that the state forbids the call.
const NAMING_CALLS: [&str; 2] = ["/qdrant.Collections/Create", "/qdrant.Collections/UpdateAliases"];
/// Messages above this size are converted on a codec thread.
const INLINE_BYTES_MAX: usize = 16 << 10;
/// Maximum bytes of a response of the REST interface, whose vectors have long numbers.
const REST_BYTES_MAX: usize = 256 << 20;
/// Bytes of memory for each byte of a response while it becomes a message. They are those of its
/// values and of the message.
const RESPONSE_GROWTH: u64 = 4;
/// Start of the error of a route that cannot read a body.
const UNREADABLE_JSON: &str = "the request's JSON: ";
/// Headers of a call that the route gets.
const PASSED_HEADERS: [HeaderName; 4] = [
    header::AUTHORIZATION,
    header::USER_AGENT,
    HeaderName::from_static("api-key"),
    HeaderName::from_static("traceparent"),
];
/// Trailer of a response that may lack points because of damage, or of shards that gave no answer.
const PARTIAL: HeaderName = HeaderName::from_static("millpond-partial");

/// Answers a call of Qdrant's interface by `routes`.
pub(super) async fn answer(
    requests: Arc<RequestResources>,
    routes: Router,
    request: Request,
) -> Response {
    match run(&requests, routes, request).await {
        Ok(response) => response,
        Err(failure) => {
            let mut response = response::failed(&failure.error);
            if failure.unauthenticated {
                response.headers_mut().insert(GRPC_STATUS, HeaderValue::from(UNAUTHENTICATED));
            }
            response
        }
    }
}

/// Describes the server, as Qdrant's health check does.
pub(super) fn health() -> pb::HealthCheckReply {
    pb::HealthCheckReply {
        title: api_qdrant::title(crate::NAME, crate::VERSION),
        version: api_qdrant::INTERFACE_VERSION.to_owned(),
        commit: None,
    }
}

/// Why a call has no result.
struct CallFailure {
    error: Error,
    unauthenticated: bool,
}

impl From<Error> for CallFailure {
    fn from(error: Error) -> CallFailure {
        CallFailure { error, unauthenticated: false }
    }
}

/// A call as a request, and the memory that its body takes.
struct ConvertedCall {
    request: RestRequest,
    reservation: Reservation,
}

/// Converts a call to a request of the REST interface, runs its route, and converts the response.
async fn run(
    requests: &Arc<RequestResources>,
    mut routes: Router,
    request: Request,
) -> std::result::Result<Response, CallFailure> {
    let (head, body) = request.into_parts();
    let call = QdrantCall::of(head.uri.path())?;
    let conflict = conflict_kind(head.uri.path());
    let coding = messages::coding(&head.headers)?;
    let limit = if call.large { requests.limits.body_bytes_max } else { SMALL_BYTES_MAX };
    let frame = messages::frame(requests, body, limit).await?;
    let message = messages::message(requests, coding, frame).await?;
    if message.len() > limit {
        let error = format!(
            "the message is larger than {limit} bytes when decompressed, the limit of this call; \
             send less"
        );
        return Err(Error::too_large(error).into());
    }
    let ConvertedCall { request, reservation } = convert(requests, call, message).await?;
    let request = http_request(request, &head.headers, head.extensions.get().copied())?;
    // A router is always ready and never fails.
    let Ok(answered) = within(timeout(&head.headers), routes.call(request)).await?;
    drop(reservation);
    let (head, body) = answered.into_parts();
    let json = to_bytes(body, REST_BYTES_MAX).await.map_err(|error| {
        Error::unavailable("the response of the route ended early").caused_by(error)
    })?;
    if !head.status.is_success() {
        return Err(failure(head.status, &head.headers, &json, conflict));
    }
    encode(requests, call, json).await.map_err(CallFailure::from)
}

/// Returns the kind of status 409 of the call with this path. Two kinds share the status.
fn conflict_kind(path: &str) -> ErrorKind {
    if NAMING_CALLS.contains(&path) {
        ErrorKind::AlreadyExists
    } else {
        ErrorKind::FailedPrecondition
    }
}

/// Converts a message, on a codec thread if it is large.
async fn convert(
    requests: &RequestResources,
    call: QdrantCall,
    message: Bytes,
) -> Result<ConvertedCall> {
    let mut reservation = requests.memory.empty();
    let large = message.len() > INLINE_BYTES_MAX;
    let convert = move || {
        reservation.cover(call.bytes_max(&message)?)?;
        let request = call.request(message)?;
        reservation.shrink_to(request.body.len() as u64);
        Ok(ConvertedCall { request, reservation })
    };
    requests.codec.run_if(large, CodecStep::Decode, convert).await
}

/// Returns the request of a route, with the headers of the call that identify its client.
fn http_request(
    request: RestRequest,
    headers: &HeaderMap,
    peer: Option<Peer>,
) -> Result<http::Request<Body>> {
    let mut built = http::Request::new(Body::from(request.body));
    *built.method_mut() = request.method;
    *built.uri_mut() = request
        .path
        .parse::<http::Uri>()
        .map_err(|error| Error::invalid("a name is too long for a path").with_source(error))?;
    for name in PASSED_HEADERS {
        if let Some(value) = headers.get(&name) {
            built.headers_mut().insert(name, value.clone());
        }
    }
    let json = HeaderValue::from_static("application/json");
    built.headers_mut().insert(header::CONTENT_TYPE, json);
    if let Some(peer) = peer {
        built.extensions_mut().insert(peer);
    }
    Ok(built)
}

/// Waits for `answer` within the time limit of the call.
///
/// # Errors
/// `DeadlineExceeded` after it. A change may still be made then.
async fn within<T>(limit: Option<Duration>, answer: impl Future<Output = T>) -> Result<T> {
    let Some(limit) = limit else { return Ok(answer.await) };
    let late = |_| Error::deadline("the call took longer than its deadline; a change may be made");
    tokio::time::timeout(limit, answer).await.map_err(late)
}

/// Returns the failure for a response whose status is not success. `conflict` is the kind of status
/// 409, which two kinds share.
fn failure(
    status: StatusCode,
    headers: &HeaderMap,
    json: &[u8],
    conflict: ErrorKind,
) -> CallFailure {
    let body: Value = serde_json::from_slice(json).unwrap_or_default();
    let message = body.pointer("/status/error").or_else(|| body.get("error"));
    let message = without_json(message.and_then(Value::as_str).unwrap_or("the request failed"));
    let kind = match status.as_u16() {
        400 | 422 => ErrorKind::InvalidArgument,
        401 | 403 => ErrorKind::PermissionDenied,
        404 => ErrorKind::NotFound,
        405 | 501 => ErrorKind::Unimplemented,
        408 => ErrorKind::ClientTimeout,
        409 => conflict,
        413 => ErrorKind::TooLarge,
        429 => ErrorKind::ResourceExhausted,
        503 => ErrorKind::Unavailable,
        504 => ErrorKind::DeadlineExceeded,
        507 => ErrorKind::StorageFull,
        _ => ErrorKind::Internal,
    };
    let mut error = Error::new(kind, message);
    let after =
        headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    if let Some(seconds) = after {
        error = error.with_retry_after(Duration::from_secs(seconds));
    }
    CallFailure { error, unauthenticated: status == StatusCode::UNAUTHORIZED }
}

/// Returns the message of a route's error without what it says about JSON, which the client has not
/// sent. The path of the field stays.
fn without_json(message: &str) -> String {
    let Some(reason) = message.strip_prefix(UNREADABLE_JSON) else {
        return message.replacen("Validation error in JSON body", "Validation error in body", 1);
    };
    let place = reason.rsplit_once(" at line ").filter(|(_, place)| place.contains(" column "));
    place.map_or(reason, |(reason, _)| reason).to_owned()
}

/// Returns the response with the message for JSON, made on a codec thread if it is large.
async fn encode(
    requests: &Arc<RequestResources>,
    call: QdrantCall,
    json: Bytes,
) -> Result<Response> {
    let mut reservation = requests.memory.empty();
    let large = json.len() > INLINE_BYTES_MAX;
    let convert = move || {
        reservation.cover(RESPONSE_GROWTH * json.len() as u64)?;
        let message = call.response(RestResponse::new(&json))?;
        Ok((message, reservation))
    };
    let (message, reservation) = requests.codec.run_if(large, CodecStep::Encode, convert).await?;
    let mut response = response::encoded(requests, &message.bytes, reservation)?;
    if message.partial {
        response.headers_mut().insert(PARTIAL, HeaderValue::from_static("true"));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_name_and_a_forbidden_call_differ() {
        for path in NAMING_CALLS {
            assert!(QdrantCall::of(path).is_ok(), "{path}");
            assert_eq!(conflict_kind(path), ErrorKind::AlreadyExists, "{path}");
        }
        assert_eq!(conflict_kind("/qdrant.Points/Upsert"), ErrorKind::FailedPrecondition);
    }

    #[test]
    fn a_response_full_of_long_numbers_is_read() {
        let number = serde_json::to_string(&-1.234_567_9e-5_f32).unwrap();
        // A comma follows it.
        let text = (number.len() + 1) * api_qdrant::RESPONSE_NUMBERS_MAX;
        assert!(number.len() > 12 && text < REST_BYTES_MAX, "{number}");
    }

    #[test]
    fn errors_name_the_field_and_no_json() {
        let unreadable = "the request's JSON: points[0].id: \"at line 1\" is not a point id";
        let wanted = "points[0].id: \"at line 1\" is not a point id";
        assert_eq!(without_json(&format!("{unreadable} at line 1 column 22")), wanted);
        assert_eq!(without_json(unreadable), wanted);
        let limits = "Validation error in JSON body: [limit: value 0 invalid]";
        assert_eq!(without_json(limits), "Validation error in body: [limit: value 0 invalid]");
        assert_eq!(without_json("there is no collection \"c\""), "there is no collection \"c\"");
        let error = api_qdrant::json::parse::<usize>(b"\"x\"").unwrap_err();
        assert!(error.message().starts_with(UNREADABLE_JSON), "{error}");
    }

    #[test]
    fn statuses_of_routes_become_codes() {
        let body = br#"{"status":{"error":"collection \"c\" already exists"},"time":0.0}"#;
        let exists = ErrorKind::AlreadyExists;
        let kind =
            |status: StatusCode| failure(status, &HeaderMap::new(), body, exists).error.kind();
        assert_eq!(kind(StatusCode::CONFLICT), ErrorKind::AlreadyExists);
        assert_eq!(kind(StatusCode::UNPROCESSABLE_ENTITY), ErrorKind::InvalidArgument);
        assert_eq!(kind(StatusCode::METHOD_NOT_ALLOWED), ErrorKind::Unimplemented);
        for known in ErrorKind::ALL {
            let status = StatusCode::from_u16(known.http_status()).unwrap();
            let other = b"{\"error\":\"why\"}";
            let failure = failure(status, &HeaderMap::new(), other, exists);
            assert_eq!(failure.error.message(), "why");
            if ![499, 500, 409].contains(&known.http_status()) {
                assert_eq!(failure.error.kind(), known);
            }
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("7"));
        let refused = failure(StatusCode::UNAUTHORIZED, &headers, b"not JSON", exists);
        assert!(refused.unauthenticated);
        assert_eq!(refused.error.retry_after(), Some(Duration::from_secs(7)));
    }
}
