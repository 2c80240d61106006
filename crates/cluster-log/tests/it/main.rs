//! The log of a shard over stores with faults.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

// The name that other crates know it by.
extern crate millpond_cluster_log as cluster_log;

mod codec;
mod conditions;
mod faults;
mod follower;
mod objects;
mod support;
mod writer;
