//! `bench swap`: latency of requests while a large model is replaced.
//!
//! It makes two versions of a click-through model and starts its own server for each arm and round.
//! Requests are sent on a fixed schedule over gRPC while versions are renamed into place. The arms
//! take turns, so that disturbances of the machine affect all of them, and each figure is the
//! median of its rounds. Every answer is compared with the expected answer of the version that gave
//! it.

mod arm;
pub(crate) mod engines;
mod models;
mod report;
mod saved_model;
pub(crate) mod server;
mod store;
mod timeline;

use std::path::PathBuf;
use std::time::Duration;

use base::units::{self, MIB};
use base::{Error, Result};
use clap::builder::ArgPredicate;
use clap::{Args, ValueEnum};
use engine::Engine as _;
use engine_onnx::OnnxEngine;
use engine_onnx::publish::build::MODEL_BYTES_MAX;

use crate::report::BenchReport as _;
use arm::{SwapRound, SwapSetup};
pub(crate) use engines::EngineName;
use loadgen::BenchEnv;
use loadgen::cpu_group::CpuGroup;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;
use models::SwapModels;
pub(crate) use store::StoreKind;

/// Size of the model with --quick.
const QUICK_BYTES: u64 = 24 * MIB;
/// Maximum number of rounds.
const ROUNDS_MAX: usize = 100;
/// Maximum number of swaps of a round.
const SWAPS_MAX: usize = 1000;
/// Number of swaps of the arm minute.
const MINUTE_SWAPS: usize = 6;
/// Time from one swap of the arm minute to the next.
const MINUTE_PERIOD: Duration = Duration::from_secs(10);

/// Swap a large model under load, and compare request latency with that of a server without swaps.
///
/// The arms heap and glibc have none of Millpond's measures: the engine allocates parameters
/// itself, loads run at normal priority, and memory is freed at once. heap uses jemalloc with its
/// defaults, without Millpond's settings; glibc is this program built with the system's allocator.
/// The arm pool is Millpond. The arm control swaps nothing: it only calculates at idle priority for
/// the time of a load. Its latency shows the minimum cost of any background work on this machine.
///
/// These arms are variants of pool. two swaps two models at once. minute swaps every ten seconds
/// for a minute, and counts the whole minute. cold first drops each version's files from the page
/// cache. delta10 changes a tenth of the parameters, with memory reserved for a tenth. store
/// fetches each version from the object store of --store, and counts from the first byte until the
/// version serves.
///
/// The same model, with the same parameters and answers, is made for each engine.
#[derive(Args, Clone, Debug)]
pub(crate) struct SwapArgs {
    /// Engine of the model
    #[arg(long, value_enum, default_value = "onnx")]
    pub(crate) engine: EngineName,
    /// Size of the model's parameters
    #[arg(long, default_value = "1.6GiB", value_parser = units::parse_bytes)]
    pub(crate) bytes: u64,
    /// Swaps in each round
    #[arg(long, default_value_t = 5)]
    pub(crate) swaps: usize,
    /// Time from one swap to the next
    #[arg(long, default_value = "6", value_parser = units::parse_duration)]
    pub(crate) period: Duration,
    /// Requests due within this time from a swap's start count as "during the swap"
    #[arg(long, default_value = "5", value_parser = units::parse_duration)]
    pub(crate) window: Duration,
    /// Rounds; each figure is the median over them
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Arms to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "heap,pool,control",
        default_value_if("store", ArgPredicate::IsPresent, "store,control")
    )]
    pub(crate) arms: Vec<SwapArm>,
    /// Object store of the arm store: an S3 server that this benchmark starts on this machine, or a
    /// directory with a file:// URL. With this flag, the default arms are store and control
    #[arg(long, value_enum)]
    pub(crate) store: Option<StoreKind>,
    /// Program of the arm glibc: this one built without jemalloc [default:
    /// target/system/release/millpond, which `make build-system` builds]
    #[arg(long, value_name = "PATH")]
    pub(crate) system_binary: Option<PathBuf>,
    /// Share of the capacity measured at the start that requests use
    #[arg(long, default_value_t = 0.4)]
    pub(crate) load: f64,
    /// Requests per second instead of a share of the capacity
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Run the servers in a control group with this many cores of processor time, like a container
    /// with a CPU limit [needs root]
    #[arg(long, value_name = "CORES")]
    pub(crate) cpu_limit: Option<f64>,
    /// Rows of a request
    #[arg(long, default_value_t = 128)]
    pub(crate) batch: usize,
    /// Undisturbed time before the first swap of a round
    #[arg(long, default_value = "10", value_parser = units::parse_duration)]
    pub(crate) steady: Duration,
    /// Python with TensorFlow, which makes the models of that engine [default:
    /// .venv-test/bin/python, which `make .venv-test/ready` makes]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// A small model, one short round: a test of the program; the figures mean nothing
    #[arg(long)]
    pub(crate) quick: bool,
    /// Further argument for the servers, e.g. --server-arg=--load-rate=400MB (may be given several
    /// times)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) server_arg: Vec<String>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write figures and percentiles over time as a page, with a chart for each arm
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Write the charts as one PNG image
    #[arg(long, value_name = "FILE")]
    pub(crate) png: Option<PathBuf>,
}

