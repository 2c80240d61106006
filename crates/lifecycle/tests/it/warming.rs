//! Versions are exercised before they take requests.

use std::path::Path;
use std::sync::Arc;

use base::{NamedTensor, Result, Signature};
use lifecycle::{State, WarmupSource};

use crate::world::{MIB, Setting, World, input};

/// Recorded requests: as many as there are lines in the version's file "recorded".
struct Recorded;

impl WarmupSource for Recorded {
    fn requests(&self, version_dir: &Path, _signature: &Signature) -> Result<Vec<Vec<NamedTensor>>> {
        let text = std::fs::read_to_string(version_dir.join("recorded")).unwrap_or_default();
        let input = |line: &str| match line.parse() {
            Ok(number) => vec![input(number)],
            Err(_) => Vec::new(),
        };
        Ok(text.lines().map(input).collect())
    }
}

fn serve(recorded: &str, graph: &str, settings: &str) -> World {
    let mut world = World::prepare(64 * MIB);
    world.settings("m", settings);
    world.place("m", 1, |dir| {
        engine::fake::publish::publish(dir, graph, &[]).unwrap();
        if !recorded.is_empty() {
            std::fs::write(dir.join("recorded"), recorded).unwrap();
        }
    });
    world.start(Setting { warmup: Arc::new(Recorded), ..Setting::default() });
    world
}

const GRAPH: &str = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = affine x 1 0\n";
const FAILING: &str =
    "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\nfail-run out of range\n";

#[test]
fn generated_requests_run_at_least_ten_times() {
    let world = serve("", GRAPH, "");
    world.until_ready("m", 1);
    assert_eq!(world.fake.counters().runs(), 10, "two batch sizes, five times each");
    assert_eq!(world.version("m", 1).unwrap().note, None);
}

#[test]
fn settings_say_how_often() {
    let world = serve("", GRAPH, "[warmup]\nbatch-sizes = [1, 2, 4]\niterations = 2");
    world.until_ready("m", 1);
    assert_eq!(world.fake.counters().runs(), 6);
    let world = serve("", GRAPH, "[warmup]\nenabled = false");
    world.until_ready("m", 1);
    assert_eq!(world.fake.counters().runs(), 0);
}

#[test]
fn recorded_requests_are_preferred() {
    let world = serve("1\n2\n3\n", GRAPH, "[warmup]\niterations = 1");
    world.until_ready("m", 1);
    assert_eq!(world.fake.counters().runs(), 3);
}

#[test]
fn a_recorded_request_that_fails_fails_the_load() {
    let world = serve("1\n", FAILING, "");
    let reason = world.until("m", 1, State::Failed).reason.unwrap();
    assert_eq!(reason, "warm-up with recorded requests: out of range");
    let world = serve("1\nnot an input\n", GRAPH, "");
    let reason = world.until("m", 1, State::Failed).reason.unwrap();
    assert_eq!(reason, "recorded warm-up request 1: input \"x\" is missing");
}

#[test]
fn a_generated_request_that_fails_is_a_note() {
    let world = serve("", FAILING, "");
    world.until_ready("m", 1);
    assert!(world.version("m", 1).unwrap().note.unwrap().contains("out of range"));
    let world = serve("", FAILING, "[warmup]\nfail-on-error = true");
    let reason = world.until("m", 1, State::Failed).reason.unwrap();
    assert_eq!(reason, "warm-up with generated requests: out of range");
}
