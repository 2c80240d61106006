//! `millpond bench crash`: kills a process that writes to a collection, again and again, and checks
//! each time that every acknowledged change is there.
//!
//! The writer is this program again. It reports each acknowledged change through a pipe, whose
//! content survives the kill. The changes follow from a seed, so the parent knows every byte of
//! every point. Writer and parent open the collection as the server does, through a registry. The
//! memtable is small, so flushes and merges never stop.

mod child;
mod content;
mod parent;
mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use clap::{Args, ValueEnum};
use coarse::Metric;
use os::Rate;
use search::registry::{
    CollectionSettings, MediumChoice, NamedCollection, Registry, RegistryOptions,
};

use crate::report::BenchReport as _;
use loadgen::BenchEnv;
use loadgen::machine::NoiseWatch;

/// Maximum number of kills.
const KILLS_MAX: u32 = 100_000;
/// Maximum number of writing threads: their number is one byte of a report.
const WRITERS_MAX: u64 = 64;
/// Maximum number of ids of one writer.
const IDS_MAX: u64 = 100_000;
/// Memory for the points of the largest run.
const MEMORY_BYTES: u64 = 64 << 20;
/// Memory if files are kept in memory too: they get half of it.
const DRAM_BYTES: u64 = 2 << 30;
/// Bytes of a memtable: few, so that flushes and merges never stop.
const MEMTABLE_BYTES: u64 = 128 << 10;
const COLLECTION: &str = "crash";
/// Longest time for a collection and its segments to open.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(60);

/// Crash-recovery test: kill a writer at random moments, and check that every acknowledged write is
/// there.
///
/// After each kill the collection is opened again, and every point that must be there is read and
/// compared with the written content. A change that was not acknowledged when the writer was killed
/// may be there or not. All kills use the same files.
///
/// Goals: no point is lost, and no point is corrupt. The kill of a process is not a loss of power:
/// the system keeps the data that was written. `cargo test -p millpond-search` tests a loss of
/// power, with a medium that loses unflushed data.
#[derive(Args, Clone, Debug)]
pub(crate) struct CrashArgs {
    /// Number of kills
    #[arg(long, default_value_t = 200)]
    pub(crate) kills: u32,
    /// Writing threads
    #[arg(long, default_value_t = 3)]
    pub(crate) writers: u64,
    /// Points of each writing thread
    #[arg(long, default_value_t = 150)]
    pub(crate) ids: u64,
    /// Longest life of a writer in milliseconds
    #[arg(long, default_value_t = 800)]
    pub(crate) life_ms: u64,
    /// Medium of the collection
    #[arg(long, value_enum, default_value = "nvme")]
    pub(crate) medium: CrashMedium,
    /// Seed of the changes and of the moments of kills
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Run as the writer, on the collection in this directory. Started by this program itself
    #[arg(long, hide = true, value_name = "DIR")]
    pub(crate) child: Option<PathBuf>,
    /// First change of each writing thread
    #[arg(long, hide = true, value_delimiter = ',')]
    pub(crate) from: Vec<u64>,
}

/// Medium of the collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CrashMedium {
    /// Files, read through io_uring without the page cache.
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

    /// Opens the collection as the server does, or creates it, and waits until all of it is open.
    fn open(&self, directory: &Path) -> Result<OpenCollection> {
        let dram = self.medium == CrashMedium::Dram;
        let registry = Registry::open(RegistryOptions {
            memory_bytes: if dram { DRAM_BYTES } else { MEMORY_BYTES },
            cache_bytes: 0,
            memtable_bytes: MEMTABLE_BYTES,
            threads: 1,
            medium: self.medium.into(),
            background_rate: Rate::unlimited(),
            ..RegistryOptions::new(directory)
        })?;
        if !registry.wait_open(OPEN_WAIT_MAX) {
            return Err(Error::deadline("the collection takes too long to open"));
        }
        let named = match registry.get(COLLECTION) {
            Err(error) if error.kind() == ErrorKind::NotFound => registry
                .create(COLLECTION, CollectionSettings::new(content::DIMS, Metric::Cosine))?,
            named => named?,
        };
        Ok(OpenCollection { named, _registry: registry })
    }
}

impl From<CrashMedium> for MediumChoice {
    fn from(medium: CrashMedium) -> MediumChoice {
        match medium {
            CrashMedium::Nvme => MediumChoice::Nvme,
            CrashMedium::Dram => MediumChoice::Dram,
            CrashMedium::Mmap => MediumChoice::Mmap,
            CrashMedium::Pmem => MediumChoice::Pmem,
        }
    }
}

/// The collection, and the registry with the threads that work for it.
struct OpenCollection {
    named: Arc<NamedCollection>,
    _registry: Arc<Registry>,
}

/// Runs `bench crash`.
///
/// # Errors
/// Returns an error if an argument is out of range or the writer fails on its own. `DataLoss`,
/// after the report, if data was lost or corrupt.
pub(crate) fn run(args: &CrashArgs, env: &BenchEnv) -> Result<()> {
    args.check()?;
    if let Some(directory) = &args.child {
        return child::run(args, directory);
    }
    let watch = NoiseWatch::start();
    let figures = parent::run(args, env)?;
    let report = report::CrashReport::new(args, figures, watch.context(None));
    report.finish(args.json.as_deref())
}
