//! The crate from outside, with jemalloc as this program's allocator if the feature is on.

extern crate millpond_os as os;

mod jemalloc;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
