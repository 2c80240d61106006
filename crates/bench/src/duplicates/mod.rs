//! `millpond bench duplicates`: the search for duplicates of a whole collection.

mod data;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use clap::Args;
use coarse::Metric;
use search::duplicates::{DuplicateControl, DuplicateOptions, DuplicateStore, run as find};
use search::points::{NewPoint, PointId};
use search::registry::{
    CollectionSettings, MediumChoice, NamedCollection, Registry, RegistryOptions,
};
use serde::Serialize;

use crate::report::BenchReport;
use crate::settle::{QUIET_TIMES, flush_and_settle, upsert};
use data::DuplicateData;
use loadgen::BenchEnv;
use loadgen::disk_space::check_space;
use loadgen::machine::{NoiseWatch, RunContext, rss_kb_of};
use loadgen::println;
use loadgen::report::StepProgress;
use loadgen::run_folder::RunFolder;
use loadgen::stats::ratio;

/// Number of points per write.
const WRITE_POINTS: u64 = 256;
/// Maximum points, planted copies and lookalikes.
const ROWS_MAX: u64 = 20_000_000;
/// Bytes of disk per point, while segments are merged.
const ROW_BYTES: u64 = 512;
/// Bytes of disk per point and value, while segments are merged.
const DIM_BYTES: u64 = 12;
/// Interval between two checks of memory and progress.
const WATCH: Duration = Duration::from_millis(200);
/// Longest wait until the collection is open.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(3600);

/// Find planted copies in a large collection.
///
/// Embeddings lie in clusters. Some points have a copy. The embedding of a copy has a cosine of
/// about 0.87 to 0.995 with that of its source, and its keypoints are a distorted version of the
/// source's keypoints. The same number of points are lookalikes: as near to a source, but with
/// other keypoints. All other points have no keypoints.
///
/// Recall is the share of planted pairs that are found. Precision is the share of verified pairs
/// that were planted, or of all pairs with --unverified. Points without keypoints may be in pairs
/// by their embeddings alone; these pairs are counted separately. Memory is the maximum of this
/// process during the search, with the collection that it has opened.
///
/// Goals with 1,000,000 points of 512 values and 50,000 copies: recall 0.98, precision 0.999, 30
/// minutes on two cores, 1 GiB.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchDuplicatesArgs {
    /// Points
    #[arg(long, default_value_t = 20_000)]
    pub(crate) rows: u64,
    /// Values of an embedding
    #[arg(long, default_value_t = 128)]
    pub(crate) dims: usize,
    /// Planted copies
    #[arg(long, default_value_t = 1000)]
    pub(crate) planted: u64,
    /// Points as near to a source as a copy, with other keypoints [default: as many as copies]
    #[arg(long)]
    pub(crate) lookalikes: Option<u64>,
    /// Minimum cosine of a pair
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    pub(crate) threshold: f32,
    /// Do not compare keypoints
    #[arg(long)]
    pub(crate) unverified: bool,
    /// Threads of the search
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Megabytes of memory for the collection
    #[arg(long, default_value_t = 1024)]
    pub(crate) memory_mb: u64,
    /// Seed of all random values
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Directory of the collection, kept and used again if it has the same points [default: one in
    /// the cache that is removed]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// JSON of `bench duplicates`.
#[derive(Debug, Serialize)]
struct DuplicatesReport {
    recall: f64,
    precision: f64,
    seconds: f64,
    /// Largest resident memory during the search.
    rss_mb: f64,
    /// Resident memory before the search.
    rss_before_mb: f64,
    points_per_second: f64,
    pairs: u64,
    /// Number of pairs of points without keypoints.
    pairs_by_embedding: usize,
    candidates: u64,
    refused: u64,
    unreadable: u64,
    rows: u64,
    dims: usize,
    planted: u64,
    lookalikes: u64,
    threshold: f32,
    verified: bool,
    threads: usize,
    segments: usize,
    seed: u64,
    /// Seconds to write and merge all points; `None` if they are of an earlier run.
    build_seconds: Option<f64>,
    #[serde(flatten)]
    context: RunContext,
}

/// Runs `bench duplicates`.
///
/// # Errors
/// `InvalidArgument` for arguments that cannot work; those of the collection.
pub(crate) fn run(args: &BenchDuplicatesArgs, env: &BenchEnv) -> Result<()> {
    let lookalikes = args.lookalikes.unwrap_or(args.planted);
    if args.planted == 0
        || args.rows > ROWS_MAX
        || 2 * args.planted + lookalikes > args.rows
        || lookalikes > args.planted
    {
        return Err(Error::invalid(format!(
            "--rows must be at most {ROWS_MAX} and hold two points for each of --planted (at least 1) and one for each \
             of --lookalikes, which are at most as many"
        )));
    }
    let data = DuplicateData {
        rows: args.rows,
        dims: args.dims,
        planted: args.planted,
        lookalikes,
        seed: args.seed,
    };
    // A wrong option is refused before the points are written, which can take an hour.
    options(args).check(Metric::Cosine)?;
    let watch = NoiseWatch::start();
    let folder = match &args.dir {
        Some(dir) => dir.clone(),
        None => env.cache_dir.join(format!("duplicates-{}", std::process::id())),
    };
    // A collection of an earlier run has its bytes already.
    if !folder.join(collection_name(&data)).exists() {
        let bytes = args.rows * (DIM_BYTES * args.dims as u64 + ROW_BYTES);
        check_space(&folder, bytes, "choose fewer --rows, or another --dir")?;
    }
    let _removed = args.dir.is_none().then(|| RunFolder::new(folder.clone()));
    let progress = StepProgress::new(args.rows);
    let began = Instant::now();
    let open_once = open(&folder, args, &data)?;
    let filled = fill(&open_once.named, &data, &progress)?;
    progress.say("merging");
    let settled = flush_and_settle(&open_once.named)?;
    let build_seconds = filled.then(|| (settled.since - began).as_secs_f64());
    drop(open_once);
    // Opened again, so that the memory of building it does not count.
    let opened = open(&folder, args, &data)?;
    let found = search(&opened.named, args, &progress)?;
    drop(progress);
    let report = evaluate(&opened.named, args, &data, found, build_seconds, watch.context(None))?;
    report.finish(args.json.as_deref())
}

struct DuplicatesCollection {
    named: Arc<NamedCollection>,
    _registry: Arc<Registry>,
}

/// Opens the collection, or creates it.
fn open(
    folder: &Path,
    args: &BenchDuplicatesArgs,
    data: &DuplicateData,
) -> Result<DuplicatesCollection> {
    let registry = Registry::open(RegistryOptions {
        memory_bytes: args.memory_mb << 20,
        cache_bytes: 16 << 20,
        medium: MediumChoice::Auto,
        background_rate: os::Rate::unlimited(),
        quiet: QUIET_TIMES,
        ..RegistryOptions::new(folder)
    })?;
    if !registry.wait_open(OPEN_WAIT_MAX) {
        return Err(Error::unavailable("the collection was not opened in time"));
    }
    let name = collection_name(data);
    let named = match registry.get(&name) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            registry.create(&name, CollectionSettings::new(data.dims, Metric::Cosine))?
        }
        found => found?,
    };
    while named.collection().opening() {
        std::thread::sleep(WATCH);
    }
    Ok(DuplicatesCollection { named, _registry: registry })
}

