//! Metadata, configuration, statistics and the index as messages, from which the REST bodies are made too.

use std::collections::BTreeMap;

use base::{DType, Signature, TensorSpec};

use super::datatype;
use crate::inference::model_metadata_response::TensorMetadata;
use crate::inference::repository_index_response::ModelIndex;
use crate::inference::{
    self, DataType, InferStatistics, ModelMetadataResponse, ModelStatistics, ModelStatisticsResponse,
    RepositoryIndexResponse, StatisticDuration,
};
use crate::status::{IndexEntry, StatisticsEntry, Total};

/// The metadata of a model: `versions` are those that answer now, `platform` is the engine.
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

/// The configuration of a model. Its shapes keep the batch axis, so `max_batch_size` is 0.
pub fn model_config(
    name: &str,
    engine: &str,
    signature: &Signature,
    metadata: &BTreeMap<String, String>,
) -> inference::ModelConfig {
    let input = |spec: &TensorSpec| inference::ModelInput {
        name: spec.name.clone(),
        data_type: config_type(spec.dtype).into(),
        dims: spec.wire_shape(),
        optional: spec.optional,
        ..Default::default()
    };
    let output = |spec: &TensorSpec| inference::ModelOutput {
        name: spec.name.clone(),
        data_type: config_type(spec.dtype).into(),
        dims: spec.wire_shape(),
    };
    let parameter = |(key, value): (&String, &String)| {
        (key.clone(), inference::ModelParameter { string_value: value.clone() })
    };
    inference::ModelConfig {
        name: name.into(),
        platform: engine.into(),
        backend: engine.into(),
        input: signature.inputs.iter().map(input).collect(),
        output: signature.outputs.iter().map(output).collect(),
        parameters: metadata.iter().map(parameter).collect(),
        ..Default::default()
    }
}

/// The configuration's own names of types; `TYPE_INVALID` for those it has none for.
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

/// Statistics as the extension counts them: every request is one inference and one execution; computing is not
/// divided into input, inference and output, so inference has all of it.
pub fn model_statistics(entries: &[StatisticsEntry]) -> ModelStatisticsResponse {
    let duration = |total: Total| Some(StatisticDuration { count: total.count, ns: total.nanos });
    let entry = |entry: &StatisticsEntry| {
        let untimed = Total { count: entry.compute.count, nanos: 0 };
        ModelStatistics {
            name: entry.id.model.to_string(),
            version: entry.id.version.to_string(),
            last_inference: entry.last_ms,
            inference_count: entry.success.count,
            execution_count: entry.success.count,
            inference_stats: Some(InferStatistics {
                success: duration(entry.success),
                fail: duration(entry.fail),
                queue: duration(entry.queue),
                compute_input: duration(untimed),
                compute_infer: duration(entry.compute),
                compute_output: duration(untimed),
                cache_hit: duration(Total::default()),
                cache_miss: duration(Total::default()),
            }),
            ..Default::default()
        }
    };
    ModelStatisticsResponse { model_stats: entries.iter().map(entry).collect() }
}

/// The repository index.
pub fn repository_index(entries: &[IndexEntry]) -> RepositoryIndexResponse {
    let entry = |entry: &IndexEntry| ModelIndex {
        name: entry.name.to_string(),
        version: entry.version.map(|version| version.to_string()).unwrap_or_default(),
        state: entry.state.into(),
        reason: entry.reason.clone(),
    };
    RepositoryIndexResponse { models: entries.iter().map(entry).collect() }
}
