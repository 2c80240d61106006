//! Counts the events of versions in the metrics, and announces changes of their status.

use std::sync::Arc;

use base::VersionId;
use inference::InferenceStats;
use lifecycle::{LifecycleEvent, LifecycleState, Observer, SwapReport};
use metrics::{Metrics, ModelLabels, SwapLabels};
use tokio::sync::watch;

use crate::page::history::PageHistory;

/// Counts loads, swaps and their costs.
pub(crate) struct MetricsObserver {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stats: Arc<InferenceStats>,
    pub(crate) history: Arc<PageHistory>,
    /// Notified of each report of the status of models.
    pub(crate) changed: watch::Sender<()>,
    /// Names of the engines.
    pub(crate) engines: Vec<&'static str>,
}

impl Observer for MetricsObserver {
    fn event(&self, event: &LifecycleEvent) {
        match event {
            LifecycleEvent::StateChanged(change) if change.to == LifecycleState::Released => {
                self.metrics.forget_version(&change.model, change.version);
                self.stats
                    .forget(&VersionId { model: change.model.clone(), version: change.version });
            }
            LifecycleEvent::StateChanged(change) if change.to == LifecycleState::Failed => {
                self.metrics
                    .load_failures
                    .get_or_create(&ModelLabels { model: change.model.clone() })
                    .inc();
            }
            LifecycleEvent::Loaded { model, version, cost } => {
                self.history.loaded(&VersionId { model: model.clone(), version: *version });
                let labels = ModelLabels { model: model.clone() };
                let metrics = &self.metrics;
                metrics.loader_minor_faults.get_or_create(&labels).inc_by(cost.loader_minor_faults);
                metrics.loader_cpu_seconds.get_or_create(&labels).inc_by(cost.loader_cpu_seconds);
                metrics.loads_escalated.get_or_create(&labels).inc_by(cost.escalated.into());
                metrics.loader_read_bytes.get_or_create(&labels).inc_by(cost.bytes_read);
                metrics.loader_shared_bytes.get_or_create(&labels).inc_by(cost.bytes_shared);
                metrics.tfs.warmed(model, *version, cost.warm_seconds);
            }
            LifecycleEvent::Settled { model, .. } => {
                self.metrics
                    .settings_taken_over
                    .get_or_create(&ModelLabels { model: model.clone() })
                    .inc();
            }
            LifecycleEvent::Swapped(report) => self.swapped(report),
            LifecycleEvent::Forgotten { model } => {
                self.metrics.tfs.forget_model(model, &self.engines);
            }
            LifecycleEvent::Reported => self.changed.send_replace(()),
            _ => {}
        }
    }
}

impl MetricsObserver {
    fn swapped(&self, report: &SwapReport) {
        self.history.swapped(report);
        self.metrics.swaps.get_or_create(&ModelLabels { model: report.model.clone() }).inc();
        let steps = [
            ("load", report.load_seconds),
            ("warm", report.warm_seconds),
            ("drain", report.drain_seconds),
            ("unload", report.unload_seconds),
        ];
        for (step, seconds) in steps {
            let labels = SwapLabels { model: report.model.clone(), step };
            self.metrics.swap_last_seconds.get_or_create(&labels).set(seconds);
            self.metrics.swap_seconds.get_or_create(&labels).inc_by(seconds);
        }
    }
}
