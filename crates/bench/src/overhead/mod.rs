//! `bench overhead`: the cost of serving a model beside running it.
//!
//! The same model runs in two ways that take turns: in a loop in this process, and in a server over
//! gRPC. The load generator shares the machine's cores with the server, so requests a second would
//! charge the server for the client. The comparison therefore uses the processor time that each
//! side's own process spends on a request.

mod tls;
mod tracing;
mod turns;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::units;
use base::{Error, NamedTensor, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::bare::{Bare, BareRun};
use crate::models::answers::ExpectedAnswers;
use crate::models::dense::DenseModel;
use crate::report::{BenchReport, check_faults};
use demo::ctr::{Ctr, CtrContent};
use demo::layers::TOLERANCE;
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::drive::{DrivePlan, Judge, LoadLoop, beside_a_client_that_spins};
use loadgen::machine::{NoiseWatch, RunContext};
use loadgen::measure::{Measurement, measure};
use loadgen::process::{ServerPlan, ServerProcess};
use loadgen::report::{StepProgress, TextTable};
use loadgen::stats::{LatencySummary, median, ratio};
use loadgen::wire::{Api, ModelEndpoint};
use loadgen::{print, println};

const MODEL_SEED: u64 = 11;
const REQUEST_SEED: u64 = 12;
/// Number of different requests.
const REQUESTS: u64 = 16;
/// Time at the start of each phase that does not count.
const WARM_UP: Duration = Duration::from_millis(250);
/// Maximum number of rounds.
const ROUNDS_MAX: usize = 100;
/// Name under which the model is served.
const MODEL: &str = "overhead";
/// Goal: minimum of `ratio`.
const RATIO_MIN: f64 = 0.90;
/// Goal: maximum of the added median latency, in microseconds.
const ADDED_P50_US_MAX: f64 = 150.0;

/// Measure the processor time and the latency that the server adds to the runs of a model.
///
/// ratio is the processor time per request of a loop that only runs ONNX Runtime, divided by that
/// of the server's process at saturation. So a server that costs nothing has a ratio of 1.0. added
/// is the latency of one client minus the time of a run in the loop. The client polls its socket
/// without sleeping, so its own wake-up is not counted. Such a client also runs beside the loop.
#[derive(Args, Clone, Debug)]
pub(crate) struct OverheadArgs {
    /// The model: dense is sized to --compute; light is an embedding model of about 0.075 ms
    #[arg(long, value_enum, default_value = "dense")]
    pub(crate) model: OverheadModel,
    /// Compute of one request of the dense model
    #[arg(long, default_value = "1ms", value_parser = units::parse_duration)]
    pub(crate) compute: Duration,
    /// Clients at saturation
    #[arg(long, default_value_t = 64)]
    pub(crate) clients: usize,
    /// Time of each of the four phases of a round: short, because a virtual machine's speed drifts
    /// within seconds
    #[arg(long, default_value = "1", value_parser = units::parse_duration)]
    pub(crate) duration: Duration,
    /// Rounds; each figure is the median over them
    #[arg(long, default_value_t = 21)]
    pub(crate) rounds: usize,
    /// Measure the cost of TLS instead. A server with TLS and a server without TLS take turns; they
    /// get requests of 8 KB to the light model on open connections
    #[arg(long, conflicts_with_all = ["model", "compute"])]
    pub(crate) tls: bool,
    /// Measure the cost of tracing instead. Three servers take turns, with requests of 8 KB to the
    /// light model: without a collector of traces, with a collector and no traced request, and with
    /// 1 % of the requests traced
    #[arg(long, conflicts_with_all = ["tls", "model", "compute"])]
    pub(crate) tracing: bool,
    /// One short round: a test of the program; the figures mean nothing
    #[arg(long)]
    pub(crate) quick: bool,
    /// Further argument for the server (may be given several times)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) server_arg: Vec<String>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Model that both ways run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OverheadModel {
    /// Layers over as many rows as the wanted time allows.
    Dense,
    /// 26 small embedding tables and three layers, one row a request.
    Light,
}

/// Figures of one round.
#[derive(Clone, Debug, Serialize)]
struct OverheadRound {
    bare_one: LatencySummary,
    server_one: LatencySummary,
    bare_rps: f64,
    bare_cpu_us: f64,
    server_rps: f64,
    server_cpu_us: f64,
    server_saturated: LatencySummary,
    failed: u64,
    wrong: u64,
}

/// JSON of `bench overhead`.
#[derive(Debug, Serialize)]
struct OverheadReport {
    bare_rps: f64,
    server_rps: f64,
    ratio: f64,
    added_p50_us: f64,
    added_p99_us: f64,
    bare_cpu_us: f64,
    server_cpu_us: f64,
    added_cpu_us: f64,
    failed: u64,
    wrong: u64,
    model: String,
    rows: usize,
    request_bytes: usize,
    threads: usize,
    clients: usize,
    rounds: Vec<OverheadRound>,
    #[serde(flatten)]
    context: RunContext,
}

/// The published model, and its requests.
struct OverheadSubject {
    dir: PathBuf,
    rows: usize,
    requests: Vec<Vec<NamedTensor>>,
}

/// Runs `bench overhead`.
///
/// # Errors
/// Returns an error if the library or the server cannot be started, an argument is out of range, or
/// an answer failed or was wrong.
pub(crate) fn run(args: &OverheadArgs, env: &BenchEnv) -> Result<()> {
    let args = resolved(args)?;
    if args.tls {
        return tls::run(&args, env);
    }
    if args.tracing {
        return tracing::run(&args, env);
    }
    let watch = NoiseWatch::start();
    let threads = loadgen::machine::cores();
    let (subject, bare) = prepare(&args, env)?;
    let server = start_server(&args, env, &subject, threads)?;
    let endpoint = ModelEndpoint { endpoint: server.grpc(), api: Api::Oip, model: MODEL.into() };
    let encoded = endpoint.encode(&subject.requests)?;
    let request_bytes = encoded.bodies[0].len();
    let pace = LoadLoop::Closed { clients: 1 };
    let plan = DrivePlan::new(
        endpoint.endpoint,
        encoded.template,
        encoded.bodies.into(),
        pace,
        WARM_UP + args.duration,
    );
    let judge: Arc<dyn Judge> =
        Arc::new(ExpectedAnswers::numbers(&bare, &subject.requests, TOLERANCE)?);
    let contest = Contest {
        args: &args,
        threads,
        bare: &bare,
        subject: &subject,
        server: &server,
        plan,
        judge,
    };

    let progress = StepProgress::new(args.rounds as u64);
    let mut rounds = Vec::with_capacity(args.rounds);
    for round in 0..args.rounds {
        progress.say(format!("round {}: bare loop and server take turns", round + 1));
        rounds.push(contest.round()?);
        progress.step();
    }
    drop(progress);
    server.stop()?;
    let report = OverheadReport::new(
        &args,
        threads,
        &subject,
        request_bytes,
        rounds,
        watch.context(Some(bare.engine_version())),
    );
    report.finish(args.json.as_deref())
}

/// Returns the arguments, shortened for `--quick`, after a check of their ranges.
fn resolved(args: &OverheadArgs) -> Result<OverheadArgs> {
    let mut args = args.clone();
    if args.quick {
        args.rounds = 1;
        args.duration = Duration::from_millis(700);
        args.compute = args.compute.min(Duration::from_micros(200));
        args.clients = args.clients.min(8);
    }
    if !(1..=ROUNDS_MAX).contains(&args.rounds) || args.compute.is_zero() || args.duration.is_zero()
    {
        return Err(Error::invalid("--rounds must be 1 to 100, --compute and --duration above 0"));
    }
    Ok(args)
}

/// Makes the model, and finds the number of rows of its requests.
fn prepare(args: &OverheadArgs, env: &BenchEnv) -> Result<(OverheadSubject, Bare)> {
    let progress = StepProgress::new(1);
    progress.say("making the model and finding its size");
    match args.model {
        OverheadModel::Light => {
            let ctr = Ctr::light();
            let write =
                |dir: &std::path::Path| ctr.write_layout(CtrContent::of(MODEL_SEED), dir, &|_| {});
            let dir = cache::ensure(
                &env.cache_dir,
                &format!("{}-s{MODEL_SEED}", ctr.key()),
                ctr.bytes(),
                write,
            )?;
            let request = |index| ctr.inputs(REQUEST_SEED, index, 1).tensors();
            let requests = (0..REQUESTS).map(request).collect::<Result<_>>()?;
            let bare = Bare::open(env, &dir)?;
            Ok((OverheadSubject { dir, rows: 1, requests }, bare))
        }
        OverheadModel::Dense => {
            let dense = DenseModel::new();
            let key = format!("{}-s{MODEL_SEED}", dense.key());
            let dir =
                cache::ensure(&env.cache_dir, &key, 0, |dir| dense.write_layout(MODEL_SEED, dir))?;
            let bare = Bare::open(env, &dir)?;
            let rows = bare.rows_for(args.compute, |rows| dense.inputs(REQUEST_SEED, 0, rows))?;
            let request = |index| dense.inputs(REQUEST_SEED, index, rows);
            let requests = (0..REQUESTS).map(request).collect::<Result<_>>()?;
            Ok((OverheadSubject { dir, rows, requests }, bare))
        }
    }
}

fn start_server(
    args: &OverheadArgs,
    env: &BenchEnv,
    subject: &OverheadSubject,
    threads: usize,
) -> Result<ServerProcess> {
    let model_dir = env.cache_dir.join("run").join("overhead").join(MODEL);
    cache::create_empty_dir(&model_dir)?;
    cache::publish_link(&subject.dir, &model_dir, 1)?;
    let mut server_args = vec![format!("{MODEL}={}", model_dir.display())];
    server_args.extend(["--workers".to_owned(), threads.to_string()]);
    server_args.extend(args.server_arg.iter().cloned());
    ServerProcess::start(env, &ServerPlan::new("overhead", server_args))
}

/// Both sides, ready.
struct Contest<'a> {
    args: &'a OverheadArgs,
    threads: usize,
    bare: &'a Bare,
    subject: &'a OverheadSubject,
    server: &'a ServerProcess,
    plan: DrivePlan,
    judge: Arc<dyn Judge>,
}

