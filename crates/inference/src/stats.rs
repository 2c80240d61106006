//! Statistics of models and versions since the start: windows for percentiles, and totals.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use base::VersionId;
use metrics::{Percentiles, SlidingHistogram};

use crate::runs::{AnsweredRequest, RunCounts, VersionRuns};
use crate::traffic::{TrafficReading, VersionTraffic};

/// Length of the window for percentiles, in seconds.
const WINDOW_SECONDS: usize = 10;
/// Maximum removed versions whose last requests wait for the reader of the traffic. If there are
/// more, the oldest is dropped.
const ENDED_MAX: usize = 1024;

/// A count of events and their total time.
#[derive(Default)]
pub struct TimeTotal {
    count: AtomicU64,
    nanos: AtomicU64,
}

impl TimeTotal {
    fn add(&self, time: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Returns the count.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the total time in nanoseconds.
    pub fn nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }
}

/// Totals of one version.
#[derive(Default)]
pub struct VersionStats {
    /// Requests with a result, from their start to their outputs.
    pub success: TimeTotal,
    /// Requests that failed.
    pub fail: TimeTotal,
    /// Time in the queue of requests with a result.
    pub queue: TimeTotal,
    /// Time of the runs that answered these requests.
    pub compute: TimeTotal,
    runs: VersionRuns,
    traffic: VersionTraffic,
    last_ms: AtomicU64,
}

impl VersionStats {
    /// Counts a request that took `total` and ended with `status`. If `status` is "ok", `queue` and
    /// `answered` are its time in the queue and its run.
    pub(crate) fn record(
        &self,
        status: &str,
        queue: Duration,
        answered: &AnsweredRequest,
        total: Duration,
    ) {
        self.traffic.count(status);
        if status == "ok" {
            self.success.add(total);
            self.queue.add(queue);
            self.compute.add(answered.compute);
            self.runs.record(answered);
            self.traffic.record(total);
        } else {
            self.fail.add(total);
        }
        let now = base::unix_time(SystemTime::now());
        self.last_ms.store(now.as_millis() as u64, Ordering::Relaxed);
    }

    /// Counts a request that could not be decoded.
    pub(crate) fn reject(&self, status: &str) {
        self.traffic.count(status);
    }

    /// Returns the runs that answered requests.
    pub fn runs(&self) -> RunCounts {
        self.runs.read()
    }

    /// Returns the time of the last result in milliseconds since the epoch; 0 is none.
    pub fn last_ms(&self) -> u64 {
        self.last_ms.load(Ordering::Relaxed)
    }
}

/// Statistics of all models and versions. An entry appears with the first request, and is removed
/// by [`InferenceStats::forget`] or [`InferenceStats::forget_model`].
#[derive(Default)]
pub struct InferenceStats {
    windows: RwLock<HashMap<Arc<str>, Arc<SlidingHistogram>>>,
    versions: RwLock<HashMap<VersionId, Arc<VersionStats>>>,
    /// Versions that were removed since the last reading of the traffic, oldest first. Locked
    /// after `versions`.
    ended: Mutex<VecDeque<(VersionId, Arc<VersionStats>)>>,
}

impl InferenceStats {
    pub(crate) fn window(&self, model: &Arc<str>) -> Arc<SlidingHistogram> {
        let found = self.windows.read().unwrap_or_else(PoisonError::into_inner).get(model).cloned();
        found.unwrap_or_else(|| {
            let mut windows = self.windows.write().unwrap_or_else(PoisonError::into_inner);
            let fresh = || Arc::new(SlidingHistogram::new(WINDOW_SECONDS, Instant::now()));
            windows.entry(model.clone()).or_insert_with(fresh).clone()
        })
    }

    /// Returns the statistics of a version that counts a request. The caller holds the version,
    /// because statistics that are made after its release would stay forever.
    pub(crate) fn version(&self, id: &VersionId) -> Arc<VersionStats> {
        self.known(id).unwrap_or_else(|| {
            self.versions
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(id.clone())
                .or_default()
                .clone()
        })
    }

