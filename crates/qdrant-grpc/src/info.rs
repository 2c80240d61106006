//! Responses about collections as messages.
#![allow(deprecated)] // Messages have fields that are deprecated.

use std::collections::BTreeMap;

use base::{Error, Result};
use protocol::qdrant as pb;
use protocol::qdrant::vectors_config::Config;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::index_info::SchemaJson;
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
struct CollectionName {
    name: String,
}

#[derive(Deserialize)]
struct CollectionList {
    collections: Vec<CollectionName>,
}

pub(crate) fn listed(response: &RestResponse<'_>) -> Result<pb::ListCollectionsResponse> {
    let parsed = response.parse::<CollectionList>()?;
    let described = |named: CollectionName| pb::CollectionDescription { name: named.name };
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
struct VectorParamsJson {
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

/// Returns the message of a collection's configuration.
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
    let unreadable = |error| Error::internal("the vectors of a collection").caused_by(error);
    if value.get("size").is_some_and(Value::is_number) {
        let one: VectorParamsJson = serde_json::from_value(value).map_err(unreadable)?;
        return Ok(Config::Params(vector(one)));
    }
    let named: BTreeMap<String, VectorParamsJson> =
        serde_json::from_value(value).map_err(unreadable)?;
    let map = named.into_iter().map(|(name, one)| (name, vector(one))).collect();
    Ok(Config::ParamsMap(pb::VectorParamsMap { map }))
}

fn vector(given: VectorParamsJson) -> pb::VectorParams {
    let distance = match given.distance.as_str() {
        "Cosine" => pb::Distance::Cosine,
        "Euclid" => pb::Distance::Euclid,
        "Dot" => pb::Distance::Dot,
        "Manhattan" => pb::Distance::Manhattan,
        _ => pb::Distance::UnknownDistance,
    };
    pb::VectorParams { size: given.size, distance: distance as i32, ..pb::VectorParams::default() }
}
