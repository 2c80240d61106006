//! Responses in plain JSON, and answers of other nodes that are passed back.

use std::time::Duration;

use base::{Error, ErrorKind, Result};
use cluster_root::ReadCoverage;
use cluster_root::reads::message_of;
use http::{HeaderName, StatusCode, header};
use http_client::HttpAnswer;
use serde_json::{Value, json};
use transport::{FREE_BYTES_MAX, Reply, RequestResources, Reservation};

/// Headers of another node's answer that the client gets.
const PASSED_HEADERS: [HeaderName; 4] = [
    header::CONTENT_TYPE,
    header::CACHE_CONTROL,
    header::X_CONTENT_TYPE_OPTIONS,
    header::RETRY_AFTER,
];

/// Returns a response of JSON text. `reservation` is that of the answers from which the text was
/// made.
///
/// # Errors
/// Errors of the budget, if the text is larger than these answers.
pub(super) fn reserved(
    text: Vec<u8>,
    mut reservation: Reservation,
    requests: &RequestResources,
) -> Result<Reply> {
    let bytes = text.len() as u64;
    if bytes > FREE_BYTES_MAX {
        reservation.grow(bytes.saturating_sub(reservation.bytes()))?;
    }
    reservation.shrink_to(bytes);
    Ok(Reply::json(text).with_reservation(requests, reservation))
}

/// Adds the coverage to an answer in which shards are missing.
pub(super) fn with_coverage(mut answer: Value, coverage: ReadCoverage) -> Value {
    if !coverage.is_whole() {
        answer["partial"] = Value::Bool(true);
        answer["coverage"] = json!(coverage);
    }
    answer
}

/// Returns another node's answer as a response: its status, its body and the headers of
/// [`PASSED_HEADERS`].
///
/// # Errors
/// `Internal` for an invalid status; errors of the budget for the body.
pub(super) fn passed_back(answer: HttpAnswer, requests: &RequestResources) -> Result<Reply> {
    let status = StatusCode::from_u16(answer.status)
        .map_err(|error| Error::internal("a node's status").caused_by(error))?;
    let mut reservation = requests.memory.empty();
    reservation.cover(answer.body.len() as u64)?;
    let mut reply = Reply::body("application/octet-stream", answer.body).with_status(status);
    for name in PASSED_HEADERS {
        if let Some(value) = answer.headers.get(&name) {
            reply = reply.with_header(name, value.clone());
        }
    }
    Ok(reply.with_reservation(requests, reservation))
}

/// Returns the error of another node's answer with another status than 200, with its retry advice.
pub(super) fn error_of(answer: &HttpAnswer) -> Error {
    let message = message_of(&String::from_utf8_lossy(&answer.body));
    let kind = match answer.status {
        400 => ErrorKind::InvalidArgument,
        404 => ErrorKind::NotFound,
        409 => ErrorKind::FailedPrecondition,
        413 => ErrorKind::TooLarge,
        429 => ErrorKind::ResourceExhausted,
        501 => ErrorKind::Unimplemented,
        504 => ErrorKind::DeadlineExceeded,
        507 => ErrorKind::StorageFull,
        _ => ErrorKind::Unavailable,
    };
    let error = Error::new(kind, message);
    let advice = answer.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    match advice.and_then(|text| text.parse().ok()) {
        Some(seconds) => error.with_retry_after(Duration::from_secs(seconds)),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_nodes_keep_their_status() {
        // The others are failures of the node, and not the client's.
        let others = [401, 403, 408, 499, 500];
        let kinds = ErrorKind::ALL.into_iter().filter(|it| !others.contains(&it.http_status()));
        for kind in kinds {
            let answer = HttpAnswer {
                status: kind.http_status(),
                headers: http::HeaderMap::new(),
                body: r#"{"error":"why"}"#.into(),
            };
            let error = error_of(&answer);
            assert_eq!((error.kind().http_status(), error.message()), (answer.status, "why"));
        }
    }

    #[test]
    fn the_error_of_a_node_keeps_its_retry_advice() {
        for (advice, expected) in [("3", Some(Duration::from_secs(3))), ("soon", None)] {
            let headers = http::HeaderMap::from_iter([(
                header::RETRY_AFTER,
                http::HeaderValue::from_static(advice),
            )]);
            let answer = HttpAnswer { status: 429, headers, body: r#"{"error":"full"}"#.into() };
            assert_eq!(error_of(&answer).retry_after(), expected, "{advice}");
        }
    }

    #[test]
    fn missing_shards_are_named() {
        let whole = ReadCoverage { shards: 4, of: 4 };
        assert_eq!(with_coverage(json!({"a": 1}), whole), json!({"a": 1}));
        let part = with_coverage(json!({"a": 1}), ReadCoverage { shards: 3, of: 4 });
        let coverage = json!({"shards": 3, "of": 4});
        assert_eq!(part, json!({"a": 1, "partial": true, "coverage": coverage}));
    }
}
