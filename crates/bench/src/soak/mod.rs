//! `bench soak`: leaks of memory, descriptors and files after many swaps under load.
//!
//! A leak of a few kilobytes, one descriptor or one file a swap is invisible in `bench swap`. Here
//! a small model of each engine is swapped until such a leak is visible.

mod growth;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use base::units::{self, MIB};
use base::{Error, Result, VersionNumber};
use clap::Args;
use engine::Engine as _;
use engine_onnx::OnnxEngine;

use crate::report::BenchReport as _;
use crate::swap::EngineName;
use crate::swap::engines::ContentFiles;
use crate::swap::server::{SwapLoad, SwapModel, SwapPace, SwapServer, SwapServerPlan};
use demo::contents::DISTINCT;
use demo::ctr::Ctr;
use demo::traffic::Traffic;
use growth::{SoakReport, SwapTrace};
use loadgen::BenchEnv;
use loadgen::cache::{self, TemporaryDir};
use loadgen::disk_space::check_space;
use loadgen::drive::SampleSink;
use loadgen::machine::{NoiseWatch, descriptors_of, rss_kb_of, threads_of};
use loadgen::report::StepProgress;
use loadgen::samples::{Faults, SampleLog};
use loadgen::stats::Latencies;

/// Maximum number of swaps.
const SWAPS_MAX: usize = 1_000_000;
/// Maximum number of models, one for each engine.
const MODELS_MAX: usize = 8;
/// Converted versions of a model on the disk during a swap: the one that serves, the next one, and
/// the last one before its removal.
const VERSIONS_CONVERTED: u64 = 3;
/// Time between two checks for the end of a swap.
const SWAP_POLL: Duration = Duration::from_millis(20);
/// Time of requests before the first swap.
const LEAD_TIME: Duration = Duration::from_secs(1);

/// Swap small models many times under load, and watch the server's memory, descriptors and threads.
///
/// One server has a model of each engine. All models are swapped at once, again and again, and
/// every answer is checked. Growth is the median of the last 50 swaps compared with the median of
/// the 50 swaps from swap 50 on. `--engine onnx,torch,tensorflow --period 20 --seconds 600` serves
/// three engines together for ten minutes.
///
/// Goals: no request fails, no answer is wrong, descriptors and threads do not grow, and resident
/// memory and the median latency grow by at most 3 %.
#[derive(Args, Clone, Debug)]
pub(crate) struct SoakArgs {
    /// Engines of the models, one model each in the same server
    #[arg(
        long = "engine",
        value_name = "ENGINE",
        value_enum,
        value_delimiter = ',',
        default_value = "onnx"
    )]
    pub(crate) engines: Vec<EngineName>,
    /// Swaps of each model
    #[arg(long, default_value_t = 1000)]
    pub(crate) swaps: usize,
    /// End after this time instead of after --swaps
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub(crate) seconds: Option<Duration>,
    /// Time from one swap to the next [default: until the previous swap is complete]
    #[arg(long, value_parser = units::parse_duration)]
    pub(crate) period: Option<Duration>,
    /// Size of each model's parameters
    #[arg(long, default_value = "32MiB", value_parser = units::parse_bytes)]
    pub(crate) bytes: u64,
    /// Requests per second to all models together
    #[arg(long, default_value_t = 200.0)]
    pub(crate) rate: f64,
    /// Rows of a request
    #[arg(long, default_value_t = 8)]
    pub(crate) batch: usize,
    /// Publish files as the engine's framework writes them, which the server converts first
    #[arg(long)]
    pub(crate) convert: bool,
    /// Python with TensorFlow, which makes the models of that engine [default:
    /// .venv-test/bin/python, which `make .venv-test/ready` makes]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Further argument for the server, e.g. --server-arg=--load-rate=400MB (may be given several
    /// times)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) server_arg: Vec<String>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl SoakArgs {
    fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::invalid(what.to_owned()));
        let different = |index: usize| !self.engines[..index].contains(&self.engines[index]);
        if !(1..=MODELS_MAX).contains(&self.engines.len())
            || !(0..self.engines.len()).all(different)
        {
            return wrong("--engine must name different engines");
        }
        if !(2..=SWAPS_MAX).contains(&self.swaps) {
            return wrong("--swaps must be 2 to 1000000");
        }
        if !(self.rate > 0.0 && self.rate.is_finite()) || self.batch == 0 || self.bytes < MIB {
            return wrong("--rate and --batch must be above 0, --bytes at least 1MiB");
        }
        Ok(())
    }

    /// Returns the number of bytes of the versions that the server converts and keeps at a time.
    fn converted_bytes(&self) -> u64 {
        let versions =
            if self.convert { VERSIONS_CONVERTED * self.engines.len() as u64 } else { 0 };
        self.bytes.saturating_mul(versions)
    }

    /// Makes or finds the models, the requests and the expected answers.
    fn models(&self, env: &BenchEnv) -> Result<Vec<Arc<SwapModel>>> {
        let python = self.python.as_deref();
        let files = ContentFiles { env, ctr: Ctr::of_bytes(self.bytes), python };
        let traffic = Arc::new(Traffic::new(&files.ctr, DISTINCT, self.batch)?);
        let model = |&engine: &EngineName| {
            let contents = if self.convert {
                engine.plain(&files, DISTINCT)?
            } else {
                engine.published(&files, DISTINCT)?
            };
            let name = engine.name().to_owned();
            Ok(Arc::new(SwapModel { name, engine, contents, traffic: traffic.clone() }))
        };
        self.engines.iter().map(model).collect()
    }
}

