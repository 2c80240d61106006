//! Responses about collections as messages.
#![allow(deprecated)] // Messages have fields that are deprecated.

use std::collections::BTreeMap;

use base::{Error, Result};
use protocol::qdrant as pb;
use protocol::qdrant::payload_index_params::IndexParams;
use protocol::qdrant::vectors_config::Config;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::rest::RestResponse;
use crate::values;

#[derive(Deserialize)]
struct Existence {
    exists: bool,
}

pub(crate) fn exists(response: &RestResponse<'_>) -> Result<pb::CollectionExistsResponse> {
    let parsed = response.parse::<Existence>()?;
    let result = Some(pb::CollectionExists { exists: parsed.result.exists });
    Ok(pb::CollectionExistsResponse { result, time: parsed.time })
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct CollectionList {
    collections: Vec<Named>,
}

pub(crate) fn listed(response: &RestResponse<'_>) -> Result<pb::ListCollectionsResponse> {
    let parsed = response.parse::<CollectionList>()?;
    let described = |named: Named| pb::CollectionDescription { name: named.name };
    let collections = parsed.result.collections.into_iter().map(described).collect();
    Ok(pb::ListCollectionsResponse { collections, time: parsed.time })
}

pub(crate) fn changed(response: &RestResponse<'_>) -> Result<pb::CollectionOperationResponse> {
    let parsed = response.parse::<bool>()?;
    Ok(pb::CollectionOperationResponse { result: parsed.result, time: parsed.time })
}

#[derive(Deserialize)]
struct InfoJson {
    status: String,
    optimizer_status: Value,
    #[serde(default)]
    warnings: Vec<WarningJson>,
    segments_count: u64,
    points_count: Option<u64>,
    indexed_vectors_count: Option<u64>,
    config: ConfigJson,
    payload_schema: BTreeMap<String, SchemaJson>,
}

#[derive(Deserialize)]
struct WarningJson {
    message: String,
}

#[derive(Deserialize)]
struct ConfigJson {
    params: ParamsJson,
    hnsw_config: HnswJson,
    optimizer_config: OptimizerJson,
    wal_config: Option<WalJson>,
    metadata: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
struct ParamsJson {
    vectors: Value,
    shard_number: u32,
    replication_factor: Option<u32>,
    write_consistency_factor: Option<u32>,
    #[serde(default)]
    on_disk_payload: bool,
}

#[derive(Deserialize)]
struct VectorJson {
    size: u64,
    distance: String,
}

#[derive(Deserialize)]
struct HnswJson {
    m: u64,
    ef_construct: u64,
    full_scan_threshold: u64,
}

#[derive(Deserialize)]
struct OptimizerJson {
    deleted_threshold: f64,
    vacuum_min_vector_number: u64,
    default_segment_number: u64,
    flush_interval_sec: u64,
}

#[derive(Deserialize)]
struct WalJson {
    wal_capacity_mb: u64,
    wal_segments_ahead: u64,
}

#[derive(Deserialize)]
struct SchemaJson {
    data_type: String,
    points: Option<u64>,
    params: Option<Map<String, Value>>,
}

pub(crate) fn described(response: &RestResponse<'_>) -> Result<pb::GetCollectionInfoResponse> {
    let parsed = response.parse::<InfoJson>()?;
    let info = parsed.result;
    let error = info.optimizer_status.get("error").and_then(Value::as_str);
    let optimizer_status =
        pb::OptimizerStatus { ok: error.is_none(), error: error.unwrap_or_default().to_owned() };
    let schema = info.payload_schema.into_iter().map(|(field, schema)| (field, schema.into()));
    let warnings = info.warnings.into_iter();
    let result = pb::CollectionInfo {
        status: status(&info.status) as i32,
        optimizer_status: Some(optimizer_status),
        segments_count: info.segments_count,
        config: Some(config(info.config)?),
        payload_schema: schema.collect(),
        points_count: info.points_count,
        indexed_vectors_count: info.indexed_vectors_count,
        warnings: warnings.map(|it| pb::CollectionWarning { message: it.message }).collect(),
        ..pb::CollectionInfo::default()
    };
    Ok(pb::GetCollectionInfoResponse { result: Some(result), time: parsed.time })
}

fn status(name: &str) -> pb::CollectionStatus {
    match name {
        "green" => pb::CollectionStatus::Green,
        "yellow" => pb::CollectionStatus::Yellow,
        "red" => pb::CollectionStatus::Red,
        "grey" => pb::CollectionStatus::Grey,
        _ => pb::CollectionStatus::UnknownCollectionStatus,
    }
}

fn config(config: ConfigJson) -> Result<pb::CollectionConfig> {
    let params = config.params;
    Ok(pb::CollectionConfig {
        params: Some(pb::CollectionParams {
            shard_number: params.shard_number,
            on_disk_payload: params.on_disk_payload,
            vectors_config: Some(pb::VectorsConfig { config: Some(vectors(params.vectors)?) }),
            replication_factor: params.replication_factor,
            write_consistency_factor: params.write_consistency_factor,
            ..pb::CollectionParams::default()
        }),
        hnsw_config: Some(pb::HnswConfigDiff {
            m: Some(config.hnsw_config.m),
            ef_construct: Some(config.hnsw_config.ef_construct),
            full_scan_threshold: Some(config.hnsw_config.full_scan_threshold),
            ..pb::HnswConfigDiff::default()
        }),
        optimizer_config: Some(pb::OptimizersConfigDiff {
            deleted_threshold: Some(config.optimizer_config.deleted_threshold),
            vacuum_min_vector_number: Some(config.optimizer_config.vacuum_min_vector_number),
            default_segment_number: Some(config.optimizer_config.default_segment_number),
            flush_interval_sec: Some(config.optimizer_config.flush_interval_sec),
            ..pb::OptimizersConfigDiff::default()
        }),
        wal_config: config.wal_config.map(|wal| pb::WalConfigDiff {
            wal_capacity_mb: Some(wal.wal_capacity_mb),
            wal_segments_ahead: Some(wal.wal_segments_ahead),
            ..pb::WalConfigDiff::default()
        }),
        metadata: values::of_members(config.metadata.unwrap_or_default()),
        ..pb::CollectionConfig::default()
    })
}

fn vectors(value: Value) -> Result<Config> {
    let unreadable = |error| Error::internal(format!("the vectors of a collection: {error}"));
    if value.get("size").is_some_and(Value::is_number) {
        let one: VectorJson = serde_json::from_value(value).map_err(unreadable)?;
        return Ok(Config::Params(vector(one)));
    }
    let named: BTreeMap<String, VectorJson> = serde_json::from_value(value).map_err(unreadable)?;
    let map = named.into_iter().map(|(name, one)| (name, vector(one))).collect();
    Ok(Config::ParamsMap(pb::VectorParamsMap { map }))
}

fn vector(given: VectorJson) -> pb::VectorParams {
    let distance = match given.distance.as_str() {
        "Cosine" => pb::Distance::Cosine,
        "Euclid" => pb::Distance::Euclid,
        "Dot" => pb::Distance::Dot,
        "Manhattan" => pb::Distance::Manhattan,
        _ => pb::Distance::UnknownDistance,
    };
    pb::VectorParams { size: given.size, distance: distance as i32, ..pb::VectorParams::default() }
}

impl From<SchemaJson> for pb::PayloadSchemaInfo {
    fn from(schema: SchemaJson) -> pb::PayloadSchemaInfo {
        let data_type = match schema.data_type.as_str() {
            "keyword" => pb::PayloadSchemaType::Keyword,
            "integer" => pb::PayloadSchemaType::Integer,
            "float" => pb::PayloadSchemaType::Float,
            "geo" => pb::PayloadSchemaType::Geo,
            "text" => pb::PayloadSchemaType::Text,
            "bool" => pb::PayloadSchemaType::Bool,
            "datetime" => pb::PayloadSchemaType::Datetime,
            "uuid" => pb::PayloadSchemaType::Uuid,
            _ => pb::PayloadSchemaType::UnknownType,
        };
        let index_params = schema.params.and_then(|params| index_params(data_type, &params));
        let params =
            index_params.map(|params| pb::PayloadIndexParams { index_params: Some(params) });
        pb::PayloadSchemaInfo { data_type: data_type as i32, params, points: schema.points }
    }
}

/// Returns the parameters of a text index that say how texts are split into words.
fn text_index(params: &Map<String, Value>) -> pb::TextIndexParams {
    let flag = |name: &str| params.get(name).and_then(Value::as_bool);
    let count = |name: &str| params.get(name).and_then(Value::as_u64);
    let tokenizer = match params.get("tokenizer").and_then(Value::as_str) {
        Some("prefix") => pb::TokenizerType::Prefix,
        Some("whitespace") => pb::TokenizerType::Whitespace,
        Some("word") => pb::TokenizerType::Word,
        Some("multilingual") => pb::TokenizerType::Multilingual,
        Some("code") => pb::TokenizerType::Code,
        _ => pb::TokenizerType::Unknown,
    };
    pb::TextIndexParams {
        tokenizer: tokenizer as i32,
        lowercase: flag("lowercase"),
        min_token_len: count("min_token_len"),
        max_token_len: count("max_token_len"),
        ascii_folding: flag("ascii_folding"),
        phrase_matching: flag("phrase_matching"),
        ..pb::TextIndexParams::default()
    }
}

/// Returns the parameters of an index that say what it is for; `None` for types without any.
fn index_params(
    data_type: pb::PayloadSchemaType,
    params: &Map<String, Value>,
) -> Option<IndexParams> {
    let flag = |name: &str| params.get(name).and_then(Value::as_bool);
    match data_type {
        pb::PayloadSchemaType::Keyword => {
            Some(IndexParams::KeywordIndexParams(pb::KeywordIndexParams {
                is_tenant: flag("is_tenant"),
                ..pb::KeywordIndexParams::default()
            }))
        }
        pb::PayloadSchemaType::Integer => {
            Some(IndexParams::IntegerIndexParams(pb::IntegerIndexParams {
                lookup: flag("lookup"),
                range: flag("range"),
                is_principal: flag("is_principal"),
                ..pb::IntegerIndexParams::default()
            }))
        }
        pb::PayloadSchemaType::Text => Some(IndexParams::TextIndexParams(text_index(params))),
        _ => None,
    }
}
