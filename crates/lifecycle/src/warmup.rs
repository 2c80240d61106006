//! Warm-up: running a version before it takes requests.
//!
//! A recorded request must succeed, or the load fails. Without recorded requests, requests are
//! generated from the signature. They may break rules that the signature does not state (an index
//! range, a required token), so a refusal is only noted, unless the model's settings say otherwise.
//! Pauses between the runs keep the warm-up of one version below half a core.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{
    DType, Dim, Error, ErrorKind, NamedTensor, Result, Shape, Signature, Tensor, TensorSpec,
};
use engine::Servable;

use crate::WarmupConfig;

/// Least runs in all, unless configured.
const WARMUP_RUNS_MIN: usize = 10;
/// Time after which warm-up ends, if every request ran once.
const WARMUP_TIME_MAX: Duration = Duration::from_secs(10);
/// Most recorded requests that are used, as in TensorFlow Serving.
const WARMUP_REQUESTS_MAX: usize = 1000;
/// Shortest and longest pause between two runs. In between, a pause takes the time of the run
/// before it.
const PAUSE_MIN: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(100);
const INPUT_BYTES_MAX: usize = 256 << 20;

/// Recorded requests of a version.
#[derive(Clone, Debug, Default)]
pub struct WarmupSet {
    /// Requests, each a full set of inputs.
    pub requests: Vec<Vec<NamedTensor>>,
    /// Remark for the version's status, such as the number of skipped records.
    pub note: Option<String>,
}

impl From<Vec<Vec<NamedTensor>>> for WarmupSet {
    fn from(requests: Vec<Vec<NamedTensor>>) -> WarmupSet {
        WarmupSet { requests, note: None }
    }
}

/// Source of recorded requests.
pub trait WarmupSource: Send + Sync {
    /// Adds to recorded `inputs` what the server fills in for its clients (masks, real sizes).
    ///
    /// # Errors
    /// If there is nothing to fill them from.
    fn complete(&self, _servable: &Servable, _inputs: &mut Vec<NamedTensor>) -> Result<()> {
        Ok(())
    }

    /// Returns the recorded requests of the version in `version_dir`. If there are none, requests
    /// are generated from the signature.
    ///
    /// # Errors
    /// If there are some and they cannot be used. The load then fails.
    fn requests(&self, version_dir: &Path, signature: &Signature) -> Result<WarmupSet>;
}

/// The version that is warmed up.
pub(crate) struct WarmupVersion<'a> {
    pub(crate) servable: &'a Servable,
    /// The session's own signature, whose inputs generated requests fill.
    pub(crate) signature: &'a Signature,
    pub(crate) dir: &'a Path,
}

/// Runs the recorded requests of the version, or generated requests if there are none. Returns a
/// note for the version's status, if there is something to know.
///
/// # Errors
/// The error of a recorded request, or of a generated one if `config.fail_on_error` is set;
/// `Cancelled` after `stop`.
pub(crate) fn warm(
    version: WarmupVersion<'_>,
    source: &dyn WarmupSource,
    config: &WarmupConfig,
    stop: &AtomicBool,
) -> Result<Option<String>> {
    let WarmupVersion { servable, signature, dir } = version;
    if !config.enabled {
        return Ok(None);
    }
    let recorded = source.requests(dir, servable.signature());
    let WarmupSet { requests: mut recorded, note } =
        recorded.map_err(|e| e.context("recorded warm-up requests"))?;
    if !recorded.is_empty() {
        recorded.truncate(WARMUP_REQUESTS_MAX);
        for (number, inputs) in recorded.iter_mut().enumerate() {
            let checked = servable.signature().check_inputs(inputs);
            checked
                .and_then(|()| source.complete(servable, inputs))
                .map_err(|e| e.context(format!("recorded warm-up request {number}")))?;
        }
        return run_all(servable, &recorded, config, stop)
            .map(|()| note)
            .map_err(|e| e.context("warm-up with recorded requests"));
    }
    let outcome =
        generate(signature, config).and_then(|requests| run_all(servable, &requests, config, stop));
    match outcome {
        Ok(()) => Ok(note),
        Err(error) if config.fail_on_error || stop.load(Ordering::Relaxed) => {
            Err(error.context("warm-up with generated requests"))
        }
        // The engine aborted in its worker process. Once published, requests would make it abort
        // too.
        Err(error) if error.kind() == ErrorKind::Unavailable => Err(error.context(
            "warm-up with generated requests; if the model cannot run them, set enabled = false in [warmup]",
        )),
        Err(error) => {
            let refused = format!("not warmed up: a generated request was refused: {error}");
            Ok(Some(note.into_iter().chain([refused]).collect::<Vec<_>>().join("; ")))
        }
    }
}

