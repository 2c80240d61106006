//! The configuration of a server, as plain values. `cli` makes them from arguments, environment and
//! files.

mod cluster;
mod collections;
mod listeners;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api_audio::AudioConfig;
use base::units::GIB;
use base::{Error, ErrorKind, Result};
use engine::LibrarySearch;
use import::tfs::ModelListRules;
use lifecycle::{ModelConfig, ModelRoot, ParameterPlacement};
use model_store::StoreOptions;
use observe::{RequestLogConfig, TraceConfig};
use os::ChildProgram;
use transport::access::{AccessPolicy, KeyRing, KeySources, Secret};

pub use self::cluster::ClusterConfig;
pub use self::collections::{BackupSettings, SearchConfig};
pub use self::listeners::{ListenerConfig, TFS_METRICS};
use crate::log_filter::LogFilter;
use crate::updates::UpdateSettings;

/// The configuration of `millpond serve`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses, access, and limits of connections and requests.
    pub listeners: ListenerConfig,
    /// Threads and queue of the data plane.
    pub data: DataConfig,
    /// Parameter memory.
    pub memory: MemoryConfig,
    /// Models and the settings for loading them.
    pub models: ModelsConfig,
    /// Search path of the library of ONNX Runtime.
    pub onnxruntime: LibrarySearch,
    /// Search path of LibTorch, which is opened when the first TorchScript model is loaded.
    pub libtorch: engine::LibrarySearch,
    /// Search path of TensorFlow, which is opened when the first SavedModel is loaded.
    pub tensorflow: engine::LibrarySearch,
    /// Limits and directories of recordings.
    pub audio: AudioConfig,
    /// Collections and images.
    pub search: SearchConfig,
    /// The cluster that this server is a node of, or `None` if it works alone.
    pub cluster: Option<ClusterConfig>,
    /// Export of traces. `None` makes none.
    pub traces: Option<TraceConfig>,
    /// Filter of the program's log, or `None` if it cannot change.
    pub log: Option<Arc<dyn LogFilter>>,
}

impl Config {
    /// Returns the rules by which requests are accepted.
    ///
    /// # Errors
    /// `InvalidArgument` if the file of keys is missing, or else the error of [`KeyRing::read`].
    pub(crate) fn access_policy(&self) -> Result<AccessPolicy> {
        let sources = KeySources {
            file: self.listeners.keys.as_deref(),
            api_key: self.search.api_key.as_deref(),
            admin_key: self.listeners.admin_key.as_ref().map(|Secret(key)| key.as_str()),
        };
        let keys = KeyRing::read(sources).map_err(|error| unusable("--keys", error))?;
        Ok(AccessPolicy {
            keys: keys.map(Arc::new),
            host: self.listeners.widest_host(),
            allowed_hosts: self.listeners.allowed_hosts.clone(),
            allow_remote_admin: self.listeners.allow_remote_admin,
            cors: self.listeners.cors.clone(),
            metrics: Arc::default(),
        })
    }

    /// Returns the settings of image collections. In a cluster, originals are in its store, beside
    /// the logs of their collection.
    pub(crate) fn images(&self) -> api_images::ImagesConfig {
        let images = self.search.images();
        match &self.cluster {
            Some(cluster) => api_images::ImagesConfig {
                originals: Some(format!("{}/data", cluster.directory().trim_end_matches('/'))),
                originals_options: cluster.store_options.clone(),
                ..images
            },
            None => images,
        }
    }
}

/// Puts `setting` before the error of its file. A missing file becomes `InvalidArgument`.
pub(crate) fn unusable(setting: &str, error: Error) -> Error {
    if error.kind() == ErrorKind::NotFound {
        return Error::invalid(format!("{setting}: {}", error.message())).with_source(error);
    }
    error.context(setting)
}

