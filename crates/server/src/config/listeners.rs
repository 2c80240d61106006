//! Settings of listeners: addresses, access, and limits of connections and requests.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::units::MIB;
use observe::MetricNames;
use transport::access::{CorsPolicy, Secret};
use transport::{ByteBudget, ConnectionLimits, RequestLimits, TlsFiles};

use crate::readiness::ReadinessPolicy;

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
    /// HTTP port. 0 picks a free one, and `None` offers no HTTP.
    pub http_port: Option<u16>,
    /// gRPC port. 0 picks a free one, and `None` offers no gRPC over TCP.
    pub grpc_port: Option<u16>,
    /// Port of HTTP for admin calls, metrics and pages, which the other ports then do not offer.
    pub admin_port: Option<u16>,
    /// Address of the admin port. `None` is `host`.
    pub admin_host: Option<IpAddr>,
    /// Path of a Unix socket for HTTP.
    pub http_socket: Option<PathBuf>,
    /// Path of a Unix socket for gRPC.
    pub grpc_socket: Option<PathBuf>,
    /// Mode of the files of the Unix sockets.
    pub socket_mode: u32,
    /// Certificates of both ports. `None` serves plain text.
    pub tls: Option<TlsFiles>,
    /// True to serve HTTP in plain text although there are certificates, as TensorFlow Serving
    /// does.
    pub plain_http: bool,
    /// File of keys. If there is any key, every call but health checks needs one.
    pub keys: Option<PathBuf>,
    /// Names of this server in requests, besides `localhost` and the name of the machine.
    pub allowed_hosts: Vec<String>,
    /// True to accept admin calls from other machines if they show the admin key.
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
    /// True to listen only once the first load is finished, as TensorFlow Serving does. Its clients
    /// treat an open port as a ready server.
    pub listen_when_settled: bool,
    /// Models that must serve for the server to be ready.
    pub readiness: ReadinessPolicy,
    /// Origins whose pages may use the HTTP API.
    pub cors: CorsPolicy,
    /// Path of the metrics under TensorFlow Serving's names. `None` does not offer them.
    pub tfs_metrics: Option<String>,
    /// Other servers whose metric names `/metrics` has in addition to Millpond's.
    pub metric_names: MetricNames,
    /// Longest time for the headers of a request, and between two pieces of its body.
    pub client_timeout: Duration,
    /// Time in which a client must read at least 256 KiB of a large answer.
    pub answer_window: Duration,
    /// Age at which a gRPC connection gets no new requests, so that its client opens another one.
    /// `None` is no limit.
    pub grpc_connection_age: Option<Duration>,
    /// Longest wait for running requests at shutdown.
    pub shutdown_grace: Duration,
    /// Part of that time in which idle HTTP/1.1 connections wait for a request in flight.
    pub drain_time: Duration,
    /// Threads of connections, which receive, decode and encode. 0 is one per core.
    pub threads: usize,
    /// True to answer Predict over gRPC with `tensor_content` instead of the typed fields
    /// (`float_val` etc.).
    pub tfs_tensor_content: bool,
    /// True to refuse a request over TensorFlow Serving's API whose signature has another method.
    /// Its flag `enable_signature_method_name_check` does the same.
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
            grpc_connection_age: None,
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
            age_max: self.grpc_connection_age,
        }
    }

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
