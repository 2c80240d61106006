//! The reader of one thread: one ring, and a page-aligned buffer for each read in flight.

use std::collections::VecDeque;
use std::thread::ThreadId;

use base::{Error, Result};

use super::ring::{ReadSource, Ring};
use crate::buffer::Buffer;
use crate::medium::{Read, Reader, ReaderOptions};
use crate::options;
use crate::page::PAGE_BYTES;
use crate::table::{FILES_MAX, FileTable};

/// Maximum resubmissions of one read, after the system requested one or returned only a part of the
/// read.
const RETRIES_MAX: u8 = 16;

/// A read from its submission until its completion was passed on.
#[derive(Clone, Copy, Debug, Default)]
struct ReadSlot {
    tag: u64,
    offset: u64,
    bytes: usize,
    /// Bytes that have arrived.
    done: usize,
    /// Index of the file in the table.
    place: usize,
    retries: u8,
}

/// A completion not yet passed on.
struct ReadCompletion {
    slot: usize,
    outcome: ReadOutcome,
}

/// Outcome of a read.
#[derive(Clone, Copy)]
enum ReadOutcome {
    Whole,
    Ended,
    Failed(i32),
}

/// Reader of one thread through io_uring.
pub(super) struct UringReader {
    options: ReaderOptions,
    /// Made by the first call of the reading thread, because a ring belongs to one thread.
    ring: Option<(ThreadId, Ring)>,
    files: FileTable,
    /// True for each index of the table that the ring knows.
    registered: Vec<bool>,
    buffer: Option<Buffer>,
    slots: Vec<ReadSlot>,
    free: Vec<usize>,
    /// Entries pushed and not yet submitted.
    queued: usize,
    /// Entries that were submitted and have not completed.
    flying: usize,
    ready: VecDeque<ReadCompletion>,
}

impl UringReader {
    pub(super) fn new(options: ReaderOptions) -> Result<UringReader> {
        options::check(&options)?;
        let depth = options.depth;
        Ok(UringReader {
            options,
            ring: None,
            files: FileTable::default(),
            registered: Vec::with_capacity(FILES_MAX),
            buffer: Some(Buffer::new(depth * options.read_bytes_max)?),
            slots: vec![ReadSlot::default(); depth],
            free: (0..depth).rev().collect(),
            queued: 0,
            flying: 0,
            ready: VecDeque::with_capacity(depth),
        })
    }

    /// Returns the ring of the calling thread. A reader may move to another thread between reads,
    /// not during them.
    fn ring(&mut self) -> Result<&mut Ring> {
        let thread = std::thread::current().id();
        if self.ring.as_ref().is_some_and(|(owner, _)| *owner != thread) {
            if self.queued + self.flying > 0 {
                return Err(Error::precondition(
                    "a reader stays with its thread while reads are in flight",
                ));
            }
            self.ring = None;
        }
        if self.ring.is_none() {
            let buffer = self.buffer.as_ref().ok_or_else(lost_read)?;
            // At most DEPTH_MAX.
            self.ring = Some((thread, Ring::new(self.options.depth as u32, buffer)?));
            self.registered.clear();
        }
        self.ring.as_mut().map(|(_, ring)| ring).ok_or_else(lost_read)
    }

    /// Queues the rest of a slot's read.
    fn push(&mut self, index: usize) -> Result<()> {
        let slot = self.slots[index];
        let file = self.files.file(slot.place).ok_or_else(lost_read)?;
        let source = if self.registered.get(slot.place) == Some(&true) {
            ReadSource::Registered(slot.place as u32)
        } else {
            ReadSource::Plain(file.descriptor().ok_or_else(lost_read)?)
        };
        let start = self.address(index)?;
        let (_, ring) = self.ring.as_mut().ok_or_else(lost_read)?;
        // SAFETY: each slot owns `read_bytes_max` bytes of the buffer, `done <= bytes <=
        // read_bytes_max`, nothing accesses them until the completion is reaped, and the buffer
        // stays until no read is in flight.
        unsafe {
            let address = start.add(slot.done);
            // At most BUFFER_BYTES_MAX.
            let bytes = (slot.bytes - slot.done) as u32;
            ring.push(source, address, bytes, slot.offset + slot.done as u64, index as u64)?;
        }
        self.queued += 1;
        Ok(())
    }

    /// Returns the address of a slot's bytes.
    fn address(&self, index: usize) -> Result<*mut u8> {
        let buffer = self.buffer.as_ref().ok_or_else(lost_read)?;
        debug_assert!((index + 1) * self.options.read_bytes_max <= buffer.len());
        // SAFETY: there are as many slots as the buffer has room for, and `index` is one of them.
        Ok(unsafe { buffer.as_ptr().add(index * self.options.read_bytes_max) })
    }

