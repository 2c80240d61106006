//! Calls that read points, as requests of the REST routes.

use base::{Error, Result};
use http::Method;
use protocol::qdrant as pb;
use protocol::qdrant::target_vector::Target;
use protocol::qdrant::vector_example::Example;
use serde_json::{Value, json};

use crate::filters::optional_filter;
use crate::members::{filled, object, optional};
use crate::query::{
    lookup_from, order_by, params, prefetches, query, strategy, threshold, with_lookup,
    with_payload, with_vector,
};
use crate::rest::RestRequest;
use crate::{values, vectors};

/// Returns a request with a JSON body for `route` of a collection.
fn post(collection: &str, route: &str, timeout: Option<u64>, body: &Value) -> RestRequest {
    RestRequest::collection(Method::POST, collection, route).with_timeout(timeout).with_json(body)
}

pub(crate) fn get(message: pb::GetPoints) -> Result<RestRequest> {
    let body = object([
        ("ids", values::ids(message.ids)?),
        ("with_payload", with_payload(message.with_payload)),
        ("with_vector", with_vector(message.with_vectors)),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]);
    post(&message.collection_name, "points", message.timeout, &body)
        .with_consistency(message.read_consistency)
}

pub(crate) fn scroll(message: pb::ScrollPoints) -> Result<RestRequest> {
    let offset = message.offset.map_or(Ok(Value::Null), values::id)?;
    let body = object([
        ("filter", optional_filter(message.filter)?),
        ("offset", offset),
        ("limit", optional(message.limit)),
        ("with_payload", with_payload(message.with_payload)),
        ("with_vector", with_vector(message.with_vectors)),
        ("order_by", message.order_by.map_or(Ok(Value::Null), order_by)?),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]);
    post(&message.collection_name, "points/scroll", message.timeout, &body)
        .with_consistency(message.read_consistency)
}

pub(crate) fn count(message: pb::CountPoints) -> Result<RestRequest> {
    let body = object([
        ("filter", optional_filter(message.filter)?),
        ("exact", optional(message.exact)),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]);
    post(&message.collection_name, "points/count", message.timeout, &body)
        .with_consistency(message.read_consistency)
}

pub(crate) fn facet(message: pb::FacetCounts) -> Result<RestRequest> {
    let body = object([
        ("key", Value::String(message.key)),
        ("filter", optional_filter(message.filter)?),
        ("limit", optional(message.limit)),
        ("exact", optional(message.exact)),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]);
    post(&message.collection_name, "facet", message.timeout, &body)
        .with_consistency(message.read_consistency)
}

fn query_body(message: pb::QueryPoints) -> Result<Value> {
    Ok(object([
        ("prefetch", prefetches(message.prefetch)?),
        ("query", query(message.query)?),
        ("using", optional(message.using)),
        ("filter", optional_filter(message.filter)?),
        ("params", params(message.params)?),
        ("score_threshold", threshold(message.score_threshold)?),
        ("limit", optional(message.limit)),
        ("offset", optional(message.offset)),
        ("with_payload", with_payload(message.with_payload)),
        ("with_vector", with_vector(message.with_vectors)),
        ("lookup_from", lookup_from(message.lookup_from)),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]))
}

pub(crate) fn query_points(mut message: pb::QueryPoints) -> Result<RestRequest> {
    let collection = std::mem::take(&mut message.collection_name);
    let timeout = message.timeout;
    let consistency = message.read_consistency;
    post(&collection, "points/query", timeout, &query_body(message)?).with_consistency(consistency)
}

/// Returns the request of a batch of queries, each made by `body`. The time limit and the
/// consistency are those of the batch. As in Qdrant, those of its queries have no effect.
fn batch<M>(
    collection: &str,
    timeout: Option<u64>,
    consistency: Option<pb::ReadConsistency>,
    queries: Vec<M>,
    name: impl Fn(&M) -> &str,
    body: impl Fn(M) -> Result<Value>,
) -> Result<RestRequest> {
    let each = queries.into_iter().enumerate().map(|(at, query)| {
        if !name(&query).is_empty() && name(&query) != collection {
            return Err(Error::invalid(format!(
                "searches[{at}]: the query names another collection than its batch"
            )));
        }
        body(query).map_err(|error| error.context(format_args!("searches[{at}]")))
    });
    let searches: Vec<Value> = each.collect::<Result<_>>()?;
    post(collection, "points/query/batch", timeout, &json!({ "searches": searches }))
        .with_consistency(consistency)
}

