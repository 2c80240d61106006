//! Requests to nodes and their answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use http_client::{HttpAnswer, HttpClient, HttpRequest, was_not_sent};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use transport::{CodecStep, INLINE_BYTES_MAX, RequestResources};

use super::read_memory::AnswerMemory;

pub(super) const READ_PATH: &str = "/cluster/v1/read";
/// Path of writes.
pub(super) const WRITE_PATH: &str = "/cluster/v1/write";

/// Retry advice for a write that an owner refused because the disks of all holders are full.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Error of a node that does not accept the key of this root. The node's own text is for clients,
/// whose key is right.
const KEY_REFUSED: &str =
    "the node refuses the key of this root: start all nodes of the cluster with the same --api-key";

/// A read of some shards of one node.
#[derive(Serialize)]
pub(super) struct NodeReadBody<'a> {
    /// Id of the collection.
    pub(super) collection: &'a str,
    /// Shards, each with the entry that must be applied.
    pub(super) shards: BTreeMap<u32, u64>,
    /// Path below the collection.
    pub(super) path: &'a str,
    /// Qdrant's body.
    pub(super) body: &'a RawValue,
    pub(super) timeout_ms: u64,
    pub(super) strong: bool,
}

/// Results of a node's shards, each as JSON text or the shard's error.
pub(super) struct NodeReadAnswer {
    pub(super) shards: ShardResultTexts,
    pub(super) memory: AnswerMemory,
}

/// Results of shards as JSON text, or errors.
pub(super) type ShardResultTexts = BTreeMap<u32, Result<Box<RawValue>>>;

/// A node's answer, with the body of each shard as a `B`.
#[derive(Deserialize)]
struct AnswerText<B> {
    shards: BTreeMap<u32, ShardReplyText<B>>,
}

#[derive(Deserialize)]
struct ShardReplyText<B> {
    status: u16,
    body: B,
}

#[derive(Deserialize)]
struct EnvelopeText {
    result: Box<RawValue>,
}

/// Returns a node's part of the time until `deadline`, in milliseconds. The rest is for the
/// transfer of the answer and the merge.
pub(super) fn timeout_ms(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    u64::try_from(left.as_millis() * 9 / 10).unwrap_or(u64::MAX).max(1)
}

/// Sends a read to a node.
///
/// # Errors
/// Errors of the connection and of `memory`; the node's error if it answers nothing.
pub(super) async fn read_node(
    client: HttpClient,
    requests: Arc<RequestResources>,
    address: String,
    body: Bytes,
    timeout: Duration,
    memory: AnswerMemory,
) -> Result<NodeReadAnswer> {
    let request = HttpRequest::post(READ_PATH, body);
    let answer = client.send_within(&address, request, timeout, &memory).await?;
    if answer.status != 200 {
        return Err(error_of(&answer).context(&address));
    }
    let large = answer.body.len() > INLINE_BYTES_MAX;
    let parse = move || parse_read(&answer.body);
    let shards = requests.codec.run_if(large, CodecStep::Decode, parse).await;
    let shards = shards.map_err(|error| error.context(&address))?;
    Ok(NodeReadAnswer { shards, memory })
}

/// Reads a node's answer to a read.
///
/// # Errors
/// `Internal` for another text than the expected JSON.
pub(super) fn parse_read(body: &[u8]) -> Result<ShardResultTexts> {
    results_in_one_pass(body).map_or_else(|| results_or_errors(body), Ok)
}

/// Reads an answer that has a result of every shard. Returns `None` for every other text.
fn results_in_one_pass(body: &[u8]) -> Option<ShardResultTexts> {
    // serde_json checks the encoding only of the parts that it returns.
    let text = std::str::from_utf8(body).ok()?;
    let answer: AnswerText<EnvelopeText> = serde_json::from_str(text).ok()?;
    let shards = answer.shards.into_iter();
    shards
        .map(|(shard, reply)| (reply.status == 200).then_some((shard, Ok(reply.body.result))))
        .collect()
}

