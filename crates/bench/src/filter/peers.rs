//! qdrant-edge with its payload index: a script in Python, in a process of its own.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use base::{Error, Result};
use loadgen::BenchEnv;
use serde::Deserialize;

use super::FilterArgs;
use super::data::{FilterCase, FilterData};
use crate::python::PythonScript;

const SCRIPT: &str = "bench/peers/filters.py";
const USUAL_PYTHON: &str = ".cache/peers/bin/python";
const REMEDY: &str =
    "install qdrant-edge with `make peers`, or name a Python that has it with --peers-python";

/// Figures of the other engine, as its script prints them.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PeerFigures {
    pub(super) version: String,
    pub(super) build_s: f64,
    /// By case; `unfiltered` too.
    pub(super) cases: BTreeMap<String, PeerCase>,
}

/// Figures of one case.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct PeerCase {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) recall: f64,
}

/// Outcome of the run of the other engine.
pub(super) enum PeerRun {
    Done(PeerFigures),
    /// Reason why there are no figures.
    Absent(String),
}

/// Measures the other engine on the same rows and queries.
pub(super) fn run(
    args: &FilterArgs,
    env: &BenchEnv,
    data: &FilterData,
    cases: &[FilterCase],
    folder: &Path,
) -> PeerRun {
    let measured =
        PythonScript::find(env, SCRIPT, args.peers_python.as_deref(), USUAL_PYTHON, REMEDY)
            .and_then(|script| measure(&script, args, data, cases, folder));
    let _ = std::fs::remove_dir_all(folder);
    match measured {
        Ok(figures) => PeerRun::Done(figures),
        Err(error) => PeerRun::Absent(error.message().to_owned()),
    }
}

fn measure(
    script: &PythonScript,
    args: &FilterArgs,
    data: &FilterData,
    cases: &[FilterCase],
    folder: &Path,
) -> Result<PeerFigures> {
    std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, &e))?;
    let write = |name: &str, bytes: &mut dyn Iterator<Item = Vec<u8>>| {
        let path = folder.join(name);
        let file = std::fs::File::create(&path).map_err(|e| Error::io(&path, &e))?;
        let mut file = std::io::BufWriter::new(file);
        for bytes in bytes {
            file.write_all(&bytes).map_err(|e| Error::io(&path, &e))?;
        }
        file.flush().map_err(|e| Error::io(&path, &e))
    };
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    write("vectors", &mut data.base.chunks(data.dims).map(bytes))?;
    write("tenants", &mut data.tenants.iter().map(|value| value.to_le_bytes().to_vec()))?;
    write("clusters", &mut data.clusters.iter().map(|value| value.to_le_bytes().to_vec()))?;
    write("scores", &mut data.scores.iter().map(|value| value.to_le_bytes().to_vec()))?;
    let cases = serde_json::to_vec(cases).map_err(|e| Error::internal(e.to_string()))?;
    write("cases.json", &mut std::iter::once(cases))?;
    let mut command = script.command();
    command.arg("--data").arg(folder).args(["--threads", &args.threads.to_string()]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|e| Error::io(&script.python, &e))?;
    let printed = script.output(child)?;
    serde_json::from_str(&printed)
        .map_err(|e| Error::internal(script.script.display().to_string()).caused_by(e))
}
