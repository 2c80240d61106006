//! `bench vectors`: recall against queries per second of the coarse filter, beside other engines.
//!
//! Each call has one query and runs on one core, as a server's thread would. Our thread and every
//! other engine's process are pinned to the same core. The figure is queries per processor time, so
//! other load on the machine does not count. Passes over our settings run before, between and after
//! the other engines. The figure is the median of the passes, so that changes of memory load during
//! the run do not decide.

mod collection;
mod curve;
mod data;
mod disk_peers;
mod ours;
mod peers;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use base::{Error, Result};
use clap::{Args, ValueEnum};

use crate::peer_process::BUILD_LIMIT_MAX;
use crate::report::BenchReport as _;
use curve::Curve;
pub(crate) use data::VectorData;
use loadgen::BenchEnv;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;
use ours::OurIndex;
use peers::Peers;
use report::VectorsReport;

/// Maximum of `--rows`.
const ROWS_MAX: usize = 100_000_000;
/// Number of hits that a query asks for and that recall counts.
const HITS: usize = 10;
/// Number of passes over our settings if there is no other engine.
const PASSES_ALONE: usize = 3;

/// Measure recall@10 against queries per second on one core, and compare other vector engines.
///
/// DIR holds base.fvecs, query.fvecs and truth.ivecs (squared distances). Without --data, a small
/// clustered set is generated, as a test of the program; its figures mean nothing. The other
/// engines need a Python environment with the packages of bench/peers/requirements.txt. Without
/// one, only Millpond is measured.
///
/// With --memory, the rows are generated and the indexes are on disk: first Millpond's, then those
/// of qdrant-edge, LanceDB, faiss and DiskANN, one after another, with the same rows, queries and
/// threads. Each process of another engine has the same memory limit. The report has the fastest
/// setting of each engine with a recall of at least 0.95. The rows and one index at a time need
/// about four times the bytes of the rows on disk. The run checks first that these fit.
///
/// The queries per second at a recall are interpolated between the two nearest measured points on
/// the upper envelope, linearly in recall and logarithmically in speed.
#[derive(Args, Clone, Debug)]
pub(crate) struct VectorsArgs {
    /// Folder with base.fvecs, query.fvecs and truth.ivecs
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Vectors of the generated set
    #[arg(long, default_value_t = 20_000, conflicts_with = "data")]
    pub(crate) rows: usize,
    /// Dimensions of the generated set
    #[arg(long, default_value_t = 64, conflicts_with = "data")]
    pub(crate) dims: usize,
    /// Index of Millpond to measure; the collection of --memory chooses its own
    #[arg(long, value_enum, default_value = "auto", conflicts_with = "memory")]
    pub(crate) index: IndexKind,
    /// Core that searches run on, without --memory
    #[arg(long, default_value_t = 0, conflicts_with = "memory")]
    pub(crate) core: usize,
    /// Threads that build the indexes of all engines
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Seconds for each setting of the other engines, without --memory
    #[arg(long, default_value_t = 0.6, conflicts_with = "memory")]
    pub(crate) seconds: f64,
    /// Only these other engines, with --data or --memory (may be given several times) [default: all
    /// that are installed]
    #[arg(long, value_name = "NAME")]
    pub(crate) engine: Vec<String>,
    /// Measure no other engine
    #[arg(long, conflicts_with = "engine")]
    pub(crate) no_peers: bool,
    /// Python with the other engines [default: .cache/peers/bin/python if it is there]
    #[arg(long, value_name = "PATH")]
    pub(crate) peers_python: Option<PathBuf>,
    /// Script that runs the other engines [default: bench/peers/vectors.py, with --memory
    /// bench/peers/disk_vectors.py]
    #[arg(long, value_name = "FILE")]
    pub(crate) peers_script: Option<PathBuf>,
    /// Measure a collection on disk with this memory limit instead, and the other engines with an
    /// index on disk: recall, latency of a lone query by number of search threads, resident memory,
    /// time to open
    #[arg(long, value_name = "BYTES", value_parser = base::units::parse_bytes, conflicts_with = "data")]
    pub(crate) memory: Option<u64>,
    /// Maximum time in which another engine builds an index. An engine that needs longer is
    /// reported as failed
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = base::units::parse_duration)]
    pub(crate) peers_build_limit: Duration,
    /// Control group with the memory controller, version 1 or 2. A group below it limits each
    /// process of the other engines [default: /sys/fs/cgroup if it has version 2 and is writable,
    /// otherwise no group: RLIMIT_DATA limits private memory, the page cache is not limited]
    #[arg(long, value_name = "DIR", requires = "memory")]
    pub(crate) peers_group: Option<PathBuf>,
    /// Place of the codes of that collection
    #[arg(long, value_enum, default_value = "auto", requires = "memory")]
    pub(crate) codes: CodesKind,
    /// Directory for that collection, and for the other indexes [default: the directory for
    /// temporary files]
    #[arg(long, value_name = "DIR", requires = "memory")]
    pub(crate) dir: Option<PathBuf>,
    /// Keep that collection, and use it in the next run with the same rows and dimensions. A run
    /// that was interrupted is continued
    #[arg(long, requires = "dir")]
    pub(crate) keep: bool,
    /// Segments of similar size that are merged into one, at least 2; a large number merges none
    #[arg(long, value_name = "N", default_value_t = 4, requires = "memory", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) merge_segments: u32,
    /// Write the figures as JSON after each engine; `complete` is false until the last
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Place of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CodesKind {
    /// In memory while they fit
    Auto,
    /// In memory
    Dram,
    /// On the medium
    Medium,
}

