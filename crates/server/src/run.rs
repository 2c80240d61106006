//! Starts the server, serves, and stops.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use os::ServiceManager;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use transport::{ConnectionThreads, TlsIdentity};

use crate::access_files::AccessFiles;
use crate::cluster::ClusterServing;
use crate::compose::Server;
use crate::config::{self, Config, ListenerConfig};
use crate::core::Core;
use crate::descriptors::{self, DescriptorPlan};
use crate::first_copies::FirstCopies;
use crate::listeners::{BoundSockets, ListenOptions, Listening, listen};
use crate::reconfigure::{self, ConfigWatch, ReloadSignal};
use crate::stores::ModelStores;

/// Time between two checks of the first load.
const SETTLED_POLL: Duration = Duration::from_millis(20);
/// Maximum time that a stop takes in addition to the grace time. In it a node leaves its cluster,
/// and collections and models are closed.
const STOP_MARGIN: Duration = Duration::from_secs(15);

/// Serves until SIGTERM or SIGINT, then stops gracefully. Meanwhile the models follow `watch`.
/// SIGHUP asks it at once. `manager` is notified when every configured model serves or has failed,
/// of reloads, and of the stop.
///
/// # Errors
/// `Unavailable` if a port is taken, or if a store that was never copied cannot be listed.
/// `NotFound` or `FailedPrecondition` if ONNX Runtime or that store cannot be used.
/// `ResourceExhausted` if a limit of open files or threads is too low.
/// `InvalidArgument` for contradicting settings and missing files of keys or certificates. A model
/// that fails to load is not an error here, because its state gives the reason.
pub fn run(mut config: Config, watch: Option<ConfigWatch>, manager: ServiceManager) -> Result<()> {
    config.plan_threads()?;
    share_descriptors(&mut config)?;
    let runtime = connection_runtime(config.listeners.threads)?;
    // Before engines and collections are opened, which takes time.
    let hangups = runtime.block_on(async { HangupSignals::install() })?;
    let starting = runtime.block_on(StartSignals::install())?;
    let access = config.access_policy()?;
    let tls = config.listeners.tls.clone().map(TlsIdentity::read).transpose();
    let tls = tls.map_err(|error| config::unusable("TLS cannot be set up", error))?;
    let stores = ModelStores::open(&config)?;
    let links = stores.links();
    config.models.stores.awaits_copies = links.copies.are_missing();
    let sockets = BoundSockets::bind(&config.listeners)?;
    warn_if_open(&config);
    let server = Server::new(&config, Core::compose(&config)?, access, links.clone());
    start_gpu(&config);
    server.collections.start()?;
    server.backups.start()?;
    let stores = stores.follow(&server)?;
    if config.cluster.is_some() {
        server.images.report_removals();
    } else {
        server.images.resume_removals(runtime.handle());
    }
    let threads = ConnectionThreads::start(config.listeners.threads)?;
    let follow = Following { watch, manager, tls, copies: links.copies, hangups, starting };
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

/// Starts the connection threads.
///
/// # Errors
/// `ResourceExhausted` if the system refuses a thread.
fn connection_runtime(threads: usize) -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("connection")
        .enable_all()
        .build()
        .map_err(|e| Error::exhausted("the connection threads cannot be started").caused_by(e))
}

/// Opens the GPU if one is configured, before any collection is opened. If it fails, the processor
/// does its work.
fn start_gpu(config: &Config) {
    let Some(options) = &config.search.gpu else { return };
    match coarse::device::start(options) {
        Ok(name) => tracing::info!(gpu = name, "large segments are ranked on the GPU"),
        Err(error) => tracing::warn!(%error, "no GPU is used; searches stay on the processor"),
    }
}

/// Configuration to follow while serving, and the service manager that is notified of it.
struct Following {
    watch: Option<ConfigWatch>,
    manager: ServiceManager,
    tls: Option<Arc<TlsIdentity>>,
    /// The server ends if a store can never be copied.
    copies: FirstCopies,
    hangups: HangupSignals,
    starting: StartSignals,
}

