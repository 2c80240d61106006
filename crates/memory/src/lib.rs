//! Memory of model parameters, and loads into it that do not stall serving threads.
//!
//! # The decision
//! Swapping a large model stalls the threads that serve. The cause is the kernel and not the
//! allocator's locks. The kernel clears fresh pages, fills the page cache and takes the address
//! space's lock for whole operations. So parameters never go through malloc and never through the
//! page cache. They live in a [`SlotPool`]: one reservation of huge pages, faulted in slowly before
//! the server is ready and recycled from version to version. A [`ParameterStore`] reads weights
//! with O_DIRECT straight into their final place, in paced slices that are hashed while they are
//! still in the core's cache. Chunks with the hash of a loaded one are shared. Loading a new
//! version beside an old one then costs disk reads and nothing else.
//!
//! # The invariant
//! While a server serves, this crate maps and unmaps nothing. A load into recycled slots causes
//! next to no page faults. A release causes no system call, except one for parameters that an
//! engine had sealed against writes ([`Region::seal`]). If the pool must grow or release memory, it
//! does so slot by slot, at the fault rate, on the calling background thread, without a lock. It
//! never holds more than its budget.
//!
//! # Not here
//! No policy: the lifecycle decides what is loaded and when. No request memory: that is the
//! process's allocator, which `os::jemalloc` reports on. No threads: callers bring them, with the
//! priority that `os::thread` sets.
//!
//! # Modules
//! * Pool: `pool` is the entry, `slots` keeps the state of slots, `reservation` maps memory,
//!   `region` holds parameters.
//! * Loads: `store` is the entry, `plan` decides what goes where, `paced` reads files for
//!   libraries.

#![allow(unsafe_code)]

mod paced;
mod plan;
mod pool;
mod region;
mod reservation;
mod slots;
mod store;

pub use paced::PacedReader;
pub use pool::{PoolConfig, PoolStats, SlotPool, check_stop};
pub use region::{Region, RegionMut};
pub use reservation::SLOT_BYTES;
pub use store::{
    Chunk, LoadReport, Loaded, ParameterStore, Placement, SHARE_MIN, StoreConfig, StoreStats,
};
