//! The load threads: from a directory to a version that can answer.
//!
//! A child process first converts a foreign version. Then memory is reserved, the parameters are
//! read into the pool and checked, the engine opens the graph over them, and the version is warmed
//! up. The `lifecycle` thread gets the outcome and decides if the version is published.
//!
//! A load thread only waits. Other threads do its work (`load-N-hi`, `load-N-idle`), so an engine
//! that does not return cannot keep it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use base::{Error, ErrorKind, Result, VersionId};
use crossbeam_channel::{Receiver, Sender};
use engine::layout::{Artifact, FileEntry};
use engine::{Arena, BoundTensor, Engine, LoadRequest, ParameterUse, Servable, Session};
use memory::{ParameterStore, SlotPool, check_stop};
use os::background::{Attempt, BackgroundRunner, Priority, WorkTimeLimit};
use os::thread;

use crate::activity::LoadActivity;
use crate::admission::{Admission, Ledger, Promise};
use crate::convert::{ConversionCache, Converted, ForeignVersion};
use crate::golden;
use crate::ignored_settings::IgnoredSettings;
use crate::message::{ConvertedVersion, LoadJob, LoadOutcome, LoadedVersion, Message};
use crate::settled::Settled;
use crate::source::ForeignKind;
use crate::status::LoadCost;
use crate::threads;
use crate::unfinished::UnfinishedLoads;
use crate::warmup::{self, WarmupSource, WarmupVersion};
use crate::{Converter, LifecycleState, ParameterPlacement};

/// Bytes of a graph that are hashed at once.
const HASH_PIECE_BYTES: usize = 1 << 20;
/// Remedy for a load that took too long.
const TIMEOUT_REMEDY: &str =
    "check the model's files and their disk, and load it again, or raise --load-timeout";

/// State shared by the load threads.
pub(crate) struct Loader {
    pub(crate) engines: Vec<Arc<dyn Engine>>,
    pub(crate) store: Arc<ParameterStore>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) warmup: Arc<dyn WarmupSource>,
    pub(crate) converter: Converter,
    pub(crate) cache: ConversionCache,
    pub(crate) placement: ParameterPlacement,
    /// True if loads run at idle priority once the first load is finished.
    pub(crate) background: bool,
    /// Longest time that a load at idle priority may wait for a core.
    pub(crate) starvation_limit: Duration,
    /// Maximum time of a load, and of a conversion before it.
    pub(crate) load_timeout: Duration,
    pub(crate) settled: Arc<Settled>,
    pub(crate) activity: Arc<LoadActivity>,
    pub(crate) unfinished: Arc<UnfinishedLoads>,
    pub(crate) threads_max: usize,
    pub(crate) ignored: IgnoredSettings,
    pub(crate) out: Sender<Message>,
}

/// Input of the engine, and the memory that belongs to it.
struct PlacedVersion {
    engine: Arc<dyn Engine>,
    graph: PathBuf,
    parameters: Vec<BoundTensor>,
    arena: Option<Arena>,
    parameter_bytes: u64,
    /// Bytes of the pool reserved until the engine has allocated them.
    promise: Option<Promise>,
}

/// Result of a try to place parameters.
enum PlacingOutcome {
    Placed(PlacedVersion, LoadCost),
    Deferred(String),
}

/// Page faults and processor time of a thread at one moment.
struct ThreadMeter {
    faults: u64,
    cpu: Duration,
}

impl Loader {
    /// Runs load thread `name` until the channel is closed.
    pub(crate) fn run(self: &Arc<Self>, name: &str, jobs: &Receiver<LoadJob>) {
        if self.background {
            os::jemalloc::use_background_arena();
        }
        let limit = WorkTimeLimit { max: self.load_timeout, remedy: TIMEOUT_REMEDY };
        let mut runner =
            BackgroundRunner::new(name, "loading", self.starvation_limit).with_limit(limit);
        while let Ok(job) = jobs.recv() {
            let id = job.id.clone();
            let fingerprint = job.fingerprint;
            let outcome = match self.unfinished.reason(&id) {
                Some(reason) => LoadOutcome::Deferred { reason, conversion: job.conversion },
                None => self
                    .run_job(&mut runner, job)
                    .unwrap_or_else(|error| LoadOutcome::Failed { error, fingerprint }),
            };
            if self.out.send(Message::LoadEnded { id, outcome }).is_err() {
                return;
            }
        }
    }

