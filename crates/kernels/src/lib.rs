//! The inner loops of search: distances, table look-ups, bit counts, top-k.
//!
//! Every kernel has a scalar reference in the same file. A property test compares every variant
//! that this machine can run with the reference. The processor's features choose the variant
//! ([`cpu::SimdLevel`]). `cargo bench -p millpond-kernels` measures the variants.

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
