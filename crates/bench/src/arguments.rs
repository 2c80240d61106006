//! Arguments of `millpond bench`, and the environment that `millpond` prepares for it.

use std::path::PathBuf;

use base::{Error, Result};
use clap::{CommandFactory, Parser, Subcommand};
use engine::LibrarySearch;
use loadgen::{BenchEnv, MachineArgs};
use os::ChildProgram;
use tune::load::BenchLoadArgs;

use crate::audio::BenchAudioArgs;
use crate::backup::BackupBenchArgs;
use crate::batch::BatchArgs;
use crate::crash::CrashArgs;
use crate::duplicates::BenchDuplicatesArgs;
use crate::filter::FilterArgs;
use crate::fingerprints::MatchArgs;
use crate::fingerprints::identify::{self, IdentifyArgs};
use crate::gpu::GpuBenchArgs;
use crate::images::BenchImagesArgs;
use crate::ingest::IngestArgs;
use crate::overhead::OverheadArgs;
use crate::overload::OverloadArgs;
use crate::rollout::RolloutBenchArgs;
use crate::slow::SlowArgs;
use crate::soak::SoakArgs;
use crate::swap::SwapArgs;
use crate::tiers::TiersArgs;
use crate::vectors::VectorsArgs;
use crate::{
    audio, batch, crash, duplicates, filter, fingerprints, gpu, images, ingest, overhead, overload,
    rollout, slow, soak, swap, tiers, vectors,
};

/// Measure a server: under load, during swaps, against the bare engine
#[derive(Debug, Parser)]
#[command(name = "millpond bench", bin_name = "millpond bench", max_term_width = 100)]
struct BenchArguments {
    #[command(subcommand)]
    benchmark: Benchmark,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    Load(BenchLoadArgs),
    Swap(SwapArgs),
    Soak(SoakArgs),
    Overhead(OverheadArgs),
    Batch(BatchArgs),
    Overload(OverloadArgs),
    Rollout(RolloutBenchArgs),
    Slow(SlowArgs),
    Tiers(TiersArgs),
    Audio(BenchAudioArgs),
    Crash(CrashArgs),
    Ingest(IngestArgs),
    Match(MatchArgs),
    Identify(IdentifyArgs),
    Images(BenchImagesArgs),
    Duplicates(BenchDuplicatesArgs),
    Vectors(VectorsArgs),
    Gpu(GpuBenchArgs),
    Backup(BackupBenchArgs),
    Filter(FilterArgs),
}

/// Completes the arguments by the variables that `millpond bench` sets or passes on.
fn environment(machine: MachineArgs) -> Result<BenchEnv> {
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let required =
        |name| variable(name).ok_or_else(|| Error::invalid("start this as `millpond bench`"));
    let search = |given: Option<PathBuf>, name: &'static str| {
        // Errors name the variable, or the flag of the engine.
        let explicit_source = given.is_none().then_some(name);
        let explicit = given.or_else(|| variable(name));
        let around = LibrarySearch::around_process(explicit, variable("VIRTUAL_ENV"));
        LibrarySearch { explicit_source, ..around }
    };
    let millpond = required("MILLPOND_PROGRAM")?;
    Ok(BenchEnv {
        // If it cannot be opened, a benchmark that starts a server reports it.
        program: ChildProgram::opened(millpond.clone()).ok(),
        millpond,
        onnxruntime: search(machine.onnxruntime, "MILLPOND_ONNXRUNTIME"),
        libtorch: search(machine.libtorch, "MILLPOND_LIBTORCH"),
        tensorflow: search(machine.tensorflow, "MILLPOND_TENSORFLOW"),
        audio_data: variable("MILLPOND_AUDIO_DATA"),
        cache_dir: machine.cache_dir.map_or_else(|| required("MILLPOND_CACHE_DIR"), Ok)?,
    })
}

/// Returns the arguments with their help texts.
#[must_use]
pub fn command() -> clap::Command {
    BenchArguments::command()
}

/// Parses the process's arguments and runs the benchmark. Help ends the process with 0, a wrong
/// argument with 2.
///
/// # Errors
/// Returns the errors of the benchmark; `InvalidArgument` if `millpond` did not start this process.
pub fn run() -> Result<()> {
    let arguments = BenchArguments::parse();
    let env = environment(arguments.machine)?;
    match &arguments.benchmark {
        Benchmark::Load(args) => tune::load::run(args, &env),
        Benchmark::Swap(args) => swap::run(args, &env),
        Benchmark::Soak(args) => soak::run(args, &env),
        Benchmark::Overhead(args) => overhead::run(args, &env),
        Benchmark::Batch(args) => batch::run(args, &env),
        Benchmark::Overload(args) => overload::run(args, &env),
        Benchmark::Rollout(args) => rollout::run(args, &env),
        Benchmark::Slow(args) => slow::run(args, &env),
        Benchmark::Tiers(args) => tiers::run(args, &env),
        Benchmark::Audio(args) => audio::run(args, &env),
        Benchmark::Crash(args) => crash::run(args, &env),
        Benchmark::Ingest(args) => ingest::run(args, &env),
        Benchmark::Match(args) => fingerprints::run(args, &env),
        Benchmark::Identify(args) => identify::run(args, &env),
        Benchmark::Images(args) => images::run(args, &env),
        Benchmark::Duplicates(args) => duplicates::run(args, &env),
        Benchmark::Vectors(args) => vectors::run(args, &env),
        Benchmark::Gpu(args) => gpu::run(args, &env),
        Benchmark::Backup(args) => crate::backup::run(args, &env),
        Benchmark::Filter(args) => filter::run(args, &env),
    }
}

/// Parses the words after the name of a benchmark.
#[cfg(test)]
pub(crate) fn parse<'a, A: clap::Args>(words: impl IntoIterator<Item = &'a str>) -> Result<A> {
    let line = std::iter::once("bench").chain(words);
    let matches = A::augment_args(clap::Command::new("bench")).try_get_matches_from(line);
    let parsed = matches.and_then(|matches| A::from_arg_matches(&matches));
    parsed.map_err(|error| Error::invalid(error.to_string()))
}
