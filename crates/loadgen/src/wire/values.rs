//! Tensors as JSON values and back.

use base::{DType, Data, Error, NamedTensor, Result, Tensor};
use bytes::Bytes;
use serde_json::Value;

/// Calls `$then::<T>` for the Rust type of a dtype.
macro_rules! by_type {
    ($dtype:expr, $then:ident, $($argument:expr),*) => {
        match $dtype {
            DType::Bool | DType::U8 => $then::<u8>($($argument),*),
            DType::U16 => $then::<u16>($($argument),*),
            DType::U32 => $then::<u32>($($argument),*),
            DType::U64 => $then::<u64>($($argument),*),
            DType::I8 => $then::<i8>($($argument),*),
            DType::I16 => $then::<i16>($($argument),*),
            DType::I32 => $then::<i32>($($argument),*),
            DType::I64 => $then::<i64>($($argument),*),
            DType::F32 => $then::<f32>($($argument),*),
            DType::F64 => $then::<f64>($($argument),*),
            other => Err(Error::unimplemented(format!("{other} cannot be written as JSON here; use gRPC"))),
        }
    };
}

fn numbers<T: base::Element + serde::Serialize>(bytes: &[u8]) -> Result<Vec<Value>> {
    let values: Vec<T> = bytemuck::pod_collect_to_vec(bytes);
    let value =
        |value: &T| serde_json::to_value(value).map_err(|e| Error::internal(format!("JSON: {e}")));
    values.iter().map(value).collect()
}

/// Returns the elements in a flat list.
pub(super) fn flat(tensor: &Tensor) -> Result<Vec<Value>> {
    match tensor.data() {
        Data::Strings(strings) => Ok(strings
            .iter()
            .map(|text| Value::from(String::from_utf8_lossy(text).into_owned()))
            .collect()),
        Data::Bytes(bytes) => {
            let values = by_type!(tensor.dtype(), numbers, bytes)?;
            if tensor.dtype() == DType::Bool {
                return Ok(values.into_iter().map(|value| Value::from(value != 0)).collect());
            }
            Ok(values)
        }
    }
}

/// Returns the elements in lists nested as deep as the shape.
pub(super) fn nested(tensor: &Tensor) -> Result<Value> {
    let mut values = flat(tensor)?;
    for &size in tensor.shape().iter().skip(1).rev() {
        values = values.chunks(size.max(1)).map(|chunk| Value::from(chunk.to_vec())).collect();
    }
    match tensor.shape().is_empty() {
        true => values.pop().ok_or_else(|| Error::internal("a scalar without a value")),
        false => Ok(Value::from(values)),
    }
}

fn parse<T: base::Element + serde::de::DeserializeOwned>(
    shape: &[usize],
    values: &[Value],
) -> Result<Tensor> {
    let element = |value: &Value| {
        serde_json::from_value::<T>(value.clone())
            .map_err(|e| Error::invalid(format!("{value} does not fit: {e}")))
    };
    Tensor::from_vec(shape, values.iter().map(element).collect::<Result<Vec<T>>>()?)
}

fn flatten(value: &Value, into: &mut Vec<Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| flatten(item, into)),
        other => into.push(other.clone()),
    }
}

/// Parses the inputs of a request in the Open Inference Protocol's JSON form, in which `bench load
/// --request` files are written for any API.
///
/// # Errors
/// `InvalidArgument` if a field is missing or a value does not fit its type.
pub fn from_json(text: &[u8]) -> Result<Vec<NamedTensor>> {
    let root: Value =
        serde_json::from_slice(text).map_err(|e| Error::invalid(format!("not JSON: {e}")))?;
    let wanted =
        || Error::invalid("wanted {\"inputs\": [{\"name\", \"datatype\", \"shape\", \"data\"}]}");
    root["inputs"].as_array().ok_or_else(wanted)?.iter().map(input).collect()
}

fn input(value: &Value) -> Result<NamedTensor> {
    let missing = |what: &str| Error::invalid(format!("an input has no usable \"{what}\""));
    let name = value["name"].as_str().ok_or_else(|| missing("name"))?;
    let dtype =
        super::names::from_oip(value["datatype"].as_str().ok_or_else(|| missing("datatype"))?)?;
    let shape = value["shape"].as_array().ok_or_else(|| missing("shape"))?;
    let size = |size: &Value| size.as_u64().and_then(|size| usize::try_from(size).ok());
    let shape: Vec<usize> =
        shape.iter().map(size).collect::<Option<_>>().ok_or_else(|| missing("shape"))?;
    let mut elements = Vec::new();
    flatten(&value["data"], &mut elements);
    let tensor = match dtype {
        DType::String => strings(&shape, &elements),
        DType::Bool => {
            let bit = |value: &Value| value.as_bool().map(u8::from).ok_or_else(|| missing("data"));
            let bits: Vec<u8> = elements.iter().map(bit).collect::<Result<_>>()?;
            Tensor::from_bytes(DType::Bool, shape.as_slice(), Bytes::from(bits))
        }
        dtype => by_type!(dtype, parse, &shape, &elements),
    };
    tensor
        .map(|tensor| NamedTensor::new(name, tensor))
        .map_err(|e| e.context(format!("input \"{name}\"")))
}

fn strings(shape: &[usize], values: &[Value]) -> Result<Tensor> {
    let text = |value: &Value| {
        let text = value.as_str().ok_or_else(|| Error::invalid(format!("{value} is no string")))?;
        Ok(Bytes::copy_from_slice(text.as_bytes()))
    };
    let strings: Vec<Bytes> = values.iter().map(text).collect::<Result<_>>()?;
    Tensor::from_strings(shape, strings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_file_becomes_tensors() {
        let text = br#"{"inputs": [
            {"name": "x", "datatype": "INT64", "shape": [2, 2], "data": [[1, 2], [3, -4]]},
            {"name": "b", "datatype": "BOOL", "shape": [1], "data": [true]},
            {"name": "s", "datatype": "BYTES", "shape": [1], "data": ["hi"]}]}"#;
        let inputs = from_json(text).unwrap();
        assert_eq!(inputs[0].tensor.to_vec::<i64>().unwrap(), [1, 2, 3, -4]);
        assert_eq!(nested(&inputs[0].tensor).unwrap().to_string(), "[[1,2],[3,-4]]");
        assert_eq!(nested(&inputs[1].tensor).unwrap().to_string(), "[true]");
        assert_eq!(nested(&inputs[2].tensor).unwrap().to_string(), "[\"hi\"]");
        let scalar = Tensor::from_vec([].as_slice(), vec![2.5f32]).unwrap();
        assert_eq!(nested(&scalar).unwrap().to_string(), "2.5");
    }

    #[test]
    fn faults_are_named() {
        let error = |text: &str| from_json(text.as_bytes()).unwrap_err().message().to_owned();
        assert!(error("[]").contains("inputs"));
        assert!(
            error(r#"{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[300]}]}"#)
                .contains("300")
        );
        assert!(
            error(r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1]}]}"#)
                .contains("\"x\"")
        );
    }
}
