//! The door as clients meet it: over a socket, with the fake engine behind real workers.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::fake::FakeEngine;
use engine::fake::publish::publish;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use crate::config::{Config, SearchConfig};
use crate::exporter;
use crate::loopback::{self, Loopback};

const ECHO: &str = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\n";
const INFER: &str = "/v2/models/echo/infer";
const INPUT: &str = r#""inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2]}]"#;

fn served(dir: &Path, change: impl FnOnce(&mut Config)) -> Loopback {
    publish(&dir.join("models/echo/1"), ECHO, &[]).unwrap();
    let mut config = loopback::configuration(dir, &dir.join("models"));
    change(&mut config);
    Loopback::start(&config, Arc::new(FakeEngine::new()))
}

/// All that comes back until the server closes the connection.
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
    assert!(twice.status == 400 && twice.text().contains("twice"), "{} {}", twice.status, twice.text());
}

#[test]
fn a_body_that_dribbles_loses_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| {
        config.doors.requests_max = 1;
        config.doors.request_timeout = Duration::from_secs(1);
        config.doors.client_timeout = Duration::from_secs(600);
    });
    let mut stream = served.connect();
    write!(stream, "POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n").unwrap();
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

const NEXT: &str = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

#[test]
fn a_refusal_with_little_left_to_read_keeps_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let chunks = "2\r\nab\r\n2\r\ncd\r\n2\r\nef\r\n0\r\n\r\n";
    let head = "POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let said = said(&served, format!("{head}{chunks}{NEXT}").as_bytes());
    assert!(said.starts_with("http/1.1 404") && said.contains("http/1.1 200"), "{said}");
    let first = &said[..said.find("http/1.1 200").unwrap()];
    assert!(!first.contains("connection: close"), "{first}");
}

#[test]
fn a_refusal_with_more_to_come_says_that_it_closes() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    for headers in
        ["Content-Length: 1000000", "Content-Length: 10", "Expect: 100-continue\r\nContent-Length: 10"]
    {
        let head = format!("POST /v2/models/none/infer HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n");
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
    served.app.collections.start().unwrap();
    let own = format!("Origin: http://{}\r\n", served.address);
    let foreign = ["Origin: http://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n", "Origin: null\r\n"];
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
            assert_eq!(served.ask(method, path, headers, body).status, 403, "{method} {path} {headers}");
        }
        assert_ne!(served.ask(method, path, &own, body).status, 403, "{method} {path}");
        assert_ne!(served.ask(method, path, "", body).status, 403, "{method} {path}");
    }
    // Its own name points here: the page looks like ours.
    let rebound = "PUT /collections/c HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n\
                   Connection: close\r\nContent-Length: 2\r\n\r\n{}";
    assert!(said(&served, rebound.as_bytes()).starts_with("http/1.1 403"));
    let program = rebound.replace("Origin: http://evil.example\r\n", "");
    assert!(!said(&served, program.as_bytes()).starts_with("http/1.1 403"), "programs use any name");
    assert_eq!(served.ask("GET", "/collections", foreign[1], b"").status, 200, "looking changes nothing");
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
        assert!(refused.status == 501 && refused.text().contains("millpond.toml"), "{}", refused.text());
    }
    assert_eq!(load(r#""version":1"#).status, 200);
    let unload = br#"{"parameters":{"unload_dependents":true}}"#;
    assert_eq!(served.ask("POST", "/v2/repository/models/echo/unload", "", unload).status, 200);
}

#[test]
fn compressed_bodies_are_understood_within_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.doors.body_bytes_max = 4096);
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
    let packed = [("gzip", gzip(&body), gzip(&large)), ("deflate", deflate(&body), deflate(&large))];
    for (coding, small, bomb) in packed {
        let headers = format!("Content-Encoding: {coding}\r\n");
        assert_eq!(served.ask("POST", INFER, &headers, &small).status, 200, "{coding}");
        assert_eq!(served.ask("POST", INFER, &headers, &bomb).status, 413, "{coding}");
        assert_eq!(served.ask("POST", INFER, &headers, &body).status, 400, "{coding}");
    }
    assert_eq!(served.ask("POST", INFER, "Content-Encoding: br\r\n", &body).status, 400);
}

/// Waits until `what` is so.
#[track_caller]
fn until(what: impl Fn() -> bool) {
    let end = std::time::Instant::now() + loopback::WAIT_MAX;
    while !what() {
        assert!(std::time::Instant::now() < end, "it takes for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn refused(served: &Loopback, kind: &'static str) -> u64 {
    served.app.metrics.refused.get_or_create(&metrics::KindLabels { kind }).get()
}

fn decoded(served: &Loopback) -> [u64; 3] {
    let count = |kind| served.app.metrics.decoded.get_or_create(&metrics::KindLabels { kind }).get();
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
    let served = served(dir.path(), |config| config.doors.request_memory_bytes = Some(1 << 20));
    let memory = &served.app.request_memory;
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
    until(|| memory.used() == 0 && served.app.places_taken() == 0);
    assert_eq!(refused(&served, "request_memory"), 2);
    // A client that goes before its body is there leaves nothing behind.
    let mut stream = served.connect();
    write!(stream, "POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n").unwrap();
    stream.write_all(&[b' '; 100_000]).unwrap();
    until(|| memory.used() > 0);
    drop(stream);
    until(|| memory.used() == 0);
    assert_eq!(served.ask("POST", INFER, "", body.as_bytes()).status, 200);
    until(|| memory.used() == 0);
    assert!(memory.peak() <= 1 << 20);
}

#[test]
fn what_is_unpacked_and_parsed_is_counted_before_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.doors.request_memory_bytes = Some(4 << 20));
    let gzip = |bytes: &[u8]| {
        let mut to = GzEncoder::new(Vec::new(), Compression::default());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    };
    let headers = "Content-Encoding: gzip\r\n";
    // 16 MB of spaces, and 1 MB of strings that take 16 times as much.
    let strings = vec![r#""""#; 300_000].join(",");
    let strings =
        format!(r#"{{"inputs":[{{"name":"x","datatype":"BYTES","shape":[300000],"data":[{strings}]}}]}}"#);
    for bomb in [vec![b' '; 16 << 20], strings.into_bytes()] {
        let refused = served.ask("POST", INFER, headers, &gzip(&bomb));
        assert!(matches!(refused.status, 413 | 429), "{} {}", refused.status, refused.text());
    }
    until(|| served.app.request_memory.used() == 0);
    assert!(served.app.request_memory.peak() <= 4 << 20);
    assert_eq!(decoded(&served)[0], 2);
}

#[test]
fn large_texts_are_not_handled_where_sockets_are_watched() {
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
    assert_eq!(served.ask("POST", "/v2/repository/models/echo/load", "", load.as_bytes()).status, 200);
    // Its values are counted and then read.
    assert_eq!(decoded(&served)[1], 4);
}

#[test]
fn a_client_that_takes_its_answer_too_slowly_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |config| config.doors.answer_window = Duration::from_secs(2));
    let memory = &served.app.request_memory;
    let body = numbers(1_000_000);
    let mut stream = served.connect();
    write!(stream, "POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len()).unwrap();
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
    // Whoever reads gets all of it.
    let whole = served.ask("POST", INFER, "", numbers(100_000).as_bytes());
    assert_eq!((whole.status, whole.json()["outputs"][0]["data"].as_array().unwrap().len()), (200, 100_000));
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
                    let text = exporter::exposition(&served.app);
                    assert!(text.contains("millpond_model_state{model=\"echo\""));
                }
            });
        }
    });
}
