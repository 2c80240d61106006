//! Options of `serve`, one struct per section. The same struct defines the flags and the section of
//! the settings file, so a flag and its key share name, values and documentation.

mod search;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use command_line::values::{ByteRate, ByteSize, FileMode, Host, TimeSpan, Versions, port};
use engine::ScheduleFile;
use serde::Deserialize;
use server::ReadinessPolicy;

pub(crate) use self::search::{ClusterOptions, CodesName, GpuUse, MediumName, SearchOptions};

/// `[server]`: sockets, limits, log.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerOptions {
    /// Address or host name to listen on; 0.0.0.0 (IPv4) or :: (also IPv6) is every interface
    /// [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) host: Option<Host>,
    /// HTTP port; 0 picks a free one [default: 8501]
    #[arg(long, value_name = "PORT", value_parser = port)]
    pub(crate) http_port: Option<u16>,
    /// gRPC port; 0 picks a free one [default: 8500]
    #[arg(long, value_name = "PORT", value_parser = port)]
    pub(crate) grpc_port: Option<u16>,
    /// Second HTTP port, for operators: admin calls (load, unload, log, enrolment), metrics and
    /// pages. The other ports then answer these with 404; health checks stay on all. Over gRPC,
    /// admin calls then need --grpc-socket. TLS and keys apply to this port too; 0 picks a free one
    /// [default: none]
    #[arg(long, value_name = "PORT", value_parser = port)]
    pub(crate) admin_port: Option<u16>,
    /// Address of --admin-port, such as 127.0.0.1 [default: that of --host]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin_host: Option<Host>,
    /// Unix socket for HTTP besides the port, as in curl --unix-socket. Its clients are on this
    /// machine, so they may make admin calls
    #[arg(long, value_name = "PATH")]
    pub(crate) http_socket: Option<PathBuf>,
    /// Unix socket for gRPC besides the port: address unix:PATH in gRPC's own clients
    #[arg(long, value_name = "PATH")]
    pub(crate) grpc_socket: Option<PathBuf>,
    /// Mode of the files of --http-socket and --grpc-socket: 0600 admits this user (and root) only,
    /// 0660 also the group of the file [default: 0600]
    #[arg(long, value_name = "MODE")]
    pub(crate) socket_mode: Option<FileMode>,
    /// Certificate of the server, then those of its issuers (PEM). Both ports then speak TLS only.
    /// Renewed files take effect for new connections; the log says if they cannot be used
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Issuers of client certificates (PEM). Clients must then send a certificate of one of these
    /// issuers (mTLS)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Keys of all callers (TOML): role, models, collections, requests per second and CPU seconds
    /// per minute of each key. With this flag, --admin-key or --api-key, every call except health
    /// checks needs a key, from this machine too. `millpond keys new` makes a key; changes of the
    /// file take effect at once
    #[arg(long, value_name = "FILE")]
    pub(crate) keys: Option<PathBuf>,
    /// Host names under which clients may address this server, besides localhost, IP addresses and
    /// the machine's own name. Requests for other names are refused if this option is set or only
    /// this machine reaches the server
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) allowed_hosts: Vec<String>,
    /// Origin whose pages may use the HTTP API from a browser (CORS), as in https://app.example or
    /// http://localhost:3000; may be given more than once. Pages of other origins get no answer.
    /// "*" admits all pages, for servers without --keys. Cookies are never accepted from other
    /// origins: a page sends a key in a header
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors: Vec<String>,
    /// Accept admin calls (load, unload, enrolment, folders) from other machines and proxies, with
    /// --admin-key or a key of --keys whose role is admin
    #[arg(long)]
    pub(crate) allow_remote_admin: bool,
    /// Key with the role admin. Every call except health checks then needs a key, from this machine
    /// too. Prefer the variable MILLPOND_ADMIN_KEY, which other users cannot read
    #[arg(long, value_name = "KEY")]
    pub(crate) admin_key: Option<String>,
    /// Connection threads, which receive, decode and encode; 0 chooses the number [default: 0]
    #[arg(long, visible_alias = "door-threads", value_name = "N")]
    #[serde(alias = "door-threads")]
    pub(crate) connection_threads: Option<usize>,
    /// Maximum size of a request body [default: 64MiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_body: Option<ByteSize>,
    /// Maximum connections per listener, and at most 1024 on the admin port; further ones are
    /// closed at once [default: 16384]
    #[arg(long, value_name = "N")]
    pub(crate) max_connections: Option<usize>,
    /// Maximum requests in flight; further ones are refused [default: 1024]
    #[arg(long, value_name = "N")]
    pub(crate) max_requests: Option<usize>,
    /// Memory limit for all requests in flight together, from the body to the sent response.
    /// Requests beyond it are refused [default: an eighth of the machine's memory, from 256MiB to
    /// 8GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) request_memory: Option<ByteSize>,
    /// Default and maximum deadline of a request [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub(crate) request_timeout: Option<TimeSpan>,
    /// Timeout for a client's headers, and between two parts of a body [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(crate) client_timeout: Option<TimeSpan>,
    /// Models that must serve before /readyz, /v2/health/ready and gRPC's health checks say that
    /// the server is ready [default: all]
    #[arg(long, value_name = "MODELS")]
    pub(crate) readiness: Option<ReadyModels>,
    /// Export metrics also under the names of another server, from the same counters: triton
    /// (nv_inference_*) or tfs (:tensorflow:serving:*); may be given more than once
    #[arg(long, value_name = "SERVER")]
    pub(crate) metric_names: Vec<MetricNamesOf>,
    /// Time that a shutdown waits for requests in flight [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) shutdown_grace: Option<TimeSpan>,
    /// Return tensor_content instead of float_val and the other typed fields from TensorFlow
    /// Serving's Predict over gRPC: faster, for clients that read it (tf.make_ndarray does)
    #[arg(long)]
    pub(crate) tfs_tensor_content: bool,
    /// ONNX Runtime's shared library [default: found in a virtual environment, beside the program
    /// or in the system]
    #[arg(long, value_name = "PATH")]
    pub(crate) onnxruntime: Option<PathBuf>,
    /// Library libmillpond_torch.so, or its directory [default: found in a virtual environment or
    /// beside the program]
    #[arg(long, value_name = "PATH")]
    pub(crate) libtorch: Option<PathBuf>,
    /// TensorFlow's library, or the directory of its Python package [default: found in a virtual
    /// environment, beside the program or in the system]
    #[arg(long, value_name = "PATH")]
    pub(crate) tensorflow: Option<PathBuf>,
    /// Address of an OpenTelemetry collector, as in http://localhost:4318. The server sends it
    /// traces of requests and loads by OTLP over HTTP. Requests never wait for the collector
    /// [default: no traces]
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
    /// Share of the requests that is traced, 0 to 1. A request with a trace context (traceparent)
    /// is traced if its client traces it. PUT /v1/trace changes the share at run time [default:
    /// 0.01]
    #[arg(long, value_name = "SHARE")]
    pub(crate) trace_sample: Option<f64>,
    /// Format of the log on standard error [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Level (error, warn, info, debug, trace) or filter of the log [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
}

