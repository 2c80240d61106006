//! The ONNX Runtime engine and the ONNX publisher.
//!
//! The library is loaded at run time and found by [`engine::LibrarySearch`]. `ort` loads it and
//! checks its version. Everything after that goes through the C API, because `ort`'s safe
//! `Session::run` takes `&mut self` and Millpond's workers share one session. All calls go through
//! `api`: a status becomes a `Result`, a null pointer an error, and `Drop` releases every handle.
//!
//! Settings of every session, and their reasons:
//! * Parameters are bound in the caller's regions (`AddInitializer`), and released after the
//!   session. The library copies those whose shape it may change (`AddExternalInitializers`).
//! * The library's arena is off: a caching arena per session would be released with every swap and
//!   faulted in again.
//! * Memory patterns are off: they are cached under a lock for each new shape and never dropped.
//! * Spinning is off, and an operator has one thread unless the settings request more: Millpond's
//!   workers are the parallelism.
//! * Prepacking is on: matrices in the kernels' own layout are worth their few megabytes.
//!
//! # Modules
//! * The library: `library` finds it, `runtime` is the loaded one, `engines` open it, `api` calls
//!   it.
//! * A model: `load`, `parameters`, `signature`, `metadata`.
//! * Runs: `session`, `outputs`, `element`.
//! * Conversion: `publish`.
//!
//! Layer: `engine-onnx` implements `engine`; only `server`, `cli` and `bench` know it exists.
#![allow(unsafe_code)]

mod api;
mod element;
mod engines;
mod library;
mod load;
mod metadata;
mod outputs;
mod parameters;
pub mod publish;
mod runtime;
mod session;
mod signature;

pub use engines::{LazyOnnxEngine, OnnxEngine};