pub(crate) fn query_batch(message: pb::QueryBatchPoints) -> Result<RestRequest> {
    batch(
        &message.collection_name,
        message.timeout,
        message.read_consistency,
        message.query_points,
        |it| &it.collection_name,
        query_body,
    )
}

pub(crate) fn query_groups(message: pb::QueryPointGroups) -> Result<RestRequest> {
    let body = object([
        ("prefetch", prefetches(message.prefetch)?),
        ("query", query(message.query)?),
        ("using", optional(message.using)),
        ("filter", optional_filter(message.filter)?),
        ("params", params(message.params)?),
        ("score_threshold", threshold(message.score_threshold)?),
        ("with_payload", with_payload(message.with_payload)),
        ("with_vector", with_vector(message.with_vectors)),
        ("lookup_from", lookup_from(message.lookup_from)),
        ("limit", optional(message.limit)),
        ("group_size", optional(message.group_size)),
        ("group_by", Value::String(message.group_by)),
        ("with_lookup", with_lookup(message.with_lookup)?),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]);
    post(&message.collection_name, "points/query/groups", message.timeout, &body)
        .with_consistency(message.read_consistency)
}

/// Returns the JSON of the vector of a search.
fn searched(vector: Vec<f32>, indices: Option<pb::SparseIndices>) -> Value {
    match indices {
        None => json!(vector),
        Some(indices) => json!({ "indices": indices.data, "values": vector }),
    }
}

fn search_body(message: pb::SearchPoints) -> Result<Value> {
    Ok(object([
        ("query", searched(message.vector, message.sparse_indices)),
        ("using", optional(message.vector_name)),
        ("filter", optional_filter(message.filter)?),
        ("params", params(message.params)?),
        ("score_threshold", threshold(message.score_threshold)?),
        ("limit", Value::from(message.limit)),
        ("offset", optional(message.offset)),
        ("with_payload", with_payload(message.with_payload)),
        ("with_vector", with_vector(message.with_vectors)),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]))
}

pub(crate) fn search(mut message: pb::SearchPoints) -> Result<RestRequest> {
    let collection = std::mem::take(&mut message.collection_name);
    let timeout = message.timeout;
    let consistency = message.read_consistency;
    post(&collection, "points/query", timeout, &search_body(message)?).with_consistency(consistency)
}

pub(crate) fn search_batch(message: pb::SearchBatchPoints) -> Result<RestRequest> {
    batch(
        &message.collection_name,
        message.timeout,
        message.read_consistency,
        message.search_points,
        |it| &it.collection_name,
        search_body,
    )
}

pub(crate) fn search_groups(message: pb::SearchPointGroups) -> Result<RestRequest> {
    let body = object([
        ("query", searched(message.vector, message.sparse_indices)),
        ("using", optional(message.vector_name)),
        ("filter", optional_filter(message.filter)?),
        ("params", params(message.params)?),
        ("score_threshold", threshold(message.score_threshold)?),
        ("limit", Value::from(message.limit)),
        ("group_size", Value::from(message.group_size)),
        ("group_by", Value::String(message.group_by)),
        ("with_payload", with_payload(message.with_payload)),
        ("with_vector", with_vector(message.with_vectors)),
        ("with_lookup", with_lookup(message.with_lookup)?),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]);
    post(&message.collection_name, "points/query/groups", message.timeout, &body)
        .with_consistency(message.read_consistency)
}

/// Returns the JSON list of examples: points and then vectors.
fn examples(points: Vec<pb::PointId>, given: &[pb::Vector]) -> Result<Value> {
    let points = points.into_iter().map(values::id);
    Ok(Value::Array(points.chain(given.iter().map(vectors::of_query)).collect::<Result<_>>()?))
}

fn recommend_body(message: pb::RecommendPoints) -> Result<Value> {
    let recommend = object([
        ("positive", examples(message.positive, &message.positive_vectors)?),
        ("negative", examples(message.negative, &message.negative_vectors)?),
        ("strategy", strategy(message.strategy)?),
    ]);
    Ok(object([
        ("query", json!({ "recommend": recommend })),
        ("using", optional(message.using)),
        ("filter", optional_filter(message.filter)?),
        ("params", params(message.params)?),
        ("score_threshold", threshold(message.score_threshold)?),
        ("limit", Value::from(message.limit)),
        ("offset", optional(message.offset)),
        ("with_payload", with_payload(message.with_payload)),
        ("with_vector", with_vector(message.with_vectors)),
        ("lookup_from", lookup_from(message.lookup_from)),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]))
}

