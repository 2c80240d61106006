//! Turns of the processes of a fleet to load new versions of their models, in etcd. A fleet needs
//! no cluster.
//!
//! # Keys
//! Below `millpond-updates/FLEET/`, `slots/MODEL/N` has the process that loads a new version of a
//! model. The key ends with a lease, which the process keeps alive during the load. With N slots, N
//! processes load at the same time. `holds/MODEL/VERSION` has the process in which a version
//! failed, with the error. It ends after a day, or when an administrator's load of the version
//! succeeds in any process. It ends too when any load of the version succeeds in the process that
//! failed.
//!
//! `trials/MODEL/VERSION/N` has the process that loads the version with slot N. It is written after
//! the slot is taken, and removed before the slot is given back. So a process with a trial and
//! without a slot has ended during the load, perhaps because of the version. The trial then holds
//! the version back, and ends as a hold does, but after [`FleetTimes::turn`].
//!
//! A process that fails writes the hold before it gives its slot back, and a process that takes a
//! slot reads the holds afterwards. So with one slot, one process tries a bad version.
//!
//! A process whose turn ended before its load may fail after others have loaded the version. Its
//! hold ends after [`FleetTimes::turn`], and replaces no other hold. Then one process takes a turn
//! and tries the version again.
//!
//! # Without etcd
//! An update waits for at most [`FleetTimes::silence`] and is then loaded without a turn. Loads
//! that have begun continue. Versions that are held back stay held back.
//!
//! # Invariant
//! No call of the lifecycle waits for etcd.
//!
//! # Modules
//! * Turns: `decide` is pure, `keys` are the keys and entries in etcd, `worker` is the thread.

mod decide;
mod keys;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, Result, VersionId};
use etcd::{Etcd, check_name};
use lifecycle::{TurnState, UpdateEnd, UpdateTurns};
use metrics::UpdateMetrics;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use decide::{FIRST_WAIT_REASON, TurnRules};
use keys::FleetKeys;
use worker::FleetWorker;

/// Maximum slots of a model.
pub const SLOTS_MAX: u32 = 1024;

/// A process of a fleet, as its configuration has it.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// Name of the fleet in etcd.
    pub fleet: String,
    /// Name of the process, which no other process of the fleet has.
    pub process: String,
    /// Number of processes that load a new version of the same model at the same time, at least
    /// one.
    pub concurrency: u32,
    /// Intervals and limits.
    pub times: FleetTimes,
}

/// Intervals and limits of turns.
#[derive(Clone, Copy, Debug)]
pub struct FleetTimes {
    /// Time after which the turn of a process that has ended is free.
    pub lease: Duration,
    /// Time between two keep-alives of a turn.
    pub keep_alive: Duration,
    /// Shortest time between two readings while a version wants to load. It grows with the wait.
    pub poll: Duration,
    /// Longest time between two readings. It is also the time between readings while versions wait
    /// for their window or are held back.
    pub watch: Duration,
    /// Longest wait of an update for an answer of etcd. Then it is loaded without a turn.
    pub silence: Duration,
    /// Longest time of a turn. Then another process may load, although this one has not finished.
    pub turn: Duration,
    /// Time for which a version that failed is held back. A failure after the end of the turn
    /// counts for [`FleetTimes::turn`] only, and so does the end of a process during its turn.
    pub hold: Duration,
}

impl Default for FleetTimes {
    fn default() -> Self {
        FleetTimes {
            lease: Duration::from_secs(10),
            keep_alive: Duration::from_secs(3),
            poll: Duration::from_millis(500),
            watch: Duration::from_secs(5),
            silence: Duration::from_secs(60),
            turn: Duration::from_secs(3600),
            hold: Duration::from_secs(24 * 3600),
        }
    }
}

/// Updates of this process. Each is a new version of a model on this server, which bounds their
/// number.
type FleetState = BTreeMap<VersionId, FleetUpdate>;

/// An update of this process.
struct FleetUpdate {
    /// Time from which the process wants to load it.
    due: Option<Instant>,
    state: TurnState,
    /// End of the update, until etcd has it.
    end: Option<EndedUpdate>,
}

#[derive(Clone)]
struct EndedUpdate {
    end: UpdateEnd,
    since: Instant,
}

