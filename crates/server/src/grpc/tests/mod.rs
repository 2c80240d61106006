//! gRPC calls over a socket, with the fake engine behind real workers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{NamedTensor, Tensor};
use bytes::Bytes;
use engine::fake::FakeEngine;
use engine::fake::publish::publish;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use metrics::RequestLabels;
use protocol::Message;
use protocol::inference as pb;
use protocol::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use protocol::inference::model_repository_parameter::ParameterChoice;
use protocol::oip;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Status};

use super::call::timeout;
use crate::config::{Config, ListenerConfig};
use crate::loopback::{self, Loopback, run};

const ECHO: &str = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\n";
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(500);

/// Starts a server with one model. Returns its engine too.
fn served(dir: &Path, change: impl FnOnce(&mut Config)) -> (Loopback, Arc<FakeEngine>) {
    publish(&dir.join("models/echo/1"), ECHO, &[]).unwrap();
    let mut config = loopback::configuration(dir, &dir.join("models"));
    change(&mut config);
    let engine = Arc::new(FakeEngine::new());
    (Loopback::start(&config, engine.clone()), engine)
}

/// Opens an HTTP/2 connection for requests of any body.
async fn connect<B>(served: &Loopback) -> SendRequest<B>
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = tokio::net::TcpStream::connect(served.grpc).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    sender
}

/// Makes a generated client.
macro_rules! client {
    ($served:expr) => {
        client!(GrpcInferenceServiceClient, $served)
    };
    ($($client:ident)::+, $served:expr) => {{
        let sender: SendRequest<Body> = connect(&$served).await;
        let send = tower::service_fn(move |request: http::Request<Body>| {
            let mut sender = sender.clone();
            async move { sender.send_request(request).await }
        });
        $($client)::+::with_origin(
            send,
            format!("http://{}", $served.grpc).parse().unwrap(),
        )
    }};
}

// After the macro, which it uses.
mod framing;
mod health;
mod reload;
mod streams;

fn request(elements: usize) -> pb::ModelInferRequest {
    let x = NamedTensor::new("x", Tensor::from_vec(&[elements][..], vec![1f32; elements]).unwrap());
    oip::grpc::encode_request("echo", None, &[x], &[]).unwrap()
}

fn post(served: &Loopback, path: &str) -> http::request::Builder {
    let uri = format!("http://{}/inference.GRPCInferenceService/{path}", served.grpc);
    http::Request::post(uri).header("content-type", "application/grpc").header("te", "trailers")
}

const BUDGET: u64 = 16 << 20;

type Pieces =
    std::pin::Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, std::convert::Infallible>> + Send>>;

/// Returns a body of single bytes without end, or of one byte and then silence.
fn pieces(dribble: bool) -> StreamBody<Pieces> {
    let piece = || Ok(Frame::data(Bytes::from_static(&[0])));
    let first = tokio_stream::iter([piece()]);
    if !dribble {
        return StreamBody::new(Box::pin(first.chain(tokio_stream::pending())));
    }
    let endless = tokio_stream::iter(std::iter::repeat_with(piece)).then(async |piece| {
        tokio::time::sleep(SHORT / 20).await;
        piece
    });
    StreamBody::new(Box::pin(endless))
}

/// Sends endless bodies until all permits are taken, and then a call that must be answered.
fn never_ending_bodies(dribble: bool, change: impl FnOnce(&mut ListenerConfig)) {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |config| {
        config.listeners.requests_max = 2;
        change(&mut config.listeners);
    });
    run(async {
        let mut sender = connect(&served).await;
        for _ in 0..2 {
            let calls = [(); 2].map(|()| {
                sender.send_request(post(&served, "ModelInfer").body(pieces(dribble)).unwrap())
            });
            for call in calls {
                let answer = call.await.unwrap();
                let status = answer.headers().get("grpc-status").cloned();
                let message = answer.headers().get("grpc-message").cloned();
                assert_eq!(status.unwrap(), "4", "{message:?}");
            }
        }
        client!(served).model_infer(request(1)).await.unwrap();
    });
}

#[test]
fn a_stalled_body_ends_its_call() {
    never_ending_bodies(false, |listeners| {
        (listeners.client_timeout, listeners.request_timeout) = (SHORT, LONG)
    });
}

