//! Work at low priority that gets done on a busy machine too.
//!
//! A thread of idle priority costs other threads nothing, and gets nearly no time on a machine that
//! is fully busy. A version that should end an overload would then never be loaded. No thread can
//! leave idle priority again without a privilege. So [`BackgroundRunner`] runs work on an idle
//! thread and watches it from a thread of ordinary priority. If the idle thread starves, the runner
//! stops it and does the work again on a thread of ordinary priority.
//!
//! No thread can be ended from outside. So the runner never does work on its caller's thread. It
//! abandons a thread that does not return, and a new one takes its place.
//!
//! [`spawn_pair`] is for repeated work with its own rule for escalation, such as the flushes of a
//! collection. Both threads exist all the time. The thread of ordinary priority finds work only if
//! the other one has fallen behind.
//!
//! Threads inherit the priority of the thread that starts them. [`at_ordinary_priority`] is for a
//! library that starts threads for requests while an idle thread loads a model. [`at_low_priority`]
//! is for work under a lock, which no runner can repeat and for which others wait.

mod pair;
mod runner_thread;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use self::runner_thread::RunnerThread;
use crate::sched_stat::{SchedStat, SchedTimes};
use crate::thread;

pub use self::pair::spawn_pair;

/// A thread starves if it has waited for a core longer than its limit, and longer than this
/// multiple of the time that it ran.
const STARVING_RATIO: u32 = 4;
/// Time between two checks of the idle thread and of the stop flag.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait for stopped work to end.
const STOP_WAIT_MAX: Duration = Duration::from_secs(60);

/// Priority at which work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Ordinary from the start.
    Ordinary,
    /// Low or idle. The work may be stopped and begin again at [`Priority::Escalated`].
    Background,
    /// Ordinary, because the background thread got too little time.
    Escalated,
}

/// One attempt at some work.
#[derive(Clone)]
pub struct Attempt {
    /// Start of the first attempt at this work.
    pub began: Instant,
    /// Request to end early with `Cancelled`.
    pub stop: Arc<AtomicBool>,
    /// Priority of this attempt.
    pub priority: Priority,
    /// Longest time that a background attempt may wait for a core.
    pub starvation_limit: Duration,
}

impl Attempt {
    /// Returns the first and only attempt at work that runs at ordinary priority from now on.
    pub fn ordinary(stop: Arc<AtomicBool>) -> Attempt {
        Attempt {
            began: Instant::now(),
            stop,
            priority: Priority::Ordinary,
            starvation_limit: Duration::MAX,
        }
    }

    /// Returns why a background attempt has to be repeated.
    fn failure(&self) -> &'static str {
        // The runner stops an attempt that starves. Otherwise its thread has panicked or could not
        // be started.
        if self.stop.load(Ordering::Relaxed) {
            "it got almost no processor time"
        } else {
            "it failed at idle priority"
        }
    }
}

/// Detects that a thread or a child process starves.
pub struct StarvationWatch {
    stat: SchedStat,
    start: SchedTimes,
    limit: Duration,
}

impl StarvationWatch {
    /// Starts to watch. Returns `None` if the kernel does not count the times of the thread.
    pub fn new(stat: &SchedStat, limit: Duration) -> Option<StarvationWatch> {
        Some(StarvationWatch { start: stat.read()?, stat: stat.clone(), limit })
    }

    /// Returns true if the thread has waited for a core for `limit`, and for four times its running
    /// time. Both count from the start of the watch.
    pub fn starves(&self) -> bool {
        let Some(now) = self.stat.read() else { return false };
        let ran = now.ran.saturating_sub(self.start.ran);
        let waited = now.waited.saturating_sub(self.start.waited);
        waited >= self.limit && waited >= ran * STARVING_RATIO
    }
}

type Task = Box<dyn FnOnce() + Send>;

/// Queue of the thread that starts the threads of [`at_ordinary_priority`] and [`at_low_priority`].
static STARTER: OnceLock<Sender<Task>> = OnceLock::new();
/// Maximum calls of these functions that wait for that thread.
const STARTS_MAX: usize = 64;

/// Starts the thread of [`STARTER`], once per process. It inherits the caller's priority, which is
/// ordinary.
fn start_starter() -> Result<()> {
    if STARTER.get().is_some() {
        return Ok(());
    }
    let (starts, queue) = bounded::<Task>(STARTS_MAX);
    thread::spawn("ordinary", move || queue.iter().for_each(|start| start()))?;
    // If another thread was faster, the new one ends with this sender.
    let _ = STARTER.set(starts);
    Ok(())
}

