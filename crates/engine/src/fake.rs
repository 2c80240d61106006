//! A deterministic engine without a native library, for tests of code that uses [`Engine`].
//!
//! Its graphs are text (see [`graph`]), so that a test writes its model in three lines. A test
//! controls the engine. A [`FakeGate`] holds loads and runs. A number of them can be made to fail.
//! Every load, run and release is counted. [`publish`] writes version directories in the mappable
//! layout.

pub mod gate;
pub mod graph;
pub mod publish;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::{DType, Error, NamedTensor, Result, Signature};

use crate::{
    BoundTensor, Capabilities, Engine, LoadRequest, NamedSignature, ParameterUse, Session,
};
use gate::FakeGate;
use graph::FakeGraph;

/// Name of the fake in manifests.
pub const NAME: &str = "fake";
/// Maximum bytes of a graph file.
const GRAPH_BYTES_MAX: u64 = 1 << 20;

/// Counts of loads, runs and releases.
#[derive(Debug, Default)]
pub struct FakeCounters {
    loads: AtomicU64,
    failed_loads: AtomicU64,
    runs: AtomicU64,
    releases: AtomicU64,
}

impl FakeCounters {
    /// Returns the number of successful loads.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::SeqCst)
    }

    /// Returns the number of failed loads.
    pub fn failed_loads(&self) -> u64 {
        self.failed_loads.load(Ordering::SeqCst)
    }

    /// Returns the number of runs that began.
    pub fn runs(&self) -> u64 {
        self.runs.load(Ordering::SeqCst)
    }

    /// Returns the number of dropped sessions.
    pub fn releases(&self) -> u64 {
        self.releases.load(Ordering::SeqCst)
    }

    /// Returns the number of sessions that are not dropped.
    pub fn live(&self) -> u64 {
        self.loads().saturating_sub(self.releases())
    }
}

#[derive(Default)]
struct FakeState {
    counters: FakeCounters,
    loads: FakeGate,
    runs: FakeGate,
    loads_to_fail: AtomicU64,
    runs_to_fail: AtomicU64,
}

/// The fake engine. Clones share counters and gates.
#[derive(Clone, Default)]
pub struct FakeEngine(Arc<FakeState>);

impl FakeEngine {
    /// Returns an engine that works and has open gates.
    pub fn new() -> FakeEngine {
        FakeEngine::default()
    }

    /// Returns the counts of loads, runs and releases.
    pub fn counters(&self) -> &FakeCounters {
        &self.0.counters
    }

    /// Returns the gate that loads pass first.
    pub fn load_gate(&self) -> &FakeGate {
        &self.0.loads
    }

    /// Returns the gate that runs pass first.
    pub fn run_gate(&self) -> &FakeGate {
        &self.0.runs
    }

    /// Makes the next `count` loads fail with `Internal`.
    pub fn fail_loads(&self, count: u64) {
        self.0.loads_to_fail.store(count, Ordering::SeqCst);
    }

    /// Makes the next `count` runs fail with `Internal`.
    pub fn fail_runs(&self, count: u64) {
        self.0.runs_to_fail.store(count, Ordering::SeqCst);
    }

    /// Reads the graph and loads it as its lines say, after the gate of loads permits it.
    fn open(&self, request: &LoadRequest) -> Result<FakeSession> {
        self.0.loads.pass();
        if take_one(&self.0.loads_to_fail) {
            return Err(Error::internal("this fake fails loads"));
        }
        let path = &request.graph;
        let bytes = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?.len();
        if bytes > GRAPH_BYTES_MAX {
            return Err(Error::data_loss(format!(
                "{}: too large for a fake graph",
                path.display()
            )));
        }
        let text = std::fs::read(path).map_err(|e| Error::io(path, &e))?;
        let text = std::str::from_utf8(&text)
            .map_err(|_| Error::data_loss(format!("{}: not a fake graph", path.display())))?;
        let graph = FakeGraph::parse(text).map_err(|e| e.context(path.display()))?;
        graph.check_parameters(&request.parameters).map_err(|e| e.context(path.display()))?;
        std::thread::sleep(graph.load_delay);
        if let Some(why) = &graph.abort_load {
            graph::abort(why);
        }
        if let Some(message) = &graph.fail_load {
            return Err(Error::invalid(message.as_str()));
        }
        Ok(FakeSession {
            graph,
            parameters: request.parameters.clone(),
            state: self.0.clone(),
            lost: AtomicBool::new(false),
        })
    }
}

