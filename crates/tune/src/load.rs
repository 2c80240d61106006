//! `bench load`: load on any server that speaks one of the protocols, so that other servers can be
//! measured with the same client.

// The help on the terminal shows addresses as they are typed.
#![allow(rustdoc::bare_urls)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::{DType, Dim, Error, NamedTensor, Result, Tensor, TensorSpec, units};
use bytes::Bytes;
use clap::Args;
use serde::Serialize;

use loadgen::BenchEnv;
use loadgen::connection::{Endpoint, RawResponse};
use loadgen::drive::{DrivePlan, Judge, Judgement, LoadLoop};
use loadgen::machine::{NoiseWatch, RunContext, is_running};
use loadgen::measure::{Measurement, measure};
use loadgen::random::RandomSequence;
use loadgen::report::{StepProgress, TextTable, ms, per_second, write_file, write_json};
use loadgen::schedule::Arrivals;
use loadgen::stats::LatencySummary;
use loadgen::tls::TlsArgs;
use loadgen::wire::{Api, ModelEndpoint, from_json};
use loadgen::{print, println};

use crate::requests::from_files;

/// Maximum number of different generated requests.
const REQUESTS: usize = 64;
/// Maximum bytes of all generated requests.
const REQUESTS_BYTES: usize = 1 << 30;
/// Minimum number of generated requests, however large they are.
const REQUESTS_MIN: usize = 4;
/// Maximum reasons of failures in the table. The JSON has more.
const REASONS_SHOWN: usize = 4;
/// Maximum size of a generated request in bytes.
const REQUEST_BYTES_MAX: usize = 256 << 20;
/// Default upper bound of generated integers: small enough for any embedding table.
const INDEX_MAX: u64 = 2;

/// Measure a server from outside: requests per second and latency from the moment each request was
/// due.
///
/// With --rate the loop is open: requests are sent at fixed times, even if the server does not
/// answer. So a stall raises the latency of every request that was due during the stall. With
/// --clients the loop is closed: each client waits for its answer, and the main figure is the
/// number of answers per second. Requests are generated from the model's metadata, unless --request
/// or --requests names requests.
#[derive(Args, Clone, Debug)]
#[command(group = clap::ArgGroup::new("pace").required(true).args(["rate", "clients"]))]
pub struct BenchLoadArgs {
    /// Address of the server: grpc://HOST:PORT or http://HOST:PORT; grpcs:// or https:// with TLS;
    /// unix:PATH (gRPC) or http+unix:PATH for a Unix socket
    #[arg(long)]
    pub url: String,
    /// Certificates.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// The server's API key, if it has one [default: MILLPOND_API_KEY]
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// API of the server: oip (Open Inference Protocol v2) or tfs (TensorFlow Serving)
    #[arg(long, value_enum, default_value = "oip")]
    pub api: Api,
    /// Name of the model
    #[arg(long)]
    pub model: String,
    /// Open loop: requests per second
    #[arg(long)]
    pub rate: Option<f64>,
    /// Closed loop: clients that each wait for their answer
    #[arg(long)]
    pub clients: Option<usize>,
    /// Open loop: distribution of the gaps between requests
    #[arg(long, value_enum, default_value = "fixed", conflicts_with = "clients")]
    pub arrivals: Arrivals,
    /// Time of the measurement
    #[arg(long, default_value = "10s", value_parser = units::parse_duration)]
    pub duration: Duration,
    /// Time of requests before the measurement
    #[arg(long, default_value = "2s", value_parser = units::parse_duration)]
    pub warm_up: Duration,
    /// Size of the first axis if the model leaves it open
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// Size of every other axis that the model leaves open, or of one input's shape: SIZE or
    /// NAME=4,3,224,224
    #[arg(long, value_name = "SIZE|NAME=SHAPE")]
    pub dims: Vec<String>,
    /// Upper bound (excluded) of integers in generated requests
    #[arg(long, default_value_t = INDEX_MAX)]
    pub index_max: u64,
    /// Send this request instead of generated ones: {"inputs": [{"name", "datatype", "shape",
    /// "data"}]}
    #[arg(long, value_name = "FILE", conflicts_with_all = ["batch", "dims", "index_max"])]
    pub request: Option<PathBuf>,
    /// Send these requests in turn instead of generated ones: files or directories of .json files
    /// with one each, or .jsonl files with one on each line, such as a request log in JSON
    #[arg(
        long,
        value_name = "FILE|DIR",
        num_args = 1..,
        conflicts_with_all = ["request", "batch", "dims", "index_max"]
    )]
    pub requests: Vec<PathBuf>,
    /// Connections [default: 8 for --rate, one per client for --clients]
    #[arg(long)]
    pub connections: Option<usize>,
    /// Client threads; one drives some 20,000 requests per second
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Open loop: maximum number of outstanding answers; further requests count as failed
    #[arg(long, default_value_t = 1024, conflicts_with = "clients")]
    pub in_flight: usize,
    /// Time to wait for the last answers; requests still without an answer then count as failed
    #[arg(long, default_value = "20s", value_parser = units::parse_duration)]
    pub drain: Duration,
    /// Process of the server on this machine, for its CPU time per request (may be given several
    /// times)
    #[arg(long)]
    pub pid: Vec<u32>,
    /// Seed of generated requests and Poisson gaps
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the percentile distribution in HdrHistogram's text form (milliseconds)
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,
}

