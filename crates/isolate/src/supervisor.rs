//! The thread beside each worker process. It starts the process and waits for its end. Then it
//! starts the process again, or lets a spare process take its place.
//!
//! The system ends a worker process when the thread that started it ends (`PR_SET_PDEATHSIG`). So
//! this thread ends with its session.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{Error, Result};
use crossbeam_channel::Sender;
use engine::layout::MANIFEST_NAME;
use metrics::ModelLabels;
use os::{AlignedBuffer, DirectFile, Pacer, Rate};
use parking_lot::{Condvar, Mutex};

use crate::Isolation;
use crate::channel::WorkerChannels;
use crate::message::{LoadMessage, ModelFacts};
use crate::process::{self, ChildSlot, Opened, ProcessEnd, StartedProcess, WorkerProcess};
use crate::restart_delay::RestartDelay;
use crate::spare::SpareUse;

/// Bytes that are hashed at once.
const HASH_BYTES: usize = 1 << 20;
/// Longest wait of a closing session for the end of its process.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(10);

/// State that a session and its supervisor share.
#[derive(Default)]
pub(crate) struct Supervised {
    child: ChildSlot,
    phase: Mutex<WorkerPhase>,
    changed: Condvar,
    /// Stop flag of a restart. Set once the session is closed.
    stop: AtomicBool,
}

#[derive(Default)]
enum WorkerPhase {
    #[default]
    Starting,
    Up(Arc<WorkerChannels>),
    Down(Arc<str>),
    /// The supervisor has ended.
    Ended,
}

impl Supervised {
    /// Returns the sockets of the running process.
    ///
    /// # Errors
    /// The reason why no process runs.
    pub(crate) fn channels(&self) -> Result<Arc<WorkerChannels>, Arc<str>> {
        match &*self.phase.lock() {
            WorkerPhase::Up(channels) => Ok(channels.clone()),
            WorkerPhase::Down(reason) => Err(reason.clone()),
            WorkerPhase::Starting | WorkerPhase::Ended => Err("it has no worker process".into()),
        }
    }

    /// Kills the process of `channels`, unless another one has taken its place.
    pub(crate) fn kill(&self, channels: &Arc<WorkerChannels>, why: &str) {
        let phase = self.phase.lock();
        if matches!(&*phase, WorkerPhase::Up(current) if Arc::ptr_eq(current, channels)) {
            self.child.lock().kill(Some(why.to_owned()));
        }
    }

    /// Ends the process and waits for its end.
    pub(crate) fn close(&self) {
        {
            let mut child = self.child.lock();
            child.closed = true;
            child.kill(None);
        }
        self.stop.store(true, Ordering::Relaxed);
        let until = Instant::now() + CLOSE_WAIT_MAX;
        let mut phase = self.phase.lock();
        self.changed.notify_all();
        while !matches!(*phase, WorkerPhase::Ended) {
            if self.changed.wait_until(&mut phase, until).timed_out() {
                tracing::warn!("a worker process has not ended in {CLOSE_WAIT_MAX:?}");
                return;
            }
        }
    }

    fn set(&self, phase: WorkerPhase) {
        *self.phase.lock() = phase;
        self.changed.notify_all();
    }

    fn closed(&self) -> bool {
        self.child.lock().closed
    }

    /// Hashes the files that a restart has opened. Ends early once the session is closed. Requests
    /// wait, so this reads without a limit of the rate, and from the page cache the parts that the
    /// load has left there.
    fn hash_again(&self, graph: &Path) -> FileHashes {
        FileHashes::of(graph, false, Rate::unlimited(), &self.stop)
    }

    /// Waits for `delay`, or until the session is closed.
    fn pause(&self, delay: Duration) {
        let until = Instant::now() + delay;
        let mut phase = self.phase.lock();
        while !self.closed() && !self.changed.wait_until(&mut phase, until).timed_out() {}
    }
}

/// Hashes of the graph and of the manifest beside it, which has the hashes of the parameters;
/// `None` for a file that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileHashes {
    graph: Option<blake3::Hash>,
    manifest: Option<blake3::Hash>,
}

