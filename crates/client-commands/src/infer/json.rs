//! Converts nested JSON lists to tensors. The nesting gives the shape, the model gives the type.

use base::{DType, Element, Tensor};
use bytes::Bytes;
use command_line::exit::{CommandError, CommandResult};
use serde_json::Value;

use crate::infer::metadata::InputSpec;

/// Maximum nesting of lists.
const RANK_MAX: usize = 16;

/// Converts `value` to the tensor for `spec`. A flat list takes the model's shape if that has more
/// axes.
///
/// # Errors
/// Returns an error that names the input: ragged lists, elements of another type, or a shape that
/// does not fit.
pub(crate) fn tensor_for(spec: &InputSpec, value: &Value) -> CommandResult<Tensor> {
    let named = |failure: CommandError| {
        CommandError::failed(format!("input \"{}\": {}", spec.name, failure.message()))
    };
    let mut shape = shape(value).map_err(named)?;
    let mut leaves = Vec::new();
    collect(value, &shape, &mut leaves).map_err(named)?;
    if shape.len() <= 1 && shape.len() != spec.shape.len() {
        shape = spec.fit(leaves.len())?;
    }
    tensor_of(spec.dtype, &shape, &leaves).map_err(named)
}

/// Returns the shape along the first element of each list.
fn shape(value: &Value) -> CommandResult<Vec<usize>> {
    let mut shape = Vec::new();
    let mut inner = Some(value);
    while let Some(Value::Array(list)) = inner {
        if shape.len() == RANK_MAX {
            return Err(CommandError::failed(format!("lists nested deeper than {RANK_MAX}")));
        }
        shape.push(list.len());
        inner = list.first();
    }
    Ok(shape)
}

/// Appends the elements of nested lists to `leaves`. Each list must have its length in `shape`.
fn collect<'a>(value: &'a Value, shape: &[usize], leaves: &mut Vec<&'a Value>) -> CommandResult {
    match (value, shape) {
        (Value::Array(list), [size, inner @ ..]) if list.len() == *size => {
            list.iter().try_for_each(|element| collect(element, inner, leaves))
        }
        (Value::Array(_), _) | (_, [_, ..]) => {
            Err(CommandError::failed("the lists are not all of one length"))
        }
        (leaf, []) => {
            leaves.push(leaf);
            Ok(())
        }
    }
}

