//! Runs requests on the served models. Endpoints of every protocol call [`InferenceService`], which
//! finds the version, checks the inputs, queues the request, waits for its outputs and counts it.
//! It knows no HTTP and no gRPC.
//!
//! # Modules
//! * A request: `request`, `ticket`, `service`.
//! * Counts: `stats`, `traffic`, `runs`, `observer`.
//! * Slow requests: `slow`.
//! * Copies for a rollout: `shadow`.
//! * Priority of connection threads: `pressure`.

mod observer;
mod pressure;
mod request;
mod runs;
mod service;
mod shadow;
mod slow;
mod stats;
mod ticket;
mod traffic;

pub use observer::{ObservedRequest, RequestObserver};
pub use request::{InferenceRequest, InferenceResponse, tensor_bytes};
pub use runs::{RunCounts, RunSize};
pub use service::{CancelOnDrop, InferenceService, default_timeout};
pub use slow::{CAUSES, SlowCause, SlowLog, SlowRequest};
pub use stats::{InferenceStats, TimeTotal, VersionStats};
pub use ticket::RequestTicket;
pub use traffic::{LATENCY_BUCKETS, TrafficReading, latency_bound, latency_bucket};
