//! Configuration of the lifecycle: models, directories, and how versions change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use engine::{ExampleSettings, ScheduleOptions, SessionOptions};
use os::ChildProgram;

use crate::{RolloutFile, UpdateConfig};

/// Default of [`LifecycleConfig::load_timeout`]. A large model on a slow disk takes minutes.
pub const LOAD_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3600);

/// Versions on disk that should serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionPolicy {
    /// The given number of versions with the highest numbers. 0 means 1.
    Latest(usize),
    /// Every version.
    All,
    /// The given versions, if they exist.
    Specific(BTreeSet<u64>),
}

impl Default for VersionPolicy {
    fn default() -> Self {
        VersionPolicy::Latest(1)
    }
}

/// Order of load and unload during a change of versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transition {
    /// Load the new version, then unload the old one. The model always answers. The pool needs room
    /// for both.
    #[default]
    AvailabilityPreserving,
    /// Unload the old version, then load the new one. The pool needs room for one only, and the
    /// model does not answer meanwhile. A new version is converted, if necessary, while the old one
    /// still serves.
    ResourcePreserving,
}

impl Transition {
    /// Checks the settings of rollouts, which need both versions in memory.
    ///
    /// # Errors
    /// A message that names the key and the remedy.
    pub fn check_rollout(self, rollout: &RolloutFile) -> Result<(), String> {
        rollout.check()?;
        if self == Transition::ResourcePreserving && rollout.automatic().is_some() {
            return Err("a rollout needs both versions in memory; \
                 set transition = \"availability-preserving\", or traffic and shadow to 0"
                .into());
        }
        Ok(())
    }
}

/// Warm-up of a version before it takes requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmupConfig {
    /// True if versions are warmed up.
    pub enabled: bool,
    /// Sizes of a dynamic first axis in generated requests.
    pub batch_sizes: Vec<usize>,
    /// Runs of each request. `None` chooses a number that gives at least ten runs in all. If
    /// requests change the model's state, it is 1.
    pub iterations: Option<u32>,
    /// Axis sizes of generated requests by input name. -1 keeps the size of the signature.
    pub dims: BTreeMap<String, Vec<i64>>,
    /// True if a load fails when the model refuses a generated request. Off by default, because
    /// generated values may break rules that the signature does not state.
    pub fail_on_error: bool,
    /// True if a load fails when a recorded request is wrong or fails, as in TensorFlow Serving.
    /// Otherwise it is left out, and a note names it.
    pub fail_on_recorded_error: bool,
    /// Threads that run the requests, at least one.
    pub threads: usize,
}

impl Default for WarmupConfig {
    fn default() -> Self {
        let iterations = None;
        let dims = BTreeMap::new();
        WarmupConfig {
            enabled: true,
            batch_sizes: vec![1, 8],
            iterations,
            dims,
            fail_on_error: false,
            fail_on_recorded_error: true,
            threads: 1,
        }
    }
}

/// Configuration of one model. `millpond.toml` in its base path overrides all but name and path.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Name that requests use.
    pub name: Arc<str>,
    /// Directory with one subdirectory per version.
    pub base_path: PathBuf,
    /// URL of an object store that `base_path` mirrors. The lifecycle does not connect to it.
    pub store: Option<Arc<str>>,
    /// Versions that should serve.
    pub policy: VersionPolicy,
    /// Order of load and unload during a change.
    pub transition: Transition,
    /// Warm-up before the first request.
    pub warmup: WarmupConfig,
    /// Threads inside one run.
    pub session: SessionOptions,
    /// True if the server's settings state that no worker process runs the model. Otherwise a model
    /// on a GPU has one.
    pub in_process: bool,
    /// Settings for queueing, merging and running requests.
    pub schedule: ScheduleOptions,
    /// Version numbers by label ("stable" is 3).
    pub labels: BTreeMap<String, u64>,
    /// Text of the section `[recogniser]` of its file, if it has one. Passed on to
    /// [`engine::Servable::recogniser`].
    pub recogniser: Option<Arc<str>>,
    /// True if the server's settings file has a section for the model. Settings of another server
    /// beside its versions are not reported then, since they were converted.
    pub has_section: bool,
    /// Share of the model's requests that goes into the request log, 0 to 1. Passed on to
    /// [`engine::Servable::request_log_rate`].
    pub request_log_rate: Option<f64>,
    /// Rules for Classify and Regress, passed on to [`engine::Servable::examples`].
    pub examples: Option<Arc<ExampleSettings>>,
    /// Rollouts of new versions.
    pub rollout: RolloutFile,
}

