//! Runs models in worker processes, so that an engine that aborts costs only the running requests
//! of its model.
//!
//! [`IsolatingEngine`] wraps an engine and opens models with `isolate = true` in a child process
//! each, which runs [`run_worker`] with the same engine. The session in the server passes every run
//! over a socket and waits. If the child ends, its running requests get `Unavailable` with the
//! reason, and a child with the same files takes its place. If the engine's library opens slowly, a
//! spare child has opened it before (`spare`). No engine is named here.
//!
//! Server and child share no memory: the child loads the parameters itself. Each concurrent run has
//! a socket of its own, so no run waits for another one's bytes.
//!
//! # Modules
//! * In the server: `engine` and `session` implement the traits, `supervisor` starts `process`
//!   again after `restart_delay`, `spare` keeps one ready. `temporary_directory` is for the files
//!   of a process.
//! * In the child: `worker`.
//! * Between them: `channel`, `frame`, `message`, `wire`.

mod channel;
mod engine;
mod frame;
mod message;
mod process;
mod restart_delay;
mod session;
mod spare;
mod supervisor;
mod temporary_directory;
mod wire;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use base::Result;
use crossbeam_channel::{Sender, bounded};
use metrics::Metrics;
use os::ChildProgram;
use parking_lot::Mutex;

pub use self::engine::IsolatingEngine;
pub use message::WorkerMemory;
pub use worker::run_worker;

use self::spare::SpareTable;

/// Maximum concurrent runs of one worker process.
pub const RUNS_MAX: usize = 64;
/// Maximum loads that wait for the thread which starts their supervisors.
const STARTS_MAX: usize = 64;

/// The program that runs worker processes, and its limits.
#[derive(Clone, Debug)]
pub struct IsolationConfig {
    /// The program, which calls [`run_worker`].
    pub program: ChildProgram,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Concurrent runs of one worker process, 1 to [`RUNS_MAX`].
    pub runs: usize,
    /// Longest time of one run. Then the worker process is ended and started again.
    pub run_time_max: Duration,
    /// Rates and kinds of memory for the parameters of published versions.
    pub memory: WorkerMemory,
    /// Keeps a spare worker process for each engine that opens slowly and has an isolated model.
    pub spares: bool,
}

type Start = Box<dyn FnOnce() + Send>;

/// Everything that the isolated models of a server share.
pub struct Isolation {
    config: IsolationConfig,
    metrics: Arc<Metrics>,
    starts: Sender<Start>,
    /// Running worker processes, spare ones included.
    processes: Mutex<Vec<u32>>,
    spares: SpareTable,
}

impl Isolation {
    /// Starts the thread `isolate`. Call it from a thread of ordinary priority: worker processes
    /// and their supervisors inherit the priority.
    ///
    /// # Errors
    /// `ResourceExhausted` if the thread cannot be started.
    pub fn new(mut config: IsolationConfig, metrics: Arc<Metrics>) -> Result<Arc<Isolation>> {
        config.runs = config.runs.clamp(1, RUNS_MAX);
        let (starts, queue) = bounded::<Start>(STARTS_MAX);
        os::thread::spawn("isolate", move || queue.iter().for_each(|start| start()))?;
        Ok(Arc::new(Isolation {
            config,
            metrics,
            starts,
            processes: Mutex::default(),
            spares: SpareTable::default(),
        }))
    }

    /// Returns the ids of all worker processes, spare ones included.
    pub fn processes(&self) -> Vec<u32> {
        self.processes.lock().clone()
    }

    /// Returns the resident memory of all worker processes in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.processes().into_iter().filter_map(os::process::resident_bytes).sum()
    }

    /// Runs `start` on the thread `isolate`.
    fn start(&self, start: Start) {
        // Fails only if the thread has panicked. Then the caller sees that `start` was dropped.
        let _ = self.starts.send(start);
    }
}
