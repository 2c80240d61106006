//! Messages of etcd's JSON gateway.
//!
//! The gateway writes 64-bit integers as text, leaves out fields that are zero, and encodes keys
//! and values in base64.

use std::error::Error as StdError;
use std::fmt;

use base::{Error, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderValue;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{EtcdEntry, LeaseId};

/// gRPC codes in error answers.
pub(super) const CODE_INVALID_ARGUMENT: i64 = 3;
const CODE_DEADLINE_EXCEEDED: i64 = 4;
const CODE_NOT_FOUND: i64 = 5;
const CODE_PERMISSION_DENIED: i64 = 7;
const CODE_RESOURCE_EXHAUSTED: i64 = 8;
pub(super) const CODE_FAILED_PRECONDITION: i64 = 9;
const CODE_UNAVAILABLE: i64 = 14;
const CODE_UNAUTHENTICATED: i64 = 16;

/// Maximum number of characters of an answer without JSON that an error shows.
const TEXT_CHARS_MAX: usize = 200;
/// Start of all keys of Millpond.
const KEYS: &str = "millpond";
/// Part of the error of an etcd whose database has reached its maximum size.
const NO_SPACE: &str = "database space exceeded";
/// Remedy for an etcd with users.
const SET_USER: &str = "set MILLPOND_ETCD_USER and MILLPOND_ETCD_PASSWORD";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AnswerHeader {
    #[serde(deserialize_with = "int64")]
    pub(super) revision: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseAnswer {
    #[serde(rename = "ID", deserialize_with = "int64")]
    pub(super) id: i64,
    #[serde(rename = "TTL", deserialize_with = "int64")]
    pub(super) ttl: i64,
}

/// One message of the keep-alive stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeepAliveAnswer {
    pub(super) result: Option<LeaseAnswer>,
    pub(super) error: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TransactionAnswer {
    pub(super) header: AnswerHeader,
    pub(super) succeeded: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RangeAnswer {
    pub(super) header: AnswerHeader,
    pub(super) kvs: Vec<KeyValue>,
    pub(super) more: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    key: String,
    value: String,
    #[serde(deserialize_with = "int64")]
    create_revision: i64,
    #[serde(deserialize_with = "int64")]
    lease: i64,
}

impl KeyValue {
    /// Returns the bytes of the key. etcd orders keys by their bytes.
    pub(super) fn key(&self) -> Result<Vec<u8>> {
        decoded(&self.key)
    }

    pub(super) fn decode(&self) -> Result<EtcdEntry> {
        Ok(EtcdEntry {
            key: String::from_utf8_lossy(&self.key()?).into_owned(),
            value: Bytes::from(decoded(&self.value)?),
            create_revision: self.create_revision,
            lease: LeaseId(self.lease),
        })
    }
}

fn decoded(text: &str) -> Result<Vec<u8>> {
    let unreadable = |error| Error::data_loss(format!("an answer of etcd is not base64 ({error})"));
    STANDARD.decode(text).map_err(unreadable)
}

/// Encodes a key or a value.
pub(super) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Builds a transaction that carries out `operation` if the key was created at `revision`. An
/// absent key has the revision 0.
pub(super) fn if_created(key: &str, revision: i64, operation: Value) -> Value {
    json!({
        "compare": [{
            "key": encoded(key.as_bytes()),
            "target": "CREATE",
            "result": "EQUAL",
            "create_revision": revision.to_string(),
        }],
        "success": [operation],
    })
}

/// Builds a transaction that carries out `operation` if the key has this value.
pub(super) fn if_value(key: &str, value: &[u8], operation: Value) -> Value {
    json!({
        "compare": [{
            "key": encoded(key.as_bytes()),
            "target": "VALUE",
            "result": "EQUAL",
            "value": encoded(value),
        }],
        "success": [operation],
    })
}

/// Returns the end of the range of all keys that begin with `prefix`.
pub(super) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // The end of all keys.
    vec![0]
}

/// The cause of an error: etcd does not accept the token of the request.
#[derive(Debug)]
struct TokenRefused;

impl fmt::Display for TokenRefused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the token is invalid")
    }
}

impl StdError for TokenRefused {}