#[test]
fn a_dribbled_body_ends_its_call() {
    never_ending_bodies(true, |listeners| {
        (listeners.client_timeout, listeners.request_timeout) = (LONG, SHORT)
    });
}

#[test]
fn a_broken_message_ends_its_stream_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |config| config.listeners.body_bytes_max = 4096);
    run(async {
        let requests = tokio_stream::iter([request(1), request(2000), request(1)])
            .chain(tokio_stream::pending());
        let mut answers = client!(served).model_stream_infer(requests).await.unwrap().into_inner();
        let first = answers.next().await.unwrap().unwrap();
        assert_eq!(first.error_message, "");
        let second = answers.next().await.unwrap().unwrap_err();
        assert_eq!(second.code(), Code::ResourceExhausted, "{second}");
        assert!(answers.next().await.is_none());
    });
}

/// Each answer is small, so only the connection can notice that it is unread.
#[test]
fn unread_answers_of_a_stream_end_its_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |config| config.listeners.answer_window = SHORT);
    run(async {
        let requests = tokio_stream::iter(std::iter::repeat_with(|| request(50_000)).take(64))
            .chain(tokio_stream::pending());
        let mut answers = client!(served).model_stream_infer(requests).await.unwrap().into_inner();
        let slow = metrics::KindLabels { kind: "slow_reader" };
        until(|| served.server.core.metrics.refused.get_or_create(&slow).get() == 1).await;
        until(|| served.server.requests.memory.used() == 0).await;
        let ended = loop {
            match answers.next().await {
                Some(Ok(_)) => {}
                ended => break ended,
            }
        };
        assert!(matches!(ended, Some(Err(_))), "the connection is open");
        client!(served).model_infer(request(1)).await.unwrap();
    });
}

#[test]
fn each_message_of_a_stream_is_admitted() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |config| config.listeners.requests_max = 1);
    run(async {
        let (sender, receiver) = mpsc::channel(1);
        let requests = ReceiverStream::new(receiver);
        let mut answers = client!(served).model_stream_infer(requests).await.unwrap().into_inner();
        let permit = served.server.requests.admit().unwrap();
        sender.send(request(1)).await.unwrap();
        let refused = answers.next().await.unwrap().unwrap();
        assert!(refused.error_message.contains("--max-requests"), "{}", refused.error_message);
        drop(permit);
        sender.send(request(1)).await.unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap().error_message, "");
        until(|| served.server.requests.admitted() == 0).await;
    });
}

#[test]
fn a_failed_request_of_a_stream_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    run(async {
        let named = |id: &str, model: &str| pb::ModelInferRequest {
            id: id.to_owned(),
            model_name: model.to_owned(),
            ..request(1)
        };
        let requests = [named("a", "none"), named("", "none"), named("c", "echo")];
        let requests = tokio_stream::iter(requests);
        let mut answers = client!(served).model_stream_infer(requests).await.unwrap().into_inner();
        let first = answers.next().await.unwrap().unwrap();
        assert!(first.error_message.contains("no model"), "{}", first.error_message);
        assert_eq!(first.infer_response.unwrap().id, "a");
        let second = answers.next().await.unwrap().unwrap();
        assert!(!second.error_message.is_empty());
        let second = second.infer_response.unwrap();
        // A client that waits for the last answer of each request must not wait for ever.
        assert_eq!(second.parameters["triton_final_response"], oip::grpc::boolean(true));
        assert_eq!(second.id, "");
        let third = answers.next().await.unwrap().unwrap();
        assert_eq!(
            (third.error_message.as_str(), third.infer_response.unwrap().id.as_str()),
            ("", "c")
        );
    });
}

/// Triton's clients that send this metadata do not read the errors in answers.
#[test]
fn a_failed_request_ends_a_stream_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    run(async {
        for (value, ends) in [("true", true), ("false", false)] {
            let unknown = pb::ModelInferRequest { model_name: "none".into(), ..request(1) };
            let requests = tokio_stream::iter([request(1), unknown, request(1)]);
            let mut call = tonic::Request::new(requests);
            call.metadata_mut().insert("triton_grpc_error", value.parse().unwrap());
            let mut answers = client!(served).model_stream_infer(call).await.unwrap().into_inner();
            assert_eq!(answers.next().await.unwrap().unwrap().error_message, "");
            match answers.next().await.unwrap() {
                Ok(answer) => assert!(!ends && answer.error_message.contains("no model")),
                Err(status) => assert!(ends && status.code() == Code::NotFound, "{status}"),
            }
            assert_eq!(answers.next().await.is_none(), ends);
        }
    });
}

