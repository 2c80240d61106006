//! Reading a file for a library that requests arbitrary ranges: past the page cache, at the store's
//! rate.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, Result};

use crate::ParameterStore;
use crate::pool::check_stop;
use os::{DIRECT_ALIGNMENT, DirectFile};

/// Bytes read at once. They are hashed and copied while they are still in the core's cache.
const WINDOW_BYTES: usize = 1 << 20;

const _: () = assert!(WINDOW_BYTES.is_multiple_of(DIRECT_ALIGNMENT));

/// A file opened by [`ParameterStore::reader`]. It keeps the last window, so that many small reads
/// close to each other cost one read of the disk.
#[derive(Debug)]
pub struct PacedReader {
    store: Arc<ParameterStore>,
    source: DirectFile,
    path: PathBuf,
    stop: Arc<AtomicBool>,
    /// Longer than the window by one alignment, so that an aligned window fits.
    buffer: Vec<u8>,
    /// Offset of the window in the buffer.
    aligned: usize,
    /// Offset of the window in the file, and its number of valid bytes.
    start: u64,
    valid: usize,
}

impl PacedReader {
    /// Opens `path`. `direct` requests reads past the page cache (O_DIRECT). Once `stop` is true,
    /// reads fail.
    pub(crate) fn open(
        store: Arc<ParameterStore>,
        path: &Path,
        direct: bool,
        stop: Arc<AtomicBool>,
    ) -> Result<PacedReader> {
        check_stop(&stop)?;
        let source = DirectFile::open(path, direct)?;
        let buffer = vec![0; WINDOW_BYTES + DIRECT_ALIGNMENT];
        let aligned = buffer.as_ptr().align_offset(DIRECT_ALIGNMENT);
        Ok(PacedReader {
            store,
            source,
            path: path.to_owned(),
            stop,
            buffer,
            aligned,
            start: 0,
            valid: 0,
        })
    }

    /// Returns the length of the file when it was opened.
    pub fn bytes(&self) -> u64 {
        self.source.bytes()
    }

    /// Fills `buffer` from `offset` without bringing it into the processor's cache. The data is not
    /// read again soon, and must not evict the data of serving threads. Calls `each` on every part
    /// in order before it is copied, so that the caller can hash it.
    ///
    /// # Errors
    /// `DataLoss` if the file is too short, `Cancelled` if the load was stopped, otherwise the
    /// error of the disk.
    pub fn read_exact_at(
        &mut self,
        buffer: &mut [u8],
        offset: u64,
        mut each: impl FnMut(&[u8]),
    ) -> Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|&end| end <= self.bytes());
        if end.is_none() {
            let bytes = buffer.len();
            return Err(Error::data_loss(format!(
                "{}: ends before byte {offset} + {bytes}",
                self.path.display()
            )));
        }
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let window = self.window(at)?;
            let count = window.len().min(buffer.len() - done);
            each(&window[..count]);
            copy_past_cache(&mut buffer[done..done + count], &window[..count]);
            done += count;
        }
        Ok(())
    }

    /// Returns the bytes of the window from `at` on, at least one.
    fn window(&mut self, at: u64) -> Result<&[u8]> {
        if at < self.start || at >= self.start + self.valid as u64 {
            self.slide(at)?;
        }
        let skip = (at - self.start) as usize;
        Ok(&self.buffer[self.aligned + skip..self.aligned + self.valid])
    }

    /// Reads the window of the file that begins at or just before `at`, at the store's rate.
    fn slide(&mut self, at: u64) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::cancelled("the load was stopped"));
        }
        self.valid = 0;
        let start = at / DIRECT_ALIGNMENT as u64 * DIRECT_ALIGNMENT as u64;
        let bytes = (self.bytes() - start).min(WINDOW_BYTES as u64) as usize;
        self.store.pacer().wait(bytes as u64);
        self.source.read_exact_at(
            &mut self.buffer[self.aligned..][..WINDOW_BYTES],
            start,
            bytes,
        )?;
        (self.start, self.valid) = (start, bytes);
        Ok(())
    }
}

