//! A lifecycle with its directories, its memory and an engine that records the threads that call
//! it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::allocating::Allocating;
use base::{NamedTensor, Result, Signature, Tensor};
use engine::fake::publish::{self, FakeParameter};
use engine::fake::{FakeEngine, NAME};
use engine::{Capabilities, Engine, LoadRequest, Servable, Session, SessionOptions};
use lifecycle::{
    Converter, Lifecycle, LifecycleConfig, LifecycleEvent, LifecycleState, LoadSpec, ModelConfig,
    ModelStatus, Observer, UpdateConfig, VersionStatus, WarmupConfig, WarmupSet, WarmupSource,
};
use memory::{ParameterStore, PoolConfig, SlotPool, StoreConfig};
use os::Rate;

struct NoRecordedRequests;

impl WarmupSource for NoRecordedRequests {
    fn requests(&self, _version_dir: &Path, _servable: &Servable) -> Result<WarmupSet> {
        Ok(WarmupSet::default())
    }
}

/// Nothing here takes this long: a test that waits longer is stuck.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub(crate) const MIB: u64 = 1 << 20;
/// Key in the metadata of a graph whose requests change the state of the model.
const CHANGES_STATE: &str = "changes-state";
pub(crate) const POLL: Duration = Duration::from_millis(10);
/// Starvation limit of loads that must stay at idle priority, also beside tests that keep all
/// cores busy.
pub(crate) const NEVER: Duration = Duration::from_secs(3600);

/// Waits until `holds` returns true. Panics with `what` after [`WAIT_MAX`].
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Names of the threads that loaded and released.
#[derive(Default)]
pub(crate) struct Threads {
    pub(crate) loads: Mutex<Vec<String>>,
    /// While this is set, the engine keeps load threads of idle priority busy.
    pub(crate) busy: AtomicBool,
    /// Model whose loads do not return from the engine while this is set.
    pub(crate) hanging: Mutex<Option<String>>,
    pub(crate) releases: Mutex<Vec<String>>,
    /// While this is set, releases on the unload thread of idle priority do not end.
    pub(crate) starved: AtomicBool,
}

fn here() -> String {
    let thread = std::thread::current();
    format!("{} {:?}", thread.name().unwrap_or("?"), thread.id())
}

/// The fake, watched.
pub(crate) struct Watched {
    pub(crate) fake: FakeEngine,
    pub(crate) threads: Arc<Threads>,
}

impl Engine for Watched {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> String {
        self.fake.version()
    }

    fn capabilities(&self) -> Capabilities {
        self.fake.capabilities()
    }

    fn load(&self, request: &LoadRequest) -> Result<Box<dyn Session>> {
        self.threads.loads.lock().unwrap().push(here());
        while here().contains("-idle ") && self.threads.busy.load(Ordering::Relaxed) {}
        while self.threads.hanging.lock().unwrap().as_deref() == Some(&*request.model) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let inner = Some(self.fake.load(request)?);
        Ok(Box::new(WatchedSession { inner, threads: self.threads.clone() }))
    }
}

struct WatchedSession {
    inner: Option<Box<dyn Session>>,
    threads: Arc<Threads>,
}

impl WatchedSession {
    fn inner(&self) -> &dyn Session {
        &**self.inner.as_ref().unwrap()
    }
}

impl Session for WatchedSession {
    fn signature(&self) -> &Signature {
        self.inner().signature()
    }

    fn metadata(&self) -> &BTreeMap<String, String> {
        self.inner().metadata()
    }

    fn changes_state(&self) -> bool {
        self.metadata().contains_key(CHANGES_STATE)
    }

    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        self.inner().run(inputs, outputs)
    }
}

impl Drop for WatchedSession {
    fn drop(&mut self) {
        self.threads.releases.lock().unwrap().push(here());
        while here().starts_with("unload-0 ") && self.threads.starved.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(self.inner.take());
    }
}

/// Remembers every event.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<Vec<LifecycleEvent>>);