#[test]
fn a_silent_stream_ends_when_the_server_stops() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    run(async {
        let requests = tokio_stream::iter([request(1)]).chain(tokio_stream::pending());
        let mut answers = client!(served).model_stream_infer(requests).await.unwrap().into_inner();
        answers.next().await.unwrap().unwrap();
        served.stop();
        let status = answers.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    });
}

fn prefixed(flag: u8, message: &[u8], length: usize) -> Bytes {
    let mut frame = vec![flag];
    frame.extend_from_slice(&(length as u32).to_be_bytes());
    frame.extend_from_slice(message);
    frame.into()
}

/// A gate that opens again even if a test fails; otherwise a waiting worker would never end.
struct Closed(Arc<FakeEngine>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.run_gate().open();
    }
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_closed_stream_cancels_its_request() {
    let dir = tempfile::tempdir().unwrap();
    let (served, engine) = served(dir.path(), |_| {});
    engine.run_gate().close();
    let closed = Closed(engine);
    run(async {
        // Both workers are busy, so that the request of the stream waits.
        let client = client!(served);
        let busy = [client.clone(), client]
            .map(|mut client| tokio::spawn(async move { client.model_infer(request(1)).await }));
        until(|| closed.0.run_gate().waiting() == 2).await;
        let (requests, receiver) = mpsc::channel(1);
        let answers =
            client!(served).model_stream_infer(ReceiverStream::new(receiver)).await.unwrap();
        requests.send(request(1)).await.unwrap();
        until(|| served.server.core.scheduler.queued() == 1).await;
        // A stream is cancelled once neither of its ends is held.
        drop((requests, answers));
        until(|| served.server.requests.admitted() == 2).await;
        drop(closed);
        for answered in busy {
            answered.await.unwrap().unwrap();
        }
        let cancelled = || {
            served
                .server
                .core
                .scheduler
                .snapshot()
                .models
                .iter()
                .map(|model| model.cancelled)
                .sum::<u64>()
        };
        until(|| cancelled() == 1).await;
        let labels = RequestLabels {
            model: "echo".into(),
            version: 1,
            protocol: "oip-grpc",
            status: "cancelled",
        };
        let counted = || served.server.core.metrics.requests.get(&labels).map(|one| one.get());
        until(|| counted() == Some(1)).await;
    });
}

#[test]
fn a_load_takes_a_version_and_no_settings_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    let ask = async |name: &str, choice: ParameterChoice| {
        let parameter = pb::ModelRepositoryParameter { parameter_choice: Some(choice) };
        let request = pb::RepositoryModelLoadRequest {
            model_name: "echo".into(),
            parameters: [(name.to_owned(), parameter)].into(),
            ..Default::default()
        };
        client!(served)
            .repository_model_load(request)
            .await
            .map(|_| ())
            .map_err(|status: Status| status.code())
    };
    run(async {
        let text = |text: &str| ParameterChoice::StringParam(text.into());
        assert_eq!(ask("config", text("{}")).await, Err(Code::Unimplemented));
        let file = ParameterChoice::BytesParam(Bytes::from_static(b"onnx"));
        assert_eq!(ask("file:1/model.onnx", file).await, Err(Code::Unimplemented));
        assert_eq!(ask("version", text("one")).await, Err(Code::InvalidArgument));
        let other = ask("model_version", ParameterChoice::Int64Param(1)).await;
        assert_eq!(other, Err(Code::InvalidArgument));
        let unknown = ask("version", ParameterChoice::Int64Param(7)).await;
        assert!(unknown.is_err(), "there is no version 7");
        assert_eq!(ask("version", ParameterChoice::Int64Param(1)).await, Ok(()));
    });
}