/// Listens, serves until a signal or an error ends the server, and stops. Then new connections are
/// refused, and running requests finish within the grace time.
///
/// # Errors
/// The error of a port that cannot be opened, of the cluster, or of a store that can never be
/// copied.
async fn serve(
    server: &Server,
    config: &Config,
    threads: Arc<ConnectionThreads>,
    mut sockets: BoundSockets,
    follow: Following,
) -> Result<()> {
    let Following { watch, manager, tls, copies, hangups, starting } = follow;
    let mut signals = starting.finish().await?;
    if config.listeners.listen_when_settled {
        // The ports are free, so the server may start. Clients are refused until it is ready.
        drop(sockets);
        tokio::select! {
            () = wait_until_settled(server) => {}
            () = signals.wait() => return Ok(()),
            error = copies.clone().failed() => return Err(error),
        }
        sockets = BoundSockets::bind(&config.listeners)?;
    }
    let cluster = tokio::select! {
        // Keys of a join that is cut off end with their lease, as after a kill.
        () = signals.wait() => return Ok(()),
        started = ClusterServing::start(config, server, sockets.http_address()) => started?,
    };
    if let Some(cluster) = cluster {
        // This is the only place that sets it.
        let _ = server.cluster.set(cluster);
    }
    let (stop, stopped) = watch::channel(false);
    let options = ListenOptions {
        limits: config.listeners.connection_limits(),
        threads,
        http_tls: tls.clone().filter(|_| config.listeners.encrypts_http()),
        tls,
    };
    let Listening { tasks, addresses } = listen(server, &options, sockets, &stopped)?;
    tokio::spawn(AccessFiles::of(&options.tls, server, hangups.access).follow(stopped.clone()));
    tokio::spawn(console::watch(server.page.clone(), stopped.clone()));
    if let Some(watch) = watch {
        let reloads = ReloadSignal { hangups: hangups.config, manager: manager.clone() };
        tokio::spawn(server.models.configurator.clone().follow(watch, reloads, stopped));
    }
    announce(&format!("serving {addresses}"));
    let engine = &server.core.engine_version;
    tracing::info!(%addresses, %engine, "serving");
    let ready = async {
        wait_until_settled(server).await;
        manager.ready(&format!("serving {addresses}"));
        std::future::pending::<()>().await;
    };
    let result = tokio::select! {
        () = signals.wait() => Ok(()),
        error = copies.failed() => Err(error),
        () = ready => Ok(()),
    };
    manager.stopping(stop_time(config.listeners.shutdown_grace));
    stop_serving(server, &stop, tasks).await;
    result
}

/// Leaves the cluster, ends the listeners, and waits for the requests in flight.
async fn stop_serving(server: &Server, stop: &watch::Sender<bool>, tasks: Vec<JoinHandle<()>>) {
    server.readiness.stop();
    if let Some(cluster) = server.cluster.get() {
        tracing::info!("stopping: shards are left to other nodes");
        cluster.leave().await;
    }
    tracing::info!("stopping: no new connections; requests in flight are finished");
    // Fails only if all listeners have ended already.
    let _ = stop.send(true);
    for listener in tasks {
        if let Err(error) = listener.await {
            tracing::error!(%error, "a listener ended by panic");
        }
    }
    if let Some(cluster) = server.cluster.get() {
        cluster.stop();
    }
}

/// Returns the time that a service manager must wait for a stop with `grace`. `None` for the
/// default grace time, for which managers are set up, such as the unit of the Debian package.
fn stop_time(grace: Duration) -> Option<Duration> {
    (grace > ListenerConfig::default().shutdown_grace).then(|| grace + STOP_MARGIN)
}

/// Waits until the first load is finished.
async fn wait_until_settled(server: &Server) {
    while !server.core.lifecycle.settled() {
        tokio::time::sleep(SETTLED_POLL).await;
    }
}