/// Runs `bench soak`.
///
/// # Errors
/// Returns an error if a server cannot be started or does not survive, an argument is out of range,
/// or the disk is too small. Failed requests, wrong answers and missing swaps are figures, and make
/// the run fail after its report.
pub(crate) fn run(args: &SoakArgs, env: &BenchEnv) -> Result<()> {
    args.check()?;
    let engine = OnnxEngine::open(&env.onnxruntime)?;
    let watch = NoiseWatch::start();
    let models = args.models(env)?;
    let scratch = TemporaryDir::create(env.cache_dir.join("run").join("soak-cache"))?;
    let cache_dir = scratch.path().to_owned();
    if args.convert {
        check_space(&cache_dir, args.converted_bytes(), cache::REMEDY)?;
    }
    let mut server_args: Vec<String> = ["--poll", "50ms", "--cache-dir"].map(String::from).into();
    server_args.push(cache_dir.display().to_string());
    server_args.extend(args.server_arg.iter().cloned());
    let plan = SwapServerPlan {
        store: None,
        name: "soak".into(),
        args: server_args,
        program: None,
        malloc_conf: None,
        group: None,
    };
    let server = SwapServer::start(env, plan, &models)?;
    let soak = Soak { args, server: &server, cache_dir };
    let swapped = soak.swap_under_load()?;
    server.process.stop()?;
    let report = SoakReport::new(args, &swapped, watch.context(Some(engine.version())));
    report.finish(args.json.as_deref())
}

/// Swaps under load, and the failures of requests.
#[derive(Default)]
struct SoakSwaps {
    traces: Vec<SwapTrace>,
    faults: Faults,
    /// True if a version was not served in time, or if the load ended before the last swap.
    broke_off: bool,
}

/// A server under test, and the settings of the test.
struct Soak<'a> {
    args: &'a SoakArgs,
    server: &'a SwapServer,
    /// Directory of the server's converted models.
    cache_dir: PathBuf,
}

