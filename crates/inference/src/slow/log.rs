//! The log of slow requests, and its thread.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use base::{Moment, RequestTimeline, Result, TimelineSink, VersionId};
use crossbeam_channel::{Receiver, Sender, bounded};
use lifecycle::LoadActivity;
use metrics::{CauseLabels, Metrics};

use super::causes::explain;
use super::evidence::SampleRing;
use super::records::{SlowRecords, SlowRequest};
use super::sampler::MachineSampler;
use super::typical::ModelTypical;
use super::window::SLOT_TIME;

/// Time between two samples of the machine.
const SAMPLE_TIME: Duration = Duration::from_millis(100);
/// Number of samples between two computations of the limits.
const LIMIT_EVERY: u32 = 10;
/// Number of samples between two rotations of the windows.
const ROTATE_EVERY: u32 = (SLOT_TIME.as_millis() / SAMPLE_TIME.as_millis()) as u32;
/// Maximum slow requests that wait for the thread. Further ones count as "unknown".
const WAITING_MAX: usize = 256;
/// Maximum models whose typical times are kept. Idle ones are dropped before another is added.
const MODELS_MAX: usize = 4096;

type Models = HashMap<Arc<str>, Arc<ModelTypical>>;

/// Log that finds slow requests, and keeps the last ones with their causes.
pub struct SlowLog {
    /// Typical times by model. Readers take no lock. A model's first request replaces the map.
    models: ArcSwap<Models>,
    slow: Sender<RequestTimeline>,
    /// Slow requests that the thread had no room for.
    lost: AtomicU64,
    /// Locked by the thread, and by readers of the log.
    records: RwLock<SlowRecords>,
    metrics: Arc<Metrics>,
}

impl SlowLog {
    /// Starts the thread, which ends once the log is dropped. `workers` returns the ids of the
    /// worker processes of isolated models.
    ///
    /// # Errors
    /// `ResourceExhausted` if the thread cannot be started.
    pub fn start(
        metrics: Arc<Metrics>,
        activity: Arc<LoadActivity>,
        workers: impl Fn() -> Vec<u32> + Send + 'static,
    ) -> Result<Arc<SlowLog>> {
        let (slow, waiting) = bounded(WAITING_MAX);
        let log = Arc::new(SlowLog {
            models: ArcSwap::default(),
            slow,
            lost: AtomicU64::new(0),
            records: RwLock::default(),
            metrics,
        });
        let thread = LogThread {
            log: Arc::downgrade(&log),
            waiting,
            later: VecDeque::new(),
            sampler: MachineSampler::new(activity, Box::new(workers)),
            samples: SampleRing::default(),
        };
        os::thread::spawn("slow-log", move || thread.run())?;
        Ok(log)
    }

    /// Returns the kept slow requests, the last first. These are the last ones of the server, and
    /// the last few of each model.
    pub fn list(&self) -> Vec<Arc<SlowRequest>> {
        self.records.read().unwrap_or_else(PoisonError::into_inner).list()
    }

    /// Records the times of a request. Queues a slow one for the thread that explains it.
    fn record(&self, timeline: &RequestTimeline, id: &VersionId) {
        let models = self.models.load();
        let slow = match models.get(&id.model) {
            Some(typical) => typical.record(timeline),
            None => {
                drop(models);
                self.add_model(&id.model).record(timeline)
            }
        };
        if slow && self.slow.try_send(timeline.clone()).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.count(&id.model, "unknown");
        }
    }

    fn add_model(&self, model: &Arc<str>) -> Arc<ModelTypical> {
        let fresh = Arc::new(ModelTypical::default());
        let with_model = |models: &Arc<Models>| {
            let mut models = Models::clone(models);
            if models.len() >= MODELS_MAX {
                models.retain(|_, typical| typical.window.quantiles().count > 0);
            }
            models.entry(model.clone()).or_insert_with(|| fresh.clone());
            models
        };
        self.models.rcu(with_model);
        self.models.load().get(model).cloned().unwrap_or(fresh)
    }

    /// Ends the counts of a model that is removed. Slow requests that wait for the thread, and
    /// answers that are still being sent, are not counted any more. The caller removes the model's
    /// series afterwards.
    pub fn forget_model(&self, model: &str) {
        self.models.rcu(|models| {
            let mut models = Models::clone(models);
            models.remove(model);
            models
        });
    }

    fn count(&self, model: &Arc<str>, cause: &'static str) {
        let labels = CauseLabels { model: model.clone(), cause };
        self.metrics.slow_requests.get_or_create(&labels).inc();
        // The model was removed meanwhile, perhaps with its series before this count.
        if !self.models.load().contains_key(model) {
            self.metrics.slow_requests.remove(&labels);
        }
    }
}

