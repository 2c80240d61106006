//! Image search in two stages: a coarse filter over embeddings, then exact matching of keypoint
//! graphs, which are read from memory or from a device.
//!
//! # Modules
//! * Collections: `registry` has them by name, `collection` is one, `ingest` its unflushed data,
//!   `duplicates` its pairs of similar points. `points` are points as clients know them.
//! * Segments: `segment` has the files, `deletes` the deleted rows, `payload_index` finds rows,
//!   `segment_cache` keeps blocks in memory.
//! * Stages of a search: `filter` evaluates conditions, `coarse` ranks embeddings by their codes,
//!   `codes` sets the place of those, `rerank` scores the records of candidates.
//! * What they share: `budget` limits memory, `parts` divides work among threads.

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
