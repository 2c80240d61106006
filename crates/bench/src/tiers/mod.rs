//! `bench tiers`: the exact stage on NVMe compared with the exact stage in DRAM.
//!
//! Each arm is a process of its own over the bytes of the same segments, so that its resident
//! memory is its own. The arms take turns, round by round. All answer the same queries, which never
//! repeat, and every answer is compared with that of every other arm.

mod arm;
mod report;
mod rounds;
mod scorer;
mod subject;
mod turn;
mod worker;

use std::path::PathBuf;

use base::units::{GIB, parse_bytes};
use base::{Error, Result};
use clap::{Args, ValueEnum};
use search::rerank::{IN_FLIGHT_MAX, SearchLimits};
use serde::{Deserialize, Serialize};

use crate::report::BenchReport as _;
use loadgen::BenchEnv;
use loadgen::machine::NoiseWatch;
use loadgen::report::StepProgress;
use loadgen::run_folder::RunFolder;
pub(crate) use worker::TierArm;

/// Folder of the segments in the run's directory.
const DATA: &str = "data";
/// Folder of the copies of the segments on the tmpfs and on persistent memory.
const PMEM: &str = "millpond-bench-tiers";
/// Error of the dax arm without a directory.
const DAX_MISSING: &str =
    "the arm dax needs persistent memory; name a directory on it with --dax, or leave the arm out";
/// Maximum number of rounds.
const ROUNDS_MAX: usize = 100;
/// Maximum number of threads.
const THREADS_MAX: usize = 256;
/// Size of the longest record's pages in bytes.
const READ_BYTES: usize = 16 << 10;
/// Bytes of disk that a run leaves free.
const DISK_SPARE_BYTES: u64 = 2 * GIB;

