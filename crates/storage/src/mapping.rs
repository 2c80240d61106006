//! Memory mappings of files, guarded against pages that the hardware loses.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null_mut};

use crate::guard::Guard;

/// The first bytes of a file, mapped and guarded against lost pages.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Dropped explicitly before the range is unmapped, after which it may be reused.
    guard: Option<Guard>,
}

// SAFETY: the struct owns its range of addresses; its owner decides who writes to it.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of a file, at least 1, for reading.
    pub(crate) fn read_only(file: &File, bytes: usize) -> io::Result<Mapping> {
        Mapping::new(file, bytes, libc::PROT_READ, libc::MAP_SHARED)
    }

    /// Maps `bytes` of a file, at least 1, for reading and writing, with the sharing `flags`.
    pub(crate) fn writable(file: &File, bytes: usize, flags: i32) -> io::Result<Mapping> {
        Mapping::new(file, bytes, libc::PROT_READ | libc::PROT_WRITE, flags)
    }

    /// Maps the first `bytes` bytes of `file` with these arguments of mmap, and guards them.
    fn new(file: &File, bytes: usize, protection: i32, flags: i32) -> io::Result<Mapping> {
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let start =
            unsafe { libc::mmap(null_mut(), bytes, protection, flags, file.as_raw_fd(), 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(address) if start != libc::MAP_FAILED => {
                let writable = protection & libc::PROT_WRITE != 0;
                let guard = Some(Guard::new(start.expose_provenance(), bytes, writable));
                Ok(Mapping { start: address, bytes, guard })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes. The file must not change while it is mapped.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped for reading; files of a medium are written once, and a page that is lost
        // becomes zeros before the load that met it is repeated.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// Returns the number of pages lost since the file was mapped.
    pub(crate) fn lost(&self) -> u32 {
        self.guard.as_ref().map_or(0, Guard::lost)
    }

    /// Drops pages of a read-only file, so that the next load reads them from the file again.
    pub(crate) fn forget(&self, start: usize, bytes: usize) {
        assert!(
            start.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {start}"
        );
        // The kernel refuses a start within one of its pages, which may be larger than ours.
        let within = start % os::process::page_bytes();
        let first = start - within;
        let length = bytes + within;
        // SAFETY: within our own mapping, which is shared with the file, so no bytes are lost.
        unsafe {
            libc::madvise(self.start.as_ptr().add(first).cast(), length, libc::MADV_DONTNEED)
        };
    }

    /// Advises the kernel about the whole range. A refusal costs only speed.
    pub(crate) fn advise(&self, advice: i32) {
        // SAFETY: about our own range. The advice given here never changes the bytes.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, advice) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: the range is ours, and no reference into it outlives the struct.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
