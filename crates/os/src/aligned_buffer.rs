//! Buffers that O_DIRECT accepts.

use crate::direct_file::DIRECT_ALIGNMENT;

/// Zeroed bytes that start at a multiple of [`DIRECT_ALIGNMENT`]. Never grows, so never moves.
#[derive(Debug)]
pub struct AlignedBuffer {
    storage: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl AlignedBuffer {
    /// Allocates `bytes`, rounded up to whole blocks, at least one.
    pub fn new(bytes: usize) -> AlignedBuffer {
        let bytes = bytes.max(1).next_multiple_of(DIRECT_ALIGNMENT);
        let storage = vec![0u8; bytes + DIRECT_ALIGNMENT];
        let start = storage.as_ptr().align_offset(DIRECT_ALIGNMENT);
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
        for bytes in [0, 1, DIRECT_ALIGNMENT, DIRECT_ALIGNMENT + 1, 1 << 20] {
            let mut buffer = AlignedBuffer::new(bytes);
            assert_eq!(buffer.as_slice().as_ptr() as usize % DIRECT_ALIGNMENT, 0);
            assert!(buffer.len() >= bytes && buffer.len().is_multiple_of(DIRECT_ALIGNMENT));
            assert_eq!(buffer.as_mut_slice().len(), buffer.len());
        }
    }
}
