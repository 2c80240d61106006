//! Warm-up of versions before they take requests.

use std::path::Path;
use std::sync::Arc;

use base::{Error, NamedTensor, Result, Tensor};
use engine::Servable;
use lifecycle::{LifecycleEvent, LifecycleState, WarmupSource};

use crate::world::{MIB, Setting, World, input};

/// Recorded requests: as many as there are lines in the version's file "recorded".
struct WarmupSet;

impl WarmupSource for WarmupSet {
    fn requests(&self, version_dir: &Path, _servable: &Servable) -> Result<lifecycle::WarmupSet> {
        let text = std::fs::read_to_string(version_dir.join("recorded")).unwrap_or_default();
        let input = |line: &str| match line.parse() {
            Ok(number) if line.contains('.') => {
                vec![NamedTensor::new(
                    "x",
                    Tensor::from_vec(&[1usize, 1][..], vec![number]).unwrap(),
                )]
            }
            Ok(number) => vec![input(number)],
            Err(_) => Vec::new(),
        };
        Ok(text.lines().map(input).collect::<Vec<_>>().into())
    }

    /// Adds ones of the masked input's shape, as `schedule` does.
    fn complete(&self, servable: &Servable, inputs: &mut Vec<NamedTensor>) -> Result<()> {
        if servable.plan().fills() {
            let count = inputs[0].tensor.elements();
            let ones = Tensor::from_vec(inputs[0].tensor.shape(), vec![1.0f32; count])?;
            inputs.push(NamedTensor::new("mask", ones));
        }
        Ok(())
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
    world.start(Setting { warmup: Arc::new(WarmupSet), ..Setting::default() });
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
fn settings_set_the_number_of_runs() {
    let world = serve("", GRAPH, "[warmup]\nbatch-sizes = [1, 2, 4]\niterations = 2");
    world.until_ready("m", 1);
    assert_eq!(world.fake.counters().runs(), 6);
    let world = serve("", GRAPH, "[warmup]\nenabled = false");
    world.until_ready("m", 1);
    assert_eq!(world.fake.counters().runs(), 0);
}

#[test]
fn sizes_of_an_unknown_input_are_noted() {
    let world = serve("", GRAPH, "[warmup]\ndims = { z = [-1] }");
    world.until_ready("m", 1);
    let note = world.version("m", 1).unwrap().note.unwrap();
    assert_eq!(note, "dims in [warmup]: the model has no input \"z\"");
}

#[test]
fn generated_requests_have_the_allowed_batch_sizes() {
    let runs = |sizes: &str| {
        let settings = format!(
            "[schedule]\nmode = \"async\"\nmax-batch = 4\nallowed-batch-sizes = [1, 2, 4, 64]\n\
             [warmup]\n{sizes}iterations = 2"
        );
        let world = serve("", GRAPH, &settings);
        world.until_ready("m", 1);
        world.fake.counters().runs()
    };
    assert_eq!(runs(""), 6, "three sizes instead of the default's two; no batch has 64 items");
    assert_eq!(runs("batch-sizes = [4]\n"), 2);
}

#[test]
fn recorded_requests_are_preferred() {
    let world = serve("1\n2\n3\n", GRAPH, "[warmup]\niterations = 1");
    world.until_ready("m", 1);
    assert_eq!(world.fake.counters().runs(), 3);
    let records = world.events.all().into_iter().find_map(|event| match event {
        LifecycleEvent::Loaded { cost, .. } => Some(cost.warm_records),
        _ => None,
    });
    assert_eq!(records, Some(3));
}

/// Such as one that adds to a variable of a SavedModel.
#[test]
fn a_recorded_request_that_changes_the_state_runs_once() {
    let graph = format!("{GRAPH}metadata changes-state yes\n");
    let runs = |settings: &str| {
        let world = serve("1\n2\n", &graph, settings);
        world.until_ready("m", 1);
        world.fake.counters().runs()
    };
    assert_eq!(runs(""), 2);
    assert_eq!(runs("[warmup]\niterations = 3"), 6);
}

#[test]
fn a_recorded_request_that_fails_fails_the_load() {
    let world = serve("1\n", FAILING, "");
    let reason = world.until("m", 1, LifecycleState::Failed).reason.unwrap();
    assert_eq!(reason, "recorded warm-up request 0: out of range");
    let world = serve("1\nnot an input\n", GRAPH, "");
    let reason = world.until("m", 1, LifecycleState::Failed).reason.unwrap();
    assert_eq!(reason, "recorded warm-up request 1: input \"x\" is missing");
}

/// They are requests as clients send them.
#[test]
fn recorded_requests_are_filled_in() {
    let graph = "millpond-fake 1\ninput x float32 n w\ninput mask float32 n w\noutput y float32 n w\ny = echo mask\n";
    let settings = "[schedule.inputs.x]\naxes = [1]\nmask = \"mask\"\n\
        [[schedule.outputs.y]]\naxis = 1\ninput = \"x\"\ninput-axis = 1\n[warmup]\niterations = 1\n";
    let world = serve("1.5\n2.5\n", graph, settings);
    world.until_ready("m", 1);
    assert_eq!(world.fake.counters().runs(), 2);
}

#[test]
fn a_generated_request_that_fails_is_a_note() {
    let world = serve("", FAILING, "");
    world.until_ready("m", 1);
    let note = world.version("m", 1).unwrap().note.unwrap();
    assert!(note.contains("refused: out of range; put requests into the model's folder warmup"));
    assert!(note.contains("name the types in [signature]"), "{note}");
    let world = serve("", FAILING, "[warmup]\nfail-on-error = true");
    let reason = world.until("m", 1, LifecycleState::Failed).reason.unwrap();
    assert_eq!(reason, "warm-up with generated requests: out of range");
}

/// Engine whose runs end like runs in a worker process that hangs.
struct HangingRuns;

impl WarmupSource for HangingRuns {
    fn requests(&self, _version_dir: &Path, _servable: &Servable) -> Result<lifecycle::WarmupSet> {
        Ok(lifecycle::WarmupSet::default())
    }

    fn run(
        &self,
        _servable: &Servable,
        _inputs: &[NamedTensor],
        _outputs: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        Err(Error::deadline("a run took longer than 30 s in its worker process"))
    }
}

#[test]
fn a_generated_request_that_hangs_fails_the_load() {
    let mut world = World::prepare(64 * MIB);
    world.publish("m", 1);
    world.start(Setting { warmup: Arc::new(HangingRuns), ..Setting::default() });
    let reason = world.until("m", 1, LifecycleState::Failed).reason.unwrap();
    assert!(reason.contains("a run took longer than 30 s"), "{reason}");
}

/// Engine whose runs take scalars, as the trip count of ONNX's Loop is one.
struct ScalarRuns;

impl WarmupSource for ScalarRuns {
    fn requests(&self, _version_dir: &Path, _servable: &Servable) -> Result<lifecycle::WarmupSet> {
        Ok(lifecycle::WarmupSet::default())
    }

    fn run(
        &self,
        _servable: &Servable,
        inputs: &[NamedTensor],
        _outputs: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        if inputs.iter().all(|input| input.tensor.shape().is_empty()) {
            Ok(Vec::new())
        } else {
            Err(Error::invalid("not a scalar"))
        }
    }
}

#[test]
fn generated_inputs_of_unknown_rank_may_be_scalars() {
    let note = |axes: &str| {
        let graph = format!(
            "millpond-fake 1\ninput x float32 {axes}\noutput y float32 {axes}\ny = echo x\n"
        );
        let mut world = World::prepare(64 * MIB);
        world.place("m", 1, |dir| engine::fake::publish::publish(dir, &graph, &[]).unwrap());
        world.start(Setting { warmup: Arc::new(ScalarRuns), ..Setting::default() });
        world.until_ready("m", 1);
        world.version("m", 1).unwrap().note
    };
    assert_eq!(note("*"), None);
    assert!(note("n").unwrap().contains("refused: not a scalar"));
}
