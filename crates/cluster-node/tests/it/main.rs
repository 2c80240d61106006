//! The parts of a node against real etcd processes and stores.

#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

extern crate millpond_cluster_node as cluster_node;

mod membership;