/// Returns a name that no collection with other points has.
fn collection_name(data: &DuplicateData) -> String {
    let DuplicateData { rows, dims, planted, lookalikes, seed } = data;
    format!("duplicates-{rows}-{dims}-{planted}-{lookalikes}-{seed}")
}

/// Returns the options of the search.
fn options(args: &BenchDuplicatesArgs) -> DuplicateOptions {
    DuplicateOptions {
        threshold: args.threshold,
        accept: (!args.unverified).then_some(vision::photo::ACCEPT),
        points_per_second: 0,
        threads: args.threads,
    }
}

/// Writes all points. Returns false if an earlier run has written them.
fn fill(named: &NamedCollection, data: &DuplicateData, progress: &StepProgress) -> Result<bool> {
    if named.collection().count() == data.rows {
        return Ok(false);
    }
    progress.say(format!("{} points of {} values", data.rows, data.dims));
    let payload = serde_json::Map::new();
    for first in (0..data.rows).step_by(WRITE_POINTS as usize) {
        let numbers = first..(first + WRITE_POINTS).min(data.rows);
        let points: Vec<_> = numbers.map(|number| data.point(number)).collect();
        let new: Vec<NewPoint<'_>> = points
            .iter()
            .map(|point| NewPoint {
                id: PointId::Number(point.id),
                embedding: &point.embedding,
                record: &point.record,
                payload: &payload,
            })
            .collect();
        upsert(named, &new)?;
        progress.at(first, data.rows);
    }
    Ok(true)
}

/// Figures of a search.
struct JobFigures {
    progress: search::duplicates::DuplicateProgress,
    seconds: f64,
    rss_kb: u64,
    rss_before_kb: u64,
}

