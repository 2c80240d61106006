//! `millpond bench` and `millpond demo`: the arguments are the bench crate's own, the environment is ours.

use std::path::PathBuf;

use base::ErrorKind;
use bench::BenchEnv;
use bench::audio::BenchAudioArgs;
use bench::batch::BatchArgs;
use bench::crash::CrashArgs;
use bench::demo::DemoArgs;
use bench::fingerprints::MatchArgs;
use bench::images::BenchImagesArgs;
use bench::ingest::IngestArgs;
use bench::load::BenchLoadArgs;
use bench::overhead::OverheadArgs;
use bench::overload::OverloadArgs;
use bench::swap::SwapArgs;
use bench::tiers::TiersArgs;
use bench::vectors::VectorsArgs;
use clap::{Args, Subcommand};

use crate::environment;
use crate::exit::{Exit, Failure, Outcome};
use crate::serve::{library_search, torch_search};

/// `millpond bench WHAT`.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: BenchCommand,
    #[command(flatten)]
    places: MachineArgs,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    Load(BenchLoadArgs),
    Swap(SwapArgs),
    Overhead(OverheadArgs),
    Batch(BatchArgs),
    Overload(OverloadArgs),
    Tiers(TiersArgs),
    Audio(BenchAudioArgs),
    Crash(CrashArgs),
    Ingest(IngestArgs),
    Match(MatchArgs),
    Images(BenchImagesArgs),
    Vectors(VectorsArgs),
}

/// `millpond demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoCommand {
    #[command(flatten)]
    demo: DemoArgs,
    #[command(flatten)]
    places: MachineArgs,
}

/// What a benchmark needs of this machine.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "This machine")]
pub(crate) struct MachineArgs {
    /// ONNX Runtime's shared library [default: found in a virtual environment, beside the program or in the system]
    #[arg(long, value_name = "PATH", global = true)]
    onnxruntime: Option<PathBuf>,
    /// The LibTorch shim, or its directory [default: found in a virtual environment or beside the program]
    #[arg(long, value_name = "PATH", global = true)]
    libtorch: Option<PathBuf>,
    /// Where made models and logs are kept [default: the user's cache directory]
    #[arg(long, value_name = "DIR", global = true)]
    cache_dir: Option<PathBuf>,
}

/// Runs a benchmark.
pub(crate) fn run(args: &BenchArgs) -> Outcome {
    let env = bench_env(&args.places)?;
    let result = match &args.what {
        BenchCommand::Load(args) => bench::load::run(args, &env),
        BenchCommand::Swap(args) => bench::swap::run(args, &env),
        BenchCommand::Overhead(args) => bench::overhead::run(args, &env),
        BenchCommand::Batch(args) => bench::batch::run(args, &env),
        BenchCommand::Overload(args) => bench::overload::run(args, &env),
        BenchCommand::Tiers(args) => bench::tiers::run(args, &env),
        BenchCommand::Audio(args) => bench::audio::run(args, &env),
        BenchCommand::Crash(args) => bench::crash::run(args, &env),
        BenchCommand::Ingest(args) => bench::ingest::run(args, &env),
        BenchCommand::Vectors(args) => bench::vectors::run(args, &env),
        BenchCommand::Match(args) => bench::fingerprints::run(args, &env),
        BenchCommand::Images(args) => bench::images::run(args, &env),
    };
    finished(result)
}

/// Runs the demo.
pub(crate) fn demo(args: &DemoCommand) -> Outcome {
    finished(bench::demo::run(&args.demo, &bench_env(&args.places)?))
}

pub(crate) fn bench_env(places: &MachineArgs) -> Outcome<BenchEnv> {
    let millpond = std::env::current_exe().map_err(|error| {
        Failure::new(Exit::CannotStart, format!("this program cannot find itself: {error}"))
    })?;
    Ok(BenchEnv {
        millpond,
        onnxruntime: library_search(places.onnxruntime.clone()),
        libtorch: torch_search(places.libtorch.clone()),
        audio_data: environment::AUDIO_DATA.path(),
        cache_dir: places.cache_dir.clone().unwrap_or_else(environment::cache_dir),
        demo_seconds: demo_seconds()?,
    })
}

fn demo_seconds() -> Outcome<Option<u64>> {
    let Some(text) = environment::DEMO_SECONDS.text() else { return Ok(None) };
    let seconds = text.parse().map_err(|_| {
        Failure::usage(format!("{}={text}: it must be a number of seconds", environment::DEMO_SECONDS.name))
    })?;
    Ok(Some(seconds))
}

/// Wrong answers and servers that died come as internal errors: what ran is at fault, not who ran it.
pub(crate) fn finished(result: base::Result<()>) -> Outcome {
    result.map_err(|error| {
        let exit = match error.kind() {
            ErrorKind::InvalidArgument => Exit::Usage,
            ErrorKind::Internal | ErrorKind::DataLoss => Exit::Wrong,
            _ => Exit::Failed,
        };
        Failure::from(error).with_exit(exit)
    })
}
