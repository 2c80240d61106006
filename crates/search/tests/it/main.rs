//! Integration tests of the public interface.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

extern crate millpond_search as search;

mod aliases;
mod codes;
mod collection;
mod damage;
mod disk;
mod duplicates;
mod flush;
mod helped;
mod limits;
mod lost;
mod media;
mod pin;
mod points;
mod prints;
mod random;
mod registry;
mod released;
mod rerank;
mod score_points;
mod shared_readers;