/// Decrements `left`. Returns false if it is 0 already.
fn take_one(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1)).is_ok()
}

impl Engine for FakeEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> String {
        "1".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            parameters: ParameterUse::Bound,
            files: vec!["model.onnx"],
            dtypes: DType::ALL.to_vec(),
            cuda: false,
            opens_slowly: false,
        }
    }

    fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>> {
        let allowed = self.capabilities().check_device(NAME, request.options.device);
        let opened = allowed.and_then(|()| self.open(request));
        let counter =
            if opened.is_ok() { &self.0.counters.loads } else { &self.0.counters.failed_loads };
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(opened?))
    }
}

struct FakeSession {
    graph: FakeGraph,
    parameters: Vec<BoundTensor>,
    state: Arc<FakeState>,
    /// True after a run made the device fail.
    lost: AtomicBool,
}

impl Session for FakeSession {
    fn signature(&self) -> &Signature {
        &self.graph.signature
    }

    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.graph.metadata
    }

    fn signatures(&self) -> &[NamedSignature] {
        &self.graph.signatures
    }

    fn default_signature(&self) -> usize {
        self.graph.default_signature()
    }

    fn needs_new_process(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        self.run_as(&self.graph.signature, inputs, outputs)
    }

    fn run_signature(
        &self,
        number: usize,
        inputs: &[NamedTensor],
        outputs: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        self.run_as(&self.graph.signatures[number].signature, inputs, outputs)
    }
}

impl FakeSession {
    /// Runs the graph as its lines say, after the gate of runs permits it.
    fn run_as(
        &self,
        signature: &Signature,
        inputs: &[NamedTensor],
        outputs: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        self.state.counters.runs.fetch_add(1, Ordering::SeqCst);
        self.state.runs.pass();
        if take_one(&self.state.runs_to_fail) {
            return Err(Error::internal("this fake fails runs"));
        }
        std::thread::sleep(self.graph.run_delay);
        if let Some(message) = &self.graph.fail_run {
            return Err(Error::internal(message.as_str()));
        }
        if self.graph.loses_device(inputs) {
            self.lost.store(true, Ordering::SeqCst);
        }
        if self.needs_new_process() {
            return Err(Error::internal("the device of this fake has failed"));
        }
        self.graph.run(signature, &self.parameters, inputs, outputs)
    }
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.state.counters.releases.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{ErrorKind, Tensor};

    fn load(engine: &FakeEngine, text: &str) -> Result<Box<dyn Session>> {
        let dir = tempfile::tempdir().unwrap();
        let graph = dir.path().join("graph");
        std::fs::write(&graph, text).unwrap();
        engine.load(&LoadRequest { graph, ..LoadRequest::default() })
    }

    const ECHO: &str = "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\n";

    #[test]
    fn failures_are_counted_down() {
        let engine = FakeEngine::new();
        engine.fail_loads(1);
        assert_eq!(load(&engine, ECHO).err().map(|e| e.kind()), Some(ErrorKind::Internal));
        let session = load(&engine, ECHO).unwrap();
        engine.fail_runs(1);
        let input = [NamedTensor::new("x", Tensor::from_vec([1].as_slice(), vec![7f32]).unwrap())];
        assert!(session.run(&input, &[]).is_err());
        assert_eq!(session.run(&input, &[]).unwrap()[0].tensor, input[0].tensor);
        drop(session);
        let counters = engine.counters();
        assert_eq!(
            (counters.loads(), counters.failed_loads(), counters.runs(), counters.live()),
            (1, 1, 2, 0)
        );
    }

    #[test]
    fn a_closed_gate_holds_a_load() {
        let engine = FakeEngine::new();
        engine.load_gate().close();
        std::thread::scope(|scope| {
            let loading = scope.spawn(|| load(&engine, ECHO).is_ok());
            engine.load_gate().wait_for(1);
            assert_eq!(engine.counters().loads(), 0);
            engine.load_gate().open();
            assert!(loading.join().unwrap());
        });
    }

    #[test]
    fn a_graph_can_fail_by_itself() {
        let engine = FakeEngine::new();
        let error = load(&engine, &format!("{ECHO}fail-load no such operator\n")).err().unwrap();
        assert!(error.message().ends_with("no such operator"), "{error}");
        let session = load(&engine, &format!("{ECHO}fail-run out of luck\n")).unwrap();
        assert_eq!(session.run(&[], &[]).unwrap_err().message(), "out of luck");
    }
}
