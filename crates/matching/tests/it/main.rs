//! The crate from outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

extern crate millpond_matching as matching;

mod likeness;
mod ranks;
mod records;
mod templates;
