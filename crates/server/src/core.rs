//! Composes engines, parameter memory, lifecycle and workers. `run` adds listeners. `local` uses
//! them inside a program.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api_models::RecordedRequests;
use base::{Error, ErrorKind, Result};
use engine::{Engine, LibrarySearch};
use engine_onnx::{LazyOnnxEngine, OnnxEngine};
use engine_tensorflow::TensorFlowEngine;
use engine_torch::TorchEngine;
use inference::{InferenceStats, SlowLog};
use isolate::{IsolatingEngine, Isolation, IsolationConfig, WorkerMemory};
use lifecycle::{Lifecycle, LifecycleConfig, ParameterPlacement};
use memory::{ParameterStore, PoolConfig, SlotPool, StoreConfig};
use metrics::Metrics;
use observe::{EventJournal, LoadTraces, MetricsObserver, ObservedParts, RequestLog};
use os::Rate;
use schedule::{Scheduler, SchedulerConfig, ThreadPolicy};
use telemetry::Tracer;
use tokio::sync::watch;

use crate::config::{Config, MemoryConfig};
use crate::updates::{FleetTurns, update_config};

/// Default limit of the slot pool as a share of the machine's memory.
const POOL_SHARE: f64 = 0.8;

/// Request timeouts after which a run of an isolated model counts as hung. Its process is then
/// started again.
const HUNG_RUN_TIMEOUTS: u32 = 2;
/// Shortest time after which a run counts as hung. The first runs of a version can be slow.
const HUNG_RUN_TIME_MIN: Duration = Duration::from_secs(30);

/// Models, workers, and their metrics.
#[derive(Clone)]
pub(crate) struct Core {
    pub(crate) slow: Arc<SlowLog>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stats: Arc<InferenceStats>,
    pub(crate) journal: Arc<EventJournal>,
    /// Changes with the status of any model.
    pub(crate) changes: watch::Receiver<()>,
    pub(crate) memory: Arc<ParameterStore>,
    pub(crate) isolation: Arc<Isolation>,
    pub(crate) request_log: Option<Arc<RequestLog>>,
    pub(crate) tracer: Option<Arc<Tracer>>,
    /// Turns of updates in the fleet.
    pub(crate) turns: Option<FleetTurns>,
    /// Name and version of ONNX Runtime. Empty if it is opened on demand.
    pub(crate) engine_version: String,
    /// True if parameters live in the slot pool, false if in malloc.
    pub(crate) parameters_in_pool: bool,
}

impl Config {
    /// Replaces thread counts of 0 by numbers for this machine.
    ///
    /// # Errors
    /// `InvalidArgument` for contradicting counts.
    pub(crate) fn plan_threads(&mut self) -> Result<()> {
        let plan = ThreadPolicy {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            workers: self.data.workers,
            runtime_threads: self.data.runtime_threads,
            connection_threads: self.listeners.threads,
            pin: self.data.pin,
            oversubscribe: self.data.oversubscribe,
        }
        .plan()?;
        self.data.workers = plan.workers;
        self.data.pin = plan.pin;
        self.listeners.threads = plan.connection_threads;
        Ok(())
    }
}

impl Core {
    /// Returns handles of the parts whose figures operators read.
    pub(crate) fn observed(&self) -> ObservedParts {
        ObservedParts {
            lifecycle: self.lifecycle.clone(),
            scheduler: self.scheduler.clone(),
            metrics: self.metrics.clone(),
            stats: self.stats.clone(),
            memory: self.memory.clone(),
            isolation: self.isolation.clone(),
            parameters_in_pool: self.parameters_in_pool,
        }
    }

    /// Starts the workers and begins to load the models. All runs together use at most as many
    /// threads as there are workers. Call [`Config::plan_threads`] before.
    ///
    /// # Errors
    /// `NotFound` or `FailedPrecondition` if the ONNX Runtime that the settings name cannot be
    /// used, `InvalidArgument` for contradicting settings.
    pub(crate) fn compose(config: &Config) -> Result<Core> {
        let onnx = onnx_engine(config)?;
        let engine_version = format!("{} {}", onnx.name(), onnx.version());
        Core::start(config, all_engines(onnx, config), engine_version, Some(config.data.workers))
    }

