//! Qdrant's REST interface over collections, so that Qdrant's clients work unchanged.
//!
//! # Supported features
//! A collection has one vector, with or without a name. Features of Qdrant's that this server does
//! not have are refused with 501 and the reason. Unknown fields of a body and unknown query
//! parameters are refused with 400 and their name. Hints that a collection does not follow (shards
//! and replicas, parameters of the graph and the optimiser, storage) are accepted and named in the
//! `warnings` of `GET /collections/NAME`. `ordering` and `consistency` have no effect, because
//! every write is durable before its response. With `wait=true`, a change of payloads or vectors
//! fails if an id has no point. Segments index payload fields by themselves, so a requested index
//! is only recorded and shown.
//!
//! # Backups
//! The routes of [`backups`] are not part of Qdrant's interface. They are in this crate because
//! they need the same collections, names and keys.
//!
//! # Threads
//! Reads run on the search threads. Writes run on threads of their own that wait for the log. A
//! read waits for a collection that is being opened, and is answered 503 if that takes too long. If
//! points may be missing from a result because of damage, it has `"partial": true`.
//!
//! # Modules
//! * From a request to its response: `routes` lists the paths, `state` is what they share, `call`
//!   runs one request, `write_threads` make changes.
//! * JSON and query strings: `json`, `params`.
//! * Collections and their settings: `collections`, `describe`, `portable`, `image_block`.
//! * Points: `update` changes, `retrieve` reads without ranking, `sample` reads at random,
//!   `response_memory` counts them in the memory of requests.
//! * Queries: `query` is the entry; `vector_input` and `filters` prepare, `by_examples` and
//!   `by_formula` score, `groups` and `matrix` are other forms, `older` has the routes before
//!   `points/query`.
//! * Scores, as pure functions: `scores`, `examples`, `formula`, `formula_members`, `fusion`,
//!   `mmr`.
//! * Copies: `snapshots`, `restore_rights`, `backups`.

pub mod backups;
mod by_examples;
mod by_formula;
mod call;
mod collections;
mod describe;
pub mod examples;
mod filters;
pub mod formula;
mod formula_members;
pub mod fusion;
mod groups;
mod image_block;
pub mod json;
#[cfg(test)]
mod limit_tests;
pub mod matrix;
pub mod mmr;
mod older;
pub mod params;
mod portable;
mod query;
mod response_memory;
mod restore_rights;
mod retrieve;
mod routes;
mod sample;
mod scores;
mod snapshots;
mod state;
#[cfg(test)]
mod tests;
mod update;
mod vector_input;
mod write_threads;

pub use call::{ShardCall, refuse};
pub use describe::{described_config, without_effect};
pub use filters::{parse_filter, prepare_filter};
pub use groups::{
    GroupValue, HitGroup, HitGroups, group_values, most_hits, raise_limits, scale_limits,
};
pub use image_block::{IMAGE_BLOCK, IMAGES, NO_MODEL, keep_image_block};
pub use json::{INTERFACE_VERSION, title};
pub use portable::{PortableSettings, set_portable};
pub use retrieve::RESPONSE_NUMBERS_MAX;
pub use routes::{OPENAPI, routes, version};
pub use scores::check_using;
pub use snapshots::{
    PieceWriter, SnapshotDescription, named_snapshot, snapshot_id, snapshot_response,
    upload_limits, uploaded_pieces,
};
pub use state::{BoxFuture, CollectionsState, ImageCollections, RegistrySource};
pub use update::{apply_operation, check_logged_operation};
