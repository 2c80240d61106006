//! Reads with the faults of their files, in any order.

use std::sync::Arc;

use base::Result;

use super::model::Draw;
use crate::medium::{Read, Reader, ReaderOptions, Sealed};
use crate::options;

pub(super) struct FaultReader {
    options: ReaderOptions,
    queue: Vec<Queued>,
    buffer: Vec<u8>,
    reorder: bool,
    draw: Draw,
}

struct Queued {
    file: Arc<dyn Sealed>,
    offset: u64,
    bytes: usize,
    tag: u64,
}

impl FaultReader {
    pub(super) fn new(options: ReaderOptions, reorder: bool, seed: u64) -> Result<FaultReader> {
        options::check(&options)?;
        let buffer = vec![0; options.read_bytes_max];
        Ok(FaultReader { options, queue: Vec::new(), buffer, reorder, draw: Draw(seed) })
    }
}

impl Reader for FaultReader {
    fn room(&self) -> usize {
        self.options.depth - self.queue.len()
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn submit(&mut self, read: Read<'_>) -> Result<()> {
        options::check_read(&self.options, &read, self.room())?;
        let Read { file, offset, bytes, tag } = read;
        self.queue.push(Queued { file: file.clone(), offset, bytes, tag });
        Ok(())
    }

    fn complete(&mut self, wait: usize, each: &mut dyn FnMut(u64, Result<&[u8]>)) -> Result<usize> {
        let count = self.queue.len().min(options::handed_at_once(&self.options, wait));
        for _ in 0..count {
            let picked =
                if self.reorder { self.draw.next() as usize % self.queue.len() } else { 0 };
            let read = self.queue.remove(picked);
            let buffer = &mut self.buffer[..read.bytes];
            let outcome = read.file.read_at(read.offset, buffer);
            each(read.tag, outcome.map(|()| &*buffer));
        }
        Ok(count)
    }
}
