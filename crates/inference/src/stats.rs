//! What is known of each model and version since the server started: windows for percentiles,
//! totals for the statistics extension.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base::VersionId;
use metrics::{Percentiles, SlidingHistogram};

use crate::page::Page;
use crate::runs::{Answered, Runs};

/// Length of the window for percentiles, in seconds.
pub(crate) const WINDOW_SECONDS: usize = 10;

/// A count and the nanoseconds it took.
#[derive(Default)]
pub(crate) struct Total {
    pub(crate) count: AtomicU64,
    pub(crate) nanos: AtomicU64,
}

impl Total {
    fn add(&self, time: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.nanos.load(Ordering::Relaxed))
    }
}

/// Totals of one version.
#[derive(Default)]
pub(crate) struct VersionStats {
    pub(crate) success: Total,
    pub(crate) fail: Total,
    pub(crate) queue: Total,
    pub(crate) compute: Total,
    pub(crate) runs: Runs,
    /// Milliseconds since the epoch of the last answer.
    pub(crate) last_ms: AtomicU64,
}

impl VersionStats {
    /// Counts a request that took `total`: answered after waiting `queue`, or not answered.
    pub(crate) fn record(&self, answered: Option<(Duration, &Answered)>, total: Duration) {
        if let Some((queue, answered)) = answered {
            self.success.add(total);
            self.queue.add(queue);
            self.compute.add(answered.compute);
            self.runs.record(answered);
        } else {
            self.fail.add(total);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_ms.store(now.as_millis() as u64, Ordering::Relaxed);
    }
}

/// All of them. Entries appear with the first answer and go when the version is forgotten.
#[derive(Default)]
pub(crate) struct Stats {
    windows: RwLock<HashMap<Arc<str>, Arc<SlidingHistogram>>>,
    versions: RwLock<HashMap<VersionId, Arc<VersionStats>>>,
    /// What the live page remembers.
    pub(crate) page: Page,
}

impl Stats {
    pub(crate) fn window(&self, model: &Arc<str>) -> Arc<SlidingHistogram> {
        let found = self.windows.read().unwrap_or_else(PoisonError::into_inner).get(model).cloned();
        found.unwrap_or_else(|| {
            let mut windows = self.windows.write().unwrap_or_else(PoisonError::into_inner);
            let fresh = || Arc::new(SlidingHistogram::new(WINDOW_SECONDS, Instant::now()));
            windows.entry(model.clone()).or_insert_with(fresh).clone()
        })
    }

    /// A model's window, if it was ever asked.
    pub(crate) fn known_window(&self, model: &str) -> Option<Arc<SlidingHistogram>> {
        self.windows.read().unwrap_or_else(PoisonError::into_inner).get(model).cloned()
    }

    pub(crate) fn version(&self, id: &VersionId) -> Arc<VersionStats> {
        let found = self.versions.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        found.unwrap_or_else(|| {
            self.versions
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(id.clone())
                .or_default()
                .clone()
        })
    }

    pub(crate) fn forget(&self, id: &VersionId) {
        self.versions.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// The windows of all models that were ever asked.
    pub(crate) fn percentiles(&self, now: Instant) -> Vec<(Arc<str>, Percentiles)> {
        let windows = self.windows.read().unwrap_or_else(PoisonError::into_inner);
        windows.iter().map(|(model, window)| (model.clone(), window.percentiles(now))).collect()
    }
}
