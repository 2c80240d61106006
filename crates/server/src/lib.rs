//! The composition root: joins memory, engines, lifecycle and scheduler, and opens the doors.
//!
//! The only crate that knows HTTP and gRPC and the only one with an async runtime. A door decodes, [`app`] finds the
//! version, checks, queues and counts, a door encodes. Handlers never block: inference runs on the scheduler's
//! workers, loading on the lifecycle's threads, and both answer through a channel.

mod admin;
mod answers;
mod api_key;
mod app;
mod body;
mod byte_budget;
mod collections;
mod compose;
mod config;
mod decoders;
pub mod descriptors;
#[cfg(test)]
mod edge_tests;
mod errors;
mod exporter;
mod frames;
mod gather;
mod given;
mod grpc;
mod head_watch;
mod host_check;
mod http_door;
mod images;
mod lanes;
mod linger;
mod listen;
pub mod local;
#[cfg(test)]
mod loopback;
mod observer;
mod page;
mod patience;
mod pressure;
mod qdrant;
mod receiving;
mod recordings;
mod run;
mod runs;
mod stats;
mod threads;
mod unpack;
mod view;
mod warmup;

pub use config::{
    AudioConfig, Config, DataConfig, DoorConfig, MemoryConfig, ModelsConfig, SearchConfig, Secret,
};
pub use run::run;

/// The server's name in the protocols' metadata.
pub const NAME: &str = "millpond";
/// The server's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
