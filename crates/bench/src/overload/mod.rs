//! `bench overload`: a server under more load than its capacity.
//!
//! The capacity is measured first, with clients that wait for their answers. Then requests come at
//! that rate, and then at a multiple of it, on a fixed schedule. Some are served; the others must
//! be refused at once, with a status that says so. Every answer is compared with that of the model
//! run alone.

mod memory;
mod phase;
mod report;
mod tenants;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::units;
use base::{Error, Result};
use bytes::Bytes;
use clap::Args;

use self::memory::MemoryWatch;
use crate::batch::publish;
use crate::models::workload::{Workload, small_workload};
use crate::report::BenchReport as _;
use loadgen::BenchEnv;
use loadgen::connection::Template;
use loadgen::drive::{DrivePlan, Judge, LoadLoop, SampleSink, drive};
use loadgen::machine::NoiseWatch;
use loadgen::measure::measure;
use loadgen::process::{ServerPlan, ServerProcess};
use loadgen::report::StepProgress;
use loadgen::schedule::Arrivals;
use loadgen::wire::{Api, ModelEndpoint};
use phase::{Outcomes, OverloadPhase};
use report::OverloadReport;
use tenants::{TenantReport, TenantStage};

/// Name under which the model is served.
const MODEL: &str = "overload";
/// Number of different requests.
const REQUESTS: u64 = 32;
/// Time of the capacity measurement after its warm-up.
const CAPACITY_TIME: Duration = Duration::from_secs(5);
/// Time at the start of each phase that does not count: queues fill in it.
const WARM_UP: Duration = Duration::from_secs(1);
/// Divisor of the overload's length that gives the length of the load at capacity.
const AT_CAPACITY_SHARE: u32 = 3;
/// Maximum length of the load at capacity.
const AT_CAPACITY_MAX: Duration = Duration::from_secs(20);
/// Moment of the overload until which memory may grow to its working size.
const SETTLED: Duration = Duration::from_secs(10);
/// Maximum number of outstanding answers. Further requests are counted and not sent.
const IN_FLIGHT_MAX: usize = 2048;
/// Number of connections of the client.
const CONNECTIONS: usize = 16;
/// Time before the first request, in which connections are made.
const LEAD_IN: Duration = Duration::from_millis(200);
/// Seed of the gaps between requests.
const SEED: u64 = 51;
/// Length of each half of a round of the tenants.
const TENANT_TIME: Duration = Duration::from_secs(6);
/// Times with --quick.
const QUICK_TIME: Duration = Duration::from_secs(3);
const QUICK_CAPACITY_TIME: Duration = Duration::from_secs(1);