/// Reads an answer in which shards may have failed. The status of a shard shows if its body is a
/// result or an error. So the bodies are parsed after the statuses.
///
/// # Errors
/// As [`parse_read`].
fn results_or_errors(body: &[u8]) -> Result<ShardResultTexts> {
    let malformed =
        |error| Error::internal("a node's answer is not the expected JSON").caused_by(error);
    let answer: AnswerText<&RawValue> = serde_json::from_slice(body).map_err(malformed)?;
    let result = |reply: ShardReplyText<&RawValue>| match reply.status {
        200 => serde_json::from_str::<EnvelopeText>(reply.body.get())
            .map(|envelope| envelope.result)
            .map_err(malformed),
        status => Err(shard_error(status, reply.body.get())),
    };
    Ok(answer.shards.into_iter().map(|(shard, reply)| (shard, result(reply))).collect())
}

/// Returns true if another holder of the shard would refuse the request too.
pub fn is_final(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidArgument | ErrorKind::TooLarge | ErrorKind::Unimplemented
    )
}

/// Returns the error of a node's answer with another status than 200. A node does not refuse a
/// root's request for the client's mistakes, so every such error is one of the node.
fn error_of(answer: &HttpAnswer) -> Error {
    let message = message_of(&String::from_utf8_lossy(&answer.body));
    match answer.status {
        401 => Error::unavailable(KEY_REFUSED),
        429 => Error::exhausted(message),
        status => Error::unavailable(format!("status {status}: {message}")),
    }
}

/// Returns a shard's error in Qdrant's envelope.
fn shard_error(status: u16, body: &str) -> Error {
    let message = message_of(body);
    match status {
        400 | 422 => Error::invalid(message),
        413 => Error::too_large(message),
        429 => Error::exhausted(message),
        501 => Error::unimplemented(message),
        504 => Error::deadline(message),
        _ => Error::unavailable(format!("status {status}: {message}")),
    }
}

/// Returns the message of an error in Qdrant's envelope or of this server's.
pub fn message_of(body: &str) -> String {
    #[derive(Deserialize)]
    struct StatusText {
        error: String,
    }
    #[derive(Deserialize)]
    struct ErrorText {
        status: Option<StatusText>,
        error: Option<String>,
    }
    let parsed = serde_json::from_str::<ErrorText>(body).ok();
    let message = parsed.and_then(|body| body.status.map(|it| it.error).or(body.error));
    message.unwrap_or_else(|| body.chars().take(200).collect())
}

/// Outcome of a write request that is known.
pub(super) enum OwnerReply {
    /// The entry that has the operations.
    Made(u64),
    /// The owner refused the operations because of their condition. They are in no entry and never
    /// will be. Entries up to this one may have written the image.
    Conflict(u64),
    /// The owner refused the operations because the disks of all holders are full. They are in no
    /// entry and never will be.
    Full(Error),
    /// The operations are in no entry and never will be.
    NotMade {
        /// Name of the owner, if the node knows another one.
        owner: Option<String>,
        /// Reason.
        error: Error,
    },
}

#[derive(Default, Deserialize)]
struct WriteAnswerText {
    entry: Option<u64>,
    conflict: Option<u64>,
    owner: Option<String>,
    /// False if it is certain that the operations were not written.
    made: Option<bool>,
}

/// Sends operations, which are JSON texts, to the owner of a shard.
///
/// # Errors
/// The node's refusal of the operations; `Unavailable` if the operations may have been written.
pub(super) async fn write_node(
    client: &HttpClient,
    address: &str,
    body: Bytes,
    timeout: Duration,
) -> Result<OwnerReply> {
    let answer = match client.post_for_small_answer(address, WRITE_PATH, body, timeout).await {
        Ok(answer) => answer,
        Err(error) if was_not_sent(&error) => {
            return Ok(OwnerReply::NotMade { owner: None, error });
        }
        Err(error) => return Err(unknown_outcome(&error)),
    };
    owner_reply(address, &answer)
}

