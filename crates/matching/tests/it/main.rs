//! The crate from outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

extern crate millpond_matching as matching;

mod ranks;
mod records;
mod scores;
mod templates;
