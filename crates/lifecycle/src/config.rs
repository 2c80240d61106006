//! What the lifecycle is told: which models, where they lie, and how their versions may change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine::{ScheduleOptions, SessionOptions};

/// Which of the versions on disk should serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionPolicy {
    /// The so many highest version numbers; 0 means 1.
    Latest(usize),
    /// Every version.
    All,
    /// These versions, as far as they exist.
    Specific(BTreeSet<u64>),
}

impl Default for VersionPolicy {
    fn default() -> Self {
        VersionPolicy::Latest(1)
    }
}

/// What comes first when versions change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transition {
    /// Load the new version, then unload the old: never without an answer, needs room for both.
    #[default]
    AvailabilityPreserving,
    /// Unload the old version, then load the new: a gap, and room for one. A new version that must
    /// be converted first is, while the old one still serves.
    ResourcePreserving,
}

/// How a version is exercised before it takes requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmupConfig {
    /// Whether at all.
    pub enabled: bool,
    /// Sizes for a dynamic first axis when requests are generated.
    pub batch_sizes: Vec<usize>,
    /// Runs of each request; `None` chooses so that there are at least ten runs in all.
    pub iterations: Option<u32>,
    /// Axes by input name, for generated requests; -1 leaves an axis as the signature has it.
    pub dims: BTreeMap<String, Vec<i64>>,
    /// A generated request that the model refuses fails the load. Off by default: generated values
    /// may break rules of the model that its signature does not state.
    pub fail_on_error: bool,
}

impl Default for WarmupConfig {
    fn default() -> Self {
        let (iterations, dims) = (None, BTreeMap::new());
        WarmupConfig {
            enabled: true,
            batch_sizes: vec![1, 8],
            iterations,
            dims,
            fail_on_error: false,
        }
    }
}

/// One model. `millpond.toml` in its base path overrides everything but name and path.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The name requests use.
    pub name: Arc<str>,
    /// The directory that holds one directory per version.
    pub base_path: PathBuf,
    /// Which versions serve.
    pub policy: VersionPolicy,
    /// What comes first.
    pub transition: Transition,
    /// How a version is exercised.
    pub warmup: WarmupConfig,
    /// Threads inside one run.
    pub session: SessionOptions,
    /// How requests are queued, merged and run.
    pub schedule: ScheduleOptions,
    /// Names for versions ("stable" is 3).
    pub labels: BTreeMap<String, u64>,
    /// The section `[recogniser]` of its file, as text: passed on to
    /// [`engine::Servable::recogniser`].
    pub recogniser: Option<Arc<str>>,
}

impl ModelConfig {
    /// A model with default settings: the latest version, availability first, warm-up on.
    pub fn new(name: impl Into<Arc<str>>, base_path: impl Into<PathBuf>) -> ModelConfig {
        ModelConfig {
            name: name.into(),
            base_path: base_path.into(),
            policy: VersionPolicy::default(),
            transition: Transition::default(),
            warmup: WarmupConfig::default(),
            session: SessionOptions::default(),
            schedule: ScheduleOptions::default(),
            labels: BTreeMap::new(),
            recogniser: None,
        }
    }
}

/// A directory whose subdirectories are models, and the settings they start from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelRoot {
    /// The directory.
    pub dir: PathBuf,
    /// Which versions of its models serve.
    pub policy: VersionPolicy,
    /// In which order its models change versions.
    pub transition: Transition,
    /// How requests for its models are queued, merged and run.
    pub schedule: ScheduleOptions,
}

impl ModelRoot {
    /// A root whose models have the settings of [`ModelConfig::new`].
    pub fn new(dir: impl Into<PathBuf>) -> ModelRoot {
        ModelRoot { dir: dir.into(), ..ModelRoot::default() }
    }

    pub(crate) fn model(&self, name: &str) -> ModelConfig {
        ModelConfig {
            policy: self.policy.clone(),
            transition: self.transition,
            schedule: self.schedule.clone(),
            ..ModelConfig::new(name, self.dir.join(name))
        }
    }
}

/// Where parameters live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ParameterPlacement {
    /// In the slot pool.
    #[default]
    Pool,
    /// Wherever the engine puts them: `model.onnx` is opened as it is, by loaders of normal
    /// priority, without a child process and without the pool. The baseline that `bench swap`
    /// compares with.
    Heap,
}

/// The program that turns a foreign version directory into the mappable layout. The source
/// directory and an empty destination directory are appended to its arguments. Where it fails, the
/// last line of its standard error is the reason, and [`Converter::TRY_AGAIN`] as its exit code
/// says that the same files may do another time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Converter {
    /// The program.
    pub program: PathBuf,
    /// Its leading arguments.
    pub args: Vec<String>,
}

impl Converter {
    /// What it exits with where the reason may pass (no space left, no memory): `EX_TEMPFAIL` of
    /// sysexits(3).
    pub const TRY_AGAIN: i32 = 75;
}

/// Everything the lifecycle is told.
#[derive(Clone, Debug)]
pub struct LifecycleConfig {
    /// Named models.
    pub models: Vec<ModelConfig>,
    /// Directories whose subdirectories are models.
    pub roots: Vec<ModelRoot>,
    /// Time between two looks at the directories.
    pub poll: Duration,
    /// Threads that load; at least one.
    pub load_threads: usize,
    /// Threads that release; at least one.
    pub unload_threads: usize,
    /// Tries after the first that fails, where trying again can help.
    pub retries: u32,
    /// Time between tries.
    pub retry_interval: Duration,
    /// Bytes of the pool kept backed for an incoming version; `None` is the largest version served.
    pub swap_reserve: Option<u64>,
    /// Where converted foreign versions are kept while they serve.
    pub cache_dir: PathBuf,
    /// What converts them.
    pub converter: Converter,
    /// Where parameters live.
    pub placement: ParameterPlacement,
    /// Loaders and unloaders run at idle priority.
    pub background: bool,
    /// A load that has waited for a core so long, and four times as long as it ran, goes on at
    /// ordinary priority.
    pub starvation_limit: Duration,
    /// Inference threads of the server. A model that wants more for its runs is refused: its
    /// threads would only take the cores from each other. `usize::MAX` refuses none.
    pub threads_max: usize,
}

impl LifecycleConfig {
    /// Defaults for everything but the models: a look every second, one loader, one unloader, five
    /// retries a minute apart, parameters in the pool.
    pub fn new(cache_dir: impl Into<PathBuf>, converter: Converter) -> LifecycleConfig {
        LifecycleConfig {
            models: Vec::new(),
            roots: Vec::new(),
            poll: Duration::from_secs(1),
            load_threads: 1,
            unload_threads: 1,
            retries: 5,
            retry_interval: Duration::from_secs(60),
            swap_reserve: None,
            cache_dir: cache_dir.into(),
            converter,
            placement: ParameterPlacement::Pool,
            background: true,
            starvation_limit: Duration::from_secs(5),
            threads_max: usize::MAX,
        }
    }
}
