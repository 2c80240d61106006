//! The configuration of a server, as plain values. `cli` makes them from arguments, environment and
//! files.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::log_filter::LogFilter;
use crate::readiness::ReadinessPolicy;
use crate::updates::UpdateSettings;
use api_audio::AudioConfig;
use base::Result;
use base::units::{GIB, MIB};
use cluster_node::Roles;
use engine::LibrarySearch;
use etcd::EtcdUser;
use http_client::ClientTlsFiles;
use import::tfs::ModelListRules;
use lifecycle::{ModelConfig, ModelRoot, ParameterPlacement};
use observe::{MetricNames, RequestLogConfig, TraceConfig};
use search::codes::CodesPlace;
use search::registry::MediumChoice as SearchMedium;
use transport::access::{AccessPolicy, CorsPolicy, KeyRing, KeySources, Secret};
use transport::{ByteBudget, ConnectionLimits, PemSource, RequestLimits, TlsFiles};

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
    /// Audio.
    pub audio: AudioConfig,
    /// Collections and images.
    pub search: SearchConfig,
    /// The cluster that this server is a node of; `None` if it works alone.
    pub cluster: Option<ClusterConfig>,
    /// Export of traces; `None` makes none.
    pub traces: Option<TraceConfig>,
    /// Filter of the program's log; `None` if it cannot change.
    pub log: Option<Arc<dyn LogFilter>>,
}

/// Path of TensorFlow Serving's metrics.
pub const TFS_METRICS: &str = "/monitoring/prometheus/metrics";

/// Default of [`ListenerConfig::socket_mode`]: only this process's user can connect.
const SOCKET_MODE: u32 = 0o600;

