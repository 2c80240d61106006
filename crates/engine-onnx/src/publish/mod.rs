//! Converts ONNX models into the mappable layout ([`engine::layout`]) and builds small ones.
//!
//! A model is never held in memory: its protobuf is walked where it lies, large parameters are copied slice by
//! slice, and everything else is copied byte for byte. Nothing here calls ONNX Runtime.
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
use memory::Rate;

use convert::Conversion;
use versions::VersionClaim;

pub use layout_writer::{GRAPH_NAME, LayoutWriter};
pub use sink::WriteOptions;

/// Initialisers of at least this many bytes move to the weights file; smaller ones stay in the graph.
pub const EXTERNALISE_MIN: u64 = 4096;

/// What [`publish`] shall do.
#[derive(Clone, Debug)]
pub struct PublishOptions {
    /// An ONNX file, a directory that holds `model.onnx` and what it refers to, or a published version.
    pub source: PathBuf,
    /// The model's directory, in which the version's directory appears. Made if it is not there.
    pub dest_root: PathBuf,
    /// The version's number; one more than the highest there is when absent.
    pub version: Option<u64>,
    /// Bytes a second at most.
    pub rate: Rate,
    /// Past the page cache (O_DIRECT) where the file system allows it.
    pub direct: bool,
}

/// How far a conversion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishProgress {
    /// Bytes written, parameters and graph together.
    pub bytes_done: u64,
    /// Bytes to be written.
    pub bytes_total: u64,
}

/// A version that [`publish`] made.
#[derive(Clone, Debug)]
pub struct Published {
    /// Its number.
    pub version: u64,
    /// Its directory.
    pub dir: PathBuf,
    /// Its manifest.
    pub manifest: LayoutManifest,
}

/// What a source holds, as far as its headers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceSummary {
    /// It is in the mappable layout already.
    pub published: bool,
    /// Bytes of parameters inside the model file that a conversion would move to the weights file.
    pub embedded_bytes: u64,
    /// Bytes of parameters in files beside the model.
    pub external_bytes: u64,
    /// Number of parameters that both figures count.
    pub tensors: usize,
}

/// Publishes a model: converts it, or copies it when it is in the layout already, checking every hash, and
/// renames the finished version into place in one step. On any error nothing is left behind.
///
/// # Errors
/// `AlreadyExists` for a version that is there; `NotFound`, `DataLoss` or `InvalidArgument` when the source is
/// at fault; I/O errors.
pub fn publish(options: &PublishOptions, progress: &mut dyn FnMut(PublishProgress)) -> Result<Published> {
    // Everything that the headers can tell is told before anything is written.
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
/// As [`publish`]. What was written so far is left in `dir`, without a manifest.
pub fn convert_into(
    source: &Path,
    dir: &Path,
    options: WriteOptions,
    progress: &mut dyn FnMut(PublishProgress),
) -> Result<LayoutManifest> {
    Conversion::open(source, options.direct)?.run(dir, options, progress)
}

/// Says quickly, from the headers alone, where a model's parameters lie.
///
/// # Errors
/// `NotFound` and `DataLoss` when the source is at fault; I/O errors.
pub fn inspect(source: &Path) -> Result<SourceSummary> {
    // Headers of a model that is about to be loaded are worth their place in the page cache.
    Conversion::open(source, false).map(|job| job.summary())
}

#[cfg(test)]
mod tests;
