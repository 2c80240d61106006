//! Parameter memory: where weights live, and how they get there without anyone noticing.
//!
//! # The decision
//! Swapping a large model stalls the threads that serve, and what stalls them is not the
//! allocator's locks but the kernel: clearing fresh pages, filling the page cache, taking the
//! address space's lock for whole operations. So parameters never go through malloc and never
//! through the page cache. They live in a [`SlotPool`]: one reservation of huge pages, faulted in
//! slowly before the server is ready and recycled from version to version. A [`ParameterStore`]
//! reads weights with O_DIRECT straight into their final place, in paced slices that are hashed
//! while they are still in the core's cache, and shares what another version already holds by that
//! hash. Loading a new version beside an old one then costs disk reads and nothing else.
//!
//! # The invariant
//! While a server serves, this crate maps and unmaps nothing. A load into recycled slots causes
//! next to no page fault; a release causes no system call. When the pool must grow or give memory
//! back it does so slot by slot, paced, on the background thread that asked, holding no lock; and
//! it never holds more than its budget.
//!
//! # Not here
//! No policy: who loads what and when is the lifecycle's. No request memory: that is the process's
//! allocator, which `os::jemalloc` reports on. No threads of its own: callers bring them, with the
//! priority that `os::thread` sets.

#![allow(unsafe_code)]

mod paced;
mod plan;
mod pool;
mod region;
mod reservation;
mod slots;
mod store;

pub use paced::PacedReader;
pub use pool::{PoolConfig, PoolStats, SlotPool};
pub use region::{Region, RegionMut};
pub use reservation::SLOT_BYTES;
pub use store::{
    Chunk, LoadReport, Loaded, ParameterStore, Placement, SHARE_MIN, StoreConfig, StoreStats,
};
