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
mod audio;
mod backup;
mod bare;
mod batch;
mod burner;
mod crash;
mod duplicates;
mod filter;
mod fingerprints;
mod gpu;
mod images;
mod ingest;
mod models;
mod overhead;
mod overload;
mod peer_process;
mod plot;
mod python;
mod report;
mod rollout;
mod settle;
mod slow;
mod soak;
mod swap;
mod tiers;
mod vectors;