/// JSON of `bench load`.
#[derive(Debug, Serialize)]
struct BenchLoadReport {
    url: String,
    api: String,
    model: String,
    mode: String,
    rps: f64,
    #[serde(flatten)]
    latency: LatencySummary,
    mean_ms: f64,
    failed: u64,
    reasons: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_cpu_us_per_request: Option<f64>,
    #[serde(flatten)]
    context: RunContext,
}

/// Judge that counts every answer with a good status as right, because the right answers of the
/// caller's model are not known.
pub(crate) struct StatusOnly;

impl Judge for StatusOnly {
    fn judge(&self, _shot: usize, _answer: &RawResponse) -> (Judgement, u64) {
        (Judgement::Right, 0)
    }
}

/// Runs `bench load`.
///
/// # Errors
/// If the server cannot be reached, the arguments do not describe a request, every request failed,
/// or a file cannot be written.
pub fn run(args: &BenchLoadArgs, _env: &BenchEnv) -> Result<()> {
    let endpoint = Endpoint::parse(&args.url, &args.tls)?.with_key(args.api_key.clone());
    args.tls.check_used(endpoint.is_tls())?;
    if let Some(pid) = args.pid.iter().find(|&&pid| !is_running(pid)) {
        return Err(Error::invalid(format!("--pid {pid}: there is no such process")));
    }
    let target = ModelEndpoint { endpoint, api: args.api, model: args.model.clone() };
    let encoded = target.encode(&requests(args, &target)?)?;
    let pace = pace(args)?;
    let mut plan = DrivePlan::new(
        target.endpoint.clone(),
        encoded.template,
        Arc::<[Bytes]>::from(encoded.bodies),
        pace,
        args.warm_up + args.duration,
    );
    plan.threads = args.threads;
    plan.connections = args.connections.unwrap_or(plan.connections);
    plan.in_flight_max = args.in_flight;
    plan.drain = args.drain;

    let watch = NoiseWatch::start();
    let judge: Arc<dyn Judge> = Arc::new(StatusOnly);
    let measured = measure(
        &plan,
        args.warm_up,
        &judge,
        &args.pid,
        Some(&StepProgress::new(plan.duration.as_secs())),
    )?;
    report(args, &measured, watch.context(None))
}

fn pace(args: &BenchLoadArgs) -> Result<LoadLoop> {
    match (args.rate, args.clients) {
        (Some(rate), _) if rate > 0.0 && rate.is_finite() => {
            Ok(LoadLoop::Open { arrivals: args.arrivals, rate, seed: args.seed })
        }
        (None, Some(clients)) => Ok(LoadLoop::Closed { clients }),
        _ => Err(Error::invalid("--rate must be more than 0")),
    }
}

