//! Integration tests of `engine`, in one binary.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

// Under the name that other crates use it by.
extern crate millpond_engine as engine;

mod fake;
mod layout;
mod signatures;
mod stream;