    /// Runs a job, and remembers and reports a load that was stopped and has not ended.
    fn run_job(
        self: &Arc<Self>,
        runner: &mut BackgroundRunner,
        job: LoadJob,
    ) -> Result<LoadOutcome> {
        self.unfinished.check_room()?;
        let id = job.id.clone();
        let began = SystemTime::now();
        let active = self.activity.begin(&id);
        let outcome = self.convert_and_load(runner, job);
        drop(active);
        if let Some(work) = runner.take_left() {
            self.unfinished.add(id.clone(), began, work);
            // Fails only if the lifecycle has stopped.
            let _ = self.out.send(Message::LoadAbandoned { id });
        }
        outcome
    }

    /// Converts the files of a foreign version, unless the job has their conversion, and loads it.
    /// Returns the conversion alone if the job only converts.
    fn convert_and_load(
        self: &Arc<Self>,
        runner: &mut BackgroundRunner,
        mut job: LoadJob,
    ) -> Result<LoadOutcome> {
        threads::check(&job.session, &job.schedule, self.threads_max)?;
        // A conversion of files that were replaced meanwhile. Dropped here, as it may be large.
        job.conversion.take_if(|conversion| conversion.files != job.fingerprint);
        let foreign = job.kind.is_some_and(|kind| kind.converted);
        if self.placement == ParameterPlacement::Pool && foreign && job.conversion.is_none() {
            let loader = self.clone();
            let of = job.clone();
            let convert = move |attempt: &Attempt| loader.convert(&of, attempt);
            let what = format!("converting {}", job.id);
            let converted = self.attempt(runner, &what, &job.stop, convert)?;
            job.conversion = Some(ConvertedVersion { files: job.fingerprint, converted });
        }
        if job.converts_only
            && let Some(conversion) = job.conversion
        {
            return Ok(LoadOutcome::Converted(conversion));
        }
        let loader = self.clone();
        let stop = job.stop.clone();
        let what = format!("loading {}", job.id);
        self.attempt(runner, &what, &stop, move |attempt| loader.load(&job, attempt))
    }

