//! Padding of the inputs, and the inputs that the server makes for it.

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
    let bf16_max = f64::from(f32::from_bits(0x7f7f_0000));
    let range = match dtype {
        DType::Bool => 0.0..=1.0,
        DType::U8 => 0.0..=f64::from(u8::MAX),
        DType::U16 => 0.0..=f64::from(u16::MAX),
        DType::U32 => 0.0..=f64::from(u32::MAX),
        DType::U64 => 0.0..=u64::MAX as f64,
        DType::I8 => f64::from(i8::MIN)..=f64::from(i8::MAX),
        DType::I16 => f64::from(i16::MIN)..=f64::from(i16::MAX),
        DType::I32 => f64::from(i32::MIN)..=f64::from(i32::MAX),
        DType::I64 => i64::MIN as f64..=i64::MAX as f64,
        DType::F16 => -65504.0..=65504.0,
        DType::BF16 => -bf16_max..=bf16_max,
        DType::F32 => f64::from(f32::MIN)..=f64::from(f32::MAX),
        DType::F64 => f64::MIN..=f64::MAX,
        _ => return Err(format!("{dtype} cannot be padded")),
    };
    let is_float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    // A float may also be an infinity or NaN, but a finite number must not become one.
    let is_possible = if is_float {
        !value.is_finite() || range.contains(&value)
    } else {
        value.fract() == 0.0 && range.contains(&value)
    };
    if is_possible { Ok(()) } else { Err(format!("value {value} is not possible for {dtype}")) }
}

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
    numeric(spec)?;
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

pub(super) fn add_length(
    inputs: &mut [InputPlan],
    signature: &Signature,
    name: &str,
    source: usize,
    pad: &PadOptions,
) -> Result<()> {
    let length = index(signature, name)?;
    let spec = &signature.inputs[length];
    numeric(spec)?;
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
fn numeric(spec: &TensorSpec) -> Result<()> {
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
