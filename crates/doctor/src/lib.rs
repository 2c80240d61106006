//! Checks a machine for serving, and explains each finding with its remedy.
//!
//! Reading (files of /proc and /sys, a real huge page, a real direct read) is separate from
//! judging. Judging takes plain values, so every verdict is tested without the machine in question.
//!
//! # Modules
//! * Machine: `system`, `processor`, `memory`, `storage`, `graphics`.
//! * Serving: `library` checks the engines' libraries, `access` the access to a server.

mod access;
mod graphics;
mod library;
mod memory;
mod processor;
mod storage;
mod system;

use std::path::{Path, PathBuf};

pub use access::AccessSettings;
use engine::LibrarySearch;
use gpu::GpuOptions;
use serde_json::json;
pub use system::CONNECTIONS_MAX;

/// Maximum number of characters of a line of an explanation.
const LINE_CHARS_MAX: usize = 88;
/// Width of the column of names.
const NAME_CHARS: usize = 14;

/// Places and settings of the machine to check.
pub struct DoctorInputs {
    /// Role and path of each directory whose file system is checked.
    pub directories: Vec<(&'static str, PathBuf)>,
    /// Directory of collections; `None` if there is none.
    pub collections: Option<PathBuf>,
    /// Places of ONNX Runtime.
    pub onnxruntime: LibrarySearch,
    /// Places of the LibTorch shim.
    pub libtorch: LibrarySearch,
    /// Places of TensorFlow.
    pub tensorflow: LibrarySearch,
    /// The GPU to open.
    pub gpu: GpuOptions,
    /// Access to a server with the settings in force.
    pub access: AccessSettings,
    /// Returns the connections of each listener for a limit of open files.
    pub connections: fn(u64) -> usize,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckVerdict {
    /// As it should be.
    Ok,
    /// The machine can serve, but could serve better.
    Warn,
    /// The machine cannot serve.
    Fail,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The subject.
    pub name: &'static str,
    /// Severity of the finding.
    pub verdict: CheckVerdict,
    /// The finding in a few words.
    pub found: String,
    /// Meaning of the finding, and the remedy if one is needed.
    pub meaning: String,
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

/// Runs all checks.
pub fn examine(inputs: &DoctorInputs) -> Vec<Check> {
    let mut checks = processor::checks();
    checks.extend(memory::checks());
    checks.extend(storage::checks(&inputs.directories, inputs.collections.as_deref()));
    checks.push(library::check(&inputs.onnxruntime));
    checks.push(library::torch(&inputs.libtorch));
    checks.push(library::tensorflow(&inputs.tensorflow));
    checks.push(graphics::check(&inputs.gpu));
    checks.extend(system::checks(inputs.connections));
    checks.push(access::check(&inputs.access));
    checks
}

/// Returns true if a finding makes serving impossible.
pub fn is_impossible(checks: &[Check]) -> bool {
    checks.iter().any(|check| check.verdict == CheckVerdict::Fail)
}

/// Returns the findings as JSON.
pub fn json(checks: &[Check]) -> serde_json::Value {
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

/// Returns the findings for people.
pub fn text(checks: &[Check]) -> String {
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
    let warn = count(CheckVerdict::Warn);
    let fail = count(CheckVerdict::Fail);
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

/// Breaks a text into lines of at most `width` characters, except for longer words.
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
    fn the_text_has_all_checks_and_a_summary() {
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