impl TimelineSink for SlowLog {
    fn ended(&self, timeline: &RequestTimeline) {
        // Refused and cancelled requests end early. They are counted elsewhere.
        let counts = matches!(timeline.status, "ok" | "deadline_exceeded");
        if let Some(id) = timeline.version.as_ref().filter(|_| counts) {
            self.record(timeline, id);
        }
    }
}

struct LogThread {
    log: Weak<SlowLog>,
    waiting: Receiver<RequestTimeline>,
    /// Requests that ended too late for the last sample.
    later: VecDeque<RequestTimeline>,
    sampler: MachineSampler,
    samples: SampleRing,
}

impl LogThread {
    /// Samples the machine and explains slow requests, until the log is dropped.
    fn run(mut self) {
        let mut count = 0u32;
        loop {
            std::thread::sleep(SAMPLE_TIME);
            let Some(log) = self.log.upgrade() else { return };
            self.samples.push(self.sampler.sample());
            count = count.wrapping_add(1);
            if count.is_multiple_of(ROTATE_EVERY) {
                log.models.load().values().for_each(|typical| typical.window.rotate());
            }
            if count.is_multiple_of(LIMIT_EVERY) {
                log.models.load().values().for_each(|typical| typical.update_limit());
            }
            self.explain(&log);
        }
    }

    /// Explains the requests that ended a whole sample ago. The kernel counts a wait for a core
    /// once it is over, and stopped time at the end of the quota's period.
    fn explain(&mut self, log: &SlowLog) {
        let room = WAITING_MAX.saturating_sub(self.later.len());
        self.later.extend(self.waiting.try_iter().take(room));
        let Some(sampled) = Instant::now().checked_sub(SAMPLE_TIME) else { return };
        while self.later.front().is_some_and(|first| end_of(first) <= sampled) {
            if let Some(timeline) = self.later.pop_front() {
                explain_one(log, &self.samples, &timeline);
            }
        }
    }
}

fn end_of(timeline: &RequestTimeline) -> Instant {
    timeline.at(Moment::Sent).unwrap_or(timeline.first_byte)
}

/// Records a slow request with its causes, unless its model has been removed.
fn explain_one(log: &SlowLog, samples: &SampleRing, timeline: &RequestTimeline) {
    let Some(id) = timeline.version.clone() else { return };
    let models = log.models.load();
    let Some(typical) = models.get(&id.model).map(|model| model.typical()) else { return };
    // No request of the model was slow yet: this one belongs to a removed model of the same name.
    if typical.median.is_zero() {
        return;
    }
    let arrived = timeline.first_byte;
    let mut evidence = samples.between(arrived, end_of(timeline) + SAMPLE_TIME);
    if let Some(since) = timeline.run.as_ref().and_then(|run| run.wait.busy_since) {
        evidence.backlog = samples.backlog(since, arrived);
    }
    let causes = explain(timeline, &typical, &evidence);
    if let Some(first) = causes.first() {
        log.count(&id.model, first.cause);
    }
    let age = Instant::now().saturating_duration_since(timeline.first_byte);
    let request = SlowRequest {
        number: 0,
        time: SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH),
        id,
        protocol: timeline.protocol,
        status: timeline.status,
        total: timeline.total(),
        expected: typical.median,
        causes,
    };
    log.records.write().unwrap_or_else(PoisonError::into_inner).add(request);
}

