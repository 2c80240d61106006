//! Series of released versions. They stay for a short time, so that a scraper that reads them a
//! last time gets the requests since its scrape before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::Metrics;

/// Time for which the series of a released version stay. It is two scrapes a minute apart, and a
/// margin.
const KEPT_TIME: Duration = Duration::from_secs(150);
/// Maximum number of released versions whose series stay. If there are more, the oldest ones end at
/// once.
const KEPT_MAX: usize = 128;

/// Released versions whose series stay, the first release first.
#[derive(Default)]
pub(crate) struct ReleasedVersions(Mutex<VecDeque<ReleasedVersion>>);

/// A version whose series are removed later.
struct ReleasedVersion {
    model: Arc<str>,
    version: u64,
    at: Instant,
}

impl Metrics {
    /// Removes the series of a version that was released at `now`, but not before scrapers have had
    /// the time to read its last requests.
    pub fn release_version(&self, model: &Arc<str>, version: u64, now: Instant) {
        self.keep_version(model, version);
        let mut released = self.released.0.lock();
        if released.len() >= KEPT_MAX
            && let Some(oldest) = released.pop_front()
        {
            self.forget_version(&oldest.model, oldest.version);
        }
        released.push_back(ReleasedVersion { model: model.clone(), version, at: now });
    }

    /// Keeps the series of a version that is ready again. Its counts continue.
    pub fn keep_version(&self, model: &Arc<str>, version: u64) {
        self.released.0.lock().retain(|one| one.model != *model || one.version != version);
    }

    /// Removes the series of versions that were released long enough before `now`.
    pub fn expire_versions(&self, now: Instant) {
        // Locked meanwhile, so that a version that is ready again loses no series afterwards.
        let mut released = self.released.0.lock();
        let due = |one: &ReleasedVersion| now.saturating_duration_since(one.at) >= KEPT_TIME;
        while released.front().is_some_and(due) {
            if let Some(oldest) = released.pop_front() {
                self.forget_version(&oldest.model, oldest.version);
            }
        }
    }

    /// Removes the series of all released versions of a model.
    pub(crate) fn forget_released(&self, model: &Arc<str>) {
        self.released.0.lock().retain(|one| {
            let other = one.model != *model;
            if !other {
                self.forget_version(model, one.version);
            }
            other
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestLabels;

    #[test]
    fn released_versions_keep_their_series_for_a_scrape() {
        let metrics = Metrics::default();
        let model: Arc<str> = "m".into();
        let now = Instant::now();
        let count = |version: u64| {
            let model = model.clone();
            let labels = RequestLabels { model, version, protocol: "tfs-grpc", status: "ok" };
            metrics.requests.get_or_create(&labels).inc();
        };
        let has = |version: u64| metrics.encode().contains(&format!("version=\"{version}\""));
        count(1);
        metrics.release_version(&model, 1, now);
        metrics.expire_versions(now + KEPT_TIME / 2);
        assert!(has(1));
        metrics.keep_version(&model, 1);
        metrics.expire_versions(now + 2 * KEPT_TIME);
        assert!(has(1), "it is ready again");
        metrics.release_version(&model, 1, now + 2 * KEPT_TIME);
        metrics.expire_versions(now + 3 * KEPT_TIME);
        assert!(!has(1));
        for version in 1..=KEPT_MAX as u64 + 1 {
            count(version);
            metrics.release_version(&model, version, now);
        }
        assert!(!has(1) && has(2), "the number of versions is bounded");
        metrics.forget_model(&model, &[], &[]);
        assert!(!metrics.encode().contains("\"m\""));
    }
}
