//! Segments: immutable files of points, laid out by coarse cluster.
//!
//! A segment holds ids, codes, embeddings, records and payloads of up to 2^30 rows. Ids, maps and,
//! if they fit, codes are read into memory when it is opened. Embeddings, records, payloads and
//! their index, and otherwise codes too, stay on the medium and are read page by page. A checksum
//! covers every byte. The superblock has one for each section that is read whole. Each page of
//! records and payloads has its own. A table of page checksums covers embeddings, the index and
//! codes that stay on the medium. A mismatch fails with the name of the page. Data is never
//! guessed.

mod build;
mod check;
mod codes;
mod damage;
mod file;
mod id_filter;
pub(crate) mod ids;
pub(crate) mod index_section;
pub(crate) mod layout;
mod open;
mod opening_index;
mod opening_plan;
mod pages;
mod preload;
mod rows;
mod section_cache;
mod vectors;

pub(crate) use build::{RowSource, SegmentForm, SegmentPlan, WrittenSegment, write};
pub(crate) use check::{SegmentFileCheck, SegmentFileDamage};
pub(crate) use codes::{CODES_READER, CodeReader};
pub use damage::Quarantined;
pub(crate) use file::IoStep;
pub use ids::SegmentIds;
pub use layout::{RecordKind, SegmentSettings, VectorEncoding};
pub(crate) use open::{Segment, ids_alone};
pub(crate) use opening_plan::{CodesOptions, kept_bytes};
pub(crate) use pages::{PageCache, PayloadPass};
pub(crate) use preload::PreloadScope;
pub use rows::{RowLocation, RowMap, RowMapBuilder};

pub use vectors::similarity;
pub(crate) use vectors::{reader_options, score_rows};
