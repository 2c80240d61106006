//! The waiting requests of one model.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use engine::Session;

use crate::cost::ModelCost;
use crate::entry::{Entry, ExpiredEntry};
use crate::snapshot::{BATCH_SIZE_BOUNDS, CLASSES_SHOWN_MAX, ClassSnapshot, ModelSnapshot};

/// Maximum number of version instances that are remembered as not mergeable.
const MISFITS_MAX: usize = 16;

/// Time for which the queue of a model stays after the release of the versions that used it. A
/// version that replaced them uses the queue from its first request on, and the counts continue.
/// The time is two scrapes a minute apart, and a margin.
pub(crate) const UNUSED_TIME: Duration = Duration::from_secs(150);

/// Time between two scans for requests of disconnected clients. They never run. Scanning the whole
/// queue for every free worker would make runs more expensive as the queue grows.
const EXPIRY_SCAN_INTERVAL: Duration = Duration::from_millis(5);

/// Figures of a run that has ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunFigures {
    pub(crate) instance: u64,
    pub(crate) weight: u32,
    pub(crate) cores: usize,
    /// Microseconds charged in advance.
    pub(crate) charge: f64,
    /// Requests and parts of requests.
    pub(crate) requests: usize,
    /// Requests that count for this run. A request in parts counts for the run of its first part.
    pub(crate) counted: usize,
    pub(crate) items: usize,
    /// Items, including the copies that fill the run up to an allowed batch size. `None` if runs of
    /// the model are not filled up.
    pub(crate) rows: Option<usize>,
    /// Elements of padded inputs without their padding.
    pub(crate) real_elements: u64,
    /// Elements of the padding.
    pub(crate) padding_elements: u64,
    /// Processor time of the run, or wall time if other threads take part.
    pub(crate) time: Duration,
    /// Time of further runs for requests whose parts do not fit together.
    pub(crate) again: Duration,
    /// Wall time of the run.
    pub(crate) wall: Duration,
    /// Part of `wall` in which the worker was not on a core.
    pub(crate) off_core: Duration,
    /// Elements of the run for the estimate of costs, or `None` after a failure.
    pub(crate) cost_sample: Option<CostSample>,
    /// True if the requests were run again one by one.
    pub(crate) rerun: bool,
    /// True if the outputs could not be split.
    pub(crate) misfit: bool,
}

/// Size of a run, from which the cost of later runs is estimated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostSample {
    /// Hash of the batch key, or `None` if different keys were padded together.
    pub(crate) shape: Option<u64>,
    /// Elements of the run, including padding.
    pub(crate) elements: f64,
}

/// The waiting requests of one model.
pub(crate) struct ModelQueue {
    pub(crate) levels: Vec<VecDeque<Entry>>,
    pub(crate) queued: usize,
    /// True if the list of queues with requests has this one.
    pub(crate) is_listed: bool,
    due: Option<Instant>,
    scanned: Option<Instant>,
    /// Time of the last scan because the queue was full.
    scanned_full: Option<Instant>,
    /// Sessions of used versions that may not be released yet.
    sessions: Vec<Weak<dyn Session>>,
    /// Time of the first call of [`ModelQueue::has_expired`] that found no used version.
    unused_since: Option<Instant>,
    /// Instances whose requests are not merged, because their outputs could not be split.
    pub(crate) misfit: Vec<u64>,
    pub(crate) cost: ModelCost,
    /// Time used by all cores, divided by the weight. The model with the least goes first.
    pub(crate) used: f64,
    /// Time of the last run, charged in advance.
    pub(crate) charge: f64,
    pub(crate) running: usize,
    /// Share of useful lingers at the current `delay`.
    pub(crate) linger_useful: f64,
    delay: Duration,
    pub(crate) batches_taken: u64,
    /// Wall time of all finished runs.
    pub(crate) busy: Duration,
    /// Start of the current busy period. See [`QueueWait::busy_since`](base::QueueWait).
    busy_since: Option<Instant>,
    counts: ModelSnapshot,
}

impl ModelQueue {
    pub(crate) fn new(model: &Arc<str>) -> ModelQueue {
        ModelQueue {
            levels: Vec::new(),
            queued: 0,
            is_listed: false,
            due: None,
            scanned: None,
            scanned_full: None,
            sessions: Vec::new(),
            unused_since: None,
            misfit: Vec::new(),
            cost: ModelCost::default(),
            used: 0.0,
            charge: 0.0,
            running: 0,
            linger_useful: 1.0,
            delay: Duration::ZERO,
            batches_taken: 0,
            busy: Duration::ZERO,
            busy_since: None,
            counts: ModelSnapshot { model: model.clone(), ..ModelSnapshot::default() },
        }
    }

