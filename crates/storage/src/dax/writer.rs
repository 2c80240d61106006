//! Writes a file in place: store, flush, fence, and commit by the length word.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;

use base::{Error, Result};

use super::lines::CacheLines;
use super::{MAGIC, PREFIX_BYTES, WORD_AT, encode_length, length_of};
use crate::directory::{OpenFile, check_write, io_error, refusal};
use crate::mapping::Mapping;
use crate::medium::Writer;
use crate::page::PAGE_BYTES;

/// A file grows in multiples of this, and doubles up to [`GROWTH_BYTES_MAX`]. Growth costs an
/// fsync, so it is rare.
const GROWTH_BYTES: u64 = 2 << 20;
/// Maximum bytes that a file grows by at once.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// Maximum ranges that are stored but not flushed. If there are more, they are flushed immediately.
const DIRTY_MAX: usize = 1024;
/// Longest file: the largest number of 48 bits.
const FILE_BYTES_MAX: u64 = (1 << 48) - 1;

pub(super) struct DaxWriter {
    file: File,
    path: PathBuf,
    mapping: Mapping,
    flags: i32,
    lines: CacheLines,
    bytes: u64,
    committed: u64,
    /// Ranges of bytes that were stored after the last fence, as offsets in the file with its
    /// prefix.
    dirty: Vec<Range<u64>>,
    failed: Option<Error>,
}

impl DaxWriter {
    /// Opens a file to be written in place. A new file gets its prefix. The length comes first, and
    /// then the mark that makes the file valid.
    pub(super) fn new(opened: OpenFile, flags: i32, lines: CacheLines) -> Result<DaxWriter> {
        let OpenFile { file, path } = opened;
        let fail = |error: std::io::Error| io_error(&path, &error);
        let physical = file.metadata().map_err(fail)?.len();
        let bytes = length_of(&file).map_err(fail)?;
        if physical < PREFIX_BYTES as u64 {
            reserve(&file, PREFIX_BYTES as u64).map_err(fail)?;
        }
        let whole = physical.max(PREFIX_BYTES as u64) as usize;
        let mapping = Mapping::writable(&file, whole, flags).map_err(fail)?;
        let mut writer = DaxWriter {
            file,
            path,
            mapping,
            flags,
            lines,
            bytes,
            committed: bytes,
            dirty: Vec::new(),
            failed: None,
        };
        if physical < PREFIX_BYTES as u64 || writer.mapping.as_slice().get(..8) != Some(MAGIC) {
            writer.commit(bytes);
            // SAFETY: within the first page; this is the only writer of the file.
            unsafe {
                writer.lines.store(writer.mapping.as_ptr(), 0, MAGIC);
                writer.lines.flush(writer.mapping.as_ptr(), 0, MAGIC.len());
            }
            writer.lines.fence();
        }
        Ok(writer)
    }

    fn check_usable(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(refusal(&self.path.display().to_string(), error)),
        }
    }

    /// Makes room for `bytes` bytes of the file.
    fn grow(&mut self, bytes: u64) -> Result<()> {
        let wanted = PREFIX_BYTES as u64 + bytes;
        let have = self.mapping.len() as u64;
        if wanted <= have {
            return Ok(());
        }
        let fail = |error: std::io::Error| io_error(&self.path, &error);
        let step = have.clamp(GROWTH_BYTES, GROWTH_BYTES_MAX);
        let generous = wanted.max(have + step).next_multiple_of(GROWTH_BYTES);
        let exact = wanted.next_multiple_of(PAGE_BYTES as u64);
        // A full medium may still have room for the bytes needed now.
        let whole = reserve(&self.file, generous).map(|()| generous);
        let whole = whole.or_else(|_| reserve(&self.file, exact).map(|()| exact)).map_err(fail)?;
        // Bytes stored through the old mapping lie in the same memory.
        self.mapping = Mapping::writable(&self.file, whole as usize, self.flags).map_err(fail)?;
        Ok(())
    }

    /// Makes a length the valid one. Everything up to it must be in memory already.
    fn commit(&mut self, length: u64) {
        // SAFETY: within the first page, aligned; this is the only writer of the file.
        unsafe {
            self.lines.store_word(self.mapping.as_ptr(), WORD_AT, encode_length(length));
            self.lines.flush(self.mapping.as_ptr(), WORD_AT, 8);
        }
        self.lines.fence();
        self.committed = length;
    }

    /// Flushes the stores since the last fence and waits for them.
    fn settle(&mut self) {
        if self.dirty.is_empty() {
            return;
        }
        for range in self.dirty.drain(..) {
            let bytes = (range.end - range.start) as usize;
            // SAFETY: the range was stored to, so it is mapped.
            unsafe {
                self.lines.flush(self.mapping.as_ptr(), PREFIX_BYTES as u64 + range.start, bytes)
            };
        }
        self.lines.fence();
    }

    fn check_lost(&mut self) -> Result<()> {
        if self.mapping.lost() > 0 {
            let path = self.path.display();
            let error =
                Error::data_loss(format!("{path}: the memory has lost pages while it was written"));
            self.failed = Some(error.clone());
            return Err(error);
        }
        Ok(())
    }
}

/// Allocates zeroed room in the file system and makes that durable.
fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let length = libc::off_t::try_from(bytes).map_err(|_| std::io::ErrorKind::FileTooLarge)?;
    // SAFETY: takes numbers only, about a descriptor of ours.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
        0 => file.sync_all(),
        code => Err(std::io::Error::from_raw_os_error(code)),
    }
}

impl Writer for DaxWriter {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_usable()?;
        check_write(&self.path.display().to_string(), self.bytes, offset, bytes.len())?;
        let end = offset + bytes.len() as u64;
        if end > FILE_BYTES_MAX {
            return Err(Error::invalid(format!("a file has at most {FILE_BYTES_MAX} bytes")));
        }
        self.grow(end)?;
        // SAFETY: `grow` mapped as much; this is the only writer of the file, and readers of
        // overwritten bytes check them.
        unsafe { self.lines.store(self.mapping.as_ptr(), PREFIX_BYTES as u64 + offset, bytes) };
        match self.dirty.last_mut() {
            Some(last) if last.end == offset => last.end = end,
            _ => self.dirty.push(offset..end),
        }
        if self.dirty.len() > DIRTY_MAX {
            self.settle();
        }
        self.bytes = self.bytes.max(end);
        Ok(())
    }

    fn truncate(&mut self, bytes: u64) -> Result<()> {
        self.check_usable()?;
        if bytes > self.bytes {
            return Err(Error::invalid(format!("{} bytes cannot be cut at {bytes}", self.bytes)));
        }
        self.bytes = bytes;
        if bytes < self.committed {
            // At once, so that later writes there are not within the valid length.
            self.settle();
            self.commit(bytes);
        }
        Ok(())
    }

    fn persist(&mut self) -> Result<()> {
        self.check_usable()?;
        self.settle();
        self.check_lost()?;
        if self.bytes != self.committed {
            self.commit(self.bytes);
        }
        self.check_lost()
    }
}

impl Drop for DaxWriter {
    /// Keeps the written bytes and returns unused room. Neither is promised, so failures are not
    /// reported.
    fn drop(&mut self) {
        if self.failed.is_none() && self.persist().is_ok() {
            let used = PREFIX_BYTES as u64 + self.committed;
            let _ = self.file.set_len(used.next_multiple_of(PAGE_BYTES as u64));
        }
    }
}
