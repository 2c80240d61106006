//! Removal of images and of collections of images.

use std::collections::BTreeMap;

use api_images::original_key;
use base::Result;
use search::points::PointId;
use serde_json::json;
use transport::Reply;

use super::super::collections::remove_named;
use super::super::split::{raw, shard_of_id};
use super::super::state::RootState;
use super::super::write::deliver;
use super::by_id::missing;
use super::call::{ImageCall, NoRouteParams};
use super::points::{self, PointWish};
use super::target::ImageTarget;

/// Removes an image: first its point, then its original. An original that stays because the store
/// fails is removed with the collection, or replaced by the next upload of the same image.
pub(super) async fn image(call: ImageCall) -> Result<Reply> {
    call.query.own::<NoRouteParams>()?;
    let _admitted = call.admit()?;
    let context = &call.context;
    let target = ImageTarget::open(context)?;
    let id: PointId = context.item.parse()?;
    // A holder that lags may not have the image yet.
    let wish = PointWish { payload: true, strong: true };
    let point = points::find(context, &target.record, id, wish).await?;
    let point = point.ok_or_else(|| missing(id))?;
    let shard = shard_of_id(&id, target.record.shards)?;
    let operation = format!("{{\"delete\":{{\"points\":[{}]}}}}", raw(&id)?);
    deliver(context, &target.record, BTreeMap::from([(shard, vec![operation])])).await?;
    if let Some(key) = original_key(&point.payload) {
        delete_original(&context.state, key).await;
    }
    Ok(Reply::json(json!({ "deleted": context.item }).to_string()))
}

/// Removes an original. The point is removed already, so a failure is not the client's.
async fn delete_original(state: &RootState, key: &str) {
    let Some(images) = &state.images else {
        tracing::warn!(key, "an original stays, as this node has no store of originals");
        return;
    };
    if let Err(error) = images.state.delete_original(key).await {
        tracing::warn!(key, %error, "the original of a removed image stays");
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
