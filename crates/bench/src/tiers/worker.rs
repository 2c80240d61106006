//! The process of one arm. It waits for its turns on its standard input. Each arm has its own
//! process, so that its resident memory is its own.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Error, Result};
use clap::ValueEnum;
use memory::{PoolConfig, SlotPool};
use os::Rate;
use search::rerank::{Records, SearchLimits, Searcher, SharedCaches};
use serde::{Deserialize, Serialize};
use storage::{DaxMedium, DramMedium, Medium, MmapMedium, Sealed, UringMedium};

use super::scorer::{GraphScorer, Spinner};
use super::subject::{OpenSegment, TierQuery, TierRecordMaker, TierShape, query_of};
use super::turn::{QueryStage, TurnOrder, TurnResult, take_turn};
use super::{DATA, DAX_MISSING, TiersArgs};

/// Time between two checks of the mapped arm's memory.
const RECLAIM_PERIOD: Duration = Duration::from_millis(2);
/// Number of stretches in which the mapped file is dropped from memory, in turn.
const RECLAIM_STRETCHES: u64 = 64;
/// Number of queries of a batch that warms the cache.
const WARM_QUERIES: usize = 64;
/// Maximum number of batches that warm the cache.
const WARM_BATCHES_MAX: u32 = 4096;
/// Stream of the queries before the measured ones.
const EARLIER: u64 = 0;

/// Medium of an arm's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TierArm {
    /// In memory.
    Dram,
    /// Read by io_uring without the page cache.
    Nvme,
    /// Mapped through the page cache.
    Mmap,
    /// Persistent memory's code path on tmpfs.
    Pmem,
    /// In place on persistent memory.
    Dax,
}

impl TierArm {
    pub(super) fn name(self) -> &'static str {
        match self {
            TierArm::Dram => "dram",
            TierArm::Nvme => "nvme",
            TierArm::Mmap => "mmap",
            TierArm::Pmem => "pmem",
            TierArm::Dax => "dax",
        }
    }
}

/// The parent's message to a worker at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct WorkerJob {
    pub(super) arm: TierArm,
    /// Bytes of the record cache.
    pub(super) cache_bytes: u64,
    /// Bytes of the file that the mapped arm may have in memory.
    pub(super) mapped_bytes: u64,
    pub(super) record_bytes: u32,
    /// Number of all records.
    pub(super) records: u32,
    pub(super) segments: u32,
}

impl WorkerJob {
    /// Returns true if the queries of both jobs find the same records.
    pub(super) fn has_records_of(&self, other: &WorkerJob) -> bool {
        self.records == other.records && self.segments == other.segments
    }
}

/// First message of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct WorkerReady {
    /// Number of queries that warmed the cache.
    pub(super) warmed: u64,
    /// Limitation of the medium, in words.
    pub(super) note: Option<String>,
}

/// Runs the process of an arm until its standard input ends.
///
/// # Errors
/// Returns an error if the medium or a reader fails.
pub(super) fn run(args: &TiersArgs, dir: &Path, job: &str) -> Result<()> {
    let job: WorkerJob =
        serde_json::from_str(job).map_err(|e| Error::invalid("--worker").caused_by(e))?;
    let shape = TierShape::new(args, job.records, job.segments);
    let mut worker = TierWorker::open(args, dir, &job, shape)?;
    let warmed = worker.warm()?;
    say(&WorkerReady { warmed, note: worker.note.take() })?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| Error::internal("standard input").caused_by(e))?;
        let order: TurnOrder =
            serde_json::from_str(&line).map_err(|e| Error::invalid("an order").caused_by(e))?;
        say(&worker.turn(&order)?)?;
    }
    Ok(())
}

fn say(value: &impl Serialize) -> Result<()> {
    let text =
        serde_json::to_string(value).map_err(|e| Error::internal("an answer").caused_by(e))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|e| Error::internal("standard output").caused_by(e))
}

/// The files of the mapped arm, and the maximum of their bytes in memory.
struct Mapped {
    medium: Arc<MmapMedium>,
    files: Vec<Arc<dyn Sealed>>,
    bytes_max: u64,
}

struct TierWorker {
    medium: Arc<dyn Medium>,
    mapped: Option<Mapped>,
    segments: Arc<[Arc<dyn Records>]>,
    shared: Arc<SharedCaches>,
    limits: SearchLimits,
    threads: usize,
    shape: TierShape,
    maker: TierRecordMaker,
    has_cache: bool,
    note: Option<String>,
}

