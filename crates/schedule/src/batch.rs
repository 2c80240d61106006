//! Joining requests to one run, and splitting its outputs.

use std::sync::Arc;

use base::{DType, Error, NamedTensor, Result, Shape, Tensor};
use bytes::Bytes;
use engine::{BatchPlan, InputPlan, OutputPlan};

use crate::batch_key::{self, BatchKey};
use crate::block;
use crate::bounds;
use crate::fill::element;

/// One request of a run.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    /// Inputs. Those of [`batch_key::has_items`] have `items` on axis 0.
    pub(crate) inputs: &'a [NamedTensor],
    pub(crate) items: usize,
}

/// Returns true if `inputs` already have the sizes of `batch_key`.
pub(crate) fn fits(plan: &BatchPlan, batch_key: &BatchKey, inputs: &[NamedTensor]) -> bool {
    plan.inputs.iter().enumerate().all(|(index, input)| {
        let sent = inputs.iter().find(|sent| sent.name == input.name);
        sent.is_none_or(|sent| sent.tensor.shape().get(1..) == batch_key.sizes(index))
    })
}

/// Builds the inputs of one run over all `parts`, in order, each padded to `batch_key`. Adds copies
/// of the last part's first item until there are `rows` items. That item is valid for the model.
///
/// # Errors
/// `Unimplemented` for a type that cannot be joined or padded, `InvalidArgument` if padding makes
/// an input too large.
pub(crate) fn join(
    plan: &BatchPlan,
    batch_key: &BatchKey,
    parts: &[Part<'_>],
    rows: usize,
) -> Result<Vec<NamedTensor>> {
    let mut joined = Vec::with_capacity(plan.inputs.len());
    for (index, input) in plan.inputs.iter().enumerate() {
        if !batch_key::has_items(plan, input) {
            // All parts have the same bits, or there is one part.
            let first = parts
                .first()
                .and_then(|part| part.inputs.iter().find(|sent| sent.name == input.name));
            joined.extend(first.cloned());
            continue;
        }
        let Some(sizes) = batch_key.sizes(index) else { continue };
        let find = |part: &Part<'_>| {
            part.inputs.iter().find(|sent| sent.name == input.name).map(|i| i.tensor.clone())
        };
        let tensors: Vec<Tensor> = parts.iter().filter_map(find).collect();
        if tensors.len() != parts.len() {
            return Err(Error::internal(format!(
                "input \"{}\" is missing in a part of a batch",
                input.name
            )));
        }
        let tensor = join_input(input, sizes, rows, &tensors)?;
        joined.push(NamedTensor { name: Arc::clone(&input.name), tensor });
    }
    Ok(joined)
}

/// Joins one input of all requests to a tensor of `rows` items. Each item is padded to `sizes`, the
/// sizes of the axes after axis 0. Missing items are copies of the first item of the last tensor.
fn join_input(
    input: &InputPlan,
    sizes: &[usize],
    rows: usize,
    tensors: &[Tensor],
) -> Result<Tensor> {
    let shape: Shape = std::iter::once(rows).chain(sizes.iter().copied()).collect();
    let items = |tensor: &Tensor| tensor.shape().first().copied().unwrap_or(0);
    let last = tensors.last().map_or(0, items);
    if input.dtype == DType::String {
        let mut strings: Vec<Bytes> =
            tensors.iter().filter_map(Tensor::strings).flatten().cloned().collect();
        add_copies(&mut strings, last, rows, sizes.iter().product());
        return Tensor::from_strings(shape, strings);
    }
    let width = match input.dtype.bits() {
        Some(bits) if bits.is_multiple_of(8) => bits / 8,
        _ => return Err(Error::unimplemented(format!("{} cannot be joined", input.dtype))),
    };
    let received = tensors.iter().map(Tensor::byte_len).sum();
    let count = bounds::check_made_bytes(&input.name, input.dtype, &shape, received)?;
    let item = count / rows.max(1);
    let padded = tensors.iter().any(|tensor| tensor.shape().get(1..) != Some(sizes));
    let mut bytes = if padded {
        padding(input, tensors.iter().map(items).sum::<usize>() * item, width)?
    } else {
        Vec::with_capacity(count)
    };
    let mut at = 0;
    for tensor in tensors {
        let source =
            tensor.bytes().ok_or_else(|| Error::internal("strings, but bytes are declared"))?;
        if !padded {
            bytes.extend_from_slice(source);
            continue;
        }
        let large: Shape = tensor.shape().iter().take(1).chain(sizes).copied().collect();
        let end = at + large.first().copied().unwrap_or(0) * item;
        block::embed(&mut bytes[at..end], &large, source, tensor.shape(), width);
        at = end;
    }
    add_copies(&mut bytes, last, rows, item);
    Tensor::from_bytes(input.dtype, shape, Bytes::from(bytes))
}

