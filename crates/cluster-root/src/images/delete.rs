//! Removal of images and of collections of images.

use std::collections::BTreeMap;
use std::time::Duration;

use api_images::{ImagesState, original_in, original_key};
use base::Result;
use cluster_node::CollectionRecord;
use search::points::PointId;
use serde_json::json;
use transport::Reply;

use super::super::collections::remove_named;
use super::super::split::{raw, shard_of_id};
use super::super::state::RootState;
use super::super::write::deliver;
use super::by_id::missing;
use super::call::{ImageCall, NoRouteParams};
use super::points::{self, LookupConsistency, PointWish};
use super::target::ImageTarget;

/// Minimum age at which an upload is over: its point is in the log, or never will be. Clocks of
/// nodes and store differ less.
const UPLOAD_OVER: Duration = Duration::from_secs(3600);
/// Timeouts of requests after which an upload is over: the upload's own, the timeout of the
/// removal, and one more.
const UPLOAD_TIMEOUTS: u32 = 3;

/// Removes an image: first its point, then its original. Only the removed point refers to this
/// original, since each upload has an original of its own.
///
/// After two uploads of one image, or after a failure, an original without a point can remain. It
/// is removed with the image, an hour after its upload or later, or with the collection.
pub(super) async fn image(call: ImageCall) -> Result<Reply> {
    call.query.own::<NoRouteParams>()?;
    let _admitted = call.admit()?;
    let context = &call.context;
    let target = ImageTarget::open(context)?;
    let id: PointId = context.item.parse()?;
    // A holder that lags may not have the image yet.
    let wish = PointWish { payload: true, consistency: LookupConsistency::Strong };
    let point = points::find(context, &target.record, id, wish).await?;
    let point = point.ok_or_else(|| missing(id))?;
    let shard = shard_of_id(&id, target.record.shards)?;
    let operation = format!("{{\"delete\":{{\"points\":[{}]}}}}", raw(&id)?);
    deliver(context, &target.record, BTreeMap::from([(shard, vec![operation])])).await?;
    delete_originals(&context.state, &target.record, &id, original_key(&point.payload)).await;
    Ok(Reply::json(json!({ "deleted": context.item }).to_string()))
}

/// Removes the original of a removed point, and the originals of its old uploads.
pub(crate) async fn delete_originals(
    state: &RootState,
    record: &CollectionRecord,
    id: &PointId,
    key: Option<&str>,
) {
    let Some(images) = &state.images else {
        tracing::warn!(%id, "an original stays, as this node has no store of originals");
        return;
    };
    // A point that was written from features alone has no original.
    let Some(key) = key else { return };
    let space = record.originals_space();
    original(&images.state, &original_in(&space, key)).await;
    let age = UPLOAD_OVER.max(state.requests.limits.request_timeout * UPLOAD_TIMEOUTS);
    if let Err(error) = images.state.delete_uploads(&space, id, age).await {
        tracing::warn!(%id, %error, "old uploads of a removed image stay");
    }
}

/// Removes an original to which no point refers. A failure is logged, and the request succeeds.
pub(super) async fn original(images: &ImagesState, key: &str) {
    if let Err(error) = images.delete_original(key).await {
        tracing::warn!(key, %error, "an original stays without a point");
    }
}

/// Removes a collection. Its objects are removed from the store later.
pub(super) async fn collection(call: ImageCall) -> Result<Reply> {
    call.query.own::<NoRouteParams>()?;
    let _admitted = call.admit()?;
    let target = ImageTarget::open(&call.context)?;
    remove_named(&call.context).await?;
    Ok(Reply::json(json!({ "deleted": target.record.name }).to_string()))
}
