//! `millpond verify` with two real servers and the requests that a third one has logged.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::program::{Run, check_error, run};
use crate::serve::{Server, publish};

fn served(dir: &Path, factor: f32, arguments: &[&str]) -> Server {
    publish(dir, factor);
    let models = dir.join("models");
    let arguments = [&[models.to_str().unwrap()][..], arguments].concat();
    let server = Server::start_logged(&arguments, Stdio::null());
    server.wait_until("ready", &["models", "status", "half_plus_two"], |run| run.code == 0);
    server
}

/// Logs three requests and returns their file.
pub(crate) fn recorded(dir: &Path) -> PathBuf {
    recorded_as(dir, "tfrecord")
}

fn recorded_as(dir: &Path, format: &str) -> PathBuf {
    let log = dir.join("log");
    let arguments = ["--request-log", log.to_str().unwrap(), "--request-log-rate", "1"];
    let arguments = [&arguments[..], &["--request-log-format", format]].concat();
    let server = served(&dir.join("first"), 0.5, &arguments);
    for x in ["x=[1,2]", "x=[3]", "x=[0]"] {
        assert_eq!(server.client(&["infer", "half_plus_two", x]).code, 0);
    }
    assert_eq!(server.terminate(), Some(0));
    let files: Vec<_> = std::fs::read_dir(log).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    files[0].clone()
}

fn verify(against: &Server, server: &Server, more: &[&str]) -> Run {
    let address = |server: &Server| server.grpc.trim_start_matches("grpc://").to_owned();
    let (against, server) = (address(against), address(server));
    let arguments = ["verify", "--against", &against, "--server", &server, "--duration", "200ms"];
    run(&[&arguments[..], more].concat())
}

#[test]
fn answers_and_latencies_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["first", "right", "same", "other"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    let file = recorded(dir.path());
    let requests = ["--requests", file.to_str().unwrap()];
    let right = served(&dir.path().join("right"), 0.5, &[]);
    let same = served(&dir.path().join("same"), 0.5, &[]);
    let other = served(&dir.path().join("other"), 0.6, &[]);

    let json = dir.path().join("report.json");
    let more = [&requests[..], &["--rounds", "2", "--json", json.to_str().unwrap()]].concat();
    let equal = verify(&right, &same, &more);
    assert_eq!(equal.code, 0, "{equal:?}");
    assert!(equal.stdout.starts_with("3 requests, 3 compared, 0 differ"), "{equal:?}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!((&report["differing"], &report["requests"]), (&0.into(), &3.into()));
    for side in ["server", "against"] {
        assert!(report[side]["latency"]["n"].as_u64() > Some(0), "{report}");
        assert!(report[side]["latency"]["p999_ms"].as_f64() > Some(0.0), "{report}");
        assert_eq!((&report[side]["failed"], &report[side]["wrong"]), (&0.into(), &0.into()));
    }

    // 0.6 x 1 + 2 is not 0.5 x 1 + 2; the request with x = 0 has the same answer.
    let different = verify(&right, &other, &[&requests[..], &["--rate", "200"]].concat());
    assert_eq!(different.code, 4, "{different:?}");
    assert!(different.stdout.starts_with("3 requests, 3 compared, 2 differ"), "{different:?}");
    let line = "request 0 (model \"half_plus_two\") output \"y\" element 0: 2.5999";
    assert!(different.stdout.contains(line), "{different:?}");
    let tolerant = verify(&right, &other, &[&requests[..], &["--tolerance", "0.5"]].concat());
    assert_eq!(tolerant.code, 0, "{tolerant:?}");

    let refused = verify(&right, &same, &[&requests[..], &["--model", "none"]].concat());
    assert!(refused.stdout.contains("3 requests were refused by both servers"), "{refused:?}");
    let first = "the first of them: request 0 (model \"none\"): ";
    let line = refused.stdout.lines().find(|line| line.starts_with(first)).unwrap();
    assert!(line.contains("no model \"none\" is served here"), "{line}");
    assert_eq!(refused.code, 1, "{refused:?}");
}

#[test]
fn mistakes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "no records").unwrap();
    let path = file.to_str().unwrap();
    let flags = ["verify", "--against", "127.0.0.1:1", "--requests"];
    check_error(&[&flags[..], &[path]].concat(), 1, "record 0: the file ends in the middle of it");
    check_error(&[&flags[..], &["/none"]].concat(), 1, "/none");
    check_error(&[&flags[..], &[path, "--tolerance=-1"]].concat(), 2, "--tolerance");
    let http = ["verify", "--against", "http://127.0.0.1:1", "--requests", path];
    check_error(&http, 2, "give the gRPC address");
}

/// A log in JSON is compared, replayed as load, and warms a version up.
#[test]
fn a_log_in_json_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["first", "right", "warmed"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    let file = recorded_as(dir.path(), "json");
    assert_eq!(file.extension().unwrap(), "jsonl");
    let right = served(&dir.path().join("right"), 0.5, &[]);
    let warmup = dir.path().join("warmed/models/half_plus_two/warmup");
    std::fs::create_dir_all(&warmup).unwrap();
    std::fs::copy(&file, warmup.join("log.jsonl")).unwrap();
    let warmed = served(&dir.path().join("warmed"), 0.5, &[]);

    let requests = ["--requests", file.to_str().unwrap()];
    let equal = verify(&right, &warmed, &requests);
    assert_eq!(equal.code, 0, "{equal:?}");
    assert!(equal.stdout.starts_with("3 requests, 3 compared, 0 differ"), "{equal:?}");

    let url = &warmed.grpc;
    let load = ["bench", "load", "--url", url, "--model", "half_plus_two", "--clients", "1"];
    let short = ["--duration", "1s", "--warm-up", "0s"];
    let json = dir.path().join("load.json");
    let written = ["--json", json.to_str().unwrap()];
    let run = run(&[&load[..], &short, &requests, &written].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!(report["n"].as_u64() > Some(0), "{report}");
    assert_eq!(report["failed"], 0);
}
