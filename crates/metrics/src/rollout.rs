//! Metrics of rollouts.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::{LevelGauge, ModelKindLabels, ModelLabels};

/// Metrics of rollouts.
#[derive(Default)]
pub struct RolloutMetrics {
    /// 1 while a rollout of the model runs.
    pub running: Family<ModelLabels, LevelGauge>,
    /// Versions that were promoted.
    pub promotions: Family<ModelLabels, Counter>,
    /// Versions that were withdrawn, by reason: see [`RolloutMetrics::REASONS`].
    pub rollbacks: Family<ModelKindLabels, Counter>,
    /// Requests that overflowed from the new version to the stable one.
    pub overflows: Family<ModelLabels, Counter>,
    /// Copies of requests by outcome: see [`RolloutMetrics::COPIES`].
    pub shadow_requests: Family<ModelKindLabels, Counter>,
}

impl RolloutMetrics {
    /// Reasons of withdrawals.
    pub const REASONS: [&str; 8] =
        ["drift", "errors", "hand", "latency", "overflow", "signature", "state", "unloaded"];

    /// Outcomes of copies.
    pub const COPIES: [&str; 4] = ["same", "different", "failed", "dropped"];

    /// Removes the series of a removed model.
    pub(crate) fn forget_model(&self, model: &Arc<str>) {
        let labels = ModelLabels { model: model.clone() };
        self.running.remove(&labels);
        self.promotions.remove(&labels);
        self.overflows.remove(&labels);
        for kind in RolloutMetrics::REASONS {
            self.rollbacks.remove(&ModelKindLabels { model: model.clone(), kind });
        }
        for kind in RolloutMetrics::COPIES {
            self.shadow_requests.remove(&ModelKindLabels { model: model.clone(), kind });
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register(
            "rollout_running",
            "1 while a new version of the model is rolled out",
            self.running.clone(),
        );
        r.register("rollout_promotions", "Versions promoted by rollouts", self.promotions.clone());
        r.register(
            "rollout_rollbacks",
            "Versions withdrawn by rollouts, by the limit that was reached or another reason",
            self.rollbacks.clone(),
        );
        r.register(
            "rollout_overflows",
            "Requests for new versions that the stable version answered, because the new one is slower and had its maximum of requests in flight",
            self.overflows.clone(),
        );
        r.register(
            "shadow_requests",
            "Copies of requests to new versions, by outcome: same answer, different, failed, or dropped unanswered",
            self.shadow_requests.clone(),
        );
    }
}
