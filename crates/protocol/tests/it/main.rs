//! Both protocols, both ends, through the public API.

// Helpers of tests may fail as tests do; the lint knows only functions marked as tests.
#![allow(clippy::unwrap_used)]

// The name that other crates use.
extern crate millpond_protocol as protocol;

mod any;
mod fuzz;
mod malformed;
mod oip_describe;
mod oip_grpc;
mod oip_json;
mod oracle;
mod tfs;
mod tfs_json;
mod warmup;
mod weigh;
