//! Starts the server, serves, and stops.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use os::ServiceManager;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use transport::{
    ConnectionLimits, ConnectionThreads, HttpVersion, ListenSocket, Listener, TlsIdentity,
    UnixSocket, bind,
};

use crate::access_files::AccessFiles;
use crate::compose::Server;
use crate::config::{Config, ListenerConfig};
use crate::core::Core;
use crate::descriptors::{self, DescriptorPlan};
use crate::reconfigure::{self, ConfigWatch, ReloadSignal};
use crate::stores::ModelStores;
use crate::{grpc, http, page};

/// Time between two looks at the first load.
const SETTLED_POLL: Duration = Duration::from_millis(20);

/// Serves until SIGTERM or SIGINT, then stops gracefully. Meanwhile the models follow `watch`;
/// SIGHUP asks it at once. `manager` is notified when every configured model serves or has failed,
/// of reloads, and of the stop.
///
/// # Errors
/// `Unavailable` if a port is taken, `NotFound` or `FailedPrecondition` if ONNX Runtime cannot be
/// used, `InvalidArgument` for contradicting settings. A model that fails to load is not an error
/// here: its state gives the reason.
pub fn run(mut config: Config, watch: Option<ConfigWatch>, manager: ServiceManager) -> Result<()> {
    config.plan_threads()?;
    share_descriptors(&mut config);
    let access = config.access_policy()?;
    let tls = config.listeners.tls.clone().map(TlsIdentity::read).transpose()?;
    let mut stores = ModelStores::open(&config, watch.is_some())?;
    let mut sockets = BoundSockets::bind(&config.listeners)?;
    warn_if_open(&config);
    if stores.needs_first_sync() {
        // The ports are free, so the server may start. Clients are refused until it has models.
        drop(sockets);
        stores.first_sync()?;
        sockets = BoundSockets::bind(&config.listeners)?;
    }
    let server = Server::new(&config, Core::compose(&config)?, access);
    start_gpu(&config);
    server.collections.start()?;
    let stores = stores.follow(&server)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.listeners.threads)
        .thread_name("connection")
        .enable_all()
        .build()
        .map_err(|e| Error::exhausted(format!("the connection threads cannot be started: {e}")))?;
    let threads = ConnectionThreads::start(config.listeners.threads)?;
    let follow = Following { watch, manager, tls };
    let served = runtime.block_on(serve(&server, &config, threads.clone(), sockets, follow));
    threads.shutdown();
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(stores);
    server.shutdown();
    if served.is_ok() {
        tracing::info!("stopped");
    }
    served
}

/// Opens the GPU if one is configured, before any collection is opened. If it fails, the processor
/// does its work.
fn start_gpu(config: &Config) {
    let Some(options) = &config.search.gpu else { return };
    match search::coarse::device::start(options) {
        Ok(name) => tracing::info!(gpu = name, "large segments are ranked on the GPU"),
        Err(error) => tracing::warn!(%error, "no GPU is used; searches stay on the processor"),
    }
}

/// Bound sockets of a server.
struct BoundSockets {
    http: Option<std::net::TcpListener>,
    grpc: Option<std::net::TcpListener>,
    /// Path of a Unix socket, which is bound last.
    grpc_path: Option<PathBuf>,
}

impl BoundSockets {
    fn bind(config: &ListenerConfig) -> Result<BoundSockets> {
        let port =
            |port: Option<u16>, flag| port.map(|port| bind(config.host, port, flag)).transpose();
        Ok(BoundSockets {
            http: port(config.http_port, "--http-port")?,
            grpc: port(config.grpc_port, "--grpc-port")?,
            grpc_path: config.grpc_socket.clone(),
        })
    }
}

/// Configuration to follow while serving, and who is notified of it.
struct Following {
    watch: Option<ConfigWatch>,
    manager: ServiceManager,
    tls: Option<Arc<TlsIdentity>>,
}

async fn serve(
    server: &Server,
    config: &Config,
    threads: Arc<ConnectionThreads>,
    mut sockets: BoundSockets,
    follow: Following,
) -> Result<()> {
    let Following { watch, manager, tls } = follow;
    let mut signals = EndSignals::install()?;
    let hangups = watch.is_some().then(reconfigure::hangups).transpose()?;
    if config.listeners.listen_when_settled {
        // The ports are free, so the server may start. Clients are refused until it is ready.
        drop(sockets);
        tokio::select! {
            () = settled(server) => {}
            () = signals.wait() => return Ok(()),
        }
        sockets = BoundSockets::bind(&config.listeners)?;
    }
    let (stop, stopped) = watch::channel(false);
    let options = ListenOptions {
        limits: config.listeners.connection_limits(),
        threads,
        http_tls: tls.clone().filter(|_| !config.listeners.plain_http),
        tls,
    };
    let (listeners, addresses) = listen(server, &options, sockets, &stopped)?;
    if let Some(files) = AccessFiles::of(&options.tls, server)? {
        tokio::spawn(files.follow(stopped.clone()));
    }
    tokio::spawn(page::watch(server.page.clone(), stopped.clone()));
    if let (Some(watch), Some(hangups)) = (watch, hangups) {
        let reloads = ReloadSignal { hangups, manager: manager.clone() };
        tokio::spawn(server.models.configurator.clone().follow(watch, reloads, stopped));
    }
    announce(&format!("serving {addresses}"));
    let engine = &server.core.engine_version;
    tracing::info!(%addresses, %engine, "serving");
    tokio::select! {
        () = signals.wait() => {}
        () = settled(server) => {
            manager.ready(&format!("serving {addresses}"));
            signals.wait().await;
        }
    }
    manager.stopping();
    tracing::info!("stopping: no new connections; requests in flight are finished");
    server.readiness.stop();
    // Fails only if all listeners have ended already.
    let _ = stop.send(true);
    for listener in listeners {
        if let Err(error) = listener.await {
            tracing::error!(%error, "a listener ended by panic");
        }
    }
    Ok(())
}

