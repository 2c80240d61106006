//! Loads of weights: read into recycled memory, hashed on the way, shared by hash.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use base::{Error, Result};
use parking_lot::Mutex;

use crate::plan::{ChunkPlace, FileSpan, LoadPlan};
use crate::pool::check_stop;
use crate::{PacedReader, Region, RegionMut, SlotPool};
use os::{DIRECT_ALIGNMENT, DirectFile, Pacer, Rate};

/// Minimum bytes of a chunk that gets slots of its own, so that other versions can share it.
/// Smaller chunks of a load are packed into one region.
pub const SHARE_MIN: u64 = 1 << 20;

/// Bytes read, hashed and paced at once. Large enough for a disk's full speed, small enough to be
/// in the core's cache when it is hashed.
pub(crate) const SLICE_BYTES: usize = 4 << 20;

const _: () =
    assert!(SLICE_BYTES.is_multiple_of(DIRECT_ALIGNMENT) && SHARE_MIN as usize <= SLICE_BYTES);

/// One tensor in a weights file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// BLAKE3 hash of its bytes.
    pub hash: blake3::Hash,
    /// Offset in the file, a multiple of 4096.
    pub offset: u64,
    /// Number of bytes. May be 0.
    pub bytes: u64,
}

/// Configuration of reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoreConfig {
    /// Read rate of all loads together.
    pub read_rate: Rate,
    /// True to bypass the page cache if the file system allows it.
    pub direct: bool,
}

/// A chunk in memory.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Region that holds the bytes.
    pub region: Arc<Region>,
    /// Offset in the region, a multiple of 4096.
    pub offset: usize,
    /// Length of the chunk in bytes.
    pub bytes: usize,
}

impl Placement {
    /// Returns the chunk's bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.region.as_slice()[self.offset..self.offset + self.bytes]
    }
}

/// Result of a load.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Placement of each chunk, in the requested order.
    pub placed: Vec<Placement>,
    /// Figures of the load.
    pub report: LoadReport,
}

/// Figures of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadReport {
    /// Bytes of chunks read from the file.
    pub bytes_read: u64,
    /// Bytes of chunks that were in memory already, or twice in the file.
    pub bytes_shared: u64,
    /// True if the reads bypassed the page cache.
    pub direct: bool,
    /// Duration, including the time to fault in new slots.
    pub seconds: f64,
}

/// Figures of a store since it was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStats {
    /// Loads that succeeded.
    pub loads: u64,
    /// Bytes read by these loads.
    pub bytes_read: u64,
    /// Bytes shared by these loads.
    pub bytes_shared: u64,
    /// Live regions that a load could share.
    pub regions: u64,
    /// First reason why O_DIRECT was refused.
    pub direct_refusal: Option<String>,
}

/// Loads parameters into a [`SlotPool`] and finds loaded ones by hash. Concurrent loads share the
/// read rate.
///
/// # Example: a second load shares the chunk of the first
/// ```
/// use std::sync::atomic::AtomicBool;
///
/// use millpond_memory::{Chunk, ParameterStore, PoolConfig, SHARE_MIN, SlotPool, StoreConfig};
/// use os::Rate;
///
/// let file = tempfile::NamedTempFile::new()?;
/// let weights = vec![7u8; SHARE_MIN as usize];
/// std::fs::write(file.path(), &weights)?;
/// let chunk = Chunk { hash: blake3::hash(&weights), offset: 0, bytes: SHARE_MIN };
///
/// let fault_rate = Rate::unlimited();
/// let pool = SlotPool::new(PoolConfig { bytes_max: 8 << 20, huge_pages: false, fault_rate })?;
/// let config = StoreConfig { read_rate: Rate::unlimited(), direct: true };
/// let store = ParameterStore::new(pool, config);
/// let stop = AtomicBool::new(false);
/// let first = store.load(file.path(), &[chunk], &stop)?;
/// let second = store.load(file.path(), &[chunk], &stop)?;
/// assert_eq!(first.report.bytes_read, SHARE_MIN);
/// assert_eq!(second.report.bytes_shared, SHARE_MIN);
/// assert!(second.placed[0].as_slice() == weights);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ParameterStore {
    pool: Arc<SlotPool>,
    /// True if files are read past the page cache.
    direct: bool,
    pacer: Pacer,
    /// Regions that hold one whole chunk, by its hash and length, while a version keeps them alive.
    alive: Mutex<HashMap<(blake3::Hash, u64), Weak<Region>>>,
    direct_refusal: OnceLock<String>,
    loads: AtomicU64,
    bytes_read: AtomicU64,
    bytes_shared: AtomicU64,
}

