//! Choice of worker and model: one lock over all queues, held for microseconds.
//!
//! Fairness between models is start-time fair queueing (Goyal, Vin and Cheng, 1996) over processor
//! time. The model that has used the least time, divided by its weight, goes first. A model that
//! was idle starts at the virtual time of the others, so that it cannot save up. A run of a model
//! with several threads takes as many cores as it has threads, and is charged for all of them. If
//! its threads come on top of the workers, it takes one core. While too few cores are free for it,
//! no other model overtakes it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use base::QueueWait;

use crate::SchedulerConfig;
use crate::choose::{Next, RequestBatch};
use crate::entry::{Entry, ExpiredEntry};
use crate::model_queue::RunFigures;
use crate::model_queues::ModelQueues;
use crate::snapshot::SchedulerSnapshot;
use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard};

/// Maximum models with a queue. Before another is added, models whose versions are released are
/// dropped.
const MODELS_MAX: usize = 4096;
/// Maximum models whose figures are read under one lock. Requests wait for that lock.
const SNAPSHOT_MODELS_MAX: usize = 16;

/// Reason why a request was not queued.
pub(crate) enum Refusal {
    /// The queue has no room for the request.
    Full {
        limit: usize,
        waiting: usize,
    },
    Closed,
}

/// The caller's reaction to a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// The caller does not submit the request again, so the request counts as refused.
    GiveUp,
    /// The caller submits the request again.
    TryAgain,
}

/// Next work of a worker.
pub(crate) enum DispatchedWork {
    /// Expired requests to answer.
    Expire(Vec<ExpiredEntry>),
    Run(RequestBatch),
}

/// The run that a worker has just ended.
pub(crate) struct EndedRun {
    pub(crate) model: Arc<str>,
    pub(crate) figures: RunFigures,
    /// Cores that become free.
    pub(crate) cores_taken: usize,
}

/// State that the lock of the dispatch protects.
struct DispatchState {
    queues: ModelQueues,
    /// Waiting workers. The last one to work is on top, because its core has the model in its
    /// cache.
    idle: Vec<usize>,
    /// Worker that wakes by itself for a lingering batch, and the time.
    timer: Option<(usize, Instant)>,
    /// Cores that no run takes.
    cores_free: usize,
    /// True if a run takes one core for each of its threads.
    count_threads: bool,
    /// Least use that a model has when it gets a request after it was idle. It is divided by the
    /// model's weight.
    virtual_time: f64,
    /// Runs in progress.
    running: usize,
    /// Runs that were started.
    runs: u64,
    /// Wall time of all finished runs.
    busy: Duration,
    /// Part of `busy` in which the workers were not on a core.
    off_core: Duration,
    /// True once no further requests are accepted.
    closed: bool,
}

/// All queues and the waiting workers.
pub(crate) struct Dispatch {
    state: Mutex<DispatchState>,
    /// One for each worker, so that a certain worker can be woken.
    wakers: Vec<Condvar>,
    queue_max: usize,
    /// Sum of all queues, readable without the lock.
    queued: AtomicUsize,
}

