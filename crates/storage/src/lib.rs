//! Storage of index segments: media behind one trait, and formats that detect damage.
//!
//! The same bytes lie in DRAM (slots of `memory`), in persistent memory (mapped with DAX) or on
//! NVMe (read through io_uring past the page cache). Bytes of a segment are written once,
//! checksummed page by page, and never changed.
//!
//! # Guarantees
//! After `persist` of a file and `persist_names` of its medium, the file survives any crash as it
//! was. Before that, anything may remain. So everything that is read back checks itself. For
//! damaged bytes, [`page`], [`superblock`], [`manifest`] and [`log`] give an error or a report.
//! They never give a wrong result and never panic.
//!
//! # Not here
//! The contents of segments and their list are in the search crate. This crate starts no thread.
//!
//! # Modules
//! * Media: `medium` has the traits; `dram`, `dax`, `uring` and `mmap` implement them, `fault`
//!   fails on request.
//! * What file systems share: `directory`, `names`, `mapping`, `guard`.
//! * What readers share: `options`, `table`, `buffer`, `buffered`, `in_place`.
//! * Formats: `page`, `superblock`, `manifest`, `log`, `watermark`, `bytes`.

#![allow(unsafe_code)]

mod buffer;
mod buffered;
mod bytes;
pub mod dax;
mod directory;
mod dram;
mod fault;
mod guard;
mod in_place;
pub mod log;
pub mod manifest;
mod mapping;
mod medium;
mod mmap;
mod names;
mod options;
pub mod page;
pub mod superblock;
mod table;
mod uring;
pub mod watermark;

pub use dax::DaxMedium;
pub use dram::DramMedium;
pub use fault::{FaultMedium, FaultPlan, ReadFault};
pub use medium::{
    LOAD_BYTES_MAX, Medium, MediumKind, Read, Reader, ReaderGroup, ReaderOptions, Salvaged, Sealed,
    Space, Writer,
};
pub use mmap::MmapMedium;
pub use names::NAME_BYTES_MAX;
pub use options::DEPTH_MAX;
pub use uring::UringMedium;
