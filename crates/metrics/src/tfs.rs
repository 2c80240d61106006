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

/// Methods of the API that run models.
pub(crate) const APIS: [&str; 4] = ["Predict", "Classify", "Regress", "MultiInference"];
/// Entry points: the labels of [`entrypoint`].
const ENTRYPOINTS: [&str; 2] = ["GRPC", "REST"];
/// Name of the threads that run batches.
const BATCH_THREADS: &str = "worker";

type LatencyFamily<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabels {
    model_name: Arc<str>,
    status: &'static str,
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
    request_latency: LatencyFamily<EntrypointLabels>,
    runtime_latency: LatencyFamily<RuntimeLabels>,
    warmup_latency: LatencyFamily<WarmupLabels>,
    queuing_latency: LatencyFamily<BatchThreadLabels>,
}

/// Returns a histogram with the reference's buckets: from 10 us, each 1.8 times the one before.
fn latency() -> Histogram {
    Histogram::new(exponential_buckets(10.0, 1.8, 33))
}

fn family<L: Clone + std::hash::Hash + Eq>() -> LatencyFamily<L> {
    Family::new_with_constructor(latency as fn() -> Histogram)
}

impl Default for TfsMetrics {
    fn default() -> Self {
        let mut metrics = TfsMetrics {
            registry: Registry::default(),
            request_count: Family::default(),
            request_latency: family(),
            runtime_latency: family(),
            warmup_latency: family(),
            queuing_latency: family(),
        };
        let r = &mut metrics.registry;
        r.register(
            ":tensorflow:serving:request_count",
            "The total number of requests",
            metrics.request_count.clone(),
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
            ":tensorflow:serving:batching_session:queuing_latency",
            "Time that requests of models that merge them wait, in microseconds",
            metrics.queuing_latency.clone(),
        );
        metrics
    }
}

/// Returns the entry point of a protocol; `None` for a protocol of another server.
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
        }
    }

    /// Records the warm-up of a version.
    pub fn warmed(&self, model: &str, version: u64, seconds: f64) {
        self.warmup_latency.get_or_create(&warmup(model, version)).observe(seconds * 1e6);
    }

    /// Removes the series of a version that is gone.
    pub fn forget_version(&self, model: &str, version: u64) {
        self.warmup_latency.remove(&warmup(model, version));
    }

    /// Removes the series of a model that is gone. `runtimes` are the names of the engines.
    pub fn forget_model(&self, model: &Arc<str>, runtimes: &[&'static str]) {
        for status in crate::STATUSES.map(code) {
            self.request_count.remove(&StatusLabels { model_name: model.clone(), status });
        }
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
        // A label cannot be called `API` in a struct, and a counter gets a suffix.
        text.replace(",api=\"", ",API=\"").replace("_count_total{", "_count{")
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
            queue: Some(Duration::from_micros(7)),
            compute: Duration::from_micros(12),
            total: Duration::from_micros(25),
        };
        metrics.record("tfs-grpc", &request);
        metrics.record("oip-grpc", &request);
        metrics.warmed("m", 3, 0.5);
        let text = metrics.encode();
        for line in [
            "# TYPE :tensorflow:serving:request_count counter",
            ":tensorflow:serving:request_count{model_name=\"m\",status=\"OK\"} 1",
            ":tensorflow:serving:request_count{model_name=\"m\",status=\"RESOURCE_EXHAUSTED\"} 1",
            ":tensorflow:serving:request_latency_count{model_name=\"m\",API=\"Predict\",entrypoint=\"GRPC\"} 1",
            ":tensorflow:serving:request_latency_bucket{le=\"18.0\",model_name=\"m\",API=\"Predict\",entrypoint=\"GRPC\"} 0",
            ":tensorflow:serving:runtime_latency_bucket{le=\"18.0\",model_name=\"m\",API=\"Predict\",runtime=\"onnx\"} 1",
            ":tensorflow:serving:model_warmup_latency_count{model_path=\"m/3\",status=\"OK\"} 1",
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
