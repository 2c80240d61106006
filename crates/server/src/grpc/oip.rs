//! Open Inference Protocol over gRPC, with the repository, statistics and streaming extensions.

use std::pin::Pin;
use std::sync::Arc;

use base::{Error, Result};
use bytes::Bytes;
use lifecycle::LoadSpec;
use protocol::inference as pb;
use protocol::oip;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::{Request, Response, Status, Streaming};

use super::messages::{self, Decoded, Messages};
use super::status::grpc_status;
use super::unary;
use crate::app::{App, Call, Ticket};
use crate::{admin, view};
use transport::Peer;
use transport::RequestBody;
use transport::Reservation;
use transport::ResponseBody;
use transport::{CodecStep, INLINE_WORK_MAX};

/// Answers of one stream that may wait for a slow client.
const STREAM_ANSWERS_MAX: usize = 8;
const PROTOCOL: &str = "oip-grpc";
/// Triton's parameter of a streamed answer: no other answer to the request follows. Every request has one answer here.
const FINAL_RESPONSE: &str = "triton_final_response";

type Answered<T> = std::result::Result<Response<T>, Status>;

/// The service.
pub(crate) struct Oip {
    pub(crate) app: Arc<App>,
}

/// The version a request names; none when the field is empty.
pub(crate) fn parse_version(text: &str) -> Result<Option<u64>> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| Error::invalid(format!("\"{text}\" is no version number")))
}

fn answered<T>(result: Result<T>) -> Answered<T> {
    result.map(Response::new).map_err(|error| grpc_status(&error))
}

fn peer<T>(request: &Request<T>) -> Option<Peer> {
    request.extensions().get::<Peer>().copied()
}

async fn infer(
    app: &App,
    ticket: &Ticket,
    decoded: Decoded<pb::ModelInferRequest>,
    timeout: Option<std::time::Duration>,
) -> Result<(pb::ModelInferResponse, Reservation)> {
    let Decoded { message: request, mut held, large } = decoded;
    let found = parse_version(&request.model_version)
        .and_then(|version| app.find(&request.model_name, version, None));
    let servable = found.inspect_err(|error| app.reject(ticket, error))?;
    let strings = oip::grpc::strings_bytes_max(&request);
    let large = large || strings > INLINE_WORK_MAX * oip::grpc::STRING_REFERENCES_BYTES;
    let decode = move || {
        held.cover(strings)?;
        Ok((oip::grpc::decode_request(request)?, held))
    };
    let (decoded, held) = app
        .requests
        .codec
        .run_if(large, CodecStep::Decode, decode)
        .await
        .map_err(|error| error.context(&servable.id))
        .inspect_err(|error| app.reject_version(ticket, &servable.id, error))?;
    let timeout = [timeout, decoded.timeout].into_iter().flatten().min();
    let call = Call {
        servable,
        inputs: decoded.inputs,
        outputs: decoded.outputs,
        timeout,
        priority: decoded.priority,
    };
    let answer = app.answer(ticket, call).await?;
    Ok((oip::grpc::encode_response(&answer.id, decoded.id, answer.outputs)?, held))
}

/// ModelInfer.
pub(super) async fn model_infer(app: &App, request: http::Request<RequestBody>) -> http::Response<Body> {
    let read = unary::read(app, PROTOCOL, request).await;
    let answer = match read.and_then(|asked| placed(app, asked)) {
        Ok((unary::ReceivedCall { ticket, decoded, timeout }, _place)) => {
            infer(app, &ticket, decoded, timeout).await
        }
        Err(error) => Err(error),
    };
    unary::response(app, answer)
}

/// ModelStreamInfer.
pub(super) fn model_stream_infer(
    app: &Arc<App>,
    stopped: watch::Receiver<bool>,
    request: http::Request<RequestBody>,
) -> http::Response<Body> {
    let (head, body) = request.into_parts();
    let requests = match Messages::new(&head.headers, body) {
        Ok(requests) => requests,
        Err(error) => return grpc_status(&error).into_http(),
    };
    let (sender, receiver) = mpsc::channel(STREAM_ANSWERS_MAX);
    tokio::spawn(converse(app.clone(), requests, sender, stopped));
    unary::stream(receiver)
}

/// Takes the place of a request that was read.
///
/// # Errors
/// Those of [`App::admit`], which are counted.
pub(super) fn placed<M>(
    app: &App,
    asked: unary::ReceivedCall<M>,
) -> Result<(unary::ReceivedCall<M>, OwnedSemaphorePermit)> {
    let place = app.requests.admit().inspect_err(|error| app.reject(&asked.ticket, error))?;
    Ok((asked, place))
}

async fn load(app: &App, request: &pb::RepositoryModelLoadRequest) -> Result<()> {
    let version = oip::grpc::load_version(&request.parameters)?;
    admin::load(app, &request.model_name, LoadSpec { version, ..LoadSpec::default() }).await
}

/// Answers the requests of one stream in turn, until it ends, the client goes, or the server stops.
async fn converse(
    app: Arc<App>,
    mut requests: Messages,
    answers: mpsc::Sender<Result<ResponseBody>>,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        let request = tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => Err(Error::unavailable("the server is shutting down")),
            () = answers.closed() => return,
            request = requests.next(&app) => request,
        };
        let (answer, last) = match request {
            Ok(None) => return,
            // What is no request ends the stream, and the client learns why.
            Err(error) => (Err(error), true),
            Ok(Some(request)) => tokio::select! {
                answer = one_of_many(&app, request) => { let last = answer.is_err(); (answer, last) },
                // Dropping the request takes it from its queue.
                () = answers.closed() => return,
            },
        };
        if answers.send(answer).await.is_err() || last {
            return;
        }
    }
}

