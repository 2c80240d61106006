//! The LibTorch engine: TorchScript modules, and packages compiled by AOTInductor, behind the traits of `engine`.
//!
//! LibTorch speaks C++ only, so a small shim of ours (`engines/torch`, built by `make torch`) stands between: it has a
//! C interface, catches every exception, and is opened at run time, at the first model of this kind. A server without
//! such models never loads LibTorch.
//!
//! What is so for every model, and why:
//! * parameters lie in the caller's memory: while a model loads, LibTorch's allocator hands out an arena of the slot
//!   pool, and the file is read past the page cache, at the pace of all loads ([`archive`]); afterwards the memory is
//!   sealed against writes, unless a run of the model writes to it;
//! * the file's checksums are checked here, because the library is compiled without that;
//! * one thread a run unless asked otherwise, said anew on every thread, because LibTorch keeps the count a thread;
//! * compiled once: the executor that watches runs and compiles again is off;
//! * a model that keeps something from run to run starts every run as it was loaded, and a stream gets a copy of what
//!   changes.
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

    /// Opens the TorchScript archive at `path` as a load does, without LibTorch, and returns the arena's size in bytes.
    ///
    /// # Errors
    /// Those of a load: `DataLoss` for a damaged archive, `InvalidArgument` for another kind of archive.
    pub fn archive(path: &Path) -> Result<usize> {
        let bytes = crate::archive::parameter_bytes(path)?;
        crate::archive::TorchArchive::open(path, None)?.read_all()?;
        Ok(bytes)
    }
}
