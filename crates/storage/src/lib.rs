//! Where index segments live: media behind one trait, and what makes bytes on them trustworthy.
//!
//! The same bytes lie on DRAM (slots of `memory`), on persistent memory (mapped with DAX) and on
//! NVMe (read through io_uring past the page cache). What is written is written once, checksummed
//! page by page, and never changed.
//!
//! # What is promised
//! After `persist` of a file and `persist_names` of its medium, the file is found as it was,
//! whatever happens. Before, anything may be found, so everything here that is read back checks
//! itself: [`page`], [`superblock`], [`manifest`] and [`log`] give an error or a report for damaged
//! bytes, never a wrong answer and never a panic.
//!
//! # Not here
//! What segments hold and which of them there are: that is the search crate's. No thread of its
//! own.

#![allow(unsafe_code)]

mod buffer;
mod bytes;
pub mod dax;
mod directory;
mod dram;
pub mod fault;
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
pub use guard::{GUARDED_MAX, lost_pages};
pub use medium::{
    LOAD_BYTES_MAX, Medium, MediumKind, Read, Reader, ReaderOptions, Salvaged, Sealed, Space,
    Writer,
};
pub use mmap::MmapMedium;
pub use names::NAME_BYTES_MAX;
pub use options::{BUFFER_BYTES_MAX, DEPTH_MAX};
pub use uring::UringMedium;