impl ParameterStore {
    /// Creates a store that places parameters in `pool`.
    pub fn new(pool: Arc<SlotPool>, config: StoreConfig) -> Arc<ParameterStore> {
        Arc::new(ParameterStore {
            pool,
            direct: config.direct,
            pacer: Pacer::new(config.read_rate),
            alive: Mutex::new(HashMap::new()),
            direct_refusal: OnceLock::new(),
            loads: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_shared: AtomicU64::new(0),
        })
    }

    /// Returns the pool of the parameters.
    pub fn pool(&self) -> &Arc<SlotPool> {
        &self.pool
    }

    /// Returns the bytes of slots that a load of `chunks` would take now, without shared chunks. 0
    /// for chunks that no load would accept.
    pub fn bytes_needed(&self, chunks: &[Chunk]) -> u64 {
        self.plan(chunks).map_or(0, |plan| {
            plan.regions.iter().map(|&bytes| SlotPool::footprint(bytes as u64)).sum()
        })
    }

    /// Reads `chunks` of `file` into memory and checks each against its hash. Chunks in another
    /// load's region are shared and not read. Runs on the calling thread at the store's rate, and
    /// ends within a slice of setting `stop`. In every case, slots that are not in the result
    /// return to the pool.
    ///
    /// # Errors
    /// `DataLoss` if the file is truncated or a chunk does not match its hash. `ResourceExhausted`
    /// if the pool has no room. `Cancelled` after `stop`. Also the errors of opening and reading a
    /// file.
    pub fn load(&self, file: &Path, chunks: &[Chunk], stop: &AtomicBool) -> Result<Loaded> {
        let started = Instant::now();
        let plan = self.plan(chunks).map_err(|e| e.context(file.display()))?;
        let mut reader = RegionReader::open(file, self.direct, chunks, &self.pacer, stop)?;
        let mut regions = Vec::with_capacity(plan.regions.len());
        for &bytes in &plan.regions {
            regions.push(self.pool.allocate_unless(bytes, stop)?);
        }
        for span in &plan.spans {
            reader.fill(span, &mut regions[span.region])?;
        }
        let regions: Vec<Arc<Region>> =
            regions.into_iter().map(|region| Arc::new(region.freeze())).collect();
        self.register(&plan, chunks, &regions);
        self.note_refusal(&reader.source);
        let mut report = LoadReport {
            bytes_read: reader.bytes_read,
            bytes_shared: chunks.iter().map(|chunk| chunk.bytes).sum::<u64>() - reader.bytes_read,
            direct: reader.source.is_direct(),
            seconds: 0.0,
        };
        let placed = place(plan.places, chunks, &regions);
        self.count(&report);
        report.seconds = started.elapsed().as_secs_f64();
        Ok(Loaded { placed, report })
    }

    /// Opens `file` for a library that reads it itself, past the page cache if possible. Reads keep
    /// to the store's rate, and end once `stop` is set.
    ///
    /// # Errors
    /// Returns the errors of [`DirectFile::open`]. `Cancelled` after `stop`.
    pub fn reader(self: &Arc<Self>, file: &Path, stop: Arc<AtomicBool>) -> Result<PacedReader> {
        PacedReader::open(self.clone(), file, self.direct, stop)
    }

    pub(crate) fn pacer(&self) -> &Pacer {
        &self.pacer
    }

    /// Returns the current figures.
    pub fn stats(&self) -> StoreStats {
        let regions =
            self.alive.lock().values().filter(|region| region.strong_count() > 0).count() as u64;
        StoreStats {
            loads: self.loads.load(Ordering::Relaxed),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_shared: self.bytes_shared.load(Ordering::Relaxed),
            regions,
            direct_refusal: self.direct_refusal.get().cloned(),
        }
    }

    fn plan(&self, chunks: &[Chunk]) -> Result<LoadPlan<Arc<Region>>> {
        let alive = self.alive.lock();
        LoadPlan::new(chunks, |chunk| alive.get(&(chunk.hash, chunk.bytes))?.upgrade())
    }

