//! The load generator against targets that run in this process.

#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

// The name that other crates use.
extern crate millpond_tune as tune;

mod load;
mod target;