    /// Starts as [`Core::compose`] does, with two differences. ONNX Runtime is opened with its
    /// first model. Threads inside runs are not bounded by the number of workers, because the
    /// program that configures them is the only client.
    ///
    /// # Errors
    /// `InvalidArgument` for contradicting settings.
    pub(crate) fn compose_lazily(config: &Config) -> Result<Core> {
        let onnx = LazyOnnxEngine::new(config.onnxruntime.clone());
        Core::start(config, all_engines(Arc::new(onnx), config), String::new(), None)
    }

    /// Starts with the given engines. `run_threads_max` bounds the threads of each run and of all
    /// runs together. `None` means no bound.
    ///
    /// # Errors
    /// `InvalidArgument` for contradicting settings. Also the errors of the parts that it starts.
    pub(crate) fn start(
        config: &Config,
        engines: Vec<Arc<dyn Engine>>,
        engine_version: String,
        run_threads_max: Option<usize>,
    ) -> Result<Core> {
        let store = parameter_store(&config.memory)?;
        let metrics = Arc::new(Metrics::default());
        let request_log = config.data.request_log.as_ref();
        let request_log =
            request_log.map(|log| RequestLog::start(log, metrics.clone())).transpose()?;
        let tracer = observe::start_tracer(config.traces.as_ref(), &metrics)?;
        let isolation = Isolation::new(isolation_config(config), metrics.clone())?;
        let isolating = |engine| -> Arc<dyn Engine> {
            Arc::new(IsolatingEngine::new(engine, isolation.clone()))
        };
        let engines: Vec<_> = engines.into_iter().map(isolating).collect();
        let stats = Arc::new(InferenceStats::default());
        let journal = Arc::new(EventJournal::default());
        let scheduler = Scheduler::start(&SchedulerConfig {
            workers: config.data.workers,
            queue_max: config.data.queue_max,
            pin: config.data.pin,
            count_threads: run_threads_max.is_some(),
        })?;
        let (changed, changes) = watch::channel(());
        let observer = Arc::new(MetricsObserver {
            metrics: metrics.clone(),
            stats: stats.clone(),
            slow: OnceLock::new(),
            journal: journal.clone(),
            changed,
            engines: engines.iter().map(|engine| engine.name()).collect(),
            loads: tracer.clone().map(LoadTraces::new),
        });
        let turns = FleetTurns::start(&config.models.updates, metrics.updates.clone())?;
        let updates = update_config(&config.models.updates, turns.as_ref());
        let lifecycle = Lifecycle::start(
            LifecycleConfig { updates, ..lifecycle_config(config, run_threads_max) },
            engines,
            store.clone(),
            Arc::new(RecordedRequests),
            observer.clone(),
        )?;
        let isolated = Arc::downgrade(&isolation);
        let workers = move || isolated.upgrade().map_or_else(Vec::new, |own| own.processes());
        let slow = SlowLog::start(metrics.clone(), lifecycle.activity().clone(), workers)?;
        // Fails only if it is set already.
        let _ = observer.slow.set(slow.clone());
        Ok(Core {
            slow,
            lifecycle,
            scheduler,
            metrics,
            stats,
            journal,
            changes,
            memory: store,
            isolation,
            request_log: request_log.map(Arc::new),
            tracer,
            turns,
            engine_version,
            parameters_in_pool: config.memory.placement == ParameterPlacement::Pool,
        })
    }
}

/// Runs an isolated model for the server that started this process, until that server ends.
///
/// # Errors
/// `FailedPrecondition` if no server has started it.
pub fn run_worker(
    onnxruntime: LibrarySearch,
    libtorch: LibrarySearch,
    tensorflow: LibrarySearch,
) -> Result<()> {
    isolate::run_worker(|name| {
        let engines: [Arc<dyn Engine>; 3] = [
            Arc::new(LazyOnnxEngine::new(onnxruntime.clone())),
            Arc::new(TorchEngine::new(libtorch.clone())),
            Arc::new(TensorFlowEngine::new(tensorflow.clone())),
        ];
        let found = engines.into_iter().find(|engine| engine.name() == name);
        found.ok_or_else(|| Error::internal(format!("a worker process has no engine \"{name}\"")))
    })
}

