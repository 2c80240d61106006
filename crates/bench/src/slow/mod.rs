//! `bench slow`: checks that the server names the cause of slow requests.
//!
//! For each cause a server gets steady requests. Then the cause is injected in pulses, and the slow
//! requests that the server lists are compared with the pulses.

mod injection;
mod report;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::units::{self, MIB};
use base::{Error, Result};
use clap::Args;
use demo::contents::DISTINCT;
use demo::ctr::{Ctr, CtrContent};
use demo::traffic::Traffic;
use engine::Engine as _;
use engine_onnx::OnnxEngine;
use loadgen::BenchEnv;
use loadgen::connection::Endpoint;
use loadgen::cpu_group::CpuGroup;
use loadgen::drive::{DrivePlan, Judge, LoadLoop, SampleSink, drive};
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;
use loadgen::samples::SampleLog;
use loadgen::schedule::Arrivals;
use loadgen::wire::{Api, EncodedRequests, ModelEndpoint};

use self::injection::{Injection, Pulses};
use self::report::{CauseReport, SlowReport};
use self::watch::SlowWatch;
use crate::report::BenchReport as _;
use crate::swap::engines::{ContentFiles, EngineName};
use crate::swap::server::{SwapModel, SwapServer, SwapServerPlan};

/// Name of the model with the steady requests.
const MODEL: &str = "steady";
/// Name of the model whose large requests are ahead in the queue.
const HEAVY: &str = "heavy";
/// Contents of the heavy model.
const HEAVY_CONTENTS: [CtrContent; 2] = [CtrContent::of(5), CtrContent::of(6)];
/// Seed of the requests of pulses.
const SEED: u64 = 7;
/// Size of the heavy model's parameters.
const HEAVY_BYTES: u64 = 64 * MIB;
/// Steady time before the first pulse, in which the server learns the usual times.
const STEADY_TIME: Duration = Duration::from_secs(8);
/// Time with --quick, and the size of the model.
const QUICK_TIME: Duration = Duration::from_secs(4);
const QUICK_STEADY_TIME: Duration = Duration::from_secs(3);
const QUICK_BYTES: u64 = 64 * MIB;

/// Inject causes of slow requests, and report how often the server names them first.
///
/// A server gets steady requests over gRPC. In pulses, one of these causes is injected: other
/// processes take the cores (cpu_hog); a new version is read, hashed and published (swap); large
/// requests to another model are ahead in the queue (behind_batch); a client sends its body slowly
/// over HTTP (slow_client); or a control group's quota stops the server (throttled; skipped if no
/// group can be made). Each cause has a server of its own, so that one cause does not raise the
/// limits of the next.
///
/// Every slow request that overlaps a pulse counts, even if something else caused it. So a busy
/// machine lowers the share. With slow_client, only the requests of this client count, because it
/// delays no other request. Goal: at least 95 % of the counted requests name the injected cause
/// first.
#[derive(Args, Clone, Debug)]
pub(crate) struct SlowArgs {
    /// Time of the pulses of each cause
    #[arg(long, value_name = "N", default_value = "30s", value_parser = units::parse_duration)]
    pub(crate) seconds: Duration,
    /// Steady requests per second
    #[arg(long, default_value_t = 200.0)]
    pub(crate) rate: f64,
    /// Rows of a steady request
    #[arg(long, default_value_t = 64)]
    pub(crate) batch: usize,
    /// Rows of a request to the heavy model
    #[arg(long, default_value_t = 4096)]
    pub(crate) heavy_batch: usize,
    /// Size of the model's parameters
    #[arg(long, default_value = "512MiB", value_parser = units::parse_bytes)]
    pub(crate) bytes: u64,
    /// Causes to inject
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "cpu-hog,swap,behind-batch,slow-client,throttled"
    )]
    pub(crate) causes: Vec<Injection>,
    /// A small model, a few seconds: a test of the program; the figures mean nothing
    #[arg(long)]
    pub(crate) quick: bool,
    /// Further argument for the servers (may be given several times)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) server_arg: Vec<String>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl SlowArgs {
    /// Applies `--quick` and checks the arguments.
    fn resolved(&self) -> Result<SlowArgs> {
        let mut args = self.clone();
        if args.quick {
            args.seconds = QUICK_TIME;
            args.bytes = QUICK_BYTES;
        }
        if !(args.rate >= 10.0 && args.rate <= 1e5) || args.seconds < Duration::from_secs(2) {
            return Err(Error::invalid("--rate must be 10 to 100000, --seconds at least 2"));
        }
        if args.batch == 0 || args.heavy_batch == 0 || args.causes.is_empty() {
            return Err(Error::invalid("--batch, --heavy-batch and --causes must not be empty"));
        }
        Ok(args)
    }

    fn steady_time(&self) -> Duration {
        if self.quick { QUICK_STEADY_TIME } else { STEADY_TIME }
    }
}

/// Runs `bench slow`.
///
/// # Errors
/// Returns an error if a server cannot be started or does not survive, or an argument is out of
/// range. Failed requests and wrong answers are figures, and make the run fail after its report.
pub(crate) fn run(args: &SlowArgs, env: &BenchEnv) -> Result<()> {
    let args = args.resolved()?;
    let engine = OnnxEngine::open(&env.onnxruntime)?;
    let watch = NoiseWatch::start();
    let progress = StepProgress::new(args.causes.len() as u64);
    progress.say("making the models and computing the right answers");
    let setup = SlowSetup::make(&args, env)?;
    let mut causes = Vec::new();
    for &injection in &args.causes {
        progress.say(format!("{}, {:.0} requests/s", injection.name(), args.rate));
        let report = setup.inject(injection);
        causes.push(report.map_err(|e| e.context(injection.name()))?);
        progress.step();
    }
    drop(progress);
    let report = SlowReport::new(&args, causes, watch.context(Some(engine.version())));
    report.finish(args.json.as_deref())
}