/// Answers one request of a stream: its error is its own, and the stream goes on.
async fn one_of_many(app: &App, request: Bytes) -> Result<ResponseBody> {
    let ticket = App::begin(PROTOCOL);
    let admitted = async {
        let permit = app.requests.admit()?;
        Ok((permit, messages::decode(app, request).await?))
    };
    let answer = match admitted.await {
        Ok((_permit, decoded)) => infer(app, &ticket, decoded, None).await,
        Err(error) => {
            app.reject(&ticket, &error);
            Err(error)
        }
    };
    let answer = answer.and_then(|(mut response, held)| {
        response.parameters.insert(FINAL_RESPONSE.into(), oip::grpc::boolean(true));
        let answer =
            pb::ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) };
        unary::encoded(app, &answer, held)
    });
    answer.or_else(|error| {
        let answer = pb::ModelStreamInferResponse { error_message: error.to_string(), infer_response: None };
        unary::encoded(app, &answer, app.requests.memory.empty())
    })
}

/// For methods that never come here, because they are answered without tonic's streams.
fn answered_before<T>() -> Answered<T> {
    answered(Err(Error::internal("this call should have been answered before")))
}

#[tonic::async_trait]
impl pb::grpc_inference_service_server::GrpcInferenceService for Oip {
    type ModelStreamInferStream =
        Pin<Box<dyn Stream<Item = std::result::Result<pb::ModelStreamInferResponse, Status>> + Send>>;

    async fn server_live(&self, _: Request<pb::ServerLiveRequest>) -> Answered<pb::ServerLiveResponse> {
        answered(Ok(pb::ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<pb::ServerReadyRequest>) -> Answered<pb::ServerReadyResponse> {
        answered(Ok(pb::ServerReadyResponse { ready: self.app.ready().is_ok() }))
    }

    async fn model_ready(&self, request: Request<pb::ModelReadyRequest>) -> Answered<pb::ModelReadyResponse> {
        let request = request.into_inner();
        let ready = parse_version(&request.version).map(|version| pb::ModelReadyResponse {
            ready: self.app.find(&request.name, version, None).is_ok(),
        });
        answered(ready)
    }

    async fn server_metadata(
        &self,
        _: Request<pb::ServerMetadataRequest>,
    ) -> Answered<pb::ServerMetadataResponse> {
        answered(Ok(pb::ServerMetadataResponse {
            name: crate::NAME.into(),
            version: crate::VERSION.into(),
            extensions: oip::EXTENSIONS.iter().map(|name| (*name).into()).collect(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<pb::ModelMetadataRequest>,
    ) -> Answered<pb::ModelMetadataResponse> {
        let request = request.into_inner();
        answered(parse_version(&request.version).and_then(|version| {
            let servable = self.app.find(&request.name, version, None)?;
            let versions = view::ready_versions(&self.app, &servable.id.model);
            Ok(oip::grpc::model_metadata(
                &servable.id.model,
                &versions,
                view::platform(servable.engine),
                servable.signature(),
            ))
        }))
    }

    async fn model_config(
        &self,
        request: Request<pb::ModelConfigRequest>,
    ) -> Answered<pb::ModelConfigResponse> {
        let request = request.into_inner();
        answered(parse_version(&request.version).and_then(|version| {
            let servable = self.app.find(&request.name, version, None)?;
            let config = oip::grpc::model_config(
                &servable.id.model,
                view::platform(servable.engine),
                servable.signature(),
                servable.metadata(),
                view::batching(&servable).as_ref(),
            );
            Ok(pb::ModelConfigResponse { config: Some(config) })
        }))
    }

    async fn model_infer(&self, _: Request<pb::ModelInferRequest>) -> Answered<pb::ModelInferResponse> {
        answered_before()
    }

    async fn model_stream_infer(
        &self,
        _: Request<Streaming<pb::ModelInferRequest>>,
    ) -> Answered<Self::ModelStreamInferStream> {
        answered_before()
    }

    async fn model_statistics(
        &self,
        request: Request<pb::ModelStatisticsRequest>,
    ) -> Answered<pb::ModelStatisticsResponse> {
        let request = request.into_inner();
        answered(parse_version(&request.version).and_then(|version| {
            let entries = view::statistics(&self.app, &request.name, version)?;
            Ok(oip::grpc::model_statistics(&entries))
        }))
    }

    async fn repository_index(
        &self,
        request: Request<pb::RepositoryIndexRequest>,
    ) -> Answered<pb::RepositoryIndexResponse> {
        let index = view::repository_index(&self.app, request.into_inner().ready);
        answered(Ok(oip::grpc::repository_index(&index)))
    }

    async fn repository_model_load(
        &self,
        request: Request<pb::RepositoryModelLoadRequest>,
    ) -> Answered<pb::RepositoryModelLoadResponse> {
        let allowed =
            self.app.access.check_admin(admin::ADMIN_CALL, peer(&request), request.metadata().as_ref());
        let request = request.into_inner();
        let loaded = match allowed {
            Ok(()) => load(&self.app, &request).await,
            Err(error) => Err(error),
        };
        answered(loaded.map(|()| pb::RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<pb::RepositoryModelUnloadRequest>,
    ) -> Answered<pb::RepositoryModelUnloadResponse> {
        let allowed =
            self.app.access.check_admin(admin::ADMIN_CALL, peer(&request), request.metadata().as_ref());
        let request = request.into_inner();
        let unloaded = match allowed {
            Ok(()) => admin::unload(&self.app, &request.model_name).await,
            Err(error) => Err(error),
        };
        answered(unloaded.map(|()| pb::RepositoryModelUnloadResponse {}))
    }
}
