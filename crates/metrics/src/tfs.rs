//! The metrics that TensorFlow Serving's users alert on, under its names. Only requests to its API
//! count. Times are in microseconds, in its buckets.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::ModelLabels;

/// Methods of the API that run models.
pub(crate) const APIS: [&str; 4] = ["Predict", "Classify", "Regress", "MultiInference"];
/// Entry points: the labels of [`entrypoint`].
const ENTRYPOINTS: [&str; 2] = ["GRPC", "REST"];
/// Counters. Their samples get the suffix `_total`, which the reference's do not have.
const COUNTERS: [&str; 4] = [
    ":tensorflow:serving:request_count",
    ":tensorflow:serving:request_example_count_total",
    ":tensorflow:serving:request_log_count",
    ":tensorflow:serving:model_warmup_records_read",
];
/// Outcomes of a request that is logged.
const LOG_STATUSES: [&str; 2] = ["ok", "resource_exhausted"];
/// Name of the threads that run batches.
const BATCH_THREADS: &str = "worker";

type HistogramFamily<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabels {
    model_name: Arc<str>,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LogLabels {
    model_name: Arc<str>,
    status_code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EntrypointLabels {
    model_name: Arc<str>,
    api: &'static str,
    entrypoint: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuntimeLabels {
    model_name: Arc<str>,
    api: &'static str,
    runtime: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WarmupLabels {
    model_path: String,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BatchThreadLabels {
    thread_pool_name: &'static str,
}

/// One request to TensorFlow Serving's API that was answered.
#[derive(Clone, Copy, Debug)]
pub struct TfsRequest<'a> {
    /// Name of the model.
    pub model: &'a Arc<str>,
    /// Method: "Predict", "Classify", "Regress" or "MultiInference".
    pub api: &'static str,
    /// Name of the engine.
    pub runtime: &'static str,
    /// Items of its inputs.
    pub items: usize,
    /// Time in the queue, if the model merges requests.
    pub queue: Option<Duration>,
    /// Time of the run.
    pub compute: Duration,
    /// Time from the arrival to the answer.
    pub total: Duration,
}

/// Metrics under TensorFlow Serving's names.
pub struct TfsMetrics {
    registry: Registry,
    request_count: Family<StatusLabels, Counter>,
    example_counts: HistogramFamily<ModelLabels>,
    example_count: Family<ModelLabels, Counter>,
    log_count: Family<LogLabels, Counter>,
    request_latency: HistogramFamily<EntrypointLabels>,
    runtime_latency: HistogramFamily<RuntimeLabels>,
    warmup_latency: HistogramFamily<WarmupLabels>,
    warmup_records: Family<WarmupLabels, Counter>,
    queuing_latency: HistogramFamily<BatchThreadLabels>,
    input_batch_size: Histogram,
}

/// Returns a histogram with the reference's buckets: from 10 us, each 1.8 times the one before.
fn latency() -> Histogram {
    Histogram::new(exponential_buckets(10.0, 1.8, 33))
}

/// Returns a histogram of examples with the reference's buckets: powers of 2 up to 16,384.
fn example_counts() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 15))
}

fn family<L: Clone + std::hash::Hash + Eq>() -> HistogramFamily<L> {
    Family::new_with_constructor(latency as fn() -> Histogram)
}

impl Default for TfsMetrics {
    fn default() -> Self {
        let mut metrics = TfsMetrics {
            registry: Registry::default(),
            request_count: Family::default(),
            example_counts: Family::new_with_constructor(example_counts as fn() -> Histogram),
            example_count: Family::default(),
            log_count: Family::default(),
            request_latency: family(),
            runtime_latency: family(),
            warmup_latency: family(),
            warmup_records: Family::default(),
            queuing_latency: family(),
            // The reference's buckets.
            input_batch_size: Histogram::new(exponential_buckets(1.0, 2.0, 14)),
        };
        let r = &mut metrics.registry;
        r.register(
            ":tensorflow:serving:request_count",
            "The total number of requests",
            metrics.request_count.clone(),
        );
        r.register(
            ":tensorflow:serving:request_example_counts",
            "Examples of a Classify, Regress or MultiInference request",
            metrics.example_counts.clone(),
        );
        r.register(
            ":tensorflow:serving:request_example_count_total",
            "Examples of all requests",
            metrics.example_count.clone(),
        );
        r.register(
            ":tensorflow:serving:request_log_count",
            "Requests passed to the request log (OK), or dropped because its queue was full",
            metrics.log_count.clone(),
        );
        r.register(
            ":tensorflow:serving:request_latency",
            "Wall time of requests in microseconds",
            metrics.request_latency.clone(),
        );
        r.register(
            ":tensorflow:serving:runtime_latency",
            "Wall time of the engine in microseconds",
            metrics.runtime_latency.clone(),
        );
        r.register(
            ":tensorflow:serving:model_warmup_latency",
            "Wall time of the warm-up of a version in microseconds",
            metrics.warmup_latency.clone(),
        );
        r.register(
            ":tensorflow:serving:model_warmup_records_read",
            "Recorded requests that warmed a version up",
            metrics.warmup_records.clone(),
        );
        r.register(
            ":tensorflow:serving:batching_session:input_batch_size",
            "Items of a request, for models that merge requests",
            metrics.input_batch_size.clone(),
        );
        r.register(
            ":tensorflow:serving:batching_session:queuing_latency",
            "Time that a request waits in microseconds, for models that merge requests",
            metrics.queuing_latency.clone(),
        );
        metrics
    }
}

/// Returns the entry point of a protocol, or `None` for a protocol of another server.
fn entrypoint(protocol: &str) -> Option<&'static str> {
    match protocol {
        "tfs-grpc" => Some("GRPC"),
        "tfs-http" => Some("REST"),
        _ => None,
    }
}