/// The models of all servers.
struct SlowSetup<'a> {
    args: &'a SlowArgs,
    env: &'a BenchEnv,
    steady: Arc<SwapModel>,
    heavy: Arc<SwapModel>,
}

impl<'a> SlowSetup<'a> {
    fn make(args: &'a SlowArgs, env: &'a BenchEnv) -> Result<SlowSetup<'a>> {
        let model = |name: &str, bytes, pair, batch| {
            let files = ContentFiles { env, ctr: Ctr::of_bytes(bytes), python: None };
            let engine = EngineName::Onnx;
            let traffic = Traffic::new(&files.ctr, pair, batch)?;
            let contents = engine.published(&files, pair)?;
            let traffic = Arc::new(traffic);
            Ok::<_, Error>(Arc::new(SwapModel { name: name.into(), engine, contents, traffic }))
        };
        Ok(SlowSetup {
            args,
            env,
            steady: model(MODEL, args.bytes, DISTINCT, args.batch)?,
            // Its answers are not compared, and those to large requests take long to compute.
            heavy: model(HEAVY, HEAVY_BYTES.min(args.bytes), HEAVY_CONTENTS, 1)?,
        })
    }

    /// Encodes a request of `rows` rows to the model `name`.
    fn encode(
        &self,
        endpoint: Endpoint,
        api: Api,
        name: &str,
        rows: usize,
    ) -> Result<EncodedRequests> {
        let bytes = if name == HEAVY { HEAVY_BYTES.min(self.args.bytes) } else { self.args.bytes };
        let inputs = Ctr::of_bytes(bytes).inputs(SEED, 0, rows).tensors()?;
        ModelEndpoint { endpoint, api, model: name.into() }.encode(&[inputs])
    }

    fn start(&self, injection: Injection, group: Option<&CpuGroup>) -> Result<SwapServer> {
        let mut args: Vec<String> = ["--poll", "100ms"].map(String::from).into();
        args.extend(self.args.server_arg.iter().cloned());
        let mut models = vec![self.steady.clone()];
        if injection == Injection::BehindBatch {
            models.push(self.heavy.clone());
        }
        let name = format!("slow-{}", injection.name());
        let plan =
            SwapServerPlan { name, args, program: None, malloc_conf: None, group, store: None };
        SwapServer::start(self.env, plan, &models)
    }

    /// Injects one cause into a server of its own.
    fn inject(&self, injection: Injection) -> Result<CauseReport> {
        let group = match injection {
            Injection::Throttled => match CpuGroup::new(loadgen::machine::cores() as f64) {
                Ok(group) => Some(group),
                Err(error) => return Ok(CauseReport::skipped(injection, error.message())),
            },
            _ => None,
        };
        let server = self.start(injection, group.as_ref())?;
        let samples = Arc::new(SampleLog::default());
        let plan = self.plan(&server)?;
        let judge: Arc<dyn Judge> = self.steady.traffic.clone();
        let sink: Arc<dyn SampleSink> = samples.clone();
        let watch = SlowWatch::default();
        let pulses = std::thread::scope(|scope| {
            let driver = scope.spawn(|| drive(&plan, &judge, &sink));
            let watcher = scope.spawn(|| watch.run(&server.process, &plan.stop));
            std::thread::sleep(self.args.steady_time());
            let pulses =
                Pulses { setup: self, server: &server, group: group.as_ref() }.run(injection);
            plan.stop.store(true, std::sync::atomic::Ordering::Relaxed);
            let ended = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|_| Err(Error::internal("a thread panicked")))
            };
            ended(driver)?;
            ended(watcher)?;
            pulses
        })?;
        let seen = watch.seen();
        server.process.stop()?;
        Ok(CauseReport::new(injection, &seen, &pulses, &samples.take()))
    }

    /// Returns the plan of the steady requests, which end with its stop.
    fn plan(&self, server: &SwapServer) -> Result<DrivePlan> {
        let endpoint = server.process.grpc();
        let (template, bodies) = self.steady.traffic.encode(&endpoint, MODEL)?;
        let pace = LoadLoop::Open { arrivals: Arrivals::Fixed, rate: self.args.rate, seed: 0 };
        let longest = (self.args.steady_time() + self.args.seconds) * 10;
        Ok(DrivePlan::new(endpoint, template, bodies, pace, longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<SlowArgs> {
        crate::arguments::parse::<SlowArgs>(text.split_whitespace())?.resolved()
    }

    #[test]
    fn all_causes_are_the_default() {
        let args = parse("--seconds 10").unwrap();
        assert_eq!(args.causes, Injection::ALL);
        assert_eq!(args.seconds, Duration::from_secs(10));
        assert_eq!(parse("--quick").unwrap().seconds, QUICK_TIME);
    }

    #[test]
    fn arguments_out_of_range_are_refused() {
        for wrong in ["--rate 1", "--rate nan", "--seconds 1s", "--batch 0", "--causes nothing"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