    /// Registers the regions that hold one whole chunk for later loads, and drops dead ones.
    fn register(&self, plan: &LoadPlan<Arc<Region>>, chunks: &[Chunk], regions: &[Arc<Region>]) {
        let mut alive = self.alive.lock();
        alive.retain(|_, region| region.strong_count() > 0);
        for span in &plan.spans {
            if let [index] = span.chunks[..]
                && chunks[index].bytes >= SHARE_MIN
            {
                let key = (chunks[index].hash, chunks[index].bytes);
                alive.insert(key, Arc::downgrade(&regions[span.region]));
            }
        }
    }

    pub(crate) fn note_refusal(&self, source: &DirectFile) {
        if let Some(reason) = source.refusal()
            && self.direct_refusal.set(reason.to_owned()).is_ok()
        {
            tracing::warn!(reason, "weights are read through the page cache");
        }
    }

    fn count(&self, report: &LoadReport) {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(report.bytes_read, Ordering::Relaxed);
        self.bytes_shared.fetch_add(report.bytes_shared, Ordering::Relaxed);
    }
}

/// Returns the region and offset of each chunk. `regions` are the new regions of the load.
fn place(
    places: Vec<ChunkPlace<Arc<Region>>>,
    chunks: &[Chunk],
    regions: &[Arc<Region>],
) -> Vec<Placement> {
    places
        .into_iter()
        .zip(chunks)
        .map(|(home, chunk)| {
            // The plan refused lengths that do not fit.
            let bytes = chunk.bytes as usize;
            match home {
                ChunkPlace::Alive(region) => Placement { region, offset: 0, bytes },
                ChunkPlace::Fresh { region, offset } => {
                    Placement { region: regions[region].clone(), offset, bytes }
                }
            }
        })
        .collect()
}

/// A file that is read into regions.
struct RegionReader<'a> {
    path: &'a Path,
    source: DirectFile,
    chunks: &'a [Chunk],
    pacer: &'a Pacer,
    stop: &'a AtomicBool,
    bytes_read: u64,
}

impl<'a> RegionReader<'a> {
    /// Opens `path` to read `chunks`, which must lie in the file. `direct` requests reads past the
    /// page cache (O_DIRECT).
    fn open(
        path: &'a Path,
        direct: bool,
        chunks: &'a [Chunk],
        pacer: &'a Pacer,
        stop: &'a AtomicBool,
    ) -> Result<RegionReader<'a>> {
        check_stop(stop)?;
        let source = DirectFile::open(path, direct)?;
        let reader = RegionReader { path, source, chunks, pacer, stop, bytes_read: 0 };
        // Checked before memory is taken.
        match chunks.iter().position(|chunk| chunk.offset + chunk.bytes > reader.source.bytes()) {
            Some(index) => Err(reader.damaged(index, "lies past the end of the file")),
            None => Ok(reader),
        }
    }

    /// Reads one span to its place and checks its chunks.
    fn fill(&mut self, span: &FileSpan, region: &mut RegionMut) -> Result<()> {
        let buffer = &mut region.as_mut_slice()[span.region_offset..][..span.whole()];
        let mut hasher = blake3::Hasher::new();
        for start in (0..span.bytes).step_by(SLICE_BYTES) {
            let slice = start..span.bytes.min(start + SLICE_BYTES);
            check_stop(self.stop)?;
            self.pacer.wait(slice.len() as u64);
            self.source.read_exact_at(
                &mut buffer[start..],
                span.offset + start as u64,
                slice.len(),
            )?;
            // A group of small chunks is one slice, hashed chunk by chunk below.
            if span.chunks.len() == 1 {
                hasher.update(&buffer[slice]);
            }
        }
        match span.chunks[..] {
            [index] => self.check(index, hasher.finalize()),
            _ => span.chunks.iter().try_for_each(|&index| {
                let start = (self.chunks[index].offset - span.offset) as usize;
                let bytes = self.chunks[index].bytes as usize;
                self.check(index, blake3::hash(&buffer[start..start + bytes]))
            }),
        }
    }

    fn check(&mut self, index: usize, hash: blake3::Hash) -> Result<()> {
        if hash != self.chunks[index].hash {
            return Err(self.damaged(index, "does not match its hash"));
        }
        self.bytes_read += self.chunks[index].bytes;
        Ok(())
    }

    fn damaged(&self, index: usize, how: &str) -> Error {
        let Chunk { offset, bytes, .. } = self.chunks[index];
        let path = self.path.display();
        Error::data_loss(format!(
            "{path}: chunk {index} ({bytes} bytes at {offset}) {how}; publish the version again"
        ))
    }
}
