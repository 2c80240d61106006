//! Metadata, configuration, statistics and the index as REST bodies: the messages of gRPC in JSON.

use std::collections::BTreeMap;

use base::Signature;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::inference::model_config::SchedulingChoice;
use crate::inference::model_metadata_response::TensorMetadata;
use crate::inference::{
    DataType, InferBatchStatistics, ModelDynamicBatching, ModelQueuePolicy, ModelStatistics,
    StatisticDuration,
};
use crate::oip::{EXTENSIONS, describe};
use crate::status::{Batching, IndexEntry, StatisticsEntry};

/// Members of statistics that have no content here.
const EMPTY_STATISTICS: &str = r#""memory_usage":[],"response_stats":{}"#;

fn body(value: &Value) -> Bytes {
    value.to_string().into()
}

/// Returns the server's name, version and extensions.
pub fn server_metadata(name: &str, version: &str) -> Bytes {
    body(&json!({ "name": name, "version": version, "extensions": EXTENSIONS }))
}

/// Returns the body of the liveness route.
pub fn live() -> Bytes {
    body(&json!({ "live": true }))
}

/// Returns the body of the readiness route: ready if there is no `error`. The protocol requires a
/// status only. KServe's client reads the body.
pub fn ready(error: Option<&str>) -> Bytes {
    body(&match error {
        None => json!({ "ready": true }),
        Some(error) => json!({ "ready": false, "error": error }),
    })
}

/// Returns the body of the readiness route of model `name`, which is ready.
pub fn model_ready(name: &str) -> Bytes {
    body(&json!({ "name": name, "ready": true }))
}

/// Writes a model's metadata. See [`describe::model_metadata`].
pub fn model_metadata(
    name: &str,
    versions: &[u64],
    platform: &str,
    signature: &Signature,
) -> Bytes {
    let message = describe::model_metadata(name, versions, platform, signature);
    let tensors = |tensors: &[TensorMetadata]| -> Value {
        tensors
            .iter()
            .map(|t| json!({ "name": t.name, "datatype": t.datatype, "shape": t.shape }))
            .collect()
    };
    body(&json!({
        "name": message.name,
        "versions": message.versions,
        "platform": message.platform,
        "inputs": tensors(&message.inputs),
        "outputs": tensors(&message.outputs),
    }))
}

/// Writes a model's configuration. See [`describe::model_config`].
pub fn model_config(
    name: &str,
    engine: &str,
    signature: &Signature,
    metadata: &BTreeMap<String, String>,
    batching: Option<&Batching>,
) -> Bytes {
    let message = describe::model_config(name, engine, signature, metadata, batching);
    let dtype = |number: i32| DataType::try_from(number).unwrap_or_default().as_str_name();
    let input = |input: &crate::inference::ModelInput| {
        json!({
            "name": input.name,
            "data_type": dtype(input.data_type),
            "format": "FORMAT_NONE",
            "dims": input.dims,
            "is_shape_tensor": input.is_shape_tensor,
            "allow_ragged_batch": input.allow_ragged_batch,
            "optional": input.optional,
            "is_non_linear_format_io": input.is_non_linear_format_io,
        })
    };
    let output = |output: &crate::inference::ModelOutput| {
        json!({
            "name": output.name,
            "data_type": dtype(output.data_type),
            "dims": output.dims,
            "label_filename": output.label_filename,
            "is_shape_tensor": output.is_shape_tensor,
            "is_non_linear_format_io": output.is_non_linear_format_io,
        })
    };
    let parameters: serde_json::Map<String, Value> = message
        .parameters
        .iter()
        .map(|(key, value)| (key.clone(), json!({ "string_value": value.string_value })))
        .collect();
    let mut config = json!({
        "name": message.name,
        "platform": message.platform,
        "backend": message.backend,
        "max_batch_size": message.max_batch_size,
        "input": message.input.iter().map(input).collect::<Vec<_>>(),
        "output": message.output.iter().map(output).collect::<Vec<_>>(),
        "parameters": parameters,
        // Triton always writes these fields, so clients may read them without a check.
        "runtime": message.runtime,
        "batch_input": [],
        "batch_output": [],
        "instance_group": [],
        "default_model_filename": message.default_model_filename,
        "cc_model_filenames": {},
        "metric_tags": {},
        "model_warmup": [],
    });
    if let Some(SchedulingChoice::DynamicBatching(batching)) = &message.scheduling_choice {
        config["dynamic_batching"] = dynamic_batching(batching);
    }
    body(&config)
}

