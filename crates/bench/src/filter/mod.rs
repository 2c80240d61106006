//! `bench filter`: searches with filters that were never used before, beside qdrant-edge with its
//! payload index.
//!
//! The rows are generated: clustered vectors, a tenant, a score and the number of the cluster. Each
//! query has another filter, so no result is cached. One thread searches, one query after the
//! other.

mod data;
mod ours;
mod peers;
mod report;

use std::path::PathBuf;

use base::{Error, Result};
use clap::Args;
use loadgen::BenchEnv;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;

use crate::report::BenchReport as _;
use data::FilterData;
use ours::OurCollection;
use report::{FilterReport, Measured};

/// Hits that a query asks for and that recall counts.
const HITS: usize = 10;

/// Measure searches with new filters at several selectivities, and their recall.
///
/// qdrant-edge needs a Python environment with the packages of bench/peers/requirements.txt (`make
/// peers`). Without this environment, the figures of qdrant-edge are null, and the report gives the
/// reason.
#[derive(Args, Clone, Debug)]
pub struct FilterArgs {
    /// Rows of the collection
    #[arg(long, default_value_t = 20_000)]
    pub rows: usize,
    /// Dimensions of the vectors
    #[arg(long, default_value_t = 64)]
    pub dims: usize,
    /// Number of tenants; a filter on one tenant is the most selective filter
    #[arg(long, default_value_t = 200)]
    pub tenants: usize,
    /// Queries of each selectivity, at most as many as tenants
    #[arg(long, default_value_t = 200)]
    pub queries: usize,
    /// Threads for building the index of qdrant-edge
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Folder for the collections, which are removed at the end [default: the system's]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Python with qdrant-edge [default: .cache/peers/bin/python if it is there]
    #[arg(long, value_name = "PATH")]
    pub peers_python: Option<PathBuf>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl FilterArgs {
    fn check(&self) -> Result<()> {
        let rows = (1000..=10_000_000).contains(&self.rows);
        let dims = (1..=search::coarse::DIMS_MAX).contains(&self.dims);
        let queries = (1..=self.tenants).contains(&self.queries) && self.queries <= 10_000;
        if !rows || !dims || !queries || !(1..=256).contains(&self.threads) {
            return Err(Error::invalid(format!(
                "--rows must be 1000 to 10000000, --dims 1 to {}, --queries 1 to 10000 and at most --tenants, --threads 1 \
                 to 256",
                search::coarse::DIMS_MAX
            )));
        }
        Ok(())
    }
}

/// Runs `bench filter`.
///
/// # Errors
/// If the collection cannot be written or searched, or a count is not exact.
pub fn run(args: &FilterArgs, env: &BenchEnv) -> Result<()> {
    args.check()?;
    let watch = NoiseWatch::start();
    let progress = StepProgress::new(4);
    let folder = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = |what: &str| folder.join(format!("millpond-filter-{what}-{}", std::process::id()));
    let data = FilterData::generate(args.rows, args.dims, args.tenants);
    let cases = data.cases(args.queries);
    progress.step();
    let ours = OurCollection::build(&data, folder("ours"))?;
    progress.step();
    let mut thread = ours.thread()?;
    let mut count_exact = true;
    let mut figures = Vec::new();
    let mut unfiltered = None;
    for case in &cases {
        if unfiltered.is_none() {
            // Twice: the first pass fills the caches.
            ours.unfiltered(&mut thread, &data, case)?;
            unfiltered = Some(ours.unfiltered(&mut thread, &data, case)?);
        }
        figures.push((case.name, ours.filtered(&mut thread, case)?));
        count_exact &= ours.counts_exactly(case)?;
    }
    let measured = Measured {
        unfiltered: unfiltered.unwrap_or_default(),
        cases: figures,
        count_exact,
        read_payloads: ours.undecided(),
        segments: ours.segments(),
        build_s: ours.build_s,
    };
    drop((thread, ours));
    progress.step();
    let peer = peers::run(args, env, &data, &cases, &folder("peer"));
    progress.step();
    drop(progress);
    let context = watch.context(None);
    let report = FilterReport::new(&data, args.tenants, args.queries, measured, &peer, context);
    report.finish(args.json.as_deref())
}
