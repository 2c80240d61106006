//! Padding of the inputs, and the inputs that the server makes for it.

use std::ops::RangeInclusive;

use base::{DType, Dim, Error, Result, Signature, TensorSpec};

use super::{GrowingAxis, InputFill, InputPlan, PadRule, free, index};
use crate::{Merge, PadOptions};

pub(super) fn unpadded(spec: &TensorSpec) -> InputPlan {
    InputPlan {
        name: spec.name.as_str().into(),
        dtype: spec.dtype,
        axes: Vec::new(),
        value: 0.0,
        rule: None,
        fill: None,
        shared: false,
    }
}

/// Adds the rule that pads the input `spec` to `plan`.
pub(super) fn add_padding(
    plan: &mut InputPlan,
    source: usize,
    spec: &TensorSpec,
    pad: &PadOptions,
    merge: Merge,
) -> Result<()> {
    let wrong = |why: &str| Err(Error::invalid(format!("inputs.{}: {why}", spec.name)));
    if spec.dtype == DType::String {
        return wrong("strings cannot be padded");
    }
    let Some(dims) = &spec.shape else {
        return wrong("the model does not say how many axes the input has, so none can be padded");
    };
    if pad.axes.iter().any(|&axis| axis >= dims.len()) {
        return wrong("axes names an axis that the input does not have");
    }
    if pad.axes.iter().any(|&axis| !free(spec, axis)) {
        return wrong("axes names an axis whose size the model fixes");
    }
    check_value(spec.dtype, pad.value).or_else(|why| wrong(&why))?;
    plan.axes =
        pad.axes.iter().map(|&axis| GrowingAxis { axis, source, source_axis: axis }).collect();
    plan.value = pad.value;
    plan.rule = Some(PadRule {
        merge: merge == Merge::Pad,
        buckets: pad.buckets.clone(),
        similarity: pad.similarity,
        slack_bytes: pad.slack_bytes,
    });
    Ok(())
}

/// Checks that an element of `dtype` can have the padding value. Otherwise the server would pad
/// with another one.
fn check_value(dtype: DType, value: f64) -> std::result::Result<(), String> {
    /// First numbers that are nearer to infinity than to the largest element.
    const F16_OVERFLOW: f32 = 65520.0;
    const BF16_OVERFLOW: f32 = f32::from_bits(0x7f7f_8000);
    // A float may also be an infinity or NaN, but a finite number must not become one.
    let special = !value.is_finite();
    let size = (value as f32).abs();
    let whole = |range: RangeInclusive<f64>| value.fract() == 0.0 && range.contains(&value);
    let is_possible = match dtype {
        DType::Bool => whole(0.0..=1.0),
        DType::U8 => whole(0.0..=f64::from(u8::MAX)),
        DType::U16 => whole(0.0..=f64::from(u16::MAX)),
        DType::U32 => whole(0.0..=f64::from(u32::MAX)),
        DType::U64 => whole(0.0..=u64::MAX as f64),
        DType::I8 => whole(f64::from(i8::MIN)..=f64::from(i8::MAX)),
        DType::I16 => whole(f64::from(i16::MIN)..=f64::from(i16::MAX)),
        DType::I32 => whole(f64::from(i32::MIN)..=f64::from(i32::MAX)),
        DType::I64 => whole(i64::MIN as f64..=i64::MAX as f64),
        DType::F16 => special || size < F16_OVERFLOW,
        DType::BF16 => special || size < BF16_OVERFLOW,
        DType::F32 => special || size.is_finite(),
        DType::F64 => true,
        _ => return Err(format!("{dtype} cannot be padded")),
    };
    if is_possible { Ok(()) } else { Err(format!("value {value} is not possible for {dtype}")) }
}

/// Plans the input `name` as the mask of the padded input `source`.
///
/// # Errors
/// `InvalidArgument` for an input that the model does not have, and for one whose rank or type
/// permits no mask.
pub(super) fn add_mask(
    inputs: &mut [InputPlan],
    signature: &Signature,
    name: &str,
    source: usize,
    pad: &PadOptions,
) -> Result<()> {
    let mask = index(signature, name)?;
    let spec = &signature.inputs[mask];
    let rank = |spec: &TensorSpec| spec.shape.as_ref().map(Vec::len);
    let full_rank = match (rank(spec), rank(&signature.inputs[source])) {
        (Some(mask), Some(source)) if mask == source => true,
        (Some(mask), _) if mask == 1 + pad.axes.len() => false,
        _ => {
            let source = &signature.inputs[source].name;
            return Err(Error::invalid(format!(
                "inputs.{source}: mask \"{name}\" must have the rank of \"{source}\", or one axis for the batch and one for each padded axis"
            )));
        }
    };
    check_numeric(spec)?;
    let plan = &mut inputs[mask];
    let place = |(position, &axis): (usize, &usize)| GrowingAxis {
        axis: if full_rank { axis } else { 1 + position },
        source,
        source_axis: axis,
    };
    plan.axes = pad.axes.iter().enumerate().map(place).collect();
    plan.fill = Some(InputFill::Mask { source, full_rank });
    Ok(())
}

/// Plans the input `name` as the lengths of the items of the padded input `source`.
///
/// # Errors
/// `InvalidArgument` for an input that the model does not have, and for one whose shape or type
/// permits no lengths.
pub(super) fn add_length(
    inputs: &mut [InputPlan],
    signature: &Signature,
    name: &str,
    source: usize,
    pad: &PadOptions,
) -> Result<()> {
    let length = index(signature, name)?;
    let spec = &signature.inputs[length];
    check_numeric(spec)?;
    if spec.dtype == DType::Bool {
        return Err(Error::invalid(format!(
            "input \"{name}\" is bool, which cannot hold a length; name a mask with mask"
        )));
    }
    let matrix = match spec.shape.as_deref() {
        Some([_]) if pad.axes.len() == 1 => false,
        Some([_, Dim::Dynamic(_)]) => true,
        Some([_, Dim::Fixed(columns)]) if *columns == pad.axes.len() => true,
        _ => {
            return Err(Error::invalid(format!(
                "input \"{name}\" cannot hold the lengths: its shape must be [items], or [items, {}]",
                pad.axes.len()
            )));
        }
    };
    inputs[length].fill = Some(InputFill::Length { source, matrix });
    Ok(())
}

/// Checks that a mask or length is numeric.
fn check_numeric(spec: &TensorSpec) -> Result<()> {
    let fits = matches!(
        spec.dtype,
        DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U8 | DType::I8 | DType::Bool
    );
    if fits {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "input \"{}\" is {}, which the server cannot fill",
        spec.name, spec.dtype
    )))
}
