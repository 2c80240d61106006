//! HTTP requests over a socket, with the fake engine behind real workers.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::fake::FakeEngine;
use engine::fake::publish::publish;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use crate::config::{Config, SearchConfig};
use crate::exporter;
use crate::log_filter::LogFilter;
use crate::loopback::{self, Loopback};
use crate::readiness::ReadinessPolicy;

const ECHO: &str = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\n";
const INFER: &str = "/v2/models/echo/infer";
const INPUT: &str = r#""inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2]}]"#;

fn served(dir: &Path, change: impl FnOnce(&mut Config)) -> Loopback {
    publish(&dir.join("models/echo/1"), ECHO, &[]).unwrap();
    let mut config = loopback::configuration(dir, &dir.join("models"));
    change(&mut config);
    Loopback::start(&config, Arc::new(FakeEngine::new()))
}

/// Returns all bytes until the server closes the connection.
fn said(served: &Loopback, requests: &[u8]) -> String {
    let mut stream = served.connect();
    stream.write_all(requests).unwrap();
    let mut all = Vec::new();
    // A server that closes with bytes unread may reset the connection behind its answer.
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).to_ascii_lowercase()
}

#[test]
fn an_output_is_asked_for_once() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let ask = |outputs: &str| {
        let body = format!("{{{INPUT},\"outputs\":[{outputs}]}}");
        served.ask("POST", INFER, "", body.as_bytes())
    };
    assert_eq!(ask(r#"{"name":"y"}"#).status, 200);
    let twice = ask(r#"{"name":"y"},{"name":"y"}"#);
    assert!(
        twice.status == 400 && twice.text().contains("twice"),
        "{} {}",
        twice.status,
        twice.text()
    );
}

#[test]
fn a_dribbled_body_loses_its_permit() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| {
        config.listeners.requests_max = 1;
        config.listeners.request_timeout = Duration::from_secs(1);
        config.listeners.client_timeout = Duration::from_secs(600);
    });
    let mut stream = served.connect();
    write!(stream, "POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        .unwrap();
    let mut dribbling = stream.try_clone().unwrap();
    let dribble = std::thread::spawn(move || {
        while dribbling.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 408");
    drop(stream);
    dribble.join().unwrap();
    let body = format!("{{{INPUT}}}");
    assert_eq!(served.ask("POST", INFER, "", body.as_bytes()).status, 200);
}

const NEXT: &str = "GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn a_refusal_of_a_short_body_keeps_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let chunks = "2\r\nab\r\n2\r\ncd\r\n2\r\nef\r\n0\r\n\r\n";
    let head = "POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    let said = said(&served, format!("{head}{chunks}{NEXT}").as_bytes());
    assert!(said.starts_with("http/1.1 404") && said.contains("http/1.1 200"), "{said}");
    let first = &said[..said.find("http/1.1 200").unwrap()];
    assert!(!first.contains("connection: close"), "{first}");
}

#[test]
fn a_refusal_of_a_long_body_closes_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    for headers in [
        "Content-Length: 1000000",
        "Content-Length: 10",
        "Expect: 100-continue\r\nContent-Length: 10",
    ] {
        let head =
            format!("POST /v2/models/none/infer HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n");
        let said = said(&served, head.as_bytes());
        assert!(said.starts_with("http/1.1 404"), "{headers}: {said}");
        assert!(said.contains("connection: close"), "{headers}: {said}");
    }
}

#[test]
fn pages_of_other_sites_change_no_collections() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| {
        let directory = Some(dir.path().join("collections"));
        config.search = SearchConfig {
            directory,
            required: true,
            memory_bytes: 128 << 20,
            cache_bytes: 1 << 20,
            threads: 1,
            ..SearchConfig::default()
        };
    });
    served.server.collections.start().unwrap();
    let own = format!("Origin: http://{}\r\n", served.address);
    let foreign =
        ["Origin: http://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n", "Origin: null\r\n"];
    let create = br#"{"vectors":{"size":2,"distance":"Dot"}}"#;
    let changes: [(&str, &str, &[u8]); 8] = [
        ("PUT", "/collections/c", create),
        ("POST", "/collections/c/points/delete", b"{}"),
        ("POST", "/collections/aliases", b"{}"),
        ("DELETE", "/collections/c", b""),
        ("PUT", "/v1/images/c", b"picture"),
        ("POST", "/v1/images/c/rebuild", b"{}"),
        ("POST", "/v1/images/c/search", b"picture"),
        ("DELETE", "/v1/images/c/1", b""),
    ];
    for (method, path, body) in changes {
        for headers in foreign {
            assert_eq!(
                served.ask(method, path, headers, body).status,
                403,
                "{method} {path} {headers}"
            );
        }
        assert_ne!(served.ask(method, path, &own, body).status, 403, "{method} {path}");
        assert_ne!(served.ask(method, path, "", body).status, 403, "{method} {path}");
    }
    // Its own name points here: the page looks like ours.
    let rebound = "PUT /collections/c HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n\
                   Connection: close\r\nContent-Length: 2\r\n\r\n{}";
    assert!(said(&served, rebound.as_bytes()).starts_with("http/1.1 403"));
    let program = rebound.replace("Origin: http://evil.example\r\n", "");
    assert!(
        said(&served, program.as_bytes()).starts_with("http/1.1 403"),
        "a rebound page sends no origin"
    );
    let program = program.replace("evil.example", "localhost");
    assert!(!said(&served, program.as_bytes()).starts_with("http/1.1 403"));
    assert_eq!(
        served.ask("GET", "/collections", foreign[1], b"").status,
        200,
        "looking changes nothing"
    );
}

