//! Comparison of files on the disk with the hashes of a manifest.

use std::ops::Range;
use std::path::Path;

use base::Result;
use engine::layout::{Artifact, MANIFEST_NAME};
use os::{AlignedBuffer, DirectFile, Pacer};

/// Bytes that are hashed at once.
const BLOCK_BYTES: usize = 1 << 20;

/// A file that is read past the page cache, so that the bytes are those of the disk.
pub(crate) struct HashedFile {
    file: DirectFile,
    buffer: AlignedBuffer,
}

impl HashedFile {
    /// Opens the file.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn open(path: &Path) -> Result<HashedFile> {
        let file = DirectFile::open_direct(path)?;
        Ok(HashedFile { file, buffer: AlignedBuffer::new(BLOCK_BYTES) })
    }

    /// Returns true if the range can be read and has this hash in hexadecimal. Reads at the rate of
    /// `pacer`, if there is one.
    pub(crate) async fn has(
        &mut self,
        range: Range<u64>,
        hash: &str,
        pacer: Option<&Pacer>,
    ) -> bool {
        let mut hasher = blake3::Hasher::new();
        let mut at = range.start;
        while at < range.end {
            let bytes = (range.end - at).min(BLOCK_BYTES as u64);
            if let Some(pacer) = pacer {
                tokio::time::sleep_until(pacer.reserve(bytes).into()).await;
            }
            // Without a pause in the work, a stop of the server would wait for its end.
            tokio::task::yield_now().await;
            let Ok(block) = self.file.read_block(&mut self.buffer, at, bytes as usize) else {
                return false;
            };
            hasher.update(block);
            at += block.len() as u64;
        }
        hasher.finalize().to_hex().as_str() == hash
    }
}

/// Returns true if the files of the version in `dir` have the lengths and hashes of its manifest.
/// Without a manifest there are no hashes, and the version counts as intact.
pub(crate) async fn is_intact(dir: &Path, pacer: &Pacer) -> bool {
    if !dir.join(MANIFEST_NAME).exists() {
        return true;
    }
    let Ok(artifact) = Artifact::open(dir) else { return false };
    let graph = &artifact.manifest.graph;
    if let Some(hash) = &graph.blake3 {
        let Ok(mut file) = HashedFile::open(&artifact.graph()) else { return false };
        if !file.has(0..graph.bytes, hash, Some(pacer)).await {
            return false;
        }
    }
    let Some(weights) = artifact.weights() else { return true };
    let Ok(mut file) = HashedFile::open(&weights) else { return false };
    for tensor in &artifact.manifest.tensors {
        let range = tensor.offset..tensor.offset + tensor.bytes;
        if !file.has(range, &tensor.blake3, Some(pacer)).await {
            return false;
        }
    }
    true
}