impl Dispatch {
    pub(crate) fn new(config: &SchedulerConfig) -> Dispatch {
        let SchedulerConfig { workers, queue_max, count_threads, .. } = *config;
        let state = DispatchState {
            queues: ModelQueues::default(),
            idle: Vec::with_capacity(workers),
            timer: None,
            cores_free: workers,
            count_threads,
            virtual_time: 0.0,
            running: 0,
            runs: 0,
            busy: Duration::ZERO,
            off_core: Duration::ZERO,
            closed: false,
        };
        Dispatch {
            state: Mutex::new(state),
            wakers: (0..workers).map(|_| Condvar::new()).collect(),
            queue_max,
            queued: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, DispatchState> {
        // Nothing under this lock calls foreign code, so a poisoned state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn queue_max(&self) -> usize {
        self.queue_max
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Adds the entries of one request and wakes a worker. May add expired entries to `expired`,
    /// which the caller answers.
    pub(crate) fn push(
        &self,
        mut entries: Vec<Entry>,
        when_full: WhenFull,
        expired: &mut Vec<ExpiredEntry>,
    ) -> Result<(), Refusal> {
        let Some(first) = entries.first() else { return Ok(()) };
        let model = first.servable.id.model.clone();
        let now = first.submitted;
        let count = entries.len();
        let mut state = self.lock();
        if state.closed {
            return Err(Refusal::Closed);
        }
        let virtual_time = state.virtual_time;
        let mut wait = state.sums();
        let idle = wait.idle_worker;
        let position = state.position(&model);
        let queue = state.queues.at(position);
        wait.busy_since = Some(queue.busy_since(idle, now));
        wait.before = queue.queued();
        wait.busy_own = queue.busy;
        entries.iter_mut().for_each(|entry| entry.wait = wait.clone());
        if queue.queued() == 0 && queue.running == 0 {
            queue.used = queue.used.max(virtual_time);
        }
        let pushed = queue.push(&mut entries, self.queue_max, now, expired);
        if pushed.is_err() && when_full == WhenFull::GiveUp {
            queue.count_refused();
        }
        if pushed.is_ok() {
            state.queues.note_waiting(position);
        }
        let added = if pushed.is_ok() { count } else { 0 };
        let woken = if pushed.is_ok() { state.wake_one() } else { None };
        self.count(&mut state, added, expired.len());
        drop(state);
        self.notify(woken);
        pushed.map_err(|(limit, waiting)| Refusal::Full { limit, waiting })
    }

    /// Counts added and taken requests. The lock is still held, so a request is never counted as
    /// taken before it is counted as added.
    fn count(&self, _held: &mut DispatchState, added: usize, taken: usize) {
        self.queued.fetch_add(added, Ordering::Relaxed);
        self.queued.fetch_sub(taken, Ordering::Relaxed);
    }

    fn notify(&self, worker: Option<usize>) {
        if let Some(waker) = worker.and_then(|worker| self.wakers.get(worker)) {
            waker.notify_one();
        }
    }

    /// Waits for the next work of `worker`. Returns `None` once closed and empty. `ended` is its
    /// last run.
    pub(crate) fn next(&self, worker: usize, ended: Option<EndedRun>) -> Option<DispatchedWork> {
        let mut state = self.lock();
        if let Some(EndedRun { model, figures, cores_taken }) = ended {
            state.cores_free += cores_taken;
            state.busy += figures.wall;
            state.off_core += figures.off_core;
            state.running -= 1;
            if let Some(queue) = state.queues.get(&model) {
                queue.finish(&figures);
            }
        }
        let mut expire_all = false;
        loop {
            let now = Instant::now();
            let mut expired = Vec::new();
            state.queues.for_each_waiting(|queue| {
                if expire_all || queue.stale(now) {
                    queue.expire(now, &mut expired);
                }
            });
            expire_all = false;
            if !expired.is_empty() {
                self.count(&mut state, 0, expired.len());
                return Some(DispatchedWork::Expire(expired));
            }
            let until = match state.pick(now, self.wakers.len()) {
                Next::Run(batch) => {
                    self.count(&mut state, 0, batch.entries.len());
                    let more = state.queues.has_waiting();
                    let woken = if more { state.wake_one() } else { None };
                    drop(state);
                    self.notify(woken);
                    return Some(DispatchedWork::Run(batch));
                }
                Next::Stale => {
                    expire_all = true;
                    continue;
                }
                Next::Wait(until) => Some(until),
                Next::Nothing => None,
            };
            if state.closed && !state.queues.has_waiting() {
                drop(state);
                self.wakers.iter().for_each(Condvar::notify_one);
                return None;
            }
            state = self.wait(state, worker, until);
        }
    }

    /// Lets a worker sleep until it is notified, or until `until`. One worker owns the next time
    /// limit. A worker whose limit ends sooner takes it over.
    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, DispatchState>,
        worker: usize,
        until: Option<Instant>,
    ) -> MutexGuard<'a, DispatchState> {
        if !state.idle.contains(&worker) {
            state.idle.push(worker);
        }
        let waker = &self.wakers[worker];
        // The worker that would wake first takes over. At worst the other one wakes without need.
        let sooner = |until: &Instant| state.timer.is_none_or(|(_, due)| *until < due);
        let mut state = match until.filter(sooner) {
            Some(until) => {
                state.timer = Some((worker, until));
                let timeout = until.saturating_duration_since(Instant::now());
                waker.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0
            }
            None => waker.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
        if state.timer.is_some_and(|(owner, _)| owner == worker) {
            state.timer = None;
        }
        state.idle.retain(|&idle| idle != worker);
        state
    }

    /// Refuses new requests. Workers end once the queues are empty.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wakers.iter().for_each(Condvar::notify_one);
    }

    pub(crate) fn snapshot(&self) -> SchedulerSnapshot {
        self.snapshot_in_parts(|| {})
    }

    /// Reads the figures of a few models at a time. Calls `between` after each part, without the
    /// lock, because the figures of thousands of models would hold up all requests.
    fn snapshot_in_parts(&self, mut between: impl FnMut()) -> SchedulerSnapshot {
        let mut state = self.lock();
        state.queues.remove_expired(Instant::now());
        let names = state.queues.names();
        let busy = state.running;
        drop(state);
        let mut models = Vec::with_capacity(names.len());
        for part in names.chunks(SNAPSHOT_MODELS_MAX) {
            let mut state = self.lock();
            for name in part {
                models.extend(state.queues.get(name).map(|queue| queue.snapshot()));
            }
            drop(state);
            between();
        }
        SchedulerSnapshot {
            workers: self.wakers.len(),
            busy,
            queued: self.queued(),
            queue_max: self.queue_max,
            models,
        }
    }
}

impl DispatchState {
    /// Returns the position of the model's queue.
    fn position(&mut self, model: &Arc<str>) -> usize {
        if self.queues.len() >= MODELS_MAX && self.queues.get(model).is_none() {
            self.queues.remove_unused();
        }
        self.queues.position(model)
    }

