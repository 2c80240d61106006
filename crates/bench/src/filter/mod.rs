//! `bench filter`: searches with filters that were never used before, beside qdrant-edge with its
//! payload index.
//!
//! The rows are generated: clustered vectors, a tenant, a score and the number of the cluster. Each
//! query has another filter, so no result is cached. One thread searches, one query after the
//! other. Both engines search without a filter twice before, and the second pass counts.

mod data;
mod ours;
mod peers;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base::{Error, Result};
use clap::Args;
use loadgen::BenchEnv;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;
use loadgen::run_folder::RunFolder;

use crate::peer_process::BUILD_LIMIT_MAX;
use crate::report::BenchReport as _;
use data::FilterData;
use loadgen::disk_space::check_space;
use ours::{CaseFigures, OurCollection};
use peers::FilterWork;
use report::{CaseResult, FilterReport, Measured};

/// Number of hits that a query asks for and that recall counts.
const HITS: usize = 10;
/// Bytes of disk per row: our collection while it is merged, then the files of the other engine and
/// its index.
const ROW_BYTES: u64 = 1024;
/// Bytes of disk per row and dimension.
const DIM_BYTES: u64 = 16;

/// Measure searches with new filters at several selectivities, and their recall.
///
/// A filter allows one tenant, a share of the rows by their score, or half of the clusters. The
/// report has the share of the rows that the filters allow.
///
/// qdrant-edge needs a Python environment with the packages of bench/peers/requirements.txt (`make
/// peers`). Without this environment, the figures of qdrant-edge are null, and the report gives the
/// reason. It needed 72 s for the index of 100,000 rows on two cores.
#[derive(Args, Clone, Debug)]
pub(crate) struct FilterArgs {
    /// Rows of the collection
    #[arg(long, default_value_t = 20_000)]
    pub(crate) rows: usize,
    /// Dimensions of the vectors
    #[arg(long, default_value_t = 64)]
    pub(crate) dims: usize,
    /// Number of tenants. A filter on one tenant allows about --rows / --tenants rows
    #[arg(long, default_value_t = 200)]
    pub(crate) tenants: usize,
    /// Queries of each selectivity, at most as many as tenants
    #[arg(long, default_value_t = 200)]
    pub(crate) queries: usize,
    /// Threads for building the indexes, ours and that of qdrant-edge
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Folder for the collections, which are removed at the end [default: the system's]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Python with qdrant-edge [default: .cache/peers/bin/python if it is there]
    #[arg(long, value_name = "PATH")]
    pub(crate) peers_python: Option<PathBuf>,
    /// Maximum time in which qdrant-edge builds its index. If it needs longer, the report says so
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = base::units::parse_duration)]
    pub(crate) peers_build_limit: Duration,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl FilterArgs {
    fn check(&self) -> Result<()> {
        let rows = (1000..=10_000_000).contains(&self.rows);
        let dims = (1..=coarse::DIMS_MAX).contains(&self.dims);
        let queries = (1..=self.tenants).contains(&self.queries) && self.queries <= 10_000;
        if !rows || !dims || !queries || !(1..=256).contains(&self.threads) {
            return Err(Error::invalid(format!(
                "--rows must be 1000 to 10000000, --dims 1 to {}, --queries 1 to 10000 and at most --tenants, --threads 1 \
                 to 256",
                coarse::DIMS_MAX
            )));
        }
        if self.peers_build_limit.is_zero() || self.peers_build_limit > BUILD_LIMIT_MAX {
            return Err(Error::invalid("--peers-build-limit must be above 0 and at most 168h"));
        }
        Ok(())
    }
}

/// Runs `bench filter`.
///
/// # Errors
/// Returns an error if the collection cannot be written or searched, a count is not exact, or a hit
/// does not meet its filter. `ResourceExhausted` if the disk is too small.
pub(crate) fn run(args: &FilterArgs, env: &BenchEnv) -> Result<()> {
    args.check()?;
    let watch = NoiseWatch::start();
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let row_bytes = ROW_BYTES + DIM_BYTES * args.dims as u64;
    check_space(&parent, args.rows as u64 * row_bytes, "choose fewer --rows, or another --dir")?;
    let folder = RunFolder::new(parent.join(format!("millpond-filter-{}", std::process::id())));
    let mut stages = FilterStages { progress: StepProgress::new(4), seconds: BTreeMap::new() };
    let (data, cases, unfiltered) = stages.run("data", "generating rows and true hits", |_| {
        let data = FilterData::generate(args.rows, args.dims, args.tenants);
        let cases = data.cases(args.queries);
        let unfiltered = cases.first().map(|case| data.unfiltered(case)).unwrap_or_default();
        (data, cases, unfiltered)
    });
    let work = FilterWork { data: &data, cases: &cases, unfiltered: &unfiltered };
    let build = format!("writing {} rows and building the index", args.rows);
    let ours = stages.run("build", &build, |_| {
        OurCollection::build(&data, &folder.path().join("ours"), args.threads)
    })?;
    let measured = stages.run("search", "searching", |progress| measure(&ours, &work, progress))?;
    drop(ours);
    let peer = stages.run("peer", "qdrant-edge", |progress| {
        peers::run(args, env, &work, &folder.path().join("peer"), progress)
    });
    let FilterStages { progress, seconds } = stages;
    drop((progress, folder));
    FilterReport::new(args, measured, &peer, seconds, watch.context(None))
        .finish(args.json.as_deref())
}

/// Stages of a run. They are announced, and their times are kept.
struct FilterStages {
    progress: StepProgress,
    seconds: BTreeMap<&'static str, f64>,
}

impl FilterStages {
    /// Runs a stage of the benchmark. Prints and records its time in seconds as `name`.
    fn run<T>(
        &mut self,
        name: &'static str,
        what: &str,
        work: impl FnOnce(&StepProgress) -> T,
    ) -> T {
        let started = Instant::now();
        self.progress.line(what);
        self.progress.say(what);
        let outcome = work(&self.progress);
        let seconds = started.elapsed().as_secs_f64();
        self.progress.line(&format!("{name}: {seconds:.1} s"));
        self.progress.step();
        self.seconds.insert(name, seconds);
        outcome
    }
}

/// Measures our collection without filters and with those of each case.
fn measure(
    ours: &OurCollection,
    work: &FilterWork<'_>,
    progress: &StepProgress,
) -> Result<Measured> {
    let mut thread = ours.thread()?;
    let mut unfiltered = CaseFigures::default();
    if let Some(case) = work.cases.first() {
        // Twice: the first pass fills the caches.
        ours.unfiltered(&mut thread, case, work.unfiltered)?;
        unfiltered = ours.unfiltered(&mut thread, case, work.unfiltered)?;
    }
    let mut count_exact = true;
    let mut cases = Vec::new();
    for case in work.cases {
        progress.say(format!("searching: {}", case.name));
        let figures = ours.filtered(&mut thread, work.data, case)?;
        let allowed_share = case.allowed_share(work.data.rows());
        cases.push(CaseResult { name: case.name, allowed_share, figures });
        count_exact &= ours.counts_exactly(case)?;
    }
    Ok(Measured {
        unfiltered,
        cases,
        count_exact,
        read_payloads: ours.undecided(),
        segments: ours.segments(),
        build_s: ours.build_s,
    })
}
