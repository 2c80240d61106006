//! What `serve` can be told: one struct a section. The same struct is the flags and the section of the settings
//! file, so a flag and its key always have the same name, the same values and the same documentation.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engine::ScheduleFile;
use serde::Deserialize;

use crate::values::{ByteRate, ByteSize, Host, TimeSpan, Versions, port};

/// `[server]`: sockets, limits, log.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerOptions {
    /// Address or host name to listen on; 0.0.0.0 is every interface [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) host: Option<Host>,
    /// HTTP port; 0 picks a free one [default: 8501]
    #[arg(long, value_name = "PORT", value_parser = port)]
    pub(crate) http_port: Option<u16>,
    /// gRPC port; 0 picks a free one [default: 8500]
    #[arg(long, value_name = "PORT", value_parser = port)]
    pub(crate) grpc_port: Option<u16>,
    /// Names by which clients may know this server, besides localhost, IP addresses and the machine's own name. A
    /// request under another name is refused if only this machine reaches the server, or if names are given
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) allowed_hosts: Vec<String>,
    /// Accept admin calls (load, unload, enrolment, folders) from other machines and proxies, with --admin-key
    #[arg(long)]
    pub(crate) allow_remote_admin: bool,
    /// Key that admin calls must show; better in the variable MILLPOND_ADMIN_KEY, where others cannot see it
    #[arg(long, value_name = "KEY")]
    pub(crate) admin_key: Option<String>,
    /// Threads that receive, decode and encode; 0 chooses [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) door_threads: Option<usize>,
    /// Largest request body [default: 64MiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_body: Option<ByteSize>,
    /// Maximum connections of one listener; more are closed at once [default: 16384]
    #[arg(long, value_name = "N")]
    pub(crate) max_connections: Option<usize>,
    /// Maximum requests in flight; more are rejected [default: 1024]
    #[arg(long, value_name = "N")]
    pub(crate) max_requests: Option<usize>,
    /// Memory that all requests in flight may hold together, from the body to the unsent answer; a request over it is
    /// refused [default: an eighth of the machine's memory, from 256MiB to 8GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) request_memory: Option<ByteSize>,
    /// Deadline of a request that brings none, and the longest one allowed [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub(crate) request_timeout: Option<TimeSpan>,
    /// How long a client may take for its headers, and between two pieces of a body [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(crate) client_timeout: Option<TimeSpan>,
    /// How long a shutdown waits for requests that are being answered [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) shutdown_grace: Option<TimeSpan>,
    /// Answer TensorFlow Serving's Predict over gRPC with tensor_content instead of float_val and the other typed fields:
    /// faster, for clients that read it (tf.make_ndarray does)
    #[arg(long)]
    pub(crate) tfs_tensor_content: bool,
    /// ONNX Runtime's shared library [default: found in a virtual environment, beside the program or in the system]
    #[arg(long, value_name = "PATH")]
    pub(crate) onnxruntime: Option<PathBuf>,
    /// The LibTorch shim, or its directory [default: found in a virtual environment or beside the program]
    #[arg(long, value_name = "PATH")]
    pub(crate) libtorch: Option<PathBuf>,
    /// Form of the log on standard error [default: text]
    #[arg(long, value_name = "FORM")]
    pub(crate) log_format: Option<LogFormat>,
    /// Level (error, warn, info, debug, trace) or filter of the log [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log: Option<String>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// `[inference]`: the threads that compute.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Inference")]
pub(crate) struct InferenceOptions {
    /// Inference threads, which bound the requests that run at the same time; 0 is one per core [default: 0]
    #[arg(long, visible_alias = "workers", value_name = "N")]
    #[serde(alias = "workers")]
    pub(crate) threads: Option<usize>,
    /// Merge requests (dynamic batching): batches per model that run at the same time; 0 runs each request by itself
    /// [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) runtime_threads: Option<usize>,
    /// Maximum queue length per model; more requests are rejected [default: 512]
    #[arg(long, value_name = "N")]
    pub(crate) queue: Option<usize>,
    /// Pin inference thread i to core i
    #[arg(long)]
    pub(crate) pin: bool,
    /// Allow more inference threads than cores
    #[arg(long)]
    pub(crate) oversubscribe: bool,
}

/// The flags among `[schedule]`'s keys; the others are for files only.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Inference")]
pub(crate) struct ScheduleFlags {
    /// Maximum batch size [default: 32]
    #[arg(long, value_name = "N")]
    pub(crate) max_batch: Option<usize>,
    /// How long the oldest request waits for others to be merged with [default: 0ms]
    #[arg(long, value_name = "TIME")]
    pub(crate) max_queue_delay: Option<TimeSpan>,
}

