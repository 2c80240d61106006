//! Buffers that O_DIRECT accepts.

/// Alignment of memory, file position and length for O_DIRECT. Covers devices with 512-byte and 4
/// KiB sectors; a device with larger sectors refuses, and the buffered path is taken.
pub const BLOCK: usize = 4096;

/// Zeroed bytes that start at a multiple of [`BLOCK`]. Never grows, so never moves.
pub struct AlignedBuffer {
    storage: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl AlignedBuffer {
    /// Allocates `bytes`, rounded up to whole blocks, at least one.
    pub fn new(bytes: usize) -> AlignedBuffer {
        let bytes = bytes.max(1).next_multiple_of(BLOCK);
        let storage = vec![0u8; bytes + BLOCK];
        let start = storage.as_ptr().align_offset(BLOCK);
        AlignedBuffer { storage, start, bytes }
    }

    /// Returns its length in bytes, which is never 0.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.bytes]
    }

    /// Returns the bytes for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_on_a_block() {
        for bytes in [0, 1, BLOCK, BLOCK + 1, 1 << 20] {
            let mut buffer = AlignedBuffer::new(bytes);
            assert_eq!(buffer.as_slice().as_ptr() as usize % BLOCK, 0);
            assert!(buffer.len() >= bytes && buffer.len().is_multiple_of(BLOCK));
            assert_eq!(buffer.as_mut_slice().len(), buffer.len());
        }
    }
}
