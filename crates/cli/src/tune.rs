//! `millpond tune`: the arguments are the bench crate's own, the environment is ours.

use base::ErrorKind;
use bench::tune::TuneArgs;
use clap::Args;

use crate::bench::{MachineArgs, bench_env, finished};
use crate::exit::Outcome;

/// `millpond tune MODEL`.
#[derive(Args, Debug)]
pub(crate) struct TuneCommand {
    #[command(flatten)]
    tune: TuneArgs,
    #[command(flatten)]
    places: MachineArgs,
}

/// Searches, reports and writes.
pub(crate) fn run(args: &TuneCommand) -> Outcome {
    match bench::tune::run(&args.tune, &bench_env(&args.places)?) {
        // What is damaged is the model that was given, and not what ran.
        Err(error) if error.kind() == ErrorKind::DataLoss => Err(error.into()),
        tuned => finished(tuned),
    }
}
