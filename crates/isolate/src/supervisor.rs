//! The thread beside each worker process: it starts the process, waits for its end, and starts it
//! again.
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
use crate::process::{self, ChildSlot, Opened, WorkerProcess};

/// Delay before the first start after an end. Doubled with every further one.
const RESTART_DELAY_MIN: Duration = Duration::from_millis(50);
/// Longest delay before a start.
const RESTART_DELAY_MAX: Duration = Duration::from_secs(10);
/// A process that ran for this long is started again without a longer delay.
const STABLE_TIME: Duration = Duration::from_secs(30);
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
    /// Request to end it early with `Cancelled`, or to end the process during the warm-up. Other
    /// references to it exist until the end of the warm-up.
    pub(crate) stop: Arc<AtomicBool>,
    /// Gets the outcome.
    pub(crate) outcome: Sender<Result<ModelFacts>>,
}

/// Runs the thread.
pub(crate) fn supervise(isolation: &Isolation, shared: &Supervised, load: FirstLoad) {
    let FirstLoad { message, stop, outcome } = load;
    let rate = Rate::per_second(message.memory.read_rate);
    let content = FileHashes::of(&message.graph, true, rate, &stop);
    match process::open(isolation, &shared.child, &message, &stop) {
        Ok(opened) => {
            let facts = opened.facts.clone();
            shared.set(WorkerPhase::Up(opened.channels.clone()));
            // Fails only if the caller has gone; then the session is dropped.
            let _ = outcome.send(Ok(facts.clone()));
            let supervisor = Supervisor {
                isolation,
                shared,
                message: LoadMessage { background: false, ..message },
                facts,
                content,
                delay: RESTART_DELAY_MIN,
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

struct Supervisor<'a> {
    isolation: &'a Isolation,
    shared: &'a Supervised,
    /// The load, at ordinary priority, as requests wait for it.
    message: LoadMessage,
    /// Facts about the model as it was first opened.
    facts: ModelFacts,
    /// Content of the files before they were first opened.
    content: FileHashes,
    delay: Duration,
    /// Stop flag of the load, until the first process ends.
    stop: Option<Arc<AtomicBool>>,
}

impl Supervisor<'_> {
    fn run(mut self, mut opened: Opened) {
        loop {
            let stop = self.stop.take();
            let reason = self.wait(opened.process, stop.as_ref());
            opened.channels.end(reason.clone());
            self.shared.set(WorkerPhase::Down(reason.clone()));
            if self.shared.closed() {
                return;
            }
            if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                // The load that was stopped closes the session. Its thread may starve until then,
                // and a new process would load the model beside that of the next try.
                self.delay = RESTART_DELAY_MAX;
            } else {
                let model = &self.message.model;
                tracing::error!(model, "{reason}; it is started again in {:?}", self.delay);
            }
            let Some(again) = self.restart() else { return };
            opened = again;
            self.shared.set(WorkerPhase::Up(opened.channels.clone()));
        }
    }

    fn wait(&mut self, process: WorkerProcess, stop: Option<&Arc<AtomicBool>>) -> Arc<str> {
        let started = Instant::now();
        let reason = process.wait(self.isolation, &self.shared.child, stop);
        if started.elapsed() >= STABLE_TIME {
            self.delay = RESTART_DELAY_MIN;
        }
        reason.into()
    }

    /// Starts the process until it serves; `None` once the session is closed.
    fn restart(&mut self) -> Option<Opened> {
        loop {
            self.shared.pause(self.delay);
            self.delay = (self.delay * 2).min(RESTART_DELAY_MAX);
            if self.shared.closed() {
                return None;
            }
            let began = Instant::now();
            let labels = ModelLabels { model: self.message.model.as_str().into() };
            self.isolation.metrics.worker_restarts.get_or_create(&labels).inc();
            match self.open_again() {
                Ok(opened) => {
                    let model = &self.message.model;
                    tracing::info!(
                        model,
                        "a new worker process serves after {:?}",
                        began.elapsed()
                    );
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

    fn open_again(&self) -> Result<Opened> {
        // Closing the session ends the process, so no flag stops this load.
        let stop = AtomicBool::new(false);
        let mut opened = process::open(self.isolation, &self.shared.child, &self.message, &stop)?;
        // Compared after the load, so that files which change during it are noticed too. Requests
        // wait, so this reads at any rate, and from the page cache what the load has left there.
        let content = FileHashes::of(&self.message.graph, false, Rate::unlimited(), &stop);
        if opened.facts != self.facts || content != self.content {
            opened.process.end(self.isolation, &self.shared.child);
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
}
