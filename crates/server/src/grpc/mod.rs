//! gRPC on one port: both protocols of models, Qdrant's interface, health and reflection. The path
//! of a call names its service and method.
//!
//! Calls are routed and framed here, not by a general gRPC server. Such a server copies a message
//! into a growing buffer and decodes it before the memory of the result is known. Here a message
//! that arrives in one piece is weighed and decoded in place (ADR 0006).

mod authorize;
mod call;
mod examples;
mod health;
mod messages;
mod oip;
mod qdrant;
mod reflection;
mod response;
mod settings;
mod status;
mod stream;
#[cfg(test)]
mod tests;
mod tfs;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use base::Error;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use os::CpuAccount;
use protocol::inference as pb;
use tokio::sync::watch;
use transport::RequestBody;
use transport::access::KeyGrant;

use self::authorize::NamesModels;
pub(crate) use self::call::timeout;
use self::call::{SmallCall, answer};
use self::response::Response;
use crate::models::ModelsState;
use crate::surface::Surface;

type Request = http::Request<RequestBody>;
type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

/// Returns the service of all calls. `collections` are the routes of collections. Once `stopped`
/// is true, streams end after the requests that they have read.
pub(crate) fn service(
    state: Arc<ModelsState>,
    collections: Router,
    stopped: watch::Receiver<bool>,
    surface: Surface,
) -> GrpcService {
    GrpcService { state, collections, stopped, surface }
}

/// Service of all gRPC calls, which it routes by service and method.
#[derive(Clone)]
pub(crate) struct GrpcService {
    state: Arc<ModelsState>,
    /// Routes of collections, which check the keys of calls.
    collections: Router,
    stopped: watch::Receiver<bool>,
    surface: Surface,
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
        let request = match authorize::authorize(&self.state, self.surface, request) {
            Ok(request) => request,
            Err(refused) => return boxed(std::future::ready(*refused)),
        };
        let Some(account) = request.extensions().get().map(KeyGrant::cpu_account) else {
            return self.answer(request);
        };
        let response = CpuAccount::scope(Some(account.clone()), || self.answer(request));
        Box::pin(account.wrap(response))
    }
}

impl GrpcService {
    /// Answers a call that its key permits.
    fn answer(&self, request: Request) -> ResponseFuture {
        match request.uri().path() {
            "/inference.GRPCInferenceService/ModelInfer" => {
                self.inference(request, oip::model_infer)
            }
            "/inference.GRPCInferenceService/ModelStreamInfer" => {
                let response = oip::model_stream_infer(&self.state, self.stopped.clone(), request);
                boxed(std::future::ready(response))
            }
            "/inference.GRPCInferenceService/ServerLive" => self
                .small(request, |_, _: pb::ServerLiveRequest| {
                    Ok(pb::ServerLiveResponse { live: true })
                }),
            "/inference.GRPCInferenceService/ServerReady" => {
                self.small(request, |state, _: pb::ServerReadyRequest| {
                    Ok(pb::ServerReadyResponse { ready: state.readiness.check().is_ok() })
                })
            }
            "/inference.GRPCInferenceService/ModelReady" => self.small(request, oip::model_ready),
            "/inference.GRPCInferenceService/ServerMetadata" => {
                self.small(request, oip::server_metadata)
            }
            "/inference.GRPCInferenceService/ModelMetadata" => {
                self.small(request, oip::model_metadata)
            }
            "/inference.GRPCInferenceService/ModelConfig" => self.small(request, oip::model_config),
            "/inference.GRPCInferenceService/ModelStatistics" => {
                self.listing(request, oip::model_statistics)
            }
            "/inference.GRPCInferenceService/RepositoryIndex" => {
                self.listing(request, oip::repository_index)
            }
            "/inference.GRPCInferenceService/RepositoryModelLoad" => {
                boxed(oip::load(self.state.clone(), request))
            }
            "/inference.GRPCInferenceService/RepositoryModelUnload" => {
                boxed(oip::unload(self.state.clone(), request))
            }
            "/tensorflow.serving.PredictionService/Predict" => {
                self.inference(request, tfs::predict)
            }
            "/tensorflow.serving.PredictionService/Classify" => {
                self.inference(request, examples::classify)
            }
            "/tensorflow.serving.PredictionService/Regress" => {
                self.inference(request, examples::regress)
            }
            "/tensorflow.serving.PredictionService/MultiInference" => {
                self.inference(request, examples::multi_inference)
            }
            "/tensorflow.serving.PredictionService/GetModelMetadata" => {
                self.small(request, tfs::model_metadata)
            }
            "/tensorflow.serving.ModelService/GetModelStatus" => {
                self.small(request, tfs::model_status)
            }
            "/tensorflow.serving.ModelService/HandleReloadConfigRequest" => {
                boxed(tfs::reload_config(self.state.clone(), request))
            }
            _ => self.other(request),
        }
    }

