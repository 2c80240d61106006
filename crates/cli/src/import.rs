//! `millpond import`: settings of another server as settings files.

use std::io::Write as _;
use std::path::Path;

use clap::{Args, Subcommand};
use command_line::exit::{CommandError, CommandResult};

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

/// Writes a new file. If the disk is full, no part of the file stays.
///
/// # Errors
/// Returns an error that names the file, such as for one that exists.
pub(crate) fn write_new(path: &Path, text: &str) -> CommandResult {
    let failed =
        |error: std::io::Error| CommandError::failed(format!("{}: {error}", path.display()));
    let mut file = std::fs::File::create_new(path).map_err(failed)?;
    let written = file.write_all(text.as_bytes());
    if written.is_err() {
        // A server could read the part, and the next attempt would refuse the file. The error of
        // the write is more useful than one of the removal.
        let _ = std::fs::remove_file(path);
    }
    written.map_err(failed)
}