/// Returns true if a request was refused because its token ended or the users have changed. etcd
/// has then not carried it out.
pub(super) fn is_token_refused(error: &Error) -> bool {
    error.source().is_some_and(|cause| cause.is::<TokenRefused>())
}

/// Reads the answer to a login: a token in the form of a header.
pub(super) fn token(address: &str, body: &[u8]) -> Result<HeaderValue> {
    #[derive(Deserialize)]
    struct LoginAnswer {
        token: String,
    }
    // The answer is a secret: the error has no part of it.
    let unreadable = || Error::unavailable(format!("the login at etcd {address} has no token"));
    let answer: LoginAnswer = serde_json::from_slice(body).map_err(|_| unreadable())?;
    let mut token = HeaderValue::try_from(answer.token).map_err(|_| unreadable())?;
    token.set_sensitive(true);
    Ok(token)
}

/// Reads the first message of an answer, which answers the only request. A stream has one message a
/// line.
pub(super) fn message<A: DeserializeOwned>(address: &str, body: &[u8]) -> Result<A> {
    let mut messages = serde_json::Deserializer::from_slice(body).into_iter::<A>();
    let unreadable = |reason: String| {
        Error::unavailable(format!("the answer of etcd at {address} is unreadable ({reason})"))
    };
    match messages.next() {
        Some(message) => message.map_err(|error| unreadable(error.to_string())),
        None => Err(unreadable("it is empty".to_owned())),
    }
}

/// Builds the error of an answer that is not 200.
pub(super) fn refusal(address: &str, status: u16, body: &[u8]) -> Error {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else {
        let text: String = String::from_utf8_lossy(body).chars().take(TEXT_CHARS_MAX).collect();
        return match status {
            400 if text.contains("CommonName of client") => Error::precondition(format!(
                "etcd at {address} has users, and its JSON gateway refuses certificates with a common name then; give \
                 one without it in --cluster-etcd-cert"
            )),
            404 => Error::precondition(format!(
                "{address} does not have etcd's JSON gateway below /v3; use etcd 3.4 or newer, \
                 without --enable-grpc-gateway=false"
            )),
            _ => Error::unavailable(format!(
                "etcd at {address} answers with status {status}: {}",
                text.trim()
            )),
        };
    };
    refused(address, &answer)
}

/// Returns the gRPC code of an error object.
pub(super) fn code(answer: &Value) -> Option<i64> {
    ["code", "grpc_code"].iter().find_map(|name| answer.get(name)?.as_i64())
}

/// Builds the error of an error object: `code` or `grpc_code`, and `message`.
pub(super) fn refused(address: &str, answer: &Value) -> Error {
    let code = code(answer);
    let text = ["message", "error"].iter().find_map(|name| answer.get(name)?.as_str());
    let text = text.unwrap_or("no reason is given");
    let message = format!("etcd at {address}: {text}");
    // A token of the form JWT is refused with the second text after a change of the users.
    if code == Some(CODE_UNAUTHENTICATED) || text.contains("revision of auth store is old") {
        return Error::denied(message).with_source(TokenRefused);
    }
    match code {
        // A request without a token.
        Some(CODE_INVALID_ARGUMENT) if text.contains("user name is empty") => {
            Error::denied(format!("{message}; {SET_USER}"))
        }
        Some(CODE_NOT_FOUND) => Error::not_found(message),
        Some(CODE_UNAVAILABLE | CODE_DEADLINE_EXCEEDED) => Error::unavailable(message),
        Some(CODE_RESOURCE_EXHAUSTED) if text.contains(NO_SPACE) => Error::exhausted(format!(
            "{message}; compact and defragment etcd, or raise --quota-backend-bytes, and then run \
             `etcdctl alarm disarm`"
        )),
        Some(CODE_RESOURCE_EXHAUSTED) => Error::exhausted(message),
        Some(CODE_PERMISSION_DENIED) => Error::denied(format!(
            "{message}; grant the user of MILLPOND_ETCD_USER reading and writing keys that begin with {KEYS}"
        )),
        _ => Error::internal(message),
    }
}

