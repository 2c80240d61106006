//! `docs/commands.md` equals the help of the binary.

use std::fmt::Write as _;
use std::path::Path;

use crate::program::run;

const HEAD: &str = "\
# Commands

This page has the output of `millpond --help` and of the help of each command. It is made by
`UPDATE_DOCS=1 cargo test -p millpond-cli`; a test fails if it is stale.
";

/// Appends the help of `command` and of its subcommands.
fn describe(text: &mut String, command: &[&str]) {
    let help = help(command);
    let title = [&["millpond"], command].concat().join(" ");
    let body: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(text, "\n## {title}\n\n```text\n{}\n```\n", body.join("\n").trim_end()).unwrap();
    for part in parts(&body) {
        describe(text, &[command, &[part]].concat());
    }
}

/// Returns the help of `command`: the output of the program, or the definitions of the other
/// program.
fn help(command: &[&str]) -> String {
    if let ["bench", names @ ..] = command {
        let arguments = [&["bench"], names, &["--help"]].concat();
        return bench::arguments::command()
            .try_get_matches_from(arguments)
            .unwrap_err()
            .to_string();
    }
    let help = run(&[command, &["--help"]].concat());
    assert_eq!(help.code, 0, "{command:?}: {help:?}");
    help.stdout
}

/// Returns the commands that a help text lists: the lines after `Commands:` up to an empty one.
fn parts<'a>(help: &[&'a str]) -> Vec<&'a str> {
    let listed = help
        .iter()
        .skip_while(|line| **line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty());
    let names =
        listed.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

#[test]
fn the_reference_is_up_to_date() {
    let mut text = HEAD.to_owned();
    describe(&mut text, &[]);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == text,
        "docs/commands.md is stale; run `UPDATE_DOCS=1 cargo test -p millpond-cli` and commit it"
    );
}
