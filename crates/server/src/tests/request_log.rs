//! The request log: requests of every protocol, as a warm-up file of the next version.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{NamedTensor, Tensor};
use bytes::Bytes;
use engine::fake::FakeEngine;
use engine::fake::publish::affine;
use http_body_util::BodyExt;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use metrics::KindLabels;
use observe::{RequestLogConfig, RequestLogFormat};
use protocol::Message;
use protocol::tfs::grpc::{PredictTarget, encode_request};
use serde_json::Value;

use crate::loopback::{self, Answer, Loopback};

const PREDICT: &str = "/v1/models/half:predict";
const WARMUP: &str = "assets.extra/tf_serving_warmup_requests";

fn served(dir: &Path) -> (Loopback, Arc<FakeEngine>) {
    served_as(dir, RequestLogFormat::TfRecord)
}

fn served_as(dir: &Path, format: RequestLogFormat) -> (Loopback, Arc<FakeEngine>) {
    let mut config = loopback::configuration(dir, &dir.join("models"));
    config.data.request_log =
        Some(RequestLogConfig { rate: 1.0, format, ..RequestLogConfig::new(dir.join("log")) });
    let engine = Arc::new(FakeEngine::new());
    (Loopback::start(&config, engine.clone()), engine)
}

fn post(served: &Loopback, path: &str, body: &[u8]) -> Answer {
    served.ask("POST", path, "Content-Type: application/json\r\n", body)
}

/// Sends Predict over gRPC.
fn predict(served: &Loopback) {
    let x = NamedTensor::new("x", Tensor::from_vec(&[1][..], vec![4f32]).unwrap());
    let target = PredictTarget { name: "half".into(), ..PredictTarget::default() };
    let message = encode_request(&target, &[x], &[]).encode_to_vec();
    let length = (message.len() as u32).to_be_bytes();
    let frame = Bytes::from([&[0], &length[..], &message].concat());
    let uri = format!("http://{}/tensorflow.serving.PredictionService/Predict", served.grpc);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(served.grpc).await.unwrap();
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::post(uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let body = http_body_util::Full::new(frame);
        let answer = sender.send_request(request.body(body).unwrap()).await.unwrap();
        assert!(!answer.into_body().collect().await.unwrap().to_bytes().is_empty());
    });
}

fn logged(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join("log")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_logged_file_warms_the_next_version() {
    let dir = tempfile::tempdir().unwrap();
    affine(&dir.path().join("models/half/1"), 0.5, 2.0).unwrap();
    let (first, _engine) = served(dir.path());
    assert_eq!(post(&first, PREDICT, br#"{"instances": [1, 2]}"#).status, 200);
    assert_eq!(post(&first, PREDICT, br#"{"instances": ["no number"]}"#).status, 400);
    let body = br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[3]}]}"#;
    assert_eq!(post(&first, "/v2/models/half/infer", body).status, 200);
    predict(&first);
    let metrics = first.server.core.metrics.clone();
    drop(first);
    let written = metrics.request_log.get_or_create(&KindLabels { kind: "written" }).get();
    assert_eq!((written, logged(dir.path()).len()), (3, 1));

    let second = dir.path().join("models/half/2");
    affine(&second, 0.25, 1.0).unwrap();
    std::fs::create_dir(second.join("assets.extra")).unwrap();
    std::fs::copy(&logged(dir.path())[0], second.join(WARMUP)).unwrap();
    let (second, engine) = served(dir.path());
    let status = &second.server.core.lifecycle.status()[0];
    assert!(status.ready(), "{status:?}");
    // Four rounds of three requests, which make at least ten runs. Generated requests are fewer.
    assert_eq!((engine.counters().runs(), status.versions[0].version), (12, 2));
    let answer = post(&second, PREDICT, br#"{"instances": [4]}"#);
    assert_eq!(answer.json()["predictions"][0], 2.0);
}

/// Serves requests of three protocols and one that fails, and returns their log.
fn json_log(dir: &Path) -> PathBuf {
    affine(&dir.join("models/half/1"), 0.5, 2.0).unwrap();
    let (first, _engine) = served_as(dir, RequestLogFormat::Json);
    assert_eq!(post(&first, PREDICT, br#"{"instances": [1, 2]}"#).status, 200);
    let body = br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[3]}],"outputs":[{"name":"y"}]}"#;
    assert_eq!(post(&first, "/v2/models/half/infer", body).status, 200);
    let wrong = br#"{"inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[3]}]}"#;
    assert_eq!(post(&first, "/v2/models/half/infer", wrong).status, 400);
    predict(&first);
    drop(first);
    let [path] = &logged(dir)[..] else { panic!("one file") };
    path.clone()
}

#[test]
fn a_log_in_json_has_outcomes() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(json_log(dir.path())).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| lines.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("protocol"), ["tfs-http", "oip-http", "oip-http", "tfs-grpc"]);
    assert_eq!(of("status"), ["ok", "ok", "invalid_argument", "ok"]);
    assert_eq!(of("model_name"), ["half"; 4]);
    assert_eq!(of("model_version"), ["1"; 4]);
    assert!(lines.iter().all(|line| line["duration_us"].is_u64() && line["time"].is_string()));
    assert_eq!(lines[1]["inputs"][0]["data"], serde_json::json!([3.0]));
    assert_eq!(lines[1]["response"]["outputs"][0]["data"], serde_json::json!([3.5]));
    assert!(lines[2]["error"].is_string() && lines[2]["response"].is_null());
}