/// Default of [`ListenerConfig::drain_time`]: a busy connection has a request every few
/// milliseconds.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Addresses, access, and limits of connections and requests.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// Address to listen on.
    pub host: IpAddr,
    /// HTTP port; 0 picks a free one, and `None` offers no HTTP.
    pub http_port: Option<u16>,
    /// gRPC port; 0 picks a free one, and `None` offers no gRPC over TCP.
    pub grpc_port: Option<u16>,
    /// Port of HTTP for admin calls, metrics and pages, which the other ports then do not offer.
    pub admin_port: Option<u16>,
    /// Address of the admin port; `None` is `host`.
    pub admin_host: Option<IpAddr>,
    /// Path of a Unix socket for HTTP.
    pub http_socket: Option<PathBuf>,
    /// Path of a Unix socket for gRPC.
    pub grpc_socket: Option<PathBuf>,
    /// Mode of the files of the Unix sockets.
    pub socket_mode: u32,
    /// Certificates of both ports; `None` serves plain text.
    pub tls: Option<TlsFiles>,
    /// Serve HTTP in plain text although there are certificates, as TensorFlow Serving does.
    pub plain_http: bool,
    /// File of keys. If there is any key, every call but health checks needs one.
    pub keys: Option<PathBuf>,
    /// Names of this server in requests, besides `localhost` and the name of the machine.
    pub allowed_hosts: Vec<String>,
    /// Accept admin calls from other machines if they show the admin key.
    pub allow_remote_admin: bool,
    /// Key of an administrator.
    pub admin_key: Option<Secret>,
    /// Largest request body in bytes.
    pub body_bytes_max: usize,
    /// Maximum open connections of a listener. A further one is closed at once.
    pub connections_max: usize,
    /// Maximum requests that are answered at the same time.
    pub requests_max: usize,
    /// Maximum bytes that all requests in flight hold together, from the body to the unsent answer.
    /// `None` is an eighth of the memory of the machine or container, from 256 MiB to 8 GiB.
    pub request_memory_bytes: Option<u64>,
    /// Deadline of a request without one, and the longest deadline of any request.
    pub request_timeout: Duration,
    /// Shorter deadline of requests to TensorFlow Serving's REST API.
    pub rest_timeout: Option<Duration>,
    /// Listen once the first load is finished, as TensorFlow Serving does, whose clients take an
    /// open port for a ready server.
    pub listen_when_settled: bool,
    /// Models that must serve for the server to be ready.
    pub readiness: ReadinessPolicy,
    /// Origins whose pages may use the HTTP API.
    pub cors: CorsPolicy,
    /// Path of the metrics under TensorFlow Serving's names; `None` does not offer them.
    pub tfs_metrics: Option<String>,
    /// Other servers whose metric names `/metrics` has in addition to Millpond's.
    pub metric_names: MetricNames,
    /// Longest time for the headers of a request, and between two pieces of its body.
    pub client_timeout: Duration,
    /// Time in which a client must read at least 256 KiB of a large answer.
    pub answer_window: Duration,
    /// Longest wait for running requests at shutdown.
    pub shutdown_grace: Duration,
    /// Part of that time in which idle HTTP/1.1 connections wait for a request in flight.
    pub drain_time: Duration,
    /// Threads of connections, which receive, decode and encode. 0 is one per core.
    pub threads: usize,
    /// Answer Predict over gRPC with `tensor_content` instead of the typed fields (`float_val`
    /// etc.).
    pub tfs_tensor_content: bool,
    /// Refuse a request over TensorFlow Serving's API whose signature has another method, as its
    /// flag `enable_signature_method_name_check` does.
    pub tfs_method_check: bool,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        ListenerConfig {
            host: IpAddr::from([127, 0, 0, 1]),
            http_port: Some(8501),
            grpc_port: Some(8500),
            admin_port: None,
            admin_host: None,
            http_socket: None,
            grpc_socket: None,
            socket_mode: SOCKET_MODE,
            tls: None,
            plain_http: false,
            keys: None,
            allowed_hosts: Vec::new(),
            allow_remote_admin: false,
            admin_key: None,
            body_bytes_max: 64 * MIB as usize,
            connections_max: 16_384,
            requests_max: 1024,
            request_memory_bytes: None,
            request_timeout: Duration::from_secs(60),
            rest_timeout: None,
            listen_when_settled: false,
            readiness: ReadinessPolicy::All,
            cors: CorsPolicy::Closed,
            tfs_metrics: Some(TFS_METRICS.to_owned()),
            metric_names: MetricNames::default(),
            client_timeout: Duration::from_secs(10),
            answer_window: transport::ANSWER_WINDOW,
            shutdown_grace: Duration::from_secs(30),
            drain_time: DRAIN_TIME,
            threads: 0,
            tfs_tensor_content: false,
            tfs_method_check: false,
        }
    }
}

impl ListenerConfig {
    /// Returns the address of the admin port.
    pub(crate) fn admin_host(&self) -> IpAddr {
        self.admin_host.unwrap_or(self.host)
    }

    /// Returns the address that the most machines reach.
    pub(crate) fn widest_host(&self) -> IpAddr {
        let admin = self.admin_port.map(|_| self.admin_host());
        let hosts = [self.host].into_iter().chain(admin);
        hosts.into_iter().find(|host| !host.is_loopback()).unwrap_or(self.host)
    }

    /// Returns true if the HTTP port is encrypted.
    pub(crate) fn encrypts_http(&self) -> bool {
        self.tls.is_some() && !self.plain_http
    }

    /// Returns the number of listeners.
    pub(crate) fn count(&self) -> usize {
        let ports = [self.http_port, self.grpc_port, self.admin_port].into_iter().flatten().count();
        ports + [&self.http_socket, &self.grpc_socket].into_iter().flatten().count()
    }

    /// Returns the limits of the connections of one listener.
    pub(crate) fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            answer_window: self.answer_window,
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

    /// Returns the bytes that requests in flight may hold: the setting, or the default for this
    /// machine.
    pub(crate) fn request_memory(&self) -> u64 {
        let machine = || os::process::machine().map_or(0, |machine| machine.total);
        self.request_memory_bytes.unwrap_or_else(|| ByteBudget::default_bytes(machine()))
    }
}