/// Runs `work` and returns its result. On a thread of idle or low priority, a new thread of
/// ordinary priority runs it, and the caller waits. In a process without a [`BackgroundRunner`],
/// the system must permit that priority. If it refuses, that is logged, and `work` runs at idle
/// priority.
///
/// # Errors
/// `ResourceExhausted` if no thread can be started, `Internal` if `work` panics on the new thread.
pub fn at_ordinary_priority<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if !thread::has_idle_priority() && !thread::has_low_priority() {
        return Ok(work());
    }
    // The threads that a library starts there have this name too.
    on_new_thread("engine", work)
}

/// Runs `work` and returns its result. On a thread of idle priority, a new thread of low priority
/// runs it, and the caller waits. So the work progresses on a busy machine. For work that is done
/// once in a process and holds a lock meanwhile.
///
/// # Errors
/// As [`at_ordinary_priority`].
pub fn at_low_priority<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    if !thread::has_idle_priority() {
        return Ok(work());
    }
    on_new_thread("library", move || {
        thread::enter_low_priority("opening a library");
        work()
    })
}

/// Runs `work` on a new thread of ordinary priority, and waits for its result.
fn on_new_thread<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (send, result) = bounded(1);
    let span = tracing::Span::current();
    let body = move || {
        crate::jemalloc::use_background_arena();
        leave_idle_priority();
        // The caller waits, and the channel has room for one.
        let _ = send.send(span.in_scope(work));
    };
    match STARTER.get() {
        None => drop(thread::spawn(name, body)?),
        Some(starter) => {
            let start = move || {
                if let Err(error) = thread::spawn(name, body) {
                    tracing::error!(%error, "work that starts threads was abandoned");
                }
            };
            // Fails only if the thread has panicked. Then `body` is dropped, and no result comes.
            let _ = starter.send(Box::new(start));
        }
    }
    result.recv().map_err(|_| Error::internal("a thread of ordinary priority gave no result"))
}

/// Asks the system for ordinary priority, if the calling thread has idle priority.
fn leave_idle_priority() {
    if thread::has_idle_priority()
        && let Err(error) = thread::set_batch_scheduling(false)
    {
        tracing::warn!(%error, "threads of a model run at idle priority");
    }
}

/// Attempts at work that a [`BackgroundRunner`] stopped and abandoned.
pub struct LeftWork(Vec<Weak<()>>);

impl LeftWork {
    /// Returns true once the work has ended.
    pub fn ended(&self) -> bool {
        self.0.iter().all(|attempt| attempt.strong_count() == 0)
    }
}

/// Limit of the time of one work, with all its attempts.
#[derive(Clone, Copy, Debug)]
pub struct WorkTimeLimit {
    /// Maximum time. The work is then stopped.
    pub max: Duration,
    /// Remedy, for the error.
    pub remedy: &'static str,
}

/// Work that began on a thread.
struct BegunWork<T> {
    outcome: Receiver<Result<T>>,
    /// Without an owner once the work has ended.
    runs: Weak<()>,
}

/// Threads that run work at idle priority, and at ordinary priority if the work starves. A thread
/// of ordinary priority owns the runner.
pub struct BackgroundRunner {
    name: String,
    doing: &'static str,
    starvation_limit: Duration,
    stop_wait_max: Duration,
    limit: Option<WorkTimeLimit>,
    /// Absent before the first work, and after work that did not stop in time.
    idle: Option<RunnerThread>,
    /// Thread of ordinary priority. Absent before it is first needed, and after work that did not
    /// stop in time.
    ordinary: Option<RunnerThread>,
    /// Work that was stopped and did not end in time.
    left: Option<LeftWork>,
}

impl BackgroundRunner {
    /// Creates a runner for the thread `name`. `doing` ("loading") is for the log.
    ///
    /// Work escalates after it has waited for a core for `starvation_limit`. The runner then gives
    /// it the same time to stop. Work that does not notice its stop flag, such as a call into an
    /// engine, keeps its thread and ends on its own. The runner waits at most a minute for stopped
    /// work.
    pub fn new(name: &str, doing: &'static str, starvation_limit: Duration) -> BackgroundRunner {
        BackgroundRunner {
            name: name.to_owned(),
            doing,
            starvation_limit,
            stop_wait_max: STOP_WAIT_MAX,
            limit: None,
            idle: None,
            ordinary: None,
            left: None,
        }
    }