/// Reads a node's answer to a write.
///
/// # Errors
/// As [`write_node`].
pub(super) fn owner_reply(address: &str, answer: &HttpAnswer) -> Result<OwnerReply> {
    let parsed = serde_json::from_slice::<WriteAnswerText>(&answer.body);
    let parsed = parsed.unwrap_or_default();
    if let (412, Some(entry)) = (answer.status, parsed.conflict) {
        return Ok(OwnerReply::Conflict(entry));
    }
    let text = || message_of(&String::from_utf8_lossy(&answer.body));
    let message = || format!("{address}: {}", text());
    match (answer.status, parsed.entry, parsed.made) {
        (200, Some(entry), _) => Ok(OwnerReply::Made(entry)),
        (409, ..) => {
            let error = Error::unavailable(format!("{address} does not own the shard"));
            Ok(OwnerReply::NotMade { owner: parsed.owner, error })
        }
        (429 | 503, _, Some(false)) => {
            let error = Error::unavailable(message());
            Ok(OwnerReply::NotMade { owner: None, error })
        }
        (400, ..) => Err(Error::invalid(message())),
        (401, ..) => Err(Error::unavailable(format!("{address}: {KEY_REFUSED}"))),
        (403, ..) => Err(Error::unavailable(message())),
        (413, ..) => Err(Error::too_large(message())),
        (501, ..) => Err(Error::unimplemented(message())),
        (507, _, Some(false)) => {
            let error = Error::storage_full(message()).with_retry_after(FULL_RETRY_AFTER);
            Ok(OwnerReply::Full(error))
        }
        (status, ..) => {
            let message = format!("{address}: status {status}: {}", text());
            Err(unknown_outcome(&Error::unavailable(message)))
        }
    }
}

