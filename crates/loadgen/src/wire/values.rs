//! Tensors as JSON values and back.

use base::{DType, Data, Error, NamedTensor, Result, Tensor};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use protocol::oip::json::{next_line, parse_record};
use serde_json::{Value, json};

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
        |value: &T| serde_json::to_value(value).map_err(|e| Error::internal("JSON").caused_by(e));
    values.iter().map(value).collect()
}

/// Returns a string, or `{"b64": ..}` for bytes that are not text.
fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => json!({"b64": STANDARD.encode(bytes)}),
    }
}

/// Returns the elements in a flat list, in the form of TensorFlow Serving's API.
fn flat(tensor: &Tensor) -> Result<Vec<Value>> {
    match tensor.data() {
        Data::Strings(strings) => Ok(strings.iter().map(|bytes| text(bytes)).collect()),
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
    if tensor.shape().is_empty() {
        values.pop().ok_or_else(|| Error::internal("a scalar without a value"))
    } else {
        Ok(Value::from(values))
    }
}

/// Parses the inputs of a request in the Open Inference Protocol's JSON form. Files for
/// `bench load --request` have this form for any API.
///
/// # Errors
/// `InvalidArgument` if a field is missing or a value does not fit its type.
pub fn from_json(text: &[u8]) -> Result<Vec<NamedTensor>> {
    Ok(parse_record(Bytes::copy_from_slice(text))?.request.inputs)
}

/// Parses a file with such a request on each line, as a request log in JSON has them. Leaves out
/// requests that had failed when they were logged.
///
/// # Errors
/// `InvalidArgument` with the line's number if a line is not a request. `TooLarge` for more than
/// `max` requests.
pub fn from_json_lines(text: Bytes, max: usize) -> Result<Vec<Vec<NamedTensor>>> {
    let mut rest = text;
    let mut requests = Vec::new();
    let mut number = 0;
    while let Some(line) = next_line(&mut rest) {
        number += 1;
        let record =
            parse_record(line).map_err(|error| error.context(format_args!("request {number}")))?;
        if !record.answered() {
            continue;
        }
        if requests.len() == max {
            return Err(Error::too_large(format!("more than {max} requests")));
        }
        requests.push(record.request.inputs);
    }
    Ok(requests)
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
        let jpeg = vec![Bytes::from_static(b"\xff\xd8")];
        let image = Tensor::from_strings([1].as_slice(), jpeg).unwrap();
        assert_eq!(nested(&image).unwrap().to_string(), "[{\"b64\":\"/9g=\"}]");
        let scalar = Tensor::from_vec([].as_slice(), vec![2.5f32]).unwrap();
        assert_eq!(nested(&scalar).unwrap().to_string(), "2.5");
    }

    #[test]
    fn lines_of_a_log_become_requests() {
        let line = |status: &str, value: u32| {
            format!(
                "{{\"status\":\"{status}\",\"inputs\":[{{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1],\"data\":[{value}]}}]}}\n"
            )
        };
        let text = [line("ok", 1), line("internal", 2), "\n".to_owned(), line("ok", 3)].concat();
        let requests = from_json_lines(text.clone().into(), 2).unwrap();
        let values = |inputs: &Vec<NamedTensor>| inputs[0].tensor.to_vec::<f32>().unwrap()[0];
        assert_eq!(requests.iter().map(values).collect::<Vec<_>>(), [1.0, 3.0]);
        assert!(from_json_lines(text.clone().into(), 1).is_err());
        let error = from_json_lines((text + "{}").into(), 9).unwrap_err();
        assert!(error.message().contains("request 4"), "{error}");
    }

    #[test]
    fn faults_are_named() {
        let error = |text: &str| from_json(text.as_bytes()).unwrap_err().message().to_owned();
        assert!(error("[]").contains("expected"));
        assert!(error("{}").contains("inputs"));
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
