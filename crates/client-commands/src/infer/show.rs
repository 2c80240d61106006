//! Formats responses as text and as JSON.

use base::{DType, Data, NamedTensor, Tensor};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use loadgen::report::TextTable;
use protocol::oip::InferResponse;
use serde_json::{Value, json};

/// Maximum number of values shown per output.
const VALUES_SHOWN: usize = 6;
/// Maximum number of characters shown per string.
const STRING_CHARS_SHOWN: usize = 40;
/// Maximum number of rows for which `top` shows values.
const ROWS_SHOWN: usize = 16;

/// Formats one line per output.
pub(crate) fn table(outputs: &[NamedTensor]) -> String {
    let mut table = TextTable::left(&["OUTPUT", "TYPE", "SHAPE", "VALUES"]);
    for output in outputs {
        let tensor = &output.tensor;
        let mut values = first_values(tensor);
        if tensor.elements() > VALUES_SHOWN {
            values.push("…".to_owned());
        }
        table.row([
            output.name.to_string(),
            tensor.dtype().to_string(),
            format!("{:?}", tensor.shape()),
            values.join("  "),
        ]);
    }
    table.to_string()
}

/// Formats the first elements.
fn first_values(tensor: &Tensor) -> Vec<String> {
    // JSON has neither infinities nor NaN, so floats are not converted to JSON to be shown.
    let is_float = matches!(tensor.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    match is_float.then(|| scores(tensor)).flatten() {
        Some(numbers) => numbers.into_iter().take(VALUES_SHOWN).map(short_number).collect(),
        None => values(tensor).take(VALUES_SHOWN).map(|value| short(&value)).collect(),
    }
}

/// Formats the `count` highest values of each row (along the last axis) of each numeric output.
pub(crate) fn top(outputs: &[NamedTensor], count: usize, labels: &[String]) -> String {
    let mut text = String::new();
    for output in outputs {
        let shape = output.tensor.shape();
        let width = shape.last().copied().unwrap_or(1);
        let Some(scores) = scores(&output.tensor).filter(|_| width > 1) else { continue };
        for (row, scores) in scores.chunks_exact(width).enumerate().take(ROWS_SHOWN) {
            text.push_str(&format!("\n{}, row {row}:\n", output.name));
            let mut order: Vec<usize> = (0..width).collect();
            order.sort_by(|&a, &b| rank(scores[b]).total_cmp(&rank(scores[a])));
            for &index in order.iter().take(count) {
                let label = labels.get(index).map(String::as_str).unwrap_or_default();
                let line =
                    format!("  {index:>6}  {:<12}  {label}", format!("{:.6}", scores[index]));
                text.push_str(line.trim_end());
                text.push('\n');
            }
        }
    }
    text
}

/// Returns the elements as numbers, with infinities and NaN, which JSON does not have. `None` if
/// they are not numbers.
fn scores(tensor: &Tensor) -> Option<Vec<f64>> {
    fn floats<T: base::Element + Into<f64>>(tensor: &Tensor) -> Option<Vec<f64>> {
        Some(tensor.to_vec::<T>().ok()?.into_iter().map(Into::into).collect())
    }
    match tensor.dtype() {
        DType::F16 => floats::<half::f16>(tensor),
        DType::BF16 => floats::<half::bf16>(tensor),
        DType::F32 => floats::<f32>(tensor),
        DType::F64 => floats::<f64>(tensor),
        _ => values(tensor).map(|value| value.as_f64()).collect(),
    }
}

/// Returns a value by which scores are ordered: NaN is below all others.
fn rank(score: f64) -> f64 {
    if score.is_nan() { f64::NEG_INFINITY } else { score }
}

/// Converts the whole response to JSON, even if it came in binary. The strings of an output are
/// base64 if one of them is not text, which the output's content type says.
pub(crate) fn json(answer: &InferResponse) -> Value {
    let outputs: Vec<Value> = answer
        .outputs
        .iter()
        .map(|output| {
            let mut value = json!({
                "name": &*output.name,
                "datatype": protocol::oip::datatype(output.tensor.dtype()),
                "shape": output.tensor.shape(),
                "data": values(&output.tensor).collect::<Vec<_>>(),
            });
            let is_text = |string: &Bytes| std::str::from_utf8(string).is_ok();
            if let Some(strings) = output.tensor.strings().filter(|all| !all.iter().all(is_text)) {
                let encoded = strings.iter().map(|string| STANDARD.encode(string));
                value["data"] = encoded.collect();
                value["parameters"] = json!({ "content_type": "base64" });
            }
            value
        })
        .collect();
    json!({ "model_name": answer.model, "model_version": answer.version, "outputs": outputs })
}

/// Returns the elements as JSON values. NaN becomes null, since JSON has none. A complex number is
/// a list of its two parts.
fn values(tensor: &Tensor) -> Box<dyn Iterator<Item = Value> + '_> {
    fn all<T: base::Element>(
        tensor: &Tensor,
        convert: fn(T) -> Value,
    ) -> Box<dyn Iterator<Item = Value> + '_> {
        Box::new(tensor.to_vec::<T>().unwrap_or_default().into_iter().map(convert))
    }
    match (tensor.dtype(), tensor.data()) {
        (_, Data::Strings(strings)) => Box::new(
            strings
                .iter()
                .map(|string| Value::String(String::from_utf8_lossy(string).into_owned())),
        ),
        (DType::Bool, Data::Bytes(bytes)) => {
            Box::new(bytes.iter().map(|&byte| Value::Bool(byte != 0)))
        }
        (DType::U8, _) => all::<u8>(tensor, |value| json!(value)),
        (DType::U16, _) => all::<u16>(tensor, |value| json!(value)),
        (DType::U32, _) => all::<u32>(tensor, |value| json!(value)),
        (DType::U64, _) => all::<u64>(tensor, |value| json!(value)),
        (DType::I8, _) => all::<i8>(tensor, |value| json!(value)),
        (DType::I16, _) => all::<i16>(tensor, |value| json!(value)),
        (DType::I32, _) => all::<i32>(tensor, |value| json!(value)),
        (DType::I64, _) => all::<i64>(tensor, |value| json!(value)),
        (DType::F16, _) => all::<half::f16>(tensor, |value| json!(value.to_f32())),
        (DType::BF16, _) => all::<half::bf16>(tensor, |value| json!(value.to_f32())),
        (DType::F32, _) => all::<f32>(tensor, |value| json!(value)),
        (DType::F64, _) => all::<f64>(tensor, |value| json!(value)),
        (DType::Complex64 | DType::Complex128, _) => {
            let parts = tensor.complex_parts().and_then(|parts| scores(&parts)).unwrap_or_default();
            let pairs: Vec<Value> = parts.chunks_exact(2).map(|pair| json!(pair)).collect();
            Box::new(pairs.into_iter())
        }
        // 8-bit floats and 4-bit integers are not shown.
        _ => Box::new(std::iter::empty()),
    }
}

