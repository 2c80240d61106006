//! The routes of audio over a socket, with the fake engine behind real workers. A recording here
//! has 1000 samples per second, and the model's score for each sample is the sample itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::fake::FakeEngine;
use engine::fake::publish::publish;
use serde_json::Value;

use crate::config::Config;
use crate::loopback::{self, Answer, Loopback, WAIT_MAX};

const RATE: u32 = 1000;

const LOUD: &str = "millpond-fake 1\ninput x float32 n 1\noutput y float32 n 1\ny = echo x\n";
const LOUD_SETTINGS: &str = r#"
[recogniser]
title = "Loud places"
kind = "events"
rate = 1000
window = 1
hop = 1
batch = 256
features = { kind = "raw" }
output = { name = "y", classes = ["loud"] }
events = { on = 0.5, off = 0.35, min = "0ms", gap = "0ms", pad = "0ms" }
"#;

const VOICE: &str = "millpond-fake 1\ninput x float32 n 4\noutput y float32 n 4\ny = echo x\n";
const VOICE_SETTINGS: &str = r#"
[recogniser]
title = "Voices"
kind = "embeddings"
rate = 1000
window = 4
hop = 4
batch = 8
features = { kind = "raw" }
embeddings = { threshold = 0.6 }
"#;

/// A server and its directories.
struct Served {
    loopback: Loopback,
    fake: FakeEngine,
    _dirs: tempfile::TempDir,
}

impl std::ops::Deref for Served {
    type Target = Loopback;

    fn deref(&self) -> &Loopback {
        &self.loopback
    }
}

fn served(change: impl FnOnce(&mut Config)) -> Served {
    let dirs = tempfile::tempdir().unwrap();
    let root = dirs.path().join("models");
    let place = |name: &str, graph: &str, settings: &str| {
        publish(&root.join(name).join("1"), graph, &[]).unwrap();
        std::fs::write(root.join(name).join("millpond.toml"), settings).unwrap();
    };
    place("loud", LOUD, LOUD_SETTINGS);
    place("voice", VOICE, VOICE_SETTINGS);
    place("plain", LOUD, "");
    place("broken", LOUD, "[recogniser]\nkind = \"riddles\"\n");
    let mut config = loopback::configuration(dirs.path(), &root);
    // These limits do not apply to recordings, which are all larger and longer here.
    config.listeners.body_bytes_max = 16;
    config.listeners.request_timeout = Duration::from_millis(1);
    config.audio.speakers_dir = Some(dirs.path().join("speakers"));
    change(&mut config);
    let fake = FakeEngine::new();
    Served { loopback: Loopback::start(&config, Arc::new(fake.clone())), fake, _dirs: dirs }
}

/// Returns a WAV file of these samples. If `endless`, its header has no length, as that of a
/// recording in progress.
fn wave(samples: &[f32], endless: bool) -> Vec<u8> {
    let bytes = samples.len() as u32 * 2;
    let (riff, data) = if endless { (u32::MAX, u32::MAX) } else { (36 + bytes, bytes) };
    let mut file = b"RIFF".to_vec();
    file.extend(riff.to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend(RATE.to_le_bytes());
    file.extend((RATE * 2).to_le_bytes());
    file.extend(b"\x02\0\x10\0data");
    file.extend(data.to_le_bytes());
    file.extend(samples.iter().flat_map(|sample| ((sample * 32_767.0) as i16).to_le_bytes()));
    file
}

/// Returns `seconds` of silence with one loud second from `at`.
fn loud_at(at: usize, seconds: usize) -> Vec<f32> {
    let rate = RATE as usize;
    (0..seconds * rate)
        .map(|n| if (at * rate..(at + 1) * rate).contains(&n) { 0.8 } else { 0.0 })
        .collect()
}

/// Returns the lines of one type.
trait Lines {
    fn lines(&self, kind: &str) -> Vec<Value>;
}

impl Lines for Answer {
    fn lines(&self, kind: &str) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["type"] == kind).collect()
    }
}