/// `[memory]`: where parameters live and how they get there.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Parameter memory")]
pub(crate) struct MemoryOptions {
    /// Where parameters live [default: pool]
    #[arg(long, value_name = "HOME")]
    pub(crate) parameter_home: Option<ParameterPlacement>,
    /// Largest size of the slot pool [default: 80 % of the machine's memory]
    #[arg(long, value_name = "BYTES")]
    pub(crate) pool: Option<ByteSize>,
    /// Room kept for an incoming version [default: the largest version served]
    #[arg(long, value_name = "BYTES")]
    pub(crate) swap_reserve: Option<ByteSize>,
    /// Bytes per second at which weights are read; "unlimited" [default: 800MB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) load_rate: Option<ByteRate>,
    /// Bytes per second at which fresh memory is faulted in; "unlimited" [default: 2GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) fault_rate: Option<ByteRate>,
    /// Use pages of 4 KiB only
    #[arg(long)]
    pub(crate) no_huge_pages: bool,
    /// Read weights through the page cache instead of with O_DIRECT
    #[arg(long)]
    pub(crate) no_direct_io: bool,
}

/// Where parameters live.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ParameterPlacement {
    /// Recycled huge-page slots, read in the background
    Pool,
    /// The engine's own allocation, as without Millpond
    Heap,
}

/// `[lifecycle]`: where models come from and how they change.
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
    /// Threads that load [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) load_threads: Option<usize>,
    /// Threads that release [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) unload_threads: Option<usize>,
    /// Tries after a load that failed [default: 5]
    #[arg(long, value_name = "N")]
    pub(crate) load_retries: Option<u32>,
    /// Time between those tries [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub(crate) load_retry_interval: Option<TimeSpan>,
    /// Where converted foreign models are kept while they serve [default: the user's cache directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
}

/// `[audio]`: recordings sent to `/v1/audio`.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Recordings")]
pub(crate) struct AudioOptions {
    /// Recordings worked on at the same time; the next one is refused [default: 4]
    #[arg(long, value_name = "N")]
    pub(crate) recordings: Option<usize>,
    /// Largest recording [default: 8GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_recording: Option<ByteSize>,
    /// Largest recording that is stored before it is read, as some files need [default: 2GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_spool: Option<ByteSize>,
    /// Where such recordings are stored meanwhile [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) spool_dir: Option<PathBuf>,
    /// Where enrolled voices are kept; without it nobody can be enrolled
    #[arg(long, value_name = "DIR")]
    pub(crate) speakers_dir: Option<PathBuf>,
}

/// `[search]`: collections, and pictures in them.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
#[command(next_help_heading = "Search")]
pub(crate) struct SearchOptions {
    /// Directory of the collections, "none" for a server without [default: in the user's data directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) collections_dir: Option<PathBuf>,
    /// Memory limit for all collections [default: 2GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) search_memory: Option<ByteSize>,
    /// Cache for frequently read records, as a part of --search-memory [default: 256MiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) search_cache: Option<ByteSize>,
    /// Bytes of the collections' disk that stay free: with less, changes are refused; 0 is no reserve [default: 1 % of the
    /// disk, 64MiB to 4GiB, at most 1/8 of it]
    #[arg(long, value_name = "BYTES")]
    pub(crate) search_disk_reserve: Option<ByteSize>,
    /// Threads that search; 0 is one per core [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) search_threads: Option<usize>,
    /// Directory or URL of the pictures as they were sent [default: beside the collections]
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) originals: Option<String>,
    /// The model that embeds pictures [default: the only one that takes pictures]
    #[arg(long, value_name = "NAME")]
    pub(crate) embedding_model: Option<String>,
    /// Search large segments on a GPU; applies to segments sealed from now on [default: none]
    #[arg(long, value_enum)]
    pub(crate) gpu: Option<GpuUse>,
    /// Pinned memory for what does not fit the GPU's own [default: 0]
    #[arg(long, value_name = "BYTES")]
    pub(crate) gpu_pinned: Option<ByteSize>,
    /// What callers of collections and pictures must show; better in the variable, where others cannot see it
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
}

/// Whether a GPU is used.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GpuUse {
    /// Everything on the processor
    None,
    /// Large segments on the first GPU; on the processor where there is none, or where it fails
    Auto,
}

/// The order of load and unload when versions change.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TransitionOrder {
    /// Load the new version, then unload the old: always one that answers, memory for both
    AvailabilityPreserving,
    /// Unload the old version, then load the new: memory for one, a gap between them
    ResourcePreserving,
}