/// Send a multiple of the server's capacity, and report which requests are served, which are
/// refused, and how fast.
///
/// The capacity is the rate at which 64 clients get answers, if each waits for its answer. Then
/// requests come at random moments (Poisson): first at the capacity, and then at --factor times the
/// capacity. At capacity the queue also fills, but later. So p99 at capacity is about that of a
/// full queue, and the comparison shows if more load makes it worse. The model is the ranking model
/// of `bench batch` with --rows items a request, so that one thread can send three times the
/// server's capacity. The client shares the machine with the server, so fewer requests are served
/// in the overload than at capacity.
///
/// Then two tenants send requests to a second server, each with a key of its own. The first sends
/// at 30 % of the capacity. The second has a quota of 5 % of the capacity: it sends within this
/// quota, and then at ten times the quota.
///
/// Goals: p99 of the served requests is at most twice that at capacity. The other requests are
/// refused with RESOURCE_EXHAUSTED or UNAVAILABLE, faster than the median of the served requests.
/// Memory at the end is at most 1.1 times that after 10 s. No answer is wrong. p99 of the first
/// tenant is at most 1.2 times its p99 beside a tenant within the quota.
#[derive(Args, Clone, Debug)]
pub(crate) struct OverloadArgs {
    /// Rate of the overload as a multiple of the capacity
    #[arg(long, default_value_t = 3.0)]
    pub(crate) factor: f64,
    /// Length of the overload
    #[arg(long, default_value = "60s", value_parser = units::parse_duration)]
    pub(crate) time: Duration,
    /// Items of a request
    #[arg(long, default_value_t = 16)]
    pub(crate) rows: usize,
    /// Maximum number of items in a merged batch
    #[arg(long, default_value_t = 64)]
    pub(crate) max_batch: usize,
    /// Maximum queued requests of the model. Bounds queueing delay
    #[arg(long, default_value_t = 64)]
    pub(crate) queue: usize,
    /// Clients of the capacity measurement
    #[arg(long, default_value_t = 64)]
    pub(crate) clients: usize,
    /// Rounds with two tenants; 0 leaves them out
    #[arg(long, default_value_t = 5)]
    pub(crate) tenant_rounds: usize,
    /// A few seconds: a test of the program; the figures mean nothing
    #[arg(long)]
    pub(crate) quick: bool,
    /// Further argument for the server (may be given several times)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) server_arg: Vec<String>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl OverloadArgs {
    /// Applies `--quick` and checks the arguments.
    fn resolved(&self) -> Result<OverloadArgs> {
        let mut args = self.clone();
        if args.quick {
            args.time = QUICK_TIME;
            args.tenant_rounds = args.tenant_rounds.min(1);
        }
        if !(args.factor >= 1.0 && args.factor <= 100.0) || args.time <= WARM_UP {
            return Err(Error::invalid("--factor must be 1 to 100, --time above 1s"));
        }
        if args.rows == 0
            || args.queue == 0
            || !(args.rows..=engine::BATCH_MAX).contains(&args.max_batch)
        {
            return Err(Error::invalid(format!(
                "--rows and --queue must be at least 1, --max-batch --rows to {}",
                engine::BATCH_MAX
            )));
        }
        // More waiting clients than the queue holds would be refused while the capacity is
        // measured.
        args.clients = args.clients.min(args.queue);
        Ok(args)
    }

    fn capacity_time(&self) -> Duration {
        if self.quick { QUICK_CAPACITY_TIME } else { CAPACITY_TIME }
    }

    fn at_capacity_time(&self) -> Duration {
        (self.time / AT_CAPACITY_SHARE).clamp(WARM_UP * 2, AT_CAPACITY_MAX.max(WARM_UP * 2))
    }

    fn tenant_time(&self) -> Duration {
        if self.quick { QUICK_TIME } else { TENANT_TIME }
    }

    /// Returns the server's `millpond.toml`.
    fn settings(&self) -> String {
        format!(
            "[schedule]\nmode = \"async\"\nmax-batch = {}\nqueue = {}\n",
            self.max_batch, self.queue
        )
    }
}

/// Runs `bench overload`.
///
/// # Errors
/// Returns an error if the server cannot be started or does not survive, or an argument is out of
/// range. A request that was neither served nor refused, and a wrong answer, are figures and make
/// the run fail after its report.
pub(crate) fn run(args: &OverloadArgs, env: &BenchEnv) -> Result<()> {
    let args = args.resolved()?;
    let watch = NoiseWatch::start();
    let progress = StepProgress::new(4);
    progress.say("making the model and computing the right answers");
    let workload = small_workload(env, REQUESTS, args.rows)?;
    let engine_version = workload.engine_version.clone();
    let stage = OverloadSetup::start(&args, env, &workload)?;
    progress.say("measuring the capacity");
    let capacity = stage.capacity()?;
    progress.step();
    progress.say(format!("{capacity:.0} requests/s, its capacity"));
    let (at_capacity, _) = stage.load(capacity, args.at_capacity_time())?;
    progress.step();
    progress.say(format!(
        "{:.0} requests/s, {} times its capacity",
        capacity * args.factor,
        args.factor
    ));
    let (overload, memory) = stage.load(capacity * args.factor, args.time)?;
    progress.step();
    let dir = stage.dir.clone();
    stage.server.stop()?;
    let tenants = tenants(&args, env, &workload, &dir, capacity, &progress)?;
    drop(progress);
    let report = OverloadReport::new(
        &args,
        capacity,
        at_capacity,
        overload,
        memory,
        tenants,
        watch.context(Some(engine_version)),
    );
    report.finish(args.json.as_deref())
}

