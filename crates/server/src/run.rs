//! Starts the server, serves, and stops.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use transport::{ConnectionLimits, ConnectionThreads, HttpVersion, Listener, bind};

use crate::compose::Server;
use crate::config::Config;
use crate::core::Core;
use crate::descriptors::{self, DescriptorPlan};
use crate::{grpc, http, page};

/// Serves until SIGTERM or SIGINT, then stops gracefully.
///
/// # Errors
/// `Unavailable` if a port is taken, `NotFound` or `FailedPrecondition` if ONNX Runtime cannot be
/// used, `InvalidArgument` for contradicting settings. A model that fails to load is not an error
/// here: its state gives the reason.
pub fn run(mut config: Config) -> Result<()> {
    config.plan_threads()?;
    share_descriptors(&mut config);
    let http = bind(config.listeners.host, config.listeners.http_port, "--http-port")?;
    let grpc = bind(config.listeners.host, config.listeners.grpc_port, "--grpc-port")?;
    warn_if_open(&config);
    let server = Server::new(&config, Core::compose(&config)?);
    start_gpu(&config);
    server.collections.start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.listeners.threads)
        .thread_name("connection")
        .enable_all()
        .build()
        .map_err(|e| Error::exhausted(format!("the connection threads cannot be started: {e}")))?;
    let threads = ConnectionThreads::start(config.listeners.threads)?;
    let served = runtime.block_on(serve(
        &server,
        config.listeners.connection_limits(),
        threads.clone(),
        http,
        grpc,
    ));
    threads.shutdown();
    runtime.shutdown_timeout(Duration::from_secs(1));
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

async fn serve(
    server: &Server,
    limits: ConnectionLimits,
    threads: Arc<ConnectionThreads>,
    http: std::net::TcpListener,
    grpc: std::net::TcpListener,
) -> Result<()> {
    let listener = |socket: std::net::TcpListener| {
        TcpListener::from_std(socket).map_err(|e| Error::internal(format!("listener: {e}")))
    };
    let http = listener(http)?;
    let grpc = listener(grpc)?;
    let address = |socket: &TcpListener| {
        socket
            .local_addr()
            .map(|a| a.to_string())
            .map_err(|e| Error::internal(format!("listener: {e}")))
    };
    let http_address = address(&http)?;
    let grpc_address = address(&grpc)?;
    let (stop, stopped) = watch::channel(false);
    let http_listener = Listener {
        name: "http",
        version: HttpVersion::Http1,
        socket: http,
        service: http::service(server),
        metrics: server.core.metrics.clone(),
        limits,
        threads: None,
    };
    let grpc_listener = Listener {
        name: "grpc",
        version: HttpVersion::Http2,
        socket: grpc,
        service: grpc::service(server.models.clone(), stopped.clone()),
        metrics: server.core.metrics.clone(),
        limits,
        threads: Some(threads),
    };
    tokio::spawn(page::watch(server.page.clone(), stopped.clone()));
    let listeners = [
        tokio::spawn(http_listener.serve(stopped.clone())),
        tokio::spawn(grpc_listener.serve(stopped)),
    ];
    let mut signals = EndSignals::install()?;
    announce(&format!("serving http://{http_address} grpc://{grpc_address}"));
    let engine = &server.core.engine_version;
    tracing::info!(http = %http_address, grpc = %grpc_address, %engine, "serving");
    signals.wait().await;
    tracing::info!("stopping: no new connections; requests in flight are finished");
    server.readiness.stop();
    // Fails only if both listeners have ended already.
    let _ = stop.send(true);
    for listener in listeners {
        if let Err(error) = listener.await {
            tracing::error!(%error, "a listener ended by panic");
        }
    }
    Ok(())
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
    if !host.is_loopback() && config.search.api_key.is_none() {
        tracing::warn!(
            %host,
            "anyone who reaches this address can run models, read metrics, images and collections, and change and \
             delete collections: no API key is set; give --api-key KEY (or MILLPOND_API_KEY), or --host 127.0.0.1"
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
