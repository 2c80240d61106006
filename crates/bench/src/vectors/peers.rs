//! The other engines: a script in Python, one process for each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base::{Error, Result};
use loadgen::report::StepProgress;
use loadgen::run_folder::RunFolder;
use serde::de::DeserializeOwned;

use super::VectorsArgs;
use super::curve::Curve;
use crate::peer_process::{PeerEnd, run_peer, show};
use crate::report::read_json;

/// Default path of a Python with the engines.
const USUAL_PYTHON: &str = ".cache/peers/bin/python";
/// Default script for engines whose vectors are in memory.
const USUAL_SCRIPT: &str = "bench/peers/vectors.py";
/// Default script for engines whose index is on disk.
const USUAL_DISK_SCRIPT: &str = "bench/peers/disk_vectors.py";

/// Run of the script for one engine.
pub(super) struct PeerScriptRun<'a> {
    pub(super) engine: &'a str,
    pub(super) end: PeerEnd,
    /// Maximum time in which it builds an index.
    pub(super) build_limit: Duration,
    /// Gets the lines of its standard error.
    pub(super) say: &'a dyn Fn(&str),
}

/// The available engines, and the script that runs them.
#[derive(Debug)]
pub(super) struct Peers {
    python: PathBuf,
    script: PathBuf,
    pub(super) engines: Vec<String>,
    /// Messages of engines that failed.
    pub(super) failed: BTreeMap<String, String>,
    /// Reason why there are none.
    pub(super) absent: Option<String>,
}

impl Peers {
    /// Finds the engines that can run.
    ///
    /// # Errors
    /// Returns an error if a named Python does not work, or a named engine is not installed.
    pub(super) fn find(args: &VectorsArgs) -> Result<Peers> {
        let python = args.peers_python.clone().unwrap_or_else(|| USUAL_PYTHON.into());
        let usual_script = if args.memory.is_some() { USUAL_DISK_SCRIPT } else { USUAL_SCRIPT };
        let mut peers = Peers {
            python,
            script: args.peers_script.clone().unwrap_or_else(|| usual_script.into()),
            engines: Vec::new(),
            failed: BTreeMap::new(),
            absent: None,
        };
        if args.no_peers {
            return peers.without("--no-peers");
        }
        if args.data.is_none() && args.memory.is_none() {
            if let Some(engine) = args.engine.first() {
                return Err(Error::invalid(format!(
                    "--engine {engine} needs --data or --memory: other engines do not get the generated vectors"
                )));
            }
            return peers.without("they are run with --data or --memory only");
        }
        if args.peers_python.is_none() && !peers.python.exists() {
            return peers
                .without(&format!("there is no {USUAL_PYTHON} (--peers-python names another)"));
        }
        if !peers.script.exists() {
            let why = format!("there is no {} (--peers-script)", peers.script.display());
            return peers.without(&why);
        }
        let listed = Command::new(&peers.python).arg(&peers.script).arg("--list").output();
        let listed = listed.map_err(|e| Error::io(&peers.python, &e))?;
        if !listed.status.success() {
            return Err(peers.failure("--list", &listed.stderr));
        }
        let listed: Vec<String> =
            String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect();
        if let Some(missing) = args.engine.iter().find(|name| !listed.contains(name)) {
            return Err(Error::not_found(format!(
                "no engine {missing}; installed: {}",
                listed.join(", ")
            )));
        }
        peers.engines = if args.engine.is_empty() { listed } else { args.engine.clone() };
        Ok(peers)
    }

    fn without(mut self, why: &str) -> Result<Peers> {
        self.absent = Some(format!("no other engines: {why}"));
        Ok(self)
    }

    /// Returns the error of the script. `what` is the problem, and the last line of `output` is the
    /// reason.
    fn failure(&self, what: &str, output: &[u8]) -> Error {
        let output = String::from_utf8_lossy(output);
        let last = output
            .lines()
            .rfind(|line| !line.trim().is_empty())
            .unwrap_or("it said nothing")
            .to_owned();
        Error::internal(format!("{} {what}: {last}", self.script.display()))
    }

    /// Builds one engine's indexes in memory and measures them. Passes on the script's progress.
    pub(super) fn run(
        &self,
        engine: &str,
        args: &VectorsArgs,
        progress: &StepProgress,
    ) -> Result<Curve> {
        let folder = args.data.as_deref().unwrap_or(Path::new("."));
        let run = PeerScriptRun {
            engine,
            end: PeerEnd::Kill,
            build_limit: args.peers_build_limit,
            say: &|line| show(progress, engine, line),
        };
        self.measure(&run, |command| {
            command.arg("--data").arg(folder);
            command.args(["--core", &args.core.to_string()]);
            command.args(["--seconds", &args.seconds.to_string()]);
            command.args(["--threads", &args.threads.to_string()]);
        })
    }

    /// Runs the script for one engine, with the arguments that `add_arguments` adds, and reads its
    /// result. The engine's temporary files are removed at the end.
    ///
    /// # Errors
    /// Returns an error if the script cannot be run, fails, or writes another form of result.
    pub(super) fn measure<T: DeserializeOwned>(
        &self,
        run: &PeerScriptRun<'_>,
        add_arguments: impl FnOnce(&mut Command),
    ) -> Result<T> {
        let PeerScriptRun { engine, end, build_limit, say } = *run;
        let name = format!("millpond-peer-{}-{engine}", std::process::id());
        let folder = RunFolder::new(std::env::temp_dir().join(name));
        std::fs::create_dir_all(folder.path()).map_err(|e| Error::io(folder.path(), &e))?;
        let out = folder.path().join("figures.json");
        let mut command = Command::new(&self.python);
        command.arg(&self.script).arg("--engine").arg(engine).arg("--json").arg(&out);
        add_arguments(&mut command);
        command.args(["--build-limit", &build_limit.as_secs_f64().to_string()]);
        command.arg("--end-with-parent").env("TMPDIR", folder.path());
        run_peer(&mut command, end, build_limit, say)
            .map_err(|why| self.failure(engine, why.as_bytes()))?;
        read_json(&out)
    }

    /// Returns one line for people.
    pub(super) fn line(&self) -> String {
        self.absent.clone().unwrap_or_else(|| format!("beside {}", self.engines.join(", ")))
    }
}
