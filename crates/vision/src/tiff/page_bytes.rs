//! Bytes of a TIFF file for a decoder.

use std::io::{self, BufRead, Cursor, Read, Seek, SeekFrom};

/// Bytes of a file. A read returns at most `piece_max` of them.
pub(super) struct PageBytes<'a> {
    file: Cursor<&'a [u8]>,
    piece_max: usize,
}

impl<'a> PageBytes<'a> {
    pub(super) fn new(file: &'a [u8], piece_max: usize) -> PageBytes<'a> {
        PageBytes { file: Cursor::new(file), piece_max }
    }
}

impl Read for PageBytes<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.piece_max);
        self.file.read(&mut into[..count])
    }
}

impl BufRead for PageBytes<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.file.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.file.consume(count);
    }
}

impl Seek for PageBytes<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
