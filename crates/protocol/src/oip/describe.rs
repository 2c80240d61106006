//! Metadata, configuration, statistics and the index as messages. The REST bodies are made from
//! them too.

use std::collections::BTreeMap;
use std::time::Duration;

use base::{DType, Signature, TensorSpec};

use super::datatype;
use crate::inference::model_config::SchedulingChoice;
use crate::inference::model_metadata_response::TensorMetadata;
use crate::inference::repository_index_response::ModelIndex;
use crate::inference::{
    self, DataType, InferBatchStatistics, InferStatistics, ModelDynamicBatching,
    ModelMetadataResponse, ModelQueuePolicy, ModelStatistics, ModelStatisticsResponse,
    RepositoryIndexResponse, StatisticDuration,
};
use crate::status::{BatchTotal, Batching, IndexEntry, QueueLimits, StatisticsEntry, Total};

/// Returns the metadata of a model. `versions` are the versions that serve now, `platform` is the
/// engine.
pub fn model_metadata(
    name: &str,
    versions: &[u64],
    platform: &str,
    signature: &Signature,
) -> ModelMetadataResponse {
    let tensor = |spec: &TensorSpec| TensorMetadata {
        name: spec.name.clone(),
        datatype: datatype(spec.dtype).into(),
        shape: spec.wire_shape(),
    };
    ModelMetadataResponse {
        name: name.into(),
        versions: versions.iter().map(u64::to_string).collect(),
        platform: platform.into(),
        inputs: signature.inputs.iter().map(tensor).collect(),
        outputs: signature.outputs.iter().map(tensor).collect(),
    }
}

/// Returns the configuration of a model. `max_batch_size` is above 0 only if requests are joined
/// along axis 0. The shapes here leave that axis out then, as in Triton, while the metadata keeps
/// it.
pub fn model_config(
    name: &str,
    engine: &str,
    signature: &Signature,
    metadata: &BTreeMap<String, String>,
    batching: Option<&Batching>,
) -> inference::ModelConfig {
    let batch_max = batching.map_or(0, |batching| batching.batch_max);
    // An input without a batch axis keeps all of its axes.
    let dims = |spec: &TensorSpec| {
        let mut shape = spec.wire_shape();
        let batched = batch_max > 0 && shape.first() == Some(&-1);
        shape.split_off(usize::from(batched))
    };
    let input = |spec: &TensorSpec| inference::ModelInput {
        name: spec.name.clone(),
        data_type: config_type(spec.dtype).into(),
        dims: dims(spec),
        optional: spec.optional,
        ..Default::default()
    };
    let output = |spec: &TensorSpec| inference::ModelOutput {
        name: spec.name.clone(),
        data_type: config_type(spec.dtype).into(),
        dims: dims(spec),
        ..Default::default()
    };
    let parameter = |(key, value): (&String, &String)| {
        (key.clone(), inference::ModelParameter { string_value: value.clone() })
    };
    inference::ModelConfig {
        name: name.into(),
        platform: engine.into(),
        backend: backend(engine).into(),
        max_batch_size: i32::try_from(batch_max).unwrap_or(i32::MAX),
        input: signature.inputs.iter().map(input).collect(),
        output: signature.outputs.iter().map(output).collect(),
        parameters: metadata.iter().map(parameter).collect(),
        scheduling_choice: batching
            .map(|batching| SchedulingChoice::DynamicBatching(dynamic_batching(batching))),
        ..Default::default()
    }
}

/// Returns Triton's name of the backend that serves a platform.
fn backend(platform: &str) -> &str {
    match platform {
        "onnxruntime_onnx" => "onnxruntime",
        "pytorch_libtorch" => "pytorch",
        "tensorflow_savedmodel" => "tensorflow",
        other => other,
    }
}

/// Returns the batching settings of a model in the form of Triton's model configuration.
fn dynamic_batching(batching: &Batching) -> ModelDynamicBatching {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let policy = |limits: &QueueLimits| ModelQueuePolicy {
        default_timeout_microseconds: micros(limits.timeout),
        allow_timeout_override: true,
        max_queue_size: limits.queue_max,
        ..Default::default()
    };
    let levels =
        (1..).zip(&batching.levels).map(|(level, limits)| (level, policy(limits))).collect();
    let size = |size: &u32| i32::try_from(*size).unwrap_or(i32::MAX);
    ModelDynamicBatching {
        preferred_batch_size: batching.preferred.iter().map(size).collect(),
        max_queue_delay_microseconds: micros(batching.delay),
        preserve_ordering: false,
        priority_levels: batching.levels.len() as u64,
        default_priority_level: if batching.levels.is_empty() {
            0
        } else {
            batching.default_level.into()
        },
        default_queue_policy: Some(policy(&batching.limits)),
        priority_queue_policy: levels,
    }
}

/// Returns the configuration's name of a type, or `TYPE_INVALID` for a type without one.
fn config_type(dtype: DType) -> DataType {
    match dtype {
        DType::Bool => DataType::TypeBool,
        DType::U8 => DataType::TypeUint8,
        DType::U16 => DataType::TypeUint16,
        DType::U32 => DataType::TypeUint32,
        DType::U64 => DataType::TypeUint64,
        DType::I8 => DataType::TypeInt8,
        DType::I16 => DataType::TypeInt16,
        DType::I32 => DataType::TypeInt32,
        DType::I64 => DataType::TypeInt64,
        DType::F16 => DataType::TypeFp16,
        DType::BF16 => DataType::TypeBf16,
        DType::F32 => DataType::TypeFp32,
        DType::F64 => DataType::TypeFp64,
        DType::String => DataType::TypeString,
        _ => DataType::TypeInvalid,
    }
}

/// Returns statistics as the extension counts them. An item is an inference, and a run is an
/// execution. Computing is not divided into input, inference and output, so inference has all of
/// it.
pub fn model_statistics(entries: &[StatisticsEntry]) -> ModelStatisticsResponse {
    let duration = |total: Total| Some(StatisticDuration { count: total.count, ns: total.nanos });
    let entry = |entry: &StatisticsEntry| {
        let untimed = |total: Total| duration(Total { nanos: 0, ..total });
        let batch = |batch: &BatchTotal| InferBatchStatistics {
            batch_size: batch.size,
            compute_input: untimed(batch.compute),
            compute_infer: duration(batch.compute),
            compute_output: untimed(batch.compute),
        };
        ModelStatistics {
            name: entry.id.model.to_string(),
            version: entry.id.version.to_string(),
            last_inference: entry.last_ms,
            inference_count: entry.items,
            execution_count: entry.executions,
            inference_stats: Some(InferStatistics {
                success: duration(entry.success),
                fail: duration(entry.fail),
                queue: duration(entry.queue),
                compute_input: untimed(entry.compute),
                compute_infer: duration(entry.compute),
                compute_output: untimed(entry.compute),
                cache_hit: duration(Total::default()),
                cache_miss: duration(Total::default()),
            }),
            batch_stats: entry.batches.iter().map(batch).collect(),
            ..Default::default()
        }
    };
    ModelStatisticsResponse { model_stats: entries.iter().map(entry).collect() }
}

/// Returns the repository index.
pub fn repository_index(entries: &[IndexEntry]) -> RepositoryIndexResponse {
    let entry = |entry: &IndexEntry| ModelIndex {
        name: entry.name.to_string(),
        version: entry.version.map(|version| version.to_string()).unwrap_or_default(),
        state: entry.state.into(),
        reason: entry.reason.clone(),
    };
    RepositoryIndexResponse { models: entries.iter().map(entry).collect() }
}