impl Config {
    /// Returns the rules by which requests are accepted.
    ///
    /// # Errors
    /// Returns the errors of the file of keys.
    pub(crate) fn access_policy(&self) -> Result<AccessPolicy> {
        let sources = KeySources {
            file: self.listeners.keys.as_deref(),
            api_key: self.search.api_key.as_deref(),
            admin_key: self.listeners.admin_key.as_ref().map(|Secret(key)| key.as_str()),
        };
        Ok(AccessPolicy {
            keys: KeyRing::read(sources)?.map(Arc::new),
            host: self.listeners.widest_host(),
            allowed_hosts: self.listeners.allowed_hosts.clone(),
            allow_remote_admin: self.listeners.allow_remote_admin,
            cors: self.listeners.cors.clone(),
            metrics: Arc::default(),
        })
    }
}

/// Workers and their queue.
#[derive(Clone, Debug)]
pub struct DataConfig {
    /// Inference workers; 0 is one per core.
    pub workers: usize,
    /// Maximum merged batches of one model at the same time, if the model's settings do not set it.
    /// 0 is the number of workers. Only its consistency is checked here.
    pub runtime_threads: usize,
    /// Maximum queued requests of one model. A further one is refused.
    pub queue_max: usize,
    /// Pin worker i to the i-th core that the process may use.
    pub pin: bool,
    /// Allow more workers than cores.
    pub oversubscribe: bool,
    /// Log of a sample of the requests; `None` logs none.
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
    /// Largest size of the slot pool; `None` is 80 % of the machine's memory.
    pub pool_bytes_max: Option<u64>,
    /// Bytes kept free for an incoming version; `None` is the size of the largest served version.
    pub swap_reserve: Option<u64>,
    /// Rate of reading weights in bytes per second; 0 is unlimited.
    pub load_rate: u64,
    /// Rate of faulting fresh slots in, in bytes per second; 0 is unlimited.
    pub fault_rate: u64,
    /// Ask for 2 MiB pages.
    pub huge_pages: bool,
    /// Read weights with O_DIRECT.
    pub direct: bool,
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
    /// Scan them only until the first load is finished, and on request.
    pub poll_once: bool,
    /// Threads that load.
    pub load_threads: usize,
    /// Threads that release.
    pub unload_threads: usize,
    /// Retries of a failed load.
    pub load_retries: u32,
    /// Time between retries.
    pub load_retry_interval: Duration,
    /// Load at idle priority.
    pub background: bool,
    /// Directory of converted models while they are served.
    pub cache_dir: PathBuf,
    /// The program that converts models (this binary) and its leading arguments.
    pub converter: (PathBuf, Vec<String>),
    /// The program that runs isolated models (this binary) and its arguments.
    pub worker: (PathBuf, Vec<String>),
    /// Rules for lists of models that clients send.
    pub lists: ModelListRules,
    /// Models in object stores.
    pub stores: StoresConfig,
    /// Waits of new versions for their turn in a fleet.
    pub updates: UpdateSettings,
}

/// Models in object stores.
#[derive(Clone)]
pub struct StoresConfig {
    /// Names and values of the providers' own variables, in lower case.
    pub options: Vec<(String, String)>,
    /// Maximum bytes of local copies.
    pub cache_bytes_max: u64,
    /// True if a store has no complete copy yet, so the first load is not finished before there is
    /// one. The server sets it.
    pub awaits_copies: bool,
}

impl Default for StoresConfig {
    fn default() -> Self {
        StoresConfig { options: Vec::new(), cache_bytes_max: 32 * GIB, awaits_copies: false }
    }
}

impl std::fmt::Debug for StoresConfig {
    /// Leaves out the options, which hold credentials.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("StoresConfig")
            .field("cache_bytes_max", &self.cache_bytes_max)
            .finish_non_exhaustive()
    }
}

