//! Messages of etcd's JSON gateway.
//!
//! The gateway writes 64-bit integers as text, leaves out fields that are zero, and encodes keys
//! and values in base64.

use base::{Error, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{EtcdEntry, LeaseId};

/// gRPC codes in error answers.
const CODE_DEADLINE_EXCEEDED: i64 = 4;
const CODE_NOT_FOUND: i64 = 5;
const CODE_PERMISSION_DENIED: i64 = 7;
const CODE_RESOURCE_EXHAUSTED: i64 = 8;
const CODE_UNAVAILABLE: i64 = 14;
const CODE_UNAUTHENTICATED: i64 = 16;

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
    /// Returns the key as it is in etcd: the order of keys is that of their bytes.
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
    let unreadable = |error| Error::data_loss(format!("an answer of etcd is no base64 ({error})"));
    STANDARD.decode(text).map_err(unreadable)
}

/// Encodes a key or a value.
pub(super) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Builds a transaction that carries out `operation` if the key's revision of creation is
/// `revision`; 0 is the revision of an absent key.
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

/// Builds the range of all keys that begin with `prefix`.
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

/// Builds the error of an answer that is not 200.
pub(super) fn refusal(address: &str, status: u16, body: &[u8]) -> Error {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else {
        return match status {
            404 => Error::precondition(format!(
                "{address} does not have etcd's JSON gateway below /v3; use etcd 3.4 or newer, \
                 without --enable-grpc-gateway=false"
            )),
            _ => Error::unavailable(format!("etcd at {address} answers with status {status}")),
        };
    };
    refused(address, &answer)
}

/// Builds the error of an error object: `code` or `grpc_code`, and `message`.
pub(super) fn refused(address: &str, answer: &Value) -> Error {
    let code = ["code", "grpc_code"].iter().find_map(|name| answer.get(name)?.as_i64());
    let text = ["message", "error"].iter().find_map(|name| answer.get(name)?.as_str());
    let message = format!("etcd at {address}: {}", text.unwrap_or("no reason is given"));
    match code {
        Some(CODE_NOT_FOUND) => Error::not_found(message),
        Some(CODE_UNAVAILABLE | CODE_DEADLINE_EXCEEDED) => Error::unavailable(message),
        Some(CODE_RESOURCE_EXHAUSTED) => Error::exhausted(message),
        Some(CODE_PERMISSION_DENIED | CODE_UNAUTHENTICATED) => Error::denied(format!(
            "{message}; Millpond has no user in etcd: use an etcd without authentication"
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
    fn ends_of_prefixes() {
        assert_eq!(range_end("a/"), b"a0");
        // The last character is encoded as F4 8F BF BF.
        assert_eq!(range_end("a\u{10ffff}"), [b'a', 0xf4, 0x8f, 0xbf, 0xc0]);
        assert_eq!(range_end(""), [0]);
    }

    #[test]
    fn refusals_have_a_kind_and_the_reason() {
        let cases: [(u16, &str, ErrorKind); 7] = [
            (404, "Not Found", ErrorKind::FailedPrecondition),
            (502, "<html>", ErrorKind::Unavailable),
            (404, r#"{"error":"gone","message":"gone","code":5}"#, ErrorKind::NotFound),
            (503, r#"{"code":14,"message":"no leader","details":[]}"#, ErrorKind::Unavailable),
            (429, r#"{"code":8,"message":"full"}"#, ErrorKind::ResourceExhausted),
            (401, r#"{"code":16,"message":"token"}"#, ErrorKind::PermissionDenied),
            (400, r#"{"grpc_code":3,"message":"key"}"#, ErrorKind::Internal),
        ];
        for (status, body, kind) in cases {
            let error = refusal("a:1", status, body.as_bytes());
            assert_eq!(error.kind(), kind, "{body}");
            assert!(error.message().contains("a:1"), "{error}");
        }
        let error = refusal("a:1", 404, br#"{"message":"lease is gone","code":5}"#);
        assert_eq!(error.message(), "etcd at a:1: lease is gone");
    }
}