/// Models that must serve for the server to be ready.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ReadyModels {
    /// Every model that should serve
    All,
    /// At least one, if any should serve
    Any,
    /// None: the server is ready while it runs
    Server,
}

impl From<ReadyModels> for ReadinessPolicy {
    fn from(models: ReadyModels) -> ReadinessPolicy {
        match models {
            ReadyModels::All => ReadinessPolicy::All,
            ReadyModels::Any => ReadinessPolicy::Any,
            ReadyModels::Server => ReadinessPolicy::Server,
        }
    }
}

/// Servers that name metrics.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MetricNamesOf {
    /// This server's, which are always there
    Millpond,
    /// Triton Inference Server's
    Triton,
    /// TensorFlow Serving's
    Tfs,
}

/// Formats of the log.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// Text for reading
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Formats of the request log.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RequestLogFormatName {
    /// TensorFlow Serving's PredictionLog in TFRecord files: answered requests
    #[value(name = "tfrecord")]
    #[serde(rename = "tfrecord")]
    TfRecord,
    /// Lines of JSON: bodies of the Open Inference Protocol with model, version, time, duration and
    /// outcome, of failed requests too
    Json,
}

impl From<RequestLogFormatName> for server::RequestLogFormat {
    fn from(format: RequestLogFormatName) -> server::RequestLogFormat {
        match format {
            RequestLogFormatName::TfRecord => server::RequestLogFormat::TfRecord,
            RequestLogFormatName::Json => server::RequestLogFormat::Json,
        }
    }
}

/// `[inference]`: the threads that compute.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Inference")]
pub(crate) struct InferenceOptions {
    /// Inference threads (workers): the maximum of concurrent runs; 0 is one per core [default: 0]
    #[arg(long, visible_alias = "workers", value_name = "N")]
    #[serde(alias = "workers")]
    pub(crate) threads: Option<usize>,
    /// Merge requests (dynamic batching) in up to N concurrent batches per model; 0 runs each
    /// request by itself [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) runtime_threads: Option<usize>,
    /// Maximum queued requests per model, which bounds queueing delay; further ones are refused
    /// [default: 512]
    #[arg(long, value_name = "N")]
    pub(crate) queue: Option<usize>,
    /// Pin inference thread i to the i-th core that the server may use
    #[arg(long)]
    pub(crate) pin: bool,
    /// Allow more inference threads than cores
    #[arg(long)]
    pub(crate) oversubscribe: bool,
    /// Directory for logged requests: a sample of the requests of each model, for warm-up, `verify`
    /// and `bench load` [default: no log]
    #[arg(long, value_name = "DIR")]
    pub(crate) request_log: Option<PathBuf>,
    /// Share of the requests to log, 0 to 1 [default: 0.01]
    #[arg(long, value_name = "SHARE")]
    pub(crate) request_log_rate: Option<f64>,
    /// Maximum size of all files of --request-log; the oldest are removed [default: 1GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) request_log_size: Option<ByteSize>,
    /// Format of the files of --request-log [default: tfrecord]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) request_log_format: Option<RequestLogFormatName>,
}

