//! Starts the writer, kills it, and checks the collection.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use base::{Error, Result};
use search::points::{FetchedPoint, PointId};
use search::registry::NamedCollection;

use super::child::{READY, REPORT_BYTES};
use super::content::{Script, point};
use super::{COLLECTION, CrashArgs, CrashMedium, OPEN_WAIT_MAX};
use loadgen::BenchEnv;
use loadgen::process::{end_with_us, let_go};
use loadgen::random::RandomSequence;
use loadgen::report::StepProgress;
use loadgen::run_folder::RunFolder;

/// One in this many lives ends early, to be killed while the collection is being opened.
const EARLY_EVERY: u64 = 8;
/// Part of its time after which a life is ended early.
const EARLY_SHARE: u32 = 16;
/// Maximum number of wrong points that are printed.
const TOLD_MAX: u64 = 20;

#[derive(Clone, Debug, Default)]
pub(super) struct CrashFigures {
    pub(super) kills: u32,
    /// Number of kills before the collection was open.
    pub(super) early: u32,
    /// Number of kills that left a partly written file, because a flush or a merge was in progress.
    pub(super) interrupted: u32,
    pub(super) acknowledged: u64,
    /// Number of changes in flight when the writer was killed.
    pub(super) in_flight: u64,
    /// Number of changes in flight that were found.
    pub(super) in_flight_found: u64,
    /// Number of points compared with the written content.
    pub(super) checked: u64,
    pub(super) lost: u64,
    pub(super) corrupt: u64,
    /// Number of segments that were begun.
    pub(super) files: u64,
    /// Longest time until a collection was open for changes.
    pub(super) open_ms_max: f64,
}

/// Expected content, and the progress of each thread.
struct Expected {
    script: Script,
    /// Version by id, or `None` for no point.
    points: BTreeMap<u64, Option<u64>>,
    next: Vec<u64>,
}

/// Kills the writer as often as the arguments say.
pub(super) fn run(args: &CrashArgs, env: &BenchEnv) -> Result<CrashFigures> {
    let directory = env.cache_dir.join(format!("crash-{}", std::process::id()));
    let mut folder = Some(RunFolder::new(directory.clone()));
    let script = Script { seed: args.seed, writers: args.writers, ids: args.ids };
    let mut expected =
        Expected { script, points: BTreeMap::new(), next: vec![0; args.writers as usize] };
    let mut random = RandomSequence::new(args.seed);
    let mut figures = CrashFigures::default();
    let progress = StepProgress::new(u64::from(args.kills));
    for kill in 0..args.kills {
        let life = Duration::from_secs_f64(args.life_ms as f64 * random.unit() / 1e3);
        let is_early = random.bits().is_multiple_of(EARLY_EVERY);
        let plan = LifePlan { time: life, is_early, open_wait: OPEN_WAIT_MAX };
        let reports = live_and_die(args, env, &directory, &expected.next, &plan)?;
        figures.kills += 1;
        figures.early += u32::from(reports.is_empty());
        let acknowledged = expected.acknowledge(&reports)?;
        figures.acknowledged += acknowledged;
        let before = segment_files(&directory);
        let start = Instant::now();
        let collection = args.open(&directory)?;
        figures.open_ms_max = figures.open_ms_max.max(start.elapsed().as_secs_f64() * 1e3);
        let after = segment_files(&directory);
        figures.interrupted += u32::from(before.iter().any(|name| !after.contains(name)));
        expected.check(&collection.named, &mut figures, &progress);
        if figures.lost + figures.corrupt > 0
            && let Some(folder) = folder.take()
        {
            // From now on, neither an error nor a signal removes them.
            progress.line(&format!("the files stay in {}", directory.display()));
            folder.keep();
        }
        figures.files =
            figures.files.max(before.iter().filter_map(|name| number_of(name)).max().unwrap_or(0));
        progress.step();
        progress.say(format!(
            "{} acknowledged, {} lost, {} corrupt",
            figures.acknowledged, figures.lost, figures.corrupt
        ));
        if (kill + 1).is_multiple_of(50) {
            progress.line(&format!("{} kills: {} acknowledged", kill + 1, figures.acknowledged));
        }
    }
    Ok(figures)
}