fn int64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Int64 {
        Number(i64),
        Text(String),
    }
    match Option::<Int64>::deserialize(deserializer)? {
        None => Ok(0),
        Some(Int64::Number(number)) => Ok(number),
        Some(Int64::Text(text)) => text.parse().map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    #[test]
    fn integers_are_text_numbers_or_absent() {
        let read = |text: &str| serde_json::from_str::<LeaseAnswer>(text).unwrap();
        let lease = read(r#"{"header":{"revision":"3"},"ID":"1418812106508896773","TTL":"10"}"#);
        assert_eq!((lease.id, lease.ttl), (1_418_812_106_508_896_773, 10));
        assert_eq!(read(r#"{"ID":7,"TTL":null}"#).id, 7);
        assert_eq!(read(r#"{"ID":"7"}"#).ttl, 0);
        assert!(serde_json::from_str::<LeaseAnswer>(r#"{"ID":"x"}"#).is_err());
    }

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_after_it() {
        assert_eq!(range_end("a/"), b"a0");
        // The last character is encoded as F4 8F BF BF.
        assert_eq!(range_end("a\u{10ffff}"), [b'a', 0xf4, 0x8f, 0xbf, 0xc0]);
        assert_eq!(range_end(""), [0]);
    }

    #[test]
    fn refusals_have_a_kind_and_the_reason() {
        let cases: [(u16, &str, ErrorKind); 8] = [
            (404, "Not Found", ErrorKind::FailedPrecondition),
            (502, "<html>", ErrorKind::Unavailable),
            (404, r#"{"error":"gone","message":"gone","code":5}"#, ErrorKind::NotFound),
            (503, r#"{"code":14,"message":"no leader","details":[]}"#, ErrorKind::Unavailable),
            (429, r#"{"code":8,"message":"full"}"#, ErrorKind::ResourceExhausted),
            (401, r#"{"code":16,"message":"token"}"#, ErrorKind::PermissionDenied),
            (400, r#"{"grpc_code":3,"message":"key"}"#, ErrorKind::Internal),
            (400, r#"{"code":3,"message":"user name is empty"}"#, ErrorKind::PermissionDenied),
        ];
        for (status, body, kind) in cases {
            let error = refusal("a:1", status, body.as_bytes());
            assert_eq!(error.kind(), kind, "{body}");
            assert!(error.message().contains("a:1"), "{error}");
        }
        let named = refusal("a:1", 400, b"CommonName of client sending a request is ignored");
        assert_eq!(named.kind(), ErrorKind::FailedPrecondition);
        assert!(named.message().contains("--cluster-etcd-cert"), "{named}");
        let plain = refusal("a:1", 400, b"Client sent an HTTP request to an HTTPS server.\n");
        assert!(
            plain
                .message()
                .ends_with("status 400: Client sent an HTTP request to an HTTPS server.")
        );
        let full = br#"{"code":8,"message":"etcdserver: mvcc: database space exceeded"}"#;
        let full = refusal("a:1", 429, full);
        assert_eq!(full.kind(), ErrorKind::ResourceExhausted);
        assert!(full.message().ends_with("run `etcdctl alarm disarm`"), "{full}");
        let error = refusal("a:1", 404, br#"{"message":"lease is gone","code":5}"#);
        assert_eq!(error.message(), "etcd at a:1: lease is gone");
    }

    #[test]
    fn refused_tokens_are_recognised() {
        let cases = [
            (401, r#"{"code":16,"message":"etcdserver: invalid auth token"}"#, true),
            (400, r#"{"code":3,"message":"etcdserver: revision of auth store is old"}"#, true),
            (403, r#"{"code":7,"message":"etcdserver: permission denied"}"#, false),
            (400, r#"{"code":3,"message":"etcdserver: user name is empty"}"#, false),
        ];
        for (status, body, refused) in cases {
            let error = refusal("a:1", status, body.as_bytes());
            assert_eq!(is_token_refused(&error), refused, "{body}");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        }
    }

    #[test]
    fn tokens_are_not_shown() {
        let token = token("a:1", br#"{"header":{},"token":"s3cret.5"}"#).unwrap();
        assert_eq!(token, "s3cret.5");
        assert!(!format!("{token:?}").contains("s3cret"));
        for body in [r#"{"token":"s3cret\n"}"#, "s3cret", "{}"] {
            let error = super::token("a:1", body.as_bytes()).unwrap_err();
            assert!(!error.message().contains("s3cret"), "{error}");
        }
    }
}