impl FileHashes {
    /// Reads the files at `rate`, past the page cache if `direct` is set. Ends early once `stop` is
    /// set.
    fn of(graph: &Path, direct: bool, rate: Rate, stop: &AtomicBool) -> FileHashes {
        let pacer = Pacer::new(rate);
        let hash = |path: &Path| hash_of(path, direct, &pacer, stop);
        let manifest = graph.parent().map(|dir| dir.join(MANIFEST_NAME));
        FileHashes { graph: hash(graph), manifest: manifest.and_then(|path| hash(&path)) }
    }
}

/// Hashes a file; `None` if it cannot be read, or once `stop` is set.
fn hash_of(path: &Path, direct: bool, pacer: &Pacer, stop: &AtomicBool) -> Option<blake3::Hash> {
    let mut file = DirectFile::open(path, direct).ok()?;
    let mut buffer = AlignedBuffer::new(HASH_BYTES);
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while at < file.bytes() {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let left = usize::try_from(file.bytes() - at).unwrap_or(usize::MAX);
        pacer.wait(left.min(HASH_BYTES) as u64);
        let block = file.read_block(&mut buffer, at, left).ok()?;
        hasher.update(block);
        at += block.len() as u64;
    }
    Some(hasher.finalize())
}

/// The load that opens a session.
pub(crate) struct FirstLoad {
    pub(crate) message: LoadMessage,
    /// True to keep a spare process for the engine while the session exists.
    pub(crate) keeps_spare: bool,
    /// Request to end it early with `Cancelled`, or to end the process during the warm-up. Other
    /// references to it exist until the end of the warm-up.
    pub(crate) stop: Arc<AtomicBool>,
    /// Receives the outcome of the first load, once.
    pub(crate) outcome: Sender<Result<ModelFacts>>,
}

/// Loads the model in a first process and sends its facts. Then restarts the process each time it
/// ends, until the session is closed. Runs on a thread of its own.
pub(crate) fn supervise(isolation: &Arc<Isolation>, shared: &Supervised, load: FirstLoad) {
    let FirstLoad { message, keeps_spare, stop, outcome } = load;
    let rate = Rate::per_second(message.memory.read_rate);
    let content = FileHashes::of(&message.graph, true, rate, &stop);
    match process::open(isolation, &shared.child, None, &message, &stop) {
        Ok(opened) => {
            let facts = opened.facts.clone();
            shared.set(WorkerPhase::Up(opened.channels.clone()));
            // Fails only if the caller has dropped its receiver; then the session is dropped.
            let _ = outcome.send(Ok(facts.clone()));
            let supervisor = Supervisor {
                isolation,
                shared,
                spare: if keeps_spare { use_spare(isolation, &message) } else { None },
                message: LoadMessage { background: false, ..message },
                facts,
                content,
                delay: RestartDelay::new(),
                stop: Some(stop),
            };
            supervisor.run(opened);
        }
        Err(error) => {
            let _ = outcome.send(Err(error));
        }
    }
    shared.set(WorkerPhase::Ended);
}

/// Registers for the spare process of the model's engine. Without one, a new process takes the
/// place of one that has ended.
fn use_spare(isolation: &Arc<Isolation>, message: &LoadMessage) -> Option<SpareUse> {
    SpareUse::begin(isolation, &message.engine)
        .inspect_err(|error| {
            tracing::warn!(model = message.model, %error, "there is no spare worker process");
        })
        .ok()
}

struct Supervisor<'a> {
    isolation: &'a Isolation,
    shared: &'a Supervised,
    /// Use of the spare process of the engine; `None` if it has none.
    spare: Option<SpareUse>,
    /// The load, at ordinary priority, as requests wait for it.
    message: LoadMessage,
    /// Facts about the model as it was first opened.
    facts: ModelFacts,
    /// Content of the files before they were first opened.
    content: FileHashes,
    delay: RestartDelay,
    /// Stop flag of the load, until the first process ends.
    stop: Option<Arc<AtomicBool>>,
}

