//! Metrics of new versions that wait for their turn in a fleet.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::{LevelGauge, ModelLabels};

/// Metrics of new versions that wait for their turn in a fleet.
#[derive(Clone, Default)]
pub struct UpdateMetrics {
    /// Versions that wait for their part of the window or for a turn.
    pub waiting: Family<ModelLabels, LevelGauge>,
    /// Versions that were not loaded because they failed in another process.
    pub held_back: Family<ModelLabels, Counter>,
    /// Loads without a turn, because etcd did not answer.
    pub without_turn: Family<ModelLabels, Counter>,
}

impl UpdateMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register(
            "updates_waiting",
            "New versions that wait for their turn in the fleet",
            self.waiting.clone(),
        );
        r.register(
            "updates_held_back",
            "New versions that were not loaded, because they failed on another server of the fleet",
            self.held_back.clone(),
        );
        r.register(
            "updates_without_turn",
            "Loads of new versions without a turn in the fleet, because etcd did not answer",
            self.without_turn.clone(),
        );
    }
}
