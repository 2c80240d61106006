//! Segments: files of points that are written once, laid out by coarse cluster, and never changed.
//!
//! A segment holds ids, codes, embeddings, records and payloads of up to 2^30 rows. Codes, ids and maps are read into
//! memory when it is opened; embeddings, records and payloads stay on the medium and are read page by page. Every byte
//! is covered by a checksum: sections that are read whole by one in the superblock, record and payload pages by their
//! own, pages of embeddings by the table of page checksums. What does not match is refused by name, never guessed at.

mod build;
mod damage;
mod file;
mod ids;
pub mod layout;
mod open;
mod rows;
mod vectors;

pub use build::{RowSource, SegmentPlan, WrittenSegment, working_bytes, write};
pub use damage::Quarantined;
pub use file::IoStep;
pub use ids::SegmentIds;
pub use layout::{SegmentSettings, VectorEncoding};
pub use open::{PageCache, Segment, ids_alone};
pub use rows::{RowLocation, RowMap, RowMapBuilder};
pub use vectors::{ExactVectors, reader_options};

pub(crate) use vectors::similarity;