/// Way in which versions are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum SwapArm {
    /// Parameters in memory of malloc, which engines use by themselves.
    Heap,
    /// As heap, with the system's malloc.
    Glibc,
    /// Parameters in Millpond's slot pool.
    Pool,
    /// Two models at once.
    Two,
    /// A swap every ten seconds for a minute.
    Minute,
    /// Files that are not in the page cache.
    Cold,
    /// A tenth of the parameters changed.
    Delta10,
    /// Versions come from an object store.
    Store,
    /// No swap, but a thread that calculates at idle priority.
    Control,
}

impl SwapArm {
    /// Returns the name in JSON and tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            SwapArm::Heap => "heap",
            SwapArm::Glibc => "glibc",
            SwapArm::Pool => "pool",
            SwapArm::Two => "two",
            SwapArm::Minute => "minute",
            SwapArm::Cold => "cold",
            SwapArm::Delta10 => "delta10",
            SwapArm::Store => "store",
            SwapArm::Control => "control",
        }
    }

    /// Returns true for an arm that keeps parameters in the engine's own allocations.
    fn is_naive(self) -> bool {
        matches!(self, SwapArm::Heap | SwapArm::Glibc)
    }
}

impl SwapArgs {
    /// Applies `--quick` and checks the arguments.
    fn resolved(&self) -> Result<SwapArgs> {
        let mut args = self.clone();
        if args.quick {
            args.bytes = QUICK_BYTES;
            args.swaps = args.swaps.min(2);
            args.rounds = 1;
            args.period = Duration::from_millis(1500);
            args.window = Duration::from_secs(1);
            args.steady = Duration::from_secs(1);
            args.batch = args.batch.min(16);
        }
        let wrong = |what: &str| Err(Error::invalid(what.to_owned()));
        if args.window.is_zero() || args.window > args.period {
            return wrong("--window must be above 0 and not longer than --period");
        }
        if !(1..=ROUNDS_MAX).contains(&args.rounds) || !(1..=SWAPS_MAX).contains(&args.swaps) {
            return wrong("--rounds must be 1 to 100 and --swaps 1 to 1000");
        }
        if !(args.load > 0.0 && args.load <= 1.0)
            || args.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite()))
        {
            return wrong("--load must be above 0 and at most 1, --rate above 0");
        }
        if args.arms.is_empty() || args.batch == 0 {
            return wrong("--arms and --batch must not be empty");
        }
        match (args.arms.contains(&SwapArm::Store), args.store) {
            (true, None) => return wrong("the arm store needs --store s3 or --store file"),
            (false, Some(_)) => return wrong("--store has no effect without the arm store"),
            _ => {}
        }
        let naive = args.arms.iter().any(|arm| arm.is_naive());
        let embeds = args.engine == EngineName::Onnx && naive;
        if embeds && args.bytes + MIB >= MODEL_BYTES_MAX {
            return wrong(
                "a model of 2 GiB or more cannot embed its parameters: use --arms pool,control",
            );
        }
        Ok(args)
    }

    /// Returns the arguments with the swaps of `arm`.
    fn paced(&self, arm: SwapArm) -> SwapArgs {
        let mut args = self.clone();
        if arm == SwapArm::Minute {
            if !args.quick {
                args.swaps = MINUTE_SWAPS;
                args.period = MINUTE_PERIOD;
            }
            args.window = args.period;
        }
        args
    }

    /// Returns the arm whose server is used to measure the capacity.
    fn capacity_arm(&self) -> SwapArm {
        let like_pool = |arm: &&SwapArm| matches!(arm, SwapArm::Pool | SwapArm::Control);
        let arm = self.arms.iter().find(like_pool).or(self.arms.first());
        arm.copied().unwrap_or(SwapArm::Pool)
    }
}

