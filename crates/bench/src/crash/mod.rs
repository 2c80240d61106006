//! `millpond bench crash`: a process that writes to a collection is killed, again and again, and what it was told is
//! safe is looked for.
//!
//! The writer is this program once more. It reports each acknowledged change through a pipe, whose contents survive it.
//! What it writes follows from a seed, so whoever looks knows every point that must be there, byte by byte. Sealing
//! and merging go on all the time, because points in memory are few.

mod child;
mod content;
mod parent;
mod report;

use std::path::PathBuf;
use std::sync::Arc;

use base::{Error, Result};
use clap::{Args, ValueEnum};
use memory::{PoolConfig, Rate, SlotPool};
use search::coarse::Metric;
use search::collection::{CollectionOptions, Merging};
use storage::{DaxMedium, DramMedium, Medium, MmapMedium, UringMedium};

use loadgen::BenchEnv;
use loadgen::machine::{MachineFacts, NoiseWatch};

/// Kills at most.
const KILLS_MAX: u32 = 100_000;
/// Writing threads at most: their number is one byte of a report.
const WRITERS_MAX: u64 = 64;
/// Ids of one writer at most.
const IDS_MAX: u64 = 100_000;
/// Memory for the points of the largest run.
const MEMORY_BYTES: u64 = 64 << 20;
/// Bytes of points that are not sealed yet: few, so that sealing and merging never stop.
const MEMTABLE_BYTES: u64 = 128 << 10;
/// Memory for a medium that keeps files in memory.
const POOL_BYTES: u64 = 1 << 30;

/// Crash-recovery test: kill a writer at random moments, and check that every acknowledged write is there.
///
/// Each time the collection is opened anew, and every point that must be there is read and compared with what was
/// written. A change that was under way when the writer died may be there or not. The same files are used from the first
/// kill to the last.
///
/// Wanted: nothing lost, nothing corrupt. Killing a process is not a loss of power: the system keeps what it was given.
/// That is tested with a medium that forgets what was not flushed, by `cargo test -p millpond-search`.
#[derive(Args, Clone, Debug)]
pub struct CrashArgs {
    /// How often
    #[arg(long, default_value_t = 200)]
    pub kills: u32,
    /// Threads that write
    #[arg(long, default_value_t = 3)]
    pub writers: u64,
    /// Points of each of them
    #[arg(long, default_value_t = 150)]
    pub ids: u64,
    /// The longest life of a writer in milliseconds
    #[arg(long, default_value_t = 800)]
    pub life_ms: u64,
    /// What holds the collection
    #[arg(long, value_enum, default_value = "nvme")]
    pub medium: CrashMedium,
    /// Where the chances come from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Be the writer, on the collection in this directory: what this program starts
    #[arg(long, hide = true, value_name = "DIR")]
    pub child: Option<PathBuf>,
    /// The first change of each writing thread
    #[arg(long, hide = true, value_delimiter = ',')]
    pub from: Vec<u64>,
}

/// What holds the collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CrashMedium {
    /// Files, read through io_uring past the page cache.
    Nvme,
    /// Files, copied into memory.
    Dram,
    /// Files, mapped.
    Mmap,
    /// Files, as if they were on persistent memory.
    Pmem,
}

impl CrashArgs {
    fn check(&self) -> Result<()> {
        if !(1..=KILLS_MAX).contains(&self.kills) || self.life_ms == 0 {
            return Err(Error::invalid(format!(
                "--kills must be 1 to {KILLS_MAX}, and --life-ms at least 1"
            )));
        }
        if !(1..=WRITERS_MAX).contains(&self.writers) || !(1..=IDS_MAX).contains(&self.ids) {
            return Err(Error::invalid(format!(
                "--writers must be 1 to {WRITERS_MAX}, --ids 1 to {IDS_MAX}"
            )));
        }
        Ok(())
    }

    fn medium(&self, directory: PathBuf) -> Result<Arc<dyn Medium>> {
        Ok(match self.medium {
            CrashMedium::Nvme => Arc::new(UringMedium::new(directory)?),
            CrashMedium::Mmap => Arc::new(MmapMedium::new(directory)?),
            CrashMedium::Pmem => Arc::new(DaxMedium::new(directory, true)?),
            CrashMedium::Dram => {
                let config =
                    PoolConfig { bytes_max: POOL_BYTES, huge_pages: false, fault_rate: Rate::unlimited() };
                Arc::new(DramMedium::new(SlotPool::new(config)?, Some(directory))?)
            }
        })
    }

    /// The collection, with or without the threads that seal and merge.
    fn options(&self, background: bool) -> CollectionOptions {
        CollectionOptions {
            memtable_bytes: MEMTABLE_BYTES,
            background,
            merging: Merging { fan_in: 3, ..Merging::default() },
            ..CollectionOptions::new(content::DIMS, Metric::Cosine, MEMORY_BYTES)
        }
    }
}

/// Runs `bench crash`.
///
/// # Errors
/// When an argument is out of range, the writer fails on its own, or, as `DataLoss`, when something was lost or
/// corrupt: after the figures were written.
pub fn run(args: &CrashArgs, env: &BenchEnv) -> Result<()> {
    args.check()?;
    if let Some(directory) = &args.child {
        return child::run(args, directory.clone());
    }
    let watch = NoiseWatch::start();
    let figures = parent::run(args, env)?;
    let report = report::CrashReport::new(args, figures, MachineFacts::detect(None), watch.end());
    report.print();
    if let Some(path) = &args.json {
        loadgen::report::write_json(path, &report)?;
    }
    report.verdict()
}
