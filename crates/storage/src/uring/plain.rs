//! Reading one file after the other with ordinary calls, where the system refuses io_uring:
//! containers often do.

use std::collections::VecDeque;

use base::{Error, Result};

use crate::buffer::Buffer;
use crate::medium::{Read, Reader, ReaderOptions};
use crate::options;
use crate::table::Table;

/// Reads when it is asked to complete; nothing is under way in between.
pub(super) struct PlainReader {
    options: ReaderOptions,
    files: Table,
    queue: VecDeque<Queued>,
    buffer: Buffer,
}

struct Queued {
    place: usize,
    offset: u64,
    bytes: usize,
    tag: u64,
}

impl PlainReader {
    pub(super) fn new(options: ReaderOptions) -> Result<PlainReader> {
        options::check(&options)?;
        let (queue, buffer) =
            (VecDeque::with_capacity(options.depth), Buffer::new(options.read_bytes_max)?);
        Ok(PlainReader { options, files: Table::default(), queue, buffer })
    }
}

impl Reader for PlainReader {
    fn room(&self) -> usize {
        self.options.depth - self.queue.len()
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn submit(&mut self, read: Read<'_>) -> Result<()> {
        options::check_read(&self.options, &read, self.room())?;
        let (place, _) = self.files.hold(read.file);
        self.queue.push_back(Queued {
            place,
            offset: read.offset,
            bytes: read.bytes,
            tag: read.tag,
        });
        Ok(())
    }

    fn complete(&mut self, wait: usize, each: &mut dyn FnMut(u64, Result<&[u8]>)) -> Result<usize> {
        let count = self.queue.len().min(options::handed_at_once(&self.options, wait));
        for _ in 0..count {
            let Some(read) = self.queue.pop_front() else { break };
            // A read is never longer than the buffer: that was checked when it came.
            let buffer = &mut self.buffer.as_mut_slice()[..read.bytes];
            let file =
                self.files.file(read.place).ok_or_else(|| Error::internal("a read was lost"));
            match file.and_then(|file| file.read_at(read.offset, buffer)) {
                Ok(()) => each(read.tag, Ok(buffer)),
                Err(error) => each(read.tag, Err(error)),
            }
            self.files.release(read.place);
        }
        if self.queue.is_empty() {
            self.files.sweep(|_| {});
        }
        Ok(count)
    }
}
