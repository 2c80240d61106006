//! The list of collections of images.

use std::sync::Arc;

use api_images::OPENAPI;
use base::{Error, Result};
use cluster_node::CollectionRecord;
use cluster_root::RootContext;
use cluster_root::reads::{CountedPoints, count_points};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use transport::Reply;

use super::call::{ImageCall, NoRouteParams};
use super::pass_on;

/// Maximum collections whose images are counted at the same time.
const COUNTED_AT_ONCE_MAX: usize = 16;

/// Returns the description of the routes.
pub(super) async fn openapi(call: ImageCall) -> Result<Reply> {
    call.query.route_parameters::<NoRouteParams>()?;
    Ok(Reply::json(OPENAPI))
}

/// Lists the collections that the request's key may use, and the model that embeds the images of
/// new ones. For another node, the list has the model alone.
pub(super) async fn collections(call: ImageCall) -> Result<Reply> {
    call.query.route_parameters::<NoRouteParams>()?;
    let _admitted = call.admit()?;
    let is_passed_on = pass_on::is_passed_on(&call.head);
    let context = Arc::new(call.context);
    let embedding = embedding(&context, is_passed_on).await;
    let collections = if is_passed_on { Vec::new() } else { described(&context).await? };
    let list = json!({ "collections": collections, "embedding": embedding });
    Ok(Reply::json(list.to_string()))
}

/// Returns the model that a new collection gets, or the reason why it gets none.
async fn embedding(context: &RootContext, is_passed_on: bool) -> Value {
    if let Some(images) = context.state.extraction() {
        return images.embedding_default();
    }
    if is_passed_on {
        return json!({ "error": "this node does not have the role extract" });
    }
    match pass_on::list(context).await {
        Ok(answer) => {
            let list: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            match list.get("embedding") {
                Some(embedding) => embedding.clone(),
                None => json!({ "error": "a node with the role extract does not say its model" }),
            }
        }
        Err(error) => json!({ "error": error.message() }),
    }
}

/// Returns the collections in the order of their names, each with the number of its images.
async fn described(context: &Arc<RootContext>) -> Result<Vec<Value>> {
    let view = context.state.loaded_view()?;
    let seen = view.collections.values().filter(|record| context.sees(&record.name));
    let mut waiting = seen.filter(|record| record.images.is_some()).cloned().map(Arc::new);
    let mut running = JoinSet::new();
    let mut listed: Vec<DescribedCollection> = Vec::new();
    loop {
        while running.len() < COUNTED_AT_ONCE_MAX {
            let Some(record) = waiting.next() else { break };
            running.spawn(DescribedCollection::of(context.clone(), record));
        }
        let Some(counted) = running.join_next().await else { break };
        listed.push(counted.map_err(|error| Error::internal("a count").caused_by(error))?);
    }
    listed.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(listed.into_iter().map(|collection| collection.json).collect())
}

/// An entry of the list.
struct DescribedCollection {
    name: String,
    json: Value,
}

impl DescribedCollection {
    /// Counts the images of a collection.
    async fn of(context: Arc<RootContext>, record: Arc<CollectionRecord>) -> DescribedCollection {
        let counted = count_points(&context, &record, &json!({})).await;
        let name = record.name.clone();
        let mut json = json!({ "name": name, "collection": name, "state": "ready" });
        if let Some(images) = &record.images {
            json["kind"] = images.kind.name().into();
            json["model"] = images.model.as_str().into();
            json["dims"] = record.image_dims().into();
        }
        match counted {
            Ok(CountedPoints { count, partial }) => {
                json["count"] = count.into();
                if partial {
                    json["partial"] = true.into();
                }
            }
            Err(error) => {
                let is_unserved = context.state.view.current().unserved_shards(&record) > 0;
                json["state"] = if is_unserved { "opening" } else { "broken" }.into();
                json["reason"] = error.message().into();
            }
        }
        DescribedCollection { name, json }
    }
}
