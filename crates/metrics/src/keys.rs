//! Metrics of keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use crate::LevelGauge;

/// Label of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KeyLabels {
    /// Name of the key.
    pub key: Arc<str>,
}

/// A key and the outcome of its requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KeyOutcomeLabels {
    /// Name of the key.
    pub key: Arc<str>,
    /// "accepted", "refused_rate" or "refused_cpu".
    pub outcome: &'static str,
}

/// Metrics of keys. The exporter rebuilds them, so that a removed key leaves no series.
#[derive(Default)]
pub struct KeyMetrics {
    /// Requests by outcome.
    pub requests: Family<KeyOutcomeLabels, Counter>,
    /// Processor time of the requests' work.
    pub cpu_seconds: Family<KeyLabels, Counter<f64, AtomicU64>>,
    /// Browsers that are logged in.
    pub sessions: LevelGauge,
}

impl KeyMetrics {
    /// Removes all keys.
    pub fn clear(&self) {
        self.requests.clear();
        self.cpu_seconds.clear();
    }

    /// Sets the processor time of a key, which is counted elsewhere.
    pub fn set_cpu_seconds(&self, key: &Arc<str>, seconds: f64) {
        let counter = self.cpu_seconds.get_or_create(&KeyLabels { key: key.clone() });
        counter.inner().store(seconds.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register(
            "key_requests",
            "Requests of a key: accepted, refused because there were too many (refused_rate), or refused because they took too much processor time (refused_cpu)",
            self.requests.clone(),
        );
        r.register_with_unit(
            "key_cpu",
            "Processor time of model runs, searches, image and audio work by key",
            Unit::Seconds,
            self.cpu_seconds.clone(),
        );
        r.register("key_sessions", "Browsers that are logged in", self.sessions.clone());
    }
}