impl Contest<'_> {
    /// Measures the model in this process and in the server, with one client and with all.
    fn round(&self) -> Result<OverheadRound> {
        // The server's client keeps a core busy. If cores share resources, a loop beside an idle
        // core runs faster.
        let alone = || self.bare.run(&self.subject.requests, 1, WARM_UP, self.args.duration);
        let bare_one = beside_a_client_that_spins(alone)??;
        let server_one = self.measure(1)?;
        let bare_all =
            self.bare.run(&self.subject.requests, self.threads, WARM_UP, self.args.duration)?;
        let server_all = self.measure(self.args.clients)?;
        let BareRun { latencies, .. } = bare_one;
        let faults = [&server_one.counted.faults, &server_all.counted.faults];
        Ok(OverheadRound {
            bare_one: latencies.summary(),
            server_one: server_one.counted.latencies.summary(),
            bare_rps: bare_all.rate,
            bare_cpu_us: bare_all.cpu_us_per_run,
            server_rps: server_all.counted.rate(),
            server_cpu_us: server_all.cpu_us_per_request.unwrap_or(0.0),
            server_saturated: server_all.counted.latencies.summary(),
            failed: faults.iter().map(|faults| faults.failed).sum(),
            wrong: faults.iter().map(|faults| faults.wrong).sum(),
        })
    }

    fn measure(&self, clients: usize) -> Result<Measurement> {
        let mut plan = self.plan.clone();
        plan.pace = LoadLoop::Closed { clients };
        plan.connections = clients;
        plan.spin = clients == 1;
        measure(&plan, WARM_UP, &self.judge, &[self.server.pid()], None)
    }
}

