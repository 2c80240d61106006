//! Copies of a published version's weights.

use std::fs::File;
use std::os::unix::fs::FileExt;

use base::{Error, Result};
use engine::layout::Artifact;
use engine::publish::LayoutWriter;

/// Bytes that are copied at once.
const PIECE_BYTES: usize = 4 << 20;

/// Copies the weights of a published version and compares their hashes.
///
/// # Errors
/// `DataLoss` for bytes that do not match the manifest; I/O errors.
pub(crate) fn copy_tensors(
    artifact: &Artifact,
    writer: &mut LayoutWriter,
    copied: &mut dyn FnMut(usize),
) -> Result<()> {
    let Some(path) = artifact.weights() else { return Ok(()) };
    let io = |error: std::io::Error| Error::io(&path, &error);
    let file = File::open(&path).map_err(io)?;
    let mut piece = vec![0; PIECE_BYTES];
    for tensor in &artifact.manifest.tensors {
        writer.begin(&tensor.name, tensor.dtype()?, &tensor.dims)?;
        let mut at = 0;
        while at < tensor.bytes {
            let length = (tensor.bytes - at).min(PIECE_BYTES as u64) as usize;
            file.read_exact_at(&mut piece[..length], tensor.offset + at).map_err(io)?;
            writer.write(&piece[..length])?;
            copied(length);
            at += length as u64;
        }
        if writer.end()?.blake3 != tensor.blake3 {
            return Err(Error::data_loss(format!(
                "{}: tensor {:?} is not the one that its manifest describes; publish it again from its origin",
                path.display(),
                tensor.name
            )));
        }
    }
    Ok(())
}
