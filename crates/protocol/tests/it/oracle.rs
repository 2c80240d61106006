//! The typed reader against a reference that first makes a tree and then reads it.

use base::{DType, Signature};
use bytes::Bytes;
use proptest::prelude::*;
use protocol::tfs::json;
use serde_json::Value;

use crate::any;

/// Returns the shape of a nested list and its numbers in order; `None` if it is ragged.
fn flatten(value: &Value) -> Option<(Vec<usize>, Vec<f64>)> {
    let Value::Array(items) = value else { return Some((Vec::new(), vec![value.as_f64()?])) };
    let parts: Vec<_> = items.iter().map(flatten).collect::<Option<_>>()?;
    let inner = parts.first().map(|part| part.0.clone()).unwrap_or_default();
    if parts.iter().any(|part| part.0 != inner) {
        return None;
    }
    let shape = [&[items.len()], inner.as_slice()].concat();
    Some((shape, parts.into_iter().flat_map(|part| part.1).collect()))
}

/// Lists that are often, but not always, a tensor.
fn lists() -> impl Strategy<Value = Value> {
    let number =
        prop_oneof![(-1000i32..1000).prop_map(Value::from), (-1e9f64..1e9).prop_map(Value::from)];
    number.prop_recursive(4, 64, 4, |inner| {
        let regular =
            (inner.clone(), 0usize..4).prop_map(|(item, length)| Value::Array(vec![item; length]));
        let free = proptest::collection::vec(inner, 0..4).prop_map(Value::Array);
        prop_oneof![3 => regular, 1 => free]
    })
}

fn signature() -> Signature {
    any::inputs(&[("x", DType::F64, &[])])
}

proptest! {
    #[test]
    fn column_form_agrees(value in lists(), pretty in any::<bool>()) {
        let body = serde_json::json!({ "inputs": value });
        let text = if pretty { serde_json::to_string_pretty(&body) } else { serde_json::to_string(&body) }.unwrap();
        let parsed = json::parse_predict(&Bytes::from(text), &signature()).ok();
        let parsed = parsed.map(|predict| {
            let tensor = &predict.inputs[0].tensor;
            (tensor.shape().to_vec(), tensor.to_vec::<f64>().unwrap())
        });
        prop_assert_eq!(parsed, flatten(&value));
    }

    #[test]
    fn named_rows_stack_as_plain_rows_do(rows in proptest::collection::vec(lists(), 1..4)) {
        let named: Vec<Value> = rows.iter().map(|row| serde_json::json!({ "x": row })).collect();
        let parse = |instances: Value| {
            let body = Bytes::from(serde_json::json!({ "instances": instances }).to_string());
            json::parse_predict(&body, &signature()).map(|predict| predict.inputs).ok()
        };
        let stacked = parse(Value::Array(named));
        prop_assert_eq!(&stacked, &parse(Value::Array(rows.clone())));
        prop_assert_eq!(stacked.is_some(), flatten(&Value::Array(rows)).is_some());
    }

    #[test]
    fn strings_agree(strings in proptest::collection::vec(any::<String>(), 0..5)) {
        let body = Bytes::from(serde_json::json!({ "inputs": strings }).to_string());
        let parsed = json::parse_predict(&body, &any::inputs(&[("x", DType::String, &[-1])])).unwrap();
        let parsed: Vec<&[u8]> = parsed.inputs[0].tensor.strings().unwrap().iter().map(|s| s.as_ref()).collect();
        prop_assert_eq!(parsed, strings.iter().map(String::as_bytes).collect::<Vec<_>>());
    }

    #[test]
    fn syntax_agrees(text in "[\\[\\]{}:,\"ab0-9.eE+\\- \\\\ntrufalse]{0,24}") {
        // Passed over as an unknown member, so only the syntax counts.
        let body = Bytes::from(format!("{{\"inputs\":1,\"other\":{text}}}"));
        let ours = json::parse_predict(&body, &signature()).is_ok();
        // The reference holds every key once and knows the range of numbers; both are more than
        // syntax.
        let theirs = serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok();
        let again = text.contains("\"inputs\"") || text.contains("\"instances\"");
        prop_assert!(ours == theirs || again, "{}", text);
    }
}
