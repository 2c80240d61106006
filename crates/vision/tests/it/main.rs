//! Tests of images from the file to the input of search.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

extern crate millpond_vision as vision;

/// Counts what each thread allocates.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

mod decode;
mod files;
mod fingerprint;
mod input;
mod memory;
mod nist;
mod photo;
mod wsq;