/// Runs `bench swap`.
///
/// # Errors
/// Returns an error if a server cannot be started or does not survive, an argument is out of range,
/// or the disk is too small. Failed requests and wrong answers are figures, and make the run fail
/// after its report.
pub(crate) fn run(args: &SwapArgs, env: &BenchEnv) -> Result<()> {
    let args = args.resolved()?;
    let engine = OnnxEngine::open(&env.onnxruntime)?;
    let watch = NoiseWatch::start();
    let setup = prepare(&args, env)?;

    let (capacity, rate) = match args.rate {
        Some(rate) => (None, rate),
        None => {
            let capacity = arm::capacity(&setup)?;
            (Some(capacity), capacity * args.load)
        }
    };
    let mut rounds: Vec<SwapRound> = Vec::new();
    let progress = StepProgress::new((args.rounds * args.arms.len()) as u64);
    if let Some(program) = setup.system_binary.as_deref()
        && server::is_older(program, &env.millpond)
    {
        progress.line(&format!(
            "{} is older than {}, and may be another version: run `make build-system`",
            program.display(),
            env.millpond.display()
        ));
    }
    for round in 0..args.rounds {
        for &arm in &args.arms {
            progress.say(format!(
                "round {} of {}, {}, {rate:.0} requests/s",
                round + 1,
                args.rounds,
                arm.name()
            ));
            let burn =
                rounds.iter().rev().find(|done| done.arm == SwapArm::Pool).map(|pool| pool.load_s);
            rounds.push(
                arm::run(&setup, arm, rate, burn)
                    .map_err(|e| e.context(format!("arm {}", arm.name())))?,
            );
            progress.step();
        }
    }
    drop(progress);
    let report = report::SwapBenchReport::new(
        &args,
        capacity,
        rate,
        &rounds,
        watch.context(Some(engine.version())),
    );
    // The figures are shown first: a file that cannot be written must not lose them.
    let finished = report.finish(args.json.as_deref());
    if let Some(path) = &args.report {
        loadgen::report::write_file(path, report.html()?.as_bytes())?;
    }
    if let Some(path) = &args.png {
        loadgen::report::write_file(path, &report.png()?)?;
    }
    finished
}

/// Makes or finds the models, the requests and the expected answers.
fn prepare<'a>(args: &'a SwapArgs, env: &'a BenchEnv) -> Result<SwapSetup<'a>> {
    let system_binary = if args.arms.contains(&SwapArm::Glibc) {
        Some(server::system_binary(env, args.system_binary.as_deref())?)
    } else {
        None
    };
    let models = SwapModels::make(args, env)?;
    let group = args.cpu_limit.map(CpuGroup::new).transpose()?;
    Ok(SwapSetup { args, env, models, system_binary, group })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<SwapArgs> {
        crate::arguments::parse::<SwapArgs>(text.split_whitespace())?.resolved()
    }

    #[test]
    fn defaults_are_the_published_ones() {
        let args = parse("").unwrap();
        assert_eq!((args.swaps, args.rounds, args.load, args.batch), (5, 3, 0.4, 128));
        assert_eq!((args.period.as_secs(), args.window.as_secs()), (6, 5));
        assert_eq!(args.bytes, 1_717_986_918);
        assert_eq!(args.arms, [SwapArm::Heap, SwapArm::Pool, SwapArm::Control]);
    }

    #[test]
    fn arguments_out_of_range_are_refused() {
        for wrong in [
            "--window 7",
            "--window 0",
            "--rounds 0",
            "--load 0",
            "--rate nan",
            "--batch 0",
            "--bytes 3GiB",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("--bytes 3GiB --arms pool,control").is_ok());
        assert!(parse("--bytes 3GiB --engine torch").is_ok(), "no file embeds them");
        assert_eq!(parse("--quick").unwrap().bytes, QUICK_BYTES);
    }

    #[test]
    fn a_store_has_an_arm() {
        let args = parse("--store s3").unwrap();
        assert_eq!(
            (args.arms, args.store),
            (vec![SwapArm::Store, SwapArm::Control], Some(StoreKind::S3))
        );
        let args = parse("--store file --arms pool,store").unwrap();
        assert_eq!(args.arms, [SwapArm::Pool, SwapArm::Store]);
        assert!(parse("--arms store").is_err() && parse("--arms pool --store s3").is_err());
    }

    #[test]
    fn the_arm_minute_counts_a_minute() {
        let args = parse("--arms minute,two").unwrap();
        let minute = args.paced(SwapArm::Minute);
        assert_eq!(minute.period * u32::try_from(minute.swaps).unwrap(), Duration::from_secs(60));
        assert_eq!(minute.window, minute.period);
        assert_eq!(args.paced(SwapArm::Two).swaps, 5);
        assert_eq!(args.capacity_arm(), SwapArm::Minute);
        assert_eq!(parse("--arms two,control").unwrap().capacity_arm(), SwapArm::Control);
    }
}
