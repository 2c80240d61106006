//! Kills of the program that backs up or restores.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use backup::block_on;
use base::{Error, Result};
use os::Rate;
use serde::Serialize;

use super::collection::COLLECTION;
use super::{BackupBenchArgs, BackupExtent, RunStore, collection};
use loadgen::BenchEnv;
use loadgen::process::{end_with_us, let_go};
use loadgen::random::RandomSequence;
use loadgen::report::StepProgress;

/// Number of points of the collection of this part.
const ROWS: u64 = 20_000;
/// Shortest and longest life of the program after its start, in milliseconds.
const LIFE_MS: std::ops::Range<f64> = 200.0..2500.0;

/// Outcome of all kills.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct KillFigures {
    /// Number of kills during backups and during restores.
    pub(super) kills: u32,
    /// Number of kills after which all listed backups were whole, and one could be restored.
    pub(super) usable: u32,
    /// Descriptions of the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) problems: Vec<String>,
}

/// Kills the program as often as the arguments say.
pub(super) fn run(
    args: &BackupBenchArgs,
    env: &BenchEnv,
    directory: &Path,
    progress: &StepProgress,
) -> Result<KillFigures> {
    let directory = directory.join("kills");
    let args = BackupBenchArgs { rows: ROWS, ..args.clone() };
    let mut figures = KillFigures::default();
    let mut random = RandomSequence::new(args.seed);
    {
        let registry = collection::open(&directory.join("collections"))?;
        let named = collection::fill(&registry, &args, ROWS)?;
        named.collection().flush()?;
        RunStore::open(&directory.join("store"), Rate::unlimited())?
            .back_up(&named, BackupExtent::Missing)?;
    }
    for kill in 0..args.kills {
        let life = LIFE_MS.start + (LIFE_MS.end - LIFE_MS.start) * random.unit();
        // A failure is a finding of this kill. It must not discard the figures before it.
        let outcome = live_and_die(&args, env, &directory, kill % 2 == 1, life);
        figures.kills += 1;
        match outcome.and_then(|()| check(&directory)) {
            Ok(()) => figures.usable += 1,
            Err(error) => figures.problems.push(format!("kill {kill}: {error}")),
        }
        progress.step();
    }
    Ok(figures)
}

/// Starts a process that backs up or restores, and kills it after `life_ms` milliseconds.
fn live_and_die(
    args: &BackupBenchArgs,
    env: &BenchEnv,
    directory: &Path,
    restores: bool,
    life_ms: f64,
) -> Result<()> {
    let mut command = Command::new(&env.millpond);
    command.args(["bench", "backup", "--rows", &args.rows.to_string()]);
    command.args(["--dims", &args.dims.to_string(), "--seed", &args.seed.to_string()]);
    // It ends with its standard input, if this process is killed.
    command.arg("--child").arg(directory).stdin(Stdio::piped()).stdout(Stdio::null());
    if restores {
        command.arg("--restores");
    }
    let failed = |error: std::io::Error| Error::internal("the killed program").caused_by(error);
    let mut child = command.spawn().map_err(failed)?;
    end_with_us(child.id());
    std::thread::sleep(Duration::from_secs_f64(life_ms / 1e3));
    let ended = child.try_wait().map_err(failed)?;
    // SIGKILL.
    child.kill().map_err(failed)?;
    child.wait().map_err(failed)?;
    let_go(child.id());
    match ended {
        None => Ok(()),
        Some(status) => {
            Err(Error::internal(format!("the program ended on its own, with {status}")))
        }
    }
}

/// Checks that the collection is whole, that all listed backups are, and that the newest one can be
/// restored.
fn check(directory: &Path) -> Result<()> {
    let registry = collection::open(&directory.join("collections"))?;
    let store = RunStore::open(&directory.join("store"), Rate::unlimited())?;
    let named = registry.get(COLLECTION)?;
    let whole = |points: u64| match points {
        ROWS => Ok(()),
        points => Err(Error::data_loss(format!("there are {points} points and not {ROWS}"))),
    };
    whole(named.count(None)?.count)?;
    let verified = block_on(backup::verify(&store.context(), COLLECTION, None))?;
    if let Some(problem) = verified.problems.first() {
        return Err(Error::data_loss(problem.problem.clone()));
    }
    store.restore_as(&registry, "checked")?;
    let copy = registry.get("checked")?;
    whole(copy.count(None)?.count)?;
    drop(copy);
    registry.remove("checked").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare::tests::env;

    #[test]
    fn a_program_that_ends_on_its_own_is_a_problem_of_its_kill() {
        let folder = tempfile::tempdir().unwrap();
        let env = BenchEnv { millpond: "/bin/true".into(), ..env(folder.path()) };
        let args = crate::arguments::parse(["--dims", "2", "--kills", "1"]).unwrap();
        let figures = run(&args, &env, folder.path(), &StepProgress::new(1)).unwrap();
        assert_eq!((figures.kills, figures.usable), (1, 0));
        assert!(figures.problems[0].contains("ended on its own"), "{:?}", figures.problems);
    }
}
