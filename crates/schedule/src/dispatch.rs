//! Which worker runs which model's requests: one lock over all queues, held for microseconds.
//!
//! Fairness between models is start-time fair queueing (Goyal, Vin and Cheng, 1996) with processor
//! time as the good: the model that has used the least, divided by its weight, goes first, and one
//! that comes back from idleness starts at the virtual time of the others, so that it cannot save
//! up. A run of a model with several threads takes as many cores as it has threads, unless these
//! are on top of the workers, and is charged for them all; while too few are free nobody overtakes
//! it.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crate::SchedulerConfig;
use crate::choose::{Batch, Next};
use crate::entry::{Entry, ExpiredEntry};
use crate::model_queue::{ModelQueue, Ran};
use crate::snapshot::SchedulerSnapshot;
use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard};

/// Models with a queue; above it those whose versions are gone are forgotten before a new one is
/// added.
const MODELS_MAX: usize = 4096;

/// Why a request was not taken.
pub(crate) enum Refusal {
    /// So many may wait, and so many do: there is no room for the request.
    Full { limit: usize, waiting: usize },
    /// No more requests are taken.
    Closed,
}

/// What a worker is given.
pub(crate) enum Work {
    /// Requests nobody waits for, to be answered.
    Expire(Vec<ExpiredEntry>),
    /// A run.
    Run(Batch),
}

struct State {
    models: HashMap<Arc<str>, ModelQueue>,
    /// Workers that wait, the one that worked last on top: its core still has the model in its
    /// cache.
    idle: Vec<usize>,
    /// The one of them that wakes by itself when a lingering batch is due, and when that is.
    timer: Option<(usize, Instant)>,
    cores_free: usize,
    /// Whether a run takes as many of them as it has threads.
    count_threads: bool,
    virtual_time: f64,
    closed: bool,
}

/// All queues and the workers that wait for them.
pub(crate) struct Dispatch {
    state: Mutex<State>,
    /// One a worker, so that it can be chosen who wakes.
    wakers: Vec<Condvar>,
    queue_max: usize,
    /// The sum of all queues, readable without the lock.
    queued: AtomicUsize,
}

