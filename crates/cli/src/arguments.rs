//! The command line: all commands and their help.

use std::ffi::OsString;
use std::io::ErrorKind;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use client_commands::cluster::{self, ClusterCommand};
use client_commands::collections::{self, CollectionsCommand};
use client_commands::images::{self, ImagesCommand};
use client_commands::infer::{self, InferArgs};
use client_commands::models::{self, ModelsArgs};
use command_line::environment;
use command_line::exit::{CommandError, CommandResult, EXIT_CODES_HELP};

use crate::audio::AudioCommand;
use crate::bench::{BenchArgs, DemoCommand};
use crate::completion::CompletionArgs;
use crate::doctor::DoctorArgs;
use crate::foreign;
use crate::import::ImportCommand;
use crate::keys::KeysArgs;
use crate::manual::ManArgs;
use crate::publish::{ConvertArgs, PublishArgs};
use crate::serve::ServeArgs;
use crate::speakers::SpeakersArgs;
use crate::tfs::TfsArgs;
use crate::tune::TuneCommand;
use crate::verify::VerifyArgs;
use crate::worker::WorkerArgs;
use crate::{
    audio, bench, completion, doctor, import, keys, manual, publish, serve, speakers, tfs, tune,
    verify, worker,
};

/// Serves models with a tail latency that stays flat while they change
#[derive(Debug, Parser)]
#[command(name = "millpond", version, propagate_version = false, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve models over HTTP and gRPC
    Serve(Box<ServeArgs>),
    /// Serve as TensorFlow Serving does: with its flags and configuration files
    Tfs(TfsArgs),
    /// Convert another server's configuration into a settings file
    Import(ImportCommand),
    /// Publish an ONNX file or SavedModel as a version that loads without a latency spike
    Publish(PublishArgs),
    /// List, load and unload the models of a running server
    Models(ModelsArgs),
    /// Send one request: JSON, an image or an audio file
    Infer(Box<InferArgs>),
    /// Recognise speech, speakers, sounds or notes in recordings
    Audio(Box<AudioCommand>),
    /// Enrol voices and identify the speaker of a recording
    Speakers(SpeakersArgs),
    /// Index folders of images and search for similar ones
    Images(Box<ImagesCommand>),
    /// Back up, restore and copy collections of a running server
    Collections(Box<CollectionsCommand>),
    /// Show the nodes and shards of a cluster of search servers
    Cluster(Box<ClusterCommand>),
    /// Make keys for callers of a server
    Keys(KeysArgs),
    /// Measure a server: under load, during swaps, against the bare engine
    Bench(Box<BenchArgs>),
    /// Find and write the settings with the highest throughput within a latency target
    Tune(Box<TuneCommand>),
    /// Send recorded requests to two servers and compare answers and latency
    Verify(Box<VerifyArgs>),
    /// Serve real models under load and swap one of them every few seconds
    Demo(DemoCommand),
    /// Check how well this machine can serve, and suggest changes
    Doctor(DoctorArgs),
    /// Print the completion script of a shell
    Completion(CompletionArgs),
    /// Print the manual page, or write those of all commands
    Man(ManArgs),
    /// Convert a model into an existing empty directory (run by the server in a child process)
    #[command(hide = true)]
    Convert(ConvertArgs),
    /// Run an isolated model (run by the server in a child process)
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// Builds the whole command line with its help texts.
pub(crate) fn command() -> clap::Command {
    Arguments::command()
        .long_version(long_version().leak() as &'static str)
        .after_help(format!("{}\n\n{EXIT_CODES_HELP}", environment::help()))
}

/// Parses the process's arguments. Help and version end the process with 0, a wrong argument with
/// 2.
///
/// # Errors
/// Returns a usage error for a flag of another server, an error if help cannot be printed, and the
/// errors of [`bench::pass_on`].
pub(crate) fn parse() -> CommandResult<Arguments> {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(arguments) = tfs::tfs_flags(&words) {
        let text = |word: OsString| word.to_string_lossy().into_owned();
        let arguments = arguments.into_iter().map(text).collect();
        return Ok(Arguments { command: Command::Tfs(TfsArgs { arguments }) });
    }
    bench::pass_on(words.get(1..).unwrap_or_default())?;
    let parsed =
        command().try_get_matches().and_then(|matches| Arguments::from_arg_matches(&matches));
    parsed.map_err(|error| foreign::explain(&words, &error).unwrap_or_else(|| finish(&error)))
}

/// Prints help, the version or a mistake, and ends the process. Returns an error if help or the
/// version cannot be printed, except if the reader has closed the pipe.
fn finish(error: &clap::Error) -> CommandError {
    match error.print() {
        Err(failed) if !error.use_stderr() && failed.kind() != ErrorKind::BrokenPipe => {
            CommandError::failed(format!("cannot write to standard output: {failed}"))
        }
        _ => std::process::exit(error.exit_code()),
    }
}

/// Returns the version, the layout's format and the machine.
fn long_version() -> String {
    format!(
        "{}\nlayout:  {} (written and read)\nengines: ONNX Runtime, LibTorch and TensorFlow, found at run time; `millpond doctor` shows which\n\
         machine: {} {}",
        env!("CARGO_PKG_VERSION"),
        engine::layout::FORMAT,
        std::env::consts::ARCH,
        std::env::consts::OS,
    )
}

impl Arguments {
    pub(crate) fn run(&self) -> CommandResult {
        match &self.command {
            Command::Serve(args) => serve::run(args),
            Command::Tfs(args) => tfs::run(args),
            Command::Import(args) => import::run(args),
            Command::Publish(args) => publish::run(args),
            Command::Models(args) => models::run(args),
            Command::Infer(args) => infer::run(args),
            Command::Audio(args) => audio::run(args),
            Command::Speakers(args) => speakers::run(args),
            Command::Images(args) => images::run(args),
            Command::Collections(args) => collections::run(args),
            Command::Cluster(args) => cluster::run(args),
            Command::Keys(args) => keys::run(args),
            Command::Bench(args) => bench::run(args),
            Command::Tune(args) => tune::run(args),
            Command::Demo(args) => bench::demo(args),
            Command::Doctor(args) => doctor::run(args),
            Command::Completion(args) => completion::run(args),
            Command::Man(args) => manual::run(args, command()),
            Command::Convert(args) => publish::convert(args),
            Command::Verify(args) => verify::run(args),
            Command::Worker(args) => worker::run(args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
        command().debug_assert();
    }
}
