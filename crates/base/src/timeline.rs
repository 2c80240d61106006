//! The timeline of one request: its moments, its version, and its run.
//!
//! The endpoint starts a [`RequestClock`] with the first byte and moves it into the body of the
//! response. Every stage marks its moment through a shared reference. Dropping the clock ends the
//! request and passes its [`RequestTimeline`] to the sink. Marking takes no lock and no memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::VersionId;

/// A moment of a request after its first byte. The start and the end of its run are in its
/// [`RunRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The whole body has arrived.
    BodyComplete,
    /// The inputs are decoded.
    Decoded,
    /// The request was submitted to the scheduler.
    Queued,
    /// The endpoint has the outputs.
    Answered,
    /// The response is encoded.
    Encoded,
    /// The connection has taken the last byte of the response, or the request failed.
    Sent,
}

/// Number of moments.
const MOMENTS: usize = 6;

/// The run that answered a request. If the request was split, the run that ended last.
#[derive(Clone, Debug)]
pub struct RunRecord {
    /// Number of the run since the start of the server, from 1. Requests of one batch share it.
    pub batch: u64,
    /// Number of requests of the run.
    pub requests: usize,
    /// Number of items of the run.
    pub items: usize,
    /// Start of the run.
    pub started: Instant,
    /// End of the run.
    pub ended: Instant,
    /// Processor time of the run; `None` if other threads or processes take part.
    pub cpu: Option<Duration>,
    /// Page faults of the run without a read from disk.
    pub minor_faults: u64,
    /// Page faults of the run with a read from disk.
    pub major_faults: u64,
    /// The wait before the run.
    pub wait: QueueWait,
}

/// Runs that a request waited for in its queue.
#[derive(Clone, Debug, Default)]
pub struct QueueWait {
    /// Number of requests of the same model that waited already.
    pub before: usize,
    /// True if a worker was idle when the request was queued.
    pub idle_worker: bool,
    /// Start of the model's busy period: each request that arrived since then found others waiting,
    /// or no idle worker. A delay since then may have lengthened this wait.
    pub busy_since: Option<Instant>,
    /// Time of the runs that ended meanwhile, summed over the workers.
    pub busy: Duration,
    /// Part of `busy` that was spent on the same model.
    pub busy_own: Duration,
    /// Part of `busy` in which the worker's thread was not on a core.
    pub off_core: Duration,
    /// The last run of the same worker, if it ended meanwhile.
    pub ahead: Option<RunAhead>,
}

/// A run that a request waited behind.
#[derive(Clone, Debug)]
pub struct RunAhead {
    /// Number of the run.
    pub batch: u64,
    /// Model of the run.
    pub model: Arc<str>,
    /// Number of items of the run.
    pub items: usize,
    /// Wall time of the run.
    pub time: Duration,
}

/// The timeline of a request that has ended.
#[derive(Clone, Debug)]
pub struct RequestTimeline {
    /// Protocol, a label of the metrics.
    pub protocol: &'static str,
    /// Requested version; `None` if the request failed before the version was found.
    pub version: Option<VersionId>,
    /// "ok", or the kind of the error; empty if the client disconnected before the request was
    /// decoded.
    pub status: &'static str,
    /// Arrival of the request's head.
    pub first_byte: Instant,
    /// The run that answered; `None` if nothing ran.
    pub run: Option<RunRecord>,
    /// True if a version of any model was being loaded or unloaded meanwhile.
    pub loading: bool,
    /// Nanoseconds since the first byte; 0 means that the moment was not reached.
    moments: [u64; MOMENTS],
}

impl RequestTimeline {
    /// Returns the time from the first byte to `moment`, or `None` if it was not reached.
    pub fn offset(&self, moment: Moment) -> Option<Duration> {
        let nanos = self.moments[moment as usize];
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// Returns the time of `moment`, or `None` if it was not reached.
    pub fn at(&self, moment: Moment) -> Option<Instant> {
        self.offset(moment).map(|offset| self.first_byte + offset)
    }

    /// Returns the time from the first byte to the end.
    pub fn total(&self) -> Duration {
        self.offset(Moment::Sent).unwrap_or_default()
    }
}

/// Receiver of timelines. It runs on the path of a request and must not wait.
pub trait TimelineSink: Send + Sync {
    /// Takes the timeline of a request that has ended, failed or not.
    fn ended(&self, timeline: &RequestTimeline);
}

/// The clock of one request.
pub struct RequestClock {
    protocol: &'static str,
    first_byte: Instant,
    moments: [AtomicU64; MOMENTS],
    version: OnceLock<VersionId>,
    status: OnceLock<&'static str>,
    run: OnceLock<RunRecord>,
    loading: AtomicBool,
    sink: Option<Arc<dyn TimelineSink>>,
}

impl RequestClock {
    /// Starts the clock of a request of `protocol`.
    pub fn start(protocol: &'static str, sink: Option<Arc<dyn TimelineSink>>) -> RequestClock {
        RequestClock {
            protocol,
            first_byte: Instant::now(),
            moments: Default::default(),
            version: OnceLock::new(),
            status: OnceLock::new(),
            run: OnceLock::new(),
            loading: AtomicBool::new(false),
            sink,
        }
    }