#[test]
fn a_load_brings_no_settings_along() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let load = |parameters: &str| {
        let body = format!("{{\"parameters\":{{{parameters}}}}}");
        served.ask("POST", "/v2/repository/models/echo/load", "", body.as_bytes())
    };
    for parameters in [r#""config":"{}""#, r#""version":1,"file:1/model.onnx":"b25ueA==""#] {
        let refused = load(parameters);
        assert!(
            refused.status == 501 && refused.text().contains("millpond.toml"),
            "{}",
            refused.text()
        );
    }
    assert_eq!(load(r#""version":1"#).status, 200);
    let unload = br#"{"parameters":{"unload_dependents":true}}"#;
    assert_eq!(served.ask("POST", "/v2/repository/models/echo/unload", "", unload).status, 200);
}

#[test]
fn compressed_bodies_are_read_within_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.listeners.body_bytes_max = 4096);
    let gzip = |bytes: &[u8]| {
        let mut to = GzEncoder::new(Vec::new(), Compression::default());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    };
    let deflate = |bytes: &[u8]| {
        let mut to = ZlibEncoder::new(Vec::new(), Compression::default());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    };
    let body = format!("{{{INPUT}}}").into_bytes();
    let large = vec![b' '; 5000];
    let packed =
        [("gzip", gzip(&body), gzip(&large)), ("deflate", deflate(&body), deflate(&large))];
    for (coding, small, bomb) in packed {
        let headers = format!("Content-Encoding: {coding}\r\n");
        assert_eq!(served.ask("POST", INFER, &headers, &small).status, 200, "{coding}");
        assert_eq!(served.ask("POST", INFER, &headers, &bomb).status, 413, "{coding}");
        assert_eq!(served.ask("POST", INFER, &headers, &body).status, 400, "{coding}");
    }
    assert_eq!(served.ask("POST", INFER, "Content-Encoding: br\r\n", &body).status, 400);
}

/// Waits until the condition holds.
#[track_caller]
fn until(what: impl Fn() -> bool) {
    let end = std::time::Instant::now() + loopback::WAIT_MAX;
    while !what() {
        assert!(std::time::Instant::now() < end, "it takes for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn refused(served: &Loopback, kind: &'static str) -> u64 {
    served.server.core.metrics.refused.get_or_create(&metrics::KindLabels { kind }).get()
}

fn decoded(served: &Loopback) -> [u64; 3] {
    let count = |kind| {
        served.server.core.metrics.decoded.get_or_create(&metrics::KindLabels { kind }).get()
    };
    ["unpack", "decode", "encode"].map(count)
}

/// A request of `count` numbers in JSON.
fn numbers(count: usize) -> String {
    let data = vec!["0.123456789"; count].join(",");
    format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[{count}],"data":[{data}]}}]}}"#)
}

