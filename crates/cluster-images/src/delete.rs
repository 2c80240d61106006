//! Removal of images and of collections of images.

use std::collections::BTreeMap;

use api_images::original_key;
use base::Result;
use cluster_root::collections::remove_named;
use cluster_root::split::{raw, shard_of_id};
use cluster_root::writes::{delete_originals, deliver};
use search::points::PointId;
use serde_json::json;
use transport::Reply;

use super::by_id::no_such_image;
use super::call::{ImageCall, NoRouteParams};
use super::points::{self, LookupConsistency, PointLookup};
use super::target::ImageTarget;

/// Removes an image: first its point, then its original. Only the removed point refers to this
/// original, since each upload has an original of its own.
///
/// After two uploads of one image, or after a failure, an original without a point can remain. It
/// is removed with the image, an hour after its upload or later, or with the collection.
pub(super) async fn image(call: ImageCall) -> Result<Reply> {
    call.query.route_parameters::<NoRouteParams>()?;
    let _admitted = call.admit()?;
    let context = &call.context;
    // A client takes 404 for a removed image, and a newer collection may have it.
    context.state.see_newest(&context.collection, context.deadline).await?;
    let target = ImageTarget::open(context)?;
    let id: PointId = context.item.parse()?;
    // A holder that lags may not have the image yet.
    let lookup = PointLookup { payload: true, consistency: LookupConsistency::Strong };
    let point = points::find(context, &target.record, id, lookup).await?;
    let point = point.ok_or_else(|| no_such_image(id))?;
    let shard = shard_of_id(&id, target.record.shards)?;
    let operation = format!("{{\"delete\":{{\"points\":[{}]}}}}", raw(&id)?);
    deliver(context, &target.record, BTreeMap::from([(shard, vec![operation])])).await?;
    delete_originals(&context.state, &target.record, &id, original_key(&point.payload)).await;
    Ok(Reply::json(json!({ "deleted": context.item }).to_string()))
}

/// Removes a collection, also by its alias. Its objects are removed from the store later.
pub(super) async fn collection(call: ImageCall) -> Result<Reply> {
    call.query.route_parameters::<NoRouteParams>()?;
    let _admitted = call.admit()?;
    let mut target = ImageTarget::open(&call.context)?;
    let mut context = call.context.clone();
    if target.record.name != context.collection {
        // Another root may have changed the alias a moment ago. Its earlier collection must stay.
        context.state.read_again(context.deadline).await;
        target = ImageTarget::open(&context)?;
    }
    context.collection.clone_from(&target.record.name);
    remove_named(&context).await?;
    Ok(Reply::json(json!({ "deleted": call.context.collection }).to_string()))
}
