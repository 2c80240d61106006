//! Python scripts of the checkout that benchmarks run.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use base::{Error, Result};
use loadgen::BenchEnv;

/// A script and the Python that runs it.
#[derive(Clone, Debug)]
pub(crate) struct PythonScript {
    pub(crate) python: PathBuf,
    pub(crate) script: PathBuf,
}

impl PythonScript {
    /// Finds `script` of the checkout, and `given` or else `usual` as its Python.
    ///
    /// # Errors
    /// `NotFound` with `remedy`.
    pub(crate) fn find(
        env: &BenchEnv,
        script: &str,
        given: Option<&Path>,
        usual: &str,
        remedy: &str,
    ) -> Result<PythonScript> {
        let missing = |what: &str| Error::not_found(format!("no {what}: {remedy}"));
        let place = |path: &str| env.in_checkout(path).ok_or_else(|| missing(path));
        let python = match given {
            Some(python) if python.exists() => python.to_owned(),
            Some(python) => return Err(missing(&python.display().to_string())),
            None => place(usual)?,
        };
        Ok(PythonScript { python, script: place(script)? })
    }

    /// Builds a command that runs the script.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(&self.script);
        command
    }

    /// Waits for the end of a started script and returns its standard output.
    ///
    /// # Errors
    /// `Internal` with the last line of its standard error if it failed.
    pub(crate) fn output(&self, child: Child) -> Result<String> {
        let output = child.wait_with_output().map_err(|e| Error::io(&self.script, &e))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let words = String::from_utf8_lossy(&output.stderr);
        let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        Err(Error::internal(format!("{} {}: {last}", self.script.display(), output.status)))
    }
}
