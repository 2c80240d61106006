//! Tensors of every type, and signatures of inputs.

use base::{DType, Dim, NamedTensor, Signature, Tensor, TensorSpec};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

/// Types that have a form in JSON.
pub(crate) fn has_json(dtype: DType) -> bool {
    !matches!(
        dtype,
        DType::Complex64
            | DType::Complex128
            | DType::F8E4M3FN
            | DType::F8E4M3FNUZ
            | DType::F8E5M2
            | DType::F8E5M2FNUZ
    )
}

fn bytes_of(dtype: DType, elements: usize, noise: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        noise.iter().copied().cycle().take(dtype.bytes_for(elements).unwrap()).collect();
    match dtype {
        DType::Bool => bytes.iter_mut().for_each(|byte| *byte &= 1),
        // A packed tensor's last half byte is padding, which is 0.
        DType::U4 | DType::I4 if elements % 2 == 1 => *bytes.last_mut().unwrap() &= 0xf,
        // NaN has one spelling in JSON and many bit patterns: leave it to tests of its own.
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => {
            let width = dtype.bits().unwrap() / 8;
            bytes.chunks_mut(width).for_each(|element| element[width - 1] &= 0b1011_1111);
        }
        _ => {}
    }
    bytes
}

/// Returns a tensor of `dtype` with up to three axes of at least `least` elements.
pub(crate) fn tensor(dtype: DType, least: usize, text: bool) -> BoxedStrategy<Tensor> {
    let shape = vec(least..4usize, 0..4);
    if dtype == DType::String {
        let string = if text {
            ".{0,6}".prop_map(Bytes::from).boxed()
        } else {
            vec(any::<u8>(), 0..6).prop_map(Bytes::from).boxed()
        };
        return shape
            .prop_flat_map(move |shape| {
                let count: usize = shape.iter().product();
                (Just(shape), vec(string.clone(), count))
            })
            .prop_map(|(shape, strings)| Tensor::from_strings(shape.as_slice(), strings).unwrap())
            .boxed();
    }
    (shape, vec(any::<u8>(), 1..200))
        .prop_map(move |(shape, noise)| {
            let bytes = bytes_of(dtype, shape.iter().product(), &noise);
            Tensor::from_bytes(dtype, shape.as_slice(), Bytes::from(bytes)).unwrap()
        })
        .boxed()
}

/// Returns a few tensors of types that `allowed` accepts, called t0, t1, ...
pub(crate) fn tensors(
    allowed: fn(DType) -> bool,
    least: usize,
    text: bool,
) -> BoxedStrategy<Vec<NamedTensor>> {
    let dtypes: Vec<DType> = DType::ALL.into_iter().filter(|dtype| allowed(*dtype)).collect();
    let one =
        proptest::sample::select(dtypes).prop_flat_map(move |dtype| tensor(dtype, least, text));
    vec(one, 1..4)
        .prop_map(|tensors| {
            let named = |(position, tensor)| NamedTensor::new(format!("t{position}"), tensor);
            tensors.into_iter().enumerate().map(named).collect()
        })
        .boxed()
}

/// Returns a signature that these tensors fit.
pub(crate) fn signature(tensors: &[NamedTensor]) -> Signature {
    let spec = |named: &NamedTensor| TensorSpec {
        name: named.name.to_string(),
        dtype: named.tensor.dtype(),
        shape: Some(named.tensor.shape().iter().map(|_| Dim::Dynamic(None)).collect()),
        optional: false,
    };
    let specs: Vec<TensorSpec> = tensors.iter().map(spec).collect();
    Signature { inputs: specs.clone(), outputs: specs }
}

/// Returns a signature of names, types and axes (-1: dynamic), inputs only.
pub(crate) fn inputs(specs: &[(&str, DType, &[i64])]) -> Signature {
    let dim = |&dim: &i64| usize::try_from(dim).map_or(Dim::Dynamic(None), Dim::Fixed);
    let spec = |(name, dtype, dims): &(&str, DType, &[i64])| TensorSpec {
        name: (*name).into(),
        dtype: *dtype,
        shape: Some(dims.iter().map(dim).collect()),
        optional: false,
    };
    Signature { inputs: specs.iter().map(spec).collect(), outputs: Vec::new() }
}

/// Returns a float32 tensor.
pub(crate) fn floats(name: &str, shape: &[usize], values: &[f32]) -> NamedTensor {
    NamedTensor::new(name, Tensor::from_vec(shape, values.to_vec()).unwrap())
}