/// Prints the result, and writes it to the files that `args` name.
///
/// # Errors
/// `Unavailable` if no request succeeded. Also if a file cannot be written.
fn report(args: &BenchLoadArgs, measured: &Measurement, context: RunContext) -> Result<()> {
    let counted = &measured.counted;
    let report = BenchLoadReport {
        url: args.url.clone(),
        api: format!("{:?}", args.api).to_lowercase(),
        model: args.model.clone(),
        mode: match (args.rate, args.clients) {
            (Some(rate), _) => format!("open loop, {rate} requests/s"),
            (_, clients) => format!("closed loop, {} clients", clients.unwrap_or(0)),
        },
        rps: counted.rate(),
        latency: counted.latencies.summary(),
        mean_ms: counted.latencies.mean_ms(),
        failed: counted.faults.failed,
        reasons: counted.faults.lines(),
        server_cpu_us_per_request: measured.cpu_us_per_request,
        context,
    };
    print_table(&report);
    if let Some(path) = &args.json {
        write_json(path, &report)?;
    }
    if let Some(path) = &args.hdr {
        write_file(path, counted.latencies.percentile_log().as_bytes())?;
    }
    if counted.latencies.count() == 0 {
        let why = report.reasons.first().cloned().unwrap_or_else(|| "no answer came".into());
        return Err(Error::unavailable(format!("no request succeeded: {why}")));
    }
    Ok(())
}

fn print_table(report: &BenchLoadReport) {
    println!("{} {} \"{}\": {}", report.url, report.api, report.model, report.mode);
    let mut table = TextTable::new(&[
        "requests",
        "rps",
        "p50 ms",
        "p99 ms",
        "p999 ms",
        "max ms",
        "failed",
        "server CPU us",
    ]);
    let latency = &report.latency;
    table.row([
        latency.n.to_string(),
        per_second(report.rps),
        ms(latency.p50_ms),
        ms(latency.p99_ms),
        ms(latency.p999_ms),
        ms(latency.max_ms),
        report.failed.to_string(),
        report.server_cpu_us_per_request.map_or("-".into(), |cpu| format!("{cpu:.1}")),
    ]);
    print!("{table}");
    report.reasons.iter().take(REASONS_SHOWN).for_each(|reason| println!("  {reason}"));
    println!("{}", report.context);
}

fn requests(args: &BenchLoadArgs, target: &ModelEndpoint) -> Result<Vec<Vec<NamedTensor>>> {
    if !args.requests.is_empty() {
        return from_files(&args.requests);
    }
    if let Some(path) = &args.request {
        let text = std::fs::read(path).map_err(|e| Error::io(path, &e))?;
        return Ok(vec![from_json(&text).map_err(|e| e.context(path.display()))?]);
    }
    let shapes = Shapes::parse(args.batch, &args.dims)?;
    let specs = target.inputs()?;
    check_names(shapes.named.iter().map(|(name, _)| name.as_str()), &specs)?;
    generated_requests(&specs, &shapes, args, REQUESTS_BYTES)
}

/// Checks that each name of `--dims` is that of an input.
///
/// # Errors
/// `InvalidArgument` with the names of the inputs.
pub(crate) fn check_names<'a>(
    names: impl IntoIterator<Item = &'a str>,
    specs: &[TensorSpec],
) -> Result<()> {
    let known = |name: &str| specs.iter().any(|spec| spec.name == name);
    match names.into_iter().find(|name| !known(name)) {
        None => Ok(()),
        Some(name) => {
            let inputs: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
            Err(Error::invalid(format!(
                "--dims: the model has no input \"{name}\"; its inputs are {}",
                inputs.join(", ")
            )))
        }
    }
}