impl OverheadReport {
    fn new(
        args: &OverheadArgs,
        threads: usize,
        subject: &OverheadSubject,
        request_bytes: usize,
        rounds: Vec<OverheadRound>,
        context: RunContext,
    ) -> OverheadReport {
        let middle = |of: &dyn Fn(&OverheadRound) -> f64| median(rounds.iter().map(of));
        OverheadReport {
            bare_rps: middle(&|round| round.bare_rps),
            server_rps: middle(&|round| round.server_rps),
            ratio: middle(&|round| ratio(round.bare_cpu_us, round.server_cpu_us)),
            added_p50_us: middle(&|round| 1e3 * (round.server_one.p50_ms - round.bare_one.p50_ms)),
            added_p99_us: middle(&|round| 1e3 * (round.server_one.p99_ms - round.bare_one.p99_ms)),
            bare_cpu_us: middle(&|round| round.bare_cpu_us),
            server_cpu_us: middle(&|round| round.server_cpu_us),
            added_cpu_us: middle(&|round| round.server_cpu_us - round.bare_cpu_us),
            failed: rounds.iter().map(|round| round.failed).sum(),
            wrong: rounds.iter().map(|round| round.wrong).sum(),
            model: format!("{:?}", args.model).to_lowercase(),
            rows: subject.rows,
            request_bytes,
            threads,
            clients: args.clients,
            rounds,
            context,
        }
    }
}

