//! The gRPC door: both protocols on one port, told apart by the service's name in the path.

mod oip;
#[cfg(test)]
mod tests;
mod tfs;
mod unary;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::Error;
use hyper::body::{Frame, SizeHint};
use protocol::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use protocol::tensorflow::serving::model_service_server::ModelServiceServer;
use protocol::tensorflow::serving::prediction_service_server::PredictionServiceServer;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::server::NamedService;
use tower::Service;

use crate::app::App;
use crate::body::poll_within;
use crate::errors::grpc_status;
use crate::given::Given;
use crate::patience::Patience;

type OipServer = GrpcInferenceServiceServer<oip::Oip>;
type PredictServer = PredictionServiceServer<tfs::Tfs>;
type ModelServer = ModelServiceServer<tfs::Tfs>;

/// The door's service: admission in front, then the services by name.
/// Once `stopped` says so, streams end after the request that is being answered.
pub(crate) fn service(app: Arc<App>, stopped: watch::Receiver<bool>) -> Admitted {
    let limit = app.doors.body_bytes_max;
    // Requests may come compressed; the limit is that of the message as well.
    let (gzip, deflate) = (CompressionEncoding::Gzip, CompressionEncoding::Deflate);
    Admitted {
        oip: OipServer::new(oip::Oip { app: app.clone(), stopped })
            .accept_compressed(gzip)
            .accept_compressed(deflate)
            .max_decoding_message_size(limit)
            .max_encoding_message_size(usize::MAX),
        predict: PredictServer::new(tfs::Tfs(app.clone()))
            .accept_compressed(gzip)
            .accept_compressed(deflate)
            .max_decoding_message_size(limit)
            .max_encoding_message_size(usize::MAX),
        model: ModelServer::new(tfs::Tfs(app.clone()))
            .accept_compressed(gzip)
            .accept_compressed(deflate)
            .max_decoding_message_size(limit),
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

/// The services and the methods that they have here. Triton and TensorFlow Serving have more.
const METHODS: [(&str, &[&str]); 3] = [
    (
        OipServer::NAME,
        &[
            "ServerLive",
            "ServerReady",
            "ModelReady",
            "ServerMetadata",
            "ModelMetadata",
            "ModelConfig",
            "ModelInfer",
            "ModelStreamInfer",
            "ModelStatistics",
            "RepositoryIndex",
            "RepositoryModelLoad",
            "RepositoryModelUnload",
        ],
    ),
    (PredictServer::NAME, &["Predict", "GetModelMetadata", "Classify", "Regress", "MultiInference"]),
    (ModelServer::NAME, &["GetModelStatus", "HandleReloadConfigRequest"]),
];

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Admitted {
    fn route(
        &mut self,
        request: http::Request<Timed>,
    ) -> BoxFuture<Result<http::Response<Body>, Infallible>> {
        let mut path = request.uri().path().split('/').skip(1);
        let name = path.next().unwrap_or_default();
        let method = path.next().unwrap_or_default();
        if let Some((_, methods)) = METHODS.iter().find(|(service, _)| *service == name)
            && !methods.contains(&method)
        {
            return refused(&Error::unimplemented(format!("{name}/{method} is not offered")));
        }
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

    fn timed(&self, request: http::Request<Given>) -> http::Request<Timed> {
        let limits = &self.app.doors;
        let streams = request.uri().path().ends_with("/ModelStreamInfer");
        let patience = (!streams).then(|| Patience::new(limits.client_timeout, limits.request_timeout));
        request.map(|body| Timed { body, patience })
    }
}

/// The calls that take a place and are answered without tonic's streams.
#[derive(Clone, Copy)]
enum Inference {
    ModelInfer,
    Predict,
}

fn refused(error: &Error) -> BoxFuture<Result<http::Response<Body>, Infallible>> {
    Box::pin(std::future::ready(Ok(grpc_status(error).into_http())))
}

/// A request's body that ends with an error where the client takes too long to send it.
struct Timed {
    body: Given,
    /// None for a stream of requests, which may be silent as long as it likes.
    patience: Option<Patience>,
}

impl hyper::body::Body for Timed {
    type Data = bytes::Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, Self::Error>>> {
        let Timed { body, patience } = &mut *self;
        let polled = match patience {
            Some(patience) => poll_within(body, patience, cx),
            None => Pin::new(body).poll_frame(cx).map(Ok),
        };
        polled.map(|polled| match polled {
            Ok(frame) => frame.map(|frame| frame.map_err(Self::Error::from)),
            Err(overdue) => Some(Err(Self::Error::from(grpc_status(&overdue)))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Service<http::Request<Given>> for Admitted {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Given>) -> Self::Future {
        let inference = match request.uri().path() {
            "/inference.GRPCInferenceService/ModelInfer" => Inference::ModelInfer,
            "/tensorflow.serving.PredictionService/Predict" => Inference::Predict,
            _ => return self.route(self.timed(request)),
        };
        let permit = match self.app.admit() {
            Ok(permit) => permit,
            Err(error) => return refused(&error),
        };
        if unary::compressed(request.headers()) {
            let answer = self.route(self.timed(request));
            return Box::pin(async move {
                let response = answer.await;
                drop(permit);
                response
            });
        }
        let app = self.app.clone();
        Box::pin(async move {
            let response = match inference {
                Inference::ModelInfer => oip::model_infer(&app, request).await,
                Inference::Predict => tfs::predict_call(&app, request).await,
            };
            drop(permit);
            Ok(response)
        })
    }
}

/// The client's deadline from the `grpc-timeout` header: digits and one of H, M, S, m, u, n.
pub(crate) fn timeout(headers: &http::HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
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