/// Formats a number: "0.25000", "2.0000e-7", "inf", "NaN".
fn short_number(number: f64) -> String {
    let size = number.abs();
    if size != 0.0 && size.is_finite() && !(1e-4..1e6).contains(&size) {
        format!("{number:.4e}")
    } else {
        format!("{number:.5}")
    }
}

fn short(value: &Value) -> String {
    match value {
        Value::String(text) if text.chars().count() > STRING_CHARS_SHOWN => {
            format!("\"{}…\"", text.chars().take(STRING_CHARS_SHOWN).collect::<String>())
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> NamedTensor {
        NamedTensor::new(
            "y",
            Tensor::from_vec([2usize, 3].as_slice(), vec![0.5f32, 0.25, 2e-7, 1.0, 3.0, 2.0])
                .unwrap(),
        )
    }

    #[test]
    fn each_output_has_a_line() {
        assert_eq!(
            table(&[output()]),
            "OUTPUT  TYPE     SHAPE   VALUES\n\
             y       float32  [2, 3]  0.50000  0.25000  2.0000e-7  1.00000  3.00000  2.00000\n"
        );
    }

    #[test]
    fn the_highest_values_of_each_row_are_shown() {
        let labels = ["cat".to_owned(), "dog".to_owned()];
        assert_eq!(
            top(&[output()], 2, &labels),
            "\ny, row 0:\n       0  0.500000      cat\n       1  0.250000      dog\n\
             \ny, row 1:\n       1  3.000000      dog\n       2  2.000000\n"
        );
    }

    #[test]
    fn masked_scores_are_lowest() {
        let scores = vec![f32::NEG_INFINITY, 0.5, f32::NAN, f32::INFINITY];
        let output =
            NamedTensor::new("y", Tensor::from_vec([1usize, 4].as_slice(), scores).unwrap());
        assert_eq!(
            top(&[output], 3, &[]),
            "\ny, row 0:\n       3  inf\n       1  0.500000\n       0  -inf\n"
        );
    }

    #[test]
    fn infinities_are_not_shown_as_nan() {
        let values = vec![f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e7];
        let output = NamedTensor::new("y", Tensor::from_vec([4usize].as_slice(), values).unwrap());
        assert!(table(&[output]).ends_with("[4]    inf  -inf  NaN  1.0000e7\n"));
    }

    /// Returns the JSON of a response with one output.
    fn json_of(tensor: base::Result<Tensor>) -> Value {
        let outputs = vec![NamedTensor::new("y", tensor.unwrap())];
        json(&InferResponse { outputs, ..InferResponse::default() })["outputs"][0].take()
    }

    #[test]
    fn not_a_number_is_null() {
        let output = json_of(Tensor::from_vec([1usize].as_slice(), vec![f32::NAN]));
        assert_eq!(output["data"], json!([null]));
    }

    #[test]
    fn bytes_that_are_not_text_stay_whole() {
        let strings = |last: &'static [u8]| {
            let all = vec![Bytes::from_static(b"a"), Bytes::from_static(last)];
            json_of(Tensor::from_strings([2usize].as_slice(), all))
        };
        let text = strings(b"\0");
        assert_eq!((&text["data"], &text["parameters"]), (&json!(["a", "\0"]), &Value::Null));
        let bytes = strings(b"\xff\xfe");
        assert_eq!(bytes["data"], json!(["YQ==", "//4="]));
        assert_eq!(bytes["parameters"], json!({ "content_type": "base64" }));
    }

    #[test]
    fn complex_numbers_are_pairs() {
        let parts = Bytes::from([1f32, -2.0].map(f32::to_le_bytes).concat());
        let output = json_of(Tensor::from_bytes(DType::Complex64, [1usize].as_slice(), parts));
        assert_eq!(output["data"], json!([[1.0, -2.0]]));
    }
}