impl CodesKind {
    fn place(self) -> search::codes::CodesPlace {
        use search::codes::CodesPlace;
        match self {
            CodesKind::Auto => CodesPlace::Auto,
            CodesKind::Dram => CodesPlace::Dram,
            CodesKind::Medium => CodesPlace::Medium,
        }
    }
}

/// Index of Millpond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IndexKind {
    /// By rows and dimensions
    Auto,
    /// Inverted lists with 4-bit product quantisation
    IvfPq,
    /// Inverted lists with one-bit codes
    Rabitq,
    /// Every row compared
    Flat,
}

impl VectorsArgs {
    fn check(&self) -> Result<()> {
        let times = self.seconds > 0.0 && self.seconds <= 60.0;
        if self.rows <= HITS
            || self.rows > ROWS_MAX
            || self.dims == 0
            || self.dims > coarse::DIMS_MAX
        {
            return Err(Error::invalid(format!(
                "--rows must be 11 to {ROWS_MAX}, --dims 1 to {}",
                coarse::DIMS_MAX
            )));
        }
        if self.peers_build_limit.is_zero() || self.peers_build_limit > BUILD_LIMIT_MAX {
            return Err(Error::invalid("--peers-build-limit must be above 0 and at most 168h"));
        }
        if times && (1..=256).contains(&self.threads) {
            Ok(())
        } else {
            Err(Error::invalid("--seconds must be above 0 and at most 60, --threads 1 to 256"))
        }
    }
}

/// Runs `bench vectors`.
///
/// # Errors
/// Returns an error if data cannot be read, the core does not exist, or a named engine cannot run.
pub(crate) fn run(args: &VectorsArgs, _env: &BenchEnv) -> Result<()> {
    args.check()?;
    if let Some(memory) = args.memory {
        let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
        return collection::run(args, memory, &parent);
    }
    let watch = NoiseWatch::start();
    let data = match &args.data {
        Some(folder) => VectorData::read(folder)?,
        None => VectorData::generated(args.rows, args.dims),
    };
    let mut peers = Peers::find(args)?;
    let progress = StepProgress::new(peers.engines.len() as u64 * 2 + 1);
    progress.line(&data.line());
    let mut ours = OurIndex::build(&data, args)?;
    progress.line(&ours.line());
    progress.line(&peers.line());
    let mut curves: Vec<Curve> = Vec::new();
    let passes = if peers.engines.is_empty() { PASSES_ALONE } else { 1 };
    for _ in 0..passes {
        ours.pass(&data, args.core)?;
    }
    let report = |ours: &OurIndex, peers: &Peers, curves: &[Curve]| {
        VectorsReport::new(&data, ours, peers, curves, watch.context(None))
    };
    let json = args.json.as_deref();
    // A file that cannot be written ends the run before the other engines, which can take hours.
    report(&ours, &peers, &curves).write_unfinished(json)?;
    progress.step();
    for engine in peers.engines.clone() {
        let engine = &engine;
        progress.say(engine.clone());
        match peers.run(engine, args, &progress) {
            Ok(curve) => curves.push(curve),
            // An engine that fails after minutes must not discard the figures of the others.
            Err(error) => {
                progress.line(&format!("{engine} failed: {}", error.message()));
                peers.failed.insert(engine.clone(), error.message().to_owned());
            }
        }
        progress.step();
        ours.pass(&data, args.core)?;
        if let Err(error) = report(&ours, &peers, &curves).write_unfinished(json) {
            progress.line(error.message());
        }
        progress.step();
    }
    drop(progress);
    report(&ours, &peers, &curves).completed().finish(json)
}
