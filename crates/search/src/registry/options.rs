//! What a registry may use.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{ErrorKind, Result};
use memory::{PoolConfig, Rate, SlotPool};
use storage::{DramMedium, Medium, MmapMedium, UringMedium};

use crate::points::uuid_hash;

/// Most collections of a registry, unless its options say otherwise.
pub(super) const COLLECTIONS_MAX: usize = 1000;

/// How collections' files are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediumChoice {
    /// Through io_uring, or where the system refuses that, by ordinary reads.
    #[default]
    Auto,
    /// Through io_uring past the page cache.
    Nvme,
    /// Copied to memory when they are opened: half of the memory limit holds files, the other half the rest.
    Dram,
    /// Mapped through the page cache, which is outside the limit.
    Mmap,
}

/// What a registry may use.
#[derive(Clone, Debug)]
pub struct RegistryOptions {
    /// Where the collections lie.
    pub directory: PathBuf,
    /// Most bytes of memory that all collections may take together: unsealed points, codes, ids and maps, filters,
    /// sealing and merging, search threads' buffers, and the record cache.
    pub memory_bytes: u64,
    /// Bytes of it for the cache of records, and of whole blocks of their files.
    pub cache_bytes: u64,
    /// Search threads; 0: as many as there are cores.
    pub threads: usize,
    /// Queries that may wait for one of them.
    pub queue_max: usize,
    /// How files are read.
    pub medium: MediumChoice,
    /// Most collections.
    pub collections_max: usize,
    /// Bytes a second that sealing and merging read and write together. A query's own reads go before them as long as
    /// the device has not been filled up.
    pub background_rate: Rate,
    /// What makes 63 bits of a UUID. Another function than [`uuid_hash`] is for tests: collections keep what it gave.
    pub uuid_hash: fn(&[u8; 16]) -> u64,
    /// How long a change of aliases waits for writes under way, and holds up new ones meanwhile.
    pub alias_wait_max: Duration,
    /// Bytes of the disk that stay free, as [`crate::collection::CollectionOptions::disk_reserve`].
    pub disk_reserve: Option<u64>,
}

impl RegistryOptions {
    /// Memory of a collection server on a small machine: 1 GiB, 128 MiB of it for the record cache.
    pub fn new(directory: impl Into<PathBuf>) -> RegistryOptions {
        RegistryOptions {
            directory: directory.into(),
            memory_bytes: 1 << 30,
            cache_bytes: 128 << 20,
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

/// Makes a collection's medium.
pub(super) struct Media {
    choice: MediumChoice,
    pool: Option<Arc<SlotPool>>,
}

impl Media {
    /// And what is left of the memory for everything but files.
    pub(super) fn new(choice: MediumChoice, memory_bytes: u64) -> Result<(Media, u64)> {
        let half = memory_bytes / 2;
        if choice != MediumChoice::Dram {
            return Ok((Media { choice, pool: None }, memory_bytes));
        }
        let config = PoolConfig { bytes_max: half, huge_pages: true, fault_rate: Rate::unlimited() };
        Ok((Media { choice, pool: Some(SlotPool::new(config)?) }, memory_bytes - half))
    }

    pub(super) fn medium(&self, directory: &Path) -> Result<Arc<dyn Medium>> {
        let directory = directory.to_owned();
        match (self.choice, &self.pool) {
            (MediumChoice::Dram, Some(pool)) => Ok(Arc::new(DramMedium::new(pool.clone(), Some(directory))?)),
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