impl TierWorker {
    /// Opens the segments on the medium of the arm.
    fn open(args: &TiersArgs, dir: &Path, job: &WorkerJob, shape: TierShape) -> Result<TierWorker> {
        let data = dir.join(DATA);
        let mut mapped = None;
        let copies = || args.copies(job.arm).ok_or_else(|| Error::invalid(DAX_MISSING));
        let medium: Arc<dyn Medium> = match job.arm {
            TierArm::Dram => {
                let bytes_max = memory_for(&data, shape.segments)?;
                let config =
                    PoolConfig { bytes_max, huge_pages: true, fault_rate: Rate::unlimited() };
                Arc::new(DramMedium::new(SlotPool::new(config)?, Some(data))?)
            }
            TierArm::Nvme => Arc::new(UringMedium::new(data)?),
            TierArm::Pmem => Arc::new(DaxMedium::simulated(copies()?)?),
            TierArm::Dax => Arc::new(DaxMedium::new(copies()?)?),
            TierArm::Mmap => {
                let medium = Arc::new(MmapMedium::new(data)?);
                mapped = Some(medium.clone());
                medium
            }
        };
        let open = |segment| OpenSegment::open(medium.as_ref(), dir, segment);
        let segments: Vec<OpenSegment> = (0..shape.segments).map(open).collect::<Result<_>>()?;
        let files: Vec<Arc<dyn Sealed>> =
            segments.iter().map(|segment| segment.file().clone()).collect();
        let segments =
            segments.into_iter().map(|segment| Arc::new(segment) as Arc<dyn Records>).collect();
        Ok(TierWorker {
            medium,
            mapped: mapped.map(|medium| Mapped { medium, files, bytes_max: job.mapped_bytes }),
            segments,
            shared: Arc::new(SharedCaches::new(job.cache_bytes, job.record_bytes)),
            limits: args.limits(),
            threads: args.threads,
            shape,
            maker: TierRecordMaker::new(shape.kind),
            has_cache: job.cache_bytes > 0,
            note: None,
        })
    }

    fn searchers(&self, queries: usize) -> Result<Vec<Searcher>> {
        let limits = SearchLimits { queries, ..self.limits };
        let searcher = |_| {
            let reader = self.medium.reader(limits.reader_options())?;
            Searcher::new(reader, limits, self.shared.clone())
        };
        (0..self.threads).map(searcher).collect()
    }

    /// Runs earlier queries, which are not the measured ones, until records leave the cache and no
    /// further block fits. The first turn verifies pages in memory on the way. Returns the number
    /// of queries.
    fn warm(&self) -> Result<u64> {
        let mut warmed = 0;
        for batch in 0..WARM_BATCHES_MAX {
            let records_full = self.shared.cache_stats().is_none_or(|stats| stats.evicted > 0);
            let blocks_full =
                self.shared.block_stats().is_none_or(|stats| stats.blocks >= stats.blocks_max);
            if !self.has_cache || (records_full && blocks_full) {
                break;
            }
            let first = batch * WARM_QUERIES as u32;
            let queries = self.queries(EARLIER, first..first + WARM_QUERIES as u32);
            let stage = QueryStage { queries: &queries, segments: &self.segments };
            let cheap = |at: usize| Spinner { seed: at as u64, rounds: 0 };
            take_turn(&stage, &mut self.searchers(self.limits.queries)?, queries.len(), &cheap)?;
            warmed += queries.len() as u64;
        }
        Ok(warmed)
    }

    fn queries(&self, stream: u64, indices: std::ops::Range<u32>) -> Vec<TierQuery> {
        indices.map(|index| query_of(&self.shape, &self.maker, stream, index)).collect()
    }

    /// Runs the queries of a turn. Meanwhile, pages of mapped files are taken from memory.
    fn turn(&self, order: &TurnOrder) -> Result<TurnResult> {
        let queries = self.queries(order.stream, 0..order.queries as u32);
        let stage = QueryStage { queries: &queries, segments: &self.segments };
        let mut searchers = self.searchers(order.clients)?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if let Some(mapped) = &self.mapped {
                // Cold, as after a start.
                for file in &mapped.files {
                    mapped.medium.forget(file, 0, file.bytes() as usize)?;
                }
                scope.spawn(|| reclaim(mapped, &stop));
            }
            let turn = match order.spin_rounds {
                Some(rounds) => {
                    let spinner = |at: usize| Spinner { seed: at as u64, rounds };
                    take_turn(&stage, &mut searchers, queries.len(), &spinner)
                }
                None => {
                    let matcher = |at: usize| GraphScorer::new(&queries[at].graph);
                    take_turn(&stage, &mut searchers, queries.len(), &matcher)
                }
            };
            stop.store(true, Ordering::Relaxed);
            turn
        })
    }
}

/// Keeps the resident bytes of mapped files within bounds, as a smaller machine would. It drops
/// stretch by stretch, in turn. For evenly spread accesses that is as good as dropping the least
/// recently used.
fn reclaim(mapped: &Mapped, stop: &AtomicBool) {
    let Mapped { medium, files, bytes_max } = mapped;
    let resident = || os::process::memory().map_or(0, |memory| memory.file);
    let before = resident();
    let mut stretch = 0;
    while !stop.load(Ordering::Relaxed) {
        while resident().saturating_sub(before) > *bytes_max && !stop.load(Ordering::Relaxed) {
            let Some(file) = files.get((stretch / RECLAIM_STRETCHES) as usize % files.len().max(1))
            else {
                return;
            };
            let length = file.bytes().div_ceil(RECLAIM_STRETCHES).next_multiple_of(4096);
            let start = (stretch % RECLAIM_STRETCHES) * length;
            let end = (start + length).min(file.bytes());
            if start < end && medium.forget(file, start, (end - start) as usize).is_err() {
                return;
            }
            stretch += 1;
        }
        std::thread::sleep(RECLAIM_PERIOD);
    }
}

/// Returns the number of bytes of slots that the segments take, with room for their last pages.
fn memory_for(data: &Path, segments: u32) -> Result<u64> {
    let bytes = |segment| {
        let path = data.join(super::subject::segment_name(segment));
        let bytes = std::fs::metadata(&path).map_err(|e| Error::io(&path, &e))?.len();
        Ok(SlotPool::footprint(bytes + 4096))
    };
    (0..segments).map(bytes).sum()
}
