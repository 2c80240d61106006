//! Converts ONNX models into the mappable layout ([`engine::layout`]) and builds small ones.
//!
//! A model is never held in memory: its protobuf is walked in the file, large parameters are copied
//! slice by slice, and everything else is copied byte for byte. Nothing here calls ONNX Runtime.
#![forbid(unsafe_code)]

mod aligned;
pub mod build;
mod constant;
mod convert;
mod encode;
mod external;
pub(crate) mod initializers;
mod layout_writer;
mod names;
mod plan;
mod schema;
mod sink;
mod source;
mod tensor;
mod versions;
mod wire;

use std::path::{Path, PathBuf};

use base::Result;
use engine::layout::LayoutManifest;
use os::Rate;

use convert::Conversion;
use versions::VersionClaim;

pub use layout_writer::{GRAPH_NAME, LayoutWriter};
pub use sink::WriteOptions;

/// Minimum bytes of an initialiser that moves to the weights file; smaller ones stay in the graph.
pub const EXTERNALISE_MIN: u64 = 4096;

/// Options of [`publish`].
#[derive(Clone, Debug)]
pub struct PublishOptions {
    /// An ONNX file, a directory that holds `model.onnx` and its external files, or a published
    /// version.
    pub source: PathBuf,
    /// The model's directory, which gets the version's directory. Created if missing.
    pub dest_root: PathBuf,
    /// Number of the version; by default one more than the highest.
    pub version: Option<u64>,
    /// Maximum rate in bytes per second.
    pub rate: Rate,
    /// True to bypass the page cache (O_DIRECT) if the file system allows it.
    pub direct: bool,
}

/// Progress of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishProgress {
    /// Bytes written, parameters and graph together.
    pub bytes_done: u64,
    /// Total bytes.
    pub bytes_total: u64,
}

/// A version that [`publish`] made.
#[derive(Clone, Debug)]
pub struct Published {
    /// Number of the version.
    pub version: u64,
    /// Directory of the version.
    pub dir: PathBuf,
    /// Manifest of the version.
    pub manifest: LayoutManifest,
}

/// Contents of a source according to its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceSummary {
    /// True if it is in the mappable layout already.
    pub published: bool,
    /// Bytes of parameters inside the model file that a conversion would move to the weights file.
    pub embedded_bytes: u64,
    /// Bytes of parameters in files beside the model.
    pub external_bytes: u64,
    /// Number of parameters that both figures count.
    pub tensors: usize,
}

/// Publishes a model: converts it, or copies it and checks every hash if it is in the layout
/// already. Renames the finished version into place in one step. An error leaves nothing behind.
///
/// # Errors
/// `AlreadyExists` for an existing version; `NotFound`, `DataLoss` or `InvalidArgument` if the
/// source is at fault; I/O errors.
pub fn publish(
    options: &PublishOptions,
    progress: &mut dyn FnMut(PublishProgress),
) -> Result<Published> {
    // All errors that the headers show are reported before anything is written.
    let job = Conversion::open(&options.source, options.direct)?;
    let claim = VersionClaim::new(&options.dest_root, options.version)?;
    let write = WriteOptions { rate: options.rate, direct: options.direct };
    let manifest = job.run(claim.dir(), write, progress)?;
    let (version, dir) = claim.commit()?;
    Ok(Published { version, dir, manifest })
}

/// Converts `source` into the layout inside the existing directory `dir`.
///
/// # Errors
/// As [`publish`]. Files written so far stay in `dir`, without a manifest.
pub fn convert_into(
    source: &Path,
    dir: &Path,
    options: WriteOptions,
    progress: &mut dyn FnMut(PublishProgress),
) -> Result<LayoutManifest> {
    Conversion::open(source, options.direct)?.run(dir, options, progress)
}

/// Returns the location of a model's parameters, from the headers alone.
///
/// # Errors
/// `NotFound` and `DataLoss` if the source is at fault; I/O errors.
pub fn inspect(source: &Path) -> Result<SourceSummary> {
    // The model is about to be loaded, so its headers may stay in the page cache.
    Conversion::open(source, false).map(|job| job.summary())
}

#[cfg(test)]
mod tests;
