//! Cost of a run through a worker process: the same echo model isolated and in this process.
//!
//! `cargo bench -p millpond-isolate --bench run`. docs/adr/0015 has the figures.

use std::sync::Arc;

use base::{NamedTensor, Tensor};
use divan::Bencher;
use engine::fake::FakeEngine;
use engine::{Engine, LoadRequest, Session, SessionOptions};
use metrics::Metrics;
use millpond_isolate::{IsolatingEngine, Isolation, IsolationConfig, WorkerMemory, run_worker};

const WORKER: &str = "worker";
const ECHO: &str = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\n";
/// Elements of the input: 4 B, 4 KiB, 600 KiB (an image of 224 x 224), 16 MiB.
const ELEMENTS: [usize; 4] = [1, 1 << 10, 150_528, 4 << 20];

fn main() {
    if std::env::args().nth(1).as_deref() == Some(WORKER) {
        let _ = run_worker(|_| Ok(Arc::new(FakeEngine::new())));
        return;
    }
    divan::main();
}

fn load(isolate: bool) -> base::Result<Box<dyn Session>> {
    let config = IsolationConfig {
        program: os::ChildProgram::running()?,
        args: vec![WORKER.to_owned()],
        runs: 2,
        run_time_max: std::time::Duration::from_secs(60),
        memory: WorkerMemory { read_rate: 0, fault_rate: 0, huge_pages: false, direct: false },
        spares: false,
    };
    let isolation = Isolation::new(config, Arc::new(Metrics::default()))?;
    let engine = IsolatingEngine::new(Arc::new(FakeEngine::new()), isolation);
    let graph = std::env::temp_dir().join(format!("millpond-isolate-{}", std::process::id()));
    std::fs::write(&graph, ECHO).map_err(|e| base::Error::io(&graph, &e))?;
    let options = SessionOptions { isolate, ..SessionOptions::default() };
    let request = LoadRequest { graph: graph.clone(), options, ..LoadRequest::default() };
    let session = engine.load(&request);
    let _ = std::fs::remove_file(graph);
    session
}

fn run(bencher: Bencher<'_, '_>, elements: usize, isolate: bool) {
    let session = load(isolate).expect("the model loads");
    let tensor = Tensor::from_vec([elements].as_slice(), vec![1f32; elements]);
    let inputs = [NamedTensor::new("x", tensor.expect("a vector is a tensor"))];
    bencher.bench(|| session.run(&inputs, &[]).expect("the model answers"));
}

#[divan::bench(args = ELEMENTS)]
fn in_process(bencher: Bencher<'_, '_>, elements: usize) {
    run(bencher, elements, false);
}

#[divan::bench(args = ELEMENTS)]
fn isolated(bencher: Bencher<'_, '_>, elements: usize) {
    run(bencher, elements, true);
}
