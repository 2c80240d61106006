//! One stored image: a holder of its shard answers with its own routes.
//!
//! Holders are asked in the order of reads. After a write by this root, and for
//! `consistency=strong`, the point is looked up first, which waits until a holder has applied the
//! write. That holder answers. If a holder does not have the image, the point is looked up too: the
//! holder may lag behind a write by another root.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, Result};
use bytes::Bytes;
use cluster_node::node::image_endpoints::images_path;
use cluster_node::{CollectionRecord, NodeInfo, ShardKey};
use cluster_root::RootContext;
use cluster_root::split::shard_of_id;
use http::{HeaderMap, Method};
use http_client::{HttpAnswer, HttpRequest};
use search::points::PointId;
use serde::Deserialize;
use transport::Reply;

use super::call::{ImageCall, NoRouteParams};
use super::points::{self, LookupConsistency, PointLookup};
use super::reply;
use super::target::ImageTarget;

/// Maximum lookups of a point whose holder then does not answer.
const LOOKUPS_MAX: u32 = 3;
/// Longest wait for a holder if there is another one.
const HOLDER_WAIT_MAX: Duration = Duration::from_secs(5);
/// Retry advice if no holder answers.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Part of a stored image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImagePart {
    Original,
    Thumbnail,
    Keypoints,
    Template,
    Features,
}

impl ImagePart {
    /// Returns the path after the id.
    fn path(self) -> &'static str {
        match self {
            ImagePart::Original => "",
            ImagePart::Thumbnail => "/thumbnail",
            ImagePart::Keypoints => "/keypoints",
            ImagePart::Template => "/template",
            ImagePart::Features => "/features",
        }
    }

    /// Checks the names of a request's parameters. The holder checks their values.
    fn check_parameters(self, call: &ImageCall) -> Result<()> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct RootThumbnailParams {
            #[serde(rename = "size")]
            _size: Option<u32>,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct RootTemplateParams {
            #[serde(rename = "format")]
            _format: Option<String>,
        }
        match self {
            ImagePart::Thumbnail => call.query.route_parameters::<RootThumbnailParams>().map(drop),
            ImagePart::Template => call.query.route_parameters::<RootTemplateParams>().map(drop),
            _ => call.query.route_parameters::<NoRouteParams>().map(drop),
        }
    }
}

/// Returns a part of a stored image.
pub(super) async fn part(call: ImageCall, part: ImagePart) -> Result<Reply> {
    part.check_parameters(&call)?;
    let _admitted = call.admit()?;
    call.context.see_newest_if_strong().await?;
    let target = ImageTarget::open(&call.context)?;
    if part == ImagePart::Template {
        target.check_prints()?;
    }
    let id: PointId = call.context.item.parse()?;
    let path = with_query(format!("{id}{}", part.path()), &call.query.own);
    let answer = ask_holder(&call.context, &target.record, id, HolderRequest::get(path)).await?;
    reply::passed_back(answer, &call.context.state.requests)
}

