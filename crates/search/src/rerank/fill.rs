//! Reads of blocks for the block cache, in addition to the reads of queries.

use std::sync::Arc;

use base::Result;
use storage::Sealed;
use storage::page::PAGE_BYTES;

use super::blocks::{BLOCK_BYTES, BlockKey, Blocks};

/// Bit that marks the tags of these reads.
const FILL_TAG: u64 = 1 << 63;

/// Returns true if a read with this tag is for a block.
pub(super) fn is_fill(tag: u64) -> bool {
    tag & FILL_TAG != 0
}

/// Read of a part of a block.
pub(super) struct BlockRead {
    pub(super) tag: u64,
    pub(super) file: Arc<dyn Sealed>,
    pub(super) offset: u64,
    pub(super) bytes: usize,
}

/// The block that a searcher reads, one at a time, so that the cache fills at a bounded rate. Parts
/// that arrive after their queries ended are still useful.
#[derive(Debug, Default)]
pub(super) struct Filler {
    job: Option<BlockFill>,
    /// Buffer of the next block: new, or of an evicted block.
    buffer: Option<Box<[u8]>>,
}

/// A block whose parts are being read.
#[derive(Debug)]
struct BlockFill {
    key: BlockKey,
    file: Arc<dyn Sealed>,
    bytes: usize,
    /// Bytes whose reads were submitted.
    submitted: usize,
    /// Number of reads in flight.
    in_flight: usize,
    /// True if a read has failed, so that the block is not cached.
    failed: bool,
}

impl Filler {
    pub(super) fn is_idle(&self) -> bool {
        self.job.is_none()
    }

    /// Starts to read a block.
    pub(super) fn begin(&mut self, key: BlockKey, file: &Arc<dyn Sealed>) {
        let left = file.bytes().saturating_sub(key.start()).min(BLOCK_BYTES as u64) as usize;
        let bytes = left - left % PAGE_BYTES;
        if bytes > 0 {
            let file = file.clone();
            self.job =
                Some(BlockFill { key, file, bytes, submitted: 0, in_flight: 0, failed: false });
        }
    }

    /// Returns the next read of at most `bytes_max`. The caller submits it or calls
    /// [`arrive`](Filler::arrive).
    pub(super) fn next_part(&mut self, bytes_max: usize) -> Option<BlockRead> {
        let job = self.job.as_mut().filter(|job| !job.failed && job.submitted < job.bytes)?;
        let at = job.submitted;
        let bytes = (job.bytes - job.submitted).min(bytes_max);
        job.submitted += bytes;
        job.in_flight += 1;
        Some(BlockRead {
            tag: FILL_TAG | at as u64,
            file: job.file.clone(),
            offset: job.key.start() + at as u64,
            bytes,
        })
    }

    /// Takes the result of a read. The block is cached once all reads succeeded.
    pub(super) fn arrive(&mut self, tag: u64, result: Result<&[u8]>, blocks: Option<&Blocks>) {
        let Some(job) = self.job.as_mut() else { return };
        job.in_flight = job.in_flight.saturating_sub(1);
        let buffer = self.buffer.get_or_insert_with(|| vec![0; BLOCK_BYTES].into());
        let at = (tag & !FILL_TAG) as usize;
        match result.ok().and_then(|bytes| Some((buffer.get_mut(at..at + bytes.len())?, bytes))) {
            Some((to, bytes)) => to.copy_from_slice(bytes),
            None => job.failed = true,
        }
        if job.in_flight > 0 || (job.submitted < job.bytes && !job.failed) {
            return;
        }
        if let (false, Some(blocks)) = (job.failed, blocks) {
            blocks.put(job.key, &mut self.buffer, job.bytes);
        }
        self.job = None;
    }

    /// Forgets the block. None of its reads is in flight any more.
    pub(super) fn clear(&mut self) {
        self.job = None;
    }
}

const _: () = assert!(BLOCK_BYTES.is_multiple_of(PAGE_BYTES), "reads are whole pages");
