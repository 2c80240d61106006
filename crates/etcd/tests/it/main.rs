//! The client against real etcd processes.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

// The name that other crates know it by.
extern crate millpond_etcd as etcd;

mod access;
mod keys;
