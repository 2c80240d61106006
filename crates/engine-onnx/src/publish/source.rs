//! Reads a large file past the page cache, at any position, through one aligned window.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::{Error, Result};

use engine::publish::{AlignedBuffer, BLOCK};

/// Window in bytes for walking over headers. A read of this size costs little more than a small
/// one.
pub(super) const WALK_BYTES: usize = 64 << 10;
/// Window in bytes for copying.
pub(super) const COPY_BYTES: usize = 4 << 20;

/// A file that is read through a window.
pub(super) struct WindowedFile {
    path: PathBuf,
    file: File,
    direct: bool,
    length: u64,
    window: AlignedBuffer,
    /// Offset of the window; a multiple of [`BLOCK`].
    start: u64,
    /// Filled bytes of the window.
    filled: usize,
}

impl WindowedFile {
    /// Opens a regular file. `direct` requests O_DIRECT, which is dropped if it is refused.
    pub(super) fn open(path: &Path, window_bytes: usize, direct: bool) -> Result<WindowedFile> {
        // Checked before it is opened: opening a named pipe would wait for its other end.
        let meta = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?;
        if !meta.is_file() {
            return Err(Error::invalid(format!("{}: not a regular file", path.display())));
        }
        let (file, direct) = open_for_reading(path, direct).map_err(|e| Error::io(path, &e))?;
        let length = file.metadata().map_err(|e| Error::io(path, &e))?.len();
        Ok(WindowedFile {
            path: path.to_owned(),
            file,
            direct,
            length,
            window: AlignedBuffer::new(window_bytes),
            start: 0,
            filled: 0,
        })
    }

    /// Returns its length when it was opened.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the opened file, without links.
    pub(super) fn real_path(&self) -> Result<PathBuf> {
        os::opened_path(&self.file).map_err(|e| Error::io(&self.path, &e))
    }

    /// Replaces the window by one of `window_bytes`.
    pub(super) fn set_window(&mut self, window_bytes: usize) {
        self.window = AlignedBuffer::new(window_bytes);
        self.filled = 0;
    }

    /// Returns the bytes from position `at` on: at least one, and as many as the window holds.
    pub(super) fn peek(&mut self, at: u64) -> Result<&[u8]> {
        let hit = at.checked_sub(self.start).is_some_and(|offset| offset < self.filled as u64);
        if !hit {
            self.fill(at)?;
        }
        let offset = (at - self.start) as usize;
        Ok(&self.window.as_slice()[offset..self.filled])
    }

    /// Calls the sink with the bytes of `range`, slice by slice.
    pub(super) fn stream(
        &mut self,
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let slice = self.peek(at)?;
            let slice = &slice[..slice.len().min(left)];
            at += slice.len() as u64;
            sink(slice)?;
        }
        Ok(())
    }

    /// Moves the window so that it holds `at`.
    fn fill(&mut self, at: u64) -> Result<()> {
        self.start = at - at % BLOCK as u64;
        self.filled = 0;
        let filled = loop {
            match self.file.read_at(self.window.as_mut_slice(), self.start) {
                Ok(filled) => break filled,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if self.direct && os::is_direct_refusal(&error) => {
                    // Some file systems accept the flag and refuse the read.
                    os::leave_direct(&self.file).map_err(|e| Error::io(&self.path, &e))?;
                    self.direct = false;
                }
                Err(error) => return Err(Error::io(&self.path, &error)),
            }
        };
        if filled as u64 <= at - self.start {
            return Err(Error::data_loss(format!(
                "{}: byte {at}: the file ends before it",
                self.path.display()
            )));
        }
        self.filled = filled;
        Ok(())
    }
}

fn open_for_reading(path: &Path, direct: bool) -> std::io::Result<(File, bool)> {
    if direct {
        match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path) {
            Err(error) if os::is_direct_refusal(&error) => {}
            outcome => return outcome.map(|file| (file, true)),
        }
    }
    File::open(path).map(|file| (file, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_and_range_reads_the_files_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..3 * BLOCK + 17).map(|at| (at * 31 % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        for direct in [true, false] {
            let mut file = WindowedFile::open(&path, BLOCK, direct).unwrap();
            assert_eq!(file.length(), bytes.len() as u64);
            for at in [0, BLOCK - 1, BLOCK, 2 * BLOCK + 5, 3 * BLOCK + 16, 1] {
                assert_eq!(file.peek(at as u64).unwrap()[0], bytes[at]);
            }
            for range in [0..bytes.len(), 5..5, BLOCK - 1..2 * BLOCK + 1] {
                let mut read = Vec::new();
                file.stream(range.start as u64..range.end as u64, &mut |slice| {
                    read.extend_from_slice(slice);
                    Ok(())
                })
                .unwrap();
                assert_eq!(read, bytes[range]);
            }
            let error = file.peek(bytes.len() as u64).unwrap_err();
            assert_eq!(error.kind(), base::ErrorKind::DataLoss);
        }
        assert!(WindowedFile::open(dir.path(), BLOCK, true).is_err());
    }
}