    /// Returns the sums at the arrival of a request.
    fn sums(&self) -> QueueWait {
        QueueWait {
            idle_worker: !self.idle.is_empty(),
            busy: self.busy,
            off_core: self.off_core,
            ..QueueWait::default()
        }
    }

    /// Returns the worker to wake for new work.
    fn wake_one(&mut self) -> Option<usize> {
        self.idle.pop()
    }

    /// Returns the next run of all models. The model that has used the least time goes first.
    fn pick(&mut self, now: Instant, workers: usize) -> Next {
        let mut earliest: Option<Instant> = None;
        for position in self.queues.by_use() {
            let queue = self.queues.at(position);
            if queue.runs_enough(workers) {
                continue;
            }
            if self.count_threads && queue.cores(workers) > self.cores_free {
                // No model overtakes it, or it would never find enough free cores.
                break;
            }
            let used = queue.used;
            match queue.next(now, workers, self.closed) {
                Next::Run(mut batch) => {
                    self.virtual_time = self.virtual_time.max(used);
                    // A version other than that of the first request may need more cores.
                    batch.taken =
                        if self.count_threads { batch.cores.min(self.cores_free) } else { 1 };
                    self.cores_free -= batch.taken;
                    self.running += 1;
                    self.runs += 1;
                    batch.number = self.runs;
                    for wait in batch.entries.iter_mut().map(|entry| &mut entry.wait) {
                        wait.busy = self.busy.saturating_sub(wait.busy);
                        wait.busy_own = queue.busy.saturating_sub(wait.busy_own);
                        wait.off_core = self.off_core.saturating_sub(wait.off_core);
                    }
                    return Next::Run(batch);
                }
                Next::Stale => return Next::Stale,
                Next::Wait(until) => {
                    earliest = Some(earliest.map_or(until, |earliest| earliest.min(until)));
                }
                Next::Nothing => {}
            }
        }
        earliest.map_or(Next::Nothing, Next::Wait)
    }
}

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use std::sync::mpsc;

    use engine::{ScheduleMode, ScheduleOptions, Servable};

    use super::*;
    use crate::model_queue::ModelQueue;
    use crate::trial::{lingering, model, request};

    /// Processor time of a run of a [`TestWorker`].
    const RUN_TIME: Duration = Duration::from_millis(1);

    /// The only worker of a dispatcher.
    struct TestWorker {
        dispatch: Dispatch,
        /// Last run.
        ended: Option<EndedRun>,
    }

    impl TestWorker {
        fn new() -> TestWorker {
            let dispatch = Dispatch::new(&SchedulerConfig {
                workers: 1,
                queue_max: 512,
                pin: false,
                count_threads: true,
            });
            TestWorker { dispatch, ended: None }
        }

        /// Adds requests that do not share a run.
        fn push(&self, servable: &Arc<Servable>, count: usize) {
            for _ in 0..count {
                let entries = request(servable, 1, Instant::now());
                let pushed = self.dispatch.push(entries, WhenFull::GiveUp, &mut Vec::new());
                assert!(pushed.is_ok());
            }
        }

        /// Does the next runs. Returns the number of those of the model `name`.
        fn run(&mut self, runs: usize, name: &str) -> usize {
            let mut own = 0;
            for _ in 0..runs {
                let work = self.dispatch.next(0, self.ended.take());
                let Some(DispatchedWork::Run(batch)) = work else { panic!("no request waits") };
                let model = batch.model();
                own += usize::from(&*model == name);
                let figures = RunFigures {
                    weight: batch.entries[0].servable.schedule().weight,
                    cores: batch.cores,
                    charge: batch.charge,
                    time: RUN_TIME,
                    ..RunFigures::default()
                };
                self.ended = Some(EndedRun { model, figures, cores_taken: batch.taken });
            }
            own
        }
    }

