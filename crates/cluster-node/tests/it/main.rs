//! The parts of a node against real etcd processes and stores.

#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

extern crate millpond_cluster_node as cluster_node;

mod membership;
mod root_images;
mod root_images_bulk;
mod root_images_stored;
mod root_images_support;
mod root_images_writes;
mod root_keys;
mod root_reads;
mod root_support;
mod root_writes;