#[test]
fn a_bomb_in_a_stream_is_refused_and_ends_no_stream() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) =
        served(dir.path(), |config| config.listeners.request_memory_bytes = Some(BUDGET));
    run(async {
        let contents = pb::InferTensorContents {
            bytes_contents: vec![Bytes::new(); 1_000_000],
            ..Default::default()
        };
        let mut bomb = request(1);
        bomb.inputs[0].contents = Some(contents);
        let (sender, receiver) = mpsc::channel(1);
        let requests = ReceiverStream::new(receiver);
        let mut answers = client!(served)
            .send_compressed(CompressionEncoding::Gzip)
            .model_stream_infer(requests)
            .await
            .unwrap()
            .into_inner();
        for asked in [request(1), bomb, request(10_000)] {
            let large = asked.inputs[0].contents.is_some();
            sender.send(asked).await.unwrap();
            let answer = answers.next().await.unwrap().unwrap();
            assert_eq!(
                answer.error_message.contains("--request-memory"),
                large,
                "{}",
                answer.error_message
            );
        }
        until(|| {
            served.server.requests.memory.used() == 0 && served.server.requests.admitted() == 0
        })
        .await;
        drop(sender);
        assert!(answers.next().await.is_none());
    });
    assert!(
        served.server.requests.memory.peak() <= BUDGET,
        "{}",
        served.server.requests.memory.peak()
    );
}

#[test]
fn large_typed_contents_are_decoded_on_codec_threads() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    let decoded = || {
        served
            .server
            .core
            .metrics
            .decoded
            .get_or_create(&metrics::KindLabels { kind: "decode" })
            .get()
    };
    run(async {
        // Raw contents are shared, however large they are.
        client!(served).model_infer(request(200_000)).await.unwrap();
        assert_eq!(decoded(), 0);
        let mut typed = request(20_000);
        typed.raw_input_contents.clear();
        let contents =
            pb::InferTensorContents { fp32_contents: vec![1.0; 20_000], ..Default::default() };
        typed.inputs[0].contents = Some(contents);
        let answer = client!(served).model_infer(typed).await.unwrap().into_inner();
        assert_eq!((answer.raw_output_contents[0].len(), decoded()), (80_000, 2));
    });
}

#[test]
fn answers_are_counted_until_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) =
        served(dir.path(), |config| config.listeners.request_memory_bytes = Some(BUDGET));
    let memory = &served.server.requests.memory;
    run(async {
        let message = request(1_000_000).encode_to_vec();
        let frame = prefixed(0, &message, message.len());
        let mut sender = connect(&served).await;
        let body = http_body_util::Full::new(frame);
        let answer =
            sender.send_request(post(&served, "ModelInfer").body(body).unwrap()).await.unwrap();
        // The window of the stream is smaller than the answer, which is not read.
        until(|| served.server.requests.admitted() == 0).await;
        assert!(memory.used() >= 4_000_000, "{}", memory.used());
        let collected = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(
            pb::ModelInferResponse::decode(collected.slice(5..)).unwrap().raw_output_contents[0]
                .len(),
            4_000_000
        );
        until(|| memory.used() == 0).await;
    });
}

#[test]
fn timeouts_in_every_unit() {
    let parse = |text: &str| {
        let mut headers = http::HeaderMap::new();
        headers.insert("grpc-timeout", text.parse().unwrap());
        timeout(&headers)
    };
    assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
    assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
    assert_eq!(parse("5x"), None);
    assert_eq!(parse("m"), None);
    assert_eq!(parse("123456789S"), None);
}

/// Calls any method with an empty message.
async fn empty_call(served: &Loopback, path: &str) -> http::Response<hyper::body::Incoming> {
    let mut sender = connect(served).await;
    let uri = format!("http://{}{path}", served.grpc);
    let request = http::Request::post(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let body = http_body_util::Full::new(Bytes::from_static(&[0; 5]));
    sender.send_request(request.body(body).unwrap()).await.unwrap()
}

#[test]
fn a_method_that_is_not_offered_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    run(async {
        for path in [
            "/inference.GRPCInferenceService/SystemSharedMemoryStatus",
            "/tensorflow.serving.PredictionService/PredictStreamed",
            "/tensorflow.serving.ModelService/Elsewhere",
        ] {
            let answer = empty_call(&served, path).await;
            let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
            assert_eq!(header("grpc-status"), "12", "{path}");
            let message = header("grpc-message");
            let method = path.rsplit('/').next().unwrap();
            assert!(message.contains(method) || message.contains("list of models"), "{message}");
            let remedy = message.ends_with("is not offered: send tensors in the request");
            assert_eq!(remedy, method.contains("SharedMemory"), "{message}");
        }
    });
}

