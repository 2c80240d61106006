//! Image search in two stages: a coarse filter over embeddings, then exact matching of keypoint
//! graphs, which are read from memory or from a device.
//!
//! # Modules
//! * Collections: `registry` has them by name, `collection` is one, `ingest` its unflushed data,
//!   `duplicates` its pairs of similar points. `points` are points as clients know them.
//! * Segments: `segment` has the files, `deletes` the deleted rows, `payload_index` finds rows,
//!   `segment_cache` keeps blocks in memory.
//! * Stages of a search: `millpond-filter` evaluates conditions, `codes` sets the place of the
//!   codes by which `millpond-coarse` ranks embeddings, `rerank` scores records of candidates.
//! * All of them reserve their memory in `budget`.

pub mod budget;
pub mod codes;
pub mod collection;
pub mod deletes;
pub mod duplicates;
pub mod ingest;
pub mod payload_index;
pub mod points;
pub mod registry;
pub mod rerank;
pub mod segment;
pub mod segment_cache;

pub use ::filter;
pub use coarse::{CoarseKind, DIMS_MAX, HITS_MAX, Metric, SQUARE_MAX, ScanParams};
pub use rerank::Scorer;
