//! `millpond import`: settings of another server as settings files.

use std::io::Write as _;
use std::path::Path;

use clap::{Args, Subcommand};

use crate::exit::{CommandError, CommandResult};
use crate::tfs::import::{self as tfs, ImportTfsArgs};
use crate::triton::{self, ImportTritonArgs};

/// Name of a model's own settings.
pub(crate) const MODEL_FILE: &str = "millpond.toml";

/// `millpond import`.
#[derive(Args, Debug)]
pub(crate) struct ImportCommand {
    #[command(subcommand)]
    from: ImportFrom,
}

#[derive(Debug, Subcommand)]
enum ImportFrom {
    /// Convert TensorFlow Serving's list of models, and its batching parameters
    Tfs(ImportTfsArgs),
    /// Convert every config.pbtxt of Triton's model repository
    Triton(ImportTritonArgs),
}

/// Converts the files and writes the settings.
///
/// # Errors
/// Returns a usage error that names file and line.
pub(crate) fn run(command: &ImportCommand) -> CommandResult {
    match &command.from {
        ImportFrom::Tfs(args) => tfs::run(args),
        ImportFrom::Triton(args) => triton::run(args),
    }
}

/// Writes a new file.
///
/// # Errors
/// Returns an error that names the file, such as for one that exists.
pub(crate) fn write_new(path: &Path, text: &str) -> CommandResult {
    let failed =
        |error: std::io::Error| CommandError::failed(format!("{}: {error}", path.display()));
    let mut file = std::fs::File::create_new(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}
