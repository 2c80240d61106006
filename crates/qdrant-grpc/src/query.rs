//! Queries, their parameters and the requested parts of hits as JSON.

use base::{Error, Result};
use protocol::qdrant::query::Variant;
use protocol::qdrant::start_from::Value as Start;
use protocol::qdrant::with_payload_selector::SelectorOptions as PayloadOptions;
use protocol::qdrant::with_vectors_selector::SelectorOptions as VectorOptions;
use protocol::qdrant::{
    ContextInputPair, Direction, Fusion, LookupLocation, OrderBy, PrefetchQuery, Query,
    RecommendInput, RecommendStrategy, SearchParams, VectorInput, WithLookup, WithPayloadSelector,
    WithVectorsSelector,
};
use serde_json::{Value, json};

use crate::filters::optional_filter;
use crate::formula::formula;
use crate::members::{filled, object, optional};
use crate::values;
use crate::vectors::{input, optional_input};

/// Returns the JSON of a query, or null if it is absent.
///
/// # Errors
/// `InvalidArgument` for an empty query or vector, and for values that have no JSON.
pub(crate) fn query(query: Option<Query>) -> Result<Value> {
    let Some(query) = query else { return Ok(Value::Null) };
    let empty = || Error::invalid("query: the query is empty");
    Ok(match query.variant.ok_or_else(empty)? {
        Variant::Nearest(target) => json!({ "nearest": input(target)? }),
        Variant::Recommend(examples) => json!({ "recommend": recommend(examples)? }),
        Variant::Discover(given) => {
            let pairs = given.context.map(|context| context.pairs).unwrap_or_default();
            json!({ "discover": { "target": optional_input(given.target)?, "context": context(pairs)? } })
        }
        Variant::Context(given) => json!({ "context": context(given.pairs)? }),
        Variant::OrderBy(order) => json!({ "order_by": order_by(order)? }),
        Variant::Fusion(fusion) => json!({ "fusion": fusion_name(fusion)? }),
        Variant::Sample(_) => json!({ "sample": "random" }),
        Variant::Formula(given) => formula(given)?,
        Variant::NearestWithMmr(given) => {
            let mmr = given.mmr.unwrap_or_default();
            let mmr = object([
                ("diversity", optional(mmr.diversity)),
                ("candidates_limit", optional(mmr.candidates_limit)),
            ]);
            json!({ "nearest": optional_input(given.nearest)?, "mmr": mmr })
        }
        Variant::Rrf(rrf) => {
            let weights = rrf.weights.into_iter().map(Value::from).collect();
            json!({ "rrf": object([("k", optional(rrf.k)), ("weights", filled(weights))]) })
        }
        // Routes refuse it by its name.
        Variant::RelevanceFeedback(_) => json!({ "relevance_feedback": {} }),
        Variant::Text(_) => {
            return Err(Error::unimplemented("queries by text are not supported by this server"));
        }
    })
}

fn inputs(list: Vec<VectorInput>) -> Result<Value> {
    Ok(Value::Array(list.into_iter().map(input).collect::<Result<_>>()?))
}

fn recommend(examples: RecommendInput) -> Result<Value> {
    Ok(object([
        ("positive", inputs(examples.positive)?),
        ("negative", inputs(examples.negative)?),
        ("strategy", strategy(examples.strategy)?),
    ]))
}

/// Returns the JSON of a strategy of recommendations, or null if it is absent.
///
/// # Errors
/// `InvalidArgument` for an unknown number.
pub(crate) fn strategy(strategy: Option<i32>) -> Result<Value> {
    let Some(number) = strategy else { return Ok(Value::Null) };
    Ok(Value::from(match RecommendStrategy::try_from(number) {
        Ok(RecommendStrategy::AverageVector) => "average_vector",
        Ok(RecommendStrategy::BestScore) => "best_score",
        Ok(RecommendStrategy::SumScores) => "sum_scores",
        Err(_) => return Err(unknown("strategy", number)),
    }))
}

fn unknown(field: &str, number: i32) -> Error {
    Error::invalid(format!("{field}: the interface has no {number}"))
}

fn context(pairs: Vec<ContextInputPair>) -> Result<Value> {
    let pair = |pair: ContextInputPair| {
        let positive = optional_input(pair.positive)?;
        let negative = optional_input(pair.negative)?;
        Ok(json!({ "positive": positive, "negative": negative }))
    };
    Ok(Value::Array(pairs.into_iter().map(pair).collect::<Result<_>>()?))
}

fn fusion_name(fusion: i32) -> Result<&'static str> {
    match Fusion::try_from(fusion) {
        Ok(Fusion::Rrf) => Ok("rrf"),
        Ok(Fusion::Dbsf) => Ok("dbsf"),
        Err(_) => Err(unknown("fusion", fusion)),
    }
}

/// Returns the JSON of an order by a field.
///
/// # Errors
/// `InvalidArgument` for an unknown direction and for a start that has no JSON.
pub(crate) fn order_by(order: OrderBy) -> Result<Value> {
    let direction = match order.direction.map(Direction::try_from) {
        None => Value::Null,
        Some(Ok(Direction::Asc)) => Value::from("asc"),
        Some(Ok(Direction::Desc)) => Value::from("desc"),
        Some(Err(_)) => return Err(unknown("direction", order.direction.unwrap_or_default())),
    };
    let start = match order.start_from.and_then(|start| start.value) {
        None => Value::Null,
        Some(Start::Float(number)) => values::finite(number)?,
        Some(Start::Integer(number)) => Value::from(number),
        Some(Start::Timestamp(time)) => values::date(time)?,
        Some(Start::Datetime(text)) => Value::String(text),
    };
    let key = Value::String(order.key);
    Ok(object([("key", key), ("direction", direction), ("start_from", start)]))
}

