//! Adds last axes of size 1 to inputs that lack them.
//!
//! A SavedModel's signature may be `[-1, 1]` and its graph may still accept `[3]`, because
//! TensorFlow checks types and not ranks. TensorFlow Serving's first example does so. ONNX Runtime
//! checks ranks. An input that lacks only last axes of a fixed size of 1 has one meaning, so those
//! axes are added.

use base::{Dim, NamedTensor, Shape, Signature, Tensor};

/// The axes that [`adapt_ranks`] added to a request, to be removed from its response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddedAxes {
    /// Number of axes added to every input, or 0 if none was added or the inputs differ.
    added: usize,
}

/// Adds the last axes of a fixed size of 1 that inputs lack.
pub fn adapt_ranks(signature: &Signature, inputs: &mut [NamedTensor]) -> AddedAxes {
    let mut common = None;
    for input in inputs {
        let added = adapt(signature, input);
        common =
            Some(common.map_or(added, |common: usize| if common == added { common } else { 0 }));
    }
    AddedAxes { added: common.unwrap_or(0) }
}

/// Adds the axes that `input` lacks, and returns their number.
fn adapt(signature: &Signature, input: &mut NamedTensor) -> usize {
    let spec = signature.inputs.iter().find(|spec| *spec.name == *input.name);
    let Some(dims) = spec.and_then(|spec| spec.shape.as_ref()) else { return 0 };
    let rank = input.tensor.shape().len();
    let lacking = dims.get(rank..).unwrap_or_default();
    if lacking.is_empty() || rank == 0 || !lacking.iter().all(|dim| *dim == Dim::Fixed(1)) {
        return 0;
    }
    let ones = std::iter::repeat_n(1, lacking.len());
    let shape: Shape = input.tensor.shape().iter().copied().chain(ones).collect();
    let Some(tensor) = reshaped(&input.tensor, shape) else { return 0 };
    input.tensor = tensor;
    lacking.len()
}

impl AddedAxes {
    /// Removes as many last axes from the outputs as the inputs got, if the model fixes them at 1.
    pub fn restore(self, signature: &Signature, outputs: &mut [NamedTensor]) {
        for output in outputs.iter_mut().filter(|_| self.added > 0) {
            let spec = signature.outputs.iter().find(|spec| *spec.name == *output.name);
            let Some(dims) = spec.and_then(|spec| spec.shape.as_ref()) else { continue };
            let shape = output.tensor.shape();
            let kept = shape.len().saturating_sub(self.added);
            let ones =
                dims.get(kept..).is_some_and(|last| last.iter().all(|dim| *dim == Dim::Fixed(1)));
            if !ones || kept == 0 {
                continue;
            }
            let shape = Shape::from_slice(&shape[..kept]);
            if let Some(tensor) = reshaped(&output.tensor, shape) {
                output.tensor = tensor;
            }
        }
    }
}

/// Returns the same elements in another shape, or `None` if the number of elements differs.
fn reshaped(tensor: &Tensor, shape: Shape) -> Option<Tensor> {
    match (tensor.strings(), tensor.bytes()) {
        (Some(strings), _) => Tensor::from_strings(shape, strings.to_vec()).ok(),
        (None, Some(bytes)) => Tensor::from_bytes(tensor.dtype(), shape, bytes.clone()).ok(),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use base::{DType, TensorSpec};

    use super::*;

    fn spec(name: &str, dims: &[Dim]) -> TensorSpec {
        TensorSpec {
            name: name.into(),
            dtype: DType::F32,
            shape: Some(dims.to_vec()),
            optional: false,
        }
    }

    fn floats(name: &str, shape: &[usize]) -> NamedTensor {
        let values = vec![0.5f32; shape.iter().product()];
        NamedTensor::new(name, Tensor::from_vec(shape, values).unwrap())
    }

    fn shapes(tensors: &[NamedTensor]) -> Vec<&[usize]> {
        tensors.iter().map(|tensor| tensor.tensor.shape()).collect()
    }

    #[test]
    fn last_axes_of_one_are_added_and_removed() {
        let open = Dim::Dynamic(None);
        let one = [open.clone(), Dim::Fixed(1)];
        let signature = Signature {
            inputs: vec![spec("x", &one)],
            outputs: vec![spec("y", &one), spec("z", &[open])],
        };
        let mut inputs = vec![floats("x", &[3])];
        let ranks = adapt_ranks(&signature, &mut inputs);
        assert_eq!(shapes(&inputs), [[3, 1]]);
        let mut outputs = vec![floats("y", &[3, 1]), floats("z", &[3])];
        ranks.restore(&signature, &mut outputs);
        assert_eq!(shapes(&outputs), [[3], [3]]);

        let mut whole = vec![floats("x", &[3, 1])];
        let ranks = adapt_ranks(&signature, &mut whole);
        let mut outputs = vec![floats("y", &[3, 1])];
        ranks.restore(&signature, &mut outputs);
        assert_eq!((shapes(&whole), shapes(&outputs)), (vec![&[3, 1][..]], vec![&[3, 1][..]]));
    }

    #[test]
    fn ambiguous_shapes_stay() {
        let open = Dim::Dynamic(None);
        for dims in
            [&[open.clone(), Dim::Fixed(4)][..], &[open.clone(), open.clone()], &[Dim::Fixed(1)]]
        {
            let signature = Signature { inputs: vec![spec("x", dims)], outputs: vec![] };
            let mut inputs = vec![floats("x", if dims.len() == 1 { &[] } else { &[4] })];
            assert_eq!(adapt_ranks(&signature, &mut inputs), AddedAxes::default());
        }
    }
}