/// State that the lifecycle and the worker share. The lock is held for moments only.
#[derive(Default)]
struct SharedFleet {
    state: Mutex<FleetState>,
    /// Notified of new, due and ended updates.
    changed: Notify,
    /// Notified of the stop.
    stop: Notify,
}

/// Turns of this process in its fleet. A thread `updates` asks etcd.
pub struct FleetUpdates {
    shared: Arc<SharedFleet>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl FleetUpdates {
    /// Starts the thread. It asks etcd only while there are updates, so etcd need not answer now.
    ///
    /// # Errors
    /// `InvalidArgument` for a fleet's name with other characters than letters, digits, `.`, `_`
    /// and `-`, and for a number of slots that is 0 or above [`SLOTS_MAX`]. `ResourceExhausted` if
    /// the thread cannot be started.
    pub fn start(
        etcd: Etcd,
        options: FleetOptions,
        metrics: UpdateMetrics,
    ) -> Result<FleetUpdates> {
        check_name("fleet", &options.fleet)?;
        if !(1..=SLOTS_MAX).contains(&options.concurrency) {
            return Err(Error::invalid(format!(
                "{} processes are to update at the same time; choose 1 to {SLOTS_MAX}",
                options.concurrency
            )));
        }
        let failed = |error: std::io::Error| {
            Error::exhausted("the thread of updates cannot be started").caused_by(error)
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let shared = Arc::new(SharedFleet::default());
        let rules =
            TurnRules { process: options.process.clone(), concurrency: options.concurrency };
        let keys = FleetKeys::new(&options.fleet);
        let worker = FleetWorker::new(etcd, keys, rules, options.times, metrics, shared.clone());
        let thread = std::thread::Builder::new()
            .name("updates".into())
            .spawn(move || run_to_end(runtime, worker.run()))
            .map_err(failed)?;
        Ok(FleetUpdates { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Writes the ends of updates to etcd, releases all turns and ends the thread. Waits for a few
    /// seconds at most.
    pub fn stop(&self) {
        self.shared.stop.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread of updates ended by panic");
        }
    }
}

/// Runs `work` to its end, but does not wait for its blocking calls. The resolution of a name that
/// gets no answer takes longer than a stop may wait.
fn run_to_end(runtime: Runtime, work: impl Future<Output = ()>) {
    runtime.block_on(work);
    runtime.shutdown_background();
}

impl Drop for FleetUpdates {
    fn drop(&mut self) {
        self.stop();
    }
}

impl UpdateTurns for FleetUpdates {
    fn request(&self, id: &VersionId, due: bool) -> TurnState {
        let mut state = self.shared.state.lock();
        let is_changed = state.get(id).is_none_or(|update| update.due.is_some() != due);
        let update = state.entry(id.clone()).or_insert_with(|| FleetUpdate {
            due: None,
            state: TurnState::Waiting(FIRST_WAIT_REASON.to_owned()),
            end: None,
        });
        update.due = due.then(|| update.due.unwrap_or_else(Instant::now));
        let answer = match update.end {
            None => update.state.clone(),
            Some(_) => TurnState::Waiting("its last update ends".to_owned()),
        };
        drop(state);
        if is_changed {
            self.shared.changed.notify_one();
        }
        answer
    }

    fn end(&self, id: &VersionId, end: UpdateEnd) {
        let mut state = self.shared.state.lock();
        let ended = EndedUpdate { end, since: Instant::now() };
        match state.get_mut(id) {
            Some(update) => update.end = Some(ended),
            None if ended.end == UpdateEnd::Dropped => return,
            None => {
                let update = FleetUpdate {
                    due: None,
                    state: TurnState::Waiting(FIRST_WAIT_REASON.to_owned()),
                    end: Some(ended),
                };
                state.insert(id.clone(), update);
            }
        }
        drop(state);
        self.shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_end_waits_for_no_blocking_call() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (end, ending) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel();
        let (done, ended) = mpsc::channel();
        let call = move || {
            begin.send(()).unwrap();
            // Fails once `end` is dropped.
            let _ = ending.recv();
        };
        let work = async move {
            drop(tokio::task::spawn_blocking(call));
            begun.recv().unwrap();
        };
        std::thread::spawn(move || {
            run_to_end(runtime, work);
            done.send(()).unwrap();
        });
        ended.recv_timeout(Duration::from_secs(60)).expect("it ends before the call");
        drop(end);
    }
}
