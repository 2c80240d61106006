//! `bench rollout`: how many requests it takes to withdraw a bad version, and the cost of copies.

mod models;
mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use base::units;
use base::{Error, Result};
use bytes::Bytes;
use clap::Args;
use serde_json::Value;

use self::models::{VersionKind, requests, slower_by};
use self::report::{RolledBack, RolloutBenchReport, ShadowRound};
use crate::bare::Bare;
use crate::batch::publish;
use crate::models::answers::ExpectedAnswers;
use crate::report::BenchReport as _;
use demo::layers::TOLERANCE;
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::connection::Template;
use loadgen::drive::{DrivePlan, Judge, LoadLoop, SampleSink, drive};
use loadgen::machine::NoiseWatch;
use loadgen::measure::measure;
use loadgen::process::{ServerPlan, ServerProcess};
use loadgen::report::StepProgress;
use loadgen::samples::{Tally, TallyCounts};
use loadgen::schedule::Arrivals;
use loadgen::wire::{Api, ModelEndpoint};

/// Name under which the model is served.
const MODEL: &str = "rollout";
/// Time before the new version is published.
const STEADY: Duration = Duration::from_secs(2);
/// Time of the load before it is measured.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time between two checks of the rollout.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest load of a version.
const LOAD_MAX: Duration = Duration::from_secs(60);
/// Number of clients that measure the capacity.
const CAPACITY_CLIENTS: usize = 8;
/// Seed of the gaps between requests.
const SEED: u64 = 73;
/// Settings of the slow version: a small share, because its runs take much of the machine.
const SLOW: &str = "[rollout]\ntraffic = 0.05\npromote = \"requests:4000\"\n";
/// Settings of the failing version.
const FAILING: &str = "[rollout]\ntraffic = 0.2\npromote = \"requests:4000\"\n";
/// Settings of the drifting version.
const DRIFTING: &str =
    "[rollout]\nshadow = 0.2\npromote = \"requests:4000\"\n[rollout.rollback]\ndrift = 0.01\n";
/// Settings that measure the cost of copies.
const COPIES: &str = "[rollout]\nshadow = 0.2\npromote = \"hand\"\n";

/// Roll out a slower, a failing and a drifting version under load, and count the requests until
/// each is withdrawn. Then compare p99 with and without copies of requests.
///
/// Requests come at random moments at a share of the capacity, which is measured first. The slow
/// version takes --extra longer for the same answers and gets 5 % of the requests. The failing
/// version fails 1 of 100 requests and gets 20 %. The drifting version has other parameters and
/// gets copies of 20 %. The limits are the defaults, and 1 % of different answers. The benchmark
/// counts the requests of the new version. It measures copies with a new version that equals the
/// old one.
///
/// Goals: each version is withdrawn within 2,000 of its requests. No client of the slow or the
/// drifting version sees a failed request. p99 with copies is less than 5 % above p99 without
/// copies.
#[derive(Args, Clone, Debug)]
pub(crate) struct RolloutBenchArgs {
    /// Share of the capacity that requests use
    #[arg(long, default_value_t = 0.4)]
    pub(crate) load: f64,
    /// Additional time of a run of the slow version
    #[arg(long, default_value = "10ms", value_parser = units::parse_duration)]
    pub(crate) extra: Duration,
    /// Rounds with and without copies; the ratio is the median over them
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Length of each half of a round
    #[arg(long, default_value = "20s", value_parser = units::parse_duration)]
    pub(crate) time: Duration,
    /// Longest wait for a rollback
    #[arg(long, default_value = "5m", value_parser = units::parse_duration)]
    pub(crate) wait: Duration,
    /// One short round: a test of the program; the figures mean nothing
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl RolloutBenchArgs {
    /// Applies `--quick` and checks the arguments.
    fn resolved(&self) -> Result<RolloutBenchArgs> {
        let mut args = self.clone();
        if args.quick {
            args.rounds = 1;
            args.time = WARM_UP * 3;
        }
        let loads = args.load > 0.0 && args.load <= 1.0;
        if !loads || !(1..=100).contains(&args.rounds) || args.time <= WARM_UP {
            return Err(Error::invalid(
                "--load must be above 0 and at most 1, --rounds 1 to 100, --time above 1s",
            ));
        }
        Ok(args)
    }
}

/// Runs `bench rollout`.
///
/// # Errors
/// Returns an error if a server cannot be started or does not survive, or an argument is out of
/// range. A version that is not withdrawn, failed requests and wrong answers make the run fail
/// after its report.
pub(crate) fn run(args: &RolloutBenchArgs, env: &BenchEnv) -> Result<()> {
    let args = args.resolved()?;
    let watch = NoiseWatch::start();
    let progress = StepProgress::new(4 + args.rounds as u64);
    progress.say("making the versions");
    let slow = slower_by(env, args.extra)?;
    let stage = RolloutStage::prepare(env)?;
    progress.step();
    let capacity = stage.capacity()?;
    let rate = capacity * args.load;
    let withdraw = |kind, settings, name: &str| {
        progress.say(format!("{name} version, {rate:.0} requests/s"));
        let result = stage.withdraw(kind, settings, rate, args.wait);
        progress.step();
        result.map_err(|error| error.context(format_args!("{name} version")))
    };
    let slow = withdraw(slow, SLOW, "slow")?;
    let errors = withdraw(VersionKind::Failing, FAILING, "failing")?;
    let drift = withdraw(VersionKind::Drifting, DRIFTING, "drifting")?;
    let mut shadow_rounds = Vec::new();
    for round in 1..=args.rounds {
        progress.say(format!("copies, round {round} of {}", args.rounds));
        shadow_rounds.push(stage.shadow_round(rate, args.time)?);
        progress.step();
    }
    drop(progress);
    let report = RolloutBenchReport {
        capacity_rps: capacity,
        rate_rps: rate,
        slow,
        errors,
        drift,
        shadow_p99_ratio: 0.0,
        shadow_rounds,
        wanted: Vec::new(),
        context: watch.context(Some(stage.engine_version.clone())),
    };
    report.completed().finish(args.json.as_deref())
}

/// The old version, its requests and their answers.
struct RolloutStage<'a> {
    env: &'a BenchEnv,
    stable: PathBuf,
    judge: Arc<dyn Judge>,
    engine_version: String,
}

