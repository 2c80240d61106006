//! The handle of the lifecycle. It starts the threads, passes requests to them and stops them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use base::{Error, Result};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use engine::Engine;
use memory::ParameterStore;
use os::background::BackgroundRunner;
use parking_lot::Mutex;

use crate::activity::LoadActivity;
use crate::admission::Ledger;
use crate::convert::ConversionCache;
use crate::ignored_settings::IgnoredSettings;
use crate::loader::Loader;
use crate::manager::{Manager, ManagerChannels, ManagerShared};
use crate::message::{
    AdminCallback, ConfigurationOrigin, LoadJob, LoadSpec, MESSAGES_MAX, Message, RETIRED_MAX,
    Retired, RolloutAction, SourceReport,
};
use crate::settled::Settled;
use crate::source::ForeignKind;
use crate::source::Scanner;
use crate::source_thread::{self, ScanPace, ScanRequests, ScanTrigger};
use crate::unfinished::UnfinishedLoads;
use crate::unloader::Unloader;
use crate::warmup::WarmupSource;
use crate::{Catalog, ConfigSet, LifecycleConfig, ModelStatus, Observer, SHUTDOWN_WAIT_MAX};

/// Maximum number of load threads. Unload threads have the same maximum.
pub const THREADS_MAX: usize = 64;
/// Shortest poll. A shorter one is lengthened to this.
const POLL_MIN: Duration = Duration::from_millis(5);
/// Longest wait for the threads to end, after the wait for requests.
const JOIN_WAIT_MAX: Duration = Duration::from_secs(5);

/// The running lifecycle. Dropping it shuts it down.
pub struct Lifecycle {
    catalog: Arc<Catalog>,
    settled: Arc<Settled>,
    activity: Arc<LoadActivity>,
    unfinished: Arc<UnfinishedLoads>,
    to: Sender<Message>,
    stop_prefault: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Taken when the lifecycle stops.
    idle_unloads: Mutex<Option<IdleUnloads>>,
}

/// Retired versions that only threads of idle priority release.
struct IdleUnloads {
    queue: Receiver<Retired>,
    abandon: Arc<AtomicBool>,
    leave_rest: Arc<AtomicBool>,
}

impl Lifecycle {
    /// Starts the threads and the first scan of the directories. Returns at once.
    ///
    /// # Errors
    /// `InvalidArgument` for a configuration that cannot work. `ResourceExhausted` if a thread
    /// cannot be started.
    pub fn start(
        config: LifecycleConfig,
        engines: Vec<Arc<dyn Engine>>,
        store: Arc<ParameterStore>,
        warmup: Arc<dyn WarmupSource>,
        observer: Arc<dyn Observer>,
    ) -> Result<Arc<Lifecycle>> {
        check(&config, &engines)?;
        let set = ConfigSet { models: config.models.clone(), roots: config.roots.clone() };
        set.check()?;
        let configured = Arc::new(ArcSwap::from_pointee(set));
        let (to, inbox) = bounded(MESSAGES_MAX);
        let lifecycle = Lifecycle::without_threads(to);
        let ledger = Arc::new(Ledger::default());
        let kinds = ForeignKind::all(&engines);
        let loader = Loader {
            engines,
            store: store.clone(),
            ledger: ledger.clone(),
            warmup,
            converter: config.converter.clone(),
            cache: open_cache(&config),
            placement: config.placement,
            background: config.runs_in_background(),
            starvation_limit: config.starvation_limit,
            load_timeout: config.load_timeout,
            settled: lifecycle.settled.clone(),
            activity: lifecycle.activity.clone(),
            unfinished: lifecycle.unfinished.clone(),
            threads_max: config.threads_max,
            ignored: IgnoredSettings::default(),
            out: lifecycle.to.clone(),
        };
        let jobs = lifecycle.start_loaders(loader, config.load_threads.max(1))?;
        let abandon = Arc::new(AtomicBool::new(false));
        let retired = lifecycle.start_unloaders(&config, &abandon)?;
        let prefault = lifecycle.start_prefault(&config, &store)?;
        let (scans, trigger) = ScanRequests::new();
        let shared = ManagerShared {
            catalog: lifecycle.catalog.clone(),
            observer,
            ledger,
            settled: lifecycle.settled.clone(),
            configured: configured.clone(),
        };
        let channels = ManagerChannels { inbox, jobs, retired, scans, prefault, abandon };
        let pool_bytes_max = store.pool().stats().bytes_max;
        let manager = Manager::new(&config, pool_bytes_max, shared, channels);
        lifecycle.spawn("lifecycle".into(), move || manager.run())?;
        let poll = config.poll.max(POLL_MIN);
        let settled = config.poll_once.then(|| lifecycle.settled.clone());
        let scanner = Scanner::new(configured, poll, kinds);
        lifecycle.start_source(scanner, ScanPace { poll, settled }, trigger)?;
        Ok(Arc::new(lifecycle))
    }

