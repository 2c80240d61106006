//! How much a searcher may have under way, and what searchers share.

use base::{Error, Result};
use storage::ReaderOptions;
use storage::page::PAGE_BYTES;

use super::blocks::{BlockStats, Blocks};
use super::cache::{CacheStats, RecordCache};
use super::checked::CheckedFiles;
use super::plan::Joining;

/// Most queries that one searcher interleaves.
pub const QUERIES_MAX: usize = 16;
/// Most reads that one searcher has in flight.
pub const IN_FLIGHT_MAX: usize = 256;
/// Bytes of the largest read that may be asked for: the longest record and its header, in pages.
pub const READ_BYTES_MAX: usize = (1 << 20) + PAGE_BYTES;

/// What one searcher may have under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchLimits {
    /// Queries at once, up to [`QUERIES_MAX`]. While the oldest waits for its first reads, the next ones are scored.
    pub queries: usize,
    /// Reads in flight for one query. They are submitted by the half of it, and a batch costs the processor more than
    /// its reads do (on a virtual disk each is an exit to the hypervisor), so it is larger than the device needs to be
    /// busy. Reads then wait for each other in the device, which is hidden behind the scoring of what came first.
    pub query_in_flight: usize,
    /// Reads in flight in all, up to [`IN_FLIGHT_MAX`].
    pub in_flight: usize,
    /// Bytes of the largest read: of the longest record, at least. Each read in flight has a buffer of this size.
    pub read_bytes_max: usize,
    /// Bytes of the largest read that is made of several pages beside each other.
    pub joined_bytes_max: usize,
    /// Unwanted bytes that are read along to join two wanted pages: a read costs the processor more than a page does.
    /// Where the device's bandwidth is what is short, less is better.
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
    /// What to ask a medium's [`storage::Medium::reader`] for.
    pub fn reader_options(&self) -> ReaderOptions {
        ReaderOptions { depth: self.in_flight, read_bytes_max: self.read_bytes_max }
    }

    pub(super) fn check(&self) -> Result<()> {
        let aligned = |bytes: usize| bytes.is_multiple_of(PAGE_BYTES);
        if !(1..=QUERIES_MAX).contains(&self.queries) || !(1..=IN_FLIGHT_MAX).contains(&self.in_flight) {
            return Err(Error::invalid(format!(
                "a searcher takes 1 to {QUERIES_MAX} queries and 1 to {IN_FLIGHT_MAX} reads at once"
            )));
        }
        if self.query_in_flight == 0 || !(PAGE_BYTES..=READ_BYTES_MAX).contains(&self.read_bytes_max) {
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

/// One part in so many of the cache's bytes holds records one by one, the others hold blocks of files.
///
/// Where queries have no favourites, each byte of a block spares as much as any other, and a record by itself nearly
/// nothing; where the same queries come again and again, a quarter of the bytes still has room for what hundreds of them
/// ask for, if they ask for fingerprints, or dozens, if for photographs.
const RECORDS_SHARE: u64 = 4;

/// What the searchers of a process share.
#[derive(Debug)]
pub struct SharedCaches {
    pub(super) cache: Option<RecordCache>,
    pub(super) blocks: Option<Blocks>,
    pub(super) checked: CheckedFiles,
    cache_bytes: u64,
}

impl SharedCaches {
    /// A cache of `cache_bytes` (0, or too few for a record: none) for records of about `record_bytes`: a part of it for
    /// single records, whose memory is taken now, the other for blocks, whose memory is taken as they come. Where it is
    /// too small for some blocks, it is all for records. Files in memory have a bit for each page beside it.
    pub fn new(cache_bytes: u64, record_bytes: u32) -> SharedCaches {
        let for_blocks = cache_bytes - cache_bytes / RECORDS_SHARE;
        let blocks = Blocks::new(for_blocks);
        let for_records = if blocks.is_some() { cache_bytes - for_blocks } else { cache_bytes };
        let cache = RecordCache::new(for_records, record_bytes);
        let cache_bytes = if cache.is_some() || blocks.is_some() { cache_bytes } else { 0 };
        SharedCaches { cache, blocks, checked: CheckedFiles::default(), cache_bytes }
    }

    /// Bytes that the caches may take; 0 where there are none.
    pub fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    /// What the record cache has done; `None` where there is none.
    pub fn cache_stats(&self) -> Option<CacheStats> {
        self.cache.as_ref().map(RecordCache::stats)
    }

    /// What the block cache has done; `None` where there is none.
    pub fn block_stats(&self) -> Option<BlockStats> {
        self.blocks.as_ref().map(Blocks::stats)
    }

    /// Forgets a file (by [`storage::Sealed::id`]) that nobody will search any more. Its records leave the cache by
    /// themselves, because nobody asks for them.
    pub fn forget(&self, file: u64) {
        self.checked.forget(file);
        if let Some(blocks) = &self.blocks {
            blocks.forget(file);
        }
    }
}
