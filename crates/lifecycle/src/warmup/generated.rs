//! Requests that are generated from a signature.

use std::collections::BTreeMap;

use base::{DType, Dim, Error, NamedTensor, Result, Shape, Signature, Tensor, TensorSpec};

use crate::WarmupConfig;

/// Maximum bytes of a generated input.
const INPUT_BYTES_MAX: usize = 256 << 20;

/// Generates one request for each batch size, or one in all if no input has a dynamic first axis.
/// Inputs of unknown rank have `unknown_rank` axes, unless `config` has their sizes.
///
/// # Errors
/// `InvalidArgument` for an input of more than [`INPUT_BYTES_MAX`].
pub(super) fn generate(
    signature: &Signature,
    config: &WarmupConfig,
    unknown_rank: usize,
) -> Result<Vec<Vec<NamedTensor>>> {
    let batched = signature.inputs.iter().any(|spec| match &spec.shape {
        Some(dims) => matches!(dims.first(), Some(Dim::Dynamic(_))),
        None => rank(spec, config, unknown_rank) > 0,
    });
    let sizes: &[usize] =
        if batched && !config.batch_sizes.is_empty() { &config.batch_sizes } else { &[1] };
    sizes.iter().map(|&size| request(signature, config, size, unknown_rank)).collect()
}

/// Returns the number of axes of a generated input whose rank is unknown.
fn rank(spec: &TensorSpec, config: &WarmupConfig, unknown_rank: usize) -> usize {
    config.dims.get(&spec.name).map_or(unknown_rank, Vec::len)
}

/// Generates the inputs of a request with `batch` items. A dynamic axis has its configured size,
/// else the size of its symbol, else `batch` as a first axis and 1 as another one.
///
/// # Errors
/// As [`generate`].
fn request(
    signature: &Signature,
    config: &WarmupConfig,
    batch: usize,
    unknown_rank: usize,
) -> Result<Vec<NamedTensor>> {
    let needed = || signature.inputs.iter().filter(|spec| !spec.optional);
    // Sizes of symbols. A configured size of any input holds for all inputs that share the symbol.
    let mut symbols: BTreeMap<&str, usize> = BTreeMap::new();
    for spec in needed() {
        for (position, dim) in spec.shape.iter().flatten().enumerate() {
            if let (Dim::Dynamic(Some(symbol)), Some(size)) =
                (dim, configured(config, spec, position))
            {
                symbols.insert(symbol, size);
            }
        }
    }
    for spec in needed() {
        if let Some(Dim::Dynamic(Some(symbol))) = spec.shape.iter().flatten().next() {
            symbols.entry(symbol).or_insert(batch);
        }
    }
    needed()
        .map(|spec| {
            let shape = match &spec.shape {
                Some(dims) => shape(spec, dims, config, &symbols, batch),
                None => unknown_shape(spec, config, batch, unknown_rank),
            };
            Ok(NamedTensor::new(spec.name.as_str(), fill(spec, shape)?))
        })
        .collect()
}

/// Returns the configured size of an axis of an input, if there is one.
fn configured(config: &WarmupConfig, spec: &TensorSpec, position: usize) -> Option<usize> {
    config.dims.get(&spec.name)?.get(position).and_then(|&size| usize::try_from(size).ok())
}

/// Returns the shape of a generated input of unknown rank.
fn unknown_shape(
    spec: &TensorSpec,
    config: &WarmupConfig,
    batch: usize,
    unknown_rank: usize,
) -> Shape {
    (0..rank(spec, config, unknown_rank))
        .map(|axis| configured(config, spec, axis).unwrap_or(if axis == 0 { batch } else { 1 }))
        .collect()
}

/// Returns the shape of a generated input with the axes `dims`. `symbols` has the sizes of the
/// dynamic axes by symbol.
fn shape(
    spec: &TensorSpec,
    dims: &[Dim],
    config: &WarmupConfig,
    symbols: &BTreeMap<&str, usize>,
    batch: usize,
) -> Shape {
    let size = |(position, dim): (usize, &Dim)| match dim {
        Dim::Fixed(size) => *size,
        Dim::Dynamic(symbol) => configured(config, spec, position)
            .or_else(|| symbols.get(symbol.as_deref()?).copied())
            .unwrap_or(if position == 0 { batch } else { 1 }),
    };
    dims.iter().enumerate().map(size).collect()
}

/// Fills a tensor with zeros, empty strings, or small pseudo-random floats, the same each time.
fn fill(spec: &TensorSpec, shape: Shape) -> Result<Tensor> {
    let count = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    let bytes = |count| {
        spec.dtype.bytes_for(count).or_else(|| usize::checked_mul(count, size_of::<usize>()))
    };
    let too_large = || {
        Error::invalid(format!(
            "input \"{}\" of shape {:?} is too large for a generated request; set dims in [warmup], or \
             record requests",
            spec.name,
            shape.as_slice()
        ))
    };
    let (count, bytes) = count
        .and_then(|count| Some((count, bytes(count).filter(|&bytes| bytes <= INPUT_BYTES_MAX)?)))
        .ok_or_else(too_large)?;
    let mut random = XorShift(0x9e37_79b9_7f4a_7c15);
    match spec.dtype {
        DType::String => Tensor::from_strings(shape, vec![Default::default(); count]),
        DType::F32 => {
            Tensor::from_vec(shape, (0..count).map(|_| random.small() as f32).collect::<Vec<f32>>())
        }
        DType::F64 => {
            Tensor::from_vec(shape, (0..count).map(|_| random.small()).collect::<Vec<f64>>())
        }
        // Bit patterns of positive numbers from 1/64 to 1/4.
        DType::F16 => halves(spec.dtype, shape, count, || 0x2400 + random.below(0x1000)),
        DType::BF16 => halves(spec.dtype, shape, count, || 0x3c80 + random.below(0x200)),
        dtype => Tensor::from_bytes(dtype, shape, vec![0u8; bytes].into()),
    }
}