impl Observer for Recorder {
    fn event(&self, event: &LifecycleEvent) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Recorder {
    pub(crate) fn all(&self) -> Vec<LifecycleEvent> {
        self.0.lock().unwrap().clone()
    }

    /// Returns "1:loading 1:warming ..." of one model, without repeated states.
    pub(crate) fn states(&self, model: &str) -> String {
        let mut words = Vec::new();
        for event in self.all() {
            if let LifecycleEvent::StateChanged(change) = event
                && *change.model == *model
                && change.from != Some(change.to)
            {
                words.push(format!("{}:{}", change.version, change.to));
            }
        }
        words.join(" ")
    }
}

/// Settings of a test.
pub(crate) struct Setting {
    pub(crate) models: Vec<ModelConfig>,
    pub(crate) warmup: Arc<dyn WarmupSource>,
    pub(crate) updates: UpdateConfig,
    pub(crate) change: fn(&mut LifecycleConfig),
}

impl Default for Setting {
    fn default() -> Self {
        Setting {
            models: Vec::new(),
            warmup: Arc::new(NoRecordedRequests),
            updates: UpdateConfig::default(),
            change: |_| {},
        }
    }
}

/// Everything.
pub(crate) struct World {
    pub(crate) root: tempfile::TempDir,
    pub(crate) cache: tempfile::TempDir,
    pub(crate) fake: FakeEngine,
    pub(crate) threads: Arc<Threads>,
    pub(crate) store: Arc<ParameterStore>,
    pub(crate) events: Arc<Recorder>,
    /// Options of the last load of the allocating engine.
    pub(crate) told: Arc<Mutex<Option<SessionOptions>>>,
    lifecycle: Option<Arc<Lifecycle>>,
    next: AtomicU64,
}

/// Models come from the root directory, polled every [`POLL`].
impl World {
    /// Directories and memory; nothing runs yet.
    pub(crate) fn prepare(pool_bytes: u64) -> World {
        let fault_rate = Rate::unlimited();
        let pool =
            SlotPool::new(PoolConfig { bytes_max: pool_bytes, huge_pages: false, fault_rate })
                .unwrap();
        World {
            root: tempfile::tempdir().unwrap(),
            cache: tempfile::tempdir().unwrap(),
            fake: FakeEngine::new(),
            threads: Arc::default(),
            store: ParameterStore::new(
                pool,
                StoreConfig { read_rate: Rate::unlimited(), direct: false },
            ),
            events: Arc::default(),
            told: Arc::default(),
            lifecycle: None,
            next: AtomicU64::new(0),
        }
    }

    pub(crate) fn start(&mut self, setting: Setting) {
        let mut config = LifecycleConfig::new(self.cache.path(), converter());
        config.models = setting.models;
        config.roots = vec![lifecycle::ModelRoot::new(self.root.path())];
        config.poll = POLL;
        config.retries = 0;
        config.updates = setting.updates;
        (setting.change)(&mut config);
        let engine = Arc::new(Watched { fake: self.fake.clone(), threads: self.threads.clone() });
        let (store, events) = (self.store.clone(), self.events.clone());
        let allocating = Arc::new(Allocating { fake: self.fake.clone(), told: self.told.clone() });
        let engines: Vec<Arc<dyn Engine>> = vec![engine, allocating];
        self.lifecycle =
            Some(Lifecycle::start(config, engines, store, setting.warmup, events).unwrap());
    }

    /// Starts a lifecycle with model "m" at version 1.
    pub(crate) fn with_model() -> World {
        let mut world = World::prepare(64 * MIB);
        world.publish("m", 1);
        world.start(Setting::default());
        world.until_ready("m", 1);
        world
    }

    pub(crate) fn lifecycle(&self) -> &Arc<Lifecycle> {
        self.lifecycle.as_ref().unwrap()
    }

    pub(crate) fn model_dir(&self, model: &str) -> PathBuf {
        self.root.path().join(model)
    }

    pub(crate) fn dir(&self, model: &str, version: u64) -> PathBuf {
        self.model_dir(model).join(version.to_string())
    }

    /// Fills a directory beside the models and renames it into place in one step.
    pub(crate) fn place(&self, model: &str, version: u64, fill: impl FnOnce(&Path)) {
        std::fs::create_dir_all(self.model_dir(model)).unwrap();
        let aside =
            self.root.path().join(format!(".new-{}", self.next.fetch_add(1, Ordering::SeqCst)));
        std::fs::create_dir(&aside).unwrap();
        fill(&aside);
        std::fs::rename(&aside, self.dir(model, version)).unwrap();
    }

    /// Publishes a version that multiplies by its own number.
    pub(crate) fn publish(&self, model: &str, version: u64) {
        self.place(model, version, |dir| publish::affine(dir, version as f32, 0.0).unwrap());
    }

    /// Publishes such a version, whose requests change its state.
    pub(crate) fn publish_changing(&self, model: &str, version: u64) {
        let graph = format!("{}metadata {CHANGES_STATE} yes\n", publish::HALF_PLUS_TWO);
        let numbers = [
            FakeParameter::floats("half", &[1], &[version as f32]),
            FakeParameter::floats("two", &[1], &[0.0]),
        ];
        self.place(model, version, |dir| publish::publish(dir, &graph, &numbers).unwrap());
    }

    /// Does the same as [`World::publish`] with tables of 2 MiB each, filled with the given
    /// numbers.
    pub(crate) fn publish_tables(&self, model: &str, version: u64, tables: &[f32]) {
        let mut graph = publish::HALF_PLUS_TWO.to_owned();
        let number = [
            FakeParameter::floats("half", &[1], &[version as f32]),
            FakeParameter::floats("two", &[1], &[0.0]),
        ];
        let mut parameters = number.to_vec();
        for (at, content) in tables.iter().enumerate() {
            graph.push_str(&format!("parameter t{at} float32 524288\n"));
            parameters.push(FakeParameter::floats(
                &format!("t{at}"),
                &[524_288],
                &vec![*content; 524_288],
            ));
        }
        self.place(model, version, |dir| publish::publish(dir, &graph, &parameters).unwrap());
    }