/// A server with version 1, and the requests to it.
struct ServedStage {
    server: ServerProcess,
    dir: PathBuf,
    template: Template,
    bodies: Arc<[Bytes]>,
}

impl<'a> RolloutStage<'a> {
    fn prepare(env: &'a BenchEnv) -> Result<RolloutStage<'a>> {
        let stable = VersionKind::Stable.publish(env)?;
        let bare = Bare::open(env, &stable)?;
        let answers = ExpectedAnswers::numbers(&bare, &requests()?, TOLERANCE)?;
        let engine_version = bare.engine_version();
        Ok(RolloutStage { env, stable, judge: Arc::new(answers), engine_version })
    }

    fn serve(&self, settings: &str) -> Result<ServedStage> {
        let dir = self.env.cache_dir.join("run").join("rollout").join(MODEL);
        publish(&self.stable, &dir, settings)?;
        let poll = ["--poll".to_owned(), "100ms".to_owned()];
        let args = [format!("{MODEL}={}", dir.display())].into_iter().chain(poll);
        let server = ServerProcess::start(self.env, &ServerPlan::new(MODEL, args.collect()))?;
        let endpoint =
            ModelEndpoint { endpoint: server.grpc(), api: Api::Oip, model: MODEL.into() };
        let encoded = endpoint.encode(&requests()?)?;
        Ok(ServedStage { server, dir, template: encoded.template, bodies: encoded.bodies.into() })
    }

    fn capacity(&self) -> Result<f64> {
        let served = self.serve("")?;
        let plan = served.plan(LoadLoop::Closed { clients: CAPACITY_CLIENTS }, WARM_UP * 4);
        let rate = measure(&plan, WARM_UP, &self.judge, &[], None)?.counted.faultless_rate()?;
        served.server.stop()?;
        Ok(rate)
    }

    /// Rolls a version out under load until it is withdrawn or promoted, for at most `wait`.
    fn withdraw(
        &self,
        kind: VersionKind,
        settings: &str,
        rate: f64,
        wait: Duration,
    ) -> Result<RolledBack> {
        let version = kind.publish(self.env)?;
        let served = self.serve(settings)?;
        let pace = LoadLoop::Open { arrivals: Arrivals::Poisson, rate, seed: SEED };
        let plan = served.plan(pace, STEADY + LOAD_MAX + wait);
        let tally = Arc::new(Tally::new(Duration::ZERO));
        let sink: Arc<dyn SampleSink> = tally.clone();
        let (status, seconds) = std::thread::scope(|scope| {
            let driver = scope.spawn(|| drive(&plan, &self.judge, &sink));
            sleep(STEADY);
            let ended = served.roll_out(&version, wait);
            plan.stop.store(true, Ordering::Relaxed);
            driver.join().unwrap_or_else(|_| Err(Error::internal("the driver panicked")))?;
            ended
        })?;
        // Again, because requests may have been in flight when the rollout ended.
        let last = served.status()?;
        served.server.stop()?;
        let TallyCounts { faults, .. } = tally.counted();
        let ended = &status["history"][0];
        let withdrawn = ended["state"] == "rolled_back";
        Ok(RolledBack {
            requests_to_rollback: ended["requests"].as_u64().filter(|_| withdrawn),
            client_failures: faults.failed,
            version_failures: last["errors"]["candidate"].as_u64().unwrap_or(0),
            overflow: last["overflow"].as_u64().unwrap_or(0),
            wrong: faults.wrong,
            reason: ended["reason"].as_str().unwrap_or("no rollout ended").to_owned(),
            seconds,
            failures: faults.lines(),
        })
    }

    /// Measures p99 without copies and with them, on one server.
    fn shadow_round(&self, rate: f64, time: Duration) -> Result<ShadowRound> {
        let served = self.serve(COPIES)?;
        let pace = LoadLoop::Open { arrivals: Arrivals::Poisson, rate, seed: SEED };
        let p99 = || {
            let counted =
                measure(&served.plan(pace, time), WARM_UP, &self.judge, &[], None)?.counted;
            counted.faultless_rate()?;
            Ok::<f64, Error>(counted.latencies.quantile_ms(0.99))
        };
        let control_p99_ms = p99()?;
        cache::publish_link(&self.stable, &served.dir, 2)?;
        let status = served.wait_for(LOAD_MAX, |status| status["state"] == "running")?;
        if status["state"] != "running" {
            return Err(Error::deadline("the rollout with copies did not start"));
        }
        let shadow_p99_ms = p99()?;
        let copies = served.status()?["requests"]["candidate"].as_u64().unwrap_or(0);
        served.server.stop()?;
        Ok(ShadowRound { control_p99_ms, shadow_p99_ms, copies })
    }
}

impl ServedStage {
    fn plan(&self, pace: LoadLoop, duration: Duration) -> DrivePlan {
        let template = self.template.clone();
        let bodies = self.bodies.clone();
        DrivePlan::new(self.server.grpc(), template, bodies, pace, duration)
    }

