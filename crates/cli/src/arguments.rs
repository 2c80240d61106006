//! What can be typed.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::audio::AudioCommand;
use crate::bench::{BenchArgs, DemoCommand};
use crate::completion::CompletionArgs;
use crate::doctor::DoctorArgs;
use crate::exit::{CommandResult, EXIT_CODES_HELP};
use crate::foreign;
use crate::images::ImagesCommand;
use crate::infer::InferArgs;
use crate::models::ModelsArgs;
use crate::publish::{ConvertArgs, PublishArgs};
use crate::serve::ServeArgs;
use crate::speakers::SpeakersArgs;
use crate::tune::TuneCommand;
use crate::{
    audio, bench, completion, doctor, environment, images, infer, models, publish, serve, speakers, tune,
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
    /// Make a version of a model that loads without a pause: any ONNX file, into DIR/NAME
    Publish(PublishArgs),
    /// List, load and unload the models of a running server
    Models(ModelsArgs),
    /// Send one request: JSON, an image or a sound file
    Infer(Box<InferArgs>),
    /// Recognise what is in recordings: speech, speakers, sounds, notes
    Audio(Box<AudioCommand>),
    /// Enrol voices, and say whose a recording is
    Speakers(SpeakersArgs),
    /// Search pictures: index folders of them, find those like another
    Images(Box<ImagesCommand>),
    /// Measure a server: under load, during swaps, against the bare engine
    Bench(Box<BenchArgs>),
    /// Find and write the settings with the highest throughput within a latency target
    Tune(Box<TuneCommand>),
    /// Serve real models under load and swap one of them every few seconds
    Demo(DemoCommand),
    /// Say what this machine can do for serving, and what to change
    Doctor(DoctorArgs),
    /// Print a shell's completion script
    Completion(CompletionArgs),
    /// Convert a model into an existing empty directory (run by the server, as a process of its own)
    #[command(hide = true)]
    Convert(ConvertArgs),
}

/// The whole command line with its help texts.
pub(crate) fn command() -> clap::Command {
    Arguments::command()
        .long_version(long_version().leak() as &'static str)
        .after_help(format!("{}\n\n{EXIT_CODES_HELP}", environment::help()))
}

/// Parses the process's arguments. Help and version end the process with 0, a wrong argument with 2.
///
/// # Errors
/// A usage failure for a flag of another server; those of [`bench::pass_on`].
pub(crate) fn parse() -> CommandResult<Arguments> {
    bench::pass_on(&std::env::args_os().skip(1).collect::<Vec<_>>())?;
    let parsed = command().try_get_matches().and_then(|matches| Arguments::from_arg_matches(&matches));
    parsed.or_else(|error| foreign::explain(&error).map_or_else(|| error.exit(), Err))
}

/// The version and what it is made of.
fn long_version() -> String {
    format!(
        "{}\nlayout:  {} (written and read)\nengines: ONNX Runtime and LibTorch, found at run time; `millpond doctor` shows which\n\
         machine: {} {}",
        env!("CARGO_PKG_VERSION"),
        engine::layout::FORMAT,
        std::env::consts::ARCH,
        std::env::consts::OS,
    )
}

impl Arguments {
    /// Does what was asked for.
    pub(crate) fn run(&self) -> CommandResult {
        match &self.command {
            Command::Serve(args) => serve::run(args),
            Command::Publish(args) => publish::run(args),
            Command::Models(args) => models::run(args),
            Command::Infer(args) => infer::run(args),
            Command::Audio(args) => audio::run(args),
            Command::Speakers(args) => speakers::run(args),
            Command::Images(args) => images::run(args),
            Command::Bench(args) => bench::run(args),
            Command::Tune(args) => tune::run(args),
            Command::Demo(args) => bench::demo(args),
            Command::Doctor(args) => doctor::run(args),
            Command::Completion(args) => completion::run(args),
            Command::Convert(args) => publish::convert(args),
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