/// Default directory of backups, inside the directory of the collections. No collection has a name
/// that starts with a dot.
const BACKUPS_DIRECTORY: &str = ".backups";

/// Collections and images: directories and limits.
#[derive(Clone, PartialEq)]
pub struct SearchConfig {
    /// Directory of the collections; `None` serves none.
    pub directory: Option<PathBuf>,
    /// True if the server must not start without the directory. Otherwise it starts without
    /// collections.
    pub required: bool,
    /// Maximum bytes of memory of all collections together.
    pub memory_bytes: u64,
    /// Part of that memory which caches the most read records.
    pub cache_bytes: u64,
    /// Bytes of the collections' disk that stay free; `None` is a share of the disk, 0 is no
    /// reserve.
    pub disk_reserve: Option<u64>,
    /// Threads that search; 0 is one per core.
    pub threads: usize,
    /// Access to the files of collections that do not choose themselves.
    pub medium: SearchMedium,
    /// NUMA node of files in DRAM; any if `None`.
    pub memory_node: Option<u32>,
    /// Place of the codes of segments.
    pub codes: CodesPlace,
    /// Threads that build the index of a segment.
    pub build_threads: usize,
    /// Bytes per second that flushes and merges read and write together; 0 is no limit.
    pub background_rate: u64,
    /// Segments of similar size that are merged into one.
    pub merge_segments: usize,
    /// Maximum live rows of a merged segment.
    pub segment_rows: u32,
    /// Directory or URL of the original images; `None` is a directory beside the collections.
    pub originals: Option<String>,
    /// Options of that URL: names and values of the provider's own variables, in lower case.
    pub originals_options: Vec<(String, String)>,
    /// Model that embeds images; `None` is the only served model whose input can be an image.
    pub embedding_model: Option<String>,
    /// Maximum collections.
    pub collections_max: usize,
    /// Key that may write, or that has an administrator's rights if there is no other key. It signs
    /// tokens.
    pub api_key: Option<String>,
    /// GPU that ranks large segments; `None` uses the processor only.
    pub gpu: Option<search::coarse::device::GpuOptions>,
    /// Backups of collections.
    pub backups: BackupSettings,
}

/// The cluster that a server is a node of.
#[derive(Clone, PartialEq)]
pub struct ClusterConfig {
    /// Directory or URL of the cluster's store.
    pub store: String,
    /// Options of that URL: names and values of the provider's own variables, in lower case.
    pub store_options: Vec<(String, String)>,
    /// Addresses of etcd.
    pub etcd: Vec<String>,
    /// Certificates for etcd; `None` if it is reached without TLS.
    pub etcd_tls: Option<ClientTlsFiles>,
    /// User of etcd; `None` if it has no users.
    pub etcd_user: Option<EtcdUser>,
    /// Issuers of the nodes' certificates; `None` if the nodes do not use TLS.
    pub tls_ca: Option<PemSource>,
    /// Name of the cluster in etcd.
    pub name: String,
    /// Name of this node; `None` is its address.
    pub node: Option<String>,
    /// Work of this node.
    pub roles: Roles,
    /// `HOST:PORT` at which other nodes reach this one; `None` is the address of the HTTP port.
    pub address: Option<String>,
    /// Share of the shards, relative to the other nodes.
    pub weight: u32,
    /// Entries of a shard's log between two snapshots.
    pub snapshot_entries: u64,
    /// Key that the nodes show to each other.
    pub key: Option<String>,
}

impl ClusterConfig {
    /// Returns the store as a URL, or as a directory if it is one.
    fn directory(&self) -> &str {
        self.store.strip_prefix("file://").unwrap_or(&self.store)
    }
}