    /// Sets a limit of the time of each work. After that time, the runner stops the work, and waits
    /// at most the same time again for its end.
    pub fn with_limit(self, limit: WorkTimeLimit) -> BackgroundRunner {
        let stop_wait_max = self.stop_wait_max.min(limit.max);
        BackgroundRunner { limit: Some(limit), stop_wait_max, ..self }
    }

    /// Runs `work` at idle priority until it ends, `stop` is set, or its time is up. `work` must be
    /// able to begin again, and checks [`Attempt::stop`]. `what` names it in the log.
    ///
    /// # Errors
    /// Returns the errors of `work`. `Cancelled` if `stop` was set. `FailedPrecondition` with the
    /// remedy of the [`WorkTimeLimit`] if the time was up.
    pub fn run<T: Send + 'static>(
        &mut self,
        what: &str,
        stop: &Arc<AtomicBool>,
        work: impl Fn(&Attempt) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let work = Arc::new(work);
        let attempt = Attempt {
            began: Instant::now(),
            stop: Arc::default(),
            priority: Priority::Background,
            starvation_limit: self.starvation_limit,
        };
        let begun = self.begin(&work, &attempt);
        let outcome = match &begun {
            Ok(begun) => self.wait(&begun.outcome, &attempt, stop),
            Err(error) => {
                tracing::warn!(%error, "{what}: not at idle priority");
                None
            }
        };
        // Abandoned work drops its outcome on its own thread.
        let left = if outcome.is_some() { None } else { begun.ok().map(|begun| begun.runs) };
        match (self.end_request(what, &attempt, stop), outcome) {
            (Some(request), Some(outcome)) => return stopped_outcome(outcome, request),
            (Some(request), None) => {
                self.leave(left);
                return Err(request);
            }
            // The runner stopped it, because it starved.
            (None, Some(Err(error))) if error.kind() == ErrorKind::Cancelled => {}
            (None, Some(outcome)) => return outcome,
            (None, None) => {}
        }
        tracing::info!("{what}: starts again at ordinary priority, because {}", attempt.failure());
        let escalated = Attempt { stop: Arc::default(), priority: Priority::Escalated, ..attempt };
        let outcome = self.attempt(what, stop, &work, &escalated);
        if self.end_request(what, &escalated, stop).is_some() {
            // The first attempt at this work may still be inside an engine.
            self.leave(left);
        }
        outcome
    }

    /// Runs `work` once, at ordinary priority, until it ends, `stop` is set, or its time is up.
    ///
    /// # Errors
    /// As [`BackgroundRunner::run`]. `Internal` if `work` panics. `ResourceExhausted` if no thread
    /// can be started.
    pub fn run_ordinary<T: Send + 'static>(
        &mut self,
        what: &str,
        stop: &Arc<AtomicBool>,
        work: impl Fn(&Attempt) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        self.attempt(what, stop, &Arc::new(work), &Attempt::ordinary(Arc::default()))
    }

    /// Runs the last attempt at `work`.
    fn attempt<T: Send + 'static>(
        &mut self,
        what: &str,
        stop: &AtomicBool,
        work: &Arc<impl Fn(&Attempt) -> Result<T> + Send + Sync + 'static>,
        attempt: &Attempt,
    ) -> Result<T> {
        let begun = self.begin(work, attempt)?;
        let outcome = self.wait(&begun.outcome, attempt, stop);
        match (self.end_request(what, attempt, stop), outcome) {
            (Some(request), Some(outcome)) => stopped_outcome(outcome, request),
            (Some(request), None) => {
                self.leave(Some(begun.runs));
                Err(request)
            }
            (None, Some(outcome)) => outcome,
            (None, None) => Err(Error::internal(format!("{what} panicked; see the log"))),
        }
    }

    /// Returns why work has to end, because its caller has stopped it or its time is up.
    fn end_request(&self, what: &str, attempt: &Attempt, stop: &AtomicBool) -> Option<Error> {
        if stop.load(Ordering::Relaxed) {
            return Some(Error::cancelled(format!("{what} was stopped")));
        }
        let limit = self.limit.filter(|limit| attempt.began.elapsed() >= limit.max)?;
        let seconds = limit.max.as_secs_f64();
        let remedy = limit.remedy;
        Some(Error::precondition(format!("{what} took longer than {seconds} s; {remedy}")))
    }

    /// Records an abandoned attempt.
    fn leave(&mut self, runs: Option<Weak<()>>) {
        self.left.get_or_insert_with(|| LeftWork(Vec::new())).0.extend(runs);
    }

    /// Returns the place of the thread for attempts of a priority.
    fn thread(&mut self, priority: Priority) -> &mut Option<RunnerThread> {
        match priority {
            Priority::Background => &mut self.idle,
            Priority::Ordinary | Priority::Escalated => &mut self.ordinary,
        }
    }

    /// Returns the work that the last [`BackgroundRunner::run`] abandoned, unless it has ended
    /// meanwhile.
    pub fn take_left(&mut self) -> Option<LeftWork> {
        self.left.take().filter(|left| !left.ended())
    }

    /// Starts `work` on the thread for its priority.
    fn begin<T: Send + 'static>(
        &mut self,
        work: &Arc<impl Fn(&Attempt) -> Result<T> + Send + Sync + 'static>,
        attempt: &Attempt,
    ) -> Result<BegunWork<T>> {
        let thread = match self.thread(attempt.priority).take() {
            Some(thread) => thread,
            None if attempt.priority == Priority::Background => {
                RunnerThread::start_idle(&self.name, self.doing)?
            }
            None => RunnerThread::start_ordinary(&self.name)?,
        };
        let priority = attempt.priority;
        let (send, outcome) = bounded(1);
        let work = work.clone();
        let attempt = attempt.clone();
        let running = Arc::new(());
        let runs = Arc::downgrade(&running);
        let task = Box::new(move || {
            // Dropped before `send`, also if the work panics.
            let _running = running;
            // If the runner waits no longer, the outcome is dropped here.
            drop(send.send(work(&attempt)));
        });
        thread
            .tasks
            .send(task)
            .map_err(|_| Error::internal("the thread for the work has ended"))?;
        *self.thread(priority) = Some(thread);
        Ok(BegunWork { outcome, runs })
    }

    /// Waits for the outcome. Returns `None` if the thread has panicked, or if it starves and does
    /// not stop. Also returns `None` if `stop` or the time limit has stopped it and it does not
    /// end. The work is then abandoned.
    fn wait<T>(
        &mut self,
        outcome: &Receiver<Result<T>>,
        attempt: &Attempt,
        stop: &AtomicBool,
    ) -> Option<Result<T>> {
        let thread = self.thread(attempt.priority).as_ref();
        let stat = thread.and_then(|thread| thread.stat.clone());
        let limit = self.starvation_limit;
        let start_watch = || stat.as_ref().and_then(|stat| StarvationWatch::new(stat, limit));
        let mut watch = start_watch();
        let mut stopped: Option<Instant> = None;
        loop {
            match outcome.recv_timeout(CHECK_INTERVAL) {
                Ok(outcome) => return Some(outcome),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let starves = watch.as_ref().is_some_and(StarvationWatch::starves);
            let is_late = self.limit.is_some_and(|limit| attempt.began.elapsed() >= limit.max);
            if is_late || stop.load(Ordering::Relaxed) {
                if !attempt.stop.swap(true, Ordering::Relaxed) {
                    // From now on the work only has to stop, so its watch starts again.
                    watch = start_watch();
                    stopped = Some(Instant::now());
                } else if starves
                    || stopped.is_some_and(|since| since.elapsed() >= self.stop_wait_max)
                {
                    break;
                }
            } else if starves {
                attempt.stop.store(true, Ordering::Relaxed);
                if let Ok(outcome) = outcome.recv_timeout(self.starvation_limit) {
                    return Some(outcome);
                }
                break;
            }
        }
        *self.thread(attempt.priority) = None;
        None
    }
}

/// Returns the outcome of work that has ended after `request`. If the work stopped, it is the
/// request.
fn stopped_outcome<T>(outcome: Result<T>, request: Error) -> Result<T> {
    outcome.map_err(|error| if error.kind() == ErrorKind::Cancelled { request } else { error })
}

#[cfg(test)]
#[path = "background_tests.rs"]
mod tests;