impl Served {
    fn ask(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> Answer {
        self.loopback.ask(method, path, &format!("Content-Type: {content_type}\r\n"), body)
    }

    fn post(&self, path: &str, body: &[u8]) -> Answer {
        self.ask("POST", path, "application/octet-stream", body)
    }

    /// Begins a recording in chunks, of which none is sent yet.
    fn begin(&self, path: &str) -> TcpStream {
        let mut stream = self.connect();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: audio/wav\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    fn until_active(&self, count: usize) {
        let deadline = Instant::now() + WAIT_MAX;
        while self.server.audio.active() != count {
            assert!(Instant::now() < deadline, "never {count} recordings");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn chunk(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).unwrap();
    stream.write_all(bytes).unwrap();
    stream.write_all(b"\r\n").unwrap();
}

/// Reads until `wanted` has arrived.
fn read_until(stream: &mut TcpStream, all: &mut Vec<u8>, wanted: &str) {
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(all).contains(wanted) {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "no {wanted} in {}", String::from_utf8_lossy(all));
        all.extend_from_slice(&buffer[..count]);
    }
}

fn close_to(value: &Value, wanted: f64) {
    let value = value.as_f64().unwrap();
    assert!((value - wanted).abs() < 0.05, "{value} is not {wanted}");
}

fn form(file_name: &str, file: &[u8]) -> Vec<u8> {
    let head = format!(
        "--edge\r\nContent-Disposition: form-data; name=\"f\"; filename=\"{file_name}\"\r\n\r\n"
    );
    [head.as_bytes(), file, b"\r\n--edge--\r\n"].concat()
}

#[test]
fn a_recording_becomes_labels_in_every_format() {
    let served = served(|_| {});
    let file = wave(&loud_at(3, 10), false);
    let raw = served.post("/v1/audio/loud", &file);
    assert!(raw.status == 200 && raw.head.contains("application/x-ndjson"), "{}", raw.text());
    assert!(raw.head.contains("x-accel-buffering: no"), "{}", raw.head);
    let labels = raw.lines("label");
    assert_eq!(labels.len(), 1);
    close_to(&labels[0]["start"], 3.0);
    close_to(&labels[0]["end"], 4.0);
    assert_eq!(labels[0]["text"], "loud");
    let last: Value = serde_json::from_str(raw.text().lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["type"], &last["labels"], &last["partial"]),
        (&"summary".into(), &1.into(), &false.into())
    );
    close_to(&last["seconds"], 10.0);
    let sent = served.ask(
        "POST",
        "/v1/audio/loud?spool=1",
        "multipart/form-data; boundary=edge",
        &form("a.wav", &file),
    );
    assert_eq!(sent.lines("label"), labels);
    for (format, word) in [
        ("json", "\"loud\""),
        ("csv", "loud"),
        ("srt", "-->"),
        ("rttm", "loud"),
        ("audacity", "loud"),
    ] {
        let answer = served.post(&format!("/v1/audio/loud?format={format}"), &file);
        assert!(
            answer.status == 200 && answer.text().contains(word),
            "{format}: {}",
            answer.text()
        );
    }
    // A permit is freed just after the last byte of its response.
    served.until_active(0);
    let metrics = served.ask("GET", "/metrics", "", b"");
    assert!(
        metrics.text().contains("millpond_recordings_total{recogniser=\"loud\",outcome=\"ok\"} 7")
    );
    assert!(
        metrics.text().contains("millpond_recording_seconds_total{model=\"loud\"} 70"),
        "{}",
        metrics.text()
    );
    assert!(metrics.text().contains("millpond_recordings_active 0"));
}

#[test]
fn results_arrive_during_the_upload() {
    let served = served(|_| {});
    let file = wave(&loud_at(3, 120), true);
    let mut stream = served.begin("/v1/audio/loud");
    let (first, rest) = file.split_at(file.len() / 2);
    chunk(&mut stream, first);
    let mut all = Vec::new();
    read_until(&mut stream, &mut all, "\"label\"");
    chunk(&mut stream, rest);
    stream.write_all(b"0\r\n\r\n").unwrap();
    stream.read_to_end(&mut all).unwrap();
    let answer = Answer::parse(&all);
    assert_eq!(answer.lines("label").len(), 1);
    close_to(&answer.lines("summary")[0]["seconds"], 120.0);
}

#[test]
fn labels_arrive_while_the_upload_pauses() {
    let served = served(|config| config.listeners.client_timeout = WAIT_MAX);
    let file = wave(&loud_at(1, 10), true);
    let head = file.len() - 10 * 2 * RATE as usize;
    // The whole label, and not enough samples for another full run.
    let (first, rest) = file.split_at(head + 2 * 4100);
    let mut stream = served.begin("/v1/audio/loud");
    chunk(&mut stream, first);
    let mut all = Vec::new();
    read_until(&mut stream, &mut all, "\"label\"");
    chunk(&mut stream, rest);
    stream.write_all(b"0\r\n\r\n").unwrap();
    stream.read_to_end(&mut all).unwrap();
    let answer = Answer::parse(&all);
    assert_eq!(answer.lines("label").len(), 1);
    close_to(&answer.lines("label")[0]["end"], 2.0);
    close_to(&answer.lines("summary")[0]["seconds"], 10.0);
    // No thread remains after a silent client disconnects.
    let mut stream = served.begin("/v1/audio/loud");
    chunk(&mut stream, first);
    read_until(&mut stream, &mut Vec::new(), "\"label\"");
    served.until_active(1);
    drop(stream);
    served.until_active(0);
}

#[test]
fn an_error_arrives_while_the_upload_pauses() {
    let served = served(|config| config.listeners.client_timeout = WAIT_MAX);
    served.fake.fail_runs(1000);
    let mut stream = served.begin("/v1/audio/loud");
    chunk(&mut stream, &wave(&loud_at(1, 60), true));
    read_until(&mut stream, &mut Vec::new(), "internal");
    // The reader may have ended (it had more samples when the run failed) or wait for the rest.
    assert!(served.server.audio.active() <= 1);
    drop(stream);
    served.until_active(0);
}

#[test]
fn wrong_requests_are_refused_with_a_status() {
    let served = served(|config| config.audio.bytes_max = 100_000);
    let file = wave(&loud_at(0, 2), false);
    for (path, status) in [
        ("/v1/audio/nobody", 404),
        ("/v1/audio/plain", 404),
        ("/v1/audio/broken", 409),
        ("/v1/audio/loud?format=opera", 400),
        ("/v1/audio/loud?colour=red", 400),
        ("/v1/audio/loud/identify", 409),
        ("/v1/audio/voice/identify?threshold=0.9", 400),
        ("/v1/audio/voice/verify/Ada?threshold=0.9", 400),
    ] {
        let answer = served.post(path, &file);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(answer.json()["error"].is_string());
    }
    assert_eq!(
        served.post("/v1/audio/loud", b"<html>This is no recording, but a page.</html>").status,
        400
    );
    assert_eq!(served.post("/v1/audio/loud", b"").status, 400);
    assert_eq!(served.post("/v1/audio/loud", &vec![0; 200_000]).status, 413);
    assert_eq!(served.ask("POST", "/v1/audio/loud", "text/html", b"x").status, 400);
    served.until_active(0);
}

#[test]
fn permits_are_bounded_and_freed_by_disconnected_clients() {
    let served = served(|config| config.audio.recordings_max = 1);
    let mut stream = served.begin("/v1/audio/loud");
    chunk(&mut stream, &wave(&loud_at(3, 60), true));
    served.until_active(1);
    let refused = served.post("/v1/audio/loud", &wave(&loud_at(0, 2), false));
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.head.contains("retry-after: 2"), "{}", refused.head);
    let metrics = served.ask("GET", "/metrics", "", b"");
    assert!(metrics.text().contains("millpond_refused_total{kind=\"recordings_max\"} 1\n"));
    drop(stream);
    served.until_active(0);
    assert_eq!(served.post("/v1/audio/loud", &wave(&loud_at(0, 2), false)).status, 200);
}

#[test]
fn a_disconnected_client_ends_its_queued_runs() {
    let served = served(|_| {});
    served.fake.run_gate().close();
    let mut stream = served.begin("/v1/audio/loud");
    chunk(&mut stream, &wave(&loud_at(3, 60), true));
    served.until_active(1);
    drop(stream);
    served.fake.run_gate().open();
    served.until_active(0);
    let metrics = served.ask("GET", "/metrics", "", b"");
    assert!(
        metrics
            .text()
            .contains("millpond_recordings_total{recogniser=\"loud\",outcome=\"cancelled\"} 1")
    );
}

#[test]
fn a_client_that_reads_only_at_the_end_gets_its_answer() {
    // Refused at once, and answered while megabytes still arrive.
    let served = served(|_| {});
    let bytes = vec![0; 20 << 20];
    for (method, path, content_type, status) in [
        ("POST", "/v1/audio/nobody", "audio/wav", 404),
        ("POST", "/v1/audio/loud", "text/html", 400),
        ("POST", "/v1/audio/loud?format=table", "audio/wav", 400),
        ("POST", "/v1/audio/loud/identify", "audio/wav", 409),
        ("POST", "/v1/audio/voice/verify/nobody", "audio/wav", 404),
        ("PUT", "/v1/audio/loud/speakers/ada", "audio/wav", 409),
    ] {
        let refused = served.ask(method, path, content_type, &bytes);
        assert_eq!(refused.status, status, "{path} as {content_type}");
    }
    let file = wave(&loud_at(3, 60), false);
    let trailing = [&file[..], &vec![0; 20 << 20][..]].concat();
    assert_eq!(served.post("/v1/audio/loud", &trailing).lines("label").len(), 1);
}

#[test]
fn a_silent_client_gets_an_error() {
    // Begins with the head of the request, after which the chunk follows at once.
    let served = served(|config| config.listeners.client_timeout = Duration::from_secs(1));
    let file = wave(&loud_at(3, 60), true);
    let mut stream = served.begin("/v1/audio/loud");
    chunk(&mut stream, &file);
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let answer = Answer::parse(&all);
    let told = answer.status == 408 || answer.lines("error")[0]["kind"] == "client_timeout";
    assert!(told, "{}", answer.text());
    served.until_active(0);
}

#[test]
fn a_failed_run_is_reported_in_the_response() {
    let served = served(|_| {});
    served.fake.fail_runs(1000);
    let answer = served.post("/v1/audio/loud", &wave(&loud_at(3, 60), false));
    let told = answer.status == 500 || answer.lines("error")[0]["kind"] == "internal";
    assert!(told, "{} {}", answer.status, answer.text());
}

#[test]
fn recognisers_are_listed_and_described() {
    let served = served(|_| {});
    let list = served.ask("GET", "/v1/audio", "", b"").json();
    let names: Vec<&str> = list["recognisers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["broken", "loud", "voice"]);
    let loud = &list["recognisers"][1];
    assert_eq!(
        (&loud["kind"], &loud["rate"], &loud["title"]),
        (&"events".into(), &1000.into(), &"Loud places".into())
    );
    assert_eq!(loud["classes"][0], "loud");
    assert!(list["recognisers"][0]["error"].as_str().unwrap().contains("broken"));
    assert_eq!(served.ask("GET", "/v1/audio/openapi.json", "", b"").json()["openapi"], "3.1.0");
    let page = served.ask("GET", "/audio", "", b"");
    assert!(page.text().contains("page-audio.js") && page.head.contains("media-src blob:"));
    assert_eq!(served.ask("DELETE", "/v1/audio/loud", "", b"").status, 405);
}

#[test]
fn a_key_sees_only_its_recognisers() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.toml");
    let hash = blake3::hash(b"loud-only").to_hex();
    let entry = format!(
        "[[keys]]\nname = \"a\"\nhash = \"blake3:{hash}\"\nrole = \"infer\"\nmodels = [\"loud\"]\n"
    );
    std::fs::write(&keys, entry).unwrap();
    let served = served(|config| config.listeners.keys = Some(keys));
    let list = served.loopback.ask("GET", "/v1/audio", "api-key: loud-only\r\n", b"").json();
    let listed = list["recognisers"].as_array().unwrap_or_else(|| panic!("{list}"));
    assert_eq!(listed.len(), 1, "{list}");
    assert_eq!(listed[0]["name"], "loud");
}

/// Returns a voice, which is one of four samples.
fn voice(place: usize, seconds: usize) -> Vec<u8> {
    let samples: Vec<f32> =
        (0..seconds * RATE as usize).map(|n| if n % 4 == place { 0.9 } else { 0.01 }).collect();
    wave(&samples, false)
}

#[test]
fn speakers_are_enrolled_identified_and_forgotten() {
    let served = served(|_| {});
    let nobody = served.post("/v1/audio/voice/identify", &voice(0, 4)).json();
    assert_eq!((&nobody["speaker"], &nobody["accepted"]), (&Value::Null, &false.into()));
    for (name, place) in [("Ada", 0), ("Bo%20K", 1)] {
        let path = format!("/v1/audio/voice/speakers/{name}");
        let enrolled = served.ask("PUT", &path, "audio/wav", &voice(place, 4));
        assert_eq!(enrolled.status, 200, "{}", enrolled.text());
    }
    // A wrong name is refused before the recording is read.
    let unnamed = served.ask("PUT", "/v1/audio/voice/speakers/%20", "audio/wav", b"no recording");
    assert_eq!(unnamed.status, 400);
    assert!(unnamed.text().contains("a speaker's name has"), "{}", unnamed.text());
    let known = served.ask("GET", "/v1/audio/voice/speakers", "", b"").json();
    assert_eq!(known["speakers"], serde_json::json!(["Ada", "Bo K"]));
    let found = served.post("/v1/audio/voice/identify", &voice(1, 8)).json();
    assert_eq!((&found["speaker"], &found["accepted"]), (&"Bo K".into(), &true.into()));
    let stranger = served.post("/v1/audio/voice/verify/Ada", &voice(2, 8)).json();
    assert_eq!(stranger["accepted"], false, "{stranger}");
    assert_eq!(served.post("/v1/audio/voice/verify/Ada", &voice(0, 8)).json()["accepted"], true);
    assert_eq!(served.post("/v1/audio/voice/verify/Cy", &voice(0, 8)).status, 404);
    let labels = served.post("/v1/audio/voice", &voice(0, 8)).lines("label");
    assert!(!labels.is_empty() && labels.iter().all(|label| label["text"] == "Ada"), "{labels:?}");
    let labels = served.post("/v1/audio/voice?embeddings=1", &voice(0, 8)).lines("label");
    assert_eq!(labels[0]["embedding"].as_array().unwrap().len(), 4);
    assert_eq!(served.ask("DELETE", "/v1/audio/voice/speakers/Ada", "", b"").status, 200);
    assert_eq!(served.ask("DELETE", "/v1/audio/voice/speakers/Ada", "", b"").status, 404);
    assert_eq!(
        served.ask("GET", "/v1/audio/voice/speakers", "", b"").json()["speakers"],
        serde_json::json!(["Bo K"])
    );
    let other = "PUT /v1/audio/voice/speakers/Eve HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let mut stream = served.connect();
    stream.write_all(other.as_bytes()).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(Answer::parse(&all).status, 403);
}