/// Compare the exact stage of image search on NVMe with the same in DRAM.
///
/// Arms: dram has the segment in memory. nvme reads it with io_uring without the page cache. Its
/// caches, of blocks of the file and of single records, have each --cache share of the records'
/// bytes. mmap maps the file. Its page cache has the largest of these shares: a thread drops pages
/// beyond that, and every turn starts cold. pmem is the code path of persistent memory on a tmpfs.
/// It is simulated, so it tests the code and does not show the speed of real persistent memory. dax
/// is persistent memory, if --dax names a directory on it.
///
/// A query is a distorted copy of a stored record. Its candidates simulate a coarse stage over
/// clusters, whose records lie together: the share --near of the candidates is from the record's
/// own cluster, and the others are at random positions in --probes - 1 random clusters. The wanted
/// records are spread evenly. Before the first round, other queries of the same kind fill the
/// cache. In every arm, each thread has --clients queries at a time. Latency counts from a query's
/// arrival to its answer; "alone" is the latency with one query at a time.
///
/// Ratios compare an arm with dram in the same round; figures are medians over rounds. cpu_ratio is
/// the processor time of a query in dram, divided by that in the arm. If the machine has other
/// load, it is more reliable than the throughput. The curve computes for a set time in place of the
/// matcher.
///
/// Goals with a cache of 0.25: throughput_ratio of nvme is at least 0.90 and its p50_ratio at most
/// 1.10. No answer is wrong.
#[derive(Args, Clone, Debug)]
pub(crate) struct TiersArgs {
    /// Content of records
    #[arg(long, value_enum, default_value = "fingerprint")]
    pub(crate) kind: TierRecords,
    /// Number of records
    #[arg(long, default_value_t = 2_000_000)]
    pub(crate) records: u32,
    /// Queries of a round
    #[arg(long, default_value_t = 500)]
    pub(crate) queries: usize,
    /// Candidates of a query
    #[arg(long, default_value_t = 500)]
    pub(crate) candidates: u32,
    /// Threads that re-rank
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Queries that a thread has at a time
    #[arg(long, default_value_t = 3)]
    pub(crate) clients: usize,
    /// Caches of the nvme arm, as shares of the records' bytes
    #[arg(long, value_delimiter = ',', default_value = "0,0.1,0.25")]
    pub(crate) cache: Vec<f64>,
    /// Rounds; each figure is the median over them
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Arms to measure [default: all, dax with --dax only; for photographs dram, nvme, dax]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) arms: Vec<TierArm>,
    /// Costs of a candidate in microseconds at which the curve is measured (0: no curve)
    #[arg(long, value_delimiter = ',', default_value = "1,3,10,30,100,300")]
    pub(crate) curve: Vec<f64>,
    /// Records of a cluster
    #[arg(long, default_value_t = 1000)]
    pub(crate) cluster: u32,
    /// Clusters that a query's candidates come from
    #[arg(long, default_value_t = 32)]
    pub(crate) probes: u32,
    /// Share of candidates from the nearest cluster
    #[arg(long, default_value_t = 0.25)]
    pub(crate) near: f64,
    /// Reads that a query has in flight
    #[arg(long, default_value_t = SearchLimits::default().query_in_flight)]
    pub(crate) depth: usize,
    /// Bytes of a read that joins pages side by side
    #[arg(long, default_value_t = SearchLimits::default().joined_bytes_max)]
    pub(crate) join: usize,
    /// Maximum bytes between two pages that are read in one read, although no query needs the bytes
    #[arg(long, default_value_t = SearchLimits::default().gap_bytes_max)]
    pub(crate) gap: usize,
    /// Disk space for the segments; if it is too small, there are fewer records. Files of a killed
    /// run are removed by the next one [default: free space less 2 GiB]
    #[arg(long, value_parser = parse_bytes)]
    pub(crate) disk: Option<u64>,
    /// Directory of a tmpfs, for the pmem arm
    #[arg(long, default_value = "/dev/shm")]
    pub(crate) tmpfs: PathBuf,
    /// Directory on a file system with DAX, for the dax arm
    #[arg(long, value_name = "DIR")]
    pub(crate) dax: Option<PathBuf>,
    /// Leave the segments on disk
    #[arg(long)]
    pub(crate) keep: bool,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Run as the process of one arm
    #[arg(long, hide = true)]
    pub(crate) worker: Option<String>,
}

/// Content of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TierRecords {
    /// Minutiae of a finger: about 240 bytes, 16 to a page.
    Fingerprint,
    /// Keypoints of a photograph with descriptors: about 10 KB, three pages each. The segments are
    /// then four times the memory of an arm.
    Photo,
}

impl TiersArgs {
    fn limits(&self) -> SearchLimits {
        SearchLimits {
            queries: self.clients,
            query_in_flight: self.depth,
            in_flight: (self.depth * self.clients).min(IN_FLIGHT_MAX),
            read_bytes_max: self.join.max(READ_BYTES),
            joined_bytes_max: self.join,
            gap_bytes_max: self.gap,
        }
    }

    fn check(&self) -> Result<()> {
        if !(1..=ROUNDS_MAX).contains(&self.rounds) || !(1..=THREADS_MAX).contains(&self.threads) {
            return Err(Error::invalid(format!(
                "--rounds must be 1 to {ROUNDS_MAX}, --threads 1 to {THREADS_MAX}"
            )));
        }
        if self.records == 0
            || self.queries == 0
            || self.candidates == 0
            || self.cluster == 0
            || self.clients == 0
        {
            return Err(Error::invalid(
                "--records, --queries, --candidates, --cluster and --clients must not be 0",
            ));
        }
        let share = |share: &f64| (0.0..=1.0).contains(share);
        if !self.cache.iter().all(share) || !share(&self.near) {
            return Err(Error::invalid("--cache and --near are parts of a whole, 0 to 1"));
        }
        if !self.curve.iter().all(|us| (0.0..=10_000.0).contains(us)) {
            return Err(Error::invalid("--curve is in microseconds, up to 10000"));
        }
        if self.arms.contains(&TierArm::Dax) && self.dax.is_none() {
            return Err(Error::invalid(DAX_MISSING));
        }
        Ok(())
    }

