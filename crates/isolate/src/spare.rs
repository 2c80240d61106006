//! Spare worker processes: each has opened the library of an engine, and no model.
//!
//! Opening a library such as TensorFlow can take longer than opening a model. If the process of a
//! model ends, its supervisor lets the spare process of the engine open the model. While isolated
//! models of an engine are loaded, there is at most one spare process of that engine.
//!
//! The system ends a worker process when the thread that started it ends. So the thread that starts
//! the spare processes of an engine lives until no supervisor can have one of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{ErrorKind, Result};
use metrics::KindLabels;
use parking_lot::{Condvar, Mutex};

use crate::Isolation;
use crate::message::LibraryMessage;
use crate::process::StartedProcess;
use crate::restart_delay::RestartDelay;

/// Time between two checks that a spare process still runs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time of opening a library at idle priority. On a busy machine it may get no processor
/// time. Then another process opens the library at ordinary priority.
const IDLE_OPEN_TIME_MAX: Duration = Duration::from_secs(20);
/// Longest time of opening a library at ordinary priority.
const ORDINARY_OPEN_TIME_MAX: Duration = Duration::from_secs(600);

/// The engines that have an isolated model. The number of engines bounds the entries.
#[derive(Default)]
pub(crate) struct SpareTable(Mutex<BTreeMap<String, SharedSpare>>);

struct SharedSpare {
    slot: Arc<SpareSlot>,
    /// Number of supervisors that use the slot.
    users: usize,
}

/// Slot for the spare process of one engine.
#[derive(Default)]
struct SpareSlot {
    /// The process, once its library is open. An `Option` holds at most one, which is the maximum
    /// per engine. The keeper starts a process only while this is `None`.
    process: Mutex<Option<StartedProcess>>,
    changed: Condvar,
    /// Flag that is set once no supervisor uses the slot. It also stops the start of a process.
    closed: AtomicBool,
}

impl SpareSlot {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn close(&self) {
        let _process = self.process.lock();
        self.closed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Waits for `delay`, or until the slot is closed.
    fn pause(&self, delay: Duration) {
        let until = Instant::now() + delay;
        let mut process = self.process.lock();
        while !self.is_closed() && !self.changed.wait_until(&mut process, until).timed_out() {}
    }
}

/// Use of the spare process of an engine by the supervisor of one model.
pub(crate) struct SpareUse {
    isolation: Arc<Isolation>,
    engine: String,
    slot: Arc<SpareSlot>,
}

impl SpareUse {
    /// Registers a supervisor of a model of `engine`. The first one starts the thread that starts
    /// the spare process, with the priority of the calling thread.
    ///
    /// # Errors
    /// `ResourceExhausted` if the thread cannot be started.
    pub(crate) fn begin(isolation: &Arc<Isolation>, engine: &str) -> Result<SpareUse> {
        let mut table = isolation.spares.0.lock();
        let slot = match table.get_mut(engine) {
            Some(shared) => {
                shared.users += 1;
                shared.slot.clone()
            }
            None => {
                let slot = Arc::new(SpareSlot::default());
                let keeper = SpareKeeper {
                    isolation: isolation.clone(),
                    engine: engine.to_owned(),
                    slot: slot.clone(),
                };
                os::thread::spawn("isolate-spare", move || keeper.run())?;
                table.insert(engine.to_owned(), SharedSpare { slot: slot.clone(), users: 1 });
                slot
            }
        };
        Ok(SpareUse { isolation: isolation.clone(), engine: engine.to_owned(), slot })
    }

    /// Takes the spare process, if one is ready and runs. Another one is then started.
    pub(crate) fn take(&self) -> Option<StartedProcess> {
        let mut process = self.slot.process.lock();
        let has_ended = process.as_mut()?.has_ended();
        // The keeper starts the next process. It also removes a process that has ended.
        self.slot.changed.notify_all();
        if has_ended {
            return None;
        }
        count(&self.isolation, "used");
        process.take()
    }
}

impl Drop for SpareUse {
    fn drop(&mut self) {
        let mut table = self.isolation.spares.0.lock();
        let Some(shared) = table.get_mut(&self.engine) else { return };
        shared.users -= 1;
        if shared.users == 0 {
            table.remove(&self.engine);
            self.slot.close();
        }
    }
}

/// Reason for which a slot has lost its process.
enum SpareEnd {
    Taken,
    Closed,
    /// The process has ended, for this reason.
    Failed(String),
}

/// The thread that keeps a slot filled.
struct SpareKeeper {
    isolation: Arc<Isolation>,
    engine: String,
    slot: Arc<SpareSlot>,
}

impl SpareKeeper {
    /// Runs until the slot is closed.
    fn run(self) {
        let mut delay = RestartDelay::new();
        let mut idle = true;
        while !self.slot.is_closed() {
            let began = Instant::now();
            let end = match self.start(idle) {
                Ok(process) => {
                    idle = true;
                    self.keep(process)
                }
                Err(error) if idle && error.kind() == ErrorKind::DeadlineExceeded => {
                    let engine = &self.engine;
                    tracing::info!(engine, "{error}; another one opens it at ordinary priority");
                    idle = false;
                    continue;
                }
                Err(error) => SpareEnd::Failed(error.to_string()),
            };
            match end {
                SpareEnd::Closed => return,
                SpareEnd::Taken => delay = RestartDelay::new(),
                SpareEnd::Failed(_) if self.slot.is_closed() => return,
                SpareEnd::Failed(reason) => {
                    delay.note_run(began.elapsed());
                    self.note_failure(&reason, delay.get());
                    self.slot.pause(delay.get());
                    delay.double();
                }
            }
        }
    }

    /// Starts a process and lets it open the library.
    fn start(&self, idle: bool) -> Result<StartedProcess> {
        let owner = format!("{} (spare)", self.engine);
        let process = StartedProcess::start(&self.isolation, &owner)?;
        let message = LibraryMessage { engine: self.engine.clone(), idle };
        let limit = if idle { IDLE_OPEN_TIME_MAX } else { ORDINARY_OPEN_TIME_MAX };
        process.open_library(&self.isolation, &message, limit, &self.slot.closed)
    }

    /// Offers `process` until a supervisor takes it, it ends, or the slot is closed.
    fn keep(&self, process: StartedProcess) -> SpareEnd {
        let mut slot = self.slot.process.lock();
        *slot = Some(process);
        // A supervisor can take each process that is counted.
        count(&self.isolation, "started");
        loop {
            let has_ended = match slot.as_mut() {
                Some(process) => process.has_ended(),
                None => return SpareEnd::Taken,
            };
            let is_closed = self.slot.is_closed();
            if has_ended || is_closed {
                let process = slot.take();
                drop(slot);
                let reason = process.map(|process| process.end(&self.isolation));
                return match reason {
                    Some(reason) if !is_closed => SpareEnd::Failed(reason),
                    _ => SpareEnd::Closed,
                };
            }
            self.slot.changed.wait_for(&mut slot, CHECK_INTERVAL);
        }
    }

    fn note_failure(&self, reason: &str, delay: Duration) {
        count(&self.isolation, "failed");
        let engine = &self.engine;
        tracing::error!(engine, "the engine's spare failed: {reason}; another starts in {delay:?}");
    }
}

/// Counts an event of a spare process: "started" (it is ready), "used" or "failed".
fn count(isolation: &Isolation, kind: &'static str) {
    isolation.metrics.worker_spares.get_or_create(&KindLabels { kind }).inc();
}
