//! Options of a registry.

use std::path::PathBuf;
use std::time::Duration;

use base::units::format_bytes;
use base::{Error, Result};
use os::Rate;

use super::media::MediumChoice;
use crate::codes::CodesPlace;
use crate::collection::{Merging, PAYLOAD_BYTES_MAX, QuietTimes, SHARED_VALUES_MIN};
use crate::points::uuid_hash;

/// Default maximum of collections.
pub(super) const COLLECTIONS_MAX: usize = 1000;
/// Minimum memory.
const MEMORY_BYTES_MIN: u64 = 32 << 20;

/// Directory, memory and threads that all collections of a server share.
#[derive(Clone, Debug)]
pub struct RegistryOptions {
    /// Directory of the collections.
    pub directory: PathBuf,
    /// Maximum bytes of memory of all collections together: unflushed points, codes, ids and maps,
    /// filters, flushes and merges, buffers of search threads, and the caches.
    pub memory_bytes: u64,
    /// Bytes of it for the caches of records and of whole blocks of their files.
    pub cache_bytes: u64,
    /// Maximum bytes of a memtable, or 0 for a share of the memory.
    pub memtable_bytes: u64,
    /// Search threads, or 0 for one per core.
    pub threads: usize,
    /// Maximum waiting queries.
    pub queue_max: usize,
    /// Access to files of collections that do not choose themselves.
    pub medium: MediumChoice,
    /// NUMA node of files in DRAM, or any if `None`.
    pub memory_node: Option<u32>,
    /// Place of the codes of segments.
    pub codes: CodesPlace,
    /// Threads that build the index of a new segment.
    pub build_threads: usize,
    /// When segments are merged.
    pub merging: Merging,
    /// When a collection that gets no points prepares for reads.
    pub quiet: QuietTimes,
    /// Maximum collections.
    pub collections_max: usize,
    /// Bytes per second that flushes and merges read and write together. Reads of queries go first
    /// while the device is not saturated.
    pub background_rate: Rate,
    /// Function that hashes a UUID to 63 bits. Functions other than [`uuid_hash`] are for tests,
    /// because collections store the hashes.
    pub uuid_hash: fn(&[u8; 16]) -> u64,
    /// Longest wait of an alias change for writes in progress. New writes wait meanwhile.
    pub alias_wait_max: Duration,
    /// As [`crate::collection::CollectionOptions::shared_values_min`].
    pub shared_values_min: u64,
    /// As [`crate::collection::CollectionOptions::payload_bytes_max`].
    pub payload_bytes_max: usize,
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
            memory_node: None,
            codes: CodesPlace::Auto,
            build_threads: 1,
            merging: Merging::default(),
            quiet: QuietTimes::default(),
            shared_values_min: SHARED_VALUES_MIN,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            collections_max: COLLECTIONS_MAX,
            background_rate: Rate::per_second(64 << 20),
            uuid_hash,
            alias_wait_max: Duration::from_secs(5),
            disk_reserve: None,
        }
    }

    /// Creates options for the tests of other crates: 256 MiB of memory, no caches, one search
    /// thread, and mapped files. Writes are accepted on a full disk.
    pub fn for_tests(directory: impl Into<PathBuf>) -> RegistryOptions {
        RegistryOptions {
            memory_bytes: 256 << 20,
            cache_bytes: 0,
            threads: 1,
            medium: MediumChoice::Mmap,
            disk_reserve: Some(0),
            ..RegistryOptions::new(directory)
        }
    }

    /// Checks the memory of all collections, and the part of the caches.
    ///
    /// # Errors
    /// `InvalidArgument` if there is too little memory, or if the caches take more than half of it.
    pub fn check_memory(&self) -> Result<()> {
        if self.memory_bytes >= MEMORY_BYTES_MIN && self.cache_bytes <= self.memory_bytes / 2 {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "--search-memory is {} and --search-cache {}; give at least {} of memory, and at most \
             half of it to the cache",
            format_bytes(self.memory_bytes),
            format_bytes(self.cache_bytes),
            format_bytes(MEMORY_BYTES_MIN)
        )))
    }

    pub(super) fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }
}
