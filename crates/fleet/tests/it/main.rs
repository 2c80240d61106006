//! Several processes of a fleet against a real etcd.
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test does")]

extern crate millpond_fleet as fleet;

mod turns;