    /// Returns the name of the model.
    pub(crate) fn model(&self) -> &Arc<str> {
        &self.counts.model
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Returns the start of the busy period of a request that arrives at `now`. It begins one if
    /// nothing waits and a worker is idle.
    pub(crate) fn busy_since(&mut self, idle_worker: bool, now: Instant) -> Instant {
        if self.queued == 0 && idle_worker {
            self.busy_since = Some(now);
        }
        *self.busy_since.get_or_insert(now)
    }

    /// Returns true if nothing waits or runs and every used version is released. Upgrades no weak
    /// reference, because only an unload thread may drop a version.
    pub(crate) fn is_unused(&self) -> bool {
        self.queued == 0
            && self.running == 0
            && self.sessions.iter().all(|session| session.strong_count() == 0)
    }

    /// Returns true if the queue has been unused for [`UNUSED_TIME`]. The time begins with the
    /// first call that finds the queue unused.
    pub(crate) fn has_expired(&mut self, now: Instant) -> bool {
        if !self.is_unused() {
            self.unused_since = None;
            return false;
        }
        let since = *self.unused_since.get_or_insert(now);
        now.saturating_duration_since(since) >= UNUSED_TIME
    }

    /// Remembers the session of a used version.
    fn watch(&mut self, session: Weak<dyn Session>) {
        self.unused_since = None;
        if !self.sessions.iter().any(|known| std::ptr::addr_eq(known.as_ptr(), session.as_ptr())) {
            self.sessions.retain(|known| known.strong_count() > 0);
            self.sessions.push(session);
        }
    }

    /// Takes the entries of one request. If the queue of the model or level has no room for all,
    /// returns the limit and the waiting entries. The entries are left to the caller, which drops
    /// them without the lock. A queue that is at most half full has room for any request. Otherwise
    /// a large one would have to find the queue nearly empty. Requests of lower levels do not
    /// count, so the model's queue has at most its limit of requests for each level.
    pub(crate) fn push(
        &mut self,
        entries: &mut Vec<Entry>,
        server_max: usize,
        now: Instant,
        expired: &mut Vec<ExpiredEntry>,
    ) -> Result<(), (usize, usize)> {
        let Some(first) = entries.first() else { return Ok(()) };
        let options = first.servable.schedule();
        let level = first.level;
        let levels = options.levels();
        let model_max = options.queue_max.unwrap_or(server_max);
        let level_max =
            options.priorities.get(level).and_then(|l| l.queue_max).unwrap_or(model_max);
        if self.levels.len() < levels {
            self.levels.resize_with(levels, VecDeque::new);
        }
        let full = |queue: &ModelQueue| {
            // Requests of lower levels run later, so they take no room from this one.
            let before: usize = queue.levels[..=level].iter().map(VecDeque::len).sum();
            let bounds = [(model_max, before), (level_max, queue.levels[level].len())];
            let room = |max: usize| entries.len().min(max.div_ceil(2));
            bounds.into_iter().find(|&(max, waiting)| waiting + room(max) > max)
        };
        if full(self).is_some() && self.may_have_expired(now) {
            self.scanned_full = Some(now);
            self.expire(now, expired);
        }
        if let Some(full) = full(self) {
            return Err(full);
        }
        self.counts.mode = options.mode;
        if self.delay != options.max_queue_delay {
            self.delay = options.max_queue_delay;
            self.linger_useful = 1.0;
        }
        self.watch(first.servable.session_watch());
        self.queued += entries.len();
        self.due = self.due.into_iter().chain([first.deadline]).min();
        self.levels[level].extend(entries.drain(..));
        Ok(())
    }

    /// Counts a request that its caller does not submit again.
    pub(crate) fn count_refused(&mut self) {
        self.counts.refused += 1;
    }

    /// Returns true if a scan for expired requests is due.
    pub(crate) fn stale(&self, now: Instant) -> bool {
        self.queued > 0
            && (self.due.is_some_and(|due| now >= due) || is_scan_due(self.scanned, now))
    }

    /// Returns true if a scan may find expired requests in a full queue. Clients that are refused
    /// may be many. A scan of a long queue for each of them would hold up all other models.
    fn may_have_expired(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| now >= due) || is_scan_due(self.scanned_full, now)
    }

    /// Moves requests to `expired` if their deadline has passed, their client has disconnected, or
    /// another part of them has failed.
    pub(crate) fn expire(&mut self, now: Instant, expired: &mut Vec<ExpiredEntry>) {
        self.scanned = Some(now);
        for level in &mut self.levels {
            if !level.iter().any(|entry| entry.expiry(now).is_some()) {
                continue;
            }
            for entry in std::mem::take(level) {
                let Some(error) = entry.expiry(now) else {
                    level.push_back(entry);
                    continue;
                };
                let count = match error.kind() {
                    base::ErrorKind::Cancelled => &mut self.counts.cancelled,
                    _ => &mut self.counts.expired,
                };
                *count += u64::from(entry.counts());
                self.queued -= 1;
                expired.push((entry, error));
            }
        }
        self.due = self.levels.iter().flatten().map(|entry| entry.deadline).min();
    }

