//! Descriptions of collections.

use crate::json::{distance_name, index_hints};
use base::Result;
use search::collection::{FieldType, IndexedField, SearchThread, Status};
use search::registry::{CollectionSettings, NamedCollection, medium_name};
use serde_json::{Map, Value, json};

use crate::call::CallContext;

/// Member of a collection's extra data that belongs to this interface.
pub(crate) const EXTRA: &str = "qdrant";

/// Returns an object of this interface from the extra data of a collection: `hints` and `metadata`
/// of the request that created it, `payload_schema` by field.
pub(crate) fn stored<'a>(extra: &'a Value, name: &str) -> Option<&'a Map<String, Value>> {
    extra.get(EXTRA)?.get(name)?.as_object()
}

/// Returns the configuration in the description of a collection of `shards` shards with `copies`
/// copies each. The other values, except those of `settings`, are Qdrant's defaults and say nothing
/// about this server. Clients require them, and a collection copied to a Qdrant server gets usable
/// ones.
pub fn described_config(
    settings: &CollectionSettings,
    shards: u32,
    copies: u32,
    metadata: Map<String, Value>,
) -> Value {
    let mut vector = json!({ "size": settings.dims, "distance": distance_name(settings.metric) });
    if !settings.vector_name.is_empty() {
        vector = json!({ settings.vector_name.as_str(): vector });
    }
    json!({
        "params": { "vectors": vector, "shard_number": shards, "replication_factor": copies,
                    "write_consistency_factor": 1, "on_disk_payload": true },
        "hnsw_config": { "m": 16, "ef_construct": 100, "full_scan_threshold": 10_000 },
        "optimizer_config": { "deleted_threshold": 0.2, "vacuum_min_vector_number": 1000,
                              "default_segment_number": 0, "flush_interval_sec": 0 },
        "wal_config": { "wal_capacity_mb": 32, "wal_segments_ahead": 0 },
        "quantization_config": Value::Null,
        "metadata": if metadata.is_empty() { Value::Null } else { Value::Object(metadata) },
    })
}

/// Returns the warning about the setting `name`, which a client requested.
pub fn without_effect(name: &str) -> String {
    format!("{name} was requested and has no effect on this server")
}

/// Describes a collection. Hints without effect are named in `warnings` only.
pub(crate) fn describe(
    named: &NamedCollection,
    _: &mut SearchThread,
    _: &CallContext,
    _: &[u8],
) -> Result<Value> {
    let settings = named.settings();
    let status = named.collection().status();
    let error = [&status.flush_error, &status.merge_error, &status.low_disk, &status.write_error];
    let error = error.into_iter().flatten().next();
    let indexed = named.collection().indexed_fields()?;
    let schema = payload_schema(named, &settings, &indexed)?;
    let metadata = stored(&settings.extra, "metadata").cloned().unwrap_or_default();
    Ok(json!({
        "warnings": warnings(&status, &settings, unindexed(&indexed)),
        "status": colour(&status),
        "optimizing": status.optimizing,
        "optimizer_status": error.map_or_else(|| json!("ok"), |error| json!({ "error": error })),
        "points_count": status.points,
        "indexed_vectors_count": status.points.saturating_sub(status.unflushed),
        "segments_count": status.segments.len() + 1,
        "config": described_config(&settings, 1, 1, metadata),
        "payload_schema": schema,
    }))
}

/// Returns the colour of a collection. Yellow: segments are being opened, flushed or merged, or
/// writes are refused. Red: data is lost until it is repaired.
fn colour(status: &Status) -> &'static str {
    if !status.quarantined.is_empty() || status.log_damaged {
        return "red";
    }
    let refuses = [&status.low_disk, &status.low_memory, &status.write_error];
    let refuses = refuses.into_iter().any(Option::is_some);
    if status.partial || status.optimizing || refuses { "yellow" } else { "green" }
}

/// Describes the segments, the damage and the memory of a collection. Qdrant has no such call.
pub(crate) fn segments(
    named: &NamedCollection,
    _: &mut SearchThread,
    _: &CallContext,
    _: &[u8],
) -> Result<Value> {
    let status = named.collection().status();
    let segments = status.segments.iter().map(|segment| {
        json!({ "name": segment.name, "rows": segment.rows, "deleted": segment.deleted,
                "bytes": segment.bytes, "codes_on_medium": segment.codes_on_medium, "open": segment.open })
    });
    let segments: Vec<Value> = segments.collect();
    let damaged = status
        .quarantined
        .iter()
        .map(|damage| json!({ "file": damage.file, "page": damage.page, "reason": damage.reason }));
    let damaged: Vec<Value> = damaged.collect();
    Ok(json!({
        "medium": medium_name(named.collection().medium_kind()),
        "segments": segments,
        "points": status.points,
        "unflushed_points": status.unflushed,
        "flushes": status.flushes,
        "merges": status.merges,
        "optimizing": status.optimizing,
        "partial": status.partial,
        "log_damaged": status.log_damaged,
        "damaged": damaged,
        "damaged_count": status.quarantined_count,
        "errors": { "flush": status.flush_error, "merge": status.merge_error,
                    "disk": status.low_disk, "log": status.write_error },
        "refused_writes": status.disk_refused,
        "memory": { "used_bytes": status.memory.used, "cached_bytes": status.memory.cached,
                    "peak_bytes": status.memory.peak, "limit_bytes": status.memory.limit,
                    "refused": status.memory.refused },
    }))
}

