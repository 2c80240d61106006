//! Metadata, configuration, statistics and the index as REST bodies: the messages of gRPC in JSON.

use std::collections::BTreeMap;

use base::Signature;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::inference::model_metadata_response::TensorMetadata;
use crate::inference::{DataType, StatisticDuration};
use crate::oip::{EXTENSIONS, describe};
use crate::status::{IndexEntry, StatisticsEntry};

fn body(value: &Value) -> Bytes {
    value.to_string().into()
}

/// Who the server is and what it can do.
pub fn server_metadata(name: &str, version: &str) -> Bytes {
    body(&json!({ "name": name, "version": version, "extensions": EXTENSIONS }))
}

/// What a model takes and gives; see [`describe::model_metadata`].
pub fn model_metadata(name: &str, versions: &[u64], platform: &str, signature: &Signature) -> Bytes {
    let message = describe::model_metadata(name, versions, platform, signature);
    let tensors = |tensors: &[TensorMetadata]| -> Value {
        tensors.iter().map(|t| json!({ "name": t.name, "datatype": t.datatype, "shape": t.shape })).collect()
    };
    body(&json!({
        "name": message.name,
        "versions": message.versions,
        "platform": message.platform,
        "inputs": tensors(&message.inputs),
        "outputs": tensors(&message.outputs),
    }))
}

/// How a model is configured; see [`describe::model_config`].
pub fn model_config(
    name: &str,
    engine: &str,
    signature: &Signature,
    metadata: &BTreeMap<String, String>,
) -> Bytes {
    let message = describe::model_config(name, engine, signature, metadata);
    let dtype = |number: i32| DataType::try_from(number).unwrap_or_default().as_str_name();
    let input = |input: &crate::inference::ModelInput| {
        json!({
            "name": input.name,
            "data_type": dtype(input.data_type),
            "format": "FORMAT_NONE",
            "dims": input.dims,
            "optional": input.optional,
        })
    };
    let output = |output: &crate::inference::ModelOutput| json!({ "name": output.name, "data_type": dtype(output.data_type), "dims": output.dims });
    let parameters: serde_json::Map<String, Value> = message
        .parameters
        .iter()
        .map(|(key, value)| (key.clone(), json!({ "string_value": value.string_value })))
        .collect();
    body(&json!({
        "name": message.name,
        "platform": message.platform,
        "backend": message.backend,
        "max_batch_size": message.max_batch_size,
        "input": message.input.iter().map(input).collect::<Vec<_>>(),
        "output": message.output.iter().map(output).collect::<Vec<_>>(),
        "parameters": parameters,
    }))
}

/// Counts and durations; see [`describe::model_statistics`].
pub fn statistics(entries: &[StatisticsEntry]) -> Bytes {
    let message = describe::model_statistics(entries);
    let duration = |duration: Option<StatisticDuration>| {
        let duration = duration.unwrap_or_default();
        json!({ "count": duration.count, "ns": duration.ns })
    };
    let model = |model: &crate::inference::ModelStatistics| {
        let stats = model.inference_stats.unwrap_or_default();
        json!({
            "name": model.name,
            "version": model.version,
            "last_inference": model.last_inference,
            "inference_count": model.inference_count,
            "execution_count": model.execution_count,
            "inference_stats": {
                "success": duration(stats.success),
                "fail": duration(stats.fail),
                "queue": duration(stats.queue),
                "compute_input": duration(stats.compute_input),
                "compute_infer": duration(stats.compute_infer),
                "compute_output": duration(stats.compute_output),
                "cache_hit": duration(stats.cache_hit),
                "cache_miss": duration(stats.cache_miss),
            },
            "batch_stats": [],
            "memory_usage": [],
            "response_stats": {},
        })
    };
    body(&json!({ "model_stats": message.model_stats.iter().map(model).collect::<Vec<_>>() }))
}

/// Every model and version with its state; a model without versions has no "version".
pub fn repository_index(entries: &[IndexEntry]) -> Bytes {
    let entry = |entry: &IndexEntry| {
        let mut line = json!({ "name": &*entry.name, "state": entry.state, "reason": entry.reason });
        if let Some(version) = entry.version {
            line["version"] = version.to_string().into();
        }
        line
    };
    body(&Value::Array(entries.iter().map(entry).collect()))
}