    /// Adds the figures of a run that has ended.
    pub(crate) fn finish(&mut self, ran: &RunFigures) {
        let us = ran.time.as_secs_f64() * 1e6;
        self.running -= 1;
        self.busy += ran.wall;
        let cores = ran.cores.max(1) as f64;
        let used = us * cores;
        let again = ran.again.as_secs_f64() * 1e6 * cores;
        self.used += (used + again - ran.charge) / f64::from(ran.weight.max(1));
        self.charge = used;
        if let Some(sample) = &ran.cost_sample {
            match &sample.shape {
                Some(key) => self.cost.add(*key, ran.items, sample.elements, us),
                None => self.cost.add_padded(sample.elements, us),
            }
        }
        if ran.misfit && !self.misfit.contains(&ran.instance) {
            if self.misfit.len() >= MISFITS_MAX {
                self.misfit.remove(0);
            }
            self.misfit.push(ran.instance);
            self.counts.unjoined_versions += 1;
        }
        let counts = &mut self.counts;
        counts.requests += ran.counted as u64;
        counts.batches += 1;
        counts.items += ran.items as u64;
        let bucket = |size: usize| BATCH_SIZE_BOUNDS.partition_point(|&bound| bound < size);
        let rows = ran.rows.unwrap_or(ran.items);
        let added = rows.saturating_sub(ran.items);
        counts.added_items += added as u64;
        counts.batch_sizes[bucket(ran.items)] += 1;
        counts.run_sizes[bucket(rows)] += 1;
        if ran.rows.is_some() {
            // The map has at most one entry for each allowed size that the model has had.
            let filled = counts.filled.entry(rows).or_default();
            filled.added_items += added as u64;
            filled.runs[bucket(added)] += 1;
        }
        counts.real_elements += ran.real_elements;
        counts.padding_elements += ran.padding_elements;
        counts.reruns += u64::from(ran.rerun);
    }

    pub(crate) fn snapshot(&self) -> ModelSnapshot {
        let class = |(shape, cost): (&str, &crate::cost::ShapeCost)| ClassSnapshot {
            shape: shape.to_owned(),
            runs: cost.runs(),
            item_us: cost.known(),
            best: cost.best_size(),
        };
        ModelSnapshot {
            queued: self.queued,
            queued_by_priority: self.levels.iter().map(VecDeque::len).collect(),
            running: self.running,
            classes: self.cost.top(CLASSES_SHOWN_MAX).into_iter().map(class).collect(),
            ..self.counts.clone()
        }
    }
}

/// Returns true if the last scan was long enough before `now`.
fn is_scan_due(scanned: Option<Instant>, now: Instant) -> bool {
    let passed = |at: Instant| now.saturating_duration_since(at) >= EXPIRY_SCAN_INTERVAL;
    scanned.is_none_or(passed)
}

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::trial::{lingering, model, request};

    #[test]
    fn a_run_is_charged_for_its_cores_by_weight() {
        let mut queue = ModelQueue::new(&"m".into());
        queue.running = 1;
        queue.finish(&RunFigures {
            weight: 4,
            cores: 2,
            charge: 500.0,
            time: Duration::from_millis(1),
            again: Duration::from_millis(2),
            ..RunFigures::default()
        });
        // 2 ms for the run and 4 ms for the further ones, of which 0.5 ms were charged before.
        assert_eq!((queue.used, queue.charge), (5500.0 / 4.0, 2000.0));
    }

    #[test]
    fn refused_requests_do_not_scan_the_queue_each() {
        const LIMIT: usize = 2;
        let servable = model("m", lingering(Duration::ZERO));
        let start = Instant::now();
        let mut queue = ModelQueue::new(&servable.id.model);
        let mut expired = Vec::new();
        let mut push = |now: Instant| {
            let mut entries = request(&servable, 1, now);
            let cancelled = entries[0].cancelled.clone();
            let is_taken = queue.push(&mut entries, LIMIT, now, &mut expired).is_ok();
            (is_taken.then_some(cancelled), expired.len())
        };
        let first = push(start).0.unwrap();
        push(start).0.unwrap();
        assert!(push(start).0.is_none(), "the first scan finds nothing");
        first.store(true, Ordering::Relaxed);
        for _ in 0..3 {
            let (taken, expired) = push(start);
            assert!(taken.is_none() && expired == 0, "the queue was scanned just before");
        }
        let (taken, expired) = push(start + EXPIRY_SCAN_INTERVAL);
        assert!(taken.is_some() && expired == 1);
    }
}
