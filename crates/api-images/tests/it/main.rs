//! Integration tests of the public interface: collections of images in shards.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

extern crate millpond_api_images as api_images;

mod extraction;
mod foreign;
mod held_store;
mod originals;
mod prints;
mod rounds;
mod shards;
mod templates;
mod world;