    /// Marks `moment` as now. The last mark of a moment counts.
    pub fn mark(&self, moment: Moment) {
        self.mark_at(moment, Instant::now());
    }

    /// Marks `moment` as `now`.
    pub fn mark_at(&self, moment: Moment, now: Instant) {
        let nanos = now.saturating_duration_since(self.first_byte).as_nanos() as u64;
        self.moments[moment as usize].store(nanos.max(1), Ordering::Relaxed);
    }

    /// Records the version and the outcome. The first record of each counts.
    pub fn record_outcome(&self, version: Option<&VersionId>, status: &'static str) {
        if let Some(version) = version
            && self.version.get().is_none()
        {
            // Fails only if another thread was first.
            let _ = self.version.set(version.clone());
        }
        let _ = self.status.set(status);
    }

    /// Records the run. The first one counts, if the request has several.
    pub fn record_run(&self, run: RunRecord) {
        let _ = self.run.set(run);
    }

    /// Records that a version was being loaded or unloaded.
    pub fn record_loading(&self) {
        self.loading.store(true, Ordering::Relaxed);
    }

    /// Ends the request at `now`.
    pub fn end_at(mut self, now: Instant) {
        self.finish(now);
    }

    fn finish(&mut self, now: Instant) {
        let Some(sink) = self.sink.take() else { return };
        self.mark_at(Moment::Sent, now);
        sink.ended(&self.take());
    }

    /// Takes the timeline out of the clock.
    fn take(&mut self) -> RequestTimeline {
        RequestTimeline {
            protocol: self.protocol,
            version: self.version.take(),
            status: self.status.take().unwrap_or_default(),
            first_byte: self.first_byte,
            run: self.run.take(),
            loading: *self.loading.get_mut(),
            moments: self.moments.each_mut().map(|moment| *moment.get_mut()),
        }
    }
}

impl Drop for RequestClock {
    fn drop(&mut self) {
        self.finish(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<RequestTimeline>>);

    impl TimelineSink for Kept {
        fn ended(&self, timeline: &RequestTimeline) {
            self.0.lock().unwrap().push(timeline.clone());
        }
    }

    fn run(batch: u64) -> RunRecord {
        let now = Instant::now();
        RunRecord {
            batch,
            requests: 1,
            items: 1,
            started: now,
            ended: now,
            cpu: None,
            minor_faults: 0,
            major_faults: 0,
            wait: QueueWait::default(),
        }
    }

    #[test]
    fn the_sink_gets_one_timeline_at_the_end() {
        let kept = Arc::new(Kept::default());
        let clock = RequestClock::start("oip-grpc", Some(kept.clone()));
        let start = clock.first_byte;
        clock.mark_at(Moment::BodyComplete, start);
        clock.mark_at(Moment::Decoded, start + Duration::from_micros(3));
        clock.mark_at(Moment::Decoded, start + Duration::from_micros(7));
        let id = VersionId { model: "m".into(), version: 4 };
        clock.record_outcome(Some(&id), "ok");
        clock.record_outcome(None, "internal");
        clock.record_run(run(8));
        clock.record_run(run(9));
        clock.record_loading();
        assert!(kept.0.lock().unwrap().is_empty());
        drop(clock);
        let all = kept.0.lock().unwrap();
        let [timeline] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(timeline.version, Some(id));
        assert_eq!((timeline.protocol, timeline.status), ("oip-grpc", "ok"));
        assert_eq!(timeline.run.as_ref().map(|run| run.batch), Some(8));
        assert!(timeline.loading);
        assert_eq!(timeline.offset(Moment::BodyComplete), Some(Duration::from_nanos(1)));
        assert_eq!(timeline.at(Moment::Decoded), Some(start + Duration::from_micros(7)));
        assert_eq!(timeline.at(Moment::Queued), None);
        assert!(timeline.total() > Duration::ZERO);
    }
}
