//! The gRPC door: both protocols on one port, told apart by the service's name in the path.

mod oip;
mod tfs;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use protocol::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use protocol::tensorflow::serving::model_service_server::ModelServiceServer;
use protocol::tensorflow::serving::prediction_service_server::PredictionServiceServer;
use tonic::body::Body;
use tonic::service::Routes;

use crate::app::App;
use crate::errors::grpc_status;

/// The door's service: admission in front, then tonic's routes.
pub(crate) fn service(app: Arc<App>) -> Admitted {
    let limit = app.doors.body_bytes_max;
    let oip = GrpcInferenceServiceServer::new(oip::Oip(app.clone()))
        .max_decoding_message_size(limit)
        .max_encoding_message_size(usize::MAX);
    let predict = PredictionServiceServer::new(tfs::Tfs(app.clone()))
        .max_decoding_message_size(limit)
        .max_encoding_message_size(usize::MAX);
    let model = ModelServiceServer::new(tfs::Tfs(app.clone())).max_decoding_message_size(limit);
    let routes = Routes::new(oip).add_service(predict).add_service(model).prepare();
    Admitted { app, routes }
}

/// Takes a place among the requests being answered before a request's body is read.
#[derive(Clone)]
pub(crate) struct Admitted {
    app: Arc<App>,
    routes: Routes,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl tower::Service<http::Request<Incoming>> for Admitted {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Incoming>) -> Self::Future {
        let path = request.uri().path();
        let inference = path.ends_with("/ModelInfer") || path.ends_with("/Predict");
        let permit = if inference {
            match self.app.admit() {
                Ok(permit) => Some(permit),
                Err(error) => {
                    let refusal = grpc_status(&error).into_http();
                    return Box::pin(std::future::ready(Ok(refusal)));
                }
            }
        } else {
            None
        };
        let answer = tower::Service::call(&mut self.routes, request.map(Body::new));
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