impl ModelConfig {
    /// Configures a model with defaults: the latest version, availability first, warm-up on.
    pub fn new(name: impl Into<Arc<str>>, base_path: impl Into<PathBuf>) -> ModelConfig {
        ModelConfig {
            name: name.into(),
            base_path: base_path.into(),
            store: None,
            policy: VersionPolicy::default(),
            transition: Transition::default(),
            warmup: WarmupConfig::default(),
            session: SessionOptions::default(),
            in_process: false,
            schedule: ScheduleOptions::default(),
            labels: BTreeMap::new(),
            recogniser: None,
            has_section: false,
            request_log_rate: None,
            examples: None,
            rollout: RolloutFile::default(),
        }
    }
}

/// A directory whose subdirectories are models, and their initial settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelRoot {
    /// Path of the directory.
    pub dir: PathBuf,
    /// URL of an object store that `dir` mirrors. The lifecycle does not connect to it.
    pub store: Option<Arc<str>>,
    /// Versions of its models that should serve.
    pub policy: VersionPolicy,
    /// Order of load and unload during a change.
    pub transition: Transition,
    /// Settings for queueing, merging and running requests.
    pub schedule: ScheduleOptions,
    /// Rollouts of new versions of its models.
    pub rollout: RolloutFile,
}

impl ModelRoot {
    /// Configures a root whose models have the settings of [`ModelConfig::new`].
    pub fn new(dir: impl Into<PathBuf>) -> ModelRoot {
        ModelRoot { dir: dir.into(), ..ModelRoot::default() }
    }

    pub(crate) fn model(&self, name: &str) -> ModelConfig {
        ModelConfig {
            policy: self.policy.clone(),
            transition: self.transition,
            schedule: self.schedule.clone(),
            rollout: self.rollout.clone(),
            ..ModelConfig::new(name, self.dir.join(name))
        }
    }
}

/// Everything that is served. [`crate::Lifecycle::configure`] replaces it as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigSet {
    /// Named models.
    pub models: Vec<ModelConfig>,
    /// Directories whose subdirectories are models.
    pub roots: Vec<ModelRoot>,
}

impl ConfigSet {
    /// Checks the names of the models.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that requests cannot use, or that occurs twice.
    pub fn check(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        for ModelConfig { name, .. } in &self.models {
            if name.is_empty() || name.contains('/') {
                return Err(Error::invalid(format!("\"{name}\" cannot be the name of a model")));
            }
            if !names.insert(name) {
                return Err(Error::invalid(format!("model \"{name}\" is configured twice")));
            }
        }
        Ok(())
    }
}

/// Memory that holds the parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ParameterPlacement {
    /// The slot pool.
    #[default]
    Pool,
    /// The engine's own allocations. Loaders of ordinary priority open `model.onnx` as it is,
    /// without a child process and without the pool. This is the baseline of `bench swap`.
    Heap,
}

/// Program that turns a foreign version directory into the mappable layout. The source directory
/// and an empty destination directory are appended to its arguments. If it fails, the last line of
/// its standard error is the reason. The exit code [`Converter::TRY_AGAIN`] means that another try
/// with the same files may succeed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Converter {
    /// The program.
    pub program: ChildProgram,
    /// First arguments.
    pub args: Vec<String>,
}