impl Dispatch {
    pub(crate) fn new(config: &SchedulerConfig) -> Dispatch {
        let SchedulerConfig { workers, queue_max, count_threads, .. } = *config;
        let state = State {
            models: HashMap::new(),
            idle: Vec::with_capacity(workers),
            timer: None,
            cores_free: workers,
            count_threads,
            virtual_time: 0.0,
            closed: false,
        };
        Dispatch {
            state: Mutex::new(state),
            wakers: (0..workers).map(|_| Condvar::new()).collect(),
            queue_max,
            queued: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock calls foreign code, so a poisoned state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn queue_max(&self) -> usize {
        self.queue_max
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Takes the entries of one request and wakes a worker. Entries that nobody waits for any more
    /// may be added to `dead`, to be answered by the caller.
    pub(crate) fn push(
        &self,
        entries: Vec<Entry>,
        dead: &mut Vec<ExpiredEntry>,
    ) -> Result<(), Refusal> {
        let Some(first) = entries.first() else { return Ok(()) };
        let (model, now, count) = (first.servable.id.model.clone(), first.submitted, entries.len());
        let mut state = self.lock();
        if state.closed {
            return Err(Refusal::Closed);
        }
        let virtual_time = state.virtual_time;
        let queue = state.queue(&model);
        if queue.queued() == 0 && queue.running == 0 {
            queue.used = queue.used.max(virtual_time);
        }
        let pushed = queue.push(entries, self.queue_max, now, dead);
        let added = if pushed.is_ok() { count } else { 0 };
        let woken = if pushed.is_ok() { state.wake_one() } else { None };
        self.count(&mut state, added, dead.len());
        drop(state);
        self.notify(woken);
        pushed.map_err(|(limit, waiting)| Refusal::Full { limit, waiting })
    }

    /// Counts what was added and taken. The lock is still held, so nobody counts as taken what is
    /// not counted as added.
    fn count(&self, _held: &mut State, added: usize, taken: usize) {
        self.queued.fetch_add(added, Ordering::Relaxed);
        self.queued.fetch_sub(taken, Ordering::Relaxed);
    }

    fn notify(&self, worker: Option<usize>) {
        if let Some(waker) = worker.and_then(|worker| self.wakers.get(worker)) {
            waker.notify_one();
        }
    }

    /// The next work for `worker`, waiting for some; `None` once closed and empty. `ran` is what
    /// its last run has shown.
    pub(crate) fn next(&self, worker: usize, ran: Option<(Arc<str>, Ran, usize)>) -> Option<Work> {
        let mut state = self.lock();
        if let Some((model, ran, taken)) = ran {
            state.cores_free += taken;
            if let Some(queue) = state.models.get_mut(&model) {
                queue.finish(&ran);
            }
        }
        let mut look = false;
        loop {
            let now = Instant::now();
            let mut dead = Vec::new();
            let stale = state.models.values_mut().filter(|queue| look || queue.stale(now));
            stale.for_each(|queue| queue.expire(now, &mut dead));
            look = false;
            if !dead.is_empty() {
                self.count(&mut state, 0, dead.len());
                return Some(Work::Expire(dead));
            }
            let until = match state.pick(now, self.wakers.len()) {
                Next::Run(batch) => {
                    self.count(&mut state, 0, batch.entries.len());
                    let more = state.models.values().any(|queue| queue.queued() > 0);
                    let woken = if more { state.wake_one() } else { None };
                    drop(state);
                    self.notify(woken);
                    return Some(Work::Run(batch));
                }
                Next::Stale => {
                    look = true;
                    continue;
                }
                Next::Wait(until) => Some(until),
                Next::Nothing => None,
            };
            if state.closed && state.models.values().all(|queue| queue.queued() == 0) {
                drop(state);
                self.wakers.iter().for_each(Condvar::notify_one);
                return None;
            }
            state = self.wait(state, worker, until);
        }
    }

    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        worker: usize,
        until: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        if !state.idle.contains(&worker) {
            state.idle.push(worker);
        }
        let waker = &self.wakers[worker];
        // Who would wake sooner takes over; the one before then wakes for nothing, at worst.
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

    /// Takes no more; workers end when what waits is done.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wakers.iter().for_each(Condvar::notify_one);
    }

    pub(crate) fn snapshot(&self) -> SchedulerSnapshot {
        let mut state = self.lock();
        state.models.retain(|_, queue| !queue.gone());
        let models = state.models.values();
        SchedulerSnapshot {
            workers: self.wakers.len(),
            busy: models.clone().map(|queue| queue.running).sum(),
            queued: self.queued(),
            queue_max: self.queue_max,
            models: models.map(ModelQueue::snapshot).collect(),
        }
    }
}

impl State {
    fn queue(&mut self, model: &Arc<str>) -> &mut ModelQueue {
        if !self.models.contains_key(model) && self.models.len() >= MODELS_MAX {
            self.models.retain(|_, queue| !queue.gone());
        }
        self.models.entry(model.clone()).or_insert_with(|| ModelQueue::new(model))
    }

    /// The worker to wake for new work.
    fn wake_one(&mut self) -> Option<usize> {
        self.idle.pop()
    }

    /// The next run among all models, the one that has used the least first.
    fn pick(&mut self, now: Instant, workers: usize) -> Next {
        let mut waiting: Vec<&mut ModelQueue> =
            self.models.values_mut().filter(|queue| queue.queued() > 0).collect();
        waiting.sort_unstable_by(|a, b| a.used.total_cmp(&b.used));
        let mut earliest: Option<Instant> = None;
        for queue in waiting {
            if queue.runs_enough(workers) {
                continue;
            }
            if self.count_threads && queue.cores(workers) > self.cores_free {
                // Nobody overtakes it: it would never find enough cores free.
                break;
            }
            let used = queue.used;
            match queue.next(now, workers, self.closed) {
                Next::Run(mut batch) => {
                    self.virtual_time = self.virtual_time.max(used);
                    // Another version than the one at the head may want more cores than were asked
                    // about.
                    batch.taken =
                        if self.count_threads { batch.cores.min(self.cores_free) } else { 1 };
                    self.cores_free -= batch.taken;
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
    use std::time::Duration;

    use engine::ScheduleOptions;

    use super::*;
    use crate::trial::{lingering, model, request};

    fn wait_until(dispatch: &Dispatch, is: impl Fn(&State) -> bool) {
        while !is(&dispatch.lock()) {
            std::thread::yield_now();
        }
    }

    /// One worker waits for a batch that is due late, the other sleeps: it must not sleep on when
    /// it is woken for one that is due soon.
    #[test]
    fn a_batch_that_is_due_soon_does_not_wait_for_one_that_is_due_late() {
        let long = ScheduleOptions { always_merge: true, ..lingering(Duration::from_secs(10)) };
        let short = ScheduleOptions { max_queue_delay: Duration::from_millis(1), ..long.clone() };
        let (late, soon) = (model("late", long), model("soon", short));
        let dispatch = Arc::new(Dispatch::new(&SchedulerConfig {
            workers: 2,
            queue_max: 512,
            pin: false,
            count_threads: true,
        }));
        let (sender, receiver) = mpsc::channel();
        let worker = |index: usize| {
            let (dispatch, sender) = (dispatch.clone(), sender.clone());
            std::thread::spawn(move || {
                while let Some(Work::Run(batch)) = dispatch.next(index, None) {
                    sender.send(batch.model()).unwrap();
                }
            })
        };
        let push = |servable| {
            let entries = request(servable, 1, Instant::now());
            assert!(dispatch.push(entries, &mut Vec::new()).is_ok());
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
