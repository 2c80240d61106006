//! `bench swap`: latency of requests while a large model is replaced.
//!
//! It makes two versions of a click-through model and starts its own server for each arm and round.
//! Requests are sent on a fixed schedule over gRPC while versions are renamed into place. The arms
//! take turns, so that disturbances of the machine affect all of them, and each figure is the
//! median of its rounds. Every answer is compared with the expected answer of the version that gave
//! it.

mod arm;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::units::{self, MIB};
use base::{Error, Result};
use clap::{Args, ValueEnum};
use engine::Engine as _;
use engine_onnx::OnnxEngine;
use engine_onnx::publish::build::MODEL_BYTES_MAX;

use crate::report::BenchReport as _;
use arm::{SwapRound, SwapSetup};
use demo::contents::SwapContents;
use demo::ctr::Ctr;
use demo::traffic::{MODEL, Traffic};
use loadgen::BenchEnv;
use loadgen::cpu_group::CpuGroup;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;

/// Size of the model with --quick.
const QUICK_BYTES: u64 = 24 * MIB;
/// Maximum number of rounds.
const ROUNDS_MAX: usize = 100;
/// Maximum number of swaps of a round.
const SWAPS_MAX: usize = 1000;

/// Swap a large model under load, and compare request latency with that of a server without swaps.
///
/// Arms: heap keeps parameters in the engine's own allocations (jemalloc with its defaults, without
/// Millpond's settings), loads at normal priority and frees at once; pool is Millpond; control
/// swaps nothing and only does arithmetic at idle priority for the time of a load, which is the
/// minimum cost of any background work on this machine.
///
/// With --engine torch the same model is a TorchScript module, checked against the same answers.
#[derive(Args, Clone, Debug)]
pub struct SwapArgs {
    /// Engine of the model
    #[arg(long, value_enum, default_value = "onnx")]
    pub engine: EngineName,
    /// Size of the model's parameters
    #[arg(long, default_value = "1.6GiB", value_parser = units::parse_bytes)]
    pub bytes: u64,
    /// Swaps in each round
    #[arg(long, default_value_t = 5)]
    pub swaps: usize,
    /// Time from one swap to the next
    #[arg(long, default_value = "6", value_parser = units::parse_duration)]
    pub period: Duration,
    /// Requests due within this time from a swap's start count as "during the swap"
    #[arg(long, default_value = "5", value_parser = units::parse_duration)]
    pub window: Duration,
    /// Rounds; each figure is the median over them
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Arms to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "heap,pool,control")]
    pub arms: Vec<SwapArm>,
    /// Share of the capacity measured at the start that requests use
    #[arg(long, default_value_t = 0.4)]
    pub load: f64,
    /// Requests a second instead of a share of the capacity
    #[arg(long)]
    pub rate: Option<f64>,
    /// Run the servers in a control group with this many cores of processor time, like a container
    /// with a CPU limit [needs root]
    #[arg(long, value_name = "CORES")]
    pub cpu_limit: Option<f64>,
    /// Rows of a request
    #[arg(long, default_value_t = 128)]
    pub batch: usize,
    /// Undisturbed time before the first swap of a round
    #[arg(long, default_value = "10", value_parser = units::parse_duration)]
    pub steady: Duration,
    /// A small model, one short round: shows that it works, its figures mean nothing
    #[arg(long)]
    pub quick: bool,
    /// Further argument for the servers, e.g. --server-arg=--load-rate=400MB (may be given several
    /// times)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub server_arg: Vec<String>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Engine of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// ONNX Runtime.
    Onnx,
    /// LibTorch.
    Torch,
}

impl EngineName {
    /// Returns the name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            EngineName::Onnx => "onnx",
            EngineName::Torch => "torch",
        }
    }
}

/// Way in which a version's parameters are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum SwapArm {
    /// Parameters in malloc, as ONNX Runtime does it by itself.
    Heap,
    /// Parameters in Millpond's slot pool.
    Pool,
    /// No swap, but an idle-priority burner.
    Control,
}

impl SwapArm {
    /// Returns the name in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            SwapArm::Heap => "heap",
            SwapArm::Pool => "pool",
            SwapArm::Control => "control",
        }
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
        if args.window > args.period {
            return wrong("--window must not be longer than --period");
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
        let embeds = args.engine == EngineName::Onnx && args.arms.contains(&SwapArm::Heap);
        if embeds && args.bytes + MIB >= MODEL_BYTES_MAX {
            return wrong(
                "a model of 2 GiB or more cannot embed its parameters: use --arms pool,control",
            );
        }
        Ok(args)
    }

    fn needs(&self, heap: bool) -> bool {
        self.arms.iter().any(|&arm| (arm == SwapArm::Heap) == heap)
    }
}

/// Runs `bench swap`.
///
/// # Errors
/// If a server cannot be started or does not survive, an argument is out of range, or the disk is
/// too small. Failed requests and wrong answers are figures, and make the run fail after its
/// report.
pub fn run(args: &SwapArgs, env: &BenchEnv) -> Result<()> {
    let args = args.resolved()?;
    let engine = OnnxEngine::open(&env.onnxruntime)?;
    let watch = NoiseWatch::start();
    let setup = prepare(&args, env)?;

    let capacity = match args.rate {
        Some(_) => 0.0,
        None => arm::capacity(&setup)?,
    };
    let rate = args.rate.unwrap_or(capacity * args.load);
    let mut rounds: Vec<SwapRound> = Vec::new();
    let progress = StepProgress::new((args.rounds * args.arms.len()) as u64);
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
    let report = report::SwapReport::new(
        &args,
        capacity,
        rate,
        &rounds,
        watch.context(Some(engine.version())),
    );
    report.finish(args.json.as_deref())
}

/// Makes or finds the models, the requests and the expected answers.
fn prepare<'a>(args: &'a SwapArgs, env: &'a BenchEnv) -> Result<SwapSetup<'a>> {
    let (layouts, embedded) = match args.engine {
        EngineName::Onnx => {
            let layouts = if args.needs(false) {
                Some(SwapContents::layouts(env, args.bytes)?)
            } else {
                None
            };
            (
                layouts,
                if args.needs(true) {
                    Some(SwapContents::embedded(env, args.bytes)?)
                } else {
                    None
                },
            )
        }
        EngineName::Torch => {
            let modules = SwapContents::modules(env, args.bytes)?;
            (Some(modules.clone()), Some(modules))
        }
    };
    let progress = StepProgress::new(1);
    progress.say("computing the right answers");
    let traffic = Arc::new(Traffic::new(&Ctr::of_bytes(args.bytes), args.batch)?);
    let group = args.cpu_limit.map(CpuGroup::new).transpose()?;
    Ok(SwapSetup { args, env, layouts, embedded, traffic, group })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: SwapArgs,
    }

    fn parse(text: &str) -> Result<SwapArgs> {
        let words = std::iter::once("swap").chain(text.split_whitespace());
        Cli::try_parse_from(words).map_err(|e| Error::invalid(e.to_string()))?.args.resolved()
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
        for wrong in
            ["--window 7", "--rounds 0", "--load 0", "--rate nan", "--batch 0", "--bytes 3GiB"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("--bytes 3GiB --arms pool,control").is_ok());
        assert!(parse("--bytes 3GiB --engine torch").is_ok(), "no file embeds them");
        assert_eq!(parse("--quick").unwrap().bytes, QUICK_BYTES);
    }
}