    /// Answers a call of Qdrant's interface, of gRPC's own services, or of Triton's settings.
    fn other(&self, request: Request) -> ResponseFuture {
        match request.uri().path() {
            "/inference.GRPCInferenceService/TraceSetting" => {
                boxed(settings::trace(self.state.clone(), request))
            }
            "/inference.GRPCInferenceService/LogSettings" => {
                boxed(settings::log(self.state.clone(), request))
            }
            "/grpc.health.v1.Health/Check" => self.small(request, health::check),
            "/grpc.health.v1.Health/List" => self.listing(request, health::list),
            "/grpc.health.v1.Health/Watch" => {
                boxed(health::watch(self.state.clone(), self.stopped.clone(), request))
            }
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
                let response = reflection::info(&self.state, self.stopped.clone(), request);
                boxed(std::future::ready(response))
            }
            "/qdrant.Qdrant/HealthCheck" => self
                .small(request, |_, _: protocol::qdrant::HealthCheckRequest| Ok(qdrant::health())),
            path if qdrant_grpc::is_call(path) => {
                let requests = self.state.requests.clone();
                let routes = self.collections.clone();
                boxed(qdrant::answer(requests, routes, request))
            }
            path => refuse(&unknown_method(path)),
        }
    }

    /// Answers a call that runs a model by `run`. Refuses it before its body is read if no request
    /// could be admitted now.
    fn inference<F>(
        &self,
        request: Request,
        run: fn(Arc<ModelsState>, Request) -> F,
    ) -> ResponseFuture
    where
        F: Future<Output = Response> + Send + 'static,
    {
        match self.state.requests.check_room() {
            Ok(()) => boxed(run(self.state.clone(), request)),
            Err(error) => refuse(&error),
        }
    }

    /// Answers a call without a model by `handle`, which does not wait.
    fn small<M, R>(
        &self,
        request: Request,
        handle: fn(&ModelsState, M) -> base::Result<R>,
    ) -> ResponseFuture
    where
        M: protocol::Message + Default + NamesModels + 'static,
        R: protocol::Message + 'static,
    {
        self.at_once(request, move |state, call| handle(state, call.message))
    }

    /// Answers a call that lists models by `handle`, which does not wait. It gets the rights of the
    /// call's key.
    fn listing<M, R>(
        &self,
        request: Request,
        handle: fn(&ModelsState, M, Option<&KeyGrant>) -> base::Result<R>,
    ) -> ResponseFuture
    where
        M: protocol::Message + Default + NamesModels + 'static,
        R: protocol::Message + 'static,
    {
        self.at_once(request, move |state, call| handle(state, call.message, call.grant.as_ref()))
    }

    /// Answers a call by `handle`, which does not wait.
    fn at_once<M, R>(
        &self,
        request: Request,
        handle: impl Fn(&ModelsState, SmallCall<M>) -> base::Result<R> + Send + Sync + 'static,
    ) -> ResponseFuture
    where
        M: protocol::Message + Default + NamesModels + 'static,
        R: protocol::Message + 'static,
    {
        let state = self.state.clone();
        boxed(answer(self.state.clone(), request, async move |call| handle(&state, call)))
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

/// Answers a request that is not a gRPC call. The HTTP status is 415, so that no other client
/// treats the answer as a success.
fn unsupported_media_type() -> ResponseFuture {
    let text = "this port takes gRPC calls (content type application/grpc) only; use the HTTP port";
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

/// Returns the error for the path of a method that this server does not have.
fn unknown_method(path: &str) -> Error {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
    Error::unimplemented(if protocol::reflection::is_service(service) {
        let remedy =
            if method.contains("SharedMemory") { ": send tensors in the request" } else { "" };
        format!("{service}/{method} is not offered{remedy}")
    } else {
        format!("there is no gRPC service \"{service}\" here")
    })
}
