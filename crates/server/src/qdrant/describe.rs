//! What a collection is, as its clients read it.

use base::Result;
use search::collection::{SearchThread, Status};
use search::filter::{Condition, Filter};
use search::registry::{CollectionSettings, NamedCollection};
use serde_json::{Map, Value, json};

use super::call::CallContext;
use super::convert;

/// Where in what doors keep with a collection this one has its part.
pub(super) const EXTRA: &str = "qdrant";

/// What this door keeps: `hints` and `metadata` as the collection was made with, `payload_schema` by field.
pub(super) fn kept(extra: &Value, name: &str) -> Map<String, Value> {
    extra.get(EXTRA).and_then(|own| own.get(name)).and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Configuration that clients insist on is Qdrant's default, so that a collection copied to a Qdrant server gets a
/// usable one; it says nothing about how this server works. Hints that have no effect are named in `warnings` only.
pub(super) fn describe(
    named: &NamedCollection,
    _: &mut SearchThread,
    _: &CallContext,
    _: &[u8],
) -> Result<Value> {
    let (settings, status) = (named.settings(), named.collection().status());
    let error = [&status.flush_error, &status.merge_error, &status.low_disk, &status.write_error];
    let error = error.into_iter().flatten().next();
    let refuses = status.low_disk.is_some() || status.write_error.is_some();
    // Yellow: something is still being opened, or nothing can be written. Red: something is lost until somebody mends it.
    let state = match (status.quarantined.is_empty() && !status.log_damaged, status.partial || refuses) {
        (false, _) => "red",
        (true, true) => "yellow",
        (true, false) => "green",
    };
    let mut vector = json!({ "size": settings.dims, "distance": convert::distance(settings.metric).name() });
    if !settings.vector_name.is_empty() {
        vector = json!({ settings.vector_name.as_str(): vector });
    }
    let schema = payload_schema(named, &settings)?;
    let metadata = kept(&settings.extra, "metadata");
    Ok(json!({
        "warnings": warnings(&status, &settings),
        "status": state,
        "optimizer_status": error.map_or_else(|| json!("ok"), |error| json!({ "error": error })),
        "points_count": status.points,
        "indexed_vectors_count": status.points.saturating_sub(status.unflushed),
        "segments_count": status.segments.len() + 1,
        "config": {
            "params": { "vectors": vector, "shard_number": 1, "replication_factor": 1,
                        "write_consistency_factor": 1, "on_disk_payload": true },
            "hnsw_config": { "m": 16, "ef_construct": 100, "full_scan_threshold": 10_000 },
            "optimizer_config": { "deleted_threshold": 0.2, "vacuum_min_vector_number": 1000,
                                  "default_segment_number": 0, "flush_interval_sec": 0 },
            "wal_config": { "wal_capacity_mb": 32, "wal_segments_ahead": 0 },
            "quantization_config": Value::Null,
            "metadata": if metadata.is_empty() { Value::Null } else { Value::Object(metadata) },
        },
        "payload_schema": schema,
    }))
}

/// The indexed fields, each with how many points have a value of it.
fn payload_schema(named: &NamedCollection, settings: &CollectionSettings) -> Result<Map<String, Value>> {
    let mut fields = Map::new();
    for (field, schema) in kept(&settings.extra, "payload_schema") {
        let empty = Condition::IsEmpty { key: field.clone() };
        let filled = Filter { must_not: vec![empty], ..Filter::default() };
        let points = named
            .count(Some(&filled))
            .map_err(|error| error.context(format_args!("payload_schema.{field}")))?;
        let mut described = json!({ "data_type": schema["data_type"], "points": points.count });
        if !schema["params"].is_null() {
            described["params"] = schema["params"].clone();
        }
        fields.insert(field, described);
    }
    Ok(fields)
}

/// Lists what is damaged by name, why nothing can be written, and which settings have no effect.
fn warnings(status: &Status, settings: &CollectionSettings) -> Vec<Value> {
    let quarantined = status.quarantined.iter().map(ToString::to_string);
    let mended = status.mended.iter().map(|what| format!("put right when the collection was opened: {what}"));
    let more = status.quarantined_count.saturating_sub(status.quarantined.len() as u64);
    let more = (more > 0).then(|| format!("{more} more that are not named here"));
    let hints = kept(&settings.extra, "hints").into_iter().filter(|(_, value)| !value.is_null());
    let hints = hints.map(|(name, _)| format!("{name} was asked for and has no effect on this server"));
    let fields = kept(&settings.extra, "payload_schema").into_iter();
    let fields = fields.map(|(field, _)| {
        format!("the index on \"{field}\" is recorded only: filters read payloads with it as without it")
    });
    let refused = status.low_disk.iter().map(|why| format!("changes are refused: {why}"));
    let failed = status.write_error.iter().map(|why| format!("changes cannot be written: {why}"));
    let all = quarantined.chain(more).chain(mended).chain(refused).chain(failed).chain(hints).chain(fields);
    all.map(|message| json!({ "message": message })).collect()
}
