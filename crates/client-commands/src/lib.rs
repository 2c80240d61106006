//! The commands of `millpond` that send requests to a running server. Arguments of each are a type
//! for `clap`; its `run` does the work.
//!
//! # Modules
//! * Commands: `infer`, `images`, `models`, `collections`, `cluster`.
//! * Requests: `client`, `address_lookup` and `unix_connector` send them to a `server_address`,
//!   `poll` repeats reads of progress, `wait_notice` notes long waits.

// The help on the terminal shows addresses as they are typed.
#![allow(rustdoc::bare_urls)]

mod address_lookup;
mod client;
pub mod cluster;
pub mod collections;
pub mod images;
pub mod infer;
pub mod models;
mod poll;
mod server_address;
mod unix_connector;
mod wait_notice;
