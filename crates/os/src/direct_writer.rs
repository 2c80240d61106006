//! Writing a file past the page cache. On a virtual machine, the host often has to find memory
//! first for a page that enters the cache. The core stands still for that time, even if the thread
//! that writes has low priority.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::{Error, Result};

use crate::aligned_buffer::AlignedBuffer;
use crate::direct_file::{DIRECT_ALIGNMENT, is_direct_refusal};

/// Bytes written at once.
const STEP_BYTES: usize = 1 << 20;

/// A file of known length that is written at any offsets. Whole blocks are written with O_DIRECT,
/// and the rest, less than a block on either side of a write, through the page cache. If the file
/// system refuses O_DIRECT, all is written through the cache.
#[derive(Debug)]
pub struct DirectWriter {
    path: PathBuf,
    cached: File,
    /// `None` if the file system refuses direct writes.
    direct: Option<File>,
    buffer: AlignedBuffer,
}

impl DirectWriter {
    /// Opens or creates `path` with a length of `bytes`. Bytes that are there are kept. Only the
    /// owner and the group can read a new file.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn open(path: &Path, bytes: u64) -> Result<DirectWriter> {
        let fail = |error| Error::io(path, &error);
        let mut options = crate::private::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let cached = options.open(path).map_err(fail)?;
        cached.set_len(bytes).map_err(fail)?;
        let direct = match options.custom_flags(libc::O_DIRECT).open(path) {
            Ok(file) => Some(file),
            Err(error) if is_direct_refusal(&error) => None,
            Err(error) => return Err(fail(error)),
        };
        let buffer = AlignedBuffer::new(STEP_BYTES);
        Ok(DirectWriter { path: path.to_owned(), cached, direct, buffer })
    }

    /// Returns the path of the file that is written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `content` at `offset`.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn write_all_at(&mut self, content: &[u8], offset: u64) -> Result<()> {
        let block = DIRECT_ALIGNMENT as u64;
        let to_block = (offset.next_multiple_of(block) - offset) as usize;
        let (head, rest) = content.split_at(to_block.min(content.len()));
        let (blocks, tail) = rest.split_at(rest.len() / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT);
        self.write_cached(head, offset)?;
        let mut at = offset + head.len() as u64;
        for step in blocks.chunks(STEP_BYTES) {
            self.write_blocks(step, at)?;
            at += step.len() as u64;
        }
        self.write_cached(tail, at)
    }

    /// Makes the written bytes durable.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn sync(&self) -> Result<()> {
        self.cached.sync_all().map_err(|error| Error::io(&self.path, &error))
    }

    fn write_blocks(&mut self, content: &[u8], offset: u64) -> Result<()> {
        let Some(file) = &self.direct else { return self.write_cached(content, offset) };
        let buffer = &mut self.buffer.as_mut_slice()[..content.len()];
        buffer.copy_from_slice(content);
        match file.write_all_at(buffer, offset) {
            Ok(()) => Ok(()),
            // Some file systems open a file with O_DIRECT and then refuse to write it. A write that
            // was cut short continues at an offset that is not a multiple of a block.
            Err(error) if is_direct_refusal(&error) => {
                self.direct = None;
                self.write_cached(content, offset)
            }
            Err(error) => Err(Error::io(&self.path, &error)),
        }
    }

    fn write_cached(&self, content: &[u8], offset: u64) -> Result<()> {
        self.cached.write_all_at(content, offset).map_err(|error| Error::io(&self.path, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DirectFile;

    const BYTES: usize = 3 * STEP_BYTES + 5000;

    fn content() -> Vec<u8> {
        (0..BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    /// Ranges that cover the file: whole blocks, parts of blocks, several steps.
    const CUTS: [usize; 9] =
        [0, 1, 4096, 4097, 12_000, 12_288, 20_480, 2 * STEP_BYTES + 100, BYTES];

    #[test]
    fn parts_in_any_order_make_the_whole() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let content = content();
        for refused in [false, true] {
            let _ = std::fs::remove_file(&path);
            let mut writer = DirectWriter::open(&path, BYTES as u64).unwrap();
            if refused {
                writer.direct = None;
            }
            for cut in CUTS.windows(2).rev() {
                writer.write_all_at(&content[cut[0]..cut[1]], cut[0] as u64).unwrap();
            }
            writer.sync().unwrap();
            assert!(std::fs::read(&path).unwrap() == content, "refused: {refused}");
        }
    }

    #[test]
    fn earlier_bytes_are_kept_and_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        std::fs::write(&path, vec![7; 10_000]).unwrap();
        let mut writer = DirectWriter::open(&path, 10_000).unwrap();
        writer.write_all_at(&[8; 5000], 100).unwrap();
        writer.sync().unwrap();
        let found = std::fs::read(&path).unwrap();
        assert!(found[..100].iter().chain(&found[5100..]).all(|byte| *byte == 7));
        assert!(found[100..5100].iter().all(|byte| *byte == 8) && found.len() == 10_000);
    }

    #[test]
    fn blocks_of_any_range_are_read() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let content = content();
        std::fs::write(&path, &content).unwrap();
        let mut buffer = AlignedBuffer::new(16 << 10);
        for direct in [true, false] {
            let mut file = DirectFile::open(&path, direct).unwrap();
            for range in CUTS.windows(2) {
                let mut found: Vec<u8> = Vec::new();
                while found.len() < range[1] - range[0] {
                    let at = range[0] + found.len();
                    found.extend(file.read_block(&mut buffer, at as u64, range[1] - at).unwrap());
                }
                assert!(found == content[range[0]..range[1]], "{range:?}");
            }
            let beyond = file.read_block(&mut buffer, BYTES as u64 - 1, 2).unwrap_err();
            assert_eq!(beyond.kind(), base::ErrorKind::DataLoss);
        }
    }
}
