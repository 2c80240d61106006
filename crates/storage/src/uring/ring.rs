//! One ring: its flags, its registrations, and the calls that submit and wait.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, Result};
use io_uring::{IoUring, opcode, types};

use crate::buffer::Buffer;
use crate::table::FILES_MAX;

/// IORING_ENTER_GETEVENTS of `linux/io_uring.h`: process completions even without waiting.
const ENTER_GETEVENTS: u32 = 1;

/// File of a read.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadSource {
    /// An index in the ring's table of files.
    Registered(u32),
    /// A file descriptor that is not registered.
    Plain(RawFd),
}

/// A ring for reads into one buffer, used by the thread that made it.
pub(super) struct Ring {
    ring: IoUring,
    fixed_buffer: bool,
    fixed_files: bool,
}

/// Checks that the system allows rings.
///
/// # Errors
/// `Unimplemented` with a remedy if it does not.
pub(super) fn probe() -> Result<()> {
    build(8).map(drop)
}

/// Builds the best available ring. The best is one whose completions run only when this thread
/// collects them (kernel 6.1). The next is one that does not interrupt it (5.19), and the last is
/// any other.
fn build(entries: u32) -> Result<IoUring> {
    let best = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .dontfork()
        .build(entries);
    let ring = best
        .or_else(|_| {
            IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().dontfork().build(entries)
        })
        .or_else(|_| IoUring::builder().dontfork().build(entries));
    ring.map_err(|error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "set kernel.io_uring_disabled to 0, allow io_uring in the container's seccomp profile"
            }
            Some(libc::ENOSYS) => "use a kernel from 5.6 on, or one built with io_uring",
            Some(libc::ENOMEM) => "raise the limit of locked memory (ulimit -l)",
            _ => "check if io_uring works for other programs",
        };
        Error::unimplemented(format!("no io_uring: {error}; {remedy}, or keep the index on another medium"))
    })
}

impl Ring {
    /// Makes a ring for `entries` reads into `buffer`. It belongs to the calling thread.
    ///
    /// # Errors
    /// As [`probe`].
    pub(super) fn new(entries: u32, buffer: &Buffer) -> Result<Ring> {
        let ring = build(entries)?;
        let whole = libc::iovec { iov_base: buffer.as_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: the kernel pins the pages until the ring is closed, so they stay valid even if
        // they are unmapped.
        let buffers = unsafe { ring.submitter().register_buffers(&[whole]) };
        let files = ring.submitter().register_files(&[-1; FILES_MAX]);
        for (what, outcome) in [("buffers", &buffers), ("files", &files)] {
            if let Err(error) = outcome {
                note_unregistered(what, error);
            }
        }
        Ok(Ring { ring, fixed_buffer: buffers.is_ok(), fixed_files: files.is_ok() })
    }

    /// Registers a descriptor at an index of the table, or empties the index. Returns true if it is
    /// registered now.
    pub(super) fn register(&self, place: usize, descriptor: Option<RawFd>) -> bool {
        let known = self.fixed_files && place < FILES_MAX;
        let descriptor = [descriptor.unwrap_or(-1)];
        known && self.ring.submitter().register_files_update(place as u32, &descriptor).is_ok()
    }

    /// Queues a read. There must be room, because a ring is as deep as its reader.
    ///
    /// # Safety
    /// `address` must have `bytes` bytes within the ring's buffer that stay untouched until the
    /// completion is reaped.
    pub(super) unsafe fn push(
        &mut self,
        source: ReadSource,
        address: *mut u8,
        bytes: u32,
        offset: u64,
        user_data: u64,
    ) -> Result<()> {
        use types::{Fd, Fixed};
        let entry = match (self.fixed_buffer, source) {
            (true, ReadSource::Registered(place)) => {
                opcode::ReadFixed::new(Fixed(place), address, bytes, 0).offset(offset).build()
            }
            (true, ReadSource::Plain(descriptor)) => {
                opcode::ReadFixed::new(Fd(descriptor), address, bytes, 0).offset(offset).build()
            }
            (false, ReadSource::Registered(place)) => {
                opcode::Read::new(Fixed(place), address, bytes).offset(offset).build()
            }
            (false, ReadSource::Plain(descriptor)) => {
                opcode::Read::new(Fd(descriptor), address, bytes).offset(offset).build()
            }
        };
        // SAFETY: the caller keeps the buffer's part valid; the descriptor's file is held by the
        // reader's table.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(user_data)) };
        pushed.map_err(|_| Error::internal("the ring is full although its reader has room"))
    }

    /// Submits the queued reads and, with `wait`, sleeps until that many have completed. Makes no
    /// call if there is nothing to do.
    pub(super) fn enter(&mut self, queued: usize, wait: usize) -> io::Result<()> {
        if queued == 0 && wait == 0 {
            let submission = self.ring.submission();
            if !submission.taskrun() && !submission.cq_overflow() {
                return Ok(());
            }
        }
        loop {
            let count = self.ring.submission().len() as u32;
            // SAFETY: no argument is passed. The memory of the entries was checked when they were
            // pushed.
            let entered = unsafe {
                self.ring.submitter().enter::<libc::sigset_t>(
                    count,
                    wait as u32,
                    ENTER_GETEVENTS,
                    None,
                )
            };
            match entered {
                // A kernel short of memory takes fewer than offered; the rest is offered again.
                Ok(taken) if (taken as u32) < count && taken > 0 => {}
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the finished completions: user data and result.
    pub(super) fn reap(&mut self, mut each: impl FnMut(u64, i32)) {
        for completion in self.ring.completion() {
            each(completion.user_data(), completion.result());
        }
    }
}

/// Logs once which resources could not be registered. Reads still work, but each costs more.
fn note_unregistered(what: &str, error: &io::Error) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            what,
            %error,
            "io_uring reads cost more: not registered with the kernel; raise the limit of locked memory (ulimit -l)"
        );
    }
}
