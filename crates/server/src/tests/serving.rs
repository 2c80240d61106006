//! TensorFlow Serving's API over sockets, on models with several signatures and on models whose
//! settings name scores and values.

use std::path::Path;
use std::sync::Arc;

use base::{NamedTensor, Tensor};
use bytes::Bytes;
use engine::fake::FakeEngine;
use engine::fake::publish::publish;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use metrics::RequestLabels;
use protocol::Message;
use protocol::tensorflow::serving as pb;
use protocol::tensorflow::serving::prediction_service_client::PredictionServiceClient;
use protocol::tfs::{self, Examples};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::config::Config;
use crate::loopback::{self, Loopback, WAIT_MAX, run};

/// A model as estimators export it: signatures for examples and for tensors.
const SIGNED: &str = "millpond-fake 1
signature classify_x tensorflow/serving/classify
input inputs string n
output classes string n 1
output scores float32 n 1
signature regress_x tensorflow/serving/regress
input inputs string n
output outputs float32 n 1
signature serving_default tensorflow/serving/predict
input x float32 n
output y float32 n
signature numbers tensorflow/serving/regress
input inputs float32 n
output outputs float32 n 1
signature twice tensorflow/serving/predict
input x float32 n
output z float32 n
signature other_input tensorflow/serving/classify
input examples string n
output scores float32 n 1
classes = column inputs
scores = lengths inputs
outputs = lengths inputs
y = affine x 0.5 2
z = affine x 2 0
";

/// A model without signatures. Its inputs are features.
const PLAIN: &str = "millpond-fake 1
input age float32 n 2
input word string n 1
output scores float32 n 2
output half float32 n 2
output words string n 1
scores = echo age
half = affine age 0.5 0
words = echo word
";

/// A model with several signatures, of which none is the default one.
const UNNAMED: &str = "millpond-fake 1
signature add tensorflow/serving/predict
input x float32 n
output y float32 n
signature twice tensorflow/serving/predict
input x float32 n
output z float32 n
y = affine x 1 1
z = affine x 2 0
";

const SETTINGS: &str = "[classify]\nscores = \"scores\"\nlabels = [\"young\", \"old\"]\n\
    [examples.defaults]\nword = \"none\"\n";

fn served(dir: &Path, change: impl FnOnce(&mut Config)) -> Loopback {
    let models = dir.join("models");
    publish(&models.join("signed/1"), SIGNED, &[]).unwrap();
    publish(&models.join("plain/3"), PLAIN, &[]).unwrap();
    std::fs::write(models.join("plain/millpond.toml"), SETTINGS).unwrap();
    let mut config = loopback::configuration(dir, &models);
    change(&mut config);
    Loopback::start(&config, Arc::new(FakeEngine::new()))
}

/// Opens a connection with a generated client.
macro_rules! client {
    ($served:expr) => {{
        let stream = tokio::net::TcpStream::connect($served.grpc).await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let sender: SendRequest<Body> = sender;
        let send = tower::service_fn(move |request: http::Request<Body>| {
            let mut sender = sender.clone();
            async move { sender.send_request(request).await }
        });
        let origin = format!("http://{}", $served.grpc).parse().unwrap();
        PredictionServiceClient::with_origin(send, origin)
    }};
}

fn spec(model: &str, signature: &str) -> Option<pb::ModelSpec> {
    Some(pb::ModelSpec {
        name: model.into(),
        signature_name: signature.into(),
        version_choice: None,
    })
}

fn input(examples: &[&'static str], context: &'static str) -> Option<pb::Input> {
    let list = examples.iter().map(|text| Bytes::from_static(text.as_bytes())).collect();
    Some(Examples::new(list, Bytes::from_static(context.as_bytes())).unwrap().into_message())
}

/// Returns the labels and scores of each example.
fn classes(result: Option<pb::ClassificationResult>) -> Vec<Vec<(String, f32)>> {
    let class = |class: pb::Class| (String::from_utf8(class.label.to_vec()).unwrap(), class.score);
    let list = |list: pb::Classifications| list.classes.into_iter().map(class).collect();
    result.unwrap().classifications.into_iter().map(list).collect()
}

fn values(result: Option<pb::RegressionResult>) -> Vec<f32> {
    result.unwrap().regressions.into_iter().map(|regression| regression.value).collect()
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, words: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(words), "{status}\n{words}");
}