/// One life of the writer.
struct LifePlan {
    /// Time from the moment when the collection is open.
    time: Duration,
    /// True if it is killed while the collection is being opened.
    is_early: bool,
    /// Maximum time for opening the collection.
    open_wait: Duration,
}

/// Returns the reports of one life of the writer, which is killed at its end.
///
/// # Errors
/// `Internal` if the writer ends on its own; `DeadlineExceeded` if it does not open the collection.
/// A kill of such a writer would check nothing.
fn live_and_die(
    args: &CrashArgs,
    env: &BenchEnv,
    directory: &Path,
    from: &[u64],
    life: &LifePlan,
) -> Result<Vec<u8>> {
    let medium = match args.medium {
        CrashMedium::Nvme => "nvme",
        CrashMedium::Dram => "dram",
        CrashMedium::Mmap => "mmap",
        CrashMedium::Pmem => "pmem",
    };
    let from: Vec<String> = from.iter().map(u64::to_string).collect();
    let mut command = Command::new(&env.millpond);
    command.args(["bench", "crash", "--medium", medium, "--from", &from.join(",")]);
    for (name, value) in [("--seed", args.seed), ("--writers", args.writers), ("--ids", args.ids)] {
        command.arg(name).arg(value.to_string());
    }
    command.arg("--child").arg(directory).stdin(Stdio::null()).stdout(Stdio::piped());
    let failed = |error: std::io::Error| Error::internal("the writer").caused_by(error);
    let mut child: Child = command.spawn().map_err(failed)?;
    end_with_us(child.id());
    let Some(mut pipe) = child.stdout.take() else {
        return Err(Error::internal("the writer has no output"));
    };
    let (sender, opened) = std::sync::mpsc::channel();
    let listener = std::thread::spawn(move || -> std::io::Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut some = [0; 4096];
        loop {
            match pipe.read(&mut some)? {
                0 => return Ok(all),
                count => all.extend_from_slice(&some[..count]),
            }
            // The receiver may have stopped waiting.
            let _ = sender.send(());
        }
    });
    // A life counts from when the collection is open; a few end while it is being opened.
    let mut in_time = true;
    if life.is_early {
        std::thread::sleep(life.time / EARLY_SHARE);
    } else {
        let report = opened.recv_timeout(life.open_wait);
        in_time = report != Err(RecvTimeoutError::Timeout);
        std::thread::sleep(if in_time { life.time } else { Duration::ZERO });
    }
    let ended = child.try_wait().map_err(failed)?;
    // SIGKILL.
    child.kill().map_err(failed)?;
    child.wait().map_err(failed)?;
    let_go(child.id());
    if let Some(status) = ended {
        return Err(Error::internal(format!(
            "the writer ended on its own, with {status}; what it said is above"
        )));
    }
    if !in_time {
        return Err(Error::deadline(format!(
            "the writer has not opened the collection within {:?}",
            life.open_wait
        )));
    }
    let heard =
        listener.join().map_err(|_| Error::internal("listening to the writer ended in a panic"))?;
    heard.map_err(failed)
}

impl Expected {
    /// Applies the reports to the expected content. Returns the number of changes.
    fn acknowledge(&mut self, reports: &[u8]) -> Result<u64> {
        let mut count = 0;
        // The last report may be cut off; its change counts as in flight.
        for report in reports.chunks_exact(REPORT_BYTES) {
            let (writer, number) = report.split_at(1);
            let number = number.try_into().map_or(u64::MAX, u64::from_le_bytes);
            if writer == [READY] {
                continue;
            }
            let next = self.next.get_mut(usize::from(writer[0]));
            let Some(next) = next.filter(|next| **next == number) else {
                return Err(Error::internal(format!(
                    "thread {} reported change {number} out of turn",
                    writer[0]
                )));
            };
            *next += 1;
            count += 1;
            let change = self.script.change(writer[0].into(), number);
            self.points.insert(change.id, change.version);
        }
        Ok(count)
    }

