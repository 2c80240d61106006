//! Limits of a searcher, and the caches that searchers share.

use base::{Error, Result};
use storage::ReaderOptions;
use storage::page::PAGE_BYTES;

use super::blocks::{BlockStats, Blocks};
use super::cache::{CacheStats, RecordCache};
use super::checked::CheckedFiles;
use super::plan::Joining;

/// Maximum queries that one searcher interleaves.
pub(crate) const QUERIES_MAX: usize = 16;
/// Maximum reads in flight per searcher.
pub const IN_FLIGHT_MAX: usize = 256;
/// Maximum bytes of a read: the longest record and its header, in pages.
pub(crate) const READ_BYTES_MAX: usize = (1 << 20) + PAGE_BYTES;

/// Limits of the queries and reads that one searcher has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchLimits {
    /// Queries in progress, up to `QUERIES_MAX`. While the oldest waits for its first reads, the
    /// next ones are scored.
    pub queries: usize,
    /// Reads in flight per query. Half of them are submitted at a time, because a batch costs the
    /// processor more than its reads do. On a virtual disk each batch is an exit to the hypervisor.
    /// So the value is larger than the number that keeps the device busy. Reads then queue in the
    /// device while earlier records are scored.
    pub query_in_flight: usize,
    /// Reads in flight in total, up to [`IN_FLIGHT_MAX`].
    pub in_flight: usize,
    /// Maximum bytes of a read. They are at least the bytes of the longest record. Each read in
    /// flight has a buffer of this size.
    pub read_bytes_max: usize,
    /// Maximum bytes of a read of several neighbouring pages.
    pub joined_bytes_max: usize,
    /// Maximum unused bytes between two pages of one read. A read costs the processor more than a
    /// page. Less is better if the bandwidth of the device is the bottleneck.
    pub gap_bytes_max: usize,
}

impl Default for SearchLimits {
    fn default() -> SearchLimits {
        SearchLimits {
            queries: 3,
            query_in_flight: 64,
            in_flight: 192,
            read_bytes_max: 128 << 10,
            joined_bytes_max: 128 << 10,
            gap_bytes_max: 64 << 10,
        }
    }
}

impl SearchLimits {
    /// Returns the options for [`storage::Medium::reader`].
    pub fn reader_options(&self) -> ReaderOptions {
        ReaderOptions { depth: self.in_flight, read_bytes_max: self.read_bytes_max }
    }

    /// Checks that the limits fit each other and the constants of this module.
    pub(super) fn check(&self) -> Result<()> {
        let aligned = |bytes: usize| bytes.is_multiple_of(PAGE_BYTES);
        if !(1..=QUERIES_MAX).contains(&self.queries)
            || !(1..=IN_FLIGHT_MAX).contains(&self.in_flight)
        {
            return Err(Error::invalid(format!(
                "a searcher takes 1 to {QUERIES_MAX} queries and 1 to {IN_FLIGHT_MAX} reads at once"
            )));
        }
        if self.query_in_flight == 0
            || !(PAGE_BYTES..=READ_BYTES_MAX).contains(&self.read_bytes_max)
        {
            return Err(Error::invalid(format!(
                "a query needs a read in flight, and a read is {PAGE_BYTES} to {READ_BYTES_MAX} bytes"
            )));
        }
        if !aligned(self.read_bytes_max) || self.joined_bytes_max > self.read_bytes_max {
            return Err(Error::invalid(
                "the largest read must be whole pages, and joined reads not larger than it",
            ));
        }
        Ok(())
    }

    pub(super) fn joining(&self) -> Joining {
        Joining { bytes_max: self.joined_bytes_max as u32, gap_max: self.gap_bytes_max as u32 }
    }
}

/// Divisor of the cache's bytes for single records. The rest holds blocks of files.
///
/// If all records are used equally often, all bytes of blocks avoid equally many reads, and single
/// records save almost none. If queries repeat, a quarter of the bytes still holds the records of
/// hundreds of them for fingerprints, or of dozens for photographs.
const RECORDS_SHARE: u64 = 4;

/// Caches that the searchers of a process share.
#[derive(Debug)]
pub struct SharedCaches {
    pub(super) cache: Option<RecordCache>,
    pub(super) blocks: Option<Blocks>,
    pub(super) checked: CheckedFiles,
    cache_bytes: u64,
}

impl SharedCaches {
    /// Creates caches of `cache_bytes` in total for records of about `record_bytes`. If the bytes
    /// are 0 or too few for a record, there is no cache. A part is for single records and allocated
    /// now. The rest is for blocks and allocated as they come. If it is too small for some blocks,
    /// all of it is for records. Files in memory have one extra bit per page.
    pub fn new(cache_bytes: u64, record_bytes: u32) -> SharedCaches {
        let for_blocks = cache_bytes - cache_bytes / RECORDS_SHARE;
        let blocks = Blocks::new(for_blocks);
        let for_records = if blocks.is_some() { cache_bytes - for_blocks } else { cache_bytes };
        let cache = RecordCache::new(for_records, record_bytes);
        let cache_bytes = if cache.is_some() || blocks.is_some() { cache_bytes } else { 0 };
        SharedCaches { cache, blocks, checked: CheckedFiles::default(), cache_bytes }
    }

    /// Returns the maximum bytes of the caches, or 0 if there are none.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    /// Returns the counts of the record cache, if there is one.
    pub fn cache_stats(&self) -> Option<CacheStats> {
        self.cache.as_ref().map(RecordCache::stats)
    }

    /// Returns the counts of the block cache, if there is one.
    pub fn block_stats(&self) -> Option<BlockStats> {
        self.blocks.as_ref().map(Blocks::stats)
    }

    /// Forgets a file (by [`storage::Sealed::id`]) that is no longer searched. Its records are
    /// evicted over time.
    pub fn forget(&self, file: u64) {
        self.checked.forget(file);
        if let Some(blocks) = &self.blocks {
            blocks.forget(file);
        }
    }
}
