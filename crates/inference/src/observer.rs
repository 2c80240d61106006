//! Passes answered requests to an observer, such as a log of requests.

use std::sync::Arc;

use base::NamedTensor;
use engine::Servable;

/// An answered request. The tensors share the memory of request and response.
pub struct ObservedRequest {
    /// The version that answered.
    pub servable: Arc<Servable>,
    /// Inputs as the client sent them.
    pub inputs: Vec<NamedTensor>,
    /// Names of the requested outputs; empty is all of them.
    pub requested: Vec<Arc<str>>,
    /// Outputs.
    pub outputs: Vec<NamedTensor>,
}

/// Observer of requests. Its methods run on the path of a request and must not wait.
pub trait RequestObserver: Send + Sync {
    /// Returns true if the request should be passed on once it is answered.
    fn wants(&self, servable: &Servable) -> bool;

    /// Takes a request that was answered without an error.
    fn answered(&self, request: ObservedRequest);
}