fn run_all(
    servable: &Servable,
    requests: &[Vec<NamedTensor>],
    config: &WarmupConfig,
    stop: &AtomicBool,
) -> Result<()> {
    let started = Instant::now();
    let rounds = match config.iterations {
        Some(iterations) => iterations as usize,
        None => WARMUP_RUNS_MIN.div_ceil(requests.len().max(1)),
    };
    for round in 0..rounds {
        for inputs in requests {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::cancelled("the load was stopped"));
            }
            if round > 0 && started.elapsed() > WARMUP_TIME_MAX {
                return Ok(());
            }
            let began = Instant::now();
            drop(servable.run(inputs, &[])?);
            std::thread::sleep(began.elapsed().clamp(PAUSE_MIN, PAUSE_MAX));
        }
    }
    Ok(())
}

/// Generates one request for each batch size, or one in all if no input has a dynamic first axis.
fn generate(signature: &Signature, config: &WarmupConfig) -> Result<Vec<Vec<NamedTensor>>> {
    let batched = signature.inputs.iter().any(|spec| {
        spec.shape.as_ref().is_none_or(|dims| matches!(dims.first(), Some(Dim::Dynamic(_))))
    });
    let sizes: &[usize] =
        if batched && !config.batch_sizes.is_empty() { &config.batch_sizes } else { &[1] };
    sizes.iter().map(|&size| request(signature, config, size)).collect()
}

fn request(signature: &Signature, config: &WarmupConfig, batch: usize) -> Result<Vec<NamedTensor>> {
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
            Ok(NamedTensor::new(
                spec.name.as_str(),
                fill(spec, shape(spec, config, &symbols, batch))?,
            ))
        })
        .collect()
}

fn configured(config: &WarmupConfig, spec: &TensorSpec, position: usize) -> Option<usize> {
    config.dims.get(&spec.name)?.get(position).and_then(|&size| usize::try_from(size).ok())
}

fn shape(
    spec: &TensorSpec,
    config: &WarmupConfig,
    symbols: &BTreeMap<&str, usize>,
    batch: usize,
) -> Shape {
    let Some(dims) = &spec.shape else {
        let rank = config.dims.get(&spec.name).map_or(1, Vec::len);
        return (0..rank)
            .map(|axis| configured(config, spec, axis).unwrap_or(if axis == 0 { batch } else { 1 }))
            .collect();
    };
    let size = |(position, dim): (usize, &Dim)| match dim {
        Dim::Fixed(size) => *size,
        Dim::Dynamic(symbol) => configured(config, spec, position)
            .or_else(|| symbols.get(symbol.as_deref()?).copied())
            .unwrap_or(if position == 0 { batch } else { 1 }),
    };
    dims.iter().enumerate().map(size).collect()
}

/// Fills a tensor with zeros, empty strings, or small pseudo-random floats that are the same each
/// time.
fn fill(spec: &TensorSpec, shape: Shape) -> Result<Tensor> {
    let count = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    let bytes = |count| {
        spec.dtype.bytes_for(count).or_else(|| usize::checked_mul(count, size_of::<usize>()))
    };
    let too_large = || {
        Error::invalid(format!(
            "input \"{}\" of shape {:?} is too large to make up",
            spec.name,
            shape.as_slice()
        ))
    };
    let (count, bytes) = count
        .and_then(|count| Some((count, bytes(count).filter(|&bytes| bytes <= INPUT_BYTES_MAX)?)))
        .ok_or_else(too_large)?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
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
struct Random(u64);

impl Random {
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
        let requests = generate(&signature, config).unwrap();
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
    fn every_type_can_be_made_up() {
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
