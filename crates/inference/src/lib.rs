//! Runs requests on the served models. Endpoints of every protocol call [`InferenceService`], which
//! finds the version, checks the inputs, queues the request, waits for its outputs and counts it.
//! It knows no HTTP and no gRPC.

mod observer;
mod pressure;
mod runs;
mod service;
mod stats;

pub use observer::{ObservedRequest, RequestObserver};
pub use runs::{RunCounts, RunSize};
pub use service::{
    CancelOnDrop, InferenceRequest, InferenceResponse, InferenceService, RequestTicket,
    tensor_bytes,
};
pub use stats::{InferenceStats, TimeTotal, VersionStats};
