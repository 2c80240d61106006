//! Options of a registry.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{ErrorKind, Result};
use memory::{PoolConfig, SlotPool};
use os::Rate;
use storage::{DaxMedium, DramMedium, Medium, MmapMedium, UringMedium};

use crate::points::uuid_hash;

/// Default maximum of collections.
pub(super) const COLLECTIONS_MAX: usize = 1000;

/// Access to the files of collections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediumChoice {
    /// Through io_uring, or ordinary reads if the system refuses it.
    #[default]
    Auto,
    /// Through io_uring, bypassing the page cache.
    Nvme,
    /// Copied to memory when opened: half of the memory limit is for files, half for the rest.
    Dram,
    /// Mapped through the page cache, which is outside of the limit.
    Mmap,
    /// Mapped as persistent memory is, but simulated with ordinary files. For tests.
    Pmem,
}

/// Options of a registry.
#[derive(Clone, Debug)]
pub struct RegistryOptions {
    /// Directory of the collections.
    pub directory: PathBuf,
    /// Maximum bytes of memory of all collections together: unflushed points, codes, ids and maps,
    /// filters, flushes and merges, buffers of search threads, and the caches.
    pub memory_bytes: u64,
    /// Bytes of it for the caches of records and of whole blocks of their files.
    pub cache_bytes: u64,
    /// Maximum bytes of a memtable; 0 for a share of the memory.
    pub memtable_bytes: u64,
    /// Search threads; 0 for one per core.
    pub threads: usize,
    /// Maximum waiting queries.
    pub queue_max: usize,
    /// Access to files.
    pub medium: MediumChoice,
    /// Maximum collections.
    pub collections_max: usize,
    /// Bytes per second that flushes and merges read and write together. Reads of queries go first
    /// while the device is not saturated.
    pub background_rate: Rate,
    /// Function that hashes a UUID to 63 bits. Others than [`uuid_hash`] are for tests: collections
    /// store the hashes.
    pub uuid_hash: fn(&[u8; 16]) -> u64,
    /// Longest wait of an alias change for writes in progress. New writes wait meanwhile.
    pub alias_wait_max: Duration,
    /// Bytes of disk to keep free, as [`crate::collection::CollectionOptions::disk_reserve`].
    pub disk_reserve: Option<u64>,
}

impl RegistryOptions {
    /// Creates options for a small machine: 1 GiB of memory, 128 MiB of it for the record cache.
    pub fn new(directory: impl Into<PathBuf>) -> RegistryOptions {
        RegistryOptions {
            directory: directory.into(),
            memory_bytes: 1 << 30,
            cache_bytes: 128 << 20,
            memtable_bytes: 0,
            threads: 0,
            queue_max: 1024,
            medium: MediumChoice::Auto,
            collections_max: COLLECTIONS_MAX,
            background_rate: Rate::per_second(64 << 20),
            uuid_hash,
            alias_wait_max: Duration::from_secs(5),
            disk_reserve: None,
        }
    }

    pub(super) fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }
}

/// Factory of the collections' media.
pub(super) struct Media {
    choice: MediumChoice,
    pool: Option<Arc<SlotPool>>,
}

impl Media {
    /// Also returns the memory left for everything but files.
    pub(super) fn new(choice: MediumChoice, memory_bytes: u64) -> Result<(Media, u64)> {
        let half = memory_bytes / 2;
        if choice != MediumChoice::Dram {
            return Ok((Media { choice, pool: None }, memory_bytes));
        }
        let config =
            PoolConfig { bytes_max: half, huge_pages: true, fault_rate: Rate::unlimited() };
        Ok((Media { choice, pool: Some(SlotPool::new(config)?) }, memory_bytes - half))
    }

    pub(super) fn medium(&self, directory: &Path) -> Result<Arc<dyn Medium>> {
        let directory = directory.to_owned();
        match (self.choice, &self.pool) {
            (MediumChoice::Dram, Some(pool)) => {
                Ok(Arc::new(DramMedium::new(pool.clone(), Some(directory))?))
            }
            (MediumChoice::Pmem, _) => Ok(Arc::new(DaxMedium::new(directory, true)?)),
            (MediumChoice::Mmap, _) => Ok(Arc::new(MmapMedium::new(directory)?)),
            (MediumChoice::Auto, _) => match UringMedium::new(directory.clone()) {
                Ok(medium) => Ok(Arc::new(medium)),
                Err(error) if error.kind() == ErrorKind::Unimplemented => {
                    tracing::warn!(%error, "files are read one at a time");
                    Ok(Arc::new(UringMedium::plain(directory)?))
                }
                Err(error) => Err(error),
            },
            _ => Ok(Arc::new(UringMedium::new(directory)?)),
        }
    }
}