/// Measures the tenants, if any round is wanted.
fn tenants(
    args: &OverloadArgs,
    env: &BenchEnv,
    workload: &Workload,
    dir: &Path,
    capacity: f64,
    progress: &StepProgress,
) -> Result<Option<TenantReport>> {
    if args.tenant_rounds == 0 {
        return Ok(None);
    }
    progress.say("two tenants, one above its quota");
    let stage = TenantStage::start(env, workload, dir, &args.server_arg, capacity)?;
    stage.run(args.tenant_rounds, args.tenant_time()).map(Some)
}

/// The server and its requests.
struct OverloadSetup<'a> {
    args: &'a OverloadArgs,
    server: ServerProcess,
    /// Directory of the model.
    dir: PathBuf,
    judge: Arc<dyn Judge>,
    template: Template,
    bodies: Arc<[Bytes]>,
}

impl<'a> OverloadSetup<'a> {
    /// Publishes the model and starts the server.
    fn start(
        args: &'a OverloadArgs,
        env: &BenchEnv,
        workload: &Workload,
    ) -> Result<OverloadSetup<'a>> {
        let dir = env.cache_dir.join("run").join("overload").join(MODEL);
        publish(&workload.artifact, &dir, &args.settings())?;
        let mut server_args = vec![format!("{MODEL}={}", dir.display())];
        server_args.extend(args.server_arg.iter().cloned());
        let plan = ServerPlan::new(MODEL, server_args);
        let server = ServerProcess::start(env, &plan)?;
        let endpoint =
            ModelEndpoint { endpoint: server.grpc(), api: Api::Oip, model: MODEL.into() };
        let encoded = endpoint.encode(&workload.requests)?;
        Ok(OverloadSetup {
            args,
            server,
            dir,
            judge: workload.answers.clone(),
            template: encoded.template,
            bodies: encoded.bodies.into(),
        })
    }

    fn plan(&self, pace: LoadLoop, duration: Duration) -> DrivePlan {
        DrivePlan::new(
            self.server.grpc(),
            self.template.clone(),
            self.bodies.clone(),
            pace,
            duration,
        )
    }

    /// Returns the answers a second of clients that wait for them.
    fn capacity(&self) -> Result<f64> {
        let plan = self.plan(
            LoadLoop::Closed { clients: self.args.clients },
            WARM_UP + self.args.capacity_time(),
        );
        let counted = measure(&plan, WARM_UP, &self.judge, &[], None)?.counted;
        counted.faultless_rate()
    }

    /// Sends `rate` requests a second for `time`. Returns their results and the server's memory.
    fn load(&self, rate: f64, time: Duration) -> Result<(OverloadPhase, report::ResidentMemory)> {
        let pace = LoadLoop::Open { arrivals: Arrivals::Poisson, rate, seed: SEED };
        let mut plan = self.plan(pace, time);
        plan.connections = CONNECTIONS;
        plan.in_flight_max = IN_FLIGHT_MAX;
        plan.start = Instant::now() + LEAD_IN;
        let outcomes = Arc::new(Outcomes::new(WARM_UP));
        let sink: Arc<dyn SampleSink> = outcomes.clone();
        let memory = MemoryWatch::start(self.server.pid(), plan.start)?;
        drive(&plan, &self.judge, &sink)?;
        let settled = SETTLED.min(time / 6);
        Ok((outcomes.phase(rate, time - WARM_UP), memory.end(settled)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<OverloadArgs> {
        crate::arguments::parse::<OverloadArgs>(text.split_whitespace())?.resolved()
    }

    #[test]
    fn defaults_are_the_published_ones() {
        let args = parse("").unwrap();
        assert_eq!((args.factor, args.time.as_secs(), args.queue, args.clients), (3.0, 60, 64, 64));
        assert_eq!(args.at_capacity_time(), Duration::from_secs(20));
        assert_eq!(parse("--quick").unwrap().at_capacity_time(), Duration::from_secs(2));
        assert!(args.settings().contains("queue = 64\n"));
        assert_eq!(parse("--queue 8").unwrap().clients, 8);
    }

    #[test]
    fn arguments_out_of_range_are_refused() {
        for wrong in
            ["--factor 0.5", "--factor nan", "--time 1s", "--rows 0", "--max-batch 15", "--queue 0"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
