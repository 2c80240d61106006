//! Requests that a node with the role extract answers instead of this node.
//!
//! The nodes that are alive are asked by turns. If one cannot be reached, does not answer for half
//! of the time, or is overloaded, another one is asked. All of these requests can be made twice.

use std::time::{Duration, Instant};

use base::{Error, Result};
use bytes::Bytes;
use cluster_node::{NodeInfo, ShardKey};
use cluster_root::collections::wait_for;
use cluster_root::writes::{is_shard_refusal, shard_refusal};
use cluster_root::{RootContext, RootState};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use http_client::{HttpAnswer, HttpRequest};
use transport::Reply;

use super::call::CallHead;
use super::reply;

/// Header of a request that another node has passed on. It is never passed on again.
const PASSED_ON: HeaderName = HeaderName::from_static("x-millpond-passed-on");
/// Header of the answer to a request that was passed on. It lists the entries of the log that have
/// the writes of the request, each as `COLLECTION/SHARD/ENTRY`, with commas between them.
const WRITTEN: HeaderName = HeaderName::from_static("x-millpond-written");
/// Header of the answer to a request that was passed on, if the shard refused the image.
const SHARD_REFUSAL: HeaderName = HeaderName::from_static("x-millpond-shard-refusal");
/// Header of a request that another node has passed on: the id of the collection that it sees, or
/// [`NO_COLLECTION`].
const SEEN_COLLECTION: HeaderName = HeaderName::from_static("x-millpond-collection");
/// Value of [`SEEN_COLLECTION`] if there is no collection of the name.
const NO_COLLECTION: &str = "none";
/// Headers of a client's request that go with it.
const KEPT_HEADERS: [HeaderName; 2] =
    [header::CONTENT_TYPE, HeaderName::from_static("x-min-coverage")];
/// Maximum nodes that are asked for one request.
pub(super) const NODES_ASKED_MAX: usize = 4;
/// Retry advice if no node extracts.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Longest wait until this node sees a collection that another one has created.
const RECORD_WAIT_MAX: Duration = Duration::from_secs(5);

/// Returns true if another node has passed the request on.
pub(super) fn is_passed_on(head: &CallHead) -> bool {
    head.headers.contains_key(PASSED_ON)
}

/// Passes a client's request on, and returns the answer as a response. The node's writes are seen
/// by later reads of this root.
///
/// # Errors
/// `Unavailable` if no node takes it, or if it was passed on already.
pub(super) async fn pass_request_on(
    context: &RootContext,
    head: &CallHead,
    method: Method,
    body: Bytes,
) -> Result<Reply> {
    if is_passed_on(head) {
        return Err(Error::unavailable(
            "another node has passed this request on to this one, which does not have the role extract any more",
        )
        .with_retry_after(RETRY_AFTER));
    }
    let mut headers = HeaderMap::new();
    for name in KEPT_HEADERS {
        if let Some(value) = head.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    headers.extend(passed_headers(context));
    let request = HttpRequest { method, path: &head.target, headers, body };
    let answer = send_to_extraction(context, request).await?;
    remember_answer(context, &answer).await;
    reply::passed_back(answer, &context.state.requests)
}

/// Returns the headers of a request that this node passes on.
fn passed_headers(context: &RootContext) -> HeaderMap {
    let mut headers = HeaderMap::from_iter([(PASSED_ON, HeaderValue::from_static("1"))]);
    if let Ok(seen) = HeaderValue::try_from(seen_collection(context).as_str()) {
        headers.insert(SEEN_COLLECTION, seen);
    }
    headers
}

/// Lets one node add an image, and remembers its write. `path` has the query.
///
/// # Errors
/// `Unavailable` if the node cannot be reached, leaves the cluster or does not answer in time.
pub(super) async fn send_image(
    context: &RootContext,
    node: &str,
    path: &str,
    bytes: Bytes,
) -> Result<HttpAnswer> {
    let view = context.state.view.current();
    let node = view.nodes.get(node).ok_or_else(|| node_left(node))?;
    let mut headers = passed_headers(context);
    let media = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, media);
    let request = HttpRequest { method: Method::PUT, path, headers, body: bytes };
    let time = context.deadline.saturating_duration_since(Instant::now());
    let answer = send_to_node(&context.state, node, request, time).await?;
    remember_answer(context, &answer).await;
    Ok(answer)
}

