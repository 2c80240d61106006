//! What a server is told. Plain values: `cli` makes them from arguments, environment and files.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::units::{GIB, MIB};
use engine::LibrarySearch;
use lifecycle::{ModelConfig, ParameterHome, Root};
use transport::access::{AccessPolicy, Secret};
use transport::{ByteBudget, ConnectionLimits, RequestLimits};

/// Everything `millpond serve` may be told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen and what to allow there.
    pub listeners: ListenerConfig,
    /// Threads and queue of the data plane.
    pub data: DataConfig,
    /// Parameter memory.
    pub memory: MemoryConfig,
    /// Models and their life.
    pub models: ModelsConfig,
    /// Where to look for ONNX Runtime.
    pub onnxruntime: LibrarySearch,
    /// Where to look for LibTorch; it is opened when the first TorchScript model is loaded.
    pub libtorch: engine::LibrarySearch,
    /// Recordings.
    pub audio: AudioConfig,
    /// Collections, and pictures in them.
    pub search: SearchConfig,
}

/// Default of [`ListenerConfig::drain_time`]: clients that keep connections busy send a request every few milliseconds.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Sockets and limits.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// Address to listen on.
    pub host: IpAddr,
    /// HTTP port; 0 picks a free one.
    pub http_port: u16,
    /// gRPC port; 0 picks a free one.
    pub grpc_port: u16,
    /// Names by which clients may know this server, besides `localhost` and its own host name.
    pub allowed_hosts: Vec<String>,
    /// Accept admin calls from other machines too, if they show the admin key.
    pub allow_remote_admin: bool,
    /// What admin calls must show; `None` is nothing, and then other machines are refused.
    pub admin_key: Option<Secret>,
    /// Largest request body in bytes.
    pub body_bytes_max: usize,
    /// Open connections a door holds; the next one is closed at once.
    pub connections_max: usize,
    /// Requests being answered at the same time on all doors.
    pub requests_max: usize,
    /// Bytes that all requests in flight may hold together, from the body to the unsent answer; `None` is an eighth of
    /// the memory of the machine or container, from 256 MiB to 8 GiB.
    pub request_memory_bytes: Option<u64>,
    /// A request without a deadline of its own gets this one; also the longest allowed.
    pub request_timeout: Duration,
    /// How long a client may take to send its headers, and between two pieces of its body.
    pub client_timeout: Duration,
    /// The time within which a client must take the next part of a large answer; see `answers`.
    pub answer_window: Duration,
    /// How long shutdown waits for requests that are being answered.
    pub shutdown_grace: Duration,
    /// How much of that time idle HTTP/1.1 connections stay open for a request that is on its way.
    pub drain_time: Duration,
    /// Threads that receive, decode and encode.
    pub threads: usize,
    /// Predict answers over gRPC with `tensor_content` instead of the typed fields (`float_val` and so on).
    pub tfs_tensor_content: bool,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        ListenerConfig {
            host: IpAddr::from([127, 0, 0, 1]),
            http_port: 8501,
            grpc_port: 8500,
            allowed_hosts: Vec::new(),
            allow_remote_admin: false,
            admin_key: None,
            body_bytes_max: 64 * MIB as usize,
            connections_max: 16_384,
            requests_max: 1024,
            request_memory_bytes: None,
            request_timeout: Duration::from_secs(60),
            client_timeout: Duration::from_secs(10),
            answer_window: transport::ANSWER_WINDOW,
            shutdown_grace: Duration::from_secs(30),
            drain_time: DRAIN_TIME,
            threads: 0,
            tfs_tensor_content: false,
        }
    }
}

impl ListenerConfig {
    /// Returns the limits of the connections of one listener.
    pub(crate) fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            connections_max: self.connections_max,
            streams_max: self.requests_max,
            header_timeout: self.client_timeout,
            shutdown_grace: self.shutdown_grace,
            drain_time: self.drain_time,
        }
    }

    /// Returns the limits of requests.
    pub(crate) fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            body_bytes_max: self.body_bytes_max,
            requests_max: self.requests_max,
            client_timeout: self.client_timeout,
            request_timeout: self.request_timeout,
            answer_window: self.answer_window,
        }
    }

    /// Returns the bytes that requests in flight may hold: the setting, or the default for this machine.
    pub(crate) fn request_memory(&self) -> u64 {
        let machine = || os::process::machine().map_or(0, |machine| machine.total);
        self.request_memory_bytes.unwrap_or_else(|| ByteBudget::default_bytes(machine()))
    }
}

impl Config {
    /// Returns the rules by which requests are accepted.
    pub(crate) fn access_policy(&self) -> AccessPolicy {
        AccessPolicy {
            host: self.listeners.host,
            allowed_hosts: self.listeners.allowed_hosts.clone(),
            allow_remote_admin: self.listeners.allow_remote_admin,
            admin_key: self.listeners.admin_key.clone(),
            api_key: self.search.api_key.clone().map(Secret),
        }
    }
}

/// The data plane.
#[derive(Clone, Debug)]
pub struct DataConfig {
    /// Inference workers; 0 is one per core.
    pub workers: usize,
    /// Merged batches of one model at the same time, as the models' settings have it where they do not say; 0 is
    /// as many as there are workers. Here it is only checked.
    pub runtime_threads: usize,
    /// Requests of one model waiting for a worker; the next one is refused.
    pub queue_max: usize,
    /// Pin worker i to core i.
    pub pin: bool,
    /// Allow more workers than cores.
    pub oversubscribe: bool,
}

