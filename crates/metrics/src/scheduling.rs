//! Counts of the scheduler, copied just before the exposition is encoded.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

use crate::{KindLabels, LevelGauge, ModelLabels};

/// A model, and an outcome of its requests or a kind of its elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ModelKindLabels {
    /// Model name.
    pub model: Arc<str>,
    /// Outcome or kind.
    pub kind: &'static str,
}

/// A model and a priority level.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PriorityLabels {
    /// Model name.
    pub model: Arc<str>,
    /// Level, 1 first.
    pub priority: u64,
}

/// The scheduler's metrics.
#[derive(Default)]
pub struct SchedulingMetrics {
    /// Items of runs. The count is the number of runs, and the sum is that of their items.
    pub batch_size: Family<ModelLabels, CopiedHistogram>,
    /// Copies of items that were added up to an allowed batch size.
    pub added_items: Family<ModelLabels, Counter>,
    /// Elements of padded inputs: "real" and "padding".
    pub input_elements: Family<ModelKindLabels, Counter>,
    /// Requests by outcome: "run", "refused", "expired", "cancelled".
    pub requests: Family<ModelKindLabels, Counter>,
    /// Merged runs that failed and were run again one request at a time.
    pub reruns: Family<ModelLabels, Counter>,
    /// Versions, by signature, whose requests are not merged or padded any more.
    pub unjoined_versions: Family<ModelLabels, Counter>,
    /// Requests waiting by priority level.
    pub queued: Family<PriorityLabels, LevelGauge>,
    /// Runs in progress.
    pub running: Family<ModelLabels, LevelGauge>,
    /// Inference threads (workers): "all" and "busy".
    pub workers: Family<KindLabels, LevelGauge>,
}

impl SchedulingMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register("batch_size", "Items per run (the batch size)", self.batch_size.clone());
        r.register(
            "added_items",
            "Copies of items, added to fill runs up to an allowed batch size",
            self.added_items.clone(),
        );
        r.register(
            "input_elements",
            "Elements of padded inputs: real and padding",
            self.input_elements.clone(),
        );
        r.register(
            "scheduled_requests",
            "Requests by their outcome in the queue",
            self.requests.clone(),
        );
        r.register(
            "reruns",
            "Merged runs that failed and were repeated one request at a time",
            self.reruns.clone(),
        );
        r.register(
            "unjoined_versions",
            "Versions whose requests are not merged or padded any more, because runs showed that \
             this changes answers",
            self.unjoined_versions.clone(),
        );
        r.register(
            "queued_requests",
            "Requests waiting by model and priority level",
            self.queued.clone(),
        );
        r.register("running", "Runs in progress", self.running.clone());
        r.register("workers", "Inference threads (workers): all and busy", self.workers.clone());
    }

    /// Removes all models, so that released models leave no series behind.
    pub fn clear(&self) {
        self.batch_size.clear();
        self.added_items.clear();
        self.input_elements.clear();
        self.requests.clear();
        self.reruns.clear();
        self.unjoined_versions.clear();
        self.queued.clear();
        self.running.clear();
    }

    /// Sets a counter to the value that the scheduler has counted.
    pub fn count(counter: &Counter, value: u64) {
        counter.inner().store(value, Ordering::Relaxed);
    }
}

/// A histogram whose values another component counts. The exporter copies them before it encodes.
#[derive(Clone, Debug, Default)]
pub struct CopiedHistogram(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    sum: f64,
    buckets: Vec<(f64, u64)>,
}

impl CopiedHistogram {
    /// Sets the sum of all values and the number of values up to each upper bound and above the one
    /// before. The last bound is `f64::INFINITY`.
    pub fn set(&self, sum: f64, buckets: Vec<(f64, u64)>) {
        *self.0.lock() = Counts { sum, buckets };
    }
}

impl TypedMetric for CopiedHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for CopiedHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let counts = self.0.lock();
        let count = counts.buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(counts.sum, count, &counts.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metrics;

    #[test]
    fn counts_from_elsewhere_are_counters_and_histograms() {
        let metrics = Metrics::default();
        let labels = ModelLabels { model: "ctr".into() };
        let scheduling = &metrics.scheduling;
        scheduling
            .batch_size
            .get_or_create(&labels)
            .set(13.0, vec![(1.0, 3), (2.0, 1), (4.0, 0), (f64::INFINITY, 1)]);
        SchedulingMetrics::count(&scheduling.reruns.get_or_create(&labels), 7);
        SchedulingMetrics::count(&scheduling.reruns.get_or_create(&labels), 9);
        let text = metrics.encode();
        for line in [
            "# TYPE millpond_batch_size histogram",
            "millpond_batch_size_sum{model=\"ctr\"} 13.0",
            "millpond_batch_size_count{model=\"ctr\"} 5",
            "millpond_batch_size_bucket{le=\"2.0\",model=\"ctr\"} 4",
            "millpond_batch_size_bucket{le=\"+Inf\",model=\"ctr\"} 5",
            "millpond_reruns_total{model=\"ctr\"} 9",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
        scheduling.clear();
        assert!(!metrics.encode().contains("ctr"));
    }
}