impl Converter {
    /// Exit code for a temporary failure, such as a full disk or too little memory: `EX_TEMPFAIL`
    /// of sysexits(3).
    pub const TRY_AGAIN: i32 = 75;
    /// Flag with the tags of a SavedModel's graph, separated by commas, if a model's settings name
    /// some. It stands before source and destination.
    pub(crate) const TAGS_FLAG: &str = "--tags";
}

/// Configuration of the lifecycle.
#[derive(Clone, Debug)]
pub struct LifecycleConfig {
    /// Models at the start.
    pub models: Vec<ModelConfig>,
    /// Directories of models at the start.
    pub roots: Vec<ModelRoot>,
    /// Time between two scans of the directories.
    pub poll: Duration,
    /// True if the directories are scanned only until the first load is finished, and on request.
    pub poll_once: bool,
    /// True if directories are still being filled at the start. The first load is then not finished
    /// before [`crate::SourceReport::complete`].
    pub awaits_sources: bool,
    /// Load threads, at least one.
    pub load_threads: usize,
    /// Unload threads, at least one.
    pub unload_threads: usize,
    /// Maximum further tries of a load that failed with a retryable error.
    pub retries: u32,
    /// Time between tries.
    pub retry_interval: Duration,
    /// Maximum time of a load with its warm-up, and of a conversion before it. The version fails
    /// then. A thread that does not return from an engine is abandoned.
    pub load_timeout: Duration,
    /// Bytes of the pool that are kept faulted in for an incoming version. `None` takes the size of
    /// the largest version.
    pub swap_reserve: Option<u64>,
    /// Directory of converted foreign versions while they serve.
    pub cache_dir: PathBuf,
    /// Program that converts foreign versions.
    pub converter: Converter,
    /// File that keeps withdrawn versions over a restart. `None` forgets them.
    pub withdrawn_file: Option<PathBuf>,
    /// File that keeps running rollouts over a restart. `None` forgets them.
    pub rollouts_file: Option<PathBuf>,
    /// Waits of new versions for their turn in the fleet.
    pub updates: UpdateConfig,
    /// Memory that holds the parameters.
    pub placement: ParameterPlacement,
    /// True if loaders and unloaders run at idle priority.
    pub background: bool,
    /// Time that a load waits for a core before it continues at ordinary priority. It must also
    /// have waited for four times its running time.
    pub starvation_limit: Duration,
    /// Inference workers of the server, at least one. They limit the requests in flight of a slow
    /// version in a rollout.
    pub workers: usize,
    /// Inference threads of the server. A model that requests more for its runs is refused, because
    /// its threads would only take cores from each other. `usize::MAX` refuses none.
    pub threads_max: usize,
}

impl LifecycleConfig {
    /// Configures everything but the models. Scans every second, uses one loader and one unloader,
    /// and keeps parameters in the pool. Tries a failed load five more times, after 60 s each.
    pub fn new(cache_dir: impl Into<PathBuf>, converter: Converter) -> LifecycleConfig {
        LifecycleConfig {
            models: Vec::new(),
            roots: Vec::new(),
            poll: Duration::from_secs(1),
            poll_once: false,
            awaits_sources: false,
            load_threads: 1,
            unload_threads: 1,
            retries: 5,
            retry_interval: Duration::from_secs(60),
            load_timeout: LOAD_TIMEOUT_DEFAULT,
            swap_reserve: None,
            cache_dir: cache_dir.into(),
            converter,
            withdrawn_file: None,
            rollouts_file: None,
            updates: UpdateConfig::default(),
            placement: ParameterPlacement::Pool,
            background: true,
            starvation_limit: Duration::from_secs(5),
            workers: 1,
            threads_max: usize::MAX,
        }
    }

    /// Returns true if foreign versions are converted, and parameters are read into the pool.
    pub(crate) fn uses_pool(&self) -> bool {
        self.placement == ParameterPlacement::Pool
    }

    /// Returns true if loaders and unloaders run at idle priority. Those of the baseline in the
    /// heap do not.
    pub(crate) fn runs_in_background(&self) -> bool {
        self.background && self.uses_pool()
    }
}
