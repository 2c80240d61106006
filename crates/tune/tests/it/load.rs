//! `bench load` counts every scheduled request, with any result.

use std::sync::atomic::Ordering;

use clap::Parser;
use loadgen::BenchEnv;
use serde_json::Value;
use tune::load::{BenchLoadArgs, run};

use crate::target::{Manner, Target};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: BenchLoadArgs,
}

/// Runs `bench load` with `flags` and returns its JSON, or its error.
fn load(target: &Target, scheme: &str, flags: &str) -> Result<Value, String> {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("out.json");
    let hdr = dir.path().join("out.hdr");
    let line = format!(
        "load --model m --url {scheme}://{} --warm-up 0 --batch 3 --json {} --hdr {} {flags}",
        target.address,
        json.display(),
        hdr.display()
    );
    let env = BenchEnv { cache_dir: dir.path().into(), ..Default::default() };
    let outcome = run(&Cli::parse_from(line.split_whitespace()).args, &env);
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!(std::fs::read_to_string(&hdr).unwrap().contains("Total count"));
    outcome.map(|()| report).map_err(|error| error.message().to_owned())
}

/// The scheduled requests of half a second at 400 a second.
const SCHEDULED: u64 = 200;
const OPEN: &str = "--rate 400 --duration 500ms";

#[test]
fn an_open_loop_sends_exactly_its_schedule() {
    for (scheme, grpc) in [("grpc", true), ("http", false)] {
        let target = Target::start(grpc, Manner::Answers);
        let report = load(&target, scheme, OPEN).unwrap();
        assert_eq!(report["n"], SCHEDULED, "{scheme}");
        assert_eq!(
            (&report["failed"], target.taken.load(Ordering::SeqCst)),
            (&Value::from(0), SCHEDULED)
        );
        assert!(report["machine"]["cores"].as_u64().unwrap() > 0);
        assert!(report["noise"]["steal"].is_number() && report["p999_ms"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn refusals_are_counted_with_their_status() {
    for (scheme, grpc, status) in
        [("grpc", true, "gRPC status 8"), ("http", false, "HTTP 503: too busy")]
    {
        let target = Target::start(grpc, Manner::RefusesEach(4));
        let report = load(&target, scheme, OPEN).unwrap();
        assert_eq!(
            (&report["failed"], &report["n"]),
            (&Value::from(SCHEDULED / 4), &Value::from(SCHEDULED * 3 / 4))
        );
        assert!(report["reasons"][0].as_str().unwrap().contains(status), "{}", report["reasons"]);
    }
}

#[test]
fn a_closed_loop_keeps_its_clients_busy() {
    let target = Target::start(true, Manner::Answers);
    let pid = std::process::id();
    let report = load(&target, "grpc", &format!("--clients 3 --duration 3s --pid {pid}")).unwrap();
    assert_eq!(report["n"], target.taken.load(Ordering::SeqCst));
    assert!(
        report["rps"].as_f64().unwrap() > 10.0 && report["server_cpu_us_per_request"].is_number()
    );
}

#[test]
fn a_silent_server_shows_as_failures_not_as_a_quiet_client() {
    let target = Target::start(true, Manner::Silent);
    // All but the four in flight fail at once; those fail when the run's wait for answers ends.
    let error =
        load(&target, "grpc", "--rate 400 --duration 500ms --in-flight 4 --drain 5s").unwrap_err();
    assert!(error.contains("no request succeeded"), "{error}");
    assert_eq!(target.taken.load(Ordering::SeqCst), 4);
}

/// Returns the error of `bench load` with these flags against no server.
fn error_without_server(flags: &str) -> String {
    let line = format!("load --model m --url grpc://127.0.0.1:1 --rate 1 {flags}");
    let env = BenchEnv { cache_dir: "unused".into(), ..Default::default() };
    match Cli::try_parse_from(line.split_whitespace()) {
        Ok(cli) => run(&cli.args, &env).unwrap_err().message().to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn an_absent_server_is_an_error_at_once() {
    let error = error_without_server("");
    assert!(error.contains("cannot connect"), "{error}");
}

#[test]
fn a_process_that_does_not_exist_is_an_error() {
    let error = error_without_server("--pid 4294967295");
    assert!(error.contains("--pid 4294967295: there is no such process"), "{error}");
}

#[test]
fn sizes_of_generated_requests_need_generated_requests() {
    for given in ["--request r.json", "--requests r.jsonl"] {
        for size in ["--batch 32", "--dims 3", "--index-max 9"] {
            let error = error_without_server(&format!("{size} {given}"));
            assert!(error.contains("cannot be used with"), "{given} {size}: {error}");
        }
    }
}