/// Runs the search for duplicates to its end, and samples the memory meanwhile.
fn search(
    named: &NamedCollection,
    args: &BenchDuplicatesArgs,
    progress: &StepProgress,
) -> Result<JobFigures> {
    progress.say("finding duplicates");
    DuplicateStore::of(named).remove()?;
    let control = DuplicateControl::default();
    let ended = AtomicBool::new(false);
    let most = AtomicU64::new(0);
    let rss_before_kb = rss_kb_of(std::process::id());
    let began = Instant::now();
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                most.fetch_max(rss_kb_of(std::process::id()), Ordering::Relaxed);
                if let Some(now) = control.progress() {
                    progress.at(now.done, now.total.max(1));
                }
                std::thread::sleep(WATCH);
            }
        });
        let outcome = find(named, options(args), &control);
        ended.store(true, Ordering::Relaxed);
        outcome
    })?;
    let rss_kb = most.load(Ordering::Relaxed);
    Ok(JobFigures {
        progress: outcome,
        seconds: began.elapsed().as_secs_f64(),
        rss_kb,
        rss_before_kb,
    })
}

/// Compares the found pairs with the planted ones, and returns the report.
fn evaluate(
    named: &NamedCollection,
    args: &BenchDuplicatesArgs,
    data: &DuplicateData,
    found: JobFigures,
    build_seconds: Option<f64>,
    context: RunContext,
) -> Result<DuplicatesReport> {
    let JobFigures { progress, seconds, rss_kb, rss_before_kb } = found;
    let planted: HashSet<(u64, u64)> = (0..data.planted).map(|pair| data.pair(pair)).collect();
    let pairs = DuplicateStore::of(named).pairs(progress.pairs)?;
    let right = pairs.iter().filter(|pair| planted.contains(&(pair.a, pair.b))).count();
    let judged = pairs.iter().filter(|pair| args.unverified || pair.score.is_some()).count();
    Ok(DuplicatesReport {
        recall: ratio(right as f64, planted.len() as f64),
        precision: ratio(right as f64, judged as f64),
        seconds,
        rss_mb: rss_kb as f64 / 1024.0,
        rss_before_mb: rss_before_kb as f64 / 1024.0,
        points_per_second: ratio(progress.done as f64, seconds),
        pairs: progress.pairs,
        pairs_by_embedding: pairs.len() - judged,
        candidates: progress.candidates,
        refused: progress.refused,
        unreadable: progress.unreadable,
        rows: data.rows,
        dims: data.dims,
        planted: data.planted,
        lookalikes: data.lookalikes,
        threshold: args.threshold,
        verified: !args.unverified,
        threads: args.threads,
        segments: named.collection().status().segments.len(),
        seed: args.seed,
        build_seconds,
        context,
    })
}

impl BenchReport for DuplicatesReport {
    fn print(&self) {
        println!(
            "{} points of {} values in {} segments, {} copies, {} lookalikes",
            self.rows, self.dims, self.segments, self.planted, self.lookalikes
        );
        println!(
            "recall {:.4}, precision {:.4}: {} pairs ({} by embedding alone), {} of {} candidates refused by keypoints",
            self.recall,
            self.precision,
            self.pairs,
            self.pairs_by_embedding,
            self.refused,
            self.candidates
        );
        println!(
            "{:.1} s with {} threads ({:.0} points/s), {:.0} MB at most ({:.0} before)",
            self.seconds, self.threads, self.points_per_second, self.rss_mb, self.rss_before_mb
        );
        println!("{}", self.context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare::tests::env;

    fn args(words: &str) -> BenchDuplicatesArgs {
        crate::arguments::parse(words.split_whitespace()).unwrap()
    }

    #[test]
    fn a_kept_collection_is_used_for_the_same_points_only() {
        let name = |planted, lookalikes| {
            collection_name(&DuplicateData { rows: 1000, dims: 8, planted, lookalikes, seed: 1 })
        };
        assert_eq!(name(50, 20), name(50, 20));
        assert!(name(50, 20) != name(40, 20) && name(50, 20) != name(50, 30));
        let folder = tempfile::tempdir().unwrap();
        let args = args("--rows 300 --dims 8 --planted 10");
        let data = DuplicateData { rows: 300, dims: 8, planted: 10, lookalikes: 10, seed: 1 };
        let progress = StepProgress::new(1);
        for filled in [true, false] {
            let collection = open(folder.path(), &args, &data).unwrap();
            assert_eq!(fill(&collection.named, &data, &progress).unwrap(), filled);
        }
    }

    #[test]
    fn wrong_options_are_refused_before_points_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let env = env(&folder.path().join("cache"));
        let small = "--rows 300 --dims 8 --planted 10";
        for wrong in ["--threads 0", "--threshold 1.5"] {
            let refused = run(&args(&format!("{small} {wrong}")), &env).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{wrong}");
            assert!(!env.cache_dir.exists(), "{wrong}");
        }
    }
}
