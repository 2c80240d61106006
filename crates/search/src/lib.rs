//! Image search in two stages: a coarse filter over embeddings, then exact matching of keypoint
//! graphs, which are read from memory or from a device.

pub mod budget;
pub mod coarse;
pub mod codes;
pub mod collection;
pub mod deletes;
pub mod duplicates;
pub mod filter;
pub mod ingest;
mod parts;
pub mod payload_index;
pub mod points;
pub mod registry;
pub mod rerank;
pub mod segment;
pub mod segment_cache;

pub use rerank::Scorer;