/// Adds the query string of a request to a path.
pub(super) fn with_query(path: String, query: &str) -> String {
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

/// A request about one stored image. It can be made twice.
pub(super) struct HolderRequest {
    pub(super) method: Method,
    /// Path below the collection, with the query.
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl HolderRequest {
    /// Creates a request without a body.
    pub(super) fn get(path: String) -> HolderRequest {
        HolderRequest { method: Method::GET, path, headers: HeaderMap::new(), body: Bytes::new() }
    }
}

/// Sends a request to a holder of the shard of `id`, and to the next one if it fails.
///
/// # Errors
/// `Unavailable` with retry advice if no holder answers; `NotFound` if a lookup does not find the
/// point.
pub(super) async fn ask_holder(
    context: &RootContext,
    record: &Arc<CollectionRecord>,
    id: PointId,
    request: HolderRequest,
) -> Result<HttpAnswer> {
    let key = ShardKey::new(&record.id, shard_of_id(&id, record.shards)?);
    let mut asked = AskedHolders { context, key, request, refusal: None, failure: None };
    let strong = context.params.strong;
    if !strong && context.state.last_written(&asked.key) == 0 {
        match asked.ask_in_turn().await {
            Some(answer) if answer.status == 404 => {}
            Some(answer) => return Ok(answer),
            None => return asked.failed(),
        }
    }
    let consistency = LookupConsistency::Confirmed.or_strong(strong);
    for attempt in 1..=LOOKUPS_MAX {
        let lookup = PointLookup { payload: false, consistency };
        let found = points::find(context, record, id, lookup).await?;
        let found = found.ok_or_else(|| no_such_image(id))?;
        let Some(node) = context.state.view.current().nodes.get(&found.node).cloned() else {
            continue;
        };
        if let Some(answer) = asked.ask(&node, attempt == LOOKUPS_MAX).await {
            return Ok(answer);
        }
    }
    asked.failed()
}

/// Sends a request that any holder of any shard can answer.
///
/// # Errors
/// `Unavailable` with retry advice if no holder of the first shard answers.
pub(super) async fn ask_any_holder(
    context: &RootContext,
    record: &CollectionRecord,
    request: HolderRequest,
) -> Result<HttpAnswer> {
    let key = ShardKey::new(&record.id, 0);
    let mut asked = AskedHolders { context, key, request, refusal: None, failure: None };
    match asked.ask_in_turn().await {
        Some(answer) => Ok(answer),
        None => asked.failed(),
    }
}

/// Returns the error for an image that is not there.
pub(super) fn no_such_image(id: PointId) -> Error {
    Error::not_found(format!("there is no image {id}"))
}

/// The holders of a shard that were asked one request.
struct AskedHolders<'a> {
    context: &'a RootContext,
    key: ShardKey,
    request: HolderRequest,
    /// Last answer of an overloaded or failing node.
    refusal: Option<HttpAnswer>,
    failure: Option<Error>,
}

impl AskedHolders<'_> {
    /// Returns the holders in the order in which this request asks them.
    fn holders(&self) -> Vec<NodeInfo> {
        let state = &self.context.state;
        let view = state.view.current();
        let serving = view.nodes.values().filter(|node| node.serves(&self.key));
        let names: Vec<&str> = serving.map(|node| node.name.as_str()).collect();
        let order = state.order_nodes(&names);
        order.iter().filter_map(|name| view.nodes.get(name)).cloned().collect()
    }

    /// Sends the request to one holder after the other. Returns the first answer; `None` if each
    /// refused or failed.
    async fn ask_in_turn(&mut self) -> Option<HttpAnswer> {
        let holders = self.holders();
        for (at, node) in holders.iter().enumerate() {
            let answer = self.ask(node, at + 1 == holders.len()).await;
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    /// Sends the request to a node. Returns `None` if another holder should be asked. The last
    /// holder gets all of the remaining time.
    async fn ask(&mut self, node: &NodeInfo, is_last: bool) -> Option<HttpAnswer> {
        let mut left = self.context.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        if !is_last {
            left = (left / 2).min(HOLDER_WAIT_MAX);
        }
        let path = format!("{}/{}", images_path(&self.key), self.request.path);
        let request = HttpRequest {
            method: self.request.method.clone(),
            path: &path,
            headers: self.request.headers.clone(),
            body: self.request.body.clone(),
        };
        match self.context.state.client.send(&node.address, request, left).await {
            Ok(answer)
                if answer.status == 429 || (answer.status >= 500 && answer.status != 501) =>
            {
                self.refusal = Some(answer);
                None
            }
            Ok(answer) => Some(answer),
            Err(error) => {
                tracing::debug!(node = node.name, %error, "a holder did not answer for an image");
                self.context.state.record_failure(&node.name);
                self.failure = Some(error);
                None
            }
        }
    }

    /// Returns the answer of a holder that refused, or the error if none answered.
    fn failed(self) -> Result<HttpAnswer> {
        if let Some(refusal) = self.refusal {
            return Ok(refusal);
        }
        let unserved =
            || format!("no node serves shard {}; start more search nodes", self.key.shard.0);
        let reason = self.failure.map_or_else(unserved, |error| error.message().to_owned());
        Err(Error::unavailable(reason).with_retry_after(RETRY_AFTER))
    }
}
