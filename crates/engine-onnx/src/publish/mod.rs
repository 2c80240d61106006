//! Converts ONNX models into the mappable layout ([`engine::layout`]) and builds small ones.
//!
//! A model is never held in memory. Its protobuf is walked in the file. Large parameters are copied
//! slice by slice, and everything else is copied byte for byte. Nothing here calls ONNX Runtime.
#![forbid(unsafe_code)]

pub mod build;
mod constant;
mod convert;
mod encode;
mod external;
pub(crate) mod initializers;
mod names;
mod nested;
mod plan;
mod rearranged;
mod schema;
mod source;
mod tensor;
mod wire;

use std::path::Path;

use base::Result;
use convert::Conversion;
use engine::layout::LayoutManifest;
use engine::publish::{LayoutNames, VersionClaim, copy_requests};

pub use engine::publish::{LayoutWriter, PublishOptions, PublishProgress, Published, WriteOptions};

/// File name of the graph in the layout.
pub(crate) const GRAPH_NAME: &str = "model.onnx";
/// Engine name in the manifests.
const ENGINE_NAME: &str = "onnxruntime";

/// Starts a version of this engine in `dir`, an existing directory.
///
/// # Errors
/// Returns the errors of [`LayoutWriter::create`].
pub fn layout_writer(dir: &Path, options: WriteOptions) -> Result<LayoutWriter> {
    let names = LayoutNames { engine: ENGINE_NAME, graph: GRAPH_NAME };
    LayoutWriter::create(dir, names, options)
}

/// Minimum bytes of an initialiser that moves to the weights file. Smaller initialisers stay in the
/// graph.
pub(crate) const EXTERNALISE_MIN: u64 = 4096;

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

/// Publishes a model. Converts it, or copies it and checks every hash if it is in the layout
/// already. Also copies the recorded requests of a directory. Renames the finished version into
/// place in one step. After an error, no new file remains.
///
/// # Errors
/// `AlreadyExists` for an existing version; `NotFound`, `DataLoss` or `InvalidArgument` if the
/// source is missing, damaged or wrong; I/O errors.
pub fn publish(
    options: &PublishOptions,
    progress: &mut dyn FnMut(PublishProgress),
) -> Result<Published> {
    // All errors that the headers show are reported before anything is written.
    let job = Conversion::open(&options.source, options.direct)?;
    let claim = VersionClaim::new(&options.dest_root, options.version)?;
    let write = WriteOptions { rate: options.rate, direct: options.direct };
    copy_requests(&options.source, claim.dir())?;
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
/// `NotFound` or `DataLoss` if the source is missing or damaged; I/O errors.
pub fn inspect(source: &Path) -> Result<SourceSummary> {
    // The model is about to be loaded, so its headers may stay in the page cache.
    Conversion::open(source, false).map(|job| job.summary())
}

#[cfg(test)]
mod tests;