/// Converts numbers, texts or truth values of JSON to a tensor.
///
/// # Errors
/// Returns an error that names the first value of another type or out of range.
fn tensor_of(dtype: DType, shape: &[usize], leaves: &[&Value]) -> CommandResult<Tensor> {
    fn all<T>(
        dtype: DType,
        leaves: &[&Value],
        convert: impl Fn(&Value) -> Option<T>,
    ) -> CommandResult<Vec<T>> {
        let wrong = |leaf: &Value| CommandError::failed(format!("{leaf} is not {dtype}"));
        leaves.iter().map(|leaf| convert(leaf).ok_or_else(|| wrong(leaf))).collect()
    }
    fn signed<T: Element + TryFrom<i64>>(
        dtype: DType,
        shape: &[usize],
        leaves: &[&Value],
    ) -> CommandResult<Tensor> {
        let values = all(dtype, leaves, |leaf| leaf.as_i64().and_then(|n| T::try_from(n).ok()))?;
        Ok(Tensor::from_vec(shape, values)?)
    }
    fn unsigned<T: Element + TryFrom<u64>>(
        dtype: DType,
        shape: &[usize],
        leaves: &[&Value],
    ) -> CommandResult<Tensor> {
        let values = all(dtype, leaves, |leaf| leaf.as_u64().and_then(|n| T::try_from(n).ok()))?;
        Ok(Tensor::from_vec(shape, values)?)
    }
    /// Returns a tensor of a type with fewer bits than JSON's numbers. `round` converts a number.
    fn narrow<T: Element + Into<f64>>(
        dtype: DType,
        shape: &[usize],
        leaves: &[&Value],
        round: fn(f64) -> T,
    ) -> CommandResult<Tensor> {
        // JSON has no infinity, so an infinite value is a number out of range.
        let is_finite = |value: &T| {
            let wide: f64 = (*value).into();
            wide.is_finite()
        };
        let values = all(dtype, leaves, |leaf| leaf.as_f64().map(round).filter(is_finite))?;
        Ok(Tensor::from_vec(shape, values)?)
    }
    let tensor = match dtype {
        DType::Bool => {
            let values = all(dtype, leaves, Value::as_bool)?;
            let bytes: Vec<u8> = values.into_iter().map(u8::from).collect();
            Tensor::from_bytes(DType::Bool, shape, Bytes::from(bytes))
        }
        DType::F64 => Tensor::from_vec(shape, all(dtype, leaves, Value::as_f64)?),
        DType::F32 => return narrow(dtype, shape, leaves, |value| value as f32),
        DType::F16 => return narrow(dtype, shape, leaves, base::round_to_f16),
        DType::BF16 => return narrow(dtype, shape, leaves, base::round_to_bf16),
        DType::String => {
            let strings = all(dtype, leaves, |leaf| Some(Bytes::from(leaf.as_str()?.to_owned())))?;
            Tensor::from_strings(shape, strings)
        }
        DType::I8 => return signed::<i8>(dtype, shape, leaves),
        DType::I16 => return signed::<i16>(dtype, shape, leaves),
        DType::I32 => return signed::<i32>(dtype, shape, leaves),
        DType::I64 => return signed::<i64>(dtype, shape, leaves),
        DType::U8 => return unsigned::<u8>(dtype, shape, leaves),
        DType::U16 => return unsigned::<u16>(dtype, shape, leaves),
        DType::U32 => return unsigned::<u32>(dtype, shape, leaves),
        DType::U64 => return unsigned::<u64>(dtype, shape, leaves),
        other => {
            return Err(CommandError::failed(format!(
                "{other} cannot be written as JSON; give a file of raw bytes"
            )));
        }
    };
    Ok(tensor?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(dtype: DType, shape: &[i64], value: Value) -> Result<Vec<usize>, String> {
        let spec = InputSpec { name: "x".into(), dtype, shape: shape.to_vec() };
        let tensor = tensor_for(&spec, &value).map_err(|failure| failure.message().to_owned())?;
        Ok(tensor.shape().to_vec())
    }

    #[test]
    fn nesting_is_the_shape() {
        assert_eq!(check(DType::F32, &[-1, 2], json!([[1, 2], [3, 4.5], [5, 6]])), Ok(vec![3, 2]));
        assert_eq!(check(DType::F32, &[-1, 2], json!([1, 2])), Ok(vec![1, 2]));
        assert_eq!(check(DType::I64, &[], json!(16000)), Ok(vec![]));
        assert_eq!(check(DType::I64, &[-1], json!(7)), Ok(vec![1]));
        assert_eq!(check(DType::String, &[-1], json!(["a", "b"])), Ok(vec![2]));
        assert_eq!(check(DType::Bool, &[2], json!([true, false])), Ok(vec![2]));
    }

    #[test]
    fn errors_name_the_input() {
        let ragged = check(DType::F32, &[-1, 2], json!([[1, 2], [3]])).unwrap_err();
        assert_eq!(ragged, "input \"x\": the lists are not all of one length");
        assert_eq!(
            check(DType::U8, &[1], json!([256])).unwrap_err(),
            "input \"x\": 256 is not uint8"
        );
        assert_eq!(
            check(DType::F32, &[1], json!(["a"])).unwrap_err(),
            "input \"x\": \"a\" is not float32"
        );
    }

    #[test]
    fn floats_are_rounded_and_stay_finite() {
        let spec = |dtype| InputSpec { name: "x".into(), dtype, shape: vec![-1] };
        let halves = tensor_for(&spec(DType::F16), &json!([1.00048828126, 65519.9])).unwrap();
        assert_eq!(halves.bytes().unwrap()[..], [0x01, 0x3c, 0xff, 0x7b]);
        let brains = tensor_for(&spec(DType::BF16), &json!([1.00390637])).unwrap();
        assert_eq!(brains.bytes().unwrap()[..], [0x81, 0x3f]);
        for (dtype, number) in [(DType::F32, 1e39), (DType::F16, 65520.0), (DType::BF16, -3.4e38)] {
            let error = check(dtype, &[1], json!([number])).unwrap_err();
            assert!(error.ends_with(&format!(" is not {dtype}")), "{error}");
        }
    }

    #[test]
    fn large_integers_are_exact() {
        let spec = InputSpec { name: "x".into(), dtype: DType::I64, shape: vec![1] };
        let tensor = tensor_for(&spec, &json!([9007199254740993i64])).unwrap();
        assert_eq!(tensor.to_vec::<i64>().unwrap(), [9007199254740993]);
    }
}
