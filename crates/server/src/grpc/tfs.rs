//! TensorFlow Serving over gRPC: Predict, GetModelMetadata, GetModelStatus.

use std::sync::Arc;

use base::{Error, Result};
use protocol::tensorflow::serving as pb;
use protocol::tfs;
use tonic::body::Body;
use tonic::{Request, Response, Status};

use super::messages::Decoded;
use super::oip::placed;
use super::status::grpc_status;
use super::unary;
use crate::app::{App, Call, Ticket};
use crate::view;
use transport::CodecStep;
use transport::RequestBody;
use transport::Reservation;

const PROTOCOL: &str = "tfs-grpc";
/// Most bytes that are filled with repeated values on the thread that watches the socket.
const INLINE_FILLED_BYTES_MAX: u64 = 1 << 20;

type Answered<T> = std::result::Result<Response<T>, Status>;

/// Both services of the API.
pub(crate) struct Tfs(pub(crate) Arc<App>);

fn answered<T>(result: Result<T>) -> Answered<T> {
    result.map(Response::new).map_err(|error| grpc_status(&error))
}

fn not_offered<T>(what: &str) -> Answered<T> {
    answered(Err(Error::unimplemented(format!("{what} is not offered; use Predict"))))
}

async fn predict(
    app: &App,
    ticket: &Ticket,
    decoded: Decoded<pb::PredictRequest>,
    timeout: Option<std::time::Duration>,
) -> Result<(tfs::SharedPredictResponse, Reservation)> {
    let Decoded { message: request, mut held, large } = decoded;
    let found = tfs::grpc::target(request.model_spec.as_ref())
        .and_then(|target| app.find(&target.name, target.version, target.label.as_deref()));
    let servable = found.inspect_err(|error| app.reject(ticket, error))?;
    let filled = tfs::grpc::filled_bytes_max(&request);
    let large = large || filled > INLINE_FILLED_BYTES_MAX;
    let decode = move || {
        held.cover(filled)?;
        Ok((tfs::grpc::decode_predict(request)?, held))
    };
    let (mut decoded, held) = app
        .requests
        .codec
        .run_if(large, CodecStep::Decode, decode)
        .await
        .map_err(|error| error.context(&servable.id))
        .inspect_err(|error| app.reject_version(ticket, &servable.id, error))?;
    let ranks = tfs::adapt_ranks(servable.signature(), &mut decoded.inputs);
    let call = Call {
        servable: servable.clone(),
        inputs: decoded.inputs,
        outputs: decoded.outputs,
        timeout,
        priority: 0,
    };
    let mut answer = app.answer(ticket, call).await?;
    ranks.restore(servable.signature(), &mut answer.outputs);
    let elements = if app.tfs_tensor_content { tfs::TensorFields::Content } else { tfs::TensorFields::Typed };
    Ok((tfs::grpc::encode_predict(&answer.id, answer.outputs, elements), held))
}

/// Predict.
pub(super) async fn predict_call(app: &App, request: http::Request<RequestBody>) -> http::Response<Body> {
    let read = unary::read(app, PROTOCOL, request).await;
    let answer = match read.and_then(|asked| placed(app, asked)) {
        Ok((unary::ReceivedCall { ticket, decoded, timeout }, _place)) => {
            predict(app, &ticket, decoded, timeout).await
        }
        Err(error) => Err(error),
    };
    unary::response(app, answer)
}

#[tonic::async_trait]
impl pb::prediction_service_server::PredictionService for Tfs {
    async fn predict(&self, _: Request<pb::PredictRequest>) -> Answered<pb::PredictResponse> {
        answered(Err(Error::internal("this call should have been answered before")))
    }

    async fn get_model_metadata(
        &self,
        request: Request<pb::GetModelMetadataRequest>,
    ) -> Answered<pb::GetModelMetadataResponse> {
        let request = request.into_inner();
        answered(tfs::grpc::target(request.model_spec.as_ref()).and_then(|target| {
            let servable = self.0.find(&target.name, target.version, target.label.as_deref())?;
            tfs::grpc::model_metadata(&servable.id, servable.signature(), &request.metadata_field)
        }))
    }

    async fn classify(&self, _: Request<pb::ClassificationRequest>) -> Answered<pb::ClassificationResponse> {
        not_offered("Classify")
    }

    async fn regress(&self, _: Request<pb::RegressionRequest>) -> Answered<pb::RegressionResponse> {
        not_offered("Regress")
    }

    async fn multi_inference(
        &self,
        _: Request<pb::MultiInferenceRequest>,
    ) -> Answered<pb::MultiInferenceResponse> {
        not_offered("MultiInference")
    }
}

#[tonic::async_trait]
impl pb::model_service_server::ModelService for Tfs {
    async fn get_model_status(
        &self,
        request: Request<pb::GetModelStatusRequest>,
    ) -> Answered<pb::GetModelStatusResponse> {
        let request = request.into_inner();
        answered(tfs::grpc::target(request.model_spec.as_ref()).and_then(|target| {
            let versions = view::version_states(&self.0, &target.name, target.version)?;
            Ok(tfs::grpc::model_status(&versions))
        }))
    }

    async fn handle_reload_config_request(
        &self,
        _: Request<pb::ReloadConfigRequest>,
    ) -> Answered<pb::ReloadConfigResponse> {
        answered(Err(Error::unimplemented(
            "the list of models is not changed this way; put versions into the served directories, or use the \
             repository API",
        )))
    }
}