#[test]
fn all_requests_together_stay_within_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.listeners.request_memory_bytes = Some(1 << 20));
    let memory = &served.server.requests.memory;
    let body = numbers(4000);
    assert_eq!(served.ask("POST", INFER, "", body.as_bytes()).status, 200);
    until(|| memory.used() == 0);
    assert!(memory.peak() >= (body.len() + 4000 * 24) as u64, "{}", memory.peak());

    let others = memory.reserve(1_000_000).unwrap();
    let busy = served.ask("POST", INFER, "", body.as_bytes());
    assert_eq!(busy.status, 429, "{}", busy.text());
    assert!(
        busy.head.contains("retry-after: 1") && busy.text().contains("--request-memory"),
        "{}",
        busy.head
    );
    drop(others);
    // Its numbers could never be held.
    let large = served.ask("POST", INFER, "", numbers(60_000).as_bytes());
    assert_eq!(large.status, 413, "{}", large.text());
    until(|| memory.used() == 0 && served.server.requests.admitted() == 0);
    assert_eq!(refused(&served, "request_memory"), 2);
    // A client that disconnects before its body is complete leaves no reservation.
    let mut stream = served.connect();
    write!(stream, "POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n")
        .unwrap();
    stream.write_all(&[b' '; 100_000]).unwrap();
    until(|| memory.used() > 0);
    drop(stream);
    until(|| memory.used() == 0);
    assert_eq!(served.ask("POST", INFER, "", body.as_bytes()).status, 200);
    until(|| memory.used() == 0);
    assert!(memory.peak() <= 1 << 20);
}

#[test]
fn decompressed_and_parsed_bodies_are_counted_first() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.listeners.request_memory_bytes = Some(4 << 20));
    let gzip = |bytes: &[u8]| {
        let mut to = GzEncoder::new(Vec::new(), Compression::default());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    };
    let headers = "Content-Encoding: gzip\r\n";
    // 16 MB of spaces, and 1 MB of strings that take 16 times as much.
    let strings = vec![r#""""#; 300_000].join(",");
    let strings = format!(
        r#"{{"inputs":[{{"name":"x","datatype":"BYTES","shape":[300000],"data":[{strings}]}}]}}"#
    );
    for bomb in [vec![b' '; 16 << 20], strings.into_bytes()] {
        let refused = served.ask("POST", INFER, headers, &gzip(&bomb));
        assert!(matches!(refused.status, 413 | 429), "{} {}", refused.status, refused.text());
    }
    until(|| served.server.requests.memory.used() == 0);
    assert!(served.server.requests.memory.peak() <= 4 << 20);
    assert_eq!(decoded(&served)[0], 2);
}

