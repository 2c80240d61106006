//! The gRPC door: both protocols on one port, told apart by the service's name in the path.

mod messages;
mod oip;
mod status;
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
use bytes::Bytes;
use protocol::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use protocol::tensorflow::serving::model_service_server::ModelServiceServer;
use protocol::tensorflow::serving::prediction_service_server::PredictionServiceServer;
use protocol::weigh::EXPANSION_MAX;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

use self::status::grpc_status;
use crate::app::App;
use transport::RequestBody;
use transport::Reservation;

/// Largest message of a call that is no inference, in bytes: what gRPC's own servers take if they are not told otherwise.
const OTHER_BYTES_MAX: usize = 4 << 20;

type OipServer = GrpcInferenceServiceServer<oip::Oip>;
type PredictServer = PredictionServiceServer<tfs::Tfs>;
type ModelServer = ModelServiceServer<tfs::Tfs>;

/// The door's service: admission in front, then the services by name.
/// Once `stopped` says so, streams end after the request that is being answered.
pub(crate) fn service(app: Arc<App>, stopped: watch::Receiver<bool>) -> GrpcService {
    GrpcService {
        oip: OipServer::new(oip::Oip { app: app.clone() }).max_encoding_message_size(usize::MAX),
        predict: PredictServer::new(tfs::Tfs(app.clone())).max_encoding_message_size(usize::MAX),
        model: ModelServer::new(tfs::Tfs(app.clone())),
        app,
        stopped,
    }
}

/// Takes a place among the requests being received before a request's body is read.
///
/// The services are told apart here rather than by tonic's router, which is made for any set of services: it matches
/// paths, boxes bodies and clones its handlers for each request.
#[derive(Clone)]
pub(crate) struct GrpcService {
    app: Arc<App>,
    oip: OipServer,
    predict: PredictServer,
    model: ModelServer,
    /// Told when the server stops.
    stopped: watch::Receiver<bool>,
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

impl GrpcService {
    /// Answers a call that is no inference by the service that it names.
    fn route(
        &mut self,
        request: http::Request<WholeMessage>,
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
}

/// A call's only message, uncompressed, with its prefix.
type WholeMessage = http_body_util::Full<Bytes>;

/// Reads a call that is no inference, and what its message takes at most of the budget; tonic decodes without counting.
async fn whole(
    app: &App,
    request: http::Request<RequestBody>,
) -> base::Result<(http::Request<WholeMessage>, Reservation)> {
    let (mut head, body) = request.into_parts();
    let coding = messages::coding(&head.headers)?;
    let frame = messages::frame(app, body, OTHER_BYTES_MAX).await?;
    let message = messages::message(app, coding, frame.clone()).await?;
    if message.len() > OTHER_BYTES_MAX {
        return Err(Error::too_large(format!(
            "the message is larger than {OTHER_BYTES_MAX} bytes when decompressed"
        )));
    }
    let mut held = app.requests.memory.empty();
    held.cover(message.len() as u64 * EXPANSION_MAX)?;
    if coding.is_none() {
        return Ok((http::Request::from_parts(head, WholeMessage::new(frame)), held));
    }
    head.headers.remove(messages::ENCODING);
    let length = message.len() as u32;
    let plain = [&[0], &length.to_be_bytes()[..], &message].concat();
    Ok((http::Request::from_parts(head, WholeMessage::new(plain.into())), held))
}

/// The calls that take a place and are answered without tonic's streams.
#[derive(Clone, Copy)]
enum InferenceMethod {
    ModelInfer,
    Predict,
}

fn refused(error: &Error) -> BoxFuture<Result<http::Response<Body>, Infallible>> {
    Box::pin(std::future::ready(Ok(grpc_status(error).into_http())))
}

impl Service<http::Request<RequestBody>> for GrpcService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<RequestBody>) -> Self::Future {
        let app = self.app.clone();
        let inference = match request.uri().path() {
            "/inference.GRPCInferenceService/ModelInfer" => InferenceMethod::ModelInfer,
            "/tensorflow.serving.PredictionService/Predict" => InferenceMethod::Predict,
            "/inference.GRPCInferenceService/ModelStreamInfer" => {
                let response = oip::model_stream_infer(&app, self.stopped.clone(), request);
                return Box::pin(std::future::ready(Ok(response)));
            }
            _ => {
                let mut services = self.clone();
                return Box::pin(async move {
                    match whole(&app, request).await {
                        Ok((request, _held)) => services.route(request).await,
                        Err(error) => Ok(grpc_status(&error).into_http()),
                    }
                });
            }
        };
        if let Err(error) = self.app.requests.check_room() {
            return refused(&error);
        }
        Box::pin(async move {
            Ok(match inference {
                InferenceMethod::ModelInfer => oip::model_infer(&app, request).await,
                InferenceMethod::Predict => tfs::predict_call(&app, request).await,
            })
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