/// Returns the path of every method that `proto` declares.
fn declared_methods(package: &str, proto: &str) -> Vec<String> {
    let mut service = "";
    let mut methods = Vec::new();
    for line in proto.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("service ") {
            service = rest.split([' ', '{']).next().unwrap();
        } else if let Some(rest) = line.strip_prefix("rpc ") {
            methods
                .push(format!("/{package}.{service}/{}", rest.split(['(', ' ']).next().unwrap()));
        }
    }
    methods
}

#[test]
fn every_declared_method_is_routed() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    let mut methods =
        declared_methods("inference", include_str!("../../../../protocol/proto/inference.proto"));
    methods.extend(declared_methods(
        "tensorflow.serving",
        include_str!("../../../../protocol/proto/tensorflow_serving.proto"),
    ));
    assert_eq!(methods.len(), 21);
    run(async {
        for path in methods {
            let answer = empty_call(&served, &path).await;
            let message = answer.headers().get("grpc-message");
            let message = message.map_or("", |message| message.to_str().unwrap());
            assert!(
                !message.contains(&format!("{} is not offered", &path[1..])),
                "{path}: {message}"
            );
            assert!(!message.contains("no gRPC service"), "{path}: {message}");
        }
    });
}

fn parameter(choice: pb::infer_parameter::ParameterChoice) -> pb::InferParameter {
    pb::InferParameter { parameter_choice: Some(choice) }
}

#[test]
fn a_streamed_answer_is_marked_as_the_last() {
    use pb::infer_parameter::ParameterChoice::{BoolParam, Int64Param};
    let dir = tempfile::tempdir().unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    let with = |name: &str, choice| {
        let parameters = [(name.to_owned(), parameter(choice))].into();
        pb::ModelInferRequest { parameters, ..request(1) }
    };
    run(async {
        let requests = [
            with("triton_enable_empty_final_response", BoolParam(true)),
            with("sequence_id", Int64Param(7)),
            request(1),
        ];
        let requests = tokio_stream::iter(requests);
        let mut answers = client!(served).model_stream_infer(requests).await.unwrap().into_inner();
        let last = Some(BoolParam(true));
        let first = answers.next().await.unwrap().unwrap().infer_response.unwrap();
        assert_eq!(first.parameters["triton_final_response"].parameter_choice, last);
        let second = answers.next().await.unwrap().unwrap();
        assert!(
            second.error_message.contains("sequences are not offered"),
            "{}",
            second.error_message
        );
        assert!(answers.next().await.unwrap().unwrap().infer_response.is_some());
        assert!(answers.next().await.is_none());

        let refused =
            client!(served).model_infer(with("sequence_start", BoolParam(true))).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
        let plain = client!(served).model_infer(request(1)).await.unwrap().into_inner();
        assert!(plain.parameters.is_empty());
    });
}

#[test]
fn the_server_is_not_ready_while_a_model_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/bad/1"), &format!("{ECHO}fail-load it is broken\n"), &[])
        .unwrap();
    let (served, _engine) = served(dir.path(), |_| {});
    run(async {
        let ready =
            client!(served).server_ready(pb::ServerReadyRequest {}).await.unwrap().into_inner();
        assert!(!ready.ready);
    });
}

/// Returns the answer of Predict.
async fn predicted(served: &Loopback) -> protocol::tensorflow::serving::PredictResponse {
    let x = NamedTensor::new("x", Tensor::from_vec(&[2][..], vec![1.5f32, -2.0]).unwrap());
    let target = protocol::tfs::grpc::PredictTarget { name: "echo".into(), ..Default::default() };
    let message = protocol::tfs::grpc::encode_request(&target, &[x], &[]).encode_to_vec();
    let mut sender = connect(served).await;
    let uri = format!("http://{}/tensorflow.serving.PredictionService/Predict", served.grpc);
    let request = http::Request::post(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let body = http_body_util::Full::new(prefixed(0, &message, message.len()));
    let answer = sender.send_request(request.body(body).unwrap()).await.unwrap();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    Message::decode(bytes.slice(5..)).unwrap()
}

#[test]
fn predict_fills_typed_fields_by_default() {
    for content in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (served, _engine) =
            served(dir.path(), |config| config.listeners.tfs_tensor_content = content);
        let answer = run(predicted(&served));
        let y = &answer.outputs["y"];
        let floats: &[f32] = if content { &[] } else { &[1.5, -2.0] };
        assert_eq!((y.float_val.as_slice(), y.tensor_content.is_empty()), (floats, !content));
    }
}