#[test]
fn large_texts_are_decoded_on_codec_threads() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let small = served.ask("POST", INFER, "", numbers(100).as_bytes());
    assert_eq!((small.status, decoded(&served)), (200, [0, 0, 0]));
    let large = served.ask("POST", INFER, "", numbers(20_000).as_bytes());
    assert_eq!((large.status, decoded(&served)), (200, [0, 1, 1]));
    let rows = format!(r#"{{"instances":[{}]}}"#, vec!["[1.5]"; 20_000].join(","));
    let large = served.ask("POST", "/v1/models/echo:predict", "", rows.as_bytes());
    assert_eq!(decoded(&served)[1], 2, "{}", large.text());
    let load = format!(r#"{{"parameters":{{"version":1}}}}{}"#, " ".repeat(100_000));
    assert_eq!(
        served.ask("POST", "/v2/repository/models/echo/load", "", load.as_bytes()).status,
        200
    );
    // Its values are counted and then read.
    assert_eq!(decoded(&served)[1], 4);
}

#[test]
fn a_slow_reader_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let served =
        served(dir.path(), |config| config.listeners.answer_window = Duration::from_secs(2));
    let memory = &served.server.requests.memory;
    let body = numbers(1_000_000);
    let mut stream = served.connect();
    write!(
        stream,
        "POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    until(|| refused(&served, "slow_reader") == 1);
    // What is left is what the connection has taken over already.
    until(|| memory.used() < 1 << 20);
    let mut taken = Vec::new();
    // The end may come as a reset.
    let _ = stream.read_to_end(&mut taken);
    assert!(taken.starts_with(b"HTTP/1.1 200") && taken.len() < body.len(), "{}", taken.len());
    drop(stream);
    until(|| memory.used() == 0);
    // A client that reads gets the whole answer.
    let whole = served.ask("POST", INFER, "", numbers(100_000).as_bytes());
    assert_eq!(
        (whole.status, whole.json()["outputs"][0]["data"].as_array().unwrap().len()),
        (200, 100_000)
    );
    assert_eq!(refused(&served, "slow_reader"), 1);
}

#[test]
fn scrapes_at_the_same_time_all_see_the_models() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let text = exporter::exposition(&served.server.exporter);
                    assert!(text.contains("millpond_model_state{model=\"echo\""));
                }
            });
        }
    });
}

