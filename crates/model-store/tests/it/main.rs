//! Mirrors and uploads against stores in memory and on disk.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod faulty;
mod sync;
mod upload;
