//! Collections and indexes: requests of the REST routes.
#![allow(deprecated)] // Clients may set hints that are deprecated.

use base::{Error, Result};
use http::Method;
use protocol::qdrant as pb;
use protocol::qdrant::max_optimization_threads::Variant as Threads;
use protocol::qdrant::payload_index_params::IndexParams;
use protocol::qdrant::quantization_config::Quantization;
use protocol::qdrant::quantization_config_diff::Quantization as QuantizationDiff;
use protocol::qdrant::stemming_algorithm::StemmingParams;
use protocol::qdrant::vectors_config::Config;
use protocol::qdrant::vectors_config_diff::Config as ConfigDiff;
use serde_json::{Map, Value, json};

use crate::members::{filled, map, object, optional};
use crate::rest::{RestRequest, segment};
use crate::values;

fn path(collection: &str) -> String {
    format!("/collections/{}", segment(collection))
}

pub(crate) fn get(message: pb::GetCollectionInfoRequest) -> Result<RestRequest> {
    Ok(RestRequest::new(Method::GET, path(&message.collection_name)))
}

pub(crate) fn list(_: pb::ListCollectionsRequest) -> Result<RestRequest> {
    Ok(RestRequest::new(Method::GET, "/collections".to_owned()))
}

pub(crate) fn exists(message: pb::CollectionExistsRequest) -> Result<RestRequest> {
    let path = format!("{}/exists", path(&message.collection_name));
    Ok(RestRequest::new(Method::GET, path))
}

pub(crate) fn delete(message: pb::DeleteCollection) -> Result<RestRequest> {
    let request = RestRequest::new(Method::DELETE, path(&message.collection_name));
    Ok(request.with_timeout(message.timeout))
}

pub(crate) fn create(message: pb::CreateCollection) -> Result<RestRequest> {
    let sharding = match message.sharding_method.map(pb::ShardingMethod::try_from) {
        None => Value::Null,
        Some(Ok(pb::ShardingMethod::Auto)) => Value::from("auto"),
        Some(Ok(pb::ShardingMethod::Custom)) => Value::from("custom"),
        Some(Err(_)) => return Err(unknown("sharding_method")),
    };
    let metadata = members(message.metadata)?;
    let payload = message.payload.map(|params| memory_only(params.memory)).transpose()?;
    let id_tracker = message.id_tracker.map(|params| memory_only(params.memory)).transpose()?;
    let strict = message.strict_mode_config.map(strict_mode);
    let body = object([
        ("vectors", message.vectors_config.map_or(Ok(Value::Null), vectors)?),
        ("sparse_vectors", optional(message.sparse_vectors_config.map(sparse))),
        ("sharding_method", sharding),
        ("shard_number", optional(message.shard_number)),
        ("replication_factor", optional(message.replication_factor)),
        ("write_consistency_factor", optional(message.write_consistency_factor)),
        ("on_disk_payload", optional(message.on_disk_payload)),
        ("hnsw_config", message.hnsw_config.map_or(Ok(Value::Null), hnsw)?),
        ("wal_config", optional(message.wal_config.map(wal))),
        ("optimizers_config", message.optimizers_config.map_or(Ok(Value::Null), optimizers)?),
        ("quantization_config", message.quantization_config.map_or(Value::Null, quantization)),
        ("strict_mode_config", optional(strict)),
        ("payload", optional(payload)),
        ("id_tracker", optional(id_tracker)),
        ("metadata", metadata),
    ]);
    let request = RestRequest::new(Method::PUT, path(&message.collection_name));
    Ok(request.with_timeout(message.timeout).with_json(&body))
}

pub(crate) fn update(message: pb::UpdateCollection) -> Result<RestRequest> {
    let body = object([
        ("vectors", message.vectors_config.map_or(Ok(Value::Null), vectors_diff)?),
        ("optimizers_config", message.optimizers_config.map_or(Ok(Value::Null), optimizers)?),
        ("params", message.params.map_or(Ok(Value::Null), params)?),
        ("hnsw_config", message.hnsw_config.map_or(Ok(Value::Null), hnsw)?),
        ("quantization_config", message.quantization_config.map_or(Value::Null, requantization)),
        ("sparse_vectors", optional(message.sparse_vectors_config.map(sparse))),
        ("strict_mode_config", optional(message.strict_mode_config.map(strict_mode))),
        ("metadata", members(message.metadata)?),
    ]);
    let request = RestRequest::new(Method::PATCH, path(&message.collection_name));
    Ok(request.with_timeout(message.timeout).with_json(&body))
}

fn unknown(field: &str) -> Error {
    Error::invalid(format!("{field}: the interface has no such value"))
}