#[test]
fn models_are_listed_and_wrong_requests_get_hints() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| ());
    let check = |method: &str, path: &str, status: u16, wanted: &str| {
        let answer = served.ask(method, path, "", b"");
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        assert!(answer.text().contains(wanted), "{method} {path}: {}", answer.text());
        answer.head
    };
    for path in ["/v1/models", "/v2/models"] {
        check("GET", path, 200, r#"{"models":["echo"]}"#);
    }
    let head = check("GET", "/favicon.ico", 200, "<svg");
    assert!(head.contains("content-type: image/svg+xml"), "{head}");
    let head = check("GET", "/v1/models/echo:predict", 405, "predict takes POST");
    assert!(head.contains("\r\nallow: post\r\n"), "{head}");
    let head = check("POST", "/v1/models/echo", 405, "did you mean /v1/models/echo:predict?");
    assert!(head.contains("\r\nallow: get\r\n"), "{head}");
    check(
        "POST",
        "/v2/models/echo",
        405,
        "does not take POST; did you mean /v2/models/echo/infer?",
    );
    check(
        "POST",
        "/v2/models/echo/versions/1",
        405,
        "did you mean /v2/models/echo/versions/1/infer?",
    );
    check("GET", INFER, 405, "did you mean POST /v2/models/echo/infer?");
    check("GET", "/doc", 404, "not found: /doc; the API is under /v1/models");
    for path in ["/v2/models/ehco", "/v1/models/ehco"] {
        check("GET", path, 404, r#"no model \"ehco\" is served here; did you mean \"echo\"?"#);
    }
    check("GET", "/v2/models/classifier", 404, r#"is served here; the models are echo""#);
}

/// Returns the answer to `GET path` once `done` accepts it.
fn until_answer(
    served: &Loopback,
    path: &str,
    done: impl Fn(&loopback::Answer) -> bool,
) -> loopback::Answer {
    let started = std::time::Instant::now();
    loop {
        let answer = served.ask("GET", path, "", b"");
        if done(&answer) {
            return answer;
        }
        assert!(started.elapsed() < loopback::WAIT_MAX, "{} {}", answer.status, answer.text());
        std::thread::sleep(Duration::from_millis(5));
    }
}

const READY: &str = "/v2/health/ready";
const BROKEN: &str =
    "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\nfail-load it is broken\n";

#[test]
fn readyz_names_each_model_that_does_not_serve() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["bad", "worse"] {
        publish(&dir.path().join("models").join(name).join("1"), BROKEN, &[]).unwrap();
    }
    let served = served(dir.path(), |_| {});
    let answer = served.ask("GET", "/readyz", "", b"");
    assert_eq!((answer.status, &answer.json()["ready"]), (503, &false.into()));
    let answer = answer.json();
    let models = answer["models"].as_object().unwrap();
    assert_eq!(models.keys().collect::<Vec<_>>(), ["bad", "worse"]);
    assert!(models["worse"].as_str().unwrap().contains("it is broken"), "{answer}");
    assert!(answer["error"].as_str().unwrap().ends_with("; GET /readyz names 1 more"), "{answer}");
    assert_eq!(served.ask("GET", "/livez", "", b"").text(), "healthz check passed");
    served.server.readiness.stop();
    let answer = served.ask("GET", "/readyz", "", b"");
    assert_eq!(answer.json()["error"], "the server is shutting down");
}

#[test]
fn the_policy_chooses_the_models_that_must_serve() {
    let dir = tempfile::tempdir().unwrap();
    publish(&dir.path().join("models/bad/1"), BROKEN, &[]).unwrap();
    for (policy, status, alone) in [
        (ReadinessPolicy::All, 503, 503),
        (ReadinessPolicy::Any, 200, 503),
        (ReadinessPolicy::Server, 200, 200),
    ] {
        let served = served(dir.path(), |config| config.listeners.readiness = policy);
        let statuses = || ["/readyz", READY].map(|path| served.ask("GET", path, "", b"").status);
        assert_eq!(statuses(), [status; 2], "{policy:?}");
        let path = "/v2/repository/models/echo/unload";
        assert_eq!(served.ask("POST", path, "", b"").status, 200);
        assert_eq!(statuses(), [alone; 2], "{policy:?} with the failed model alone");
    }
}

/// A filter of a log that takes all but "wrong".
#[derive(Debug)]
struct FakeFilter(Mutex<String>);

impl LogFilter for FakeFilter {
    fn get(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    fn set(&self, filter: &str) -> base::Result<()> {
        if filter == "wrong" {
            return Err(base::Error::invalid("\"wrong\" is not a level"));
        }
        *self.0.lock().unwrap() = filter.to_owned();
        Ok(())
    }
}

#[test]
fn an_administrator_changes_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| {
        config.log = Some(Arc::new(FakeFilter(Mutex::new("info".to_owned()))));
    });
    let put = |headers: &str, body: &str| served.ask("PUT", "/v1/log", headers, body.as_bytes());
    let shown = || served.ask("GET", "/v1/log", "", b"").json()["filter"].clone();
    let answer = put("", r#"{"filter":"debug"}"#);
    assert_eq!((answer.status, answer.json()), (200, serde_json::json!({ "filter": "debug" })));
    assert_eq!(shown(), "debug");
    let long = format!(r#"{{"filter":"{}"}}"#, "a".repeat(5000));
    for (headers, body, status) in [
        ("", r#"{"filter":"wrong"}"#, 400),
        ("", r#"{"level":"info"}"#, 400),
        ("", long.as_str(), 413),
        ("X-Forwarded-For: 10.0.0.9\r\n", r#"{"filter":"off"}"#, 403),
        ("Origin: http://evil.example\r\n", r#"{"filter":"off"}"#, 403),
    ] {
        assert_eq!(put(headers, body).status, status, "{headers}{body}");
    }
    assert_eq!(shown(), "debug", "a refused change changes nothing");
}

#[test]
fn a_model_that_cannot_serve_makes_the_server_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let models = dir.path().join("models");
    publish(&models.join("bad/1"), BROKEN, &[]).unwrap();
    let served = served(dir.path(), |_| {});
    let answer = served.ask("GET", READY, "", b"");
    assert_eq!((answer.status, &answer.json()["ready"]), (503, &false.into()));
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(
        error.contains("model \"bad\" does not serve") && error.contains("it is broken"),
        "{error}"
    );
    assert_eq!(served.ask("POST", INFER, "", format!("{{{INPUT}}}").as_bytes()).status, 200);

    publish(&models.join("bad/2"), ECHO, &[]).unwrap();
    let answer = until_answer(&served, READY, |answer| answer.status == 200);
    assert_eq!(answer.json(), serde_json::json!({ "ready": true }));

    // The old version serves.
    publish(&models.join("bad/3"), BROKEN, &[]).unwrap();
    let failed = |answer: &loopback::Answer| answer.text().contains("it is broken");
    until_answer(&served, "/v1/models/bad/versions/3", failed);
    assert_eq!(served.ask("GET", READY, "", b"").status, 200);
}

#[test]
fn health_answers_have_bodies() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let json = |path: &str| served.ask("GET", path, "", b"").json();
    assert_eq!(json("/v2/health/live"), serde_json::json!({ "live": true }));
    assert_eq!(json(READY), serde_json::json!({ "ready": true }));
    assert_eq!(json("/v2/models/echo/ready"), serde_json::json!({ "name": "echo", "ready": true }));
}

#[test]
fn routes_of_triton_that_are_not_offered_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    for (method, path) in [
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/cudasharedmemory/region/r/register"),
        ("GET", "/v2/trace/setting"),
        ("GET", "/v2/models/echo/trace/setting"),
        ("POST", "/v2/logging"),
        ("POST", "/v2/models/echo/generate"),
    ] {
        let answer = served.ask(method, path, "", b"");
        assert_eq!(answer.status, 501, "{path}");
        assert!(answer.text().contains("is not offered"), "{}", answer.text());
    }
    assert_eq!(served.ask("GET", "/v2/elsewhere", "", b"").status, 404);
}

#[test]
fn mistakes_in_tensorflow_requests_are_400() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    for (method, path) in [
        ("GET", "/v1/models/echo/elsewhere"),
        ("GET", "/v1/models/echo/versions/18446744073709551615"),
        ("POST", "/v1/models/echo:elsewhere"),
        ("POST", "/v1/models/echo/labels/none:predict"),
    ] {
        let answer = served.ask(method, path, "", br#"{"instances":[1.0]}"#);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
    }
    let signature = br#"{"signature_name":"other","instances":[1.0]}"#;
    assert_eq!(served.ask("POST", "/v1/models/echo:predict", "", signature).status, 400);
    assert_eq!(served.ask("GET", "/v1/models/none", "", b"").status, 404);
}

#[test]
fn the_last_axis_of_one_may_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let column = "millpond-fake 1\ninput x float32 n 1\noutput y float32 n 1\ny = echo x\n";
    publish(&dir.path().join("models/column/1"), column, &[]).unwrap();
    let served = served(dir.path(), |_| {});
    let predict = |body: &str| served.ask("POST", "/v1/models/column:predict", "", body.as_bytes());
    let answer = predict(r#"{"instances":[1.0,2.0,5.0]}"#);
    assert_eq!(answer.json(), serde_json::json!({ "predictions": [1.0, 2.0, 5.0] }));
    let answer = predict(r#"{"instances":[[1.0],[2.0]]}"#);
    assert_eq!(answer.json(), serde_json::json!({ "predictions": [[1.0], [2.0]] }));
    let flat = br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2]}]}"#;
    assert_eq!(served.ask("POST", "/v2/models/column/infer", "", flat).status, 400);
}

