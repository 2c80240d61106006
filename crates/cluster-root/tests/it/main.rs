//! Roots against nodes that behave as a test says.

#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

extern crate millpond_cluster_root as cluster_root;

mod root_keys;
mod root_queries;
mod root_reads;
mod root_snapshots;
#[allow(dead_code, reason = "the tests of cluster-images use the rest")]
mod root_support;
mod root_work;
mod root_writes;
