//! `millpond completion`: shell completion scripts.

use clap::{Args, ValueEnum};
use clap_complete::Shell;
use command_line::exit::{CommandResult, print};

use crate::{arguments, bench};

/// Shells with a completion script.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CompletionShell {
    /// source <(millpond completion bash)
    Bash,
    /// millpond completion zsh > "${fpath[1]}/_millpond"
    Zsh,
    /// millpond completion fish > ~/.config/fish/completions/millpond.fish
    Fish,
}

/// `millpond completion SHELL`.
#[derive(Args, Debug)]
pub(crate) struct CompletionArgs {
    /// The shell
    shell: CompletionShell,
}

/// Prints the completion script.
pub(crate) fn run(args: &CompletionArgs) -> CommandResult {
    let shell = match args.shell {
        CompletionShell::Bash => Shell::Bash,
        CompletionShell::Zsh => Shell::Zsh,
        CompletionShell::Fish => Shell::Fish,
    };
    // Benchmarks of the other program are completed by name, without their flags.
    let benchmarks = bench::benchmarks()
        .into_iter()
        .map(|(name, about)| clap::Command::new(name.leak() as &str).about(about));
    let command =
        arguments::command().mut_subcommand("bench", |bench| bench.subcommands(benchmarks));
    let mut command = without_hidden(&command);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "millpond", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Returns `command` without its hidden commands, which the library would offer too. Only the
/// server runs them.
fn without_hidden(command: &clap::Command) -> clap::Command {
    let shown = command.get_subcommands().filter(|part| !part.is_hide_set());
    clap::Command::new("millpond")
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments())
        .subcommands(shown)
}
