//! `millpond doctor`: checks this machine for serving.

use std::path::{Path, PathBuf};

use clap::Args;
use command_line::environment::{self, library_search, tensorflow_search, torch_search};
use command_line::exit::{CommandError, CommandResult, ExitStatus, pretty, print};
use command_line::values::Host;
use doctor::{AccessSettings, CONNECTIONS_MAX, DoctorInputs};
use gpu::GpuOptions;

use crate::serve::file::SettingsFile;

/// `millpond doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Directories of models whose file systems are checked too
    #[arg(value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// ONNX Runtime's shared library [default: found in a virtual environment, beside the program
    /// or in the system]
    #[arg(long, value_name = "PATH")]
    onnxruntime: Option<PathBuf>,
    /// Library libmillpond_torch.so, or its directory [default: found in a virtual environment or
    /// beside the program]
    #[arg(long, value_name = "PATH")]
    libtorch: Option<PathBuf>,
    /// TensorFlow's library, or the directory of its Python package [default: found in a virtual
    /// environment, beside the program or in the system]
    #[arg(long, value_name = "PATH")]
    tensorflow: Option<PathBuf>,
    /// Directory of converted models [default: the user's cache directory]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs all checks and prints the findings.
///
/// # Errors
/// Returns a usage error for a directory that does not exist, and a silent error with
/// [`ExitStatus::Wrong`] if a finding makes serving impossible.
pub(crate) fn run(args: &DoctorArgs) -> CommandResult {
    args.dirs.iter().try_for_each(|dir| check_directory(dir))?;
    let checks = doctor::examine(&DoctorInputs {
        directories: directories(args),
        collections: environment::collections_dir(),
        onnxruntime: library_search(args.onnxruntime.clone()),
        libtorch: torch_search(args.libtorch.clone()),
        tensorflow: tensorflow_search(args.tensorflow.clone()),
        gpu: GpuOptions { compiler: environment::compiler_search(), ..GpuOptions::default() },
        access: access_settings(),
        connections: |limit| server::descriptors::plan(limit, 2, CONNECTIONS_MAX).connections_max,
    });
    if args.json {
        print(&pretty(&doctor::json(&checks)))?;
    } else {
        print(&doctor::text(&checks))?;
    }
    if doctor::is_impossible(&checks) {
        Err(CommandError::silent(ExitStatus::Wrong))
    } else {
        Ok(())
    }
}

/// Checks that a directory exists. The checks use the nearest existing ancestor, since the cache
/// directory may not exist yet.
fn check_directory(dir: &Path) -> CommandResult {
    let why = match std::fs::metadata(dir) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => "it is not a directory".to_owned(),
        Err(_) if dir.to_str().is_some_and(model_store::is_url) => {
            "it is a URL; the copies of its models are in --cache-dir, which is checked without it"
                .to_owned()
        }
        Err(error) => error.to_string(),
    };
    Err(CommandError::usage(format!("cannot check {}: {why}", dir.display())))
}

/// Reads the settings file that `serve` would read without flags.
fn access_settings() -> AccessSettings {
    let file = environment::CONFIG.path().map(|path| SettingsFile::read(&path));
    let file = match file.transpose() {
        Err(failure) => return AccessSettings::Unreadable(failure.message().to_owned()),
        Ok(file) => file.unwrap_or_default(),
    };
    // Each of these makes every call but health checks require a key.
    let has_key = file.server.keys.is_some()
        || file.server.admin_key.or_else(|| environment::ADMIN_KEY.text()).is_some()
        || file.search.api_key.or_else(|| environment::API_KEY.text()).is_some();
    AccessSettings::Known { host: file.server.host.map(|Host(address)| address), has_key }
}

/// Returns the role and path of each directory, without duplicates.
fn directories(args: &DoctorArgs) -> Vec<(&'static str, PathBuf)> {
    let cache = args.cache_dir.clone().unwrap_or_else(environment::cache_dir);
    let mut directories: Vec<(&str, PathBuf)> =
        args.dirs.iter().map(|dir| ("model directory", dir.clone())).collect();
    if directories.is_empty() {
        directories.push((
            "current directory",
            std::env::current_dir().unwrap_or_else(|_| PathBuf::from(".")),
        ));
    }
    directories.push(("cache directory", cache));
    directories
}
