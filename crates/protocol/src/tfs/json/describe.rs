//! Status and metadata as REST bodies: the messages of gRPC in proto3's JSON.

use std::collections::BTreeMap;

use base::VersionId;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::status::VersionState;
use crate::tensorflow::{DataType, SignatureDef, TensorInfo, tensor_info};
use crate::tfs::{METADATA_FIELD, SignatureInfo, grpc};

/// Writes the state of each version.
pub fn status(versions: &[VersionState]) -> Bytes {
    let line = |state: &VersionState| {
        json!({
            "version": state.version.to_string(),
            "state": state.state.message().as_str_name(),
            "status": {
                "error_code": grpc::error_code(state).as_str_name(),
                "error_message": state.error.as_deref().unwrap_or_default(),
            },
        })
    };
    let lines: Vec<Value> = versions.iter().map(line).collect();
    json!({ "model_version_status": lines }).to_string().into()
}

/// Writes the metadata of a version.
pub fn metadata(version: &VersionId, signatures: &[SignatureInfo<'_>]) -> Bytes {
    let definitions: Map<String, Value> = signatures
        .iter()
        .map(|info| (info.name.to_owned(), definition_json(&grpc::signature_def(*info))))
        .collect();
    let body = json!({
        "model_spec": {
            "name": &*version.model,
            "signature_name": "",
            "version": version.version.to_string(),
        },
        "metadata": { METADATA_FIELD: { "signature_def": definitions } },
    });
    body.to_string().into()
}

fn definition_json(definition: &SignatureDef) -> Value {
    json!({
        "inputs": infos(&definition.inputs),
        "outputs": infos(&definition.outputs),
        "method_name": definition.method_name,
        "defaults": {},
    })
}

fn infos(infos: &BTreeMap<String, TensorInfo>) -> Value {
    let entries: Map<String, Value> =
        infos.iter().map(|(name, info)| (name.clone(), info_json(info))).collect();
    Value::Object(entries)
}

/// Returns the JSON of a `TensorInfo`, in protobuf's form.
fn info_json(info: &TensorInfo) -> Value {
    let shape = info.tensor_shape.clone().unwrap_or_default();
    let dims: Vec<Value> = shape
        .dim
        .iter()
        .map(|dim| json!({ "size": dim.size.to_string(), "name": dim.name }))
        .collect();
    let name = info.encoding.as_ref().map(|tensor_info::Encoding::Name(name)| name.as_str());
    json!({
        "dtype": DataType::try_from(info.dtype).unwrap_or_default().as_str_name(),
        "tensor_shape": { "dim": dims, "unknown_rank": shape.unknown_rank },
        "name": name.unwrap_or_default(),
    })
}
