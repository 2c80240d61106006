//! gRPC: both protocols on one port. The path of a call names its service and method.
//!
//! Calls are routed and framed here rather than by tonic's server, which is made for streams of
//! messages: it copies what arrives into a buffer of its own, doubles that buffer before it
//! decodes, and decodes without a look at what the message becomes. Here a message that arrives in
//! one piece is weighed and decoded in place (ADR 0006).

mod call;
mod messages;
mod oip;
mod response;
mod status;
#[cfg(test)]
mod tests;
mod tfs;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::Error;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use protocol::inference as pb;
use tokio::sync::watch;
use transport::RequestBody;

use self::call::{SmallCall, answer};
use self::response::Response;
use crate::models::ModelsState;

type Request = http::Request<RequestBody>;
type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

/// Returns the service of all calls. Streams end after their current request once `stopped` is
/// true.
pub(crate) fn service(state: Arc<ModelsState>, stopped: watch::Receiver<bool>) -> GrpcService {
    GrpcService { state, stopped }
}

/// Answers calls by the service and method that they name.
#[derive(Clone)]
pub(crate) struct GrpcService {
    state: Arc<ModelsState>,
    stopped: watch::Receiver<bool>,
}

impl tower::Service<Request> for GrpcService {
    type Response = Response;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> ResponseFuture {
        if !is_grpc(request.headers()) {
            return unsupported_media_type();
        }
        let mut segments = request.uri().path().split('/').skip(1);
        let service = segments.next().unwrap_or_default();
        let method = segments.next().unwrap_or_default();
        match service {
            "inference.GRPCInferenceService" => match method {
                "ModelInfer" => match self.state.requests.check_room() {
                    Ok(()) => boxed(oip::model_infer(self.state.clone(), request)),
                    Err(error) => refuse(&error),
                },
                "ModelStreamInfer" => {
                    let response =
                        oip::model_stream_infer(&self.state, self.stopped.clone(), request);
                    boxed(std::future::ready(response))
                }
                _ => self.inference_service(request),
            },
            "tensorflow.serving.PredictionService" => match method {
                "Predict" => match self.state.requests.check_room() {
                    Ok(()) => boxed(tfs::predict(self.state.clone(), request)),
                    Err(error) => refuse(&error),
                },
                "GetModelMetadata" => self.small(request, tfs::model_metadata),
                "Classify" | "Regress" | "MultiInference" => {
                    refuse(&Error::unimplemented(format!("{method} is not offered; use Predict")))
                }
                _ => unknown_method(service, method),
            },
            "tensorflow.serving.ModelService" => match method {
                "GetModelStatus" => self.small(request, tfs::model_status),
                "HandleReloadConfigRequest" => refuse(&Error::unimplemented(
                    "the list of models is not changed this way; put versions into the served directories, or use the \
                     repository API",
                )),
                _ => unknown_method(service, method),
            },
            _ => refuse(&Error::unimplemented(format!(
                "there is no gRPC service \"{service}\" here"
            ))),
        }
    }
}

impl GrpcService {
    /// Answers the calls of the Open Inference Protocol that run no model.
    fn inference_service(&self, request: Request) -> ResponseFuture {
        let mut segments = request.uri().path().split('/').skip(1);
        let service = segments.next().unwrap_or_default();
        let method = segments.next().unwrap_or_default();
        match method {
            "ServerLive" => self.small(request, |_, _: pb::ServerLiveRequest| {
                Ok(pb::ServerLiveResponse { live: true })
            }),
            "ServerReady" => self.small(request, |state, _: pb::ServerReadyRequest| {
                Ok(pb::ServerReadyResponse { ready: state.readiness.check().is_ok() })
            }),
            "ModelReady" => self.small(request, oip::model_ready),
            "ServerMetadata" => self.small(request, oip::server_metadata),
            "ModelMetadata" => self.small(request, oip::model_metadata),
            "ModelConfig" => self.small(request, oip::model_config),
            "ModelStatistics" => self.small(request, oip::model_statistics),
            "RepositoryIndex" => self.small(request, oip::repository_index),
            "RepositoryModelLoad" => {
                let state = self.state.clone();
                boxed(answer(self.state.clone(), request, async move |call| {
                    oip::load(&state, call).await
                }))
            }
            "RepositoryModelUnload" => {
                let state = self.state.clone();
                boxed(answer(self.state.clone(), request, async move |call| {
                    oip::unload(&state, call).await
                }))
            }
            _ => unknown_method(service, method),
        }
    }

    /// Answers a call without a model by `handle`, which does not wait.
    fn small<M, R>(
        &self,
        request: Request,
        handle: fn(&ModelsState, M) -> base::Result<R>,
    ) -> ResponseFuture
    where
        M: protocol::Message + Default + 'static,
        R: protocol::Message + 'static,
    {
        let state = self.state.clone();
        boxed(answer(self.state.clone(), request, async move |call: SmallCall<M>| {
            handle(&state, call.message)
        }))
    }
}

/// Returns true for the content type `application/grpc`, alone or followed by a format or by
/// parameters (gRPC over HTTP/2, "Content-Type").
fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    value.split_at_checked(response::CONTENT_TYPE.len()).is_some_and(|(start, rest)| {
        start.eq_ignore_ascii_case(response::CONTENT_TYPE.as_bytes())
            && matches!(rest.first(), None | Some(b'+' | b';'))
    })
}

/// Answers a request that is no gRPC call. Other clients must not take the answer for a success,
/// so its HTTP status is 415.
fn unsupported_media_type() -> ResponseFuture {
    let text = "this port takes gRPC calls, of content type application/grpc; HTTP/1.1 has a port of its own";
    let mut response = response::failed(&Error::invalid(text));
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    boxed(std::future::ready(response))
}

fn boxed(response: impl Future<Output = Response> + Send + 'static) -> ResponseFuture {
    Box::pin(async move { Ok(response.await) })
}

fn refuse(error: &Error) -> ResponseFuture {
    boxed(std::future::ready(response::failed(error)))
}

/// Refuses a method that Triton or TensorFlow Serving has and this server has not.
fn unknown_method(service: &str, method: &str) -> ResponseFuture {
    refuse(&Error::unimplemented(format!("{service}/{method} is not offered")))
}
