//! `millpond man`: manual pages.

use std::path::{Path, PathBuf};

use clap::Args;
use command_line::exit::{CommandError, CommandResult, print};

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
    let mut command = command.disable_help_subcommand(true);
    let Some(dir) = &args.to else {
        let mut text = Vec::new();
        let made = page(command).render(&mut text);
        made.map_err(|error| CommandError::failed(format!("the manual page: {error}")))?;
        return print(&String::from_utf8_lossy(&text));
    };
    // Names the pages of commands after their parents.
    command.build();
    std::fs::create_dir_all(dir)
        .and_then(|()| write_pages(command, dir))
        .map_err(|error| CommandError::failed(format!("{}: {error}", dir.display())))
}

/// Returns the page of `command`.
fn page(command: clap::Command) -> clap_mangen::Man {
    clap_mangen::Man::new(command)
        // The library leaves out an empty date, so readers would take the source for the date.
        .date(" ")
        .source(concat!("millpond ", env!("CARGO_PKG_VERSION")))
}

/// Writes the pages of `command` and of its commands into `dir`.
fn write_pages(command: clap::Command, dir: &Path) -> std::io::Result<()> {
    for part in command.get_subcommands().filter(|part| !part.is_hide_set()) {
        write_pages(part.clone(), dir)?;
    }
    page(command).generate_to(dir).map(drop)
}