/// Returns the id of the collection that this node sees, or [`NO_COLLECTION`].
fn seen_collection(context: &RootContext) -> String {
    let view = context.state.view.current();
    let record = view.collection(&context.collection);
    record.map_or_else(|| NO_COLLECTION.to_owned(), |record| record.id.clone())
}

/// Waits until this node sees the same collection as the node that passed the request on. A moment
/// ago, a collection may have been removed and created again.
///
/// # Errors
/// `Unavailable` with retry advice if this node does not see it in time.
pub(super) async fn see_same_collection(context: &RootContext, head: &CallHead) -> Result<()> {
    let seen = head.headers.get(SEEN_COLLECTION).and_then(|value| value.to_str().ok());
    let Some(seen) = seen else { return Ok(()) };
    let until = context.deadline.min(Instant::now() + RECORD_WAIT_MAX);
    let is_same = wait_for(context, until, |view| {
        let record = view.collection(&context.collection);
        record.map_or(NO_COLLECTION, |record| record.id.as_str()) == seen
    });
    // Another client may create the collection meanwhile.
    if is_same.await || seen == NO_COLLECTION {
        return Ok(());
    }
    Err(Error::unavailable(format!(
        "collection \"{}\" was just removed or created again; send the image again",
        context.collection
    ))
    .with_retry_after(RETRY_AFTER))
}

/// Asks a node with the role extract for the part of a list that depends on its models.
///
/// # Errors
/// As [`send_to_extraction`].
pub(super) async fn list(context: &RootContext) -> Result<HttpAnswer> {
    let headers = HeaderMap::from_iter([(PASSED_ON, HeaderValue::from_static("1"))]);
    let method = Method::GET;
    let body = Bytes::new();
    send_to_extraction(context, HttpRequest { method, path: "/v1/images", headers, body }).await
}

/// Sends a request to a node with the role extract.
///
/// # Errors
/// `Unavailable` with retry advice if there is none, or none can be reached.
pub(super) async fn send_to_extraction(
    context: &RootContext,
    request: HttpRequest<'_>,
) -> Result<HttpAnswer> {
    let mut refusal = None;
    let mut failure = no_extraction();
    let nodes = extraction_nodes(&context.state);
    for (at, node) in nodes.iter().enumerate() {
        let mut left = context.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        if at + 1 < nodes.len() {
            left /= 2;
        }
        match send_to_node(&context.state, node, request.clone(), left).await {
            Ok(answer) if matches!(answer.status, 429 | 503) => refusal = Some(answer),
            Ok(answer) => return Ok(answer),
            Err(error) => failure = error,
        }
    }
    refusal.ok_or(failure)
}

/// Returns the error if no node extracts.
pub(super) fn no_extraction() -> Error {
    Error::unavailable(
        "no node with the role extract is alive, which finds the features of images; start one with --cluster-roles \
         extract,..., or extract the features elsewhere and send them with PUT /v1/images/NAME/features",
    )
    .with_retry_after(RETRY_AFTER)
}

/// Sends a request to one node, for at most `time`. Stops waiting if the node leaves the cluster.
///
/// # Errors
/// `Unavailable` if the node cannot be reached, leaves or does not answer.
async fn send_to_node(
    state: &RootState,
    node: &NodeInfo,
    request: HttpRequest<'_>,
    time: Duration,
) -> Result<HttpAnswer> {
    let answer = tokio::select! {
        answer = state.client.send(&node.address, request, time) => answer,
        () = wait_until_left(state, &node.name) => {
            Err(node_left(&node.name))
        }
    };
    answer.inspect_err(|error| {
        tracing::debug!(node = node.name, %error, "a node took no image");
        state.record_failure(&node.name);
    })
}

fn node_left(node: &str) -> Error {
    Error::unavailable(format!("node {node} has left the cluster"))
}

/// Waits until the view does not have the node.
async fn wait_until_left(state: &RootState, name: &str) {
    let mut view = state.view.clone();
    while view.current().nodes.contains_key(name) {
        view.changed().await;
    }
}

/// Returns the nodes with the role extract, in the order in which this request asks them.
fn extraction_nodes(state: &RootState) -> Vec<NodeInfo> {
    let view = state.view.current();
    let names: Vec<&str> = view
        .nodes
        .values()
        .filter(|node| node.roles.extract)
        .map(|node| node.name.as_str())
        .collect();
    let order = state.order_nodes(&names);
    let nodes = order.iter().filter_map(|name| view.nodes.get(name));
    nodes.take(NODES_ASKED_MAX).cloned().collect()
}

