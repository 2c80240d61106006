//! Writing of published versions: the layout's files, and the directory that a version appears in.
//! Engines that publish models use it.

mod copies;
mod layout_writer;
mod sink;
mod versions;

use std::path::PathBuf;

use crate::layout::LayoutManifest;
use os::Rate;

pub use copies::{DEPTH_MAX, copy_directory, copy_requests};
pub use layout_writer::{GraphWriter, LayoutNames, LayoutWriter};
pub use os::{AlignedBuffer, DIRECT_ALIGNMENT as BLOCK};
pub use sink::{PacedFileWriter, WriteOptions};
pub use versions::{VERSION_MAX, VersionClaim};

/// Options of an engine's `publish`.
#[derive(Clone, Debug)]
pub struct PublishOptions {
    /// A model file, a directory that holds one, or a published version.
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
    /// Bytes to write, parameters and graph together.
    pub bytes_total: u64,
}

/// A version that a `publish` made.
#[derive(Clone, Debug)]
pub struct Published {
    /// Number of the version: the name of its directory.
    pub version: u64,
    /// Directory of the version.
    pub dir: PathBuf,
    /// Manifest of the version.
    pub manifest: LayoutManifest,
}
