//! Open Inference Protocol over gRPC, with the repository, statistics and streaming extensions.

use std::pin::Pin;
use std::sync::Arc;

use base::{Error, Result};
use lifecycle::LoadSpec;
use protocol::inference as pb;
use protocol::oip;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::{Request, Response, Status, Streaming};

use super::unary;
use crate::app::{App, Call, Ticket};
use crate::errors::grpc_status;
use crate::given::Given;
use crate::listen::Peer;
use crate::{admin, view};

/// Answers of one stream that may wait for a slow client.
const STREAM_ANSWERS_MAX: usize = 8;
const PROTOCOL: &str = "oip-grpc";
/// Triton's parameter of a streamed answer: no other answer to the request follows. Every request has one answer here.
const FINAL_RESPONSE: &str = "triton_final_response";

type Answered<T> = std::result::Result<Response<T>, Status>;

/// The service.
pub(crate) struct Oip {
    pub(crate) app: Arc<App>,
    /// Told when the server stops.
    pub(crate) stopped: watch::Receiver<bool>,
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
    request: pb::ModelInferRequest,
    timeout: Option<std::time::Duration>,
) -> Result<pb::ModelInferResponse> {
    let found = parse_version(&request.model_version)
        .and_then(|version| app.find(&request.model_name, version, None));
    let servable = found.inspect_err(|error| app.reject(ticket, error))?;
    let decoded = oip::grpc::decode_request(request)
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
    oip::grpc::encode_response(&answer.id, decoded.id, answer.outputs)
}

/// ModelInfer.
pub(super) async fn model_infer(app: &App, request: http::Request<Given>) -> http::Response<Body> {
    unary::response(match unary::read(app, PROTOCOL, request).await {
        Ok(unary::Asked { ticket, message, timeout }) => infer(app, &ticket, message, timeout).await,
        Err(error) => Err(error),
    })
}

async fn load(app: &App, request: &pb::RepositoryModelLoadRequest) -> Result<()> {
    let version = oip::grpc::load_version(&request.parameters)?;
    admin::load(app, &request.model_name, LoadSpec { version, ..LoadSpec::default() }).await
}

type Streamed = std::result::Result<pb::ModelStreamInferResponse, Status>;

/// Answers the requests of one stream in turn, until it ends, the client goes, or the server stops.
async fn converse(
    app: Arc<App>,
    mut requests: Streaming<pb::ModelInferRequest>,
    answers: mpsc::Sender<Streamed>,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        let request = tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => {
                Some(Err(grpc_status(&Error::unavailable("the server is shutting down"))))
            }
            () = answers.closed() => return,
            request = requests.next() => request,
        };
        let (answer, last) = match request {
            None => return,
            // What is no request ends the stream, and the client learns why.
            Some(Err(status)) => (Err(status), true),
            Some(Ok(request)) => tokio::select! {
                answer = one_of_many(&app, request) => (Ok(answer), false),
                // Dropping the request takes it from its queue.
                () = answers.closed() => return,
            },
        };
        if answers.send(answer).await.is_err() || last {
            return;
        }
    }
}

/// One request of a stream: its error is its own, and the stream goes on.
async fn one_of_many(app: &App, request: pb::ModelInferRequest) -> pb::ModelStreamInferResponse {
    let ticket = App::begin(PROTOCOL);
    let answer = match app.admit() {
        Ok(_permit) => infer(app, &ticket, request, None).await,
        Err(error) => {
            app.reject(&ticket, &error);
            Err(error)
        }
    };
    match answer {
        Ok(mut response) => {
            response.parameters.insert(FINAL_RESPONSE.into(), oip::grpc::boolean(true));
            pb::ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
        }
        Err(error) => pb::ModelStreamInferResponse { error_message: error.to_string(), infer_response: None },
    }
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

    async fn model_infer(&self, request: Request<pb::ModelInferRequest>) -> Answered<pb::ModelInferResponse> {
        let ticket = App::begin(PROTOCOL);
        let timeout = super::timeout(request.metadata().as_ref());
        answered(infer(&self.app, &ticket, request.into_inner(), timeout).await)
    }

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<pb::ModelInferRequest>>,
    ) -> Answered<Self::ModelStreamInferStream> {
        let (sender, receiver) = mpsc::channel(STREAM_ANSWERS_MAX);
        let (app, stopped) = (self.app.clone(), self.stopped.clone());
        tokio::spawn(converse(app, request.into_inner(), sender, stopped));
        answered(Ok(Box::pin(ReceiverStream::new(receiver)) as Self::ModelStreamInferStream))
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
        let allowed = admin::allowed(&self.app, peer(&request));
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
        let allowed = admin::allowed(&self.app, peer(&request));
        let request = request.into_inner();
        let unloaded = match allowed {
            Ok(()) => admin::unload(&self.app, &request.model_name).await,
            Err(error) => Err(error),
        };
        answered(unloaded.map(|()| pb::RepositoryModelUnloadResponse {}))
    }
}