impl BenchReport for OverheadReport {
    fn print(&self) {
        println!(
            "overhead over gRPC: {} model, {} rows ({} byte requests), {} threads each; median of {} rounds",
            self.model,
            self.rows,
            self.request_bytes,
            self.threads,
            self.rounds.len()
        );
        let us = |value: f64| format!("{value:.1}");
        let one = |of: fn(&OverheadRound) -> f64| us(1e3 * median(self.rounds.iter().map(of)));
        let columns = ["", "one client p50 us", "p99 us", "saturated/s", "CPU us/request"];
        let mut table = TextTable::new(&columns);
        let rate = |value: f64| format!("{value:.0}");
        let bare = [
            one(|r| r.bare_one.p50_ms),
            one(|r| r.bare_one.p99_ms),
            rate(self.bare_rps),
            us(self.bare_cpu_us),
        ];
        let server = [
            one(|r| r.server_one.p50_ms),
            one(|r| r.server_one.p99_ms),
            rate(self.server_rps),
            us(self.server_cpu_us),
        ];
        let added =
            [us(self.added_p50_us), us(self.added_p99_us), String::new(), us(self.added_cpu_us)];
        for (name, cells) in
            [("bare ONNX Runtime loop", bare), ("server", server), ("added", added)]
        {
            table.row(std::iter::once(name.to_owned()).chain(cells));
        }
        print!("{table}");
        let mark = |met: bool| if met { "met" } else { "NOT met" };
        if self.model == "dense" {
            println!(
                "CPU ratio bare / server: {:.3} (wanted at least {RATIO_MIN}: {})",
                self.ratio,
                mark(self.ratio >= RATIO_MIN)
            );
            println!(
                "added p50: {:.0} us (wanted at most {ADDED_P50_US_MAX:.0}: {})",
                self.added_p50_us,
                mark(self.added_p50_us <= ADDED_P50_US_MAX)
            );
        } else {
            println!(
                "CPU ratio bare / server: {:.3}; added p50: {:.0} us",
                self.ratio, self.added_p50_us
            );
        }
        println!("failed {}, wrong {}", self.failed, self.wrong);
        println!("{}", self.context);
    }

    fn verdict(&self) -> Result<()> {
        check_faults(self.failed, self.wrong)
    }
}
