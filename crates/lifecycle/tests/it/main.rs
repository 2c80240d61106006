//! The lifecycle over real directories, real memory and the fake engine.

#![allow(missing_docs, reason = "tests explain themselves")]
#![allow(clippy::unwrap_used, reason = "a failed test should say where")]

// The name that other crates use.
extern crate millpond_lifecycle as lifecycle;

mod admin;
mod allocating;
mod applied_settings;
mod configure;
mod foreign;
mod kept_rollouts;
mod policies;
mod refusals;
mod retries;
mod rollouts;
mod rollouts_by_hand;
mod settings;
mod shutdown;
mod sources;
mod starving;
mod stopping;
mod swaps;
mod updates;
mod warming;
mod world;
