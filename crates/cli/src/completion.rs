//! `millpond completion`: shell completion scripts.

use clap::{Args, ValueEnum};
use clap_complete::Shell;

use crate::arguments;
use crate::exit::{Outcome, print};

/// The shells that have a script.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
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
    shell: Kind,
}

/// Prints the script.
pub(crate) fn run(args: &CompletionArgs) -> Outcome {
    let shell = match args.shell {
        Kind::Bash => Shell::Bash,
        Kind::Zsh => Shell::Zsh,
        Kind::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut arguments::command(), "millpond", &mut script);
    print(&String::from_utf8_lossy(&script))
}
