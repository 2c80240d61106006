//! Roots of images against nodes that behave as a test says.

#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

extern crate millpond_cluster_images as cluster_images;

mod root_images;
mod root_images_bulk;
mod root_images_stored;
mod root_images_support;
mod root_images_writes;
#[allow(dead_code, reason = "the tests of points use the rest")]
#[path = "../../../cluster-root/tests/it/root_support.rs"]
mod root_support;