fn halves(
    dtype: DType,
    shape: Shape,
    count: usize,
    mut next: impl FnMut() -> u16,
) -> Result<Tensor> {
    let bytes: Vec<u8> = (0..count).flat_map(|_| next().to_le_bytes()).collect();
    Tensor::from_bytes(dtype, shape, bytes.into())
}

/// Generator of pseudo-random numbers, xorshift64*.
struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number from -0.1 to 0.1.
    fn small(&mut self) -> f64 {
        ((self.next() >> 11) as f64 / (1u64 << 53) as f64 - 0.5) * 0.2
    }

    fn below(&mut self, end: u16) -> u16 {
        (self.next() >> 48) as u16 % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, dtype: DType, dims: &[&str]) -> TensorSpec {
        let dim = |text: &&str| {
            text.parse().map_or_else(|_| Dim::Dynamic(Some((*text).into())), Dim::Fixed)
        };
        TensorSpec {
            name: name.into(),
            dtype,
            shape: Some(dims.iter().map(dim).collect()),
            optional: false,
        }
    }

    fn shapes(inputs: Vec<TensorSpec>, config: &WarmupConfig) -> Vec<Vec<Vec<usize>>> {
        let signature = Signature { inputs, outputs: vec![] };
        let requests = generate(&signature, config, 1).unwrap();
        for request in &requests {
            signature.check_inputs(request).unwrap();
        }
        requests
            .iter()
            .map(|request| request.iter().map(|input| input.tensor.shape().to_vec()).collect())
            .collect()
    }

    #[test]
    fn batch_sizes_fill_the_first_axis() {
        let config = WarmupConfig { batch_sizes: vec![1, 4], ..WarmupConfig::default() };
        let inputs = vec![spec("a", DType::F32, &["n", "3"]), spec("b", DType::I64, &["n", "seq"])];
        assert_eq!(shapes(inputs, &config), [[vec![1, 3], vec![1, 1]], [vec![4, 3], vec![4, 1]]]);
        assert_eq!(shapes(vec![spec("a", DType::F32, &["2", "3"])], &config), [[vec![2, 3]]]);
    }

    #[test]
    fn configured_axes_hold_for_all_that_share_the_symbol() {
        let dims = [("a".to_owned(), vec![-1, 128])].into();
        let config = WarmupConfig { batch_sizes: vec![2], dims, ..WarmupConfig::default() };
        let inputs = vec![
            spec("a", DType::I32, &["n", "seq"]),
            spec("b", DType::I32, &["n", "seq"]),
            spec("c", DType::I32, &["seq"]),
        ];
        assert_eq!(shapes(inputs, &config), [[vec![2, 128], vec![2, 128], vec![128]]]);
    }

    #[test]
    fn inputs_of_unknown_rank_are_vectors_or_scalars() {
        let unknown = TensorSpec { shape: None, ..spec("s", DType::I64, &[]) };
        let inputs = vec![spec("x", DType::F32, &["n", "3"]), unknown.clone()];
        let generated = |inputs: &[TensorSpec], rank| {
            let signature = Signature { inputs: inputs.to_vec(), outputs: vec![] };
            let config = WarmupConfig { batch_sizes: vec![1, 4], ..WarmupConfig::default() };
            let requests = generate(&signature, &config, rank).unwrap();
            let last = requests.last().unwrap().iter();
            let shapes: Vec<Vec<usize>> = last.map(|input| input.tensor.shape().to_vec()).collect();
            (requests.len(), shapes)
        };
        assert_eq!(generated(&inputs, 1), (2, vec![vec![4, 3], vec![4]]));
        assert_eq!(generated(&inputs, 0), (2, vec![vec![4, 3], vec![]]));
        assert_eq!(generated(&[unknown], 0), (1, vec![vec![]]));
    }

    #[test]
    fn every_type_can_be_generated() {
        for dtype in DType::ALL {
            let tensor = fill(&spec("x", dtype, &[]), Shape::from_slice(&[3, 2])).unwrap();
            assert_eq!((tensor.dtype(), tensor.elements()), (dtype, 6));
        }
        let floats = fill(&spec("x", DType::F32, &[]), Shape::from_slice(&[100]))
            .unwrap()
            .to_vec::<f32>()
            .unwrap();
        assert!(floats.iter().all(|x| x.abs() <= 0.1) && floats.iter().any(|x| *x != floats[0]));
        assert!(fill(&spec("x", DType::F32, &[]), Shape::from_slice(&[usize::MAX, 2])).is_err());
        assert!(fill(&spec("x", DType::F32, &[]), Shape::from_slice(&[1 << 30])).is_err());
    }
}