    pub(crate) fn remove(&self, model: &str, version: u64) {
        // Moved away in one step, as a publisher would do.
        let aside =
            self.root.path().join(format!(".old-{}", self.next.fetch_add(1, Ordering::SeqCst)));
        std::fs::rename(self.dir(model, version), &aside).unwrap();
        std::fs::remove_dir_all(&aside).unwrap();
    }

    pub(crate) fn settings(&self, model: &str, text: &str) {
        std::fs::create_dir_all(self.model_dir(model)).unwrap();
        let aside = self.root.path().join(".settings");
        std::fs::write(&aside, text).unwrap();
        std::fs::rename(aside, self.model_dir(model).join("millpond.toml")).unwrap();
    }

    pub(crate) fn status(&self, model: &str) -> Option<ModelStatus> {
        self.lifecycle().status().into_iter().find(|status| *status.name == *model)
    }

    pub(crate) fn version(&self, model: &str, version: u64) -> Option<VersionStatus> {
        self.status(model)?.version(version).cloned()
    }

    pub(crate) fn state(&self, model: &str, version: u64) -> Option<LifecycleState> {
        self.version(model, version).map(|status| status.state)
    }

    #[track_caller]
    pub(crate) fn until(&self, model: &str, version: u64, state: LifecycleState) -> VersionStatus {
        let what = format!("{model}/{version} {state}; {:?}", self.status(model));
        eventually(&what, || self.state(model, version) == Some(state));
        self.version(model, version).unwrap()
    }

    #[track_caller]
    pub(crate) fn until_ready(&self, model: &str, version: u64) {
        self.until(model, version, LifecycleState::Ready);
    }

    /// Waits until the directories were scanned twice more, and all results were handled.
    pub(crate) fn looks(&self) {
        for _ in 0..2 {
            // A load of a missing model is answered after a new scan.
            assert!(self.load("no such model", LoadSpec::default()).is_err());
        }
    }

    /// Returns the versions that are ready, as "1 2".
    pub(crate) fn ready(&self, model: &str) -> String {
        let ready = self.lifecycle().catalog().ready(model).unwrap_or_default();
        ready.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
    }

    /// Returns the version that answers a request, from its answer.
    pub(crate) fn ask(&self, model: &str) -> Result<f32> {
        let servable = self.lifecycle().catalog().get(model, None)?;
        let answer = servable.run(&[input(1.0)], &[])?[0].tensor.to_vec::<f32>()?[0];
        assert_eq!(answer, servable.id.version as f32, "a version gave another's answer");
        Ok(answer)
    }

    pub(crate) fn load(&self, model: &str, spec: LoadSpec) -> Result<()> {
        self.load_later(model, spec).recv_timeout(WAIT_MAX).expect("an answer")
    }

    pub(crate) fn load_later(&self, model: &str, spec: LoadSpec) -> mpsc::Receiver<Result<()>> {
        let (sender, receiver) = mpsc::channel();
        self.lifecycle().load(model, spec, Box::new(move |result| drop(sender.send(result))));
        receiver
    }

    pub(crate) fn unload(&self, model: &str) -> Result<()> {
        let (sender, receiver) = mpsc::channel();
        self.lifecycle().unload(model, Box::new(move |result| drop(sender.send(result))));
        receiver.recv_timeout(WAIT_MAX).expect("an answer")
    }

    pub(crate) fn used(&self) -> u64 {
        self.store.pool().stats().used
    }
}

pub(crate) fn input(x: f32) -> NamedTensor {
    NamedTensor::new("x", Tensor::from_vec([1usize].as_slice(), vec![x]).unwrap())
}

/// Returns a model without warm-up, for tests that count runs or swap often.
pub(crate) fn cold(world: &World, name: &str) -> ModelConfig {
    let mut config = ModelConfig::new(name, world.model_dir(name));
    config.warmup = WarmupConfig { enabled: false, ..WarmupConfig::default() };
    config
}

/// Converts a fake graph called model.onnx, as `millpond` does for ONNX files. A graph with the
/// text "bad" is refused. "policy" beside the result says at which scheduling policy it ran
/// (proc_pid_stat(5), field 41).
pub(crate) fn converter() -> Converter {
    let script = r#"
        if grep -q bad "$1/model.onnx"; then echo "reading" >&2; echo "no operator bad" >&2; exit 1; fi
        cp "$1/model.onnx" "$2/model.fake" || exit 1
        cut -d ' ' -f 41 "/proc/$$/stat" > "$2/policy"
        bytes=$(wc -c < "$2/model.fake")
        printf '{"format":1,"engine":"fake","created_by":"sh","graph":{"name":"model.fake","bytes":%d},"weights":null,"tensors":[]}' \
            "$bytes" > "$2/millpond.json"
    "#;
    Converter { program: "/bin/sh".into(), args: vec!["-c".into(), script.into(), "sh".into()] }
}