/// Returns the JSON of prefetches, or null for none.
///
/// # Errors
/// As [`query`], with the place of the prefetch.
pub(crate) fn prefetches(list: Vec<PrefetchQuery>) -> Result<Value> {
    let each = list.into_iter().enumerate().map(|(at, given)| {
        prefetch(given).map_err(|error| error.context(format_args!("prefetch[{at}]")))
    });
    Ok(filled(each.collect::<Result<_>>()?))
}

fn prefetch(given: PrefetchQuery) -> Result<Value> {
    Ok(object([
        ("prefetch", prefetches(given.prefetch)?),
        ("query", query(given.query)?),
        ("using", optional(given.using)),
        ("filter", optional_filter(given.filter)?),
        ("params", params(given.params)?),
        ("score_threshold", threshold(given.score_threshold)?),
        ("limit", optional(given.limit)),
        ("lookup_from", lookup_from(given.lookup_from)),
    ]))
}

/// Returns the JSON of a least score, or null if it is absent.
///
/// # Errors
/// `InvalidArgument` if it is not finite.
pub(crate) fn threshold(score: Option<f32>) -> Result<Value> {
    let checked = score.map(|score| values::finite(f64::from(score)));
    let value = checked.transpose().map_err(|error| error.context("score_threshold"))?;
    Ok(value.unwrap_or_default())
}

/// Returns the JSON of the parameters of a search, or null if they are absent.
///
/// # Errors
/// `InvalidArgument` for a number that is not finite.
pub(crate) fn params(params: Option<SearchParams>) -> Result<Value> {
    let Some(params) = params else { return Ok(Value::Null) };
    let quantization = match params.quantization {
        None => Value::Null,
        Some(given) => object([
            ("ignore", optional(given.ignore)),
            ("rescore", optional(given.rescore)),
            ("oversampling", given.oversampling.map_or(Ok(Value::Null), values::finite)?),
        ]),
    };
    let idf = params.idf.map(|_| json!({}));
    Ok(object([
        ("hnsw_ef", optional(params.hnsw_ef)),
        ("exact", optional(params.exact)),
        ("quantization", quantization),
        ("indexed_only", optional(params.indexed_only)),
        ("idf", optional(idf)),
    ]))
}

/// Returns the JSON of a search in another collection's points, or null if it is absent.
pub(crate) fn lookup_from(location: Option<LookupLocation>) -> Value {
    let Some(location) = location else { return Value::Null };
    object([
        ("collection", Value::String(location.collection_name)),
        ("vector", optional(location.vector_name)),
        ("shard_key", values::shard_key(location.shard_key_selector)),
    ])
}

/// Returns the JSON of a lookup of groups in another collection, or null if it is absent.
///
/// # Errors
/// As [`with_payload`].
pub(crate) fn with_lookup(lookup: Option<WithLookup>) -> Result<Value> {
    let Some(lookup) = lookup else { return Ok(Value::Null) };
    Ok(object([
        ("collection", Value::String(lookup.collection)),
        ("with_payload", with_payload(lookup.with_payload)),
        ("with_vectors", with_vector(lookup.with_vectors)),
    ]))
}

/// Returns the JSON of the requested part of payloads, or null if the request does not say.
pub(crate) fn with_payload(selector: Option<WithPayloadSelector>) -> Value {
    match selector.and_then(|selector| selector.selector_options) {
        None => Value::Null,
        Some(PayloadOptions::Enable(all)) => Value::Bool(all),
        Some(PayloadOptions::Include(chosen)) => json!({ "include": chosen.fields }),
        Some(PayloadOptions::Exclude(chosen)) => json!({ "exclude": chosen.fields }),
    }
}

/// Returns the JSON of the requested vectors, or null if the request does not say.
pub(crate) fn with_vector(selector: Option<WithVectorsSelector>) -> Value {
    match selector.and_then(|selector| selector.selector_options) {
        None => Value::Null,
        Some(VectorOptions::Enable(all)) => Value::Bool(all),
        Some(VectorOptions::Include(chosen)) => json!(chosen.names),
    }
}

#[cfg(test)]
mod tests {
    use protocol::qdrant::shard_key::Key;
    use protocol::qdrant::{ShardKey, ShardKeySelector};

    use super::*;

    #[test]
    fn a_lookup_keeps_its_shard_key_which_routes_refuse() {
        let key = ShardKey { key: Some(Key::Keyword("eu".to_owned())) };
        let shards = ShardKeySelector { shard_keys: vec![key], ..ShardKeySelector::default() };
        let location = LookupLocation {
            collection_name: "other".to_owned(),
            shard_key_selector: Some(shards),
            ..LookupLocation::default()
        };
        let expected = json!({ "collection": "other", "shard_key": ["eu"] });
        assert_eq!(lookup_from(Some(location)), expected);
        assert_eq!(lookup_from(None), Value::Null);
    }
}
