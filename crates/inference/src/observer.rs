//! Passes requests that have ended to an observer, such as a log of requests.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, NamedTensor};
use engine::Servable;
use telemetry::TraceId;

/// A request that has ended. The tensors share the memory of request and response.
pub struct ObservedRequest {
    /// The version that ran it.
    pub servable: Arc<Servable>,
    /// Protocol of the request.
    pub protocol: &'static str,
    /// Inputs as the client sent them.
    pub inputs: Vec<NamedTensor>,
    /// Names of the requested outputs; empty for all of them.
    pub requested: Vec<Arc<str>>,
    /// Id of the trace, if the request is traced.
    pub trace: Option<TraceId>,
    /// Outputs of the request, or its error.
    pub outcome: Result<Vec<NamedTensor>, Error>,
    /// Time from its start to its end.
    pub total: Duration,
}

/// Observer of requests. Its methods run on the path of a request and must not wait.
pub trait RequestObserver: Send + Sync {
    /// Returns true if the request should be passed on once it has ended.
    fn wants(&self, servable: &Servable) -> bool;

    /// Takes a request that has ended.
    fn ended(&self, request: ObservedRequest);
}
