//! The composition root. It joins memory, engines, lifecycle and scheduler, and listens.
//!
//! `core` starts models and workers, `compose` the state of each router, and `run` the listeners. A
//! handler decodes a request, `inference` runs it, and the handler encodes the response. Handlers
//! never block. Inference runs on the scheduler's workers, loading on the lifecycle's threads, and
//! both answer through a channel.
//!
//! # Modules
//! * Start and stop: `run`, `core`, `compose`, `local`, `listeners`, `surface`, `descriptors`,
//!   `readiness`.
//! * Settings: `config` has them as values, `shown_config` shows them, `reconfigure`,
//!   `access_files`, `log_filter` and `trace_settings` change them at run time.
//! * Handlers: `http` and `grpc`; `models` is their state, `admin` loads and unloads. Both use the
//!   crate `api-models`.
//! * Other sources and other servers: `stores`, `first_copies`, `updates`, `collections`,
//!   `cluster`, `cluster_clients`.

mod access_files;
mod admin;
mod cluster;
mod cluster_clients;
mod collections;
mod compose;
mod config;
mod core;
pub mod descriptors;
mod first_copies;
mod grpc;
mod http;
mod listeners;
pub mod local;
mod log_filter;
#[cfg(test)]
mod loopback;
mod models;
mod readiness;
mod reconfigure;
mod run;
mod shown_config;
mod stores;
mod surface;
#[cfg(test)]
mod tests;
mod trace_settings;
mod updates;

pub use crate::core::run_worker;
pub use api_audio::AudioConfig;
pub use cluster_node::Roles;
pub use config::{
    BackupSettings, ClusterConfig, Config, DataConfig, ListenerConfig, MemoryConfig, ModelsConfig,
    SearchConfig, StoresConfig, TFS_METRICS,
};
pub use etcd::EtcdUser;
pub use http_client::{ClientIdentityFiles, ClientTlsFiles, TlsPeer};
pub use import::tfs::{ModelListRules, StoreCopies};
pub use log_filter::LogFilter;
pub use observe::{MetricNames, RequestLogConfig, RequestLogFormat, TraceConfig};
pub use readiness::ReadinessPolicy;
pub use reconfigure::{ConfigSource, ConfigWatch};
pub use run::run;
pub use search::codes::CodesPlace;
pub use search::registry::{MediumChoice as SearchMedium, probe_dax};
pub use telemetry::{SamplingRates, TraceExportConfig};
pub use transport::access::{CorsPolicy, Secret};
pub use transport::{PemSource, TlsFiles};
pub use updates::{TurnSettings, UpdateSettings};

/// The server's name in the protocols' metadata.
pub(crate) const NAME: &str = "millpond";
/// The server's version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