/// Waits until the first load is finished.
async fn settled(server: &Server) {
    while !server.core.lifecycle.settled() {
        tokio::time::sleep(SETTLED_POLL).await;
    }
}

/// Settings that all listeners share.
struct ListenOptions {
    limits: ConnectionLimits,
    threads: Arc<ConnectionThreads>,
    /// Certificates of HTTP.
    http_tls: Option<Arc<TlsIdentity>>,
    /// Certificates of gRPC.
    tls: Option<Arc<TlsIdentity>>,
}

/// Starts the listeners. Returns their tasks and addresses.
fn listen(
    server: &Server,
    options: &ListenOptions,
    sockets: BoundSockets,
    stopped: &watch::Receiver<bool>,
) -> Result<(Vec<JoinHandle<()>>, String)> {
    let ListenOptions { limits, threads, http_tls, tls } = options;
    let mut addresses = Vec::new();
    let mut listeners = Vec::new();
    if let Some(http) = sockets.http {
        let listener = Listener {
            name: "http",
            version: HttpVersion::Http1,
            socket: tcp(http, scheme(["http", "https"], http_tls), &mut addresses)?,
            service: http::service(server),
            metrics: server.core.metrics.clone(),
            limits: *limits,
            threads: None,
            tls: http_tls.clone(),
        };
        listeners.push(tokio::spawn(listener.serve(stopped.clone())));
    }
    let mut grpc = Vec::new();
    if let Some(socket) = sockets.grpc {
        let scheme = scheme(["grpc", "grpcs"], tls);
        grpc.push(("grpc", tcp(socket, scheme, &mut addresses)?));
    }
    if let Some(path) = sockets.grpc_path {
        grpc.push(("grpc-unix", ListenSocket::Unix(UnixSocket::bind(&path)?)));
        addresses.push(format!("unix:{}", path.display()));
    }
    for (name, socket) in grpc {
        // Clients of a Unix socket are on this machine.
        let tls = tls.clone().filter(|_| socket.is_tcp());
        let listener = Listener {
            name,
            version: HttpVersion::Http2,
            socket,
            service: grpc::service(server.models.clone(), stopped.clone()),
            metrics: server.core.metrics.clone(),
            limits: *limits,
            threads: Some(threads.clone()),
            tls,
        };
        listeners.push(tokio::spawn(listener.serve(stopped.clone())));
    }
    Ok((listeners, addresses.join(" ")))
}

/// Returns the scheme of an address: the first in plain text, the second with TLS.
fn scheme(schemes: [&'static str; 2], tls: &Option<Arc<TlsIdentity>>) -> &'static str {
    schemes[usize::from(tls.is_some())]
}

/// Registers a bound port, and adds its address to `addresses`.
fn tcp(
    socket: std::net::TcpListener,
    scheme: &str,
    addresses: &mut Vec<String>,
) -> Result<ListenSocket> {
    let failed = |error: std::io::Error| Error::internal(format!("listener: {error}"));
    let socket = TcpListener::from_std(socket).map_err(failed)?;
    let address = socket.local_addr().map_err(failed)?;
    addresses.push(format!("{scheme}://{address}"));
    Ok(ListenSocket::Tcp(socket))
}

/// Prints the line with the ports for the program that started the server. A closed output is not
/// an error.
fn announce(line: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Raises the limit of open files and shares it among connections and collections.
fn share_descriptors(config: &mut Config) {
    let limit = transport::descriptors::raise();
    let DescriptorPlan { connections_max, collections_max } =
        descriptors::plan(limit, config.listeners.connections_max);
    if connections_max < config.listeners.connections_max
        || collections_max < config.search.collections_max
    {
        tracing::warn!(
            limit,
            "the limit of open files leaves room for {connections_max} connections of each listener instead of {}, and \
             {collections_max} collections; raise it with ulimit -Hn or LimitNOFILE=, or give --max-connections \
             {connections_max}",
            config.listeners.connections_max
        );
    }
    config.listeners.connections_max = connections_max;
    config.search.collections_max = config.search.collections_max.min(collections_max);
}

/// Warns if other machines reach the server and there is no API key.
fn warn_if_open(config: &Config) {
    let host = config.listeners.host;
    if !host.is_loopback() && config.search.api_key.is_none() && config.listeners.keys.is_none() {
        tracing::warn!(
            %host,
            "anyone who reaches this address can run models, read metrics, images and collections, and change and \
             delete collections: no API key is set; give --keys FILE, --api-key KEY (or MILLPOND_API_KEY), or --host 127.0.0.1"
        );
    }
}

/// The signals that end the server.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    /// Installs the handlers. Called before the server announces itself, since a signal without a
    /// handler kills the process.
    fn install() -> Result<EndSignals> {
        let install = |kind| signal(kind).map_err(|e| Error::internal(format!("signals: {e}")));
        let terminate = install(SignalKind::terminate())?;
        let interrupt = install(SignalKind::interrupt())?;
        Ok(EndSignals { terminate, interrupt })
    }

    /// Waits for the first signal.
    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {},
            _ = self.interrupt.recv() => {},
        }
    }
}
