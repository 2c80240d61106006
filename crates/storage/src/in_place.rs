//! Reads of files that the processor can load from directly. A completion is a slice of the file.

use std::collections::VecDeque;

use base::{Error, Result};

use crate::medium::{Read, Reader, ReaderOptions};
use crate::options;
use crate::table::FileTable;

/// Reader of every medium whose files are [`Sealed::in_place`](crate::Sealed::in_place).
pub(crate) struct InPlaceReader {
    options: ReaderOptions,
    files: FileTable,
    queue: VecDeque<QueuedInPlaceRead>,
}

/// A submitted read.
struct QueuedInPlaceRead {
    /// Index of the file in the table.
    place: usize,
    /// Offset in the file.
    start: usize,
    bytes: usize,
    tag: u64,
}

impl InPlaceReader {
    pub(crate) fn new(options: ReaderOptions) -> Result<InPlaceReader> {
        options::check(&options)?;
        let queue = VecDeque::with_capacity(options.depth);
        Ok(InPlaceReader { options, files: FileTable::default(), queue })
    }
}

impl Reader for InPlaceReader {
    fn room(&self) -> usize {
        self.options.depth - self.queue.len()
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn submit(&mut self, read: Read<'_>) -> Result<()> {
        options::check_read(&self.options, &read, self.room())?;
        if read.file.in_place().is_none() {
            return Err(Error::invalid("the file is of another medium than the reader"));
        }
        let (place, _) = self.files.hold(read.file);
        // Within the file, which is in memory.
        self.queue.push_back(QueuedInPlaceRead {
            place,
            start: read.offset as usize,
            bytes: read.bytes,
            tag: read.tag,
        });
        Ok(())
    }

    fn complete(&mut self, wait: usize, each: &mut dyn FnMut(u64, Result<&[u8]>)) -> Result<usize> {
        // All reads are ready at once. The caller gets as many as from a real queue, so that it can
        // refill.
        let count = self.queue.len().min(options::handed_at_once(&self.options, wait));
        for _ in 0..count {
            let Some(read) = self.queue.pop_front() else { break };
            let bytes = self.files.file(read.place).and_then(|file| file.in_place());
            let bytes = bytes.and_then(|bytes| bytes.get(read.start..read.start + read.bytes));
            each(read.tag, bytes.ok_or_else(|| Error::internal("a read was lost")));
            self.files.release(read.place);
        }
        if self.queue.is_empty() {
            self.files.sweep(|_| {});
        }
        Ok(count)
    }
}
