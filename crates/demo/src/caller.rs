//! Single requests, one after another on one connection, for checks that a user can follow.

use base::{Error, NamedTensor, Result};
use tokio::runtime::Runtime;

use loadgen::connection::{Connection, Endpoint};
use loadgen::wire::{Api, ModelEndpoint, Outputs, read_answer};

/// A connection to a gRPC listener.
pub(crate) struct GrpcCaller {
    runtime: Runtime,
    connection: Connection,
    endpoint: Endpoint,
}

impl GrpcCaller {
    /// Connects to `endpoint`.
    pub(crate) fn connect(endpoint: Endpoint) -> Result<GrpcCaller> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::exhausted("cannot start a client runtime").caused_by(e))?;
        let connection = runtime.block_on(Connection::open(&endpoint))?;
        Ok(GrpcCaller { runtime, connection, endpoint })
    }

    /// Sends `inputs` to `model` and returns the response.
    pub(crate) fn call(&mut self, model: &str, inputs: Vec<NamedTensor>) -> Result<Outputs> {
        let target =
            ModelEndpoint { endpoint: self.endpoint.clone(), api: Api::Oip, model: model.into() };
        let mut encoded = target.encode(&[inputs])?;
        let body = encoded.bodies.pop().ok_or_else(|| Error::internal("a request was lost"))?;
        read_answer(&self.runtime.block_on(self.connection.call(&encoded.template, body))?)
    }
}