    /// Creates a lifecycle whose threads are still to be started. `to` is the channel to the thread
    /// `lifecycle`.
    fn without_threads(to: Sender<Message>) -> Lifecycle {
        Lifecycle {
            catalog: Arc::new(Catalog::default()),
            settled: Arc::new(Settled::default()),
            activity: Arc::default(),
            unfinished: Arc::default(),
            to,
            stop_prefault: Arc::default(),
            threads: Mutex::default(),
            idle_unloads: Mutex::default(),
        }
    }

    /// Returns the ready versions.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Returns the loads and unloads in progress.
    pub fn activity(&self) -> &Arc<LoadActivity> {
        &self.activity
    }

    /// Returns every model and version, in order of name and number.
    pub fn status(&self) -> Vec<ModelStatus> {
        self.catalog.statuses()
    }

    /// Scans the directories again and loads `name`, even if an administrator unloaded it or a
    /// version failed before. Returns at once. Calls `done` when every requested version is ready,
    /// or when the first try of one has failed. Joins a load that is already running.
    pub fn load(&self, name: &str, spec: LoadSpec, done: AdminCallback) {
        self.pass_on(Message::Load { name: name.into(), spec, done });
    }

    /// Unloads every version of `name` until the next load. Returns at once. Calls `done` when the
    /// memory is released.
    pub fn unload(&self, name: &str, done: AdminCallback) {
        self.pass_on(Message::Unload { name: name.into(), done });
    }

    /// Starts, promotes or withdraws a version of `name` in a rollout. Returns at once. Calls
    /// `done` when a started version is ready, or when the roles of the versions have changed.
    pub fn rollout(&self, name: &str, action: RolloutAction, done: AdminCallback) {
        self.pass_on(Message::Rollout { name: name.into(), action, done });
    }

    /// Replaces the models and roots that are served. Returns at once. A model that `set` lacks is
    /// unloaded. A model with the same configuration is not touched. Labels, version policies and
    /// schedules change without a load. A model that moved to another directory loads its versions
    /// from there while the earlier ones serve. One that an administrator unloaded stays unloaded.
    ///
    /// Calls `done` once every new or changed model has a ready version and no load left. Passes
    /// `FailedPrecondition` if one could not be loaded, or `Cancelled` if too many later changes
    /// wait. The configuration is then in effect nevertheless. `InvalidArgument` means that nothing
    /// changed. If `set` has the same models as before, all of them are awaited.
    ///
    /// New versions of changed models do not wait for their turn in the fleet.
    ///
    /// Returns false if nothing changes: `set` is invalid, too many requests wait
    /// (`ResourceExhausted`), or the lifecycle has stopped (`Unavailable`). `done` was called then.
    pub fn configure(&self, set: ConfigSet, done: AdminCallback) -> bool {
        self.replace_configuration(set, ConfigurationOrigin::Client, done)
    }