/// Shorter copies go through the cache, because the reader uses a few bytes at once.
#[cfg(target_arch = "x86_64")]
const PAST_CACHE_MIN: usize = 16 << 10;

/// Copies `from` to `to`, which have the same length, without bringing `to` into the cache. Cached
/// stores would evict the data of serving threads, and would first read each line from memory only
/// to overwrite it.
#[cfg(target_arch = "x86_64")]
fn copy_past_cache(to: &mut [u8], from: &[u8]) {
    // SAFETY: any 16 bytes are a vector of 16.
    let (head, body, tail) = unsafe { to.align_to_mut::<__m128i>() };
    if size_of_val(body) < PAST_CACHE_MIN
        || head.len() + size_of_val(body) + tail.len() != from.len()
    {
        return to.copy_from_slice(from);
    }
    let (first, rest) = from.split_at(head.len());
    let (middle, last) = rest.split_at(size_of_val(body));
    head.copy_from_slice(first);
    for (to, from) in body.iter_mut().zip(middle.chunks_exact(16)) {
        // SAFETY: both point to 16 bytes, the one written to is aligned; every x86-64 processor has
        // SSE2.
        unsafe { _mm_stream_si128(to, _mm_loadu_si128(from.as_ptr().cast())) };
    }
    // SAFETY: orders the stores before it for other threads, nothing else.
    unsafe { _mm_sfence() };
    tail.copy_from_slice(last);
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_past_cache(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

impl Drop for PacedReader {
    fn drop(&mut self) {
        self.store.note_refusal(&self.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PoolConfig, SlotPool, StoreConfig};
    use base::ErrorKind;
    use os::Rate;
    use proptest::prelude::*;

    fn store() -> Arc<ParameterStore> {
        let config =
            PoolConfig { bytes_max: 4 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
        let read_rate = Rate::unlimited();
        ParameterStore::new(SlotPool::new(config).unwrap(), StoreConfig { read_rate, direct: true })
    }

    fn content(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn any_reads_in_any_order_give_the_files_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let (path, whole) = (dir.path().join("file"), content(3 * WINDOW_BYTES / 2 + 77));
        std::fs::write(&path, &whole).unwrap();
        let reader = store().reader(&path, Arc::default()).unwrap();
        let reader = std::cell::RefCell::new(reader);
        proptest!(ProptestConfig::with_cases(64), |(start in 0..whole.len(), bytes in 0..2 * WINDOW_BYTES)| {
            let bytes = bytes.min(whole.len() - start);
            // Buffers that do not start at a vector register's alignment.
            let (skip, mut seen) = (start % 17, Vec::new());
            let mut buffer = vec![0; skip + bytes];
            let each = |part: &[u8]| seen.extend_from_slice(part);
            reader.borrow_mut().read_exact_at(&mut buffer[skip..], start as u64, each).unwrap();
            prop_assert!(buffer[skip..] == whole[start..start + bytes] && seen == buffer[skip..]);
        });
    }

    #[test]
    fn past_the_end_and_after_a_stop() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, content(100)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let mut reader = store().reader(&path, stop.clone()).unwrap();
        let mut read =
            |offset: u64, bytes: usize| reader.read_exact_at(&mut vec![0; bytes], offset, |_| {});
        assert!(read(90, 10).is_ok());
        for (offset, bytes) in [(90, 11), (101, 0), (u64::MAX, 1)] {
            assert_eq!(
                read(offset, bytes).unwrap_err().kind(),
                ErrorKind::DataLoss,
                "{offset} + {bytes}"
            );
        }
        stop.store(true, Ordering::Relaxed);
        assert!(read(0, 1).is_ok(), "what was read already is there");
        assert!(store().reader(&path, stop).is_err_and(|e| e.kind() == ErrorKind::Cancelled));
    }
}