/// Returns the count of requests over gRPC that ended with `status`.
fn counted(served: &Loopback, model: &str, version: u64, status: &'static str) -> u64 {
    let labels = RequestLabels { model: model.into(), version, protocol: "tfs-grpc", status };
    served.server.core.metrics.requests.get(&labels).map_or(0, |count| count.get())
}

#[test]
fn predict_runs_the_named_signature() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let ask = |signature: &str| {
        let x = NamedTensor::new("x", Tensor::from_vec(&[2usize][..], vec![1f32, 2.0]).unwrap());
        let target = tfs::grpc::PredictTarget {
            name: "signed".into(),
            signature: signature.into(),
            ..tfs::grpc::PredictTarget::default()
        };
        tfs::grpc::encode_request(&target, &[x], &[])
    };
    run(async {
        let mut client = client!(served);
        for (signature, name, wanted) in [
            ("", "y", [2.5, 3.0]),
            ("serving_default", "y", [2.5, 3.0]),
            ("twice", "z", [2.0, 4.0]),
        ] {
            let answer = client.predict(ask(signature)).await.unwrap().into_inner();
            let shown = answer.model_spec.clone().unwrap().signature_name;
            assert_eq!(shown, if signature.is_empty() { "serving_default" } else { signature });
            let outputs = tfs::grpc::decode_response(answer).unwrap();
            assert_eq!(&*outputs[0].name, name);
            assert_eq!(outputs[0].tensor.to_vec::<f32>().unwrap(), wanted);
        }
        refused(
            client.predict(ask("nothing")).await,
            Code::FailedPrecondition,
            "Serving signature name: \"nothing\" not found in signature def; the model has classify_x",
        );
    });
    assert_eq!(counted(&served, "signed", 1, "failed_precondition"), 1);
    let post = |body: &str| served.ask("POST", "/v1/models/signed:predict", "", body.as_bytes());
    assert_eq!(
        post(r#"{"instances":[1,2],"signature_name":"twice"}"#).json(),
        serde_json::json!({"predictions": [2.0, 4.0]})
    );
    assert_eq!(
        post(r#"{"signature_name":"","inputs":[1]}"#).json(),
        serde_json::json!({"outputs": [2.5]})
    );
    let unknown = post(r#"{"signature_name":"nothing","inputs":[1]}"#);
    assert!(unknown.status == 400 && unknown.text().contains("nothing"), "{}", unknown.text());
}

/// TensorFlow Serving refuses such a request. Another signature could change the model's state.
#[test]
fn no_signature_takes_the_place_of_the_default_one() {
    let dir = tempfile::tempdir().unwrap();
    let models = dir.path().join("models");
    publish(&models.join("unnamed/1"), UNNAMED, &[]).unwrap();
    let (single, _) = UNNAMED.split_once("signature twice").unwrap();
    publish(&models.join("single/1"), &format!("{single}y = affine x 1 1\n"), &[]).unwrap();
    let served = served(dir.path(), |_| {});
    let post = |call: &str, body: &str| {
        served.ask("POST", &format!("/v1/models/{call}"), "", body.as_bytes())
    };
    let answer = post("unnamed:predict", r#"{"inputs":[1]}"#);
    let words = "not found in signature def; the model has add, twice";
    assert!(answer.status == 400 && answer.text().contains(words), "{}", answer.text());
    let answer = post("unnamed:classify", r#"{"examples":[{"x":1.0}]}"#);
    let words = "No signature was found with the name: serving_default";
    assert!(answer.status == 400 && answer.text().contains(words), "{}", answer.text());
    let twice = post("unnamed:predict", r#"{"signature_name":"twice","inputs":[1]}"#);
    assert_eq!(twice.json(), serde_json::json!({"outputs": [2.0]}));
    let only = post("single:predict", r#"{"inputs":[1]}"#);
    assert_eq!(only.json(), serde_json::json!({"outputs": [2.0]}));
}

#[test]
fn a_parameter_names_the_signature() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let ask = |parameters: &str| {
        let body = format!(
            r#"{{"parameters":{parameters},"inputs":[{{"name":"x","datatype":"FP32","shape":[1],"data":[3]}}]}}"#
        );
        served.ask("POST", "/v2/models/signed/infer", "", body.as_bytes())
    };
    assert_eq!(ask(r#"{"signature_name":"twice"}"#).json()["outputs"][0]["data"][0], 6.0);
    assert_eq!(ask("{}").json()["outputs"][0]["data"][0], 3.5);
    let unknown = ask(r#"{"signature_name":"nothing"}"#);
    assert!(unknown.status >= 400 && unknown.text().contains("nothing"), "{}", unknown.text());
}

#[test]
fn metadata_shows_all_signatures() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let metadata = served.ask("GET", "/v1/models/signed/metadata", "", b"").json();
    let shown = &metadata["metadata"]["signature_def"]["signature_def"];
    assert_eq!(shown.as_object().unwrap().len(), 6);
    assert_eq!(shown["classify_x"]["method_name"], "tensorflow/serving/classify");
    assert_eq!(shown["classify_x"]["inputs"]["inputs"]["dtype"], "DT_STRING");
    assert_eq!(shown["twice"]["outputs"]["z"]["dtype"], "DT_FLOAT");
    let plain = served.ask("GET", "/v1/models/plain/versions/3/metadata", "", b"").json();
    let shown = &plain["metadata"]["signature_def"]["signature_def"];
    assert_eq!(shown["serving_default"]["method_name"], "tensorflow/serving/predict");
}

#[test]
fn signatures_for_examples_get_them_serialised() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    run(async {
        let mut client = client!(served);
        let request = pb::ClassificationRequest {
            model_spec: spec("signed", "classify_x"),
            input: input(&["ab", "c"], ""),
        };
        let answer = client.classify(request).await.unwrap().into_inner();
        assert_eq!(answer.model_spec.unwrap().signature_name, "classify_x");
        assert_eq!(classes(answer.result), [[("ab".into(), 2.0)], [("c".into(), 1.0)]]);
        let request = pb::RegressionRequest {
            model_spec: spec("signed", "regress_x"),
            input: input(&["ab", ""], "context-"),
        };
        let answer = client.regress(request).await.unwrap().into_inner();
        assert_eq!(values(answer.result), [10.0, 8.0]);
    });
}

#[test]
fn unfit_signatures_are_refused_in_tensorflows_words() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.listeners.tfs_method_check = true);
    run(async {
        let mut client = client!(served);
        let ask = |model: &str, signature: &str| pb::ClassificationRequest {
            model_spec: spec(model, signature),
            input: input(&["ab"], ""),
        };
        let invalid = Code::InvalidArgument;
        for (signature, code, words) in [
            ("none", invalid, "No signature was found with the name: none"),
            (
                "regress_x",
                invalid,
                "classification signature method_name to be tensorflow/serving/classify",
            ),
            (
                "other_input",
                Code::FailedPrecondition,
                "No classification inputs found in SignatureDef",
            ),
        ] {
            refused(client.classify(ask("signed", signature)).await, code, words);
        }
        refused(client.classify(ask("nowhere", "")).await, Code::NotFound, "nowhere");
        let empty = pb::ClassificationRequest { model_spec: spec("signed", ""), input: None };
        refused(client.classify(empty).await, invalid, "Input is empty");
        let numbers = pb::RegressionRequest {
            model_spec: spec("signed", "numbers"),
            input: input(&["ab"], ""),
        };
        refused(client.regress(numbers).await, invalid, "Expected a string Tensor");
        let regress =
            pb::RegressionRequest { model_spec: spec("plain", ""), input: input(&[""], "") };
        refused(client.regress(regress).await, Code::FailedPrecondition, "has no [regress]");
    });
    assert_eq!(counted(&served, "signed", 1, "invalid_argument"), 4);
    assert_eq!(counted(&served, "signed", 1, "failed_precondition"), 1);
    assert_eq!(counted(&served, "plain", 3, "failed_precondition"), 1);
    assert_eq!(counted(&served, "", 0, "not_found"), 1);
    assert_eq!(counted(&served, "", 0, "invalid_argument"), 0);
}

#[test]
fn one_request_runs_several_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    run(async {
        let mut client = client!(served);
        let task = |model: &str, signature: &str, method: &str| pb::InferenceTask {
            model_spec: spec(model, signature),
            method_name: format!("tensorflow/serving/{method}"),
        };
        let ask = |tasks: Vec<pb::InferenceTask>| pb::MultiInferenceRequest {
            tasks,
            input: input(&["ab", "c"], ""),
        };
        let (one, two) =
            (task("signed", "classify_x", "classify"), task("signed", "regress_x", "regress"));
        let request = ask(vec![two.clone(), one.clone()]);
        let results = client.multi_inference(request).await.unwrap().into_inner().results;
        use pb::inference_result::Result::{ClassificationResult, RegressionResult};
        let [first, second] = &results[..] else { panic!("{results:?}") };
        let Some(RegressionResult(regression)) = first.result.clone() else { panic!("{first:?}") };
        assert_eq!(values(Some(regression)), [2.0, 1.0]);
        assert_eq!(second.model_spec.clone().unwrap().signature_name, "classify_x");
        assert!(matches!(second.result, Some(ClassificationResult(_))));
        let invalid = Code::InvalidArgument;
        for (tasks, code, words) in [
            (vec![], invalid, "no tasks"),
            (
                vec![one.clone(), one.clone()],
                invalid,
                "Duplicate evaluation of signature: classify_x",
            ),
            (vec![one.clone(), task("plain", "", "classify")], invalid, "the same model name"),
            (vec![task("", "", "classify")], invalid, "an empty model name"),
            (
                vec![task("signed", "", "predict")],
                Code::Unimplemented,
                "Unsupported signature method_name",
            ),
        ] {
            refused(client.multi_inference(ask(tasks)).await, code, words);
        }
    });
    assert_eq!(counted(&served, "signed", 1, "invalid_argument"), 1);
    assert_eq!(counted(&served, "signed", 1, "unimplemented"), 1);
    assert_eq!(counted(&served, "", 0, "invalid_argument"), 3);
}

#[test]
fn settings_make_any_model_classify() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let post = |path: &str, body: &str| {
        served.ask("POST", &format!("/v1/models/plain{path}"), "", body.as_bytes())
    };
    let body = r#"{"context":{"word":"w"},"examples":[{"age":[1.5,2.0]},{"age":[0.25,4.0]}]}"#;
    let wanted = serde_json::json!({"results": [
        [["young", 1.5], ["old", 2.0]],
        [["young", 0.25], ["old", 4.0]],
    ]});
    for path in [":classify", "/versions/3:classify", ":CLASSIFY"] {
        let answer = post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json(), wanted);
    }
    let filled = post(":classify", r#"{"examples":[{"age":[1.0,2.0]}]}"#);
    assert_eq!(filled.status, 200, "{}", filled.text());
    for (body, words) in [
        (r#"{"examples":[{"word":"a"}]}"#, "example 0, feature \"age\": it is missing"),
        (r#"{"examples":[{"age":[1.0]}]}"#, "\"age\" has 1 values"),
        (r#"{"examples":[{"age":["a","b"]}]}"#, "bytes values"),
        (r#"{"examples":[]}"#, "empty array"),
        (r#"{"signature_name":"other","examples":[{}]}"#, "No signature was found"),
    ] {
        let answer = post(":classify", body);
        assert_eq!(answer.status, 400, "{body} {}", answer.text());
        assert!(answer.json()["error"].as_str().unwrap().contains(words), "{}", answer.text());
    }
    let regress = post(":regress", body);
    assert!(regress.status == 400 && regress.text().contains("[regress]"), "{}", regress.text());
    // Settings apply without a load.
    let settings = format!("{SETTINGS}[regress]\noutput = \"half\"\n").replace("labels", "#");
    std::fs::write(dir.path().join("models/plain/millpond.toml"), settings).unwrap();
    let shape = "Expected output Tensor shape to be either";
    let begun = std::time::Instant::now();
    while !post(":regress", body).text().contains(shape) {
        assert!(begun.elapsed() < WAIT_MAX, "{}", post(":regress", body).text());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(post(":classify", body).json()["results"][0][1], serde_json::json!(["", 2.0]));
}

#[test]
fn paths_may_have_any_case() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let get = |path: &str| served.ask("GET", path, "", b"");
    assert_eq!(get("/V1/Models/signed/Versions/1/MetaData").status, 200);
    assert_eq!(get("/v1/MODELS/signed").json()["model_version_status"][0]["state"], "AVAILABLE");
    assert_eq!(get("/V1/models/Signed").status, 404, "names keep their case");
    let answer = served.ask("POST", "/V1/models/signed:PREDICT", "", br#"{"instances":[2]}"#);
    assert_eq!(answer.json(), serde_json::json!({"predictions": [3.0]}));
}

#[test]
fn rest_requests_have_deadlines() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/slow/1"), &format!("{PLAIN}run-delay 300\n"), &[]).unwrap();
    std::fs::write(dir.path().join("models/slow/millpond.toml"), "warmup.enabled = false\n")
        .unwrap();
    let served = served(dir.path(), |_| {});
    let body = br#"{"inputs":{"age":[[1,2]],"word":[["a"]]}}"#;
    let ask = |header: &str| served.ask("POST", "/v1/models/slow:predict", header, body);
    assert_eq!(ask("").status, 200);
    assert_eq!(ask("Grpc-Timeout: 20m\r\n").status, 504);
    assert_eq!(ask("Grpc-Timeout: 20S\r\n").status, 200);
    let wrong = ask("Grpc-Timeout: soon\r\n");
    assert!(wrong.status == 400 && wrong.text().contains("Grpc-Timeout"), "{}", wrong.text());
    drop(served);
    let short = |config: &mut Config| {
        config.listeners.rest_timeout = Some(std::time::Duration::from_millis(20));
    };
    let served = self::served(dir.path(), short);
    assert_eq!(served.ask("POST", "/v1/models/slow:predict", "", body).status, 504);
    drop(served);
    // A model's own timeout holds below the server's limit.
    let settings = "warmup.enabled = false\nschedule.timeout = \"20ms\"\n";
    std::fs::write(dir.path().join("models/slow/millpond.toml"), settings).unwrap();
    let long = |config: &mut Config| {
        config.listeners.rest_timeout = Some(std::time::Duration::from_secs(30));
    };
    let served = self::served(dir.path(), long);
    assert_eq!(served.ask("POST", "/v1/models/slow:predict", "", body).status, 504);
}

/// Returns a warm-up file of these records.
fn records(logs: Vec<pb::prediction_log::LogType>) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        let step = |crc: u32| (crc >> 1) ^ (if crc & 1 == 1 { 0x82f6_3b78 } else { 0 });
        let crc = !bytes
            .iter()
            .fold(!0u32, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc)));
        crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let one = |log| {
        let record = pb::PredictionLog { log_type: Some(log) }.encode_to_vec();
        let length = (record.len() as u64).to_le_bytes();
        [&length[..], &sum(&length), &record, &sum(&record)].concat()
    };
    logs.into_iter().flat_map(one).collect()
}

#[test]
fn records_of_all_kinds_warm_a_version_up() {
    use pb::prediction_log::LogType;
    let dir = tempfile::tempdir().unwrap();
    let classify = |signature: &str| {
        let request = pb::ClassificationRequest {
            model_spec: spec("m", signature),
            input: input(&["ab"], ""),
        };
        LogType::ClassifyLog(pb::ClassifyLog { request: Some(request) })
    };
    let task = |signature: &str, method: &str| pb::InferenceTask {
        model_spec: spec("m", signature),
        method_name: format!("tensorflow/serving/{method}"),
    };
    let tasks = vec![task("classify_x", "classify"), task("regress_x", "regress")];
    let multi = pb::MultiInferenceRequest { tasks, input: input(&["c"], "") };
    let regress =
        pb::RegressionRequest { model_spec: spec("m", "regress_x"), input: input(&["c"], "") };
    let good = vec![
        classify("classify_x"),
        LogType::RegressLog(pb::RegressLog { request: Some(regress) }),
        LogType::MultiInferenceLog(pb::MultiInferenceLog { request: Some(multi) }),
        LogType::SessionRunLog(Bytes::new()),
    ];
    let bad = [good.clone(), vec![classify("nothing")]].concat();
    for (model, settings, logs) in [
        ("good", "", good),
        ("bad", "", bad.clone()),
        ("lenient", "fail-on-recorded-error = false\nthreads = 2\n", bad),
    ] {
        let base = dir.path().join("models").join(model);
        publish(&base.join("1"), SIGNED, &[]).unwrap();
        let settings = format!("[warmup]\niterations = 1\n{settings}");
        std::fs::write(base.join("millpond.toml"), settings).unwrap();
        let extra = base.join("1/assets.extra");
        std::fs::create_dir(&extra).unwrap();
        std::fs::write(extra.join("tf_serving_warmup_requests"), records(logs)).unwrap();
    }
    let served = served(dir.path(), |_| {});
    let index = served.ask("POST", "/v2/repository/index", "", b"").json();
    let entry = |name: &str| {
        let found = index.as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap();
        let text = |key: &str| found[key].as_str().unwrap().to_owned();
        (text("state"), text("reason"))
    };
    let note = "1 session_run records of the warm-up file are not replayed";
    assert_eq!(entry("good"), ("READY".into(), note.into()));
    let reason = "recorded warm-up request 4: No signature was found with the name: nothing";
    assert_eq!(entry("bad"), ("UNAVAILABLE".into(), reason.into()));
    assert_eq!(entry("lenient"), ("READY".into(), format!("{note}; left out: {reason}")));
}