impl ServerOptions {
    /// These, and where they say nothing, `under`'s.
    pub(crate) fn over(self, under: ServerOptions) -> ServerOptions {
        ServerOptions {
            host: self.host.or(under.host),
            http_port: self.http_port.or(under.http_port),
            grpc_port: self.grpc_port.or(under.grpc_port),
            allowed_hosts: if self.allowed_hosts.is_empty() {
                under.allowed_hosts
            } else {
                self.allowed_hosts
            },
            allow_remote_admin: self.allow_remote_admin || under.allow_remote_admin,
            admin_key: self.admin_key.or(under.admin_key),
            door_threads: self.door_threads.or(under.door_threads),
            max_body: self.max_body.or(under.max_body),
            max_connections: self.max_connections.or(under.max_connections),
            max_requests: self.max_requests.or(under.max_requests),
            request_memory: self.request_memory.or(under.request_memory),
            request_timeout: self.request_timeout.or(under.request_timeout),
            client_timeout: self.client_timeout.or(under.client_timeout),
            shutdown_grace: self.shutdown_grace.or(under.shutdown_grace),
            tfs_tensor_content: self.tfs_tensor_content || under.tfs_tensor_content,
            onnxruntime: self.onnxruntime.or(under.onnxruntime),
            libtorch: self.libtorch.or(under.libtorch),
            log_format: self.log_format.or(under.log_format),
            log: self.log.or(under.log),
        }
    }
}

impl InferenceOptions {
    /// These, and where they say nothing, `under`'s.
    pub(crate) fn over(self, under: InferenceOptions) -> InferenceOptions {
        InferenceOptions {
            threads: self.threads.or(under.threads),
            runtime_threads: self.runtime_threads.or(under.runtime_threads),
            queue: self.queue.or(under.queue),
            pin: self.pin || under.pin,
            oversubscribe: self.oversubscribe || under.oversubscribe,
        }
    }
}

impl ScheduleFlags {
    /// These, and where they say nothing, the file's.
    pub(crate) fn over(self, under: ScheduleFile) -> ScheduleFile {
        ScheduleFile {
            max_batch: self.max_batch.or(under.max_batch),
            max_queue_delay: self.max_queue_delay.map(|TimeSpan(time)| time).or(under.max_queue_delay),
            ..under
        }
    }
}

impl MemoryOptions {
    /// These, and where they say nothing, `under`'s.
    pub(crate) fn over(self, under: MemoryOptions) -> MemoryOptions {
        MemoryOptions {
            parameter_home: self.parameter_home.or(under.parameter_home),
            pool: self.pool.or(under.pool),
            swap_reserve: self.swap_reserve.or(under.swap_reserve),
            load_rate: self.load_rate.or(under.load_rate),
            fault_rate: self.fault_rate.or(under.fault_rate),
            no_huge_pages: self.no_huge_pages || under.no_huge_pages,
            no_direct_io: self.no_direct_io || under.no_direct_io,
        }
    }
}

impl LifecycleOptions {
    /// These, and where they say nothing, `under`'s.
    pub(crate) fn over(self, under: LifecycleOptions) -> LifecycleOptions {
        LifecycleOptions {
            poll: self.poll.or(under.poll),
            versions: self.versions.or(under.versions),
            transition: self.transition.or(under.transition),
            load_threads: self.load_threads.or(under.load_threads),
            unload_threads: self.unload_threads.or(under.unload_threads),
            load_retries: self.load_retries.or(under.load_retries),
            load_retry_interval: self.load_retry_interval.or(under.load_retry_interval),
            cache_dir: self.cache_dir.or(under.cache_dir),
        }
    }
}

impl AudioOptions {
    /// These, and where they say nothing, `under`'s.
    pub(crate) fn over(self, under: AudioOptions) -> AudioOptions {
        AudioOptions {
            recordings: self.recordings.or(under.recordings),
            max_recording: self.max_recording.or(under.max_recording),
            max_spool: self.max_spool.or(under.max_spool),
            spool_dir: self.spool_dir.or(under.spool_dir),
            speakers_dir: self.speakers_dir.or(under.speakers_dir),
        }
    }
}

impl SearchOptions {
    /// These, and where they say nothing, `under`'s.
    pub(crate) fn over(self, under: SearchOptions) -> SearchOptions {
        SearchOptions {
            collections_dir: self.collections_dir.or(under.collections_dir),
            search_memory: self.search_memory.or(under.search_memory),
            search_cache: self.search_cache.or(under.search_cache),
            search_disk_reserve: self.search_disk_reserve.or(under.search_disk_reserve),
            search_threads: self.search_threads.or(under.search_threads),
            originals: self.originals.or(under.originals),
            embedding_model: self.embedding_model.or(under.embedding_model),
            gpu: self.gpu.or(under.gpu),
            gpu_pinned: self.gpu_pinned.or(under.gpu_pinned),
            api_key: self.api_key.or(under.api_key),
        }
    }
}
