//! `millpond bench backup`: bytes and times of backups and restores, the latency of searches
//! meanwhile, and kills of a program that backs up and restores.

mod child;
mod collection;
mod kills;
mod latency;
mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backup::{
    BackupContext, BackupExtent, BackupProgress, BackupReport, BackupStore, RestoreTarget, block_on,
};
use base::{Error, Result};
use clap::Args;
use os::{Pacer, Rate};
use search::registry::{NamedCollection, Registry};

use crate::report::BenchReport as _;
use crate::settle::flush_and_settle;
use collection::COLLECTION;
use loadgen::BenchEnv;
use loadgen::disk_space::check_space;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;
use loadgen::run_folder::RunFolder;
use report::{BackupFigures, RestoreFigures};

/// Default rate of the server, in bytes per second.
const RATE: u64 = 64 << 20;
/// Longest time for a collection and its segments to open.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(600);
/// Maximum rows.
const ROWS_MAX: u64 = 50_000_000;
/// Maximum pairs of windows.
const PAIRS_MAX: u32 = 1000;
/// Maximum searches per second.
const QUERIES_MAX: u32 = 100_000;
/// Maximum length of a window in seconds.
const WINDOW_S_MAX: u64 = 3600;
/// Maximum number of kills.
const KILLS_MAX: u32 = 100_000;
/// Bytes of disk per point: the collection, its backups and the restored copy.
const ROW_BYTES: u64 = 2048;
/// Bytes of disk per point and value.
const DIM_BYTES: u64 = 24;

/// Back a collection up, change 1 % of it, back it up again, and restore it; measure bytes, times,
/// and the latency of searches with and without a backup.
///
/// Searches come at a fixed rate, in pairs of time windows: one without a backup, and one in which
/// a backup of all files runs at the default rate. Then a program that backs up or restores a
/// smaller collection is killed at random moments. After each kill, all backups are verified and
/// one is restored.
///
/// Goals: the second backup stores less than 3 % of the bytes of the first. p99 of searches is at
/// most 1.25 times that without a backup. Every kill leaves usable backups and one whole
/// collection.
#[derive(Args, Clone, Debug)]
pub(crate) struct BackupBenchArgs {
    /// Points of the collection
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Values of an embedding
    #[arg(long, default_value_t = 128)]
    dims: usize,
    /// Searches per second
    #[arg(long, default_value_t = 100)]
    queries: u32,
    /// Pairs of windows
    #[arg(long, default_value_t = 6)]
    pairs: u32,
    /// Seconds of a window
    #[arg(long, default_value_t = 8)]
    window_s: u64,
    /// Kills, half of them during restores
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// Seed of the points and of the moments of kills
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run as the program that is killed, in this directory. Started by this program itself
    #[arg(long, hide = true, value_name = "DIR")]
    child: Option<PathBuf>,
    /// Let that program restore instead
    #[arg(long, hide = true)]
    restores: bool,
}

impl BackupBenchArgs {
    fn check(&self) -> Result<()> {
        if !(1000..=ROWS_MAX).contains(&self.rows) || !(1..=4096).contains(&self.dims) {
            return Err(Error::invalid(format!(
                "--rows must be 1000 to {ROWS_MAX}, --dims 1 to 4096"
            )));
        }
        let queries = (1..=QUERIES_MAX).contains(&self.queries);
        let window = (1..=WINDOW_S_MAX).contains(&self.window_s);
        if !queries || !window || !(1..=PAIRS_MAX).contains(&self.pairs) {
            return Err(Error::invalid(format!(
                "--queries must be 1 to {QUERIES_MAX}, --window-s 1 to {WINDOW_S_MAX}, --pairs 1 to {PAIRS_MAX}"
            )));
        }
        if self.kills > KILLS_MAX {
            return Err(Error::invalid(format!("--kills must be at most {KILLS_MAX}")));
        }
        Ok(())
    }
}

/// Store of backups, whose transfers are limited to a rate.
struct RunStore {
    store: BackupStore,
    pacer: Pacer,
    progress: BackupProgress,
}

impl RunStore {
    fn open(directory: &Path, rate: Rate) -> Result<RunStore> {
        let place = directory
            .to_str()
            .ok_or_else(|| Error::invalid("the path of the directory is not UTF-8"))?;
        let store = BackupStore::open(place, &[])?;
        Ok(RunStore { store, pacer: Pacer::new(rate), progress: BackupProgress::default() })
    }