/// The keys of `[schedule]` that are flags too. The others are for files only.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Inference")]
pub(crate) struct ScheduleFlags {
    /// Maximum size of a batch of merged requests [default: 32]
    #[arg(long, value_name = "N")]
    pub(crate) max_batch: Option<usize>,
    /// Time that the oldest request waits for others to merge with [default: 0ms]
    #[arg(long, value_name = "TIME")]
    pub(crate) max_queue_delay: Option<TimeSpan>,
}

/// `[memory]`: placement and loading of parameters.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Parameter memory")]
pub(crate) struct MemoryOptions {
    /// Memory that holds parameters [default: pool]
    #[arg(long, value_name = "HOME")]
    pub(crate) parameter_home: Option<ParameterPlacementName>,
    /// Maximum size of the slot pool [default: 80 % of the machine's memory]
    #[arg(long, value_name = "BYTES")]
    pub(crate) pool: Option<ByteSize>,
    /// Memory reserved for an incoming version [default: the size of the largest served version]
    #[arg(long, value_name = "BYTES")]
    pub(crate) swap_reserve: Option<ByteSize>,
    /// Maximum rate of reading weights, in bytes per second, or "unlimited" [default: 800MB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) load_rate: Option<ByteRate>,
    /// Maximum rate of faulting memory in, in bytes per second, or "unlimited" [default: 2GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) fault_rate: Option<ByteRate>,
    /// Use pages of 4 KiB only
    #[arg(long)]
    pub(crate) no_huge_pages: bool,
    /// Read weights through the page cache instead of with O_DIRECT
    #[arg(long)]
    pub(crate) no_direct_io: bool,
    /// Keep no spare worker process for isolated models. A spare process has opened TensorFlow or
    /// LibTorch, so that a model whose process ended serves again sooner
    #[arg(long)]
    pub(crate) no_spare_workers: bool,
}

/// Memory that holds parameters.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ParameterPlacementName {
    /// Recycled slots in huge pages, filled in the background
    Pool,
    /// The engine's own heap, as in other servers
    Heap,
}

/// `[lifecycle]`: sources, versions and loads of models.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Models")]
pub(crate) struct LifecycleOptions {
    /// Time between two polls of the model directories [default: 1s]
    #[arg(long, value_name = "TIME")]
    pub(crate) poll: Option<TimeSpan>,
    /// Versions served of each model: latest:N, all, or numbers as in 3,5 [default: latest:1]
    #[arg(long, value_name = "POLICY")]
    pub(crate) versions: Option<Versions>,
    /// Order of load and unload when versions change [default: availability-preserving]
    #[arg(long, value_name = "ORDER")]
    pub(crate) transition: Option<TransitionOrder>,
    /// Load threads [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) load_threads: Option<usize>,
    /// Unload threads [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) unload_threads: Option<usize>,
    /// Retries of a failed load [default: 5]
    #[arg(long, value_name = "N")]
    pub(crate) load_retries: Option<u32>,
    /// Time between two retries [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub(crate) load_retry_interval: Option<TimeSpan>,
    /// Maximum time of a load with its warm-up, and of a conversion before it. A conversion ends
    /// after 1h even if this time is longer [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub(crate) load_timeout: Option<TimeSpan>,
    /// Directory of converted models and of copies from object stores [default: the user's cache
    /// directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Maximum size of the copies from object stores; unneeded versions are removed to make room
    /// for new ones [default: 32GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) store_cache: Option<ByteSize>,
    /// Time over which the servers of a fleet spread their loads of a new version. Each server
    /// waits for a part of this time, chosen by its name, while an older version serves [default:
    /// no server waits]
    #[arg(long, value_name = "TIME")]
    pub(crate) update_window: Option<TimeSpan>,
    /// Maximum servers of the fleet that load a new version of the same model at the same time. If
    /// a version fails on one server, the other servers do not load it. Needs etcd [default: all at
    /// once]
    #[arg(long, value_name = "N")]
    pub(crate) update_concurrency: Option<u32>,
    /// Addresses of the etcd in which the servers take turns, such as http://10.0.0.1:2379,
    /// separated by commas [default: that of --cluster-etcd]
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    #[serde(default)]
    pub(crate) update_etcd: Vec<String>,
    /// Name of the fleet in etcd, if several share it [default: --cluster-name, or millpond]
    #[arg(long, value_name = "NAME")]
    pub(crate) update_fleet: Option<String>,
}

