//! Operations of images in a local collection, in one binary.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

// Under the name that other crates use it by.
extern crate millpond_image_features as image_features;

mod operations;
mod replay;