/// Returns the JSON of metadata, or null for none.
fn members(fields: std::collections::BTreeMap<String, pb::Value>) -> Result<Value> {
    if fields.is_empty() {
        return Ok(Value::Null);
    }
    let members = values::to_members(fields).map_err(|error| error.context("metadata"))?;
    Ok(Value::Object(members))
}

/// Returns the JSON of one unnamed vector, or of vectors by name.
fn vectors(config: pb::VectorsConfig) -> Result<Value> {
    match config.config {
        None => Ok(Value::Null),
        Some(Config::Params(one)) => vector(one),
        Some(Config::ParamsMap(named)) => {
            let read = |(name, one): (String, pb::VectorParams)| {
                let read = vector(one).map_err(|error| error.context(&name))?;
                Ok((name, read))
            };
            Ok(Value::Object(named.map.into_iter().map(read).collect::<Result<_>>()?))
        }
    }
}

/// Returns the JSON of the parameters of one vector.
fn vector(given: pb::VectorParams) -> Result<Value> {
    let distance = match pb::Distance::try_from(given.distance) {
        Ok(pb::Distance::Cosine) => "Cosine",
        Ok(pb::Distance::Euclid) => "Euclid",
        Ok(pb::Distance::Dot) => "Dot",
        Ok(pb::Distance::Manhattan) => "Manhattan",
        Ok(pb::Distance::UnknownDistance) | Err(_) => return Err(unknown("distance")),
    };
    let datatype = match given.datatype.map(pb::Datatype::try_from) {
        None | Some(Ok(pb::Datatype::Default)) => Value::Null,
        Some(Ok(kind)) => Value::from(kind.as_str_name().to_lowercase()),
        Some(Err(_)) => return Err(unknown("datatype")),
    };
    let multivector = given.multivector_config.map(|_| json!({ "comparator": "max_sim" }));
    Ok(object([
        ("size", Value::from(given.size)),
        ("distance", Value::from(distance)),
        ("datatype", datatype),
        ("multivector_config", optional(multivector)),
        ("hnsw_config", given.hnsw_config.map_or(Ok(Value::Null), hnsw)?),
        ("quantization_config", given.quantization_config.map_or(Value::Null, quantization)),
        ("on_disk", optional(given.on_disk)),
        ("memory", memory(given.memory)?),
    ]))
}

/// Returns the JSON of changes of vectors. It has the empty name for an unnamed vector.
fn vectors_diff(config: pb::VectorsConfigDiff) -> Result<Value> {
    let one = |given: pb::VectorParamsDiff| -> Result<Value> {
        Ok(object([
            ("hnsw_config", given.hnsw_config.map_or(Ok(Value::Null), hnsw)?),
            ("quantization_config", given.quantization_config.map_or(Value::Null, requantization)),
            ("on_disk", optional(given.on_disk)),
            ("memory", memory(given.memory)?),
        ]))
    };
    match config.config {
        None => Ok(Value::Null),
        Some(ConfigDiff::Params(given)) => Ok(json!({ "": one(given)? })),
        Some(ConfigDiff::ParamsMap(named)) => {
            let read = |(name, given)| Ok((name, one(given)?));
            Ok(Value::Object(named.map.into_iter().map(read).collect::<Result<_>>()?))
        }
    }
}

/// Returns the JSON of sparse vectors, whose parameters no route reads.
fn sparse(config: pb::SparseVectorConfig) -> Value {
    let names = config.map.into_keys().map(|name| (name, json!({})));
    Value::Object(names.collect::<Map<String, Value>>())
}

fn memory(memory: Option<i32>) -> Result<Value> {
    Ok(match memory.map(pb::Memory::try_from) {
        None | Some(Ok(pb::Memory::Unknown)) => Value::Null,
        Some(Ok(pb::Memory::Cold)) => Value::from("cold"),
        Some(Ok(pb::Memory::Cached)) => Value::from("cached"),
        Some(Ok(pb::Memory::Pinned)) => Value::from("pinned"),
        Some(Err(_)) => return Err(unknown("memory")),
    })
}

fn memory_only(given: Option<i32>) -> Result<Value> {
    Ok(object([("memory", memory(given)?)]))
}

fn hnsw(given: pb::HnswConfigDiff) -> Result<Value> {
    Ok(object([
        ("m", optional(given.m)),
        ("ef_construct", optional(given.ef_construct)),
        ("full_scan_threshold", optional(given.full_scan_threshold)),
        ("max_indexing_threads", optional(given.max_indexing_threads)),
        ("on_disk", optional(given.on_disk)),
        ("payload_m", optional(given.payload_m)),
        ("inline_storage", optional(given.inline_storage)),
        ("memory", memory(given.memory)?),
    ]))
}

fn wal(given: pb::WalConfigDiff) -> Value {
    object([
        ("wal_capacity_mb", optional(given.wal_capacity_mb)),
        ("wal_segments_ahead", optional(given.wal_segments_ahead)),
        ("wal_retain_closed", optional(given.wal_retain_closed)),
    ])
}

