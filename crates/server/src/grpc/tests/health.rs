//! grpc.health.v1 and server reflection.

use protocol::grpc::health::v1::health_check_response::ServingStatus;
use protocol::grpc::health::v1::health_client::HealthClient;
use protocol::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse, HealthListRequest};
use protocol::grpc::reflection::v1::server_reflection_client::ServerReflectionClient;
use protocol::grpc::reflection::v1::server_reflection_request::MessageRequest;
use protocol::grpc::reflection::v1::server_reflection_response::MessageResponse;
use protocol::grpc::reflection::v1::{ServerReflectionRequest, ServerReflectionResponse};
use protocol::grpc::reflection::{v1, v1alpha};
use tonic::Streaming;

use super::*;
use crate::readiness::WATCHERS_MAX;

fn named(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

async fn next(statuses: &mut Streaming<HealthCheckResponse>) -> Result<ServingStatus, Status> {
    let message = statuses.next().await.expect("the stream ended");
    message.map(|message| message.status())
}

/// Unloads the model, and waits for it.
async fn unload(served: &Loopback) {
    crate::admin::unload(&served.server.core.lifecycle, "echo").await.unwrap();
}

#[test]
fn server_services_and_models_have_a_status() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    run(async {
        let mut client = client!(HealthClient, served);
        let names = ["", "inference.GRPCInferenceService", "grpc.health.v1.Health", "echo"];
        // The last two are TensorFlow Serving's names.
        for name in names.into_iter().chain(["ModelService", "PredictionService"]) {
            let answer = client.check(named(name)).await.unwrap().into_inner();
            assert_eq!(answer.status(), ServingStatus::Serving, "{name}");
        }
        let unknown = client.check(named("echoo")).await.unwrap_err();
        assert_eq!(unknown.code(), Code::NotFound);
        assert!(unknown.message().contains("did you mean \"echo\"?"), "{unknown}");
        unload(&served).await;
        let list = client.list(HealthListRequest {}).await.unwrap().into_inner().statuses;
        assert_eq!(list["echo"].status(), ServingStatus::NotServing);
        assert!(names[..3].iter().all(|name| list[*name].status() == ServingStatus::Serving));
    });
}

#[test]
fn watch_follows_unload_load_and_stop() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    let lifecycle = &served.server.core.lifecycle;
    run(async {
        let mut client = client!(HealthClient, served);
        let mut watched = client.watch(named("echo")).await.unwrap().into_inner();
        assert_eq!(next(&mut watched).await.unwrap(), ServingStatus::Serving);
        // A swap is not a change: the next status is that of the unload.
        publish(&dir.path().join("models/echo/2"), ECHO, &[]).unwrap();
        while lifecycle.catalog().ready("echo") != Some(vec![2]) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        unload(&served).await;
        assert_eq!(next(&mut watched).await.unwrap(), ServingStatus::NotServing);
        let spec = lifecycle::LoadSpec::default();
        crate::admin::load_copied(lifecycle, "echo", spec).await.unwrap();
        assert_eq!(next(&mut watched).await.unwrap(), ServingStatus::Serving);
        served.stop();
        assert_eq!(next(&mut watched).await.unwrap(), ServingStatus::NotServing);
        assert_eq!(next(&mut watched).await.unwrap_err().code(), Code::Unavailable);
    });
}

#[test]
fn watch_waits_for_an_unknown_model() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    run(async {
        let mut client = client!(HealthClient, served);
        let mut watched = client.watch(named("later")).await.unwrap().into_inner();
        assert_eq!(next(&mut watched).await.unwrap(), ServingStatus::ServiceUnknown);
        publish(&dir.path().join("models/later/1"), ECHO, &[]).unwrap();
        let mut status = next(&mut watched).await.unwrap();
        // The model is known before it serves.
        if status == ServingStatus::NotServing {
            status = next(&mut watched).await.unwrap();
        }
        assert_eq!(status, ServingStatus::Serving);
    });
}

#[test]
fn watchers_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |config| {
        config.listeners.requests_max = 2 * WATCHERS_MAX;
    });
    run(async {
        let mut client = client!(HealthClient, served);
        let mut watched = Vec::new();
        for _ in 0..WATCHERS_MAX {
            watched.push(client.watch(named("")).await.unwrap());
        }
        let refused = client.watch(named("")).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        let labels = metrics::KindLabels { kind: "watchers_max" };
        assert_eq!(served.server.core.metrics.refused.get_or_create(&labels).get(), 1);
        watched.pop();
        while client.watch(named("")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

/// Sends `requests` in one stream and returns the answers.
async fn reflect(
    served: &Loopback,
    requests: Vec<MessageRequest>,
) -> Vec<ServerReflectionResponse> {
    let request =
        |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let requests: Vec<_> = requests.into_iter().map(request).collect();
    let mut client = client!(ServerReflectionClient, served);
    let answers = client.server_reflection_info(tokio_stream::iter(requests)).await.unwrap();
    answers.into_inner().map(Result::unwrap).collect().await
}

#[test]
fn reflection_describes_the_services() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    run(async {
        let symbol = "inference.GRPCInferenceService".to_owned();
        let requests = vec![
            MessageRequest::ListServices(String::new()),
            MessageRequest::FileContainingSymbol(symbol.clone()),
        ];
        let answers = reflect(&served, requests).await;
        let Some(MessageResponse::ListServicesResponse(list)) = &answers[0].message_response else {
            panic!("{answers:?}");
        };
        assert!(list.service.iter().any(|service| service.name == symbol));
        let Some(MessageResponse::FileDescriptorResponse(files)) = &answers[1].message_response
        else {
            panic!("{answers:?}");
        };
        assert_eq!(files.file_descriptor_proto.len(), 2);

        let mut client = client!(v1alpha::server_reflection_client::ServerReflectionClient, served);
        let older = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
        let request =
            v1alpha::ServerReflectionRequest { message_request: Some(older), ..Default::default() };
        let answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap();
        let first = answers.into_inner().next().await.unwrap().unwrap();
        let again = ServerReflectionResponse::decode(first.encode_to_vec().as_slice()).unwrap();
        let Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(older)) =
            again.message_response
        else {
            panic!("{first:?}");
        };
        assert_eq!(older, *list);
    });
}
