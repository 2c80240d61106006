//! Parts that the reports of all benchmarks share: goals, and printing, writing and judging.

use std::fmt;
use std::path::Path;

use base::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Path of the program that was built with the system's allocator, in the checkout.
pub(crate) const SYSTEM_BINARY: &str = "target/system/release/millpond";

/// Goal of a benchmark beside the measured value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Goal {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) met: bool,
    /// Conditions under which the goal is missed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) not_met_at: Vec<String>,
}

impl Goal {
    pub(crate) fn new(what: impl Into<String>, value: f64, met: bool) -> Goal {
        Goal { what: what.into(), value, met, not_met_at: Vec::new() }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.met { "met" } else { "NOT met" };
        write!(f, "{} ({:.*}: {mark})", self.what, f.precision().unwrap_or(2), self.value)?;
        self.not_met_at.iter().try_for_each(|condition| write!(f, "\n  {condition}"))
    }
}

/// Report of a benchmark. Its JSON is the form for programs.
pub(crate) trait BenchReport: Serialize {
    /// Prints the report for people.
    fn print(&self);

    /// Fails if the subject did something wrong. Slow figures are not errors.
    fn verdict(&self) -> Result<()> {
        Ok(())
    }

    /// Writes an unfinished report to `json`, so that a run that is stopped keeps its finished
    /// stages. Writes nothing to a pipe or a device, whose reader expects one report.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    fn write_unfinished(&self, json: Option<&Path>) -> Result<()> {
        let Some(path) = json else { return Ok(()) };
        let is_stream = std::fs::metadata(path).is_ok_and(|found| !found.is_file());
        if is_stream { Ok(()) } else { loadgen::report::write_json(path, self) }
    }

    /// Prints the report, writes it to `json` and returns the verdict.
    fn finish(&self, json: Option<&Path>) -> Result<()> {
        self.print();
        if let Some(path) = json {
            loadgen::report::write_json(path, self)?;
        }
        self.verdict()
    }
}

/// Reads a value from a JSON file.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not such a value.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, &e))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Error::internal(path.display().to_string()).caused_by(e))
}

/// Fails if requests failed or answers were wrong.
pub(crate) fn check_faults(failed: u64, wrong: u64) -> Result<()> {
    match failed + wrong {
        0 => Ok(()),
        _ => Err(Error::internal(format!("{failed} requests failed, {wrong} answers were wrong"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct CountReport {
        count: u32,
    }

    impl BenchReport for CountReport {
        fn print(&self) {}
    }

    #[test]
    fn an_unfinished_report_goes_to_a_file_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        CountReport { count: 1 }.write_unfinished(Some(&path)).unwrap();
        CountReport { count: 2 }.write_unfinished(Some(&path)).unwrap();
        assert_eq!(read_json::<serde_json::Value>(&path).unwrap()["count"], 2);
        // A write would be refused.
        CountReport { count: 3 }.write_unfinished(Some(folder.path())).unwrap();
        CountReport { count: 4 }.write_unfinished(None).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