/// `[audio]`: recordings sent to `/v1/audio`.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Recordings")]
pub(crate) struct AudioOptions {
    /// Recognisers to serve besides the models: names that `millpond audio --list` shows
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) recogniser: Vec<String>,
    /// Maximum recordings in progress; further ones are refused [default: 4]
    #[arg(long, value_name = "N")]
    pub(crate) recordings: Option<usize>,
    /// Maximum size of a recording [default: 8GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_recording: Option<ByteSize>,
    /// Maximum size of a recording that must be stored before it is read, as some formats need
    /// [default: 2GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_spool: Option<ByteSize>,
    /// Directory of recordings that must be stored before they are read [default: the system's
    /// temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) spool_dir: Option<PathBuf>,
    /// Directory of enrolled voices; without it no speaker can be enrolled
    #[arg(long, value_name = "DIR")]
    pub(crate) speakers_dir: Option<PathBuf>,
}

/// Order of load and unload when versions change.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TransitionOrder {
    /// Load the new version, then unload the old: no gap, memory for both
    AvailabilityPreserving,
    /// Unload the old version, then load the new: memory for one, with a gap
    ResourcePreserving,
}

/// Value of a setting that another source of settings may complete.
trait LayeredSetting {
    /// Returns this value, or `under` if this one is unset.
    fn over(self, under: Self) -> Self;
}

impl<T> LayeredSetting for Option<T> {
    fn over(self, under: Option<T>) -> Option<T> {
        self.or(under)
    }
}

impl LayeredSetting for bool {
    fn over(self, under: bool) -> bool {
        self || under
    }
}

impl<T> LayeredSetting for Vec<T> {
    fn over(self, under: Vec<T>) -> Vec<T> {
        if self.is_empty() { under } else { self }
    }
}

/// Implements `over` for sections of settings, field by field.
macro_rules! sections {
    ($($section:ident { $($field:ident),* $(,)? })*) => { $(
        impl $section {
            /// Returns these values, with `under`'s for unset ones.
            pub(crate) fn over(self, under: $section) -> $section {
                $section { $($field: self.$field.over(under.$field)),* }
            }
        }
    )* };
}
sections! {
    ServerOptions {
        host, http_port, grpc_port, admin_port, admin_host, http_socket, grpc_socket, socket_mode, tls_cert, tls_key, tls_client_ca, keys, allowed_hosts, cors, allow_remote_admin, admin_key, connection_threads,
        max_body, max_connections, max_requests, request_memory, request_timeout, client_timeout,
        readiness, metric_names, shutdown_grace, tfs_tensor_content, onnxruntime, libtorch, tensorflow, otlp,
        trace_sample, log_format, log,
    }
    InferenceOptions {
        threads, runtime_threads, queue, pin, oversubscribe, request_log, request_log_rate,
        request_log_size, request_log_format,
    }
    MemoryOptions {
        parameter_home, pool, swap_reserve, load_rate, fault_rate, no_huge_pages, no_direct_io,
        no_spare_workers,
    }
    LifecycleOptions {
        poll, versions, transition, load_threads, unload_threads, load_retries, load_retry_interval,
        load_timeout, cache_dir, store_cache, update_window, update_concurrency, update_etcd,
        update_fleet,
    }
    AudioOptions {
        recogniser, recordings, max_recording, max_spool, spool_dir, speakers_dir,
    }
    SearchOptions {
        collections_dir, search_memory, search_cache, search_disk_reserve, search_threads,
        search_medium, search_memory_node, search_codes, search_build_threads, search_background_rate,
        search_merge_segments, search_segment_rows, originals, backup_dir, backup_every, backup_keep,
        backup_rate, embedding_model, gpu, gpu_pinned, api_key,
    }
    ClusterOptions {
        cluster_store, cluster_etcd, cluster_etcd_ca, cluster_etcd_cert, cluster_etcd_key, cluster_tls_ca,
        cluster_node, cluster_roles, cluster_address, cluster_name, cluster_weight, cluster_snapshot_entries,
    }
}

impl ScheduleFlags {
    /// Returns these values, with the file's for unset ones.
    pub(crate) fn over(self, under: ScheduleFile) -> ScheduleFile {
        ScheduleFile {
            max_batch: self.max_batch.or(under.max_batch),
            max_queue_delay: self
                .max_queue_delay
                .map(|TimeSpan(time)| time)
                .or(under.max_queue_delay),
            ..under
        }
    }
}
