//! Reads of one file after the other with ordinary calls, in an order that the caller chooses. For
//! systems that refuse io_uring, as containers often do, and for tests.

use std::collections::VecDeque;
use std::sync::Arc;

use base::Result;

use crate::buffer::Buffer;
use crate::medium::{Read, Reader, ReaderOptions, Sealed};
use crate::options;

/// Returns the index of the next read among that many queued ones.
pub(crate) type PickRead = Box<dyn FnMut(usize) -> usize + Send>;

/// Reader that reads during [`Reader::complete`]. No read is in flight between the calls.
pub(crate) struct BufferedReader {
    options: ReaderOptions,
    queue: VecDeque<QueuedRead>,
    buffer: Buffer,
    pick: PickRead,
}

/// A submitted read.
struct QueuedRead {
    file: Arc<dyn Sealed>,
    offset: u64,
    bytes: usize,
    tag: u64,
}

impl BufferedReader {
    pub(crate) fn new(options: ReaderOptions, pick: PickRead) -> Result<BufferedReader> {
        options::check(&options)?;
        let queue = VecDeque::with_capacity(options.depth);
        let buffer = Buffer::new(options.read_bytes_max)?;
        Ok(BufferedReader { options, queue, buffer, pick })
    }
}

impl Reader for BufferedReader {
    fn room(&self) -> usize {
        self.options.depth - self.queue.len()
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn submit(&mut self, read: Read<'_>) -> Result<()> {
        options::check_read(&self.options, &read, self.room())?;
        let Read { file, offset, bytes, tag } = read;
        self.queue.push_back(QueuedRead { file: file.clone(), offset, bytes, tag });
        Ok(())
    }

    fn complete(&mut self, wait: usize, each: &mut dyn FnMut(u64, Result<&[u8]>)) -> Result<usize> {
        let count = self.queue.len().min(options::handed_at_once(&self.options, wait));
        for _ in 0..count {
            let next = (self.pick)(self.queue.len());
            let Some(read) = self.queue.remove(next) else { break };
            // `submit` checked that a read is never longer than the buffer.
            let buffer = &mut self.buffer.as_mut_slice()[..read.bytes];
            let outcome = read.file.read_at(read.offset, buffer);
            each(read.tag, outcome.map(|()| &*buffer));
        }
        Ok(count)
    }
}