#[test]
fn parameters_are_known_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let ask = |parameters: &str| {
        let body = format!("{{{INPUT},\"parameters\":{{{parameters}}}}}");
        served.ask("POST", INFER, "", body.as_bytes())
    };
    for (parameters, status, says) in [
        (r#""sequence_id":7,"sequence_start":true"#, 501, "sequences are not offered"),
        (r#""sequence_id":0,"sequence_start":false,"sequence_end":false"#, 200, ""),
        (r#""temperature":0.5"#, 400, "\\\"temperature\\\""),
        (r#""priority":0,"timeout":1000000"#, 200, ""),
    ] {
        let answer = ask(parameters);
        assert!(
            answer.status == status && answer.text().contains(says),
            "{parameters}: {}",
            answer.text()
        );
    }
}

#[test]
fn a_missing_input_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let answer = served.ask("POST", INFER, "", br#"{"inputs":[]}"#);
    assert!(answer.status == 400 && answer.text().contains("echo/1: "), "{}", answer.text());
}

#[test]
fn scrapers_get_the_format_they_accept() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    assert_eq!(served.ask("POST", INFER, "", format!("{{{INPUT}}}").as_bytes()).status, 200);
    let scrape =
        |accept: &str| served.ask("GET", "/metrics", &format!("Accept: {accept}\r\n"), b"");
    let open = scrape("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(open.head.contains("openmetrics-text") && open.text().ends_with("# EOF\n"));
    let classic = scrape("text/plain;version=0.0.4,*/*;q=0.1");
    assert!(classic.head.contains("text/plain; version=0.0.4"), "{}", classic.head);
    let text = classic.text();
    for line in
        ["# TYPE millpond_requests_total counter", "# TYPE process_start_time_seconds gauge"]
    {
        assert!(text.lines().any(|said| said == line), "{line}: {text}");
    }
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
    let since = text.lines().find_map(|line| line.strip_prefix("process_start_time_seconds "));
    assert!(since.unwrap().parse::<f64>().unwrap() > 1.6e9);
}

#[test]
fn uneven_batch_sizes_are_the_clients_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let pair =
        "millpond-fake 1\ninput a float32 n\ninput b float32 m\noutput y float32 k\ny = echo a\n";
    publish(&dir.path().join("models/pair/1"), pair, &[]).unwrap();
    publish(&dir.path().join("models/broken/1"), &format!("{pair}fail-run sizes\n"), &[]).unwrap();
    let served = served(dir.path(), |_| {});
    let ask = |model: &str, body: &str| {
        let path = format!("/v1/models/{model}:predict");
        served.ask("POST", &path, "", body.as_bytes())
    };
    let (even, uneven) =
        (r#"{"inputs":{"a":[5.0,6.0],"b":[1.0,2.0]}}"#, r#"{"inputs":{"a":[5.0,6.0],"b":[1.0]}}"#);
    assert_eq!(
        (ask("pair", even).status, ask("pair", uneven).status),
        (200, 200),
        "a model may take it"
    );
    assert_eq!(ask("broken", even).status, 500);
    let refused = ask("broken", uneven);
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("differ in batch size"), "{}", refused.text());
}

#[test]
fn pages_of_other_sites_are_let_in_if_configured() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.listeners.cors = true);
    let address = served.address;
    let preflight = format!(
        "OPTIONS /v1/models/echo:predict HTTP/1.1\r\nHost: {address}\r\nOrigin: http://a.example\r\nConnection: \
         close\r\n\r\n"
    );
    let text = said(&served, preflight.as_bytes());
    assert!(text.starts_with("http/1.1 200"), "{text}");
    for header in [
        "access-control-allow-origin: *",
        "access-control-allow-methods: post, get",
        "access-control-allow-headers: content-type",
    ] {
        assert!(text.contains(header), "{text}");
    }
    let metrics = format!(
        "GET /metrics HTTP/1.1\r\nHost: {address}\r\nOrigin: http://a.example\r\nConnection: close\r\n\r\n"
    );
    let text = said(&served, metrics.as_bytes());
    assert!(!text.contains("access-control"), "only routes of models: {text}");
}

#[test]
fn metrics_have_the_names_of_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let served =
        served(dir.path(), |config| config.listeners.tfs_metrics = Some("/other/path".to_owned()));
    let body = br#"{"instances": [1.0, 2.0]}"#;
    assert_eq!(served.ask("POST", "/v1/models/echo:predict", "", body).status, 200);
    assert_eq!(served.ask("POST", "/v1/models/echo:predict", "", b"{}").status, 400);
    let text = served.ask("GET", "/other/path", "", b"").text();
    for line in [
        ":tensorflow:serving:request_count{model_name=\"echo\",status=\"OK\"} 1",
        ":tensorflow:serving:request_count{model_name=\"echo\",status=\"INVALID_ARGUMENT\"} 1",
        ":tensorflow:serving:runtime_latency_count{model_name=\"echo\",API=\"Predict\",runtime=\"fake\"} 1",
        ":tensorflow:serving:model_warmup_latency_count{model_path=\"echo/1\",status=\"OK\"} 1",
        "# TYPE millpond_requests_total counter",
    ] {
        assert!(text.contains(line), "{line} not in\n{text}");
    }
}
