//! `millpond man`: manual pages.

use std::path::PathBuf;

use clap::Args;

use crate::exit::{CommandError, CommandResult, print};

/// `millpond man [--to DIR]`.
#[derive(Args, Debug)]
#[command(after_help = "Read it with `millpond man | man -l -`.")]
pub(crate) struct ManArgs {
    /// Write millpond.1 and the page of each command, such as millpond-serve.1, into this directory
    /// instead
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Prints the page of the program, which `command` describes, or writes all pages.
pub(crate) fn run(args: &ManArgs, command: clap::Command) -> CommandResult {
    let command = command.disable_help_subcommand(true);
    let Some(dir) = &args.to else {
        let mut page = Vec::new();
        let made = clap_mangen::Man::new(command).render(&mut page);
        made.map_err(|error| CommandError::failed(format!("the manual page: {error}")))?;
        return print(&String::from_utf8_lossy(&page));
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command, dir))
        .map_err(|error| CommandError::failed(format!("{}: {error}", dir.display())))
}
