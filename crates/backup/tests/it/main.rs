//! Backups of collections, against a map of their points: kills, damaged stores, removals.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

extern crate millpond_backup as backup;

mod common;
mod copies;
mod crash;
mod faults;
mod plain;
mod removal;
mod restore;