    /// Submits the queued reads and, with `wait`, sleeps for that many more completions.
    fn enter(&mut self, wait: usize) -> Result<()> {
        let queued = self.queued;
        let Some((_, ring)) = self.ring.as_mut() else { return Ok(()) };
        // Counted as in flight even if the call fails. The kernel may have accepted some reads, and
        // the buffer must outlive them.
        self.flying += queued;
        self.queued = 0;
        ring.enter(queued, wait).map_err(|error| {
            Error::internal(format!("io_uring cannot continue: {error}; open the reader again"))
                .with_source(error)
        })
    }

    /// Takes completions from the ring. A partial or refused read is queued again.
    fn reap(&mut self) -> Result<()> {
        let Some((_, ring)) = self.ring.as_mut() else { return Ok(()) };
        let mut again = Vec::new();
        let slots = &mut self.slots;
        let ready = &mut self.ready;
        let flying = &mut self.flying;
        ring.reap(|user_data, result| {
            *flying -= 1;
            // The slot's index, set at submission.
            let index = user_data as usize;
            match judge(&mut slots[index], result) {
                Some(outcome) => ready.push_back(ReadCompletion { slot: index, outcome }),
                None => again.push(index),
            }
        });
        again.into_iter().try_for_each(|index| self.push(index))
    }

    /// Passes a completed read to `each`, and frees its slot.
    fn hand_over(
        &mut self,
        done: &ReadCompletion,
        each: &mut dyn FnMut(u64, Result<&[u8]>),
    ) -> Result<()> {
        let ReadSlot { tag, offset, bytes, place, .. } = self.slots[done.slot];
        match done.outcome {
            ReadOutcome::Whole => {
                let start = self.address(done.slot)?;
                // SAFETY: the read of these bytes is complete, and its slot is not free yet.
                each(tag, Ok(unsafe { std::slice::from_raw_parts(start, bytes) }));
            }
            ReadOutcome::Ended => {
                each(
                    tag,
                    Err(Error::data_loss(format!(
                        "the file ends within {bytes} bytes at {offset}"
                    ))),
                );
            }
            ReadOutcome::Failed(code) => {
                let path = format!("{bytes} bytes at {offset}");
                let error = std::io::Error::from_raw_os_error(code);
                each(tag, Err(crate::directory::io_error(path.as_ref(), &error)));
            }
        }
        self.files.release(place);
        self.free.push(done.slot);
        Ok(())
    }

    /// Forgets files without other holders, so that their disk space is freed.
    fn sweep(&mut self) {
        let registered = &mut self.registered;
        let ring = &self.ring;
        self.files.sweep(|place| {
            if let (Some(known), Some((_, ring))) = (registered.get_mut(place), ring)
                && std::mem::take(known)
            {
                ring.register(place, None);
            }
        });
    }

    /// Waits until the kernel no longer writes to the buffer. Returns true on success.
    fn drain(&mut self) -> bool {
        if self.flying == 0 {
            return true;
        }
        let here =
            self.ring.as_ref().is_some_and(|(owner, _)| *owner == std::thread::current().id());
        while here && self.flying > 0 {
            let Some((_, ring)) = self.ring.as_mut() else { return false };
            if ring.enter(0, self.flying).is_err() {
                return false;
            }
            let flying = &mut self.flying;
            ring.reap(|_, _| *flying -= 1);
        }
        here
    }
}

/// Returns the outcome of a result for a slot. Returns `None` if the rest is to be read again.
fn judge(slot: &mut ReadSlot, result: i32) -> Option<ReadOutcome> {
    let may_retry = slot.retries < RETRIES_MAX;
    match usize::try_from(result) {
        Ok(got) if slot.done + got >= slot.bytes => return Some(ReadOutcome::Whole),
        // Less than a page is the end of the file, because a direct read continues from a whole
        // page.
        Ok(got) if got < PAGE_BYTES || !may_retry => return Some(ReadOutcome::Ended),
        Ok(got) => slot.done += got / PAGE_BYTES * PAGE_BYTES,
        Err(_) if may_retry && [-libc::EAGAIN, -libc::EINTR].contains(&result) => {}
        Err(_) => return Some(ReadOutcome::Failed(-result)),
    }
    slot.retries += 1;
    None
}

fn lost_read() -> Error {
    Error::internal("a read lost its file or its ring")
}

