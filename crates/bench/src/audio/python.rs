//! The same model and recording through its Python package, with the same number of threads and
//! cores.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::{Error, Result};
use serde::Deserialize;

use super::child::on_cores;
use crate::python::PythonScript;
use loadgen::BenchEnv;

/// Script that runs Python with the libraries of the torch wheel, if the checkout has it.
const WRAPPER: &str = "scripts/torch_python.sh";
/// Script that runs the package.
const SCRIPT: &str = "scripts/audio_reference.py";
/// Python of the environment that has the packages.
const PYTHON: &str = ".venv-audio/bin/python";
const REMEDY: &str = "run `make recognisers`, or give --python PATH";

/// Paths of the reference.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    script: PythonScript,
    wrapper: Option<PathBuf>,
}

/// The script's output: one line of JSON.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PythonRun {
    /// Seconds of work, without imports and loading.
    pub(super) seconds: f64,
    /// Start and end of each label in seconds.
    pub(super) segments: Vec<(f64, f64)>,
}

impl Reference {
    /// Finds Python and the script.
    ///
    /// # Errors
    /// `NotFound` with the remedy.
    pub(super) fn find(env: &BenchEnv, python: Option<&Path>) -> Result<Reference> {
        let script = PythonScript::find(env, SCRIPT, python, PYTHON, REMEDY)?;
        Ok(Reference { script, wrapper: env.in_checkout(WRAPPER) })
    }

    /// Runs the package on `threads` threads and as many cores.
    ///
    /// # Errors
    /// Returns an error if it fails or its output is not understood.
    pub(super) fn run(
        &self,
        recogniser: &str,
        recording: &Path,
        threads: usize,
    ) -> Result<PythonRun> {
        let mut command = match &self.wrapper {
            Some(wrapper) => {
                let mut command = Command::new(wrapper);
                command.arg(&self.script.python).arg(&self.script.script);
                command
            }
            None => self.script.command(),
        };
        command
            .args(["--recogniser", recogniser, "--threads", &threads.to_string()])
            .arg(recording)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let start = || command.spawn().map_err(|e| Error::io(&self.script.script, &e));
        parse(&self.script.output(on_cores(threads, start)?)?)
    }
}

/// Parses the last line that is a result. Packages may print before it.
fn parse(output: &str) -> Result<PythonRun> {
    output
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())
        .ok_or_else(|| Error::internal("the reference printed no answer"))
}

type LabelEnd = fn(&(f64, f64)) -> f64;

/// Returns the largest distance of a start or an end in one list from the nearest one in the other,
/// in milliseconds. Returns `None` if only one list has labels.
pub(super) fn differ_ms(ours: &[(f64, f64)], theirs: &[(f64, f64)]) -> Option<f64> {
    if ours.is_empty() && theirs.is_empty() {
        return Some(0.0);
    }
    let one_way = |from: &[(f64, f64)], to: &[(f64, f64)], of: LabelEnd| {
        let to: Vec<f64> = to.iter().map(of).collect();
        let apart = |place: f64| to.iter().map(|other| (place - other).abs()).reduce(f64::min);
        from.iter().map(of).map(apart).try_fold(0.0, |most: f64, apart| Some(most.max(apart?)))
    };
    let ways = [(ours, theirs), (theirs, ours)];
    let kinds: [LabelEnd; 2] = [|label| label.0, |label| label.1];
    let all = ways.into_iter().flat_map(|(from, to)| kinds.map(|of| one_way(from, to, of)));
    all.into_iter()
        .try_fold(0.0, |most: f64, apart| Some(most.max(apart?)))
        .map(|seconds| seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_may_follow_other_output() {
        let output = "loading\n{\"seconds\": 1.5, \"segments\": [[0, 1.25]]}\n\n";
        let answer = parse(output).unwrap();
        assert_eq!((answer.seconds, answer.segments), (1.5, vec![(0.0, 1.25)]));
        assert!(parse("nothing").is_err());
    }

    #[test]
    fn differences_are_of_the_farthest_end() {
        let close = |value: Option<f64>, wanted: f64| {
            assert!((value.unwrap() - wanted).abs() < 1e-6, "{value:?}")
        };
        close(differ_ms(&[(0.0, 1.0), (2.0, 3.0)], &[(0.01, 1.0), (2.0, 2.968)]), 32.0);
        close(differ_ms(&[(0.0, 1.0)], &[(0.0, 1.0), (5.0, 6.0)]), 5000.0);
        close(differ_ms(&[], &[]), 0.0);
        assert_eq!(differ_ms(&[], &[(0.0, 1.0)]), None);
    }
}
