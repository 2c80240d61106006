//! Memory for direct reads: whole pages from the kernel, huge ones if they fit.

use std::ptr::{NonNull, null_mut};

use base::{Error, Result};

use crate::page::PAGE_BYTES;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed, prefaulted memory that starts at a page.
pub(crate) struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the struct owns its memory as a Vec does.
unsafe impl Send for Buffer {}
// SAFETY: shared references give out shared slices only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `bytes`, rounded up to whole pages.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system has none.
    pub(crate) fn new(bytes: usize) -> Result<Buffer> {
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
        let start = match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => start,
            _ => {
                let error = std::io::Error::last_os_error();
                return Err(Error::exhausted(format!(
                    "no memory for {bytes} bytes of read buffers"
                ))
                .caused_by(error));
            }
        };
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: advice about the mapping just made; refusal costs only look-ups.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        // SAFETY: as above. If the kernel does not know this advice, pages are allocated at the
        // first read into them.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) };
        Ok(Buffer { start, bytes })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: mapped for reading and writing, `bytes` long, and `&mut self` excludes other
        // references.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives the struct.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
