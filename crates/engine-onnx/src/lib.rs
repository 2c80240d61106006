//! The ONNX Runtime engine and the ONNX publisher.
//!
//! The library is loaded at run time and found by [`engine::LibrarySearch`]. Loading and its version check are `ort`'s;
//! everything after that goes through the C API, because `ort`'s safe `Session::run` takes `&mut self` and
//! Millpond's workers share one session. All calls pass one door (`api`): a status becomes a `Result`, a null
//! pointer an error, every handle is released by `Drop`.
//!
//! What is set for every session, and why:
//! * parameters are bound in the caller's regions (`AddInitializer`), never copied, and released after the session;
//! * own arena off: a block-caching arena a session would die with every swap and be faulted in again;
//! * memory patterns off: they are cached under a lock for each new shape and never dropped;
//! * spinning off, one thread an operator unless asked otherwise: Millpond's workers are the parallelism;
//! * prepacking on: matrices in the kernels' own layout are worth their few megabytes.
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
