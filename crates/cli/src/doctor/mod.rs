//! `millpond doctor`: checks this machine for serving, and explains each finding.
//!
//! Reading (files of /proc and /sys, a real huge page, a real direct read) is separate from
//! judging. Judging takes plain values, so every verdict is tested without the machine in question.

mod access;
mod graphics;
mod library;
mod memory;
mod processor;
mod storage;
mod system;

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::exit::{CommandError, CommandResult, ExitStatus, print};
use crate::{environment, models};

/// Line width of explanations.
const LINE_CHARS_MAX: usize = 88;
/// Width of the column of names.
const NAME_CHARS: usize = 14;

/// `millpond doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Directories of models whose file systems are checked too
    #[arg(value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// ONNX Runtime's shared library [default: found in a virtual environment, beside the program
    /// or in the system]
    #[arg(long, value_name = "PATH")]
    onnxruntime: Option<PathBuf>,
    /// The LibTorch shim, or its directory [default: found in a virtual environment or beside the
    /// program]
    #[arg(long, value_name = "PATH")]
    libtorch: Option<PathBuf>,
    /// TensorFlow's library, or the directory of its Python package [default: found in a virtual
    /// environment, beside the program or in the system]
    #[arg(long, value_name = "PATH")]
    tensorflow: Option<PathBuf>,
    /// Directory of converted models [default: the user's cache directory]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckVerdict {
    Ok,
    /// The machine can serve, but could serve better.
    Warn,
    /// The machine cannot serve.
    Fail,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// The subject.
    pub(crate) name: &'static str,
    pub(crate) verdict: CheckVerdict,
    /// The finding in a few words.
    pub(crate) found: String,
    /// Its meaning, and the remedy if one is needed.
    pub(crate) meaning: String,
}

impl CheckVerdict {
    fn word(self) -> &'static str {
        match self {
            CheckVerdict::Ok => "ok",
            CheckVerdict::Warn => "warn",
            CheckVerdict::Fail => "fail",
        }
    }

    /// Returns `Ok` if `holds`, else `Warn`.
    pub(crate) fn warn_unless(holds: bool) -> CheckVerdict {
        if holds { CheckVerdict::Ok } else { CheckVerdict::Warn }
    }
}

impl Check {
    pub(crate) fn new(
        name: &'static str,
        verdict: CheckVerdict,
        found: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Check {
        Check { name, verdict, found: found.into(), meaning: meaning.into() }
    }

    pub(crate) fn ok(
        name: &'static str,
        found: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Check {
        Check::new(name, CheckVerdict::Ok, found, meaning)
    }

    pub(crate) fn warn(
        name: &'static str,
        found: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Check {
        Check::new(name, CheckVerdict::Warn, found, meaning)
    }

    pub(crate) fn fail(
        name: &'static str,
        found: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Check {
        Check::new(name, CheckVerdict::Fail, found, meaning)
    }
}

/// Runs all checks and prints the findings.
///
/// # Errors
/// Returns a silent error with [`ExitStatus::Wrong`] if a finding makes serving impossible.
pub(crate) fn run(args: &DoctorArgs) -> CommandResult {
    let mut checks = processor::checks();
    checks.extend(memory::checks());
    checks.extend(storage::checks(&directories(args)));
    checks.push(library::check(args.onnxruntime.clone()));
    checks.push(library::torch(args.libtorch.clone()));
    checks.push(library::tensorflow(args.tensorflow.clone()));
    checks.push(graphics::check());
    checks.extend(system::checks());
    checks.push(access::check());
    if args.json {
        print(&models::pretty(&json(&checks)))?;
    } else {
        print(&text(&checks))?;
    }
    let impossible = checks.iter().any(|check| check.verdict == CheckVerdict::Fail);
    if impossible { Err(CommandError::silent(ExitStatus::Wrong)) } else { Ok(()) }
}

/// Returns the role and path of each directory, without duplicates.
fn directories(args: &DoctorArgs) -> Vec<(&'static str, PathBuf)> {
    let cache = args.cache_dir.clone().unwrap_or_else(environment::cache_dir);
    let mut directories: Vec<(&str, PathBuf)> =
        args.dirs.iter().map(|dir| ("model directory", dir.clone())).collect();
    if directories.is_empty() {
        directories.push((
            "current directory",
            std::env::current_dir().unwrap_or_else(|_| PathBuf::from(".")),
        ));
    }
    directories.push(("cache directory", cache));
    directories
}

fn json(checks: &[Check]) -> serde_json::Value {
    let checks: Vec<_> = checks
        .iter()
        .map(|check| {
            json!({
                "name": check.name,
                "verdict": check.verdict.word(),
                "found": check.found,
                "meaning": check.meaning,
            })
        })
        .collect();
    json!({ "version": env!("CARGO_PKG_VERSION"), "checks": checks })
}

fn text(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        text.push_str(&format!(
            "{:4}  {:NAME_CHARS$}  {}\n",
            check.verdict.word(),
            check.name,
            check.found
        ));
        for line in wrap(&check.meaning, LINE_CHARS_MAX) {
            text.push_str(&format!("{:width$}{line}\n", "", width = 4 + 2 + NAME_CHARS + 2));
        }
    }
    let count =
        |verdict: CheckVerdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let (warn, fail) = (count(CheckVerdict::Warn), count(CheckVerdict::Fail));
    text.push_str(&match (warn, fail) {
        (0, 0) => "\nEverything is as it should be.\n".to_owned(),
        (warn, 0) => {
            format!("\nThis machine can serve; {warn} of {} could be better.\n", checks.len())
        }
        (_, fail) => {
            format!("\nThis machine cannot serve yet: {fail} of {} failed.\n", checks.len())
        }
    });
    text
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Reads a small file of /proc or /sys, trimmed; `None` if it cannot be read.
fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_for_people() {
        let checks =
            [Check::ok("cores", "8", "Enough."), Check::warn("clock", "hpet", "Slow to read.")];
        let text = text(&checks);
        assert!(
            text.starts_with("ok    cores           8\n                      Enough.\n"),
            "{text}"
        );
        assert!(text.ends_with("\nThis machine can serve; 1 of 2 could be better.\n"), "{text}");
    }

    #[test]
    fn long_sentences_are_broken_between_words() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
    }
}
