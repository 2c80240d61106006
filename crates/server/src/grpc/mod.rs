//! The gRPC door: both protocols on one port, told apart by the service's name in the path.

mod oip;
mod tfs;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::Error;
use hyper::body::Incoming;
use protocol::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use protocol::tensorflow::serving::model_service_server::ModelServiceServer;
use protocol::tensorflow::serving::prediction_service_server::PredictionServiceServer;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

use crate::app::App;
use crate::errors::grpc_status;

type OipServer = GrpcInferenceServiceServer<oip::Oip>;
type PredictServer = PredictionServiceServer<tfs::Tfs>;
type ModelServer = ModelServiceServer<tfs::Tfs>;

/// The door's service: admission in front, then the services by name.
pub(crate) fn service(app: Arc<App>) -> Admitted {
    let limit = app.doors.body_bytes_max;
    Admitted {
        oip: OipServer::new(oip::Oip(app.clone()))
            .max_decoding_message_size(limit)
            .max_encoding_message_size(usize::MAX),
        predict: PredictServer::new(tfs::Tfs(app.clone()))
            .max_decoding_message_size(limit)
            .max_encoding_message_size(usize::MAX),
        model: ModelServer::new(tfs::Tfs(app.clone())).max_decoding_message_size(limit),
        app,
    }
}

/// Takes a place among the requests being answered before a request's body is read.
///
/// The services are told apart here rather than by tonic's router, which is made for any set of services: it matches
/// paths, boxes bodies and clones its handlers for each request.
#[derive(Clone)]
pub(crate) struct Admitted {
    app: Arc<App>,
    oip: OipServer,
    predict: PredictServer,
    model: ModelServer,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Admitted {
    fn route(
        &mut self,
        request: http::Request<Incoming>,
    ) -> BoxFuture<Result<http::Response<Body>, Infallible>> {
        let name = request.uri().path().split('/').nth(1).unwrap_or_default();
        if name == OipServer::NAME {
            return self.oip.call(request);
        }
        if name == PredictServer::NAME {
            return self.predict.call(request);
        }
        if name == ModelServer::NAME {
            return self.model.call(request);
        }
        let error = Error::unimplemented(format!("there is no gRPC service \"{name}\" here"));
        refused(&error)
    }
}

fn refused(error: &Error) -> BoxFuture<Result<http::Response<Body>, Infallible>> {
    Box::pin(std::future::ready(Ok(grpc_status(error).into_http())))
}

impl Service<http::Request<Incoming>> for Admitted {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Incoming>) -> Self::Future {
        let path = request.uri().path();
        if !path.ends_with("/ModelInfer") && !path.ends_with("/Predict") {
            return self.route(request);
        }
        let permit = match self.app.admit() {
            Ok(permit) => permit,
            Err(error) => return refused(&error),
        };
        let answer = self.route(request);
        Box::pin(async move {
            let response = answer.await;
            drop(permit);
            response
        })
    }
}

/// The client's deadline from the `grpc-timeout` header: digits and one of H, M, S, m, u, n.
pub(crate) fn timeout(metadata: &tonic::metadata::MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // The protocol allows eight digits; more would be somebody's mistake.
    let value: u64 = if digits.len() <= 8 { digits.parse().ok()? } else { return None };
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_in_every_unit() {
        let parse = |text: &str| {
            let mut metadata = tonic::metadata::MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            timeout(&metadata)
        };
        assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse("5x"), None);
        assert_eq!(parse("m"), None);
        assert_eq!(parse("123456789S"), None);
    }
}
