//! `millpond serve`: resolves flags, settings file and defaults, in this order, and runs the
//! server.

mod cluster;
mod cluster_tls;
mod config;
pub(crate) mod file;
mod file_error;
pub(crate) mod log;
mod log_fields;
mod log_limit;
pub(crate) mod log_output;
pub(crate) mod options;
mod reload;
pub(crate) mod settings;
mod traces;
mod updates;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::ErrorKind;
use clap::Args;
use command_line::environment;
use command_line::exit::{CommandError, CommandResult, ExitStatus};
use command_line::values::{ModelSource, TimeSpan};
use os::ChildProgram;
use server::{Config, ConfigWatch};

use crate::child_process::{self, ChildArgs};
use options::{
    AudioOptions, ClusterOptions, InferenceOptions, LifecycleOptions, MemoryOptions, ScheduleFlags,
    SearchOptions, ServerOptions,
};
use reload::SettingsWatch;
use settings::ServeSettings;

/// `millpond serve DIR|NAME=DIR...`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
A directory with numbered version directories is a model, named after it unless NAME= is given; any other directory \
is a root, whose subdirectories are models. The server also serves versions and models that appear in a root later; \
--versions and --transition apply to these too. The settings in a millpond.toml beside a model's versions override \
all others for that model; changes of its [schedule] apply at the next poll without a reload.

In place of a directory, you can name an object store: URL for a directory of models, NAME=URL for one model. The \
server copies the models to --cache-dir and serves them from there; docs/object-stores.md has the details.

The server reads the settings file again when it changes, and at SIGHUP. It then adds, changes and removes models and \
roots without an effect on the others, and applies [schedule], [rollout], versions and transition. Other settings need \
a restart. A file with a mistake changes nothing. In both cases, the log \
says so.

The settings file uses the names of the flags: [server], [inference], [memory], [lifecycle], [audio], [search] and [cluster] \
have the flags of the groups above, `roots = [..]` has directories of models, and [models.NAME] has path, versions, \
transition, labels, intra-op-threads and inter-op-threads of one model. [schedule] says how the server queues, merges \
and runs the requests of all models, and [models.NAME.schedule] those of one model; docs/millpond.toml has the keys. \
--runtime-threads above 0 sets mode = \"async\" and threads = N in [schedule]. Flags take precedence over the \
file.

Exit status: 0 after SIGTERM or SIGINT; 2 if a flag, a setting or a directory is wrong; 3 if a port or the collections \
are in use, ONNX Runtime does not load, or the models cannot be listed. If ONNX Runtime is missing, the server starts, \
and ONNX models fail with the reason.")]
pub(crate) struct ServeArgs {
    /// Model, or directory of models: a path, or a URL such as s3://BUCKET/PATH
    #[arg(value_name = "DIR|NAME=DIR")]
    pub(crate) sources: Vec<ModelSource>,
    /// Settings file (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
    #[command(flatten)]
    pub(crate) inference: InferenceOptions,
    #[command(flatten)]
    pub(crate) schedule: ScheduleFlags,
    #[command(flatten)]
    pub(crate) memory: MemoryOptions,
    #[command(flatten)]
    pub(crate) lifecycle: LifecycleOptions,
    #[command(flatten)]
    pub(crate) audio: AudioOptions,
    #[command(flatten)]
    pub(crate) search: SearchOptions,
    #[command(flatten)]
    pub(crate) cluster: ClusterOptions,
}

impl ServeArgs {
    /// Returns the path of the settings file, if there is one.
    fn config_path(&self) -> Option<PathBuf> {
        self.config.clone().or_else(|| environment::CONFIG.path())
    }
}

/// Time between two checks of the settings file, if `--poll` does not set it.
const POLL: Duration = Duration::from_secs(1);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Returns a usage error for wrong settings, and [`ExitStatus::CannotStart`] if a port is in use or
/// ONNX Runtime does not load.
pub(crate) fn run(args: &ServeArgs) -> CommandResult {
    child_process::name_server();
    // Before any file or thread is created: other users of the machine must not read the server's
    // files.
    os::private::restrict_umask();
    let watch = args.config_path().map(|path| SettingsWatch::new(args.clone(), path));
    let settings = ServeSettings::resolve(args)?;
    let filter = log::start(&settings.log)?;
    settings.advice().iter().for_each(|advice| tracing::warn!("{advice}"));
    let poll = settings.lifecycle.poll.map_or(POLL, |TimeSpan(time)| time);
    let watch = watch.map(|source| ConfigWatch { source: Box::new(source), poll: Some(poll) });
    start(Config { log: Some(filter), ..settings.into_config()? }, watch)
}

/// Runs the server. Ends the process once the server has stopped.
///
/// # Errors
/// As [`run`].
pub(crate) fn start(config: Config, watch: Option<ConfigWatch>) -> CommandResult {
    let manager = os::ServiceManager::at(environment::NOTIFY_SOCKET.path().map(Into::into));
    server::run(config, watch, manager).map_err(|error| {
        let exit = match error.kind() {
            ErrorKind::InvalidArgument => ExitStatus::Usage,
            _ => ExitStatus::CannotStart,
        };
        CommandError::from(error).with_exit(exit)
    })?;
    // Fails only if the output is closed.
    let _ = std::io::stdout().flush();
    // A run or a load that has not ended in time may still be inside an engine. A usual exit
    // destroys static data of the engine's library, such as the environment of ONNX Runtime.
    os::process::exit_now(0)
}

/// Returns the command by which a server starts `program` as a worker process. The environment
/// passes on the libraries that no flag names.
pub(crate) fn worker_command(
    program: &ChildProgram,
    onnxruntime: Option<&Path>,
    libtorch: Option<&Path>,
    tensorflow: Option<&Path>,
) -> (ChildProgram, Vec<String>) {
    let mut args = vec!["worker".to_owned(), ChildArgs::flag(program)];
    for (flag, path) in
        [("--onnxruntime", onnxruntime), ("--libtorch", libtorch), ("--tensorflow", tensorflow)]
    {
        if let Some(path) = path {
            args.extend([flag.to_owned(), path.display().to_string()]);
        }
    }
    (program.clone(), args)
}
