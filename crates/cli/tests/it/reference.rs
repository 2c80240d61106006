//! `docs/commands.md` is what the binary says of itself, no more and no less.

use std::fmt::Write as _;
use std::path::Path;

use crate::program::run;

/// Every command with a help text of its own.
const COMMANDS: [&[&str]; 23] = [
    &["serve"],
    &["publish"],
    &["models", "ls"],
    &["models", "load"],
    &["models", "unload"],
    &["models", "status"],
    &["infer"],
    &["audio"],
    &["speakers"],
    &["speakers", "enrol"],
    &["speakers", "identify"],
    &["speakers", "verify"],
    &["speakers", "remove"],
    &["bench", "load"],
    &["bench", "swap"],
    &["bench", "overhead"],
    &["bench", "batch"],
    &["bench", "overload"],
    &["bench", "audio"],
    &["demo"],
    &["doctor"],
    &["tune"],
    &["completion"],
];
const HEAD: &str = "\
# Commands

What `millpond --help` and the help of each command say. Made by `UPDATE_DOCS=1 cargo test -p millpond-cli`; a test
fails when it is stale.
";

#[test]
fn the_reference_is_up_to_date() {
    let mut text = HEAD.to_owned();
    let sections = std::iter::once(&[][..]).chain(COMMANDS);
    for command in sections {
        let help = run(&[command, &["--help"]].concat());
        assert_eq!(help.code, 0, "{command:?}: {help:?}");
        let title = [&["millpond"], command].concat().join(" ");
        let body: Vec<&str> = help.stdout.lines().map(str::trim_end).collect();
        write!(text, "\n## {title}\n\n```text\n{}\n```\n", body.join("\n").trim_end()).unwrap();
    }
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
