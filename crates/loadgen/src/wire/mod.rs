//! Requests as bytes, for each API over each transport. They are encoded once before the clock
//! starts.

mod names;
mod oip;
mod tfs;
mod values;

use base::{Error, NamedTensor, Result, TensorSpec};
use bytes::Bytes;

use crate::connection::{Endpoint, RawResponse, Template, Transport};

pub use oip::{Outputs, read_answer};
pub use values::{from_json, from_json_lines};

/// API of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Api {
    /// Open Inference Protocol v2 (KServe, Triton).
    Oip,
    /// TensorFlow Serving.
    Tfs,
}

/// A model behind an API.
#[derive(Clone, Debug)]
pub struct ModelEndpoint {
    /// The server.
    pub endpoint: Endpoint,
    /// API of the model.
    pub api: Api,
    /// The model's name.
    pub model: String,
}

/// Requests that are ready to send.
#[derive(Clone, Debug)]
pub struct EncodedRequests {
    /// Method, path and headers of all requests.
    pub template: Template,
    /// Body of each request, in the order of the inputs.
    pub bodies: Vec<Bytes>,
}

impl ModelEndpoint {
    /// Encodes requests, each a set of inputs.
    pub fn encode(&self, requests: &[Vec<NamedTensor>]) -> Result<EncodedRequests> {
        match (self.api, self.endpoint.transport) {
            (Api::Oip, Transport::Grpc) => oip::encode_grpc(self, requests),
            (Api::Oip, Transport::Http) => oip::encode_http(self, requests),
            (Api::Tfs, Transport::Grpc) => tfs::encode_grpc(self, requests),
            (Api::Tfs, Transport::Http) => tfs::encode_http(self, requests),
        }
    }

    /// Reads the model's inputs from the server.
    ///
    /// # Errors
    /// If the server does not answer or does not have the model.
    pub fn inputs(&self) -> Result<Vec<TensorSpec>> {
        let inputs = match (self.api, self.endpoint.transport) {
            (Api::Oip, Transport::Grpc) => oip::inputs_grpc(self),
            (Api::Oip, Transport::Http) => oip::inputs_http(self),
            (Api::Tfs, Transport::Grpc) => tfs::inputs_grpc(self),
            (Api::Tfs, Transport::Http) => tfs::inputs_http(self),
        };
        inputs.map_err(|e| e.context(format!("cannot learn what \"{}\" takes", self.model)))
    }

    /// Makes a unary gRPC call outside any measurement.
    fn grpc_call(&self, path: &str, message: &[u8]) -> Result<RawResponse> {
        let template = Template::grpc(&self.endpoint, path)?;
        crate::connection::call_once(
            &self.endpoint,
            &template,
            crate::connection::grpc_frame(message),
        )
    }

    /// Gets a JSON page of the server.
    fn json_page(&self, path: &str) -> Result<serde_json::Value> {
        let template = Template::get(&self.endpoint, path)?;
        let page = crate::connection::call_once(&self.endpoint, &template, Bytes::new())?;
        serde_json::from_slice(&page.body).map_err(|e| Error::data_loss(path).caused_by(e))
    }
}

/// Builds a spec from the fields of the APIs' metadata.
fn spec(name: &str, dtype: base::DType, shape: impl IntoIterator<Item = i64>) -> TensorSpec {
    let dim = |size: i64| usize::try_from(size).map_or(base::Dim::Dynamic(None), base::Dim::Fixed);
    TensorSpec {
        name: name.into(),
        dtype,
        shape: Some(shape.into_iter().map(dim).collect()),
        optional: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::TlsArgs;
    use base::Tensor;

    fn target(url: &str, api: Api) -> ModelEndpoint {
        ModelEndpoint {
            endpoint: Endpoint::parse(url, &TlsArgs::default()).unwrap(),
            api,
            model: "m".into(),
        }
    }

    fn request() -> Vec<NamedTensor> {
        vec![NamedTensor::new(
            "x",
            Tensor::from_vec([1usize, 2].as_slice(), vec![1.5f32, -2.0]).unwrap(),
        )]
    }

    #[test]
    fn every_api_and_transport_encodes() {
        for (url, api) in
            [("grpc://h:1", Api::Oip), ("grpc://h:1", Api::Tfs), ("http://h:1", Api::Oip)]
        {
            let encoded = target(url, api).encode(&[request(), request()]).unwrap();
            assert_eq!(encoded.bodies.len(), 2);
            let raw: Vec<u8> =
                [1.5f32, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
            assert!(
                encoded.bodies[0].windows(8).any(|window| window == raw),
                "{api:?} carries raw bytes"
            );
        }
        let encoded = target("http://h:1", Api::Tfs).encode(&[request()]).unwrap();
        assert_eq!(&encoded.bodies[0][..], br#"{"inputs":{"x":[[1.5,-2.0]]}}"#);
    }

    #[test]
    fn negative_sizes_are_any_size() {
        let spec = spec("x", base::DType::F32, [-1, 3]);
        assert_eq!(spec.wire_shape(), [-1, 3]);
    }

    #[test]
    fn names_of_models_are_escaped_in_paths() {
        for (api, path) in
            [(Api::Oip, "/v2/models/a%20b/infer"), (Api::Tfs, "/v1/models/a%20b:predict")]
        {
            let target = ModelEndpoint { model: "a b".into(), ..target("http://h:1", api) };
            let encoded = target.encode(&[request()]).unwrap();
            assert!(format!("{:?}", encoded.template).contains(path), "{:?}", encoded.template);
        }
    }
}
