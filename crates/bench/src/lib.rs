//! The benchmarks of `millpond bench`: arms and reports.
//!
//! They measure a server from outside, over its own protocols, in a process of its own, or a
//! crate's functions in this process. `loadgen` has the load generator, `demo` the generated
//! models.
//!
//! # Modules
//! * Command line: `arguments`.
//! * Models under load: `overhead`, `overload`, `batch`, `swap`, `rollout`, `slow`, `soak`,
//!   `audio`.
//! * Searches: `vectors` and `gpu` measure the coarse filter, `tiers` the exact stage, `filter`
//!   searches with filters, `images` recall, `fingerprints` matching, `duplicates` the search for
//!   duplicates.
//! * Writes and damage: `ingest`, `crash`, `backup`.
//! * Subjects beside a server: `models` has generated models, `bare` runs a model without a server,
//!   `peer_process` and `python` run scripts with other engines.
//! * What benchmarks share: `settle` waits for flushes and merges, `burner` keeps cores busy,
//!   `report` and `plot` present the result.

pub mod arguments;
pub mod audio;
pub mod backup;
mod bare;
pub mod batch;
mod burner;
pub mod crash;
pub mod duplicates;
pub mod filter;
pub mod fingerprints;
pub mod gpu;
pub mod images;
pub mod ingest;
mod models;
pub mod overhead;
pub mod overload;
mod peer_process;
mod plot;
mod python;
mod report;
pub mod rollout;
mod settle;
pub mod slow;
pub mod soak;
pub mod swap;
pub mod tiers;
pub mod vectors;
