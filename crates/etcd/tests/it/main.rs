//! The client against real etcd processes.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

mod access;
mod keys;