/// Prints the line with the ports for the program that started the server. A closed output is not
/// an error.
fn announce(line: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Raises the limit of open files and shares it among connections and collections.
///
/// # Errors
/// `ResourceExhausted` if the limit is too low for the server itself.
fn share_descriptors(config: &mut Config) -> Result<()> {
    let limit = transport::descriptors::raise();
    descriptors::check(limit, config.listeners.threads, config.data.workers)?;
    let DescriptorPlan { connections_max, collections_max } =
        descriptors::plan(limit, config.listeners.count(), config.listeners.connections_max);
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
    Ok(())
}

/// Warns if other machines reach the server and there is no key.
fn warn_if_open(config: &Config) {
    let host = config.listeners.widest_host();
    let keyless = config.search.api_key.is_none()
        && config.listeners.keys.is_none()
        && config.listeners.admin_key.is_none();
    if !host.is_loopback() && keyless {
        tracing::warn!(
            %host,
            "anyone who reaches this address can run models, read metrics, images and collections, and change and \
             delete collections: no key is set; give --keys FILE, --api-key KEY (or MILLPOND_API_KEY), or --host 127.0.0.1"
        );
    }
}

/// Receivers of SIGHUP, one for each task that reads files again.
struct HangupSignals {
    /// Receiver of the task that reads the configuration.
    config: Signal,
    /// Receiver of the task that reads certificates and keys.
    access: Signal,
}

impl HangupSignals {
    /// Installs the handler. A signal that arrives while the server starts takes effect after the
    /// start. Without a handler it would end the process.
    ///
    /// # Errors
    /// `Internal` if the system refuses.
    fn install() -> Result<HangupSignals> {
        Ok(HangupSignals { config: reconfigure::hangups()?, access: reconfigure::hangups()? })
    }
}

/// The signals that end the server, while it starts. They end the process at once, because foreign
/// code may run that cannot be stopped. Without a handler, a process with the id 1, such as that of
/// a container, would not get them.
struct StartSignals {
    started: oneshot::Sender<()>,
    ending: JoinHandle<EndSignals>,
}

impl StartSignals {
    /// Installs the handlers, and waits until a thread of the runtime has begun to wait for them. A
    /// thread that begins, and the first line that it logs, register destructors. That waits for
    /// the loader's lock (__cxa_thread_atexit_impl), which the opening of a library holds.
    ///
    /// # Errors
    /// `Internal` if the system refuses.
    async fn install() -> Result<StartSignals> {
        let mut signals = EndSignals::install()?;
        let (started, is_started) = oneshot::channel();
        let (began, has_begun) = oneshot::channel();
        let ending = tokio::spawn(async move {
            // Fails only if the start has ended.
            let _ = began.send(());
            tokio::select! {
                // Nothing is logged.
                () = signals.wait() => os::process::exit_now(0),
                // Also if the start has failed.
                _ = is_started => {}
            }
            signals
        });
        has_begun.await.map_err(|error| Error::internal("signals").caused_by(error))?;
        Ok(StartSignals { started, ending })
    }

    /// Returns the signals, which end the server in order from now on.
    ///
    /// # Errors
    /// `Internal` if the task that waits for them has panicked.
    async fn finish(self) -> Result<EndSignals> {
        // Fails only if the task has ended, which its result shows.
        let _ = self.started.send(());
        self.ending.await.map_err(|error| Error::internal("signals").caused_by(error))
    }
}

/// The signals that end the server.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// `Internal` if the system refuses.
    fn install() -> Result<EndSignals> {
        let install = |kind| signal(kind).map_err(|e| Error::internal("signals").caused_by(e));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_longer_grace_time_extends_the_stop() {
        let default = ListenerConfig::default().shutdown_grace;
        assert_eq!(stop_time(default), None);
        assert_eq!(stop_time(Duration::ZERO), None);
        let longer = default + Duration::from_secs(1);
        assert_eq!(stop_time(longer), Some(longer + STOP_MARGIN));
    }
}
