//! Limits of request bodies: size, time, memory, compression.

use super::*;

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

/// The deadline counts from the end of the body, as over gRPC.
#[test]
fn a_slow_upload_does_not_shorten_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let infer = format!("{{{INPUT},\"parameters\":{{\"timeout\":1000000}}}}");
    let predict = r#"{"instances":[1.0,2.0]}"#.to_owned();
    let upload = |path: &str, headers: &str, body: &str| {
        let mut stream = served.connect();
        let length = format!("Connection: close\r\nContent-Length: {}\r\n", body.len());
        write!(stream, "POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}{length}\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(1200));
        stream.write_all(body.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    for (path, headers, body) in
        [(INFER, "", infer), ("/v1/models/echo:predict", "Grpc-Timeout: 1S\r\n", predict)]
    {
        // A server that is paused for a second after the upload answers 504 rightly.
        let mut answers = (0..5).map(|_| upload(path, headers, &body));
        let answer = answers.find(|answer| !answer.starts_with("HTTP/1.1 504")).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
}

/// A version is released once its last request has ended.
#[test]
fn an_upload_holds_no_version() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let servable = served.server.core.lifecycle.catalog().get("echo", None).unwrap();
    let memory = &served.server.requests.memory;
    for path in [INFER, "/v1/models/echo:predict"] {
        let holders = Arc::strong_count(&servable);
        let mut stream = served.connect();
        write!(stream, "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n")
            .unwrap();
        stream.write_all(&[b' '; 100_000]).unwrap();
        until(|| memory.used() > 0);
        // The lifecycle may hold it for a moment.
        until(|| Arc::strong_count(&servable) <= holders);
        drop(stream);
        until(|| memory.used() == 0);
    }
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

/// The client reads nothing before it has sent a body that no buffer holds.
#[test]
fn a_client_reads_the_refusal_after_sending_its_body() {
    let dir = tempfile::tempdir().unwrap();
    let served = served(dir.path(), |_| {});
    let refused = served.ask("POST", "/v2/models/none/infer", "", &vec![b' '; 32 << 20]);
    assert_eq!(refused.status, 404, "{}", refused.text());
    assert!(refused.head.contains("connection: close"), "{}", refused.head);
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
    // Only bytes that the connection has taken over are left.
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
