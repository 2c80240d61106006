//! qdrant-edge with its payload index: a script in Python, in a process of its own.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use base::{Error, Result};
use loadgen::BenchEnv;
use loadgen::report::StepProgress;
use serde::Deserialize;

use super::FilterArgs;
use super::data::{FilterCase, FilterData};
use crate::peer_process::{PeerEnd, run_peer, show};
use crate::python::PythonScript;
use crate::report::read_json;

const SCRIPT: &str = "bench/peers/filters.py";
const USUAL_PYTHON: &str = ".cache/peers/bin/python";
const REMEDY: &str =
    "install qdrant-edge with `make peers`, or name a Python that has it with --peers-python";

/// Figures of the other engine, as its script prints them.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PeerFigures {
    pub(super) version: String,
    pub(super) build_s: f64,
    /// Figures of each case, by its name. `unfiltered` is one of them.
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

/// Rows and queries of a run.
pub(super) struct FilterWork<'a> {
    pub(super) data: &'a FilterData,
    pub(super) cases: &'a [FilterCase],
    /// Nearest rows of the first case's queries without a filter.
    pub(super) unfiltered: &'a [Vec<u32>],
}

/// Measures the other engine on the same rows and queries. Its files are written to `folder`.
pub(super) fn run(
    args: &FilterArgs,
    env: &BenchEnv,
    work: &FilterWork<'_>,
    folder: &Path,
    progress: &StepProgress,
) -> PeerRun {
    let measured =
        PythonScript::find(env, SCRIPT, args.peers_python.as_deref(), USUAL_PYTHON, REMEDY)
            .and_then(|script| measure(&script, args, work, folder, progress));
    match measured {
        Ok(figures) => PeerRun::Done(figures),
        Err(error) => PeerRun::Absent(error.message().to_owned()),
    }
}

/// Runs the script of the other engine, and reads its figures.
fn measure(
    script: &PythonScript,
    args: &FilterArgs,
    work: &FilterWork<'_>,
    folder: &Path,
    progress: &StepProgress,
) -> Result<PeerFigures> {
    write_work(work, folder)?;
    let out = folder.join("figures.json");
    let mut command = script.command();
    command.arg("--data").arg(folder).arg("--json").arg(&out).arg("--end-with-parent");
    command.args(["--threads", &args.threads.to_string()]);
    command.args(["--build-limit", &args.peers_build_limit.as_secs_f64().to_string()]);
    progress.line(&format!(
        "qdrant-edge has at most {:?} to build its index (--peers-build-limit)",
        args.peers_build_limit
    ));
    let say = |line: &str| show(progress, "qdrant-edge", line);
    run_peer(&mut command, PeerEnd::Kill, args.peers_build_limit, &say)
        .map_err(|why| Error::internal(format!("{}: {why}", script.script.display())))?;
    read_json(&out)
}

/// Writes the files that the script reads.
fn write_work(work: &FilterWork<'_>, folder: &Path) -> Result<()> {
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
    let data = work.data;
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    write("vectors", &mut data.base.chunks(data.dims).map(bytes))?;
    write("tenants", &mut data.tenants.iter().map(|value| value.to_le_bytes().to_vec()))?;
    write("clusters", &mut data.clusters.iter().map(|value| value.to_le_bytes().to_vec()))?;
    write("scores", &mut data.scores.iter().map(|value| value.to_le_bytes().to_vec()))?;
    let json = |value: serde_json::Result<Vec<u8>>| {
        value.map_err(|e| Error::internal("queries of qdrant-edge").caused_by(e))
    };
    let cases = json(serde_json::to_vec(work.cases))?;
    write("cases.json", &mut std::iter::once(cases))?;
    let unfiltered = json(serde_json::to_vec(work.unfiltered))?;
    write("unfiltered.json", &mut std::iter::once(unfiltered))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare::tests::env;

    /// A stand-in for the script, run by /bin/sh. It writes its arguments as its version, or fails
    /// as a script whose timer ended.
    const SCRIPT_TEXT: &str = r#"
        case "$*" in *"--threads 7"*) kill -ALRM $$;; esac
        [ -s "$2/unfiltered.json" ] && [ -s "$2/cases.json" ] || exit 1
        echo "index built" >&2
        echo "{\"version\": \"$5 $6 $7 $8 $9\", \"build_s\": 2, \"cases\": {}}" > "$4"
        "#;

    fn outcome(threads: &str) -> PeerRun {
        let checkout = tempfile::tempdir().unwrap();
        let script = checkout.path().join(SCRIPT);
        std::fs::create_dir_all(script.parent().unwrap()).unwrap();
        std::fs::write(&script, SCRIPT_TEXT).unwrap();
        let millpond = checkout.path().join("target/release/millpond");
        let env = BenchEnv { millpond, ..env(checkout.path()) };
        let words = ["--peers-python", "/bin/sh", "--peers-build-limit", "40s"];
        let words = words.into_iter().chain(["--threads", threads]);
        let args = crate::arguments::parse(words).unwrap();
        let data = FilterData::generate(1000, 4, 10);
        let cases = data.cases(2);
        let unfiltered = data.unfiltered(&cases[0]);
        let work = FilterWork { data: &data, cases: &cases, unfiltered: &unfiltered };
        let progress = StepProgress::new(1);
        run(&args, &env, &work, &checkout.path().join("peer"), &progress)
    }

    #[test]
    fn an_index_that_takes_too_long_is_a_reason() {
        let PeerRun::Done(figures) = outcome("3") else { panic!("it was not measured") };
        assert_eq!(figures.version, "--end-with-parent --threads 3 --build-limit 40");
        let PeerRun::Absent(why) = outcome("7") else { panic!("it was measured") };
        assert!(why.ends_with("was not built within 40s (--peers-build-limit)"), "{why}");
    }
}
