//! Versions that an engine opens as they are, its parameters in an arena of the pool.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base::{Error, NamedTensor, Result, Signature};
use engine::fake::FakeEngine;
use engine::{Capabilities, Device, Engine, LoadRequest, ParameterUse, Session, SessionOptions};
use lifecycle::{LifecycleState, ParameterPlacement};
use memory::RegionMut;

use crate::world::{MIB, Setting, World, eventually};

/// Bytes of the arena per byte of the graph.
const ARENA_FACTOR: usize = 1 << 16;

/// The fake, as an engine that allocates while it loads.
pub(crate) struct Allocating {
    pub(crate) fake: FakeEngine,
    /// Options of the last load.
    pub(crate) told: Arc<Mutex<Option<SessionOptions>>>,
}

struct Holding {
    inner: Box<dyn Session>,
    region: Option<RegionMut>,
}

impl Engine for Allocating {
    fn name(&self) -> &'static str {
        "allocating"
    }

    fn version(&self) -> String {
        self.fake.version()
    }

    fn capabilities(&self) -> Capabilities {
        let (parameters, files) = (ParameterUse::Allocated, vec!["model.pt"]);
        Capabilities { parameters, files, cuda: true, ..self.fake.capabilities() }
    }

    fn arena_bytes(&self, graph: &Path) -> Result<usize> {
        let bytes = fs::metadata(graph).map_err(|e| Error::io(graph, &e))?.len();
        Ok(bytes as usize * ARENA_FACTOR)
    }

    fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>> {
        *self.told.lock().unwrap() = Some(request.options.clone());
        let region = request.arena.as_ref().map(|arena| arena.region()).transpose()?;
        // The fake knows the processor only.
        let mut request = request.clone();
        request.options.device = Device::Cpu;
        Ok(Box::new(Holding { inner: self.fake.load(&request)?, region }))
    }
}

impl Session for Holding {
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn metadata(&self) -> &BTreeMap<String, String> {
        self.inner.metadata()
    }

    fn parameter_bytes(&self) -> u64 {
        self.region.as_ref().map_or(0, |region| region.len() as u64)
    }

    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        self.inner.run(inputs, outputs)
    }
}

fn graph(version: u64) -> String {
    format!("millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = affine x {version} 0\n")
}

fn place(world: &World, version: u64, text: &str) {
    world.place("m", version, |dir| fs::write(dir.join("model.pt"), text).unwrap());
}

#[test]
fn versions_are_opened_as_they_are_and_return_memory() {
    let mut world = World::prepare(64 * MIB);
    place(&world, 1, &graph(1));
    world.start(Setting::default());
    world.until_ready("m", 1);
    assert_eq!(world.ask("m").unwrap(), 1.0);
    let used = world.used();
    assert!(used >= (graph(1).len() * ARENA_FACTOR) as u64, "{used} bytes of the pool");
    let servable = world.lifecycle().catalog().get("m", None).unwrap();
    assert_eq!(
        (servable.engine, servable.parameter_bytes),
        ("allocating", (graph(1).len() << 16) as u64)
    );
    drop(servable);
    place(&world, 2, &graph(2));
    world.until("m", 1, LifecycleState::Released);
    assert_eq!(world.ask("m").unwrap(), 2.0);
    assert_eq!(world.used(), used, "one version's memory");
}

#[test]
fn a_version_that_does_not_fit_is_refused() {
    let mut world = World::prepare(16 * MIB);
    place(&world, 1, &graph(1));
    world.start(Setting::default());
    world.until_ready("m", 1);
    place(&world, 2, &(graph(2) + &"\n".repeat(400)));
    let status = world.until("m", 2, LifecycleState::Failed);
    assert!(status.reason.as_deref().unwrap().contains("raise --pool"), "{:?}", status.reason);
    assert_eq!(world.ask("m").unwrap(), 1.0);
}

#[test]
fn a_load_that_waits_for_memory_waits_for_files_too() {
    let mut world = World::prepare(16 * MIB);
    world.place("big", 1, |dir| {
        fs::write(dir.join("model.pt"), graph(1) + &"\n".repeat(100)).unwrap()
    });
    world.start(Setting::default());
    world.until_ready("big", 1);
    let held = world.lifecycle().catalog().get("big", None).unwrap();
    fs::rename(world.model_dir("big"), world.root.path().join(".big")).unwrap();
    eventually("it drains", || world.state("big", 1) == Some(LifecycleState::Draining));
    let text = graph(2) + &"\n".repeat(80);
    place(&world, 2, &text);
    eventually("it waits", || {
        world.version("m", 2).is_some_and(|version| version.reason.is_some())
    });
    // Changed repeatedly, so that its turn comes while its files still change.
    for round in 0..40 {
        fs::write(world.dir("m", 2).join("model.pt"), text.clone() + &"\n".repeat(round % 2))
            .unwrap();
        world.looks();
        assert_ne!(
            world.state("m", 2),
            Some(LifecycleState::Failed),
            "{:?}",
            world.version("m", 2)
        );
    }
    drop(held);
    world.until_ready("m", 2);
    assert_eq!(world.ask("m").unwrap(), 2.0);
}

#[test]
fn in_the_heap_there_is_no_arena() {
    let mut world = World::prepare(16 * MIB);
    place(&world, 1, &graph(1));
    let change =
        |config: &mut lifecycle::LifecycleConfig| config.placement = ParameterPlacement::Heap;
    world.start(Setting { change, ..Setting::default() });
    world.until_ready("m", 1);
    assert_eq!((world.ask("m").unwrap(), world.used()), (1.0, 0));
}

#[test]
fn the_models_file_completes_the_signature() {
    let mut world = World::prepare(64 * MIB);
    world.settings(
        "m",
        "device = \"cuda:1\"\ntrusted = true\n[signature]\ninputs = [{ name = \"x\", shape = [-1] }]\n\
         [recogniser]\ntitle = \"Words\"\nrate = 16000\n",
    );
    place(&world, 1, &graph(1));
    world.start(Setting::default());
    world.until_ready("m", 1);
    let told = world.told.lock().unwrap().clone().unwrap();
    assert_eq!((told.device, told.trusted), (Device::Cuda(1), true));
    assert_eq!(told.signature.inputs[0].name, "x");
    let servable = world.lifecycle().catalog().get("m", None).unwrap();
    let recogniser = servable.recogniser.as_deref().unwrap();
    assert!(
        recogniser.contains("title = \"Words\"") && recogniser.contains("rate = 16000"),
        "{recogniser}"
    );
}