#[cfg(test)]
mod tests {
    use base::{QueueWait, RequestClock, RunRecord};

    use super::*;
    use crate::CAUSES;

    /// Requests of the measurement.
    const REQUESTS: u64 = 200_000;

    fn request(log: &Arc<SlowLog>, id: &VersionId, took: Duration) {
        let clock = RequestClock::start("oip-grpc", Some(log.clone()));
        for moment in [Moment::BodyComplete, Moment::Decoded, Moment::Queued, Moment::Answered] {
            clock.mark(moment);
        }
        let now = Instant::now();
        clock.record_outcome(Some(id), "ok");
        clock.record_run(RunRecord {
            batch: 1,
            requests: 1,
            items: 1,
            started: now,
            ended: now,
            cpu: Some(Duration::ZERO),
            minor_faults: 0,
            major_faults: 0,
            wait: QueueWait::default(),
        });
        clock.mark(Moment::Encoded);
        clock.end_at(now + took);
    }

    fn log() -> Arc<SlowLog> {
        SlowLog::start(Arc::default(), Arc::default(), Vec::new).unwrap()
    }

    #[test]
    fn a_slow_request_is_listed_and_counted() {
        let log = log();
        let id = VersionId { model: "m".into(), version: 3 };
        for _ in 0..1000 {
            request(&log, &id, Duration::from_millis(1));
        }
        let wait = || std::thread::sleep(Duration::from_millis(10));
        // The limit is computed once a second.
        while log.models.load()[&id.model].typical().median.is_zero() {
            wait();
        }
        request(&log, &id, Duration::from_millis(500));
        while log.list().is_empty() {
            wait();
        }
        let slow = log.list().remove(0);
        assert_eq!((&slow.id, slow.protocol, slow.status), (&id, "oip-grpc", "ok"));
        assert!(slow.total >= Duration::from_millis(500) && slow.expected < slow.total);
        // The log takes real samples of the machine. A machine that stops this one for half of the
        // time is blamed first.
        let cause = slow.causes[0].cause;
        assert!(["client_slow_read", "stolen_time", "throttled"].contains(&cause), "{cause}");
        let labels = CauseLabels { model: id.model.clone(), cause };
        assert!(log.metrics.slow_requests.get_or_create(&labels).get() >= 1);
    }

    #[test]
    fn a_removed_model_has_no_more_slow_requests() {
        // Without the thread.
        let (slow, waiting) = bounded(WAITING_MAX);
        let log = Arc::new(SlowLog {
            models: ArcSwap::default(),
            slow,
            lost: AtomicU64::new(0),
            records: RwLock::default(),
            metrics: Arc::default(),
        });
        let id = VersionId { model: "m".into(), version: 3 };
        for _ in 0..100 {
            request(&log, &id, Duration::from_millis(1));
        }
        log.models.load()[&id.model].update_limit();
        request(&log, &id, Duration::from_secs(5));
        let late = waiting.try_iter().last().unwrap();
        let counted = || log.metrics.encode().contains("millpond_slow_requests_total{");
        explain_one(&log, &SampleRing::default(), &late);
        assert!(counted());

        log.forget_model(&id.model);
        log.metrics.forget_model(&id.model, &CAUSES, &[]);
        explain_one(&log, &SampleRing::default(), &late);
        log.count(&id.model, "unknown");
        // The answer of another late request has been sent, which begins new typical times.
        request(&log, &id, Duration::from_secs(5));
        explain_one(&log, &SampleRing::default(), &late);
        assert!(!counted());
        assert_eq!(log.list().len(), 1);
    }

    #[test]
    #[ignore = "prints the cost of a request; run it with --release"]
    fn the_cost_of_a_request() {
        let (log, id) = (log(), VersionId { model: "m".into(), version: 1 });
        let before = os::thread::cpu_time();
        for _ in 0..REQUESTS {
            request(&log, &id, Duration::from_micros(100));
        }
        let used = os::thread::cpu_time() - before;
        println!("{} ns a request", used.as_nanos() as u64 / REQUESTS);
    }
}
