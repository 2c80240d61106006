//! The inner loops of search: distances, table look-ups, bit counts, top-k.
//!
//! Every kernel has a scalar reference in the same file. A property test compares every variant
//! that this machine can run with the reference. The processor's features choose the variant
//! ([`cpu::SimdLevel`]). `cargo bench -p millpond-kernels` measures the variants.
//!
//! # Modules
//! * Vectors: `float`, `bfloat`, `integer`.
//! * Codes: `pq`, `rabitq`, `binary`; `hadamard` rotates vectors before they are coded.
//! * Keypoint graphs: `graph`.
//! * All kernels: `cpu` chooses the variant, `topk` keeps the best.

#![allow(unsafe_code)]

pub mod bfloat;
pub mod binary;
pub mod cpu;
pub mod float;
pub mod graph;
pub mod hadamard;
pub mod integer;
pub mod pq;
pub mod rabitq;
mod topk;

pub use cpu::prefetch;
pub use topk::TopK;