/// Adds the entries of the log that have the writes to the answer, if another node has passed the
/// request on.
pub(super) fn with_written(reply: Reply, head: &CallHead, entries: &[WrittenEntry]) -> Reply {
    if entries.is_empty() || !is_passed_on(head) {
        return reply;
    }
    let texts: Vec<String> = entries.iter().map(WrittenEntry::text).collect();
    match HeaderValue::try_from(texts.join(",")) {
        Ok(value) => reply.with_header(WRITTEN, value),
        Err(_) => reply,
    }
}

/// Returns the answer to an image that was not added. If another node has passed the image on, the
/// answer says if the image's shard refused it.
pub(super) fn refused(error: &Error, head: &CallHead) -> Reply {
    let reply = Reply::error(error);
    if is_passed_on(head) && is_shard_refusal(error) {
        return reply.with_header(SHARD_REFUSAL, HeaderValue::from_static("1"));
    }
    reply
}

/// Returns the error of a node's answer, so that [`is_shard_refusal`] holds for it as on that node.
pub(super) fn refusal_of_shard(error: Error, answer: &HttpAnswer) -> Error {
    if answer.headers.contains_key(SHARD_REFUSAL) { shard_refusal(error) } else { error }
}

/// Remembers the writes of another node, which its answer names, once this root sees their
/// collection.
async fn remember_answer(context: &RootContext, answer: &HttpAnswer) {
    let written = answer.headers.get(WRITTEN).and_then(|value| value.to_str().ok());
    let written = written.unwrap_or_default().split(',').filter_map(WrittenEntry::parse);
    let written: Vec<WrittenEntry> = written.collect();
    let until = context.deadline.min(Instant::now() + RECORD_WAIT_MAX);
    for WrittenEntry { key, entry } in &written {
        wait_for(context, until, |view| view.by_id(&key.collection).is_some()).await;
        context.state.record_written(key, *entry);
    }
}

/// Entry of a shard's log.
#[derive(Debug, PartialEq)]
pub(super) struct WrittenEntry {
    pub(super) key: ShardKey,
    pub(super) entry: u64,
}

impl WrittenEntry {
    fn text(&self) -> String {
        let WrittenEntry { key, entry } = self;
        format!("{}/{}/{entry}", key.collection, key.shard.0)
    }

    fn parse(text: &str) -> Option<WrittenEntry> {
        let (rest, entry) = text.rsplit_once('/')?;
        let (collection, shard) = rest.rsplit_once('/')?;
        let key = ShardKey::new(collection, shard.parse().ok()?);
        Some(WrittenEntry { key, entry: entry.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use cluster_root::writes::not_written;

    use super::*;

    #[test]
    fn a_refusal_of_a_shard_is_marked_between_nodes() {
        let is_marked = |error: &Error, is_passed_on: bool| {
            let mut headers = HeaderMap::new();
            if is_passed_on {
                headers.insert(PASSED_ON, HeaderValue::from_static("1"));
            }
            let head = CallHead { headers, target: String::new() };
            refused(error, &head).into_response().headers().contains_key(SHARD_REFUSAL)
        };
        let full = shard_refusal(Error::storage_full("no space"));
        assert!(is_marked(&full, true));
        assert!(!is_marked(&full, false), "clients get no such header");
        assert!(!is_marked(&Error::storage_full("the store of originals"), true));
        let conflicts = not_written(Error::unavailable("other uploads write the image"));
        assert!(!is_marked(&conflicts, true), "the shard takes writes");
        let mut answer = HttpAnswer { status: 507, headers: HeaderMap::new(), body: Bytes::new() };
        let read = |answer: &HttpAnswer| refusal_of_shard(Error::storage_full("full"), answer);
        assert!(!is_shard_refusal(&read(&answer)));
        answer.headers.insert(SHARD_REFUSAL, HeaderValue::from_static("1"));
        assert!(is_shard_refusal(&read(&answer)));
    }

    #[test]
    fn written_entries_are_read() {
        let expected = WrittenEntry { key: ShardKey::new("a-b", 3), entry: 70 };
        assert_eq!(expected.text(), "a-b/3/70");
        assert_eq!(WrittenEntry::parse("a-b/3/70"), Some(expected));
        for wrong in ["", "a", "a/3", "a/x/1", "a/1/x"] {
            assert_eq!(WrittenEntry::parse(wrong), None, "{wrong}");
        }
    }
}
