//! The LibTorch engine: TorchScript modules, and packages compiled by AOTInductor, behind the
//! traits of `engine`.
//!
//! LibTorch has only a C++ interface. A small C++ shim (`engines/torch`, built by `make torch`)
//! wraps it in a C interface and catches every exception. It is opened at run time, with the first
//! model of this engine; a server without such models never loads LibTorch.
//!
//! Rules for every model, and their reasons:
//! * Parameters lie in the caller's memory. While a model loads, LibTorch's allocator uses an arena
//!   of the slot pool, and the file is read past the page cache at the rate of all loads
//!   (`archive`). Afterwards the memory is sealed against writes, unless a run of the model
//!   writes to it.
//! * The file's checksums are checked here, because the library is compiled without that check.
//! * A run has one thread unless the settings request more. The count is set on every thread,
//!   because LibTorch keeps a separate count for each thread.
//! * A model is compiled once: the executor that observes runs and compiles again is off.
//! * A model with a state inside starts every run from the state as loaded; a stream gets a copy of
//!   the parts that change.
//!
//! # Modules
//! * The shim: `library` finds it, `api` calls it, `module` has handles of its objects, `fault`
//!   turns exceptions into errors.
//! * A model: `load`, `archive`, `signature`.
//! * Runs: `session`, `outputs`, `element`.
//! * Modules for tests: `build`.
//!
//! Layer: `engine-torch` implements `engine`; only `server`, `cli` and `bench` know it exists.
#![allow(unsafe_code)]

mod api;
mod archive;
pub mod build;
mod element;
mod fault;
mod library;
mod load;
mod module;
mod outputs;
mod session;
mod signature;

pub use library::TorchEngine;

/// Exposes parsers to the fuzz targets. Not part of the API.
#[doc(hidden)]
pub mod fuzzing {
    use std::path::Path;

    use base::Result;

    /// Opens the TorchScript archive at `path` as a load does, without LibTorch, and returns the
    /// arena's size in bytes.
    ///
    /// # Errors
    /// Returns the errors of a load: `DataLoss` for a damaged archive, `InvalidArgument` for
    /// another kind of archive.
    pub fn archive(path: &Path) -> Result<usize> {
        let bytes = crate::archive::parameter_bytes(path)?;
        crate::archive::TorchArchive::open(path, None)?.read_all()?;
        Ok(bytes)
    }
}
