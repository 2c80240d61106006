//! `millpond tune`. The arguments are defined in the crate `tune`.

use base::ErrorKind;
use clap::Args;
use command_line::exit::CommandResult;
use tune::TuneArgs;

use loadgen::MachineArgs;

use crate::bench::{bench_env, finished};

/// `millpond tune MODEL`.
#[derive(Args, Debug)]
pub(crate) struct TuneCommand {
    #[command(flatten)]
    tune: TuneArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Runs the search, prints the report and writes the settings.
pub(crate) fn run(args: &TuneCommand) -> CommandResult {
    match tune::run(&args.tune, &bench_env(&args.machine)?) {
        // The model is damaged. The server and this program have no error.
        Err(error) if error.kind() == ErrorKind::DataLoss => Err(error.into()),
        tuned => finished(tuned),
    }
}