fn unknown_outcome(error: &Error) -> Error {
    let message = format!("{error}; the write may have been made, or may still be: write it again");
    Error::unavailable(message).with_retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bodies of shards. Most are on the border between the two ways to read an answer.
    const BODIES: [&str; 14] = [
        r#"{"result":{"points":[{"id":1,"score":0.5}]},"status":"ok","time":0.1}"#,
        r#" { "time" : 1e5 , "result" : [ "\ud83d\ude00" , null ] } "#,
        r#"{"\u0072esult":"é"}"#,
        r#"{"result":"\ud800"}"#,
        r#"{"\ud800":0,"result":0}"#,
        r#"{"result":1,"result":2}"#,
        r#"{"status":{"error":"é"},"result":null}"#,
        r#"{"status":{"error":"why"},"time":0}"#,
        r#"{"error":"why"}"#,
        r#"["first"]"#,
        r#"["first","second"]"#,
        r#""text""#,
        "{}",
        "",
    ];

    fn reply() -> impl Strategy<Value = String> {
        let status =
            prop_oneof![4 => Just("200"), 1 => prop::sample::select(vec!["503", "422", "-1"])];
        let body = prop::sample::select(BODIES.to_vec());
        (status, body, any::<bool>()).prop_map(|(status, body, is_first)| {
            if is_first {
                format!(r#"{{"body":{body},"status":{status}}}"#)
            } else {
                format!(r#"{{"status":{status},"body":{body}}}"#)
            }
        })
    }

    fn texts(parsed: Result<ShardResultTexts>) -> Result<BTreeMap<u32, Result<String>>> {
        let text = |result: Result<Box<RawValue>>| result.map(|text| text.get().to_owned());
        parsed.map(|shards| shards.into_iter().map(|(shard, it)| (shard, text(it))).collect())
    }

    proptest! {
        #[test]
        fn one_pass_reads_the_results_of_two(
            replies in prop::collection::vec((0u32..4, reply()), 0..4),
            change in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let shards: Vec<String> =
                replies.iter().map(|(shard, reply)| format!("\"{shard}\":{reply}")).collect();
            let body = format!(r#"{{"shards":{{{}}},"rows":{{}}}}"#, shards.join(","));
            let mut body = body.into_bytes();
            if let Some((at, byte)) = change {
                let at = at.index(body.len());
                body[at] = byte;
            }
            prop_assert_eq!(texts(parse_read(&body)), texts(results_or_errors(&body)));
        }
    }

    #[test]
    fn an_answer_without_errors_is_read_in_one_pass() {
        let reply = format!(r#"{{"status":200,"body":{}}}"#, BODIES[0]);
        let whole = format!(r#"{{"shards":{{"0":{reply},"1":{reply}}}}}"#);
        assert_eq!(results_in_one_pass(whole.as_bytes()).unwrap().len(), 2);
        let refused = whole.replacen("200", "503", 1);
        assert!(results_in_one_pass(refused.as_bytes()).is_none());
        assert!(parse_read(refused.as_bytes()).unwrap()[&0].is_err());
    }

    #[test]
    fn a_conflict_is_certainly_not_written() {
        let reply = |status, body: &'static str| {
            let headers = http::HeaderMap::new();
            owner_reply("a:1", &HttpAnswer { status, headers, body: body.into() })
        };
        assert!(matches!(reply(412, r#"{"conflict":7}"#), Ok(OwnerReply::Conflict(7))));
        for (status, body) in [(412, "{}"), (500, r#"{"conflict":7}"#), (200, r#"{"conflict":7}"#)]
        {
            let unknown = reply(status, body).err().unwrap();
            assert!(unknown.message().contains("may have been made"), "{status} {body}: {unknown}");
        }
        let redirected = reply(302, "").err().unwrap();
        assert!(redirected.message().starts_with("a:1: status 302: "), "{redirected}");
    }

    /// The owner has an earlier version.
    #[test]
    fn an_operation_that_the_owner_does_not_know_is_an_error() {
        let body = Bytes::from_static(br#"{"error":"upgrade its node"}"#);
        let answer = HttpAnswer { status: 501, headers: http::HeaderMap::new(), body };
        let error = owner_reply("a:1", &answer).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unimplemented);
        assert_eq!(error.message(), "a:1: upgrade its node");
    }

    #[test]
    fn a_write_to_a_full_shard_is_certainly_not_written() {
        let reply = |body: &'static str| {
            let headers = http::HeaderMap::new();
            owner_reply("a:1", &HttpAnswer { status: 507, headers, body: body.into() })
        };
        let refused = reply(r#"{"made":false,"error":"all holders have full disks"}"#);
        let Ok(OwnerReply::Full(error)) = refused else { panic!("it is not written") };
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.retry_after().is_some());
        assert!(error.message().contains("all holders have full disks"), "{error}");
        let unknown = reply(r#"{"error":"full"}"#).err().unwrap();
        assert!(unknown.message().contains("may have been made"), "{unknown}");
    }

    #[test]
    fn the_key_of_a_root_is_not_that_of_a_client() {
        let body = Bytes::from_static(br#"{"error":"send one of its keys as api-key"}"#);
        let answer =
            |status| HttpAnswer { status, headers: http::HeaderMap::new(), body: body.clone() };
        let write = |status| owner_reply("a:1", &answer(status)).err().unwrap();
        for error in [error_of(&answer(401)), write(401)] {
            let text = error.message();
            assert!(text.contains("same --api-key") && !text.contains("send one"), "{text}");
        }
        for error in [error_of(&answer(403)), write(403)] {
            assert!(error.message().contains("send one"), "{error}");
        }
    }

    #[test]
    fn each_shard_has_its_own_result_or_error() {
        let body = br#"{"shards":{
            "3":{"status":200,"body":{"result":{"count": 2},"status":"ok","time":0.1}},
            "10":{"status":422,"body":{"status":{"error":"Validation error in x"},"time":0}},
            "4":{"status":503,"body":{"error":"behind"}},
            "5":{"status":200,"body":{}}},"rows":{"3":7}}"#;
        let mut shards = parse_read(body).unwrap();
        let mut take = |shard| shards.remove(&shard).unwrap();
        assert_eq!(take(3).unwrap().get(), r#"{"count": 2}"#);
        let refused = take(10).unwrap_err();
        assert_eq!((refused.kind(), is_final(&refused)), (ErrorKind::InvalidArgument, true));
        assert_eq!(refused.message(), "Validation error in x");
        let behind = take(4).unwrap_err();
        assert_eq!((behind.message(), is_final(&behind)), ("status 503: behind", false));
        assert!(!is_final(&take(5).unwrap_err()));
        assert!(parse_read(b"{}").is_err());
    }
}