impl Default for DataConfig {
    fn default() -> Self {
        DataConfig { workers: 0, runtime_threads: 0, queue_max: 512, pin: false, oversubscribe: false }
    }
}

/// Parameter memory.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Where parameters live.
    pub home: ParameterHome,
    /// Largest size of the slot pool; `None` is 80 % of the machine's memory.
    pub pool_bytes_max: Option<u64>,
    /// Room kept for an incoming version; `None` is the largest version served.
    pub swap_reserve: Option<u64>,
    /// Bytes per second at which weights are read; 0 is unlimited.
    pub load_rate: u64,
    /// Bytes per second at which fresh slots are faulted in; 0 is unlimited.
    pub fault_rate: u64,
    /// Ask for 2 MiB pages.
    pub huge_pages: bool,
    /// Read weights with O_DIRECT.
    pub direct: bool,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig {
            home: ParameterHome::Pool,
            pool_bytes_max: None,
            swap_reserve: None,
            load_rate: 800_000_000,
            fault_rate: 2 * GIB,
            huge_pages: true,
            direct: true,
        }
    }
}

/// Models and their life.
#[derive(Clone, Debug)]
pub struct ModelsConfig {
    /// Named models.
    pub models: Vec<ModelConfig>,
    /// Directories whose subdirectories are models.
    pub roots: Vec<Root>,
    /// Time between two looks at the directories.
    pub poll: Duration,
    /// Threads that load.
    pub load_threads: usize,
    /// Threads that release.
    pub unload_threads: usize,
    /// Tries after the first that fails.
    pub load_retries: u32,
    /// Time between tries.
    pub load_retry_interval: Duration,
    /// Loaders run at idle priority.
    pub background: bool,
    /// Where converted foreign models are kept while they serve.
    pub cache_dir: PathBuf,
    /// The program that converts foreign models (this binary) and its leading arguments.
    pub converter: (PathBuf, Vec<String>),
}

/// Recordings: limits and places.
#[derive(Clone, Debug)]
pub struct AudioConfig {
    /// Recordings being listened to at the same time; the next one is refused.
    pub recordings_max: usize,
    /// Bytes that one recording may have.
    pub bytes_max: u64,
    /// Bytes of one recording that may lie in a temporary file, where its format or its sender wants that.
    pub spool_bytes_max: u64,
    /// Directory of those files, which have no name there; `None` is the system's.
    pub spool_dir: Option<PathBuf>,
    /// Directory of the enrolled speakers, one file a recogniser; `None`: nobody can be enrolled.
    pub speakers_dir: Option<PathBuf>,
}

impl Default for AudioConfig {
    fn default() -> Self {
        AudioConfig {
            recordings_max: 4,
            bytes_max: 8 * GIB,
            spool_bytes_max: 2 * GIB,
            spool_dir: None,
            speakers_dir: None,
        }
    }
}

/// Collections: where they are, and what they may take.
#[derive(Clone, PartialEq, Eq)]
pub struct SearchConfig {
    /// Directory of the collections; `None`: there are none, and doors say how to change that.
    pub directory: Option<PathBuf>,
    /// Whether the server does not start without the directory: it was asked for. Otherwise it starts without collections.
    pub required: bool,
    /// Memory of all collections together, which is never passed.
    pub memory_bytes: u64,
    /// How much of it caches what is read most of the records on the medium.
    pub cache_bytes: u64,
    /// Bytes of the collections' disk that stay free; `None` is a share of it, 0 is no reserve.
    pub disk_reserve: Option<u64>,
    /// Threads that search; 0 is one per core.
    pub threads: usize,
    /// Directory or URL of pictures as they were sent; `None` is a directory beside the collections.
    pub originals: Option<String>,
    /// What the place of a URL is told besides: names and values as its provider's own variables have them, in lower case.
    pub originals_options: Vec<(String, String)>,
    /// The model that embeds pictures; `None` is the only served model whose input looks like pictures.
    pub embedding_model: Option<String>,
    /// Most collections.
    pub collections_max: usize,
    /// What callers of the routes of collections and pictures must show; `None`: nothing.
    pub api_key: Option<String>,
    /// The GPU that large segments are ranked on; `None`: all is done by the processor.
    pub gpu: Option<search::coarse::device::Options>,
}

impl std::fmt::Debug for SearchConfig {
    /// Without keys, which would end up in a log.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SearchConfig")
            .field("directory", &self.directory)
            .field("required", &self.required)
            .field("memory_bytes", &self.memory_bytes)
            .field("cache_bytes", &self.cache_bytes)
            .field("disk_reserve", &self.disk_reserve)
            .field("threads", &self.threads)
            .field("originals", &self.originals)
            .field("embedding_model", &self.embedding_model)
            .field("collections_max", &self.collections_max)
            .field("gpu", &self.gpu)
            .field("api_key", &self.api_key.as_ref().map(|_| "..."))
            .finish()
    }
}

impl Default for SearchConfig {
    fn default() -> Self {
        SearchConfig {
            directory: None,
            required: false,
            memory_bytes: 2 * GIB,
            cache_bytes: 256 * MIB,
            disk_reserve: None,
            threads: 0,
            originals: None,
            originals_options: Vec::new(),
            embedding_model: None,
            collections_max: crate::descriptors::COLLECTIONS_MAX,
            api_key: None,
            gpu: None,
        }
    }
}