pub(crate) fn recommend(mut message: pb::RecommendPoints) -> Result<RestRequest> {
    let collection = std::mem::take(&mut message.collection_name);
    let timeout = message.timeout;
    let consistency = message.read_consistency;
    post(&collection, "points/query", timeout, &recommend_body(message)?)
        .with_consistency(consistency)
}

pub(crate) fn recommend_batch(message: pb::RecommendBatchPoints) -> Result<RestRequest> {
    batch(
        &message.collection_name,
        message.timeout,
        message.read_consistency,
        message.recommend_points,
        |it| &it.collection_name,
        recommend_body,
    )
}

pub(crate) fn recommend_groups(message: pb::RecommendPointGroups) -> Result<RestRequest> {
    let recommend = object([
        ("positive", examples(message.positive, &message.positive_vectors)?),
        ("negative", examples(message.negative, &message.negative_vectors)?),
        ("strategy", strategy(message.strategy)?),
    ]);
    let body = object([
        ("query", json!({ "recommend": recommend })),
        ("using", optional(message.using)),
        ("filter", optional_filter(message.filter)?),
        ("params", params(message.params)?),
        ("score_threshold", threshold(message.score_threshold)?),
        ("limit", Value::from(message.limit)),
        ("group_size", Value::from(message.group_size)),
        ("group_by", Value::String(message.group_by)),
        ("with_payload", with_payload(message.with_payload)),
        ("with_vector", with_vector(message.with_vectors)),
        ("lookup_from", lookup_from(message.lookup_from)),
        ("with_lookup", with_lookup(message.with_lookup)?),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]);
    post(&message.collection_name, "points/query/groups", message.timeout, &body)
        .with_consistency(message.read_consistency)
}

fn example(example: Option<pb::VectorExample>) -> Result<Value> {
    match example.and_then(|example| example.example) {
        None => Ok(Value::Null),
        Some(Example::Id(id)) => values::id(id),
        Some(Example::Vector(vector)) => vectors::of_query(&vector),
    }
}

fn discover_body(message: pb::DiscoverPoints) -> Result<Value> {
    let target = match message.target.and_then(|target| target.target) {
        Some(Target::Single(single)) => example(Some(single))?,
        None => Value::Null,
    };
    let pair = |pair: pb::ContextExamplePair| {
        let positive = example(pair.positive)?;
        let negative = example(pair.negative)?;
        Ok(json!({ "positive": positive, "negative": negative }))
    };
    let context = message.context.into_iter().map(pair).collect::<Result<Vec<Value>>>()?;
    let query = match target {
        Value::Null => json!({ "context": context }),
        target => json!({ "discover": { "target": target, "context": filled(context) } }),
    };
    Ok(object([
        ("query", query),
        ("using", optional(message.using)),
        ("filter", optional_filter(message.filter)?),
        ("params", params(message.params)?),
        ("limit", Value::from(message.limit)),
        ("offset", optional(message.offset)),
        ("with_payload", with_payload(message.with_payload)),
        ("with_vector", with_vector(message.with_vectors)),
        ("lookup_from", lookup_from(message.lookup_from)),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]))
}

pub(crate) fn discover(mut message: pb::DiscoverPoints) -> Result<RestRequest> {
    let collection = std::mem::take(&mut message.collection_name);
    let timeout = message.timeout;
    let consistency = message.read_consistency;
    post(&collection, "points/query", timeout, &discover_body(message)?)
        .with_consistency(consistency)
}

pub(crate) fn discover_batch(message: pb::DiscoverBatchPoints) -> Result<RestRequest> {
    batch(
        &message.collection_name,
        message.timeout,
        message.read_consistency,
        message.discover_points,
        |it| &it.collection_name,
        discover_body,
    )
}

fn matrix(message: pb::SearchMatrixPoints, route: &str) -> Result<RestRequest> {
    let body = object([
        ("filter", optional_filter(message.filter)?),
        ("sample", optional(message.sample)),
        ("limit", optional(message.limit)),
        ("using", optional(message.using)),
        ("shard_key", values::shard_key(message.shard_key_selector)),
    ]);
    post(&message.collection_name, route, message.timeout, &body)
        .with_consistency(message.read_consistency)
}

pub(crate) fn matrix_pairs(message: pb::SearchMatrixPoints) -> Result<RestRequest> {
    matrix(message, "points/search/matrix/pairs")
}

pub(crate) fn matrix_offsets(message: pb::SearchMatrixPoints) -> Result<RestRequest> {
    matrix(message, "points/search/matrix/offsets")
}
