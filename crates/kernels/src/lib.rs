//! The inner loops of search: distances, table look-ups, bit counts, top-k.
//!
//! Every kernel has a scalar reference in the same file, and a property test that holds every variant which this
//! machine can run against it. The variant is chosen by what the processor has ([`cpu::Level`]).

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