    /// Replaces the models and roots as [`Lifecycle::configure`] does, for a source that all
    /// processes of a fleet may follow, such as a file. New versions wait for their turn, and are
    /// not awaited.
    pub fn follow_configuration(&self, set: ConfigSet, done: AdminCallback) -> bool {
        self.replace_configuration(set, ConfigurationOrigin::Source, done)
    }

    /// Checks `set` and sends it to the thread `lifecycle`. Calls `done` with the outcome. Returns
    /// false if the set is invalid or the thread has ended.
    fn replace_configuration(
        &self,
        set: ConfigSet,
        origin: ConfigurationOrigin,
        done: AdminCallback,
    ) -> bool {
        match set.check() {
            Ok(()) => self.pass_on(Message::Configure { set: Arc::new(set), origin, done }),
            Err(error) => {
                done(Err(error));
                false
            }
        }
    }

    /// Takes the state of the copies from which models are served. Waits while the channel to the
    /// `lifecycle` thread is full.
    pub fn report_sources(&self, report: SourceReport) {
        // Fails only if the lifecycle has stopped.
        let _ = self.to.send(Message::Sources(report));
    }

    /// Returns true once the first load is finished, and from then on. Every version chosen at the
    /// start is then ready or has failed, and the pool is faulted in.
    pub fn settled(&self) -> bool {
        self.settled.get()
    }

    /// Waits for [`Lifecycle::settled`]. Returns false after `timeout`.
    pub fn wait_settled(&self, timeout: Duration) -> bool {
        self.settled.wait(timeout)
    }

    /// Stops all loads, takes every version out of the catalogue, releases idle versions and joins
    /// the threads. Waits at most [`SHUTDOWN_WAIT_MAX`] for running requests and loads. Versions
    /// still in use and loads that have not stopped are logged then, and end with the process. May
    /// be called more than once.
    pub fn shutdown(&self) {
        let mut threads = self.threads.lock();
        if threads.is_empty() {
            return;
        }
        self.stop_prefault.store(true, Ordering::Relaxed);
        threads.extend(self.start_last_unloader());
        // Fails only if the thread has ended already.
        let _ = self.to.send(Message::Stop);
        let deadline = Instant::now() + SHUTDOWN_WAIT_MAX + JOIN_WAIT_MAX;
        for thread in threads.drain(..) {
            // A thread stuck in an engine ends with the process.
            os::thread::join_until(thread, deadline);
        }
        self.unfinished.log_all();
    }

    /// Starts an unload thread of ordinary priority, and tells the threads of idle priority to take
    /// no more versions. Idle threads get almost no time on a busy machine. While the server stops,
    /// it has no requests to protect. Returns `None` without idle threads or after an error.
    fn start_last_unloader(&self) -> Option<JoinHandle<()>> {
        let IdleUnloads { queue, abandon, leave_rest } = self.idle_unloads.lock().take()?;
        let unloader = Unloader {
            background: false,
            abandon,
            leave_rest: Arc::default(),
            activity: self.activity.clone(),
            out: self.to.clone(),
        };
        match os::thread::spawn("unload-stop", move || unloader.run(&queue)) {
            Ok(thread) => {
                leave_rest.store(true, Ordering::Relaxed);
                Some(thread)
            }
            Err(error) => {
                tracing::warn!(%error, "versions are released at idle priority only");
                None
            }
        }
    }

    /// Sends a message to the `lifecycle` thread. Returns false if that fails, after the callback
    /// of the message has received the error.
    fn pass_on(&self, message: Message) -> bool {
        let (message, error) = match self.to.try_send(message) {
            Ok(()) => return true,
            Err(TrySendError::Full(message)) => (
                message,
                Error::exhausted("too many loads and unloads are waiting; try again later"),
            ),
            Err(TrySendError::Disconnected(message)) => {
                (message, Error::unavailable("the server is shutting down"))
            }
        };
        if let Message::Load { done, .. }
        | Message::Unload { done, .. }
        | Message::Rollout { done, .. }
        | Message::Configure { done, .. } = message
        {
            done(Err(error));
        }
        false
    }