    /// Runs `work` at idle priority once the first load is finished. The first load needs no idle
    /// priority, because the server takes no requests before its end. Either way, another thread
    /// does the work.
    fn attempt<T: Send + 'static>(
        &self,
        runner: &mut BackgroundRunner,
        what: &str,
        stop: &Arc<AtomicBool>,
        work: impl Fn(&Attempt) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let uses_arena = self.background;
        let work = move |attempt: &Attempt| {
            if uses_arena {
                os::jemalloc::use_background_arena();
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| work(attempt)));
            os::jemalloc::empty_thread_cache();
            outcome.unwrap_or_else(|_| Err(Error::internal("the load panicked; see the log")))
        };
        if self.background && self.settled.get() {
            runner.run(what, stop, work)
        } else {
            runner.run_ordinary(what, stop, work)
        }
    }

    /// Loads, warms up and checks a version. Returns `Deferred` if its memory is not free yet.
    fn load(&self, job: &LoadJob, attempt: &Attempt) -> Result<LoadOutcome> {
        let meter = ThreadMeter::read();
        let (mut placed, mut cost) = match self.place(job, attempt)? {
            PlacingOutcome::Placed(placed, cost) => (placed, cost),
            PlacingOutcome::Deferred(reason) => {
                return Ok(LoadOutcome::Deferred { reason, conversion: job.conversion.clone() });
            }
        };
        let session = self.open(&mut placed, job, attempt)?;
        cost.load_seconds = attempt.began.elapsed().as_secs_f64();
        let signature = session.signature().clone();
        let engine = placed.engine.name();
        let mut servable = Servable::new(job.id.clone(), engine, session, job.schedule.clone())?;
        log_unjoined(&servable);
        servable.dir = Some(job.dir.clone());
        servable.parameter_bytes = placed.parameter_bytes;
        servable.set_threads_per_run(job.session.intra_op_threads.max(1));
        servable.recogniser = job.recogniser.clone();
        servable.set_request_log_rate(job.request_log_rate);
        servable.examples = job.examples.clone();
        let started = Instant::now();
        self.stage(&job.id, LifecycleState::Warming, None);
        let version = WarmupVersion { servable: &servable, signature: &signature, dir: &job.dir };
        let warmed = warmup::warm(version, &*self.warmup, &job.warmup, &attempt.stop)?;
        cost.warm_records = warmed.records;
        if let Some(golden) = &job.golden {
            golden::check(&servable, &*self.warmup, golden, &attempt.stop)?;
        }
        let ignored = self.ignored.of(job);
        let notes = warmed.note.into_iter().chain(ignored);
        let note = notes.reduce(|all, next| format!("{all}; {next}"));
        cost.warm_seconds = started.elapsed().as_secs_f64();
        check_stop(&attempt.stop)?;
        meter.count(&mut cost);
        cost.escalated = attempt.priority == Priority::Escalated;
        servable.ready_at = SystemTime::now();
        Ok(LoadOutcome::Ready(Box::new(LoadedVersion {
            servable: Arc::new(servable),
            converted: job.conversion.as_ref().map(|conversion| conversion.converted.clone()),
            fingerprint: job.fingerprint,
            cost,
            note,
        })))
    }

    /// Converts a foreign version into the cache by a child process.
    fn convert(&self, job: &LoadJob, attempt: &Attempt) -> Result<Converted> {
        let cache = self.cache.get().map_err(|error| {
            let kind = match error.kind() {
                // The load is tried again, because the cause may end by itself.
                kind @ (ErrorKind::StorageFull | ErrorKind::ResourceExhausted) => kind,
                _ => ErrorKind::FailedPrecondition,
            };
            let reason = format!(
                "the version cannot be converted, because the cache directory cannot be used \
                 ({error}); give a writable one with --cache-dir, or publish the version with \
                 `millpond publish`",
            );
            Error::new(kind, reason)
        })?;
        self.stage(
            &job.id,
            LifecycleState::Discovered,
            Some("being converted by a child process".into()),
        );
        let source = ForeignVersion { dir: &job.dir, graph_tags: &job.session.graph_tags };
        cache.convert(&self.converter, &job.id, source, attempt)
    }

    /// Reads the version's parameters to the place that its settings and kind require.
    fn place(&self, job: &LoadJob, attempt: &Attempt) -> Result<PlacingOutcome> {
        if job.session.isolate {
            return self.place_isolated(job, attempt);
        }
        if let Some(kind) = job.kind
            && (self.placement == ParameterPlacement::Heap || !kind.converted)
        {
            return self.place_as_is(job, kind, attempt);
        }
        let artifact = Artifact::open(job.artifact_dir())?;
        if self.placement == ParameterPlacement::Heap && !artifact.manifest.tensors.is_empty() {
            let reason =
                "parameters in the heap take a model file that holds them; this version has none";
            return Err(Error::precondition(reason));
        }
        self.place_artifact(job, &artifact, attempt)
    }

    /// Prepares a version whose worker process loads the parameters itself, outside of the pool.
    fn place_isolated(&self, job: &LoadJob, attempt: &Attempt) -> Result<PlacingOutcome> {
        let as_is =
            |kind: &ForeignKind| self.placement == ParameterPlacement::Heap || !kind.converted;
        let (engine, graph) = match job.kind.filter(as_is) {
            Some(kind) => (self.engine(kind.engine)?, job.dir.join(kind.file)),
            None => {
                let artifact = Artifact::open(job.artifact_dir())?;
                let graph = artifact.graph();
                check_hash(&graph, &artifact.manifest.graph, &attempt.stop)?;
                (self.engine(&artifact.manifest.engine)?, graph)
            }
        };
        self.begin_loading(&job.id);
        Ok(PlacingOutcome::Placed(PlacedVersion::of_file(engine, graph), LoadCost::default()))
    }

    /// Prepares a model file that its engine opens as it is, into an arena of the pool or into its
    /// own memory.
    fn place_as_is(
        &self,
        job: &LoadJob,
        kind: ForeignKind,
        attempt: &Attempt,
    ) -> Result<PlacingOutcome> {
        let engine = self.engine(kind.engine)?;
        let mut placed = PlacedVersion::of_file(engine, job.dir.join(kind.file));
        if self.placement == ParameterPlacement::Pool {
            let bytes = placed.engine.arena_bytes(&placed.graph)?;
            match self.ledger.admit_bytes(
                &self.store,
                SlotPool::footprint(bytes as u64),
                job.transition,
            )? {
                Admission::Admitted(promise) => placed.promise = Some(promise),
                Admission::Deferred(reason) => return Ok(PlacingOutcome::Deferred(reason)),
            }
            placed.arena =
                Some(Arena { store: self.store.clone(), bytes, stop: attempt.stop.clone() });
        }
        self.begin_loading(&job.id);
        Ok(PlacingOutcome::Placed(placed, LoadCost::default()))
    }

    /// Reserves memory for a published version and reads its parameters there. Returns `Deferred`
    /// if the memory is not free yet.
    fn place_artifact(
        &self,
        job: &LoadJob,
        artifact: &Artifact,
        attempt: &Attempt,
    ) -> Result<PlacingOutcome> {
        let engine = self.engine(&artifact.manifest.engine)?;
        let chunks = artifact.chunks()?;
        if !chunks.is_empty() && engine.capabilities().parameters != ParameterUse::Bound {
            let reason =
                format!("engine {} cannot use parameters in memory of ours", engine.name());
            return Err(Error::unimplemented(reason));
        }
        let promise = match self.ledger.admit(&self.store, &chunks, job.transition)? {
            Admission::Admitted(promise) => promise,
            Admission::Deferred(reason) => return Ok(PlacingOutcome::Deferred(reason)),
        };
        self.begin_loading(&job.id);
        let graph = artifact.graph();
        check_hash(&graph, &artifact.manifest.graph, &attempt.stop)?;
        let mut cost = LoadCost::default();
        let mut parameters = Vec::new();
        if let Some(weights) = artifact.weights()
            && !chunks.is_empty()
        {
            let loaded = self.store.load(&weights, &chunks, &attempt.stop)?;
            cost.bytes_read = loaded.report.bytes_read;
            cost.bytes_shared = loaded.report.bytes_shared;
            parameters = artifact.bind(loaded)?;
        }
        // The pool counts the bytes as used from here on.
        drop(promise);
        let parameter_bytes = artifact.parameter_bytes();
        let placed = PlacedVersion {
            engine,
            graph,
            parameters,
            arena: None,
            parameter_bytes,
            promise: None,
        };
        Ok(PlacingOutcome::Placed(placed, cost))
    }

    fn engine(&self, name: &str) -> Result<Arc<dyn Engine>> {
        self.engines.iter().find(|engine| engine.name() == name).cloned().ok_or_else(|| {
            let known: Vec<&str> = self.engines.iter().map(|engine| engine.name()).collect();
            Error::invalid(format!(
                "the version needs engine \"{name}\", and this server has {}; publish it for one of \
                 these",
                known.join(", ")
            ))
        })
    }

    /// Opens the session of a version on its engine, once its parameters are in place.
    fn open(
        &self,
        placed: &mut PlacedVersion,
        job: &LoadJob,
        attempt: &Attempt,
    ) -> Result<Box<dyn Session>> {
        check_stop(&attempt.stop)?;
        placed.engine.capabilities().check_device(placed.engine.name(), job.session.device)?;
        // All log lines of the engine name the model. An error span, so that no filter drops it.
        let _named =
            tracing::error_span!("load", model = %job.id.model, version = job.id.version).entered();
        let session = placed.engine.load(&LoadRequest {
            model: job.id.model.clone(),
            graph: placed.graph.clone(),
            parameters: placed.parameters.clone(),
            arena: placed.arena.clone(),
            options: job.session.clone(),
            stop: attempt.stop.clone(),
        });
        // The promised bytes are in use now, or not needed any more.
        placed.promise = None;
        let session = session.map_err(|error| with_version_path(error, job))?;
        // Opening may have taken long, and most engines cannot stop it.
        check_stop(&attempt.stop)?;
        placed.parameter_bytes += session.parameter_bytes();
        Ok(session)
    }

    /// Reports that the memory of a version is reserved and that its load begins.
    fn begin_loading(&self, id: &VersionId) {
        self.stage(id, LifecycleState::Admitted, None);
        self.stage(id, LifecycleState::Loading, None);
    }

    /// Reports a new state of the version to the `lifecycle` thread.
    fn stage(&self, id: &VersionId, state: LifecycleState, reason: Option<String>) {
        // Fails only at shutdown, when the message is not needed.
        let _ = self.out.send(Message::Stage { id: id.clone(), state, reason });
    }
}