    /// Builds a model whose requests do not share a run.
    fn weighted(name: &str, weight: u32) -> Arc<Servable> {
        let mode = ScheduleMode::Sync;
        model(name, ScheduleOptions { mode, weight, ..ScheduleOptions::default() })
    }

    #[test]
    fn models_get_runs_by_weight() {
        let (light, heavy) = (weighted("light", 1), weighted("heavy", 4));
        let mut worker = TestWorker::new();
        worker.push(&light, 50);
        worker.push(&heavy, 50);
        assert_eq!(worker.run(50, "heavy"), 40);
    }

    #[test]
    fn an_idle_model_saves_up_no_time() {
        let (busy, idle) = (weighted("busy", 1), weighted("idle", 1));
        let mut worker = TestWorker::new();
        worker.push(&busy, 30);
        assert_eq!(worker.run(20, "busy"), 20);
        worker.push(&idle, 10);
        let runs = worker.run(8, "idle");
        assert!((4..=5).contains(&runs), "{runs} runs of 8");
    }

    fn wait_until(dispatch: &Dispatch, is: impl Fn(&DispatchState) -> bool) {
        while !is(&dispatch.lock()) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_busy_period_lasts_while_requests_wait() {
        let mut queue = ModelQueue::new(&"m".into());
        let start = Instant::now();
        let later = |ms| start + Duration::from_millis(ms);
        assert_eq!(queue.busy_since(false, start), start);
        assert_eq!(queue.busy_since(false, later(1)), start, "no worker is idle");
        queue.queued = 1;
        assert_eq!(queue.busy_since(true, later(2)), start, "a request waits");
        queue.queued = 0;
        assert_eq!(queue.busy_since(true, later(3)), later(3));
    }

    #[test]
    fn a_snapshot_of_many_models_releases_the_lock_in_between() {
        const MODELS: usize = 3 * SNAPSHOT_MODELS_MAX + 1;
        let dispatch = Dispatch::new(&SchedulerConfig {
            workers: 1,
            queue_max: 512,
            pin: false,
            count_threads: true,
        });
        let servables: Vec<_> =
            (0..MODELS).map(|at| model(&format!("m{at}"), ScheduleOptions::default())).collect();
        for servable in &servables {
            let entries = request(servable, 1, Instant::now());
            assert!(dispatch.push(entries, WhenFull::GiveUp, &mut Vec::new()).is_ok());
        }
        let mut parts = 0;
        let snapshot = dispatch.snapshot_in_parts(|| {
            assert!(dispatch.state.try_lock().is_ok());
            parts += 1;
        });
        assert_eq!((snapshot.models.len(), snapshot.queued, parts), (MODELS, MODELS, 4));
        let run = dispatch.next(0, None);
        assert!(matches!(run, Some(DispatchedWork::Run(_))));
        assert_eq!(dispatch.snapshot().busy, 1);
        assert_eq!(
            dispatch.lock().queues.by_use().len(),
            MODELS - 1,
            "idle models are not visited"
        );
    }

    /// One worker waits for a batch that is due late, the other sleeps. The other one must not
    /// continue to sleep if it is woken for a batch that is due soon.
    #[test]
    fn an_early_batch_does_not_wait_for_a_late_one() {
        let long = ScheduleOptions { always_merge: true, ..lingering(Duration::from_secs(10)) };
        let short = ScheduleOptions { max_queue_delay: Duration::from_millis(1), ..long.clone() };
        let late = model("late", long);
        let soon = model("soon", short);
        let dispatch = Arc::new(Dispatch::new(&SchedulerConfig {
            workers: 2,
            queue_max: 512,
            pin: false,
            count_threads: true,
        }));
        let (sender, receiver) = mpsc::channel();
        let worker = |index: usize| {
            let dispatch = dispatch.clone();
            let sender = sender.clone();
            std::thread::spawn(move || {
                while let Some(DispatchedWork::Run(batch)) = dispatch.next(index, None) {
                    sender.send(batch.model()).unwrap();
                }
            })
        };
        let push = |servable| {
            let entries = request(servable, 1, Instant::now());
            assert!(dispatch.push(entries, WhenFull::GiveUp, &mut Vec::new()).is_ok());
        };
        let first = worker(0);
        push(&late);
        wait_until(&dispatch, |state| state.timer.is_some());
        let second = worker(1);
        wait_until(&dispatch, |state| state.idle == [0, 1]);
        push(&soon);
        let answer = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(&*answer, "soon");
        dispatch.close();
        assert_eq!(&*receiver.recv_timeout(Duration::from_secs(60)).unwrap(), "late");
        [first, second].into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(dispatch.queued(), 0);
    }
}