#[test]
fn a_log_in_json_warms_a_version_or_all_of_a_model() {
    for place in ["models/half/2/warmup", "models/half/warmup"] {
        let dir = tempfile::tempdir().unwrap();
        let log = json_log(dir.path());
        affine(&dir.path().join("models/half/2"), 0.25, 1.0).unwrap();
        std::fs::create_dir(dir.path().join(place)).unwrap();
        std::fs::copy(log, dir.path().join(place).join("log.jsonl")).unwrap();
        let (second, engine) = served(dir.path());
        let status = &second.server.core.lifecycle.status()[0];
        assert!(status.ready(), "{place}: {status:?}");
        // Four rounds of the three requests that were answered.
        assert_eq!((engine.counters().runs(), status.versions[0].version), (12, 2), "{place}");
        let note = status.versions[0].note.clone().unwrap_or_default();
        assert!(note.contains("1 requests of the request log"), "{place}: {note}");
    }
}

#[test]
fn a_record_above_the_limit_is_dropped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    affine(&dir.path().join("models/half/1"), 0.5, 2.0).unwrap();
    let mut config = loopback::configuration(dir.path(), &dir.path().join("models"));
    let log = RequestLogConfig::new(dir.path().join("log"));
    config.data.request_log = Some(RequestLogConfig { rate: 1.0, bytes_max: 4096, ..log });
    let served = Loopback::start(&config, Arc::new(FakeEngine::new()));
    let large = format!("{{\"instances\": {:?}}}", vec![1; 5000]);
    for body in [r#"{"instances": [1]}"#, large.as_str(), r#"{"instances": [2]}"#] {
        assert_eq!(post(&served, PREDICT, body.as_bytes()).status, 200);
    }
    let metrics = served.server.core.metrics.clone();
    drop(served);
    let count = |kind| metrics.request_log.get_or_create(&KindLabels { kind }).get();
    assert_eq!((count("written"), count("dropped"), count("failed")), (2, 1, 0));
    let [path] = &logged(dir.path())[..] else { panic!("one file") };
    assert!(std::fs::metadata(path).unwrap().len() <= 4096);
}

#[test]
fn a_models_own_rate_wins() {
    let dir = tempfile::tempdir().unwrap();
    affine(&dir.path().join("models/half/1"), 0.5, 2.0).unwrap();
    std::fs::write(dir.path().join("models/half/millpond.toml"), "request-log-rate = 0").unwrap();
    let (served, _engine) = served(dir.path());
    assert_eq!(post(&served, PREDICT, br#"{"instances": [1]}"#).status, 200);
    drop(served);
    assert!(logged(dir.path()).is_empty());
}