/// Logs the reason if requests of a version are not merged, although its settings ask for it.
pub(crate) fn log_unjoined(servable: &Servable) {
    if let Some(why) = servable.unjoined_reason() {
        tracing::info!(version = %servable.id, why, "requests are not merged");
    }
}

/// Names the files of the version in an error about their converted copies. The copies are removed
/// with a failed version, so their path tells an administrator nothing.
fn with_version_path(error: Error, job: &LoadJob) -> Error {
    let Some(conversion) = &job.conversion else { return error };
    let copies = conversion.converted.dir().display().to_string();
    error.replaced(&copies, &job.dir.display().to_string())
}

impl PlacedVersion {
    /// Creates the input of an engine that reads all parameters from `graph` by itself.
    fn of_file(engine: Arc<dyn Engine>, graph: PathBuf) -> PlacedVersion {
        PlacedVersion {
            engine,
            graph,
            parameters: Vec::new(),
            arena: None,
            parameter_bytes: 0,
            promise: None,
        }
    }
}

impl ThreadMeter {
    fn read() -> ThreadMeter {
        ThreadMeter { faults: thread::minor_faults(), cpu: thread::cpu_time() }
    }

    fn count(&self, cost: &mut LoadCost) {
        let now = ThreadMeter::read();
        cost.loader_minor_faults = now.faults.saturating_sub(self.faults);
        cost.loader_cpu_seconds = now.cpu.saturating_sub(self.cpu).as_secs_f64();
    }
}

/// Checks that the file at `path` has the hash in the manifest, if the manifest has one. Returns
/// `Cancelled` once `stop` is set.
fn check_hash(path: &Path, file: &FileEntry, stop: &AtomicBool) -> Result<()> {
    use std::io::Read;
    let Some(expected) = &file.blake3 else { return Ok(()) };
    let io = |error: std::io::Error| Error::io(path, &error);
    let mut reader = std::fs::File::open(path).map_err(io)?;
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; HASH_PIECE_BYTES];
    loop {
        check_stop(stop)?;
        match reader.read(&mut piece).map_err(io)? {
            0 => break,
            count => hasher.update(&piece[..count]),
        };
    }
    if hasher.finalize().to_hex().as_str() == expected.as_str() {
        return Ok(());
    }
    Err(Error::data_loss(format!(
        "{}: does not match its hash; publish the version again",
        path.display()
    )))
}
