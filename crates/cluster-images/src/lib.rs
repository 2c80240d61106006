//! Answers to clients about collections of images: `/v1/images` over the shards of a cluster.
//!
//! # Searches
//! The features of the query are extracted first, on this node or on one with the role extract. A
//! search of photographs has two rounds: every shard returns the candidates of its coarse filter,
//! and the shards of the best of them compare keypoints. A photograph without an accepted match is
//! searched for again by views of it. A search of fingerprints has one round: every shard compares
//! its share. An identification searches each finger in the same way.
//!
//! # Writes
//! An image's original is in the store before its point is in the log. A node without the role
//! extract passes images on to one that has it. Features go to the log from any root. The images of
//! an archive or a folder go to all nodes with that role.
//!
//! # Duplicates
//! A job on the root that got the request compares the points of all shards with each other.
//!
//! # One image
//! A holder of its shard answers with its own routes, and the answer is passed back as it is.
//!
//! # Modules
//! * Routes: `routes` lists them, `state` is what they share, `call` reads one request, `target` is
//!   its collection, `reply` writes the response.
//! * Nodes with the role extract: `pass_on` sends them requests. For archives and folders,
//!   `extraction_nodes` chooses them and `extraction_slots` limits the images of each.
//! * Searches: `search` and `identify` begin with the features of `extraction`; `rounds` asks the
//!   shards, `merge` joins their answers, `views` searches again. `verify` compares two
//!   fingerprints.
//! * Writes: `create`, `put`, `features`, `delete`. `bulk` adds archives and folders, `repeats`
//!   adds an image once, `refused_shards` has the shards that take no images.
//! * Reads: `by_id`, `points`, `page`, `list`.
//! * Duplicates: `duplicates` runs the job, `running_duplicates` has the jobs of this node.

mod bulk;
mod by_id;
mod call;
mod create;
mod delete;
mod duplicates;
mod extraction;
mod extraction_nodes;
mod extraction_slots;
mod features;
mod identify;
mod list;
mod merge;
mod page;
mod pass_on;
mod points;
mod put;
mod refused_shards;
mod repeats;
mod reply;
mod rounds;
mod routes;
mod running_duplicates;
mod search;
mod state;
mod target;
mod verify;
mod views;

pub use routes::image_routes;
pub use state::ImageRootState;

/// Message of an error for an image whose features were not found before the deadline.
const FEATURES_LATE: &str = "the request timed out before the image's features were found; \
                             send the image again, or allow more time with timeout=";