/// Generates different requests for these inputs, with the seed of `args`. Stops early if they
/// exceed `bytes_max`, because all of them are kept in memory.
fn generated_requests(
    specs: &[TensorSpec],
    shapes: &Shapes,
    args: &BenchLoadArgs,
    bytes_max: usize,
) -> Result<Vec<Vec<NamedTensor>>> {
    let mut requests: Vec<Vec<NamedTensor>> = Vec::new();
    let mut bytes = 0;
    while requests.len() < REQUESTS && (requests.len() < REQUESTS_MIN || bytes < bytes_max) {
        let seed = loadgen::random::at(args.seed, requests.len() as u64);
        let mut random = RandomSequence::new(seed);
        let request: Vec<NamedTensor> = specs
            .iter()
            .map(|spec| generate(spec, shapes, args.index_max, &mut random))
            .collect::<Result<_>>()?;
        bytes += request.iter().map(|input| input.tensor.byte_len()).sum::<usize>();
        requests.push(request);
    }
    Ok(requests)
}

/// Sizes for the axes that a model leaves open.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    /// Size of the first axis.
    pub(crate) batch: usize,
    /// Size of every other axis.
    pub(crate) other: usize,
    /// Whole shapes of single inputs.
    pub(crate) named: Vec<(String, Vec<usize>)>,
}

impl Shapes {
    /// Parses `--dims`: a size of all dynamic axes but the batch, or NAME=SIZES for one input.
    fn parse(batch: usize, dims: &[String]) -> Result<Shapes> {
        let mut shapes = Shapes { batch, other: 1, named: Vec::new() };
        for text in dims {
            let number = |text: &str| {
                text.trim()
                    .parse()
                    .map_err(|_| Error::invalid(format!("--dims: \"{text}\" is not a size")))
            };
            match text.split_once('=') {
                None => shapes.other = number(text)?,
                Some((name, sizes)) => {
                    let sizes = sizes.split(',').map(number).collect::<Result<_>>()?;
                    shapes.named.push((name.to_owned(), sizes));
                }
            }
        }
        Ok(shapes)
    }

    /// Returns the shape of an input in generated requests.
    fn of(&self, spec: &TensorSpec) -> Vec<usize> {
        if let Some((_, sizes)) = self.named.iter().find(|(name, _)| *name == spec.name) {
            return sizes.clone();
        }
        let size = |(axis, dim): (usize, &Dim)| match dim {
            Dim::Fixed(size) => *size,
            Dim::Dynamic(_) if axis == 0 => self.batch,
            Dim::Dynamic(_) => self.other,
        };
        spec.shape.iter().flatten().enumerate().map(size).collect()
    }
}

/// Generates an input.
///
/// # Errors
/// If it would be too large, or there is no generator for its type.
pub(crate) fn generate(
    spec: &TensorSpec,
    shapes: &Shapes,
    index_max: u64,
    random: &mut RandomSequence,
) -> Result<NamedTensor> {
    let shape = shapes.of(spec);
    let count = shape
        .iter()
        .try_fold(1usize, |product, &size| product.checked_mul(size))
        .unwrap_or(usize::MAX);
    if spec.dtype.bytes_for(count).unwrap_or(count) > REQUEST_BYTES_MAX {
        return Err(Error::too_large(format!(
            "input \"{}\" of shape {shape:?} is larger than 256 MiB",
            spec.name
        )));
    }
    let tensor = if spec.dtype == DType::String {
        let strings: Vec<Bytes> =
            (0..count).map(|_| Bytes::from(random.skewed(index_max.max(1)).to_string())).collect();
        Tensor::from_strings(shape.as_slice(), strings)?
    } else {
        let bytes: Vec<u8> = element_bytes(spec.dtype, count, index_max, random)?;
        Tensor::from_bytes(spec.dtype, shape.as_slice(), Bytes::from(bytes))?
    };
    Ok(NamedTensor::new(spec.name.as_str(), tensor))
}