/// Returns the indexed fields, each with the number of points that have a value of it. These are
/// the fields with a requested index, and others that segments index by themselves. Reads no
/// payload of a segment. So points of segments without an index on a field are not counted.
fn payload_schema(
    named: &NamedCollection,
    settings: &CollectionSettings,
    indexed: &[IndexedField],
) -> Result<Map<String, Value>> {
    let mut fields = Map::new();
    for (field, schema) in stored(&settings.extra, "payload_schema").into_iter().flatten() {
        let points = if named.collection().has_index(field) {
            count_values(named, field)?
        } else {
            indexed.iter().find(|it| it.path == *field).map_or(0, |it| it.points)
        };
        let mut described = json!({ "data_type": schema["data_type"], "points": points });
        if !schema["params"].is_null() {
            described["params"] = schema["params"].clone();
        }
        fields.insert(field.clone(), described);
    }
    for field in indexed {
        let Some(data_type) = field.data_type.filter(|_| !fields.contains_key(&field.path)) else {
            continue;
        };
        let data_type = match data_type {
            FieldType::Bool => "bool",
            FieldType::Integer => "integer",
            FieldType::Float => "float",
            FieldType::Datetime => "datetime",
            FieldType::Keyword => "keyword",
        };
        fields
            .insert(field.path.clone(), json!({ "data_type": data_type, "points": field.points }));
    }
    Ok(fields)
}

/// Counts the points with a value of an indexed field.
fn count_values(named: &NamedCollection, field: &str) -> Result<u64> {
    let counted = named.count_filled(field);
    let counted = counted.map_err(|error| error.context(format_args!("payload_schema.{field}")));
    Ok(counted?.count)
}

/// Returns the fields that some segments do not index, with the reason.
fn unindexed(indexed: &[IndexedField]) -> Vec<String> {
    let warning = |field: &IndexedField| {
        let reason = field.unindexed.as_ref()?;
        let path = &field.path;
        Some(format!("\"{path}\" has no index in {reason}; filters on it read payloads"))
    };
    indexed.iter().filter_map(warning).collect()
}

/// Returns warnings: damaged parts by name, reasons for refused writes, settings without effect,
/// and fields without an index.
fn warnings(status: &Status, settings: &CollectionSettings, unindexed: Vec<String>) -> Vec<Value> {
    let quarantined = status.quarantined.iter().map(ToString::to_string);
    let repairs = status
        .repairs
        .iter()
        .map(|what| format!("repaired when the collection was opened: {what}"));
    let more = status.quarantined_count.saturating_sub(status.quarantined.len() as u64);
    let more = (more > 0).then(|| format!("{more} more that are not named here"));
    let hints = stored(&settings.extra, "hints")
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_null());
    let indexes = stored(&settings.extra, "payload_schema").into_iter().flatten();
    let indexes = indexes.flat_map(|(field, schema)| index_hints(field, &schema["params"]));
    let hints = hints.map(|(name, _)| name.clone()).chain(indexes);
    let hints = hints.map(|name| without_effect(&name));
    let refused = status.low_disk.iter().map(|why| format!("changes are refused: {why}"));
    let full = status.low_memory.iter().map(|why| format!("new points are refused: {why}"));
    let failed = status.write_error.iter().map(|why| format!("changes cannot be written: {why}"));
    let all = quarantined
        .chain(more)
        .chain(repairs)
        .chain(refused)
        .chain(full)
        .chain(failed)
        .chain(hints)
        .chain(unindexed);
    all.map(|message| json!({ "message": message })).collect()
}

#[cfg(test)]
mod tests {
    use search::Metric;
    use search::registry::{Registry, RegistryOptions};

    use super::*;

    #[test]
    fn full_memory_is_yellow_with_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(RegistryOptions::for_tests(directory.path())).unwrap();
        let named = registry.create("a", CollectionSettings::new(2, Metric::L2)).unwrap();
        let status = named.collection().status();
        assert_eq!((colour(&status), status.low_memory.as_ref()), ("green", None));
        let full = Status { low_memory: Some("memory is in use".into()), ..status };
        assert_eq!(colour(&full), "yellow");
        let shown = warnings(&full, &named.settings(), Vec::new());
        assert_eq!(shown, [json!({ "message": "new points are refused: memory is in use" })]);
    }
}