impl Reader for UringReader {
    fn room(&self) -> usize {
        self.free.len()
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn submit(&mut self, read: Read<'_>) -> Result<()> {
        options::check_read(&self.options, &read, self.room())?;
        let Some(descriptor) = read.file.descriptor() else {
            return Err(Error::invalid("the file is of another medium than the reader"));
        };
        self.ring()?;
        let (place, fresh) = self.files.hold(read.file);
        if self.registered.len() <= place {
            self.registered.resize(place + 1, false);
        }
        if fresh && let Some((_, ring)) = &self.ring {
            self.registered[place] = ring.register(place, Some(descriptor));
        }
        let Some(slot) = self.free.pop() else { return Err(lost_read()) };
        let Read { offset, bytes, tag, .. } = read;
        self.slots[slot] = ReadSlot { tag, offset, bytes, done: 0, place, retries: 0 };
        self.push(slot).inspect_err(|_| {
            self.free.push(slot);
            self.files.release(place);
        })
    }

    fn complete(&mut self, wait: usize, each: &mut dyn FnMut(u64, Result<&[u8]>)) -> Result<usize> {
        let wait = wait.min(self.in_flight());
        if wait > 0 || self.queued + self.flying > 0 {
            self.ring()?;
            self.reap()?;
            // All queued reads are submitted before any completion is processed.
            self.enter(wait.saturating_sub(self.ready.len()))?;
            self.reap()?;
            while self.ready.len() < wait {
                self.enter(wait - self.ready.len())?;
                self.reap()?;
            }
        }
        let count = self.ready.len().min(options::handed_at_once(&self.options, wait));
        for _ in 0..count {
            let Some(done) = self.ready.pop_front() else { break };
            self.hand_over(&done, each)?;
        }
        if self.in_flight() == 0 {
            self.sweep();
        }
        Ok(count)
    }
}

impl Drop for UringReader {
    fn drop(&mut self) {
        if !self.drain() {
            // The kernel may still write to the buffer, so it is leaked. The ring is dropped
            // before the buffer would be.
            tracing::error!(
                "reads were in flight when their reader was dropped; its buffers are lost"
            );
            std::mem::forget(self.buffer.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::Medium;
    use crate::uring::UringMedium;

    #[test]
    fn an_idle_reader_closes_removed_files() {
        let directory = tempfile::tempdir().unwrap();
        let Ok(medium) = UringMedium::new(directory.path().to_owned()) else {
            return println!("SKIPPED: io_uring is not allowed here");
        };
        medium.create("f").unwrap().append(&[7; PAGE_BYTES]).unwrap();
        let file = medium.open("f").unwrap();
        let options = ReaderOptions { depth: 2, read_bytes_max: PAGE_BYTES };
        let mut reader = UringReader::new(options).unwrap();
        reader.submit(Read { file: &file, offset: 0, bytes: PAGE_BYTES, tag: 1 }).unwrap();
        reader.complete(1, &mut |_, bytes| assert_eq!(bytes.unwrap(), [7; PAGE_BYTES])).unwrap();
        if !reader.registered[0] {
            return println!("SKIPPED: files cannot be registered here");
        }
        // The ring holds the file after its last other holder.
        medium.remove("f").unwrap();
        reader.close_unused_files().unwrap();
        assert!(reader.registered[0], "it is still in use");
        drop(file);
        reader.close_unused_files().unwrap();
        assert!(!reader.registered[0]);
    }

    fn slot(pages: usize) -> ReadSlot {
        ReadSlot { bytes: pages * PAGE_BYTES, ..ReadSlot::default() }
    }

    #[test]
    fn a_partial_read_continues_at_a_whole_page() {
        let mut read = slot(4);
        assert!(judge(&mut read, PAGE_BYTES as i32 + 100).is_none());
        assert_eq!(read.done, PAGE_BYTES);
        assert!(judge(&mut read, 2 * PAGE_BYTES as i32).is_none());
        assert!(matches!(judge(&mut read, PAGE_BYTES as i32), Some(ReadOutcome::Whole)));
    }

    #[test]
    fn a_short_read_is_the_end_of_the_file() {
        for got in [0, 1, 4095] {
            assert!(matches!(judge(&mut slot(1), got), Some(ReadOutcome::Ended)));
        }
    }

    #[test]
    fn errors_are_reported_and_interruptions_retried() {
        assert!(matches!(judge(&mut slot(1), -libc::EIO), Some(ReadOutcome::Failed(libc::EIO))));
        let mut read = slot(1);
        let retried = (0..100).take_while(|_| judge(&mut read, -libc::EAGAIN).is_none()).count();
        assert_eq!(retried, usize::from(RETRIES_MAX));
        assert!(matches!(judge(&mut read, -libc::EAGAIN), Some(ReadOutcome::Failed(libc::EAGAIN))));
        assert!(matches!(judge(&mut read, PAGE_BYTES as i32), Some(ReadOutcome::Whole)));
    }
}