impl std::fmt::Debug for ClusterConfig {
    /// Leaves out the key, as the text may be logged.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ClusterConfig")
            .field("store", &self.store)
            .field("etcd", &self.etcd)
            .field("name", &self.name)
            .field("node", &self.node)
            .field("roles", &self.roles)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        ClusterConfig {
            store: String::new(),
            store_options: Vec::new(),
            etcd: Vec::new(),
            etcd_tls: None,
            etcd_user: None,
            tls_ca: None,
            name: "millpond".to_owned(),
            node: None,
            roles: Roles::ALL,
            address: None,
            weight: 1,
            snapshot_entries: 4096,
            key: None,
        }
    }
}

/// Backups of collections: their store, rate and schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct BackupSettings {
    /// Directory or URL of the store; `None` is a directory inside the directory of the
    /// collections.
    pub place: Option<String>,
    /// Options of that URL: names and values of the provider's own variables, in lower case.
    pub options: Vec<(String, String)>,
    /// Limit of the bytes per second that backups read and send.
    pub rate: os::Rate,
    /// Interval of backups of all collections; `None` makes none.
    pub every: Option<Duration>,
    /// Newest backups of a collection that stay after one of the schedule; `None` keeps all.
    pub keep_newest: Option<usize>,
}

impl Default for BackupSettings {
    fn default() -> Self {
        let rate = backup::BackupConfig::default().rate;
        BackupSettings { place: None, options: Vec::new(), rate, every: None, keep_newest: None }
    }
}

impl Config {
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

impl SearchConfig {
    /// Returns the settings of backups.
    pub(crate) fn backups(&self) -> backup::BackupConfig {
        let BackupSettings { place, options, rate, every, keep_newest } = self.backups.clone();
        let beside = self.directory.as_ref().map(|directory| directory.join(BACKUPS_DIRECTORY));
        let place = place.or_else(|| beside.map(|directory| directory.display().to_string()));
        let keep = backup::RetentionPolicy { newest: keep_newest, age_max: None };
        let originals = api_images::originals_space;
        backup::BackupConfig { place, options, rate, every, keep, originals, ..Default::default() }
    }

    /// Returns the settings of image collections.
    fn images(&self) -> api_images::ImagesConfig {
        api_images::ImagesConfig {
            directory: self.directory.clone(),
            originals: self.originals.clone(),
            originals_options: self.originals_options.clone(),
            embedding_model: self.embedding_model.clone(),
        }
    }
}

impl std::fmt::Debug for SearchConfig {
    /// Leaves out keys, as the text may be logged.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SearchConfig")
            .field("directory", &self.directory)
            .field("required", &self.required)
            .field("memory_bytes", &self.memory_bytes)
            .field("cache_bytes", &self.cache_bytes)
            .field("disk_reserve", &self.disk_reserve)
            .field("threads", &self.threads)
            .field("medium", &self.medium)
            .field("memory_node", &self.memory_node)
            .field("codes", &self.codes)
            .field("build_threads", &self.build_threads)
            .field("background_rate", &self.background_rate)
            .field("merge_segments", &self.merge_segments)
            .field("segment_rows", &self.segment_rows)
            .field("originals", &self.originals)
            .field("embedding_model", &self.embedding_model)
            .field("collections_max", &self.collections_max)
            .field("gpu", &self.gpu)
            .field("backups", &self.backups.place)
            .field("api_key", &self.api_key.as_ref().map(|_| "..."))
            .finish()
    }
}

impl Default for SearchConfig {
    fn default() -> Self {
        let merging = search::collection::Merging::default();
        SearchConfig {
            directory: None,
            required: false,
            memory_bytes: 2 * GIB,
            cache_bytes: 256 * MIB,
            disk_reserve: None,
            threads: 0,
            medium: SearchMedium::Auto,
            memory_node: None,
            codes: CodesPlace::Auto,
            build_threads: 1,
            background_rate: 64 * MIB,
            merge_segments: merging.fan_in,
            segment_rows: merging.rows_max,
            originals: None,
            originals_options: Vec::new(),
            embedding_model: None,
            collections_max: crate::descriptors::COLLECTIONS_MAX,
            api_key: None,
            gpu: None,
            backups: BackupSettings::default(),
        }
    }
}