/// Opens ONNX Runtime. Without one, only ONNX models fail to load, with the remedy. A server of
/// SavedModels needs none.
///
/// # Errors
/// Returns the errors of [`OnnxEngine::open`] if the settings name the library, or if there is one
/// that does not load.
fn onnx_engine(config: &Config) -> Result<Arc<dyn Engine>> {
    let search = &config.onnxruntime;
    match OnnxEngine::open(search) {
        Ok(onnx) => Ok(Arc::new(onnx)),
        Err(error) if error.kind() == ErrorKind::NotFound && search.explicit.is_none() => {
            tracing::warn!(%error, "ONNX models cannot be served");
            Ok(Arc::new(LazyOnnxEngine::new(search.clone())))
        }
        Err(error) => Err(error),
    }
}

/// Returns `onnx` and the other engines. The others open their library with their first model.
fn all_engines(onnx: Arc<dyn Engine>, config: &Config) -> Vec<Arc<dyn Engine>> {
    let torch = TorchEngine::new(config.libtorch.clone());
    let tensorflow = TensorFlowEngine::new(config.tensorflow.clone());
    vec![onnx, Arc::new(torch), Arc::new(tensorflow)]
}

/// Returns the settings of worker processes for isolated models.
fn isolation_config(config: &Config) -> IsolationConfig {
    let MemoryConfig { load_rate, fault_rate, huge_pages, direct, spare_workers, .. } =
        config.memory;
    let run_time = config.listeners.request_timeout * HUNG_RUN_TIMEOUTS;
    IsolationConfig {
        program: config.models.worker.0.clone(),
        args: config.models.worker.1.clone(),
        runs: config.data.workers,
        run_time_max: run_time.max(HUNG_RUN_TIME_MIN),
        memory: WorkerMemory { read_rate: load_rate, fault_rate, huge_pages, direct },
        spares: spare_workers,
    }
}

/// Creates the store of parameters. Its pool is limited to [`POOL_SHARE`] of the machine's memory
/// unless the settings say otherwise. Rates are in bytes per second. 0 means no limit.
///
/// # Errors
/// The errors of reading the machine's memory and of creating the pool.
fn parameter_store(config: &MemoryConfig) -> Result<Arc<ParameterStore>> {
    let machine = os::process::machine()?;
    let bytes_max = config.pool_bytes_max.unwrap_or((machine.total as f64 * POOL_SHARE) as u64);
    let rate = |bytes: u64| if bytes == 0 { Rate::unlimited() } else { Rate::per_second(bytes) };
    let pool = SlotPool::new(PoolConfig {
        bytes_max,
        huge_pages: config.huge_pages,
        fault_rate: rate(config.fault_rate),
    })?;
    Ok(ParameterStore::new(
        pool,
        StoreConfig { read_rate: rate(config.load_rate), direct: config.direct },
    ))
}

/// Returns the settings of the lifecycle, without those of updates in a fleet. `run_threads_max`
/// bounds the threads of a run. `None` means no bound.
fn lifecycle_config(config: &Config, run_threads_max: Option<usize>) -> LifecycleConfig {
    let models = &config.models;
    let converter = lifecycle::Converter {
        program: models.converter.0.clone(),
        args: models.converter.1.clone(),
    };
    LifecycleConfig {
        models: models.models.clone(),
        roots: models.roots.clone(),
        poll: models.poll,
        poll_once: models.poll_once,
        awaits_sources: models.stores.awaits_copies,
        load_threads: models.load_threads,
        unload_threads: models.unload_threads,
        retries: models.load_retries,
        retry_interval: models.load_retry_interval,
        load_timeout: models.load_timeout,
        swap_reserve: config.memory.swap_reserve,
        placement: config.memory.placement,
        background: models.background,
        workers: config.data.workers.max(1),
        threads_max: run_threads_max.unwrap_or(usize::MAX),
        withdrawn_file: Some(models.cache_dir.with_file_name("withdrawn.toml")),
        rollouts_file: Some(models.cache_dir.with_file_name("rollouts.toml")),
        ..LifecycleConfig::new(models.cache_dir.clone(), converter)
    }
}