impl Supervisor<'_> {
    /// Waits for the end of each process and restarts it, until the session is closed.
    fn run(mut self, mut opened: Opened) {
        loop {
            let stop = self.stop.take();
            let end = self.wait(opened.process, stop.as_ref());
            let reason = &end.reason;
            opened.channels.end(reason.clone());
            self.shared.set(WorkerPhase::Down(reason.clone()));
            if self.shared.closed() {
                return;
            }
            if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                // The load that was stopped closes the session. Its thread may starve until then,
                // and a new process would load the model beside that of the next try.
                self.delay.raise();
            } else {
                let model = &self.message.model;
                tracing::error!(model, "{reason}; it is started again in {:?}", self.delay.get());
            }
            let Some(again) = self.restart(end.at) else { return };
            opened = again;
        }
    }

    fn wait(&mut self, process: WorkerProcess, stop: Option<&Arc<AtomicBool>>) -> ProcessEnd {
        let started = Instant::now();
        let end = process.wait(self.isolation, &self.shared.child, stop);
        self.delay.note_run(started.elapsed());
        end
    }

    /// Lets the spare process or a new one open the model, until one serves. The last process ended
    /// at `ended`. Returns `None` once the session is closed.
    fn restart(&mut self, ended: Instant) -> Option<Opened> {
        let mut is_first = true;
        loop {
            self.shared.pause(self.delay.get());
            self.delay.double();
            if self.shared.closed() {
                return None;
            }
            // A spare process may be at fault itself, so further tries start a new one.
            let spare = self.spare.as_ref().filter(|_| is_first).and_then(SpareUse::take);
            is_first = false;
            let is_spare = spare.is_some();
            let labels = ModelLabels { model: self.message.model.as_str().into() };
            self.isolation.metrics.worker_restarts.get_or_create(&labels).inc();
            match self.open_again(spare) {
                Ok(opened) => {
                    let time = ended.elapsed();
                    let last = &self.isolation.metrics.worker_restart_last_seconds;
                    last.get_or_create(&labels).set(time.as_secs_f64());
                    self.shared.set(WorkerPhase::Up(opened.channels.clone()));
                    self.log_restart(time, is_spare);
                    return Some(opened);
                }
                Err(error) if self.shared.closed() => {
                    tracing::debug!(%error, "a worker process was stopped while it started");
                    return None;
                }
                Err(error) => {
                    let model = &self.message.model;
                    tracing::error!(model, %error, "the worker process cannot be started again");
                    self.shared.set(WorkerPhase::Down(error.message().into()));
                }
            }
        }
    }

    /// Logs the time from the end of a process until the next one serves.
    fn log_restart(&self, time: Duration, is_spare: bool) {
        let model = &self.message.model;
        let process = if is_spare { "the spare" } else { "a new" };
        tracing::info!(model, "{process} worker process serves, {time:?} after the last one ended");
    }

    /// Opens the model in a new process, `spare` if it is given.
    ///
    /// # Errors
    /// `FailedPrecondition` if the version's files have changed; the error of the opening.
    fn open_again(&self, spare: Option<StartedProcess>) -> Result<Opened> {
        let stop = &self.shared.stop;
        let child = &self.shared.child;
        let opened = process::open(self.isolation, child, spare, &self.message, stop)?;
        // Compared after the load, so that files which change during it are noticed too.
        let content = self.shared.hash_again(&self.message.graph);
        if opened.facts != self.facts || content != self.content {
            opened.process.end(self.isolation, child);
            return Err(Error::precondition(
                "the version's files have changed since it was loaded; load the version again",
            ));
        }
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_ends_the_hashing_of_files() {
        let dir = tempfile::tempdir().unwrap();
        let graph = dir.path().join("graph");
        let bytes = vec![7u8; 2 * HASH_BYTES + 5];
        std::fs::write(&graph, &bytes).unwrap();
        let whole = FileHashes { graph: Some(blake3::hash(&bytes)), manifest: None };
        for direct in [true, false] {
            let of = |stop: bool| {
                FileHashes::of(&graph, direct, Rate::unlimited(), &AtomicBool::new(stop))
            };
            assert_eq!(of(false), whole);
            assert_eq!(of(true), FileHashes { graph: None, manifest: None });
        }
    }

    #[test]
    fn closing_ends_the_hashing_of_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let graph = dir.path().join("graph");
        std::fs::write(&graph, b"graph").unwrap();
        let shared = Supervised::default();
        let whole = FileHashes { graph: Some(blake3::hash(b"graph")), manifest: None };
        assert_eq!(shared.hash_again(&graph), whole);
        shared.set(WorkerPhase::Ended);
        shared.close();
        assert_eq!(shared.hash_again(&graph), FileHashes { graph: None, manifest: None });
    }
}
