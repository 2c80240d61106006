//! The child process that runs an isolated model for the server.

use std::path::{Path, PathBuf};

use clap::Args;
use tracing_subscriber::filter::LevelFilter;

use crate::exit::CommandResult;
use crate::serve::{library_search, torch_search};

/// `millpond worker`.
#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    /// ONNX Runtime's shared library
    #[arg(long, value_name = "PATH")]
    onnxruntime: Option<PathBuf>,
    /// The LibTorch shim, or its directory
    #[arg(long, value_name = "PATH")]
    libtorch: Option<PathBuf>,
}

/// Returns the command by which a server starts `program` as a worker process. The environment
/// passes on the libraries that no flag names.
pub(crate) fn command(
    program: PathBuf,
    onnxruntime: Option<&Path>,
    libtorch: Option<&Path>,
) -> (PathBuf, Vec<String>) {
    let mut args = vec!["worker".to_owned()];
    for (flag, path) in [("--onnxruntime", onnxruntime), ("--libtorch", libtorch)] {
        if let Some(path) = path {
            args.extend([flag.to_owned(), path.display().to_string()]);
        }
    }
    (program, args)
}

/// Answers the server until it closes its sockets. Its log is a line of standard error for each
/// warning, which the server puts into its own.
pub(crate) fn run(args: &WorkerArgs) -> CommandResult {
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).without_time();
    // Fails only if there is a log already.
    let _ = log.with_ansi(false).with_target(false).with_writer(std::io::stderr).try_init();
    let onnxruntime = library_search(args.onnxruntime.clone());
    let libtorch = torch_search(args.libtorch.clone());
    Ok(server::run_worker(onnxruntime, libtorch)?)
}