fn optimizers(given: pb::OptimizersConfigDiff) -> Result<Value> {
    let threads = match given.max_optimization_threads.and_then(|threads| threads.variant) {
        Some(Threads::Value(count)) => Value::from(count),
        Some(Threads::Setting(_)) => Value::from("auto"),
        None => optional(given.deprecated_max_optimization_threads),
    };
    let deleted = given.deleted_threshold.map(values::finite).transpose();
    Ok(object([
        (
            "deleted_threshold",
            deleted.map_err(|error| error.context("deleted_threshold"))?.unwrap_or_default(),
        ),
        ("vacuum_min_vector_number", optional(given.vacuum_min_vector_number)),
        ("default_segment_number", optional(given.default_segment_number)),
        ("max_segment_size", optional(given.max_segment_size)),
        ("memmap_threshold", optional(given.memmap_threshold)),
        ("indexing_threshold", optional(given.indexing_threshold)),
        ("flush_interval_sec", optional(given.flush_interval_sec)),
        ("max_optimization_threads", threads),
        ("prevent_unoptimized", optional(given.prevent_unoptimized)),
    ]))
}

/// Returns the JSON of a quantisation. It has no effect, so its parameters are left out.
fn quantization(config: pb::QuantizationConfig) -> Value {
    match config.quantization {
        None => Value::Null,
        Some(Quantization::Scalar(_)) => json!({ "scalar": { "type": "int8" } }),
        Some(Quantization::Product(_)) => json!({ "product": {} }),
        Some(Quantization::Binary(_)) => json!({ "binary": {} }),
        Some(Quantization::Turboquant(_)) => json!({ "turboquant": {} }),
    }
}

/// Returns the JSON of a change of the quantisation, as [`quantization`] does.
fn requantization(config: pb::QuantizationConfigDiff) -> Value {
    match config.quantization {
        None => Value::Null,
        Some(QuantizationDiff::Scalar(_)) => json!({ "scalar": { "type": "int8" } }),
        Some(QuantizationDiff::Product(_)) => json!({ "product": {} }),
        Some(QuantizationDiff::Binary(_)) => json!({ "binary": {} }),
        Some(QuantizationDiff::Turboquant(_)) => json!({ "turboquant": {} }),
        Some(QuantizationDiff::Disabled(_)) => Value::from("Disabled"),
    }
}

/// Returns the JSON of the limits of a collection, which routes refuse unless they are off. Limits
/// without `enabled` count as on, and a message without any member as off.
fn strict_mode(given: pb::StrictModeConfig) -> Value {
    let enabled = given.enabled;
    let without_limits = pb::StrictModeConfig { enabled, ..pb::StrictModeConfig::default() };
    json!({ "enabled": enabled.unwrap_or(given != without_limits) })
}

fn params(given: pb::CollectionParamsDiff) -> Result<Value> {
    let payload = given.payload.map(|params| memory_only(params.memory)).transpose()?;
    let id_tracker = given.id_tracker.map(|params| memory_only(params.memory)).transpose()?;
    Ok(object([
        ("replication_factor", optional(given.replication_factor)),
        ("write_consistency_factor", optional(given.write_consistency_factor)),
        ("on_disk_payload", optional(given.on_disk_payload)),
        ("read_fan_out_factor", optional(given.read_fan_out_factor)),
        ("read_fan_out_delay_ms", optional(given.read_fan_out_delay_ms)),
        ("payload", optional(payload)),
        ("id_tracker", optional(id_tracker)),
    ]))
}

/// Parameters that an index of every type has.
struct CommonParams {
    on_disk: Option<bool>,
    memory: Option<i32>,
    enable_hnsw: Option<bool>,
    nested: Option<String>,
}

/// Takes the [`CommonParams`] out of the parameters of one type.
macro_rules! common {
    ($given:ident) => {
        CommonParams {
            on_disk: $given.on_disk,
            memory: $given.memory,
            enable_hnsw: $given.enable_hnsw,
            nested: $given.nested,
        }
    };
}

