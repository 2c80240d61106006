//! Tests of recordings from file to labels.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod decode;
mod fake;
mod meaning;
mod pipeline;
mod signal;
mod stall;
