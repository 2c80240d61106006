//! Writes a large file past the page cache: whole blocks from one reused buffer, paced.
//!
//! A publish may run beside a server. Dirty pages of a multi-gigabyte file would evict the server's
//! own files and stall its disk when they are flushed. So the file is written with O_DIRECT. If the
//! file system refuses that, it is written through the cache and flushed every [`FLUSH_BYTES`].

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::{Error, Result};

use os::{AlignedBuffer, DIRECT_ALIGNMENT as BLOCK, Pacer, Rate};

/// Bytes collected before a write.
const SLICE_BYTES: usize = 4 << 20;
/// Maximum dirty bytes in the page cache without O_DIRECT.
const FLUSH_BYTES: u64 = 64 << 20;

/// Options for reading and writing files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriteOptions {
    /// Maximum rate in bytes per second.
    pub rate: Rate,
    /// True to bypass the page cache (O_DIRECT) if the file system allows it.
    pub direct: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        WriteOptions { rate: Rate::unlimited(), direct: true }
    }
}

/// A file being written from front to back.
pub struct PacedFileWriter {
    path: PathBuf,
    file: File,
    direct: bool,
    buffer: AlignedBuffer,
    filled: usize,
    written: u64,
    unflushed: u64,
    pacer: Pacer,
}

impl PacedFileWriter {
    /// Creates `path`, which must not exist.
    ///
    /// # Errors
    /// I/O errors.
    pub fn create(path: &Path, options: WriteOptions) -> Result<PacedFileWriter> {
        let (file, direct) = open_new(path, options.direct)?;
        Ok(PacedFileWriter {
            path: path.to_owned(),
            file,
            direct,
            buffer: AlignedBuffer::new(SLICE_BYTES),
            filled: 0,
            written: 0,
            unflushed: 0,
            pacer: Pacer::new(options.rate),
        })
    }

    /// Returns the bytes written so far, which is the position of the next byte.
    pub fn position(&self) -> u64 {
        self.written + self.filled as u64
    }

    /// Returns true if it still bypasses the page cache.
    pub(crate) fn direct(&self) -> bool {
        self.direct
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// I/O errors.
    pub fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = self.buffer.len() - self.filled;
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.buffer.as_mut_slice()[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == self.buffer.len() {
                self.write_out()?;
            }
        }
        Ok(())
    }

    /// Appends zeros up to the next multiple of [`BLOCK`].
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn align(&mut self) -> Result<()> {
        // The buffer is block-aligned in the file, so the padding never crosses its end.
        let aligned = self.filled.next_multiple_of(BLOCK);
        self.buffer.as_mut_slice()[self.filled..aligned].fill(0);
        self.filled = aligned;
        if self.filled == self.buffer.len() { self.write_out() } else { Ok(()) }
    }

    /// Writes the rest, sets the file's exact length, and waits until it is durable.
    ///
    /// # Errors
    /// I/O errors.
    pub fn finish(mut self) -> Result<u64> {
        let length = self.position();
        self.align()?;
        if self.filled > 0 {
            self.write_out()?;
        }
        self.file.set_len(length).map_err(|e| Error::io(&self.path, &e))?;
        self.file.sync_all().map_err(|e| Error::io(&self.path, &e))?;
        Ok(length)
    }

    /// Writes the buffer to the file. Continues through the page cache if the file system refuses
    /// direct writes.
    fn write_out(&mut self) -> Result<()> {
        self.pacer.wait(self.filled as u64);
        let outcome = self.file.write_all_at(&self.buffer.as_slice()[..self.filled], self.written);
        if let Err(error) = outcome {
            if !(self.direct && os::is_direct_refusal(&error)) {
                return Err(Error::io(&self.path, &error));
            }
            // Some file systems accept the flag and refuse the write.
            self.file = OpenOptions::new()
                .write(true)
                .open(&self.path)
                .map_err(|e| Error::io(&self.path, &e))?;
            self.direct = false;
            self.file
                .write_all_at(&self.buffer.as_slice()[..self.filled], self.written)
                .map_err(|e| Error::io(&self.path, &e))?;
        }
        self.written += self.filled as u64;
        self.unflushed += self.filled as u64;
        self.filled = 0;
        if !self.direct && self.unflushed >= FLUSH_BYTES {
            self.file.sync_data().map_err(|e| Error::io(&self.path, &e))?;
            self.unflushed = 0;
        }
        Ok(())
    }
}

/// Creates a file for writing. The result is true if writes go past the page cache, which needs
/// `direct` and a file system that supports O_DIRECT.
fn open_new(path: &Path, direct: bool) -> Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if direct {
        match options.custom_flags(libc::O_DIRECT).open(path) {
            Ok(file) => return Ok((file, true)),
            // Linux creates the file before it refuses the flag, so create_new is not used below.
            Err(error) if os::is_direct_refusal(&error) => {
                options.custom_flags(0).create_new(false).create(true);
            }
            Err(error) => return Err(Error::io(path, &error)),
        }
    }
    options.open(path).map(|file| (file, false)).map_err(|e| Error::io(path, &e))
}

/// Writes a small file and waits until it is durable.
pub(super) fn write_small(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all_at(bytes, 0)?;
        file.sync_all()
    };
    write().map_err(|e| Error::io(path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length_and_alignment_arrives() {
        let dir = tempfile::tempdir().unwrap();
        for direct in [true, false] {
            for size in [0usize, 1, BLOCK - 1, BLOCK, BLOCK + 1, SLICE_BYTES, SLICE_BYTES + 5] {
                let path = dir.path().join(format!("{direct}-{size}"));
                let mut writer =
                    PacedFileWriter::create(&path, WriteOptions { direct, ..Default::default() })
                        .unwrap();
                let bytes: Vec<u8> = (0..size).map(|at| at as u8 | 1).collect();
                writer.put(&bytes).unwrap();
                writer.align().unwrap();
                assert_eq!(writer.position(), size.next_multiple_of(BLOCK) as u64);
                writer.put(b"end").unwrap();
                let length = writer.finish().unwrap();
                let read = std::fs::read(&path).unwrap();
                assert_eq!(read.len() as u64, length);
                assert_eq!(read[..size], bytes);
                assert!(read[size..size.next_multiple_of(BLOCK)].iter().all(|&byte| byte == 0));
                assert_eq!(&read[read.len() - 3..], b"end");
            }
        }
    }

    #[test]
    fn an_existing_file_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"old").unwrap();
        assert!(PacedFileWriter::create(&path, WriteOptions::default()).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
    }
}