/// Returns the JSON of an index's parameters.
///
/// # Errors
/// `InvalidArgument` for an unknown tokenizer or kind of memory.
pub(crate) fn index_params(params: IndexParams) -> Result<Value> {
    match params {
        IndexParams::KeywordIndexParams(given) => {
            let is_tenant = ("is_tenant", optional(given.is_tenant));
            let prefix = ("prefix", optional(given.prefix.map(|_| true)));
            index("keyword", common!(given), [is_tenant, prefix])
        }
        IndexParams::IntegerIndexParams(given) => {
            let lookup = ("lookup", optional(given.lookup));
            let range = ("range", optional(given.range));
            let is_principal = ("is_principal", optional(given.is_principal));
            index("integer", common!(given), [lookup, range, is_principal])
        }
        IndexParams::FloatIndexParams(given) => {
            let is_principal = ("is_principal", optional(given.is_principal));
            index("float", common!(given), [is_principal])
        }
        IndexParams::GeoIndexParams(given) => index("geo", common!(given), []),
        IndexParams::TextIndexParams(given) => text_index(given),
        IndexParams::BoolIndexParams(given) => index("bool", common!(given), []),
        IndexParams::DatetimeIndexParams(given) => {
            let is_principal = ("is_principal", optional(given.is_principal));
            index("datetime", common!(given), [is_principal])
        }
        IndexParams::UuidIndexParams(given) => {
            let is_tenant = ("is_tenant", optional(given.is_tenant));
            index("uuid", common!(given), [is_tenant])
        }
    }
}

/// Returns the JSON of the parameters of an index with the type `data_type`.
fn index<const N: usize>(
    data_type: &str,
    common: CommonParams,
    own: [(&str, Value); N],
) -> Result<Value> {
    let mut members = map([
        ("type", Value::from(data_type)),
        ("on_disk", optional(common.on_disk)),
        ("memory", memory(common.memory)?),
        ("enable_hnsw", optional(common.enable_hnsw)),
        ("nested", optional(common.nested)),
    ]);
    members.extend(map(own));
    Ok(Value::Object(members))
}

/// Returns the JSON of the parameters of a text index.
fn text_index(given: pb::TextIndexParams) -> Result<Value> {
    let tokenizer = match pb::TokenizerType::try_from(given.tokenizer) {
        Ok(pb::TokenizerType::Unknown) => Value::Null,
        Ok(tokenizer) => Value::from(tokenizer.as_str_name().to_lowercase()),
        Err(_) => return Err(unknown("tokenizer")),
    };
    let stopwords = given.stopwords.map(|set| {
        let list = |words: Vec<String>| filled(words.into_iter().map(Value::from).collect());
        object([("languages", list(set.languages)), ("custom", list(set.custom))])
    });
    let stemmer = given.stemmer.and_then(|stemmer| stemmer.stemming_params);
    let stemmer = stemmer.map(|params| match params {
        StemmingParams::Snowball(snowball) => {
            json!({ "type": "snowball", "language": snowball.language })
        }
        StemmingParams::Disabled(_) => json!({ "type": "none" }),
    });
    let own = [
        ("tokenizer", tokenizer),
        ("lowercase", optional(given.lowercase)),
        ("min_token_len", optional(given.min_token_len)),
        ("max_token_len", optional(given.max_token_len)),
        ("phrase_matching", optional(given.phrase_matching)),
        ("ascii_folding", optional(given.ascii_folding)),
        ("stopwords", optional(stopwords)),
        ("stemmer", optional(stemmer)),
        ("scoring", optional(given.scoring.map(|_| true))),
    ];
    index("text", common!(given), own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_off_only_if_the_message_says_so() {
        let strict = |enabled: Option<bool>| {
            let max_timeout = Some(3);
            strict_mode(pb::StrictModeConfig {
                enabled,
                max_timeout,
                ..pb::StrictModeConfig::default()
            })
        };
        assert_eq!(strict(Some(false)), json!({ "enabled": false }));
        assert_eq!(strict(None), json!({ "enabled": true }));
        let empty = pb::StrictModeConfig::default();
        assert_eq!(strict_mode(empty), json!({ "enabled": false }));
    }

    #[test]
    fn parameters_of_indexes_are_passed_on() {
        let snowball = pb::SnowballParams { language: "english".to_owned() };
        let stemming_params = Some(StemmingParams::Snowball(snowball));
        let text = pb::TextIndexParams {
            stemmer: Some(pb::StemmingAlgorithm { stemming_params }),
            ascii_folding: Some(true),
            memory: Some(pb::Memory::Cold as i32),
            scoring: Some(pb::TextScoringParams::default()),
            nested: Some("offers".to_owned()),
            ..pb::TextIndexParams::default()
        };
        let expected = json!({
            "type": "text", "ascii_folding": true, "memory": "cold", "nested": "offers",
            "scoring": true, "stemmer": { "type": "snowball", "language": "english" },
        });
        assert_eq!(index_params(IndexParams::TextIndexParams(text)).unwrap(), expected);
        let keyword = pb::KeywordIndexParams {
            is_tenant: Some(true),
            prefix: Some(pb::KeywordPrefixParams::default()),
            enable_hnsw: Some(false),
            ..pb::KeywordIndexParams::default()
        };
        let expected =
            json!({ "type": "keyword", "is_tenant": true, "prefix": true, "enable_hnsw": false });
        assert_eq!(index_params(IndexParams::KeywordIndexParams(keyword)).unwrap(), expected);
    }
}
