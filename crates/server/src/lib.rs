//! The composition root: joins memory, engines, lifecycle and scheduler, and opens the doors.
//!
//! The only crate that knows HTTP and gRPC and the only one with an async runtime. A door decodes, [`app`] finds the
//! version, checks, queues and counts, a door encodes. Handlers never block: inference runs on the scheduler's
//! workers, loading on the lifecycle's threads, and both answer through a channel.

mod admin;
mod api_key;
mod app;
mod body_reader;
mod byte_budget;
mod codec_threads;
mod collections;
mod compose;
mod config;
mod connection_threads;
mod control_frames;
mod decompress;
pub mod descriptors;
#[cfg(test)]
mod edge_tests;
mod errors;
mod exporter;
mod grpc;
mod header_timeout;
mod host_check;
mod http;
mod images;
mod linger;
mod listen;
pub mod local;
#[cfg(test)]
mod loopback;
mod observer;
mod page;
mod pressure;
mod progress_timeout;
mod qdrant;
mod receive_permits;
mod recordings;
mod request_body;
mod response_body;
mod run;
mod runs;
mod stats;
mod threads;
mod view;
mod warmup;
mod write_coalescer;

pub use config::{
    AudioConfig, Config, DataConfig, ListenerConfig, MemoryConfig, ModelsConfig, SearchConfig, Secret,
};
pub use run::run;

/// The server's name in the protocols' metadata.
pub const NAME: &str = "millpond";
/// The server's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
