//! HTTP requests over a socket, with the fake engine behind real workers.

mod access;
mod bodies;
mod exposition;
mod health;
mod requests;

use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::fake::FakeEngine;
use engine::fake::publish::publish;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use transport::access::CorsPolicy;

use crate::config::{Config, SearchConfig};
use crate::log_filter::LogFilter;
use crate::loopback::{self, Loopback};
use crate::readiness::ReadinessPolicy;
use crate::surface::Surface;

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

/// Returns a request of `count` numbers in JSON.
fn numbers(count: usize) -> String {
    let data = vec!["0.123456789"; count].join(",");
    format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[{count}],"data":[{data}]}}]}}"#)
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
