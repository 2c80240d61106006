//! Masks and lengths that the server adds to requests.

use std::sync::Arc;

use base::{DType, Error, NamedTensor, Result, Shape, Tensor};
use bytes::Bytes;
use engine::{BatchPlan, InputFill, InputPlan};

use crate::bounds;

/// Adds the inputs that the plan fills in and the client left out. They are masks of ones and real
/// sizes.
///
/// # Errors
/// `InvalidArgument` if the masked or measured input is missing or lacks an axis, if a length does
/// not fit its type, or if the new input would be too large.
pub(crate) fn fill(plan: &BatchPlan, inputs: &mut Vec<NamedTensor>) -> Result<()> {
    for input in &plan.inputs {
        let Some(fill) = &input.fill else { continue };
        if inputs.iter().any(|sent| sent.name == input.name) {
            continue;
        }
        let (InputFill::Mask { source, .. } | InputFill::Length { source, .. }) = fill;
        let source = &plan.inputs[*source];
        let sent = inputs
            .iter()
            .find(|sent| sent.name == source.name)
            .ok_or_else(|| Error::invalid(format!("input \"{}\" is missing", source.name)))?;
        let shape = sent.tensor.shape();
        let items = *shape.first().ok_or_else(|| {
            Error::invalid(format!("input \"{}\" has no axis for the items", source.name))
        })?;
        let real = source.axes.iter().map(|axis| shape.get(axis.axis).copied());
        let real: Vec<usize> = real.collect::<Option<_>>().ok_or_else(|| {
            Error::invalid(format!(
                "input \"{}\" has no axis for the padding: {shape:?}",
                source.name
            ))
        })?;
        let received = sent.tensor.byte_len();
        let tensor = match fill {
            InputFill::Mask { full_rank, .. } => {
                let grows = |axis: usize| {
                    axis == 0 || source.axes.iter().any(|growing| growing.axis == axis)
                };
                let full = || {
                    shape.iter().enumerate().map(|(axis, &size)| if grows(axis) { size } else { 1 })
                };
                let dims: Shape = if *full_rank {
                    full().collect()
                } else {
                    std::iter::once(items).chain(real).collect()
                };
                constant(input, dims, &[1], received)?
            }
            InputFill::Length { matrix, .. } => {
                check_lengths(input, &real)?;
                let dims: Shape =
                    if *matrix { [items, real.len()][..].into() } else { [items][..].into() };
                constant(input, dims, &real, received)?
            }
        };
        inputs.push(NamedTensor { name: Arc::clone(&input.name), tensor });
    }
    Ok(())
}

/// Checks that the type of an input can hold the real sizes. Otherwise the model would get smaller
/// ones.
///
/// # Errors
/// `InvalidArgument` with the first size that it cannot hold.
fn check_lengths(input: &InputPlan, lengths: &[usize]) -> Result<()> {
    let most = match input.dtype {
        DType::U8 => usize::from(u8::MAX),
        DType::I8 => usize::from(i8::MAX.unsigned_abs()),
        _ => return Ok(()),
    };
    match lengths.iter().find(|&&length| length > most) {
        None => Ok(()),
        Some(length) => Err(Error::invalid(format!(
            "input \"{}\" is {} and cannot hold the length {length}; send at most {most}",
            input.name, input.dtype
        ))),
    }
}

/// Builds a tensor that repeats `values`, for a request of `received` bytes.
fn constant(input: &InputPlan, shape: Shape, values: &[usize], received: usize) -> Result<Tensor> {
    let count = bounds::check_made_bytes(&input.name, input.dtype, &shape, received)?;
    let mut pattern = Vec::new();
    values.iter().try_for_each(|&value| element(input.dtype, value as f64, &mut pattern))?;
    let bytes = pattern.repeat(count / pattern.len().max(1));
    Tensor::from_bytes(input.dtype, shape, Bytes::from(bytes))
}

/// Appends `value` as an element of `dtype`, converted like `as`.
///
/// # Errors
/// `Unimplemented` for types without padding and masks (strings, 4-bit and 8-bit floats, complex).
pub(crate) fn element(dtype: DType, value: f64, to: &mut Vec<u8>) -> Result<()> {
    match dtype {
        DType::Bool => to.push(u8::from(value != 0.0)),
        DType::U8 => to.push(value as u8),
        DType::I8 => to.extend((value as i8).to_le_bytes()),
        DType::U16 => to.extend((value as u16).to_le_bytes()),
        DType::I16 => to.extend((value as i16).to_le_bytes()),
        DType::U32 => to.extend((value as u32).to_le_bytes()),
        DType::I32 => to.extend((value as i32).to_le_bytes()),
        DType::U64 => to.extend((value as u64).to_le_bytes()),
        DType::I64 => to.extend((value as i64).to_le_bytes()),
        DType::F32 => to.extend((value as f32).to_le_bytes()),
        DType::F64 => to.extend(value.to_le_bytes()),
        DType::F16 => to.extend(half::f16::from_f64(value).to_le_bytes()),
        DType::BF16 => to.extend(half::bf16::from_f64(value).to_le_bytes()),
        other => return Err(Error::unimplemented(format!("{other} cannot be padded"))),
    }
    Ok(())
}

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use engine::GrowingAxis;

    use super::*;

    #[test]
    fn a_length_fits_its_type() {
        let input = |name: &str, dtype, axes, fill| InputPlan {
            name: name.into(),
            dtype,
            axes,
            value: 0.0,
            rule: None,
            fill,
            shared: false,
        };
        let growing = GrowingAxis { axis: 1, source: 0, source_axis: 1 };
        let length = InputFill::Length { source: 0, matrix: false };
        let inputs = vec![
            input("x", DType::F32, vec![growing], None),
            input("l", DType::U8, vec![], Some(length)),
        ];
        let plan = BatchPlan { batchable: true, inputs, cuts: vec![] };
        let filled = |columns: usize| -> Result<Vec<u8>> {
            let x = Tensor::from_vec([1, columns].as_slice(), vec![0f32; columns])?;
            let mut sent = vec![NamedTensor::new("x", x)];
            fill(&plan, &mut sent)?;
            sent[1].tensor.to_vec::<u8>()
        };
        assert_eq!(filled(255), Ok(vec![255]));
        let refusal = filled(256).unwrap_err();
        assert_eq!(
            refusal.message(),
            "input \"l\" is uint8 and cannot hold the length 256; send at most 255"
        );
    }
}
