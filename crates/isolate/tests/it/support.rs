//! A server's part with the fake engine, and the worker process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, NamedTensor, Result, Tensor};
use engine::fake::{FakeEngine, NAME};
use engine::{Capabilities, Engine, LoadRequest, Session, SessionOptions};
use metrics::{KindLabels, Metrics, ModelLabels};
use millpond_isolate::{IsolatingEngine, Isolation, IsolationConfig, WorkerMemory};

/// Longest wait of a test.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The worker process.
#[test]
#[ignore = "started by the other tests as their worker process"]
fn worker_process() {
    let _ = millpond_isolate::run_worker(|name| {
        let known = [WITHOUT_LIBRARY, HANGING_LIBRARY];
        let name = known.into_iter().find(|known| *known == name).unwrap_or(NAME);
        Ok(Arc::new(SlowEngine { name, fake: FakeEngine::new() }))
    });
}

/// Name of an engine whose library does not open by itself.
pub(crate) const WITHOUT_LIBRARY: &str = "without-library";
/// Name of an engine whose library takes longer to open than a test runs.
pub(crate) const HANGING_LIBRARY: &str = "hanging-library";

/// The fake, with a library that opens slowly.
struct SlowEngine {
    name: &'static str,
    fake: FakeEngine,
}

impl Engine for SlowEngine {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> String {
        self.fake.version()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { opens_slowly: true, ..self.fake.capabilities() }
    }

    fn open_library(&self) -> Result<()> {
        match self.name {
            WITHOUT_LIBRARY => return Err(Error::not_found("there is no library")),
            HANGING_LIBRARY => std::thread::sleep(WAIT_MAX),
            _ => {}
        }
        Ok(())
    }

    fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>> {
        self.fake.load(request)
    }
}

pub(crate) struct Host {
    pub(crate) engine: IsolatingEngine,
    pub(crate) isolation: Arc<Isolation>,
    pub(crate) metrics: Arc<Metrics>,
    dir: tempfile::TempDir,
}

pub(crate) const ECHO: &str =
    "millpond-fake 1\ninput x float32 n\noutput y float32 n\ny = echo x\n";

impl Host {
    pub(crate) fn new() -> Host {
        Host::with_run_time(Duration::from_secs(60))
    }

    pub(crate) fn with_run_time(run_time_max: Duration) -> Host {
        Host::start(Arc::new(FakeEngine::new()), run_time_max, true)
    }

    /// Returns a host whose engine opens slowly and has this name, with a spare process.
    pub(crate) fn with_spares(name: &'static str) -> Host {
        let engine = Arc::new(SlowEngine { name, fake: FakeEngine::new() });
        Host::start(engine, Duration::from_secs(60), true)
    }

    /// Returns a host whose engine opens slowly, without a spare process.
    pub(crate) fn without_spares() -> Host {
        let engine = Arc::new(SlowEngine { name: NAME, fake: FakeEngine::new() });
        Host::start(engine, Duration::from_secs(60), false)
    }

    fn start(engine: Arc<dyn Engine>, run_time_max: Duration, spares: bool) -> Host {
        let args = ["support::worker_process", "--exact", "--ignored", "--nocapture"];
        let config = IsolationConfig {
            program: os::ChildProgram::running().unwrap(),
            args: args.map(str::to_owned).to_vec(),
            runs: 3,
            run_time_max,
            memory: WorkerMemory { read_rate: 0, fault_rate: 0, huge_pages: false, direct: false },
            spares,
        };
        let metrics = Arc::new(Metrics::default());
        let isolation = Isolation::new(config, metrics.clone()).unwrap();
        let engine = IsolatingEngine::new(engine, isolation.clone());
        Host { engine, isolation, metrics, dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn graph(&self, text: &str) -> PathBuf {
        let path = self.dir.path().join("graph");
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn open(&self, graph: PathBuf) -> base::Result<Box<dyn Session>> {
        self.open_with(graph, SessionOptions { isolate: true, ..SessionOptions::default() })
    }

    pub(crate) fn open_with(
        &self,
        graph: PathBuf,
        options: SessionOptions,
    ) -> base::Result<Box<dyn Session>> {
        let request = LoadRequest { model: "m".into(), graph, options, ..LoadRequest::default() };
        self.engine.load(&request)
    }

    pub(crate) fn load(&self, text: &str) -> Box<dyn Session> {
        self.open(self.graph(text)).unwrap()
    }

    pub(crate) fn restarts(&self) -> u64 {
        let labels = ModelLabels { model: "m".into() };
        self.metrics.worker_restarts.get_or_create(&labels).get()
    }

    /// Returns the count of an event of spare processes.
    pub(crate) fn spares(&self, kind: &'static str) -> u64 {
        self.metrics.worker_spares.get_or_create(&KindLabels { kind }).get()
    }

    /// Returns the seconds that the last restart took; 0 without one.
    pub(crate) fn restart_seconds(&self) -> f64 {
        let labels = ModelLabels { model: "m".into() };
        self.metrics.worker_restart_last_seconds.get_or_create(&labels).get()
    }
}

pub(crate) fn vector(values: &[f32]) -> [NamedTensor; 1] {
    [NamedTensor::new("x", Tensor::from_vec([values.len()].as_slice(), values.to_vec()).unwrap())]
}

/// Waits until `done` is true.
#[track_caller]
pub(crate) fn wait_until(mut done: impl FnMut() -> bool) {
    let until = Instant::now() + WAIT_MAX;
    while !done() {
        assert!(Instant::now() < until, "not within {WAIT_MAX:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the model answers again.
pub(crate) fn recovered(session: &dyn Session) {
    wait_until(|| session.run(&vector(&[1.0]), &[]).is_ok());
}

/// Returns the processes whose parent is this one.
pub(crate) fn children() -> Vec<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default()
    };
    let text: String = tasks.map(of).collect();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}
