//! Image search in two stages: a coarse filter over embeddings, then exact matching of keypoint graphs that are read
//! from whichever medium holds them.

pub mod coarse;
pub mod filter;
pub mod rerank;

pub use rerank::Scorer;