/// Returns the name of TensorFlow's code for an outcome, one of [`crate::STATUSES`].
fn code(status: &str) -> &'static str {
    match status {
        "ok" => "OK",
        "invalid_argument" => "INVALID_ARGUMENT",
        "not_found" => "NOT_FOUND",
        "already_exists" => "ALREADY_EXISTS",
        "failed_precondition" => "FAILED_PRECONDITION",
        "permission_denied" => "PERMISSION_DENIED",
        "too_large" | "resource_exhausted" | "storage_full" => "RESOURCE_EXHAUSTED",
        "unavailable" => "UNAVAILABLE",
        "deadline_exceeded" | "client_timeout" => "DEADLINE_EXCEEDED",
        "cancelled" => "CANCELLED",
        "unimplemented" => "UNIMPLEMENTED",
        "data_loss" => "DATA_LOSS",
        _ => "INTERNAL",
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl TfsMetrics {
    /// Counts a request by `protocol` and its `status`. Other protocols do not count.
    pub fn count(&self, model: &Arc<str>, protocol: &str, status: &str) {
        if entrypoint(protocol).is_some() {
            let labels = StatusLabels { model_name: model.clone(), status: code(status) };
            self.request_count.get_or_create(&labels).inc();
        }
    }

    /// Records the times of a request by `protocol`. Other protocols do not count.
    pub fn record(&self, protocol: &str, request: &TfsRequest<'_>) {
        let Some(entrypoint) = entrypoint(protocol) else { return };
        let model = request.model;
        let api = request.api;
        let labels = EntrypointLabels { model_name: model.clone(), api, entrypoint };
        self.request_latency.get_or_create(&labels).observe(micros(request.total));
        let labels = RuntimeLabels { model_name: model.clone(), api, runtime: request.runtime };
        self.runtime_latency.get_or_create(&labels).observe(micros(request.compute));
        if let Some(queue) = request.queue {
            let labels = BatchThreadLabels { thread_pool_name: BATCH_THREADS };
            self.queuing_latency.get_or_create(&labels).observe(micros(queue));
            self.input_batch_size.observe(request.items as f64);
        }
    }

    /// Counts the examples of a request by `protocol`. Other protocols do not count.
    pub fn count_examples(&self, model: &Arc<str>, protocol: &str, examples: usize) {
        if entrypoint(protocol).is_some() {
            let labels = ModelLabels { model: model.clone() };
            self.example_counts.get_or_create(&labels).observe(examples as f64);
            self.example_count.get_or_create(&labels).inc_by(examples as u64);
        }
    }

    /// Counts a request by `protocol` that was passed to the request log, or dropped if
    /// `is_dropped` is true. Other protocols do not count.
    pub fn count_logged(&self, model: &Arc<str>, protocol: &str, is_dropped: bool) {
        if entrypoint(protocol).is_some() {
            let status_code = code(if is_dropped { "resource_exhausted" } else { "ok" });
            let labels = LogLabels { model_name: model.clone(), status_code };
            self.log_count.get_or_create(&labels).inc();
        }
    }

    /// Records the warm-up of a version with `records` recorded requests.
    pub fn warmed(&self, model: &str, version: u64, seconds: f64, records: u64) {
        let labels = warmup(model, version);
        self.warmup_latency.get_or_create(&labels).observe(seconds * 1e6);
        if records > 0 {
            self.warmup_records.get_or_create(&labels).inc_by(records);
        }
    }

    /// Removes the series of a released version.
    pub(crate) fn forget_version(&self, model: &str, version: u64) {
        let labels = warmup(model, version);
        self.warmup_latency.remove(&labels);
        self.warmup_records.remove(&labels);
    }

    /// Removes the series of a removed model. `runtimes` are the names of the engines.
    pub fn forget_model(&self, model: &Arc<str>, runtimes: &[&'static str]) {
        for status in crate::STATUSES.map(code) {
            self.request_count.remove(&StatusLabels { model_name: model.clone(), status });
        }
        for status_code in LOG_STATUSES.map(code) {
            self.log_count.remove(&LogLabels { model_name: model.clone(), status_code });
        }
        let labels = ModelLabels { model: model.clone() };
        self.example_counts.remove(&labels);
        self.example_count.remove(&labels);
        for api in APIS {
            for entrypoint in ENTRYPOINTS {
                let labels = EntrypointLabels { model_name: model.clone(), api, entrypoint };
                self.request_latency.remove(&labels);
            }
            for runtime in runtimes {
                self.runtime_latency.remove(&RuntimeLabels {
                    model_name: model.clone(),
                    api,
                    runtime,
                });
            }
        }
    }

    /// Encodes the metrics in the older text format, under exactly TensorFlow Serving's names.
    pub fn encode(&self) -> String {
        let mut text = String::with_capacity(4 << 10);
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        let end = text.strip_suffix("# EOF\n").map_or(text.len(), str::len);
        text.truncate(end);
        for name in COUNTERS {
            text = text.replace(&format!("{name}_total{{"), &format!("{name}{{"));
        }
        // A label cannot be called `API` in a struct.
        text.replace(",api=\"", ",API=\"")
    }
}

fn warmup(model: &str, version: u64) -> WarmupLabels {
    WarmupLabels { model_path: format!("{model}/{version}"), status: "OK" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_those_of_the_reference() {
        let metrics = TfsMetrics::default();
        let model: Arc<str> = "m".into();
        metrics.count(&model, "tfs-http", "ok");
        metrics.count(&model, "tfs-grpc", "too_large");
        metrics.count(&model, "oip-http", "ok");
        let request = TfsRequest {
            model: &model,
            api: "Predict",
            runtime: "onnx",
            items: 3,
            queue: Some(Duration::from_micros(7)),
            compute: Duration::from_micros(12),
            total: Duration::from_micros(25),
        };
        metrics.record("tfs-grpc", &request);
        metrics.record("oip-grpc", &request);
        metrics.warmed("m", 3, 0.5, 4);
        metrics.count_examples(&model, "tfs-http", 5);
        metrics.count_examples(&model, "oip-http", 5);
        metrics.count_logged(&model, "tfs-grpc", false);
        metrics.count_logged(&model, "tfs-grpc", true);
        let text = metrics.encode();
        for line in [
            "# TYPE :tensorflow:serving:request_count counter",
            ":tensorflow:serving:request_count{model_name=\"m\",status=\"OK\"} 1",
            ":tensorflow:serving:request_count{model_name=\"m\",status=\"RESOURCE_EXHAUSTED\"} 1",
            ":tensorflow:serving:request_latency_count{model_name=\"m\",API=\"Predict\",entrypoint=\"GRPC\"} 1",
            ":tensorflow:serving:request_latency_bucket{le=\"18.0\",model_name=\"m\",API=\"Predict\",entrypoint=\"GRPC\"} 0",
            ":tensorflow:serving:runtime_latency_bucket{le=\"18.0\",model_name=\"m\",API=\"Predict\",runtime=\"onnx\"} 1",
            ":tensorflow:serving:model_warmup_latency_count{model_path=\"m/3\",status=\"OK\"} 1",
            ":tensorflow:serving:model_warmup_records_read{model_path=\"m/3\",status=\"OK\"} 4",
            "# TYPE :tensorflow:serving:request_example_count_total counter",
            ":tensorflow:serving:request_example_count_total{model=\"m\"} 5",
            ":tensorflow:serving:request_example_counts_bucket{le=\"8.0\",model=\"m\"} 1",
            ":tensorflow:serving:request_log_count{model_name=\"m\",status_code=\"OK\"} 1",
            ":tensorflow:serving:request_log_count{model_name=\"m\",status_code=\"RESOURCE_EXHAUSTED\"} 1",
            ":tensorflow:serving:batching_session:input_batch_size_bucket{le=\"4.0\"} 1",
            ":tensorflow:serving:batching_session:input_batch_size_sum 3.0",
            ":tensorflow:serving:batching_session:queuing_latency_count{thread_pool_name=\"worker\"} 1",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
        metrics.forget_model(&model, &["onnx"]);
        metrics.forget_version("m", 3);
        let text = metrics.encode();
        assert!(!text.contains("\"m\"") && !text.contains("m/3"), "{text}");
    }
}