    fn status(&self) -> Result<Value> {
        let text = self.server.page(&format!("/v2/models/{MODEL}/rollout"))?;
        serde_json::from_str(&text)
            .map_err(|error| Error::data_loss("the rollout's status").caused_by(error))
    }

    /// Waits until the status is as wanted, or `wait` has passed. Returns the last status.
    fn wait_for(&self, wait: Duration, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + wait;
        loop {
            let status = self.status()?;
            if wanted(&status) || Instant::now() > deadline {
                return Ok(status);
            }
            sleep(PAUSE);
        }
    }

    /// Publishes `version` and waits for the end of its rollout. Returns the last status, and the
    /// seconds from the start of the rollout.
    fn roll_out(&self, version: &Path, wait: Duration) -> Result<(Value, f64)> {
        cache::publish_link(version, &self.dir, 2)?;
        self.wait_for(LOAD_MAX, |status| status["state"] != "none")?;
        let started = Instant::now();
        let status = self.wait_for(wait, |status| status["state"] != "running")?;
        Ok((status, started.elapsed().as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RolloutBenchArgs> {
        crate::arguments::parse::<RolloutBenchArgs>(text.split_whitespace())?.resolved()
    }

    #[test]
    fn defaults_are_the_published_ones() {
        let args = parse("").unwrap();
        assert_eq!((args.load, args.rounds, args.extra), (0.4, 5, Duration::from_millis(10)));
        assert_eq!(parse("--quick").unwrap().rounds, 1);
    }

    #[test]
    fn arguments_out_of_range_are_refused() {
        for wrong in ["--load 0", "--load nan", "--rounds 0", "--time 1s"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