impl Soak<'_> {
    /// Sends requests until the last swap.
    fn swap_under_load(&self) -> Result<SoakSwaps> {
        let log = Arc::new(SampleLog::default());
        let sink: Arc<dyn SampleSink> = log.clone();
        // Ended by the last swap.
        let load = SwapLoad::new(SwapPace::Rate(self.args.rate), Duration::MAX);
        std::thread::scope(|scope| {
            let driver = scope.spawn(|| self.server.drive(&load, &sink));
            let swapped = self.swap_all(&log, &|| driver.is_finished());
            load.stop();
            driver.join().unwrap_or_else(|_| Err(Error::internal("the driver panicked")))?;
            let mut swapped = swapped?;
            swapped.faults.add(&log.take().faults);
            Ok(swapped)
        })
    }

    /// Publishes one version after another until the run ends, and takes a trace after each swap.
    fn swap_all(&self, log: &SampleLog, load_ended: &dyn Fn() -> bool) -> Result<SoakSwaps> {
        let args = self.args;
        sleep(LEAD_TIME);
        let before = self.server.process.metrics()?;
        let progress = StepProgress::new(args.swaps as u64);
        let started = Instant::now();
        let mut swapped = SoakSwaps::default();
        while !self.ends(started, swapped.traces.len()) {
            swapped.broke_off = load_ended();
            if swapped.broke_off {
                break;
            }
            let began = Instant::now();
            let version = swapped.traces.len() as VersionNumber + 2;
            self.server.publish(version)?;
            if !self.server.wait_swaps(&before, version - 1, SWAP_POLL)? {
                let log = self.server.process.log().display();
                progress.line(&format!("version {version} is not served; see {log}"));
                swapped.broke_off = true;
                break;
            }
            if let Some(period) = args.period {
                sleep((began + period).saturating_duration_since(Instant::now()));
            }
            let kept = log.take();
            swapped.faults.add(&kept.faults);
            let latencies: Latencies = kept.samples.iter().map(|sample| sample.latency).collect();
            swapped.traces.push(self.trace(latencies.quantile_ms(0.5)));
            self.show(&progress, &swapped, started);
        }
        Ok(swapped)
    }

    fn ends(&self, started: Instant, swaps: usize) -> bool {
        match self.args.seconds {
            Some(time) => started.elapsed() >= time || swaps >= SWAPS_MAX,
            None => swaps >= self.args.swaps,
        }
    }

    /// Returns the server's use of the machine now.
    fn trace(&self, p50_ms: f64) -> SwapTrace {
        let pid = self.server.process.pid();
        SwapTrace {
            p50_ms,
            rss_mb: rss_kb_of(pid) as f64 / 1024.0,
            descriptors: descriptors_of(pid) as f64,
            threads: threads_of(pid) as f64,
            cache_mb: cache::disk_bytes(&self.cache_dir) as f64 / MIB as f64,
        }
    }

    fn show(&self, progress: &StepProgress, swapped: &SoakSwaps, started: Instant) {
        let SoakSwaps { traces, faults, .. } = swapped;
        match self.args.seconds {
            Some(time) => progress.at(started.elapsed().as_secs(), time.as_secs()),
            None => progress.at(traces.len() as u64, self.args.swaps as u64),
        }
        let Some(last) = traces.last() else { return };
        progress.say(format!(
            "{} swaps, {:.0} MiB resident, p50 {:.2} ms, {} failed, {} wrong",
            traces.len(),
            last.rss_mb,
            last.p50_ms,
            faults.failed,
            faults.wrong
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<SoakArgs> {
        let args: SoakArgs = crate::arguments::parse(text.split_whitespace())?;
        args.check().map(|()| args)
    }

    #[test]
    fn engines_are_different_and_figures_in_range() {
        let args = parse("--engine onnx,torch --seconds 600 --period 20").unwrap();
        assert_eq!(args.engines, [EngineName::Onnx, EngineName::Torch]);
        assert_eq!((args.seconds.unwrap().as_secs(), args.period.unwrap().as_secs()), (600, 20));
        assert_eq!(args.converted_bytes(), 0);
        let convert = parse("--engine onnx,torch --bytes 32MiB --convert").unwrap();
        assert_eq!(convert.converted_bytes(), 192 * MIB);
        for wrong in ["--engine onnx,onnx", "--engine other", "--swaps 1", "--rate 0", "--batch 0"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
