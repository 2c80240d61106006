//! `millpond tfs`: starts as TensorFlow Serving does, with its flags and configuration files.

mod config;
pub(crate) mod import;
mod list;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use ::import::tfs::Flags;
use clap::Args;
use command_line::environment;
use command_line::exit::{CommandError, CommandResult, print};

use crate::serve;
use config::TfsSetup;

/// Name of TensorFlow Serving's program.
const PROGRAM: &str = "tensorflow_model_server";
/// Name of the command.
const COMMAND: &str = "tfs";

/// `millpond tfs --FLAG=VALUE...`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true, after_help = after_help())]
pub(crate) struct TfsArgs {
    /// Flags of tensorflow_model_server, then -- and flags of `millpond serve`
    #[arg(value_name = "FLAGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<String>,
}

/// Explains the command with all its flags.
fn after_help() -> String {
    format!(
        "\
Change one word of the start command: models, configuration files and clients stay as they are. A link to this program \
that is called {PROGRAM} does the same without a change.

  tensorflow_model_server --port=8500 --rest_api_port=8501 --model_config_file=/etc/models.config
  millpond tfs            --port=8500 --rest_api_port=8501 --model_config_file=/etc/models.config

Flags are written as --flag=value, --flag value, --flag or --noflag. A flag without effect is named once in the log; an \
unknown one is an error. Flags of `millpond serve` may follow --, as in `millpond tfs --model_base_path=/models/a -- \
--pool 8GiB --admin-key KEY`. The list of models is read again at SIGHUP. Clients of this machine may replace it \
(HandleReloadConfigRequest); others need --admin-key and --allow-remote-admin.

TensorFlow Serving's flags:
{}",
        ::import::tfs::help()
    )
}

/// Returns the flags if this process was started as TensorFlow Serving, by its command or by the
/// name of that program. They are not in clap's style.
pub(crate) fn tfs_flags(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let (program, rest) = arguments.split_first()?;
    if Path::new(program).file_name() == Some(OsStr::new(PROGRAM)) {
        return Some(rest.to_vec());
    }
    match rest.split_first() {
        Some((command, rest)) if command == COMMAND => Some(rest.to_vec()),
        _ => None,
    }
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Returns a usage error for wrong flags and files, and the errors of `millpond serve`.
pub(crate) fn run(args: &TfsArgs) -> CommandResult {
    // Before any file or thread is created: other users must not read the server's files.
    os::private::restrict_umask();
    let mut words = args.arguments.iter().take_while(|word| *word != "--");
    if words.any(|word| word == "--help" || word == "-h") {
        return help();
    }
    let flags = Flags::parse(&args.arguments)?;
    if flags.bool("version") == Some(true) {
        let version = env!("CARGO_PKG_VERSION");
        return print(&format!(
            "TensorFlow ModelServer: 2.20.0 (millpond {version})\nTensorFlow Library: opened with the first SavedModel\n"
        ));
    }
    let TfsSetup { config, watch, log, warnings } = config::resolve(&flags)?;
    let filter = serve::log::start(&log)?;
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if environment::CONFIG.path().is_some() {
        tracing::warn!("MILLPOND_CONFIG has no effect on `millpond tfs`, only on `millpond serve`");
    }
    serve::start(server::Config { log: Some(filter), ..config }, watch)
}

/// Prints the help.
fn help() -> CommandResult {
    let mut command = crate::arguments::command();
    let text = command
        .find_subcommand_mut(COMMAND)
        .map(|command| command.clone().bin_name("millpond tfs").render_long_help().to_string());
    text.map_or_else(|| Err(CommandError::failed("no help")), |text| print(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_known_by_its_name_and_its_command() {
        let started = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            tfs_flags(&words).map(|rest| rest.len())
        };
        assert_eq!(started(&["/usr/bin/tensorflow_model_server", "--port=1"]), Some(1));
        assert_eq!(started(&["millpond", "tfs", "--port=1", "--x"]), Some(2));
        assert_eq!(started(&["millpond", "serve", "tfs"]), None);
        assert_eq!(started(&["millpond"]), None);
    }
}