    /// Compares every point, and determines if the change in flight of each thread was applied.
    fn check(
        &mut self,
        named: &NamedCollection,
        figures: &mut CrashFigures,
        progress: &StepProgress,
    ) {
        for (writer, next) in (0..).zip(&mut self.next) {
            let change = self.script.change(writer, *next);
            // The change may not have begun. Then it is skipped, which changes nothing.
            *next += 1;
            figures.in_flight += 1;
            let wanted = change.version.map(|version| point(self.script.seed, change.id, version));
            let before = self.points.get(&change.id).copied().flatten();
            if before != change.version
                && named.get(&PointId::Number(change.id)).is_ok_and(|found| found == wanted)
            {
                figures.in_flight_found += 1;
                self.points.insert(change.id, change.version);
            }
        }
        let add_problem = |figures: &CrashFigures, what: String| {
            if figures.lost + figures.corrupt <= TOLD_MAX {
                progress.line(&what);
            }
        };
        for (&id, &version) in &self.points {
            figures.checked += 1;
            let wanted = version.map(|version| point(self.script.seed, id, version));
            match named.get(&PointId::Number(id)) {
                Ok(found) if found == wanted => {}
                Ok(found) => {
                    let intact =
                        found.as_ref().is_none_or(|found| is_some_version(self.script, found));
                    if intact {
                        figures.lost += 1
                    } else {
                        figures.corrupt += 1
                    }
                    add_problem(
                        figures,
                        format!("point {id}: version {version:?} is not what is there"),
                    );
                }
                Err(error) => {
                    figures.corrupt += 1;
                    add_problem(figures, format!("point {id}: {error}"));
                }
            }
        }
        let collection = named.collection();
        let status = collection.status();
        let there = self.points.values().flatten().count() as u64;
        if collection.count() != there {
            figures.corrupt += 1;
            add_problem(
                figures,
                format!("{} points are counted, {there} are there", collection.count()),
            );
        }
        figures.corrupt += status.quarantined_count;
        status.quarantined.iter().for_each(|what| add_problem(figures, what.to_string()));
    }
}

/// Returns true if the point was written at some time.
fn is_some_version(script: Script, found: &FetchedPoint) -> bool {
    let version = found.payload.get("version").and_then(serde_json::Value::as_u64);
    let PointId::Number(id) = found.id else { return false };
    version.is_some_and(|version| point(script.seed, id, version) == *found)
}

/// Returns the names of the segments' files, in the only directory of points that the collection
/// has.
fn segment_files(directory: &Path) -> Vec<String> {
    let list = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let points = list(&directory.join(COLLECTION)).filter(|entry| entry.path().is_dir());
    let files = points.flat_map(|dir| list(&dir.path()));
    let names = files.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("segment-")).collect()
}

fn number_of(name: &str) -> Option<u64> {
    name.rsplit('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;
    use crate::bare::tests::env;

    #[test]
    fn a_writer_that_never_opens_is_not_a_kill() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("millpond");
        // A shell writes the program, so that no other test's child holds it open for writing.
        let text = "printf '#!/bin/sh\\nexec sleep 600\\n' > \"$0\" && chmod +x \"$0\"";
        let made = Command::new("/bin/sh").args(["-c", text]).arg(&program).status().unwrap();
        assert!(made.success());
        let env = BenchEnv { millpond: program, ..env(folder.path()) };
        let args = crate::arguments::parse([]).unwrap();
        let life = |is_early| LifePlan {
            time: Duration::from_millis(1),
            is_early,
            open_wait: Duration::from_millis(100),
        };
        let failed = live_and_die(&args, &env, folder.path(), &[0; 3], &life(false)).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::DeadlineExceeded, "{failed}");
        assert!(live_and_die(&args, &env, folder.path(), &[0; 3], &life(true)).unwrap().is_empty());
    }
}