    /// Returns the statistics of a version; `None` if it has had no request, or was released.
    pub fn known(&self, id: &VersionId) -> Option<Arc<VersionStats>> {
        self.versions.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Reads the counts by latency and status of every version. A version that was removed since
    /// the last reading comes once more, before the others. There is one reader, because a reading
    /// begins a new maximum.
    pub fn traffic(&self) -> Vec<(VersionId, TrafficReading)> {
        let versions = self.versions.read().unwrap_or_else(PoisonError::into_inner);
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<(VersionId, Arc<VersionStats>)> = ended.drain(..).collect();
        drop(ended);
        found.extend(versions.iter().map(|(id, stats)| (id.clone(), stats.clone())));
        drop(versions);
        found.into_iter().map(|(id, stats)| (id, stats.traffic.read())).collect()
    }

    /// Removes the statistics of a version. The next reading of the traffic has its last requests.
    pub fn forget(&self, id: &VersionId) {
        let mut versions = self.versions.write().unwrap_or_else(PoisonError::into_inner);
        let Some(stats) = versions.remove(id) else { return };
        // Under both locks, so that every reading finds the version in one of the two places.
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.len() >= ENDED_MAX {
            ended.pop_front();
        }
        ended.push_back((id.clone(), stats));
    }

    /// Removes the window of a model without versions.
    pub fn forget_model(&self, model: &str) {
        self.windows.write().unwrap_or_else(PoisonError::into_inner).remove(model);
    }

    /// Computes the percentiles of every model that has had a result. No lock is held meanwhile.
    /// The first request of another model would wait for it, and all others behind that one.
    pub fn percentiles(
        &self,
        now: Instant,
    ) -> impl Iterator<Item = (Arc<str>, Percentiles)> + use<> {
        self.listed_windows()
            .into_iter()
            .map(move |(model, window)| (model, window.percentiles(now)))
    }

    /// Frees the memory of the windows of models without a result in the window that ends at `now`.
    pub fn free_idle_windows(&self, now: Instant) {
        for (_, window) in self.listed_windows() {
            window.free_if_idle(now);
        }
    }

    fn listed_windows(&self) -> Vec<(Arc<str>, Arc<SlidingHistogram>)> {
        let windows = self.windows.read().unwrap_or_else(PoisonError::into_inner);
        windows.iter().map(|(model, window)| (model.clone(), window.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_makes_no_statistics() {
        let stats = InferenceStats::default();
        let id = VersionId { model: "m".into(), version: 1 };
        assert!(stats.known(&id).is_none() && stats.traffic().is_empty());
        stats.version(&id).reject("ok");
        assert!(stats.known(&id).is_some());
        stats.forget(&id);
        assert!(stats.known(&id).is_none());
    }

    #[test]
    fn the_last_requests_of_a_version_are_read_once() {
        let stats = InferenceStats::default();
        let id = VersionId { model: "m".into(), version: 1 };
        let read = || -> Vec<u32> {
            stats.traffic().iter().map(|(_, reading)| reading.statuses[0]).collect()
        };
        stats.version(&id).reject("ok");
        assert_eq!(read(), [1]);
        stats.version(&id).reject("ok");
        stats.forget(&id);
        // The version is loaded again before the next reading.
        stats.version(&id).reject("ok");
        assert_eq!(read(), [2, 1]);
        assert_eq!(read(), [1]);
        for version in 0..2 * ENDED_MAX as u64 {
            let id = VersionId { model: "m".into(), version };
            stats.version(&id).reject("ok");
            stats.forget(&id);
        }
        assert_eq!(read().len(), ENDED_MAX);
        assert!(read().is_empty());
    }

    #[test]
    fn a_forgotten_model_has_no_percentiles() {
        let (stats, now) = (InferenceStats::default(), Instant::now());
        let models: [Arc<str>; 2] = ["kept".into(), "removed".into()];
        for model in &models {
            stats.window(model).record(Duration::from_millis(1), now);
        }
        stats.forget_model("removed");
        let left: Vec<Arc<str>> = stats.percentiles(now).map(|(model, _)| model).collect();
        assert_eq!(left, models[..1]);
    }

    #[test]
    fn an_idle_window_is_freed_without_a_scrape() {
        let (stats, now) = (InferenceStats::default(), Instant::now());
        let window = stats.window(&"m".into());
        window.record(Duration::from_millis(1), now);
        stats.free_idle_windows(now);
        assert_eq!(window.histograms(), 1);
        stats.free_idle_windows(now + Duration::from_secs(60));
        assert_eq!(window.histograms(), 0);
    }

    #[test]
    fn a_new_model_does_not_wait_for_the_percentiles() {
        let (stats, now) = (InferenceStats::default(), Instant::now());
        for model in ["a", "b"] {
            stats.window(&model.into()).record(Duration::from_millis(1), now);
        }
        let mut percentiles = stats.percentiles(now);
        assert_eq!(percentiles.next().map(|(_, seen)| seen.count), Some(1));
        // This would wait for ever if the reader held the lock.
        stats.window(&"new".into());
        assert_eq!(percentiles.count(), 1);
    }
}