/// Returns floats in -1 to 1, integers skewed below `index_max`, or bits.
fn element_bytes(
    dtype: DType,
    count: usize,
    index_max: u64,
    random: &mut RandomSequence,
) -> Result<Vec<u8>> {
    let mut float = || random.unit() * 2.0 - 1.0;
    Ok(match dtype {
        DType::F64 => (0..count).flat_map(|_| float().to_le_bytes()).collect(),
        DType::F32 => (0..count).flat_map(|_| (float() as f32).to_le_bytes()).collect(),
        DType::F16 => (0..count).flat_map(|_| half::f16::from_f64(float()).to_le_bytes()).collect(),
        DType::BF16 => {
            (0..count).flat_map(|_| half::bf16::from_f64(float()).to_le_bytes()).collect()
        }
        DType::Bool => (0..count).map(|_| (random.bits() & 1) as u8).collect(),
        integer => {
            let bytes = integer.bits().unwrap_or(0) / 8;
            if bytes == 0 || bytes > 8 {
                return Err(Error::unimplemented(format!(
                    "cannot generate {integer} values; give --request FILE"
                )));
            }
            let limit = index_max.clamp(1, 1 << (8 * bytes.min(7) - 1));
            (0..count).flat_map(|_| random.skewed(limit).to_le_bytes()[..bytes].to_vec()).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(dtype: DType, shape: Vec<Dim>) -> TensorSpec {
        TensorSpec { name: "x".into(), dtype, shape: Some(shape), optional: false }
    }

    #[test]
    fn open_axes_get_their_sizes() {
        let shapes = Shapes::parse(4, &["7".into(), "y=1,2".into()]).unwrap();
        let open = || Dim::Dynamic(None);
        assert_eq!(shapes.of(&spec(DType::F32, vec![open(), Dim::Fixed(3), open()])), [4, 3, 7]);
        let named = TensorSpec { name: "y".into(), ..spec(DType::F32, vec![open()]) };
        assert_eq!(shapes.of(&named), [1, 2]);
        assert!(Shapes::parse(1, &["y=a".into()]).is_err());
    }

    #[test]
    fn dims_name_inputs_of_the_model() {
        let specs = [spec(DType::F32, vec![]), spec(DType::F32, vec![])];
        assert!(check_names(["x"], &specs).is_ok());
        let error = check_names(["x", "X"], &specs).unwrap_err();
        assert!(error.message().contains("no input \"X\"; its inputs are x, x"), "{error}");
    }

    #[test]
    fn large_requests_are_fewer() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            load: BenchLoadArgs,
        }
        let line = ["load", "--url", "grpc://127.0.0.1:1", "--model", "m", "--clients", "1"];
        let args = <Line as clap::Parser>::try_parse_from(line).unwrap().load;
        let specs = [spec(DType::F32, vec![Dim::Fixed(25)])];
        let shapes = Shapes::default();
        let count =
            |bytes_max| generated_requests(&specs, &shapes, &args, bytes_max).unwrap().len();
        assert_eq!((count(100_000), count(1000), count(1)), (64, 10, 4));
    }

    #[test]
    fn generated_values_have_type_and_range() {
        let mut random = RandomSequence::new(1);
        let shapes = Shapes { batch: 5, other: 1, named: vec![] };
        for dtype in [DType::I64, DType::U8, DType::F16, DType::F32, DType::Bool, DType::String] {
            let made = generate(&spec(dtype, vec![Dim::Dynamic(None)]), &shapes, 1000, &mut random)
                .unwrap();
            assert_eq!((made.tensor.dtype(), made.tensor.shape()), (dtype, [5].as_slice()));
        }
        let made =
            generate(&spec(DType::I64, vec![Dim::Fixed(1000)]), &shapes, 10, &mut random).unwrap();
        assert!(made.tensor.to_vec::<i64>().unwrap().iter().all(|value| (0..10).contains(value)));
        let huge = spec(DType::F32, vec![Dim::Fixed(1 << 40)]);
        assert!(generate(&huge, &shapes, 10, &mut random).is_err());
    }
}