/// Adds copies of one item at the end of `all`, until `all` has `rows` items of `size` elements
/// each. Copies the first of the `last` items.
fn add_copies<T: Clone>(all: &mut Vec<T>, last: usize, rows: usize, size: usize) {
    let first = all.len().saturating_sub(last * size);
    // Without elements, or if the first item is not whole, there is nothing to copy.
    while size > 0 && first + size <= all.len() && all.len() < rows * size {
        all.extend_from_within(first..first + size);
    }
}

/// Returns `count` bytes of the input's padding value.
fn padding(input: &InputPlan, count: usize, width: usize) -> Result<Vec<u8>> {
    let mut one = Vec::with_capacity(width);
    element(input.dtype, input.value, &mut one)?;
    if one.iter().all(|&byte| byte == 0) {
        return Ok(vec![0; count]);
    }
    Ok(one.repeat(count / width.max(1)))
}

/// Reason why the outputs of a run cannot be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Misfit(pub(crate) String);

/// Splits the outputs of the run of `rows` items over `batch_key` into the outputs of each part.
/// Drops the outputs of the items that [`join`] added.
///
/// # Errors
/// [`Misfit`] if an output does not have the run's items on axis 0, or not the size that its rule
/// predicts. Then the model mixes its items, or the rule is wrong.
pub(crate) fn split(
    plan: &BatchPlan,
    batch_key: &BatchKey,
    parts: &[Part<'_>],
    rows: usize,
    outputs: Vec<NamedTensor>,
) -> Result<Vec<Vec<NamedTensor>>, Misfit> {
    let mut answers: Vec<Vec<NamedTensor>> =
        parts.iter().map(|_| Vec::with_capacity(outputs.len())).collect();
    for output in outputs {
        let shape = output.tensor.shape();
        if shape.first() != Some(&rows) {
            return Err(Misfit(format!(
                "output \"{}\" of a run over {rows} items has shape {shape:?}: its axis 0 is not the items",
                output.name
            )));
        }
        let rule = plan.cuts.iter().find(|cut| cut.name == output.name);
        if let Some(rule) = rule {
            check_axes(rule, batch_key, &output)?;
        }
        let mut first = 0;
        for (part, answer) in parts.iter().zip(&mut answers) {
            let tensor = slice(&output.tensor, first, part.items).and_then(|tensor| match rule {
                Some(rule) => cut(plan, rule, part, tensor),
                None => Ok(tensor),
            });
            let tensor =
                tensor.map_err(|error| Misfit(format!("output \"{}\": {error}", output.name)))?;
            answer.push(NamedTensor { name: Arc::clone(&output.name), tensor });
            first += part.items;
        }
    }
    Ok(answers)
}

/// Checks that the cut axes of a run's output have the sizes that their rules give for `batch_key`.
fn check_axes(rule: &OutputPlan, batch_key: &BatchKey, output: &NamedTensor) -> Result<(), Misfit> {
    for axis in &rule.axes {
        let Some(&padded) =
            batch_key.sizes(axis.source).and_then(|sizes| sizes.get(axis.source_axis - 1))
        else {
            continue;
        };
        let wanted = axis.size(padded);
        let found = output.tensor.shape().get(axis.axis).copied();
        if found != Some(wanted) {
            return Err(Misfit(format!(
                "axis {} of output \"{}\" is {found:?}; its rule gives {wanted} if the input has {padded}",
                axis.axis, output.name
            )));
        }
    }
    Ok(())
}

/// Cuts a part's output to the sizes of its own inputs.
fn cut(plan: &BatchPlan, rule: &OutputPlan, part: &Part<'_>, tensor: Tensor) -> Result<Tensor> {
    let mut shape: Shape = tensor.shape().into();
    for axis in &rule.axes {
        let source = &plan.inputs[axis.source].name;
        let real = part.inputs.iter().find(|input| input.name == *source);
        if let Some(&real) = real.and_then(|input| input.tensor.shape().get(axis.source_axis)) {
            shape[axis.axis] = axis.size(real).min(shape[axis.axis]);
        }
    }
    if shape[..] == *tensor.shape() {
        return Ok(tensor);
    }
    let (Some(bytes), Some(width)) = (tensor.bytes(), tensor.dtype().bits().map(|bits| bits / 8))
    else {
        return Err(Error::unimplemented("strings cannot be cut"));
    };
    let corner = block::corner(bytes, tensor.shape(), &shape, width);
    Tensor::from_bytes(tensor.dtype(), shape, Bytes::from(corner))
}

/// Returns items `first..first + items` of a tensor, with shared bytes.
///
/// # Errors
/// `InvalidArgument` if the tensor has no such items, `Unimplemented` if they do not start at a
/// byte.
pub(crate) fn slice(tensor: &Tensor, first: usize, items: usize) -> Result<Tensor> {
    let mut shape: Shape = tensor.shape().into();
    let total = *shape.first().ok_or_else(|| Error::invalid("a scalar has no items"))?;
    if first == 0 && items == total {
        return Ok(tensor.clone());
    }
    if first + items > total {
        return Err(Error::invalid("there are not so many items"));
    }
    shape[0] = items;
    let per_item: usize = shape[1..].iter().product();
    if let Some(strings) = tensor.strings() {
        return Tensor::from_strings(
            shape,
            strings[first * per_item..(first + items) * per_item].to_vec(),
        );
    }
    let bits = tensor.dtype().bits().unwrap_or(0) * per_item;
    match tensor.bytes() {
        Some(bytes) if bits.is_multiple_of(8) => {
            let item = bits / 8;
            Tensor::from_bytes(
                tensor.dtype(),
                shape,
                bytes.slice(first * item..(first + items) * item),
            )
        }
        _ => Err(Error::unimplemented("packed elements cannot be cut between bytes")),
    }
}

/// Joins the outputs of several runs along axis 0.
///
/// # Errors
/// `Internal` if the runs differ in names, types or the other axes, `Unimplemented` if packed
/// elements of a run do not end at a byte.
pub(crate) fn concatenate(runs: &[Vec<NamedTensor>]) -> Result<Vec<NamedTensor>> {
    let differ = || Error::internal("the parts of a request gave outputs of different shape");
    let first = runs.first().ok_or_else(differ)?;
    let join = |(index, output): (usize, &NamedTensor)| {
        let pieces: Vec<&Tensor> = runs
            .iter()
            .map(|run| run.get(index).map(|o| &o.tensor).ok_or_else(differ))
            .collect::<Result<_>>()?;
        let rest = output.tensor.shape().get(1..).ok_or_else(differ)?;
        if pieces
            .iter()
            .any(|p| p.dtype() != output.tensor.dtype() || p.shape().get(1..) != Some(rest))
        {
            return Err(differ());
        }
        // No other elements follow those of the last run.
        if pieces.iter().rev().skip(1).any(|piece| !ends_at_byte(piece)) {
            return Err(Error::unimplemented("packed elements cannot be joined between bytes"));
        }
        let items = pieces.iter().map(|piece| piece.shape()[0]).sum();
        let shape: Shape = std::iter::once(items).chain(rest.iter().copied()).collect();
        let tensor = if output.tensor.dtype() == DType::String {
            let strings: Vec<Bytes> =
                pieces.iter().filter_map(|p| p.strings()).flatten().cloned().collect();
            Tensor::from_strings(shape, strings)?
        } else {
            let bytes: Vec<&[u8]> =
                pieces.iter().filter_map(|p| p.bytes()).map(|b| &b[..]).collect();
            Tensor::from_bytes(output.tensor.dtype(), shape, Bytes::from(bytes.concat()))?
        };
        Ok(NamedTensor { name: Arc::clone(&output.name), tensor })
    };
    first.iter().enumerate().map(join).collect()
}

/// Returns true if the last byte of a tensor is full of elements.
fn ends_at_byte(tensor: &Tensor) -> bool {
    let bits = tensor.dtype().bits().unwrap_or(8);
    (tensor.elements() * bits).is_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_outputs_are_joined_at_bytes_only() {
        let run = |bytes: &'static [u8], items: usize| {
            let shape = [items, 1];
            let y = Tensor::from_bytes(DType::I4, shape.as_slice(), Bytes::from_static(bytes));
            vec![NamedTensor::new("y", y.unwrap())]
        };
        let joined = concatenate(&[run(&[0x21], 2), run(&[0x03], 1)]).unwrap();
        assert_eq!(joined, run(&[0x21, 0x03], 3));
        // Together they have as many bytes as five elements, but a gap after the third.
        assert!(concatenate(&[run(&[0x21, 0x03], 3), run(&[0x54], 2)]).is_err());
    }

    #[test]
    fn the_first_item_of_the_last_part_is_copied() {
        let mut all = vec!["a", "b", "c", "d", "e", "f"];
        add_copies(&mut all, 2, 5, 2);
        assert_eq!(all, ["a", "b", "c", "d", "e", "f", "c", "d", "c", "d"]);
        let mut none: Vec<u8> = Vec::new();
        add_copies(&mut none, 2, 5, 0);
        assert!(none.is_empty(), "items without elements");
    }
}
