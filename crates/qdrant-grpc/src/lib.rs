//! Qdrant's gRPC interface as calls of its REST interface. A message becomes the JSON body of a
//! route, and the route's JSON response becomes a message. So both interfaces have the same limits,
//! checks and errors, on one server and in a cluster.
//!
//! A vector's numbers are written and read once more than over REST. They keep their exact values,
//! because JSON text of a 32-bit float is read back as the same float.
//!
//! # Modules
//! * Calls: `call` lists them, `rest` runs a request of the REST interface.
//! * Messages to JSON: `collections`, `aliases`, `upsert`, `changes`, `point_list`, `queries`,
//!   `query`, `filters`, `formula`, `snapshots`.
//! * JSON to messages: `info`, `index_info`, `results`.
//! * Both ways: `values`, `vectors`, `members`.

mod aliases;
mod call;
mod changes;
mod collections;
mod filters;
mod formula;
mod index_info;
mod info;
mod members;
mod point_list;
mod queries;
mod query;
mod rest;
mod results;
mod snapshots;
mod upsert;
mod values;
mod vectors;

pub use call::{PATHS, QdrantCall, ResponseMessage, is_call};
pub use rest::{RestRequest, RestResponse};
