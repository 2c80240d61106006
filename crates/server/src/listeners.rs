//! The sockets of a server, and the services that listen on them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, Result};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use transport::{
    AddressFlags, ConnectionLimits, ConnectionThreads, HttpVersion, ListenSocket, Listener,
    TlsIdentity, UnixSocket, bind,
};

use crate::compose::Server;
use crate::config::ListenerConfig;
use crate::surface::Surface;
use crate::{grpc, http};

/// Maximum connections of the admin port.
const ADMIN_CONNECTIONS_MAX: usize = 1024;

/// Bound sockets of a server.
pub(crate) struct BoundSockets {
    http: Option<std::net::TcpListener>,
    grpc: Option<std::net::TcpListener>,
    admin: Option<std::net::TcpListener>,
    /// Paths of Unix sockets, which are bound last.
    http_path: Option<PathBuf>,
    grpc_path: Option<PathBuf>,
    mode: u32,
}

impl BoundSockets {
    /// Binds the ports.
    ///
    /// # Errors
    /// `Unavailable` if one is taken.
    pub(crate) fn bind(config: &ListenerConfig) -> Result<BoundSockets> {
        let at = |address, port: Option<u16>, host, flag| {
            let flags = AddressFlags { host, port: flag };
            port.map(|port| bind(address, port, flags)).transpose()
        };
        // Without its own flag, the admin port has the address of the others.
        let admin_flag = if config.admin_host.is_some() { "--admin-host" } else { "--host" };
        Ok(BoundSockets {
            http: at(config.host, config.http_port, "--host", "--http-port")?,
            grpc: at(config.host, config.grpc_port, "--host", "--grpc-port")?,
            admin: at(config.admin_host(), config.admin_port, admin_flag, "--admin-port")?,
            http_path: config.http_socket.clone(),
            grpc_path: config.grpc_socket.clone(),
            mode: config.socket_mode,
        })
    }

    /// Returns the address of the HTTP port.
    pub(crate) fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().and_then(|socket| socket.local_addr().ok())
    }

    /// Returns the surface of the public ports.
    fn surface(&self) -> Result<Surface> {
        let Some(admin) = &self.admin else { return Ok(Surface::Whole) };
        let address = admin.local_addr().map_err(|error| failed(&error))?;
        Ok(Surface::Public { admin_port: address.port() })
    }
}

/// Settings that all listeners share.
pub(crate) struct ListenOptions {
    pub(crate) limits: ConnectionLimits,
    pub(crate) threads: Arc<ConnectionThreads>,
    /// Certificates of HTTP.
    pub(crate) http_tls: Option<Arc<TlsIdentity>>,
    /// Certificates of gRPC.
    pub(crate) tls: Option<Arc<TlsIdentity>>,
}

/// Running listeners.
pub(crate) struct Listening {
    /// Tasks of the listeners, which end after a stop.
    pub(crate) tasks: Vec<JoinHandle<()>>,
    /// Addresses of the listeners, separated by spaces.
    pub(crate) addresses: String,
}

/// Listeners that were started so far, with the values for starting more.
struct ListenerStarter<'a> {
    server: &'a Server,
    options: &'a ListenOptions,
    stopped: &'a watch::Receiver<bool>,
    tasks: Vec<JoinHandle<()>>,
    addresses: Vec<String>,
}

/// Starts the listeners.
///
/// # Errors
/// `Unavailable` if a Unix socket cannot be bound.
pub(crate) fn listen(
    server: &Server,
    options: &ListenOptions,
    sockets: BoundSockets,
    stopped: &watch::Receiver<bool>,
) -> Result<Listening> {
    let public = sockets.surface()?;
    let mode = sockets.mode;
    let mut starter =
        ListenerStarter { server, options, stopped, tasks: vec![], addresses: vec![] };
    if let Some(socket) = sockets.http {
        let socket = starter.tcp(socket, scheme("http", "https", &options.http_tls))?;
        starter.http("http", socket, public);
    }
    if let Some(socket) = sockets.grpc {
        let socket = starter.tcp(socket, scheme("grpc", "grpcs", &options.tls))?;
        starter.grpc("grpc", socket, public);
    }
    if let Some(socket) = sockets.admin {
        let socket = starter.tcp(socket, scheme("admin=http", "admin=https", &options.http_tls))?;
        starter.http("admin", socket, Surface::Admin);
    }
    if let Some(path) = sockets.http_path {
        let socket = starter.unix("http+unix", &path, mode)?;
        starter.http("http-unix", socket, Surface::Whole);
    }
    if let Some(path) = sockets.grpc_path {
        let socket = starter.unix("unix", &path, mode)?;
        starter.grpc("grpc-unix", socket, Surface::Whole);
    }
    Ok(Listening { tasks: starter.tasks, addresses: starter.addresses.join(" ") })
}

impl ListenerStarter<'_> {
    /// Registers a bound port.
    fn tcp(&mut self, socket: std::net::TcpListener, scheme: &str) -> Result<ListenSocket> {
        let socket = TcpListener::from_std(socket).map_err(|error| failed(&error))?;
        let address = socket.local_addr().map_err(|error| failed(&error))?;
        self.addresses.push(format!("{scheme}://{address}"));
        Ok(ListenSocket::Tcp(socket))
    }

    fn unix(&mut self, scheme: &str, path: &Path, mode: u32) -> Result<ListenSocket> {
        let socket = UnixSocket::bind(path, mode)?;
        self.addresses.push(format!("{scheme}:{}", path.display()));
        Ok(ListenSocket::Unix(socket))
    }

    fn http(&mut self, name: &'static str, socket: ListenSocket, surface: Surface) {
        let mut limits = self.options.limits;
        if name == "admin" {
            limits.connections_max = limits.connections_max.min(ADMIN_CONNECTIONS_MAX);
        }
        let listener = Listener {
            name,
            version: HttpVersion::Http1,
            // Clients of a Unix socket are on this machine.
            tls: self.options.http_tls.clone().filter(|_| socket.is_tcp()),
            socket,
            service: http::service(self.server, surface),
            metrics: self.server.core.metrics.clone(),
            limits,
            threads: None,
        };
        self.tasks.push(tokio::spawn(listener.serve(self.stopped.clone())));
    }

    fn grpc(&mut self, name: &'static str, socket: ListenSocket, surface: Surface) {
        let listener = Listener {
            name,
            version: HttpVersion::Http2,
            tls: self.options.tls.clone().filter(|_| socket.is_tcp()),
            socket,
            service: grpc::service(
                self.server.models.clone(),
                http::collections(self.server),
                self.stopped.clone(),
                surface,
            ),
            metrics: self.server.core.metrics.clone(),
            limits: self.options.limits,
            threads: Some(self.options.threads.clone()),
        };
        self.tasks.push(tokio::spawn(listener.serve(self.stopped.clone())));
    }
}

/// Returns the scheme of an address: `encrypted` with TLS, and otherwise `plain`.
fn scheme(
    plain: &'static str,
    encrypted: &'static str,
    tls: &Option<Arc<TlsIdentity>>,
) -> &'static str {
    if tls.is_some() { encrypted } else { plain }
}

fn failed(error: &std::io::Error) -> Error {
    Error::internal(format!("listener: {error}"))
}