    fn context(&self) -> BackupContext<'_> {
        BackupContext { store: &self.store, pacer: &self.pacer, progress: &self.progress }
    }

    fn back_up(&self, named: &NamedCollection, extent: BackupExtent) -> Result<BackupReport> {
        block_on(backup::create(&self.context(), named, extent))
    }

    /// Restores the newest backup as a new collection `name`.
    fn restore_as(&self, registry: &Registry, name: &str) -> Result<backup::RestoreReport> {
        let target = RestoreTarget { name: name.to_owned(), replaces: false };
        self.restore(registry, &target)
    }

    /// Restores the newest backup over the collection itself.
    fn restore_over(&self, registry: &Registry) -> Result<backup::RestoreReport> {
        let target = RestoreTarget { name: COLLECTION.to_owned(), replaces: true };
        self.restore(registry, &target)
    }

    fn restore(
        &self,
        registry: &Registry,
        target: &RestoreTarget,
    ) -> Result<backup::RestoreReport> {
        block_on(backup::restore(&self.context(), registry, COLLECTION, None, target))
    }
}

/// Ends this process once its standard input ends, that is with the process that holds the other
/// end. A program that is to be killed must not run on if its parent was killed first.
fn end_with_input() -> Result<()> {
    let wait = || {
        // Nothing is written to it. An error is an end too.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        std::process::exit(0);
    };
    os::thread::spawn("input-end", wait).map(drop)
}

/// Runs `bench backup`.
///
/// # Errors
/// Returns an error if an argument is out of range, or if a backup or a restore fails. `DataLoss`,
/// after the report, if a kill left a damaged backup or collection.
pub(crate) fn run(args: &BackupBenchArgs, env: &BenchEnv) -> Result<()> {
    args.check()?;
    if let Some(directory) = &args.child {
        end_with_input()?;
        return child::run(args, directory);
    }
    let watch = NoiseWatch::start();
    let progress = StepProgress::new(u64::from(args.kills));
    let bytes = args.rows * (DIM_BYTES * args.dims as u64 + ROW_BYTES);
    check_space(&env.cache_dir, bytes, "choose fewer --rows, or another --cache-dir")?;
    let directory = RunFolder::new(env.cache_dir.join(format!("backup-{}", std::process::id())));
    let figures = measure(args, directory.path(), &progress)?;
    let kills = kills::run(args, env, directory.path(), &progress)?;
    drop(directory);
    report::BackupBenchReport::new(args, figures, kills, watch.context(None))
        .finish(args.json.as_deref())
}

/// Measures two backups, the searches meanwhile, and a restore.
fn measure(
    args: &BackupBenchArgs,
    directory: &Path,
    progress: &StepProgress,
) -> Result<BackupFigures> {
    let registry = collection::open(&directory.join("collections"))?;
    progress.line(&format!("writing {} points", args.rows));
    let named = collection::fill(&registry, args, args.rows)?;
    let segments = flush_and_settle(&named)?.segments;
    progress.line(&format!("{segments} segments; backing up"));
    let store = RunStore::open(&directory.join("store"), Rate::per_second(RATE))?;
    let first = store.back_up(&named, BackupExtent::Missing)?;
    let latency = latency::measure(args, &registry, &named, directory, progress)?;
    collection::change(&named, args)?;
    flush_and_settle(&named)?;
    let second = store.back_up(&named, BackupExtent::Missing)?;
    progress.line("restoring");
    let restored = restore(args, &registry, &named, &store)?;
    Ok(BackupFigures { segments, first, second, latency, restored })
}

/// Restores the newest backup under another name, and compares the answers of some searches.
fn restore(
    args: &BackupBenchArgs,
    registry: &Arc<Registry>,
    named: &Arc<NamedCollection>,
    store: &RunStore,
) -> Result<RestoreFigures> {
    const RESTORED: &str = "restored";
    let began = Instant::now();
    let report = store.restore_as(registry, RESTORED)?;
    let seconds = began.elapsed().as_secs_f64();
    let copy = registry.get(RESTORED)?;
    let mut same = 0;
    for query in 0..report::QUERIES {
        let found = collection::nearest(registry, named, args, query)?;
        same += u64::from(found == collection::nearest(registry, &copy, args, query)?);
    }
    Ok(RestoreFigures { points: report.points, seconds, same_answers: same })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_without_a_figure_are_refused() {
        let check =
            |words: [&str; 2]| crate::arguments::parse::<BackupBenchArgs>(words).unwrap().check();
        assert!(check(["--kills", "0"]).is_ok());
        // A ratio of no latencies is not a number, which JSON does not have.
        for wrong in [["--pairs", "0"], ["--queries", "0"], ["--window-s", "4000"]] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }
}