    /// Starts `count` load threads. Returns the channel for their jobs.
    fn start_loaders(&self, loader: Loader, count: usize) -> Result<Sender<LoadJob>> {
        // Jobs are only sent to free threads, so at most one waits for each.
        let (jobs, queue): (_, Receiver<LoadJob>) = bounded(count);
        let loader = Arc::new(loader);
        for number in 0..count {
            let loader = loader.clone();
            let queue = queue.clone();
            let name = format!("load-{number}");
            self.spawn(name.clone(), move || loader.run(&name, &queue))?;
        }
        Ok(jobs)
    }

    /// Starts the unload threads. Returns the queue of the versions that they release.
    fn start_unloaders(
        &self,
        config: &LifecycleConfig,
        abandon: &Arc<AtomicBool>,
    ) -> Result<Sender<Retired>> {
        let (retired, queue): (_, Receiver<Retired>) = bounded(RETIRED_MAX);
        let leave_rest = Arc::new(AtomicBool::new(false));
        for number in 0..config.unload_threads.max(1) {
            let unloader = Unloader {
                background: config.runs_in_background(),
                abandon: abandon.clone(),
                leave_rest: leave_rest.clone(),
                activity: self.activity.clone(),
                out: self.to.clone(),
            };
            let queue = queue.clone();
            self.spawn(format!("unload-{number}"), move || unloader.run(&queue))?;
        }
        if config.runs_in_background() {
            let abandon = abandon.clone();
            *self.idle_unloads.lock() = Some(IdleUnloads { queue, abandon, leave_rest });
        }
        Ok(retired)
    }

    fn start_source(&self, scanner: Scanner, pace: ScanPace, trigger: ScanTrigger) -> Result<()> {
        let out = self.to.clone();
        self.spawn("source".into(), move || source_thread::scan(scanner, &pace, &trigger, &out))
    }

    /// Starts the thread that faults the pool in. It takes the wanted bytes from the returned
    /// channel.
    fn start_prefault(
        &self,
        config: &LifecycleConfig,
        store: &Arc<ParameterStore>,
    ) -> Result<Sender<u64>> {
        // One request in the channel is enough, because the next scan asks again.
        let (to, wanted) = bounded(1);
        let pool = store.pool().clone();
        let stop = self.stop_prefault.clone();
        let out = self.to.clone();
        let runner =
            BackgroundRunner::new("prefault", "faulting the pool in", config.starvation_limit);
        let settled = self.settled.clone();
        let body = move || source_thread::prefault(&pool, &wanted, &settled, runner, &stop, &out);
        self.spawn("prefault".into(), body)?;
        Ok(to)
    }

    fn spawn(&self, name: String, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = os::thread::spawn(name, body)?;
        self.threads.lock().push(thread);
        Ok(())
    }
}

impl Drop for Lifecycle {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn check(config: &LifecycleConfig, engines: &[Arc<dyn Engine>]) -> Result<()> {
    if engines.is_empty() {
        return Err(Error::invalid("no engine"));
    }
    if config.load_threads > THREADS_MAX || config.unload_threads > THREADS_MAX {
        return Err(Error::invalid(format!("at most {THREADS_MAX} load and unload threads")));
    }
    Ok(())
}

/// Opens the directory for converted versions, if versions are converted.
fn open_cache(config: &LifecycleConfig) -> ConversionCache {
    let cache = ConversionCache::new(config.uses_pool().then(|| config.cache_dir.clone()));
    if config.uses_pool()
        && let Err(error) = cache.get()
    {
        tracing::warn!(
            %error,
            "the cache of converted models cannot be used, so only published versions can be served; \
             give a writable directory with --cache-dir. Each later load tries to use it"
        );
    }
    cache
}
