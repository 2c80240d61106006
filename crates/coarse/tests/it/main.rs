//! Integration tests of the public interface.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

extern crate millpond_coarse as coarse;

mod equal_codes;
mod indexes;
mod scene;
