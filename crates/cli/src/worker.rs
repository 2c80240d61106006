//! The child process that runs an isolated model for the server.

use std::path::PathBuf;

use clap::Args;
use command_line::environment::{library_search, tensorflow_search, torch_search};
use command_line::exit::CommandResult;
use tracing_subscriber::filter::LevelFilter;

use crate::child_process::ChildArgs;
use crate::serve::log_output::LogOutput;
use crate::serve::options::LogFormat;

/// `millpond worker`.
#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    /// ONNX Runtime's shared library
    #[arg(long, value_name = "PATH")]
    onnxruntime: Option<PathBuf>,
    /// Library libmillpond_torch.so, or its directory
    #[arg(long, value_name = "PATH")]
    libtorch: Option<PathBuf>,
    /// The directory of TensorFlow's Python package
    #[arg(long, value_name = "PATH")]
    tensorflow: Option<PathBuf>,
    #[command(flatten)]
    child: ChildArgs,
}

/// Answers the server until it closes its sockets. Its log is a line of standard error for each
/// warning, which the server puts into its own.
pub(crate) fn run(args: &WorkerArgs) -> CommandResult {
    args.child.name_process();
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).without_time();
    let log = log.with_ansi(false).with_target(false);
    // Fails only if a log was started before.
    let _ = log.with_writer(LogOutput::new(LogFormat::Text)).try_init();
    let onnxruntime = args.child.beside(library_search(args.onnxruntime.clone()));
    let libtorch = args.child.beside(torch_search(args.libtorch.clone()));
    let tensorflow = args.child.beside(tensorflow_search(args.tensorflow.clone()));
    Ok(server::run_worker(onnxruntime, libtorch, tensorflow)?)
}