    /// Returns the directory for an arm's own copies of the segments; `None` if the arm reads the
    /// segments themselves, or has no directory.
    fn copies(&self, arm: TierArm) -> Option<PathBuf> {
        match arm {
            TierArm::Pmem => Some(self.tmpfs.join(PMEM)),
            TierArm::Dax => self.dax.as_ref().map(|directory| directory.join(PMEM)),
            TierArm::Dram | TierArm::Nvme | TierArm::Mmap => None,
        }
    }

    /// Returns the arms in order. Dram, to which others are compared, comes first.
    fn arms(&self) -> Vec<TierArm> {
        let mut arms = match (self.arms.is_empty(), self.kind) {
            (false, _) => self.arms.clone(),
            (true, TierRecords::Fingerprint) => {
                vec![TierArm::Dram, TierArm::Nvme, TierArm::Mmap, TierArm::Pmem]
            }
            (true, TierRecords::Photo) => vec![TierArm::Dram, TierArm::Nvme],
        };
        if self.arms.is_empty() && self.dax.is_some() {
            arms.push(TierArm::Dax);
        }
        arms.push(TierArm::Dram);
        arms.sort();
        arms.dedup();
        arms
    }
}

/// Runs `bench tiers`.
///
/// # Errors
/// Returns an error if the disk, or the tmpfs of the pmem arm, has not enough space, io_uring is
/// not allowed, or an argument is out of range. Answers that differ between arms or are partial
/// make the run fail after its report.
pub(crate) fn run(args: &TiersArgs, env: &BenchEnv) -> Result<()> {
    args.check()?;
    let dir = env.cache_dir.join("run").join("tiers");
    if let Some(job) = &args.worker {
        return worker::run(args, &dir, job);
    }
    let watch = NoiseWatch::start();
    let progress = StepProgress::new(args.rounds as u64 + args.curve.len() as u64);
    let arms = [TierArm::Pmem, TierArm::Dax].into_iter();
    let copies = arms.filter_map(|arm| args.copies(arm));
    let segments = (!args.keep).then(|| dir.clone());
    let folders: Vec<RunFolder> = copies.chain(segments).map(RunFolder::new).collect();
    let outcome = rounds::measure(args, env, &dir, &progress)?;
    drop((progress, folders));
    let report = report::TiersReport::new(args, outcome, watch.context(None));
    report.finish(args.json.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(arguments: &[&str]) -> TiersArgs {
        crate::arguments::parse(arguments.iter().copied()).unwrap()
    }

    #[test]
    fn persistent_memory_is_measured_if_a_directory_is_named() {
        let simulated = [TierArm::Dram, TierArm::Nvme, TierArm::Mmap, TierArm::Pmem];
        let all = [TierArm::Dram, TierArm::Nvme, TierArm::Mmap, TierArm::Pmem, TierArm::Dax];
        assert_eq!(args(&[]).arms(), simulated);
        assert_eq!(args(&["--dax", "/mnt/pmem0"]).arms(), all);
        let photographs = args(&["--kind", "photo", "--dax", "/mnt/pmem0"]);
        assert_eq!(photographs.arms(), [TierArm::Dram, TierArm::Nvme, TierArm::Dax]);
        let chosen = args(&["--arms", "dax", "--dax", "/mnt/pmem0"]);
        assert!(chosen.check().is_ok());
        assert_eq!(chosen.arms(), [TierArm::Dram, TierArm::Dax]);
        assert_eq!(chosen.copies(TierArm::Dax), Some("/mnt/pmem0/millpond-bench-tiers".into()));
        let refused = args(&["--arms", "dax"]).check().unwrap_err();
        assert!(refused.message().contains("--dax"), "{}", refused.message());
    }
}
