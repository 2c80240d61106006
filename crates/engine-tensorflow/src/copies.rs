//! Copies of a version's files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use base::{Error, Result};
use engine::layout::Artifact;
use engine::publish::LayoutWriter;

/// Most directory levels inside `assets`, `assets.extra` and `variables`.
const DEPTH_MAX: usize = 8;
/// Bytes that are copied at once.
const PIECE_BYTES: usize = 4 << 20;

/// Copies the files below `from` to `to`, which is made, and waits until they are durable. Does
/// nothing if there is no such directory.
///
/// # Errors
/// I/O errors; `InvalidArgument` for directories nested too deep.
pub(crate) fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    match from.is_dir() {
        true => copy_level(from, to, 0),
        false => Ok(()),
    }
}

fn copy_level(from: &Path, to: &Path, depth: usize) -> Result<()> {
    if depth == DEPTH_MAX {
        let shown = from.display();
        return Err(Error::invalid(format!("{shown}: directories nested too deep")));
    }
    std::fs::create_dir(to).map_err(|e| Error::io(to, &e))?;
    for entry in std::fs::read_dir(from).map_err(|e| Error::io(from, &e))? {
        let entry = entry.map_err(|e| Error::io(from, &e))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        // Follows links, as TensorFlow does.
        let meta = std::fs::metadata(&source).map_err(|e| Error::io(&source, &e))?;
        if meta.is_dir() {
            copy_level(&source, &target, depth + 1)?;
        } else {
            std::fs::copy(&source, &target).map_err(|e| Error::io(&source, &e))?;
            sync(&target)?;
        }
    }
    sync(to)
}

fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|e| Error::io(path, &e))
}

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