/// Workers and their queue.
#[derive(Clone, Debug)]
pub struct DataConfig {
    /// Inference workers. 0 is one per core.
    pub workers: usize,
    /// Maximum merged batches of one model at the same time, if the model's settings do not set it.
    /// 0 is the number of workers. Only its consistency is checked here.
    pub runtime_threads: usize,
    /// Maximum queued requests of one model. A further one is refused.
    pub queue_max: usize,
    /// True to pin worker `i` to the `i`-th core that the process may use.
    pub pin: bool,
    /// True to allow more workers than cores.
    pub oversubscribe: bool,
    /// Log of a sample of the requests. `None` logs none.
    pub request_log: Option<RequestLogConfig>,
}

impl Default for DataConfig {
    fn default() -> Self {
        DataConfig {
            workers: 0,
            runtime_threads: 0,
            queue_max: 512,
            pin: false,
            oversubscribe: false,
            request_log: None,
        }
    }
}

/// Parameter memory.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// The kind of memory that holds parameters.
    pub placement: ParameterPlacement,
    /// Largest size of the slot pool. `None` is 80 % of the machine's memory.
    pub pool_bytes_max: Option<u64>,
    /// Bytes kept free for an incoming version. `None` is the size of the largest served version.
    pub swap_reserve: Option<u64>,
    /// Rate of reading weights in bytes per second. 0 is unlimited.
    pub load_rate: u64,
    /// Rate of faulting fresh slots in, in bytes per second. 0 is unlimited.
    pub fault_rate: u64,
    /// True to request pages of 2 MiB.
    pub huge_pages: bool,
    /// True to read weights with O_DIRECT.
    pub direct: bool,
    /// True to keep a spare worker process for each engine that opens slowly and has an isolated
    /// model.
    pub spare_workers: bool,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig {
            placement: ParameterPlacement::Pool,
            pool_bytes_max: None,
            swap_reserve: None,
            load_rate: 800_000_000,
            fault_rate: 2 * GIB,
            huge_pages: true,
            direct: true,
            spare_workers: true,
        }
    }
}

/// Models and the settings for loading them.
#[derive(Clone, Debug)]
pub struct ModelsConfig {
    /// Named models.
    pub models: Vec<ModelConfig>,
    /// Directories whose subdirectories are models.
    pub roots: Vec<ModelRoot>,
    /// Time between two scans of the directories.
    pub poll: Duration,
    /// True to scan them only until the first load is finished, and on request.
    pub poll_once: bool,
    /// Threads that load.
    pub load_threads: usize,
    /// Threads that release.
    pub unload_threads: usize,
    /// Retries of a failed load.
    pub load_retries: u32,
    /// Time between retries.
    pub load_retry_interval: Duration,
    /// Maximum time of a load with its warm-up, and of a conversion before it.
    pub load_timeout: Duration,
    /// True to load at idle priority.
    pub background: bool,
    /// Directory of converted models while they are served.
    pub cache_dir: PathBuf,
    /// The program that converts models (this binary) and its leading arguments.
    pub converter: (ChildProgram, Vec<String>),
    /// The program that runs isolated models (this binary) and its arguments.
    pub worker: (ChildProgram, Vec<String>),
    /// Rules for lists of models that clients send.
    pub lists: ModelListRules,
    /// Models in object stores.
    pub stores: StoresConfig,
    /// Waits of new versions for their turn in a fleet.
    pub updates: UpdateSettings,
}

/// Models in object stores.
#[derive(Clone, Debug)]
pub struct StoresConfig {
    /// Options of all providers.
    pub options: StoreOptions,
    /// Maximum bytes of local copies.
    pub cache_bytes_max: u64,
    /// True if a store has no complete copy yet, so the first load is not finished before there is
    /// one. The server sets it.
    pub awaits_copies: bool,
}

impl Default for StoresConfig {
    fn default() -> Self {
        StoresConfig {
            options: StoreOptions::default(),
            cache_bytes_max: 32 * GIB,
            awaits_copies: false,
        }
    }
}