/// Returns the JSON of batching settings. Its members are those of Triton's HTTP interface.
fn dynamic_batching(message: &ModelDynamicBatching) -> Value {
    let policy = |policy: &ModelQueuePolicy| {
        json!({
            "timeout_action": "REJECT",
            "default_timeout_microseconds": policy.default_timeout_microseconds,
            "allow_timeout_override": policy.allow_timeout_override,
            "max_queue_size": policy.max_queue_size,
        })
    };
    let levels: serde_json::Map<String, Value> = message
        .priority_queue_policy
        .iter()
        .map(|(level, limits)| (level.to_string(), policy(limits)))
        .collect();
    json!({
        "preferred_batch_size": message.preferred_batch_size,
        "max_queue_delay_microseconds": message.max_queue_delay_microseconds,
        "preserve_ordering": message.preserve_ordering,
        "priority_levels": message.priority_levels,
        "default_priority_level": message.default_priority_level,
        "default_queue_policy": message.default_queue_policy.as_ref().map(policy),
        "priority_queue_policy": levels,
    })
}

/// Writes statistics. See [`describe::model_statistics`].
pub fn statistics(entries: &[StatisticsEntry]) -> Bytes {
    let message = describe::model_statistics(entries);
    // Written as text: a tree of values copies each part once for each level above it, and a server
    // has many models.
    let models: Vec<String> = message.model_stats.iter().map(one_model).collect();
    format!(r#"{{"model_stats":[{}]}}"#, models.join(",")).into()
}

/// Returns the statistics of one version as JSON.
fn one_model(model: &ModelStatistics) -> String {
    let stats = model.inference_stats.unwrap_or_default();
    let durations = [
        ("success", stats.success),
        ("fail", stats.fail),
        ("queue", stats.queue),
        ("compute_input", stats.compute_input),
        ("compute_infer", stats.compute_infer),
        ("compute_output", stats.compute_output),
        ("cache_hit", stats.cache_hit),
        ("cache_miss", stats.cache_miss),
    ];
    let batches: Vec<String> = model.batch_stats.iter().map(one_batch).collect();
    let head = format!(
        r#""name":{},"version":{},"last_inference":{},"inference_count":{},"execution_count":{}"#,
        json!(model.name),
        json!(model.version),
        model.last_inference,
        model.inference_count,
        model.execution_count
    );
    let durations = format!(r#""inference_stats":{{{}}}"#, members(&durations));
    let batches = format!(r#""batch_stats":[{}]"#, batches.join(","));
    format!("{{{head},{durations},{batches},{EMPTY_STATISTICS}}}")
}

fn one_batch(batch: &InferBatchStatistics) -> String {
    let durations = [
        ("compute_input", batch.compute_input),
        ("compute_infer", batch.compute_infer),
        ("compute_output", batch.compute_output),
    ];
    format!(r#"{{"batch_size":{},{}}}"#, batch.batch_size, members(&durations))
}

/// Returns durations as members of a JSON object.
fn members(durations: &[(&str, Option<StatisticDuration>)]) -> String {
    let member = |(name, duration): &(&str, Option<StatisticDuration>)| {
        let StatisticDuration { count, ns } = duration.unwrap_or_default();
        format!(r#""{name}":{{"count":{count},"ns":{ns}}}"#)
    };
    durations.iter().map(member).collect::<Vec<String>>().join(",")
}

/// Writes every model and version with its state. A model without versions has no "version".
pub fn repository_index(entries: &[IndexEntry]) -> Bytes {
    let entry = |entry: &IndexEntry| {
        let mut line =
            json!({ "name": &*entry.name, "state": entry.state, "reason": entry.reason });
        if let Some(version) = entry.version {
            line["version"] = version.to_string().into();
        }
        line
    };
    body(&Value::Array(entries.iter().map(entry).collect()))
}
