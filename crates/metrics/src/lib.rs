//! Every figure that Millpond exports: typed handles in one registry.
//!
//! A metric that is not a field of [`Metrics`] does not exist. Code records counters and histograms
//! directly. The exporter sets gauges that mirror another component's state (pool bytes, queue
//! length) just before it encodes, so that nothing has to poll.
//!
//! # Modules
//! * Subjects, one struct each: `audio`, `backups`, `cluster`, `images`, `keys`, `process`,
//!   `rollout`, `scheduling`, `stores`, `tfs`, `updates`.
//! * What they share: `labels`, `sliding` for percentiles of the last seconds, `register` for names
//!   and descriptions, `released` for the end of a version's series.

mod audio;
mod backups;
mod cluster;
mod images;
mod keys;
mod labels;
mod process;
#[cfg(test)]
mod reference;
mod register;
mod released;
mod rollout;
mod scheduling;
mod sliding;
mod stores;
mod tfs;
mod updates;

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub use audio::{AudioLabels, AudioMetrics};
pub use backups::{BackupMetrics, BackupWorkLabels};
pub use cluster::ClusterMetrics;
pub use images::ImageMetrics;
pub use keys::{KeyLabels, KeyMetrics, KeyOutcomeLabels};
pub use labels::{
    BytesLabels, CauseLabels, KindLabels, ModelLabels, PROTOCOLS, PhaseLabels, QuantileLabels,
    RequestLabels, RootLabels, STATUSES, StateLabels, SwapLabels, TraceLabels, VersionLabels,
};
pub use process::ProcessMetrics;
pub use prometheus_client;
pub use rollout::RolloutMetrics;
pub use scheduling::{CopiedHistogram, ModelKindLabels, PriorityLabels, SchedulingMetrics};
pub use sliding::{Percentiles, SlidingHistogram, WINDOW_SECONDS_MAX};
pub use stores::{StoreLabels, StoreMetrics, StoreWorkLabels};
pub use tfs::{TfsMetrics, TfsRequest};
pub use updates::UpdateMetrics;

/// A gauge in whole units.
pub type LevelGauge = Gauge<i64, AtomicI64>;
/// A gauge in seconds.
pub type SecondsGauge = Gauge<f64, AtomicU64>;

/// A histogram whose buckets remember the trace of one request each.
pub type LatencyHistogram = HistogramWithExemplars<TraceLabels>;

/// Durations of the phases of one request.
#[derive(Clone, Debug)]
pub struct RequestPhases {
    /// Time in the queue.
    pub queue: Duration,
    /// Time of its run.
    pub compute: Duration,
    /// Time of all phases.
    pub total: Duration,
    /// Trace of the request, if it is sampled.
    pub trace: Option<TraceLabels>,
}

/// All metrics, created once by the server and shared.
pub struct Metrics {
    registry: Registry,
    released: released::ReleasedVersions,
    /// Answered requests.
    pub requests: Family<RequestLabels, Counter>,
    /// Latency by phase.
    pub request_seconds: Family<PhaseLabels, LatencyHistogram, fn() -> LatencyHistogram>,
    /// Requests above the 99th percentile of their model, by the first cause.
    pub slow_requests: Family<CauseLabels, Counter>,
    /// Requests refused before they were queued, by reason.
    pub refused: Family<KindLabels, Counter>,
    /// Pauses in the reading of gRPC streams of requests, by the limit that was reached.
    pub stream_pauses: Family<KindLabels, Counter>,
    /// Quantiles of the total latency over the sliding window.
    pub window_seconds: Family<QuantileLabels, SecondsGauge>,
    /// Requests with a result per second over the sliding window.
    pub window_rate: Family<ModelLabels, SecondsGauge>,
    /// Parameter bytes by kind of memory and version.
    pub parameter_bytes: Family<BytesLabels, LevelGauge>,
    /// Slot pool: "max", "backed", "used".
    pub pool_bytes: Family<KindLabels, LevelGauge>,
    /// Process: "rss", "heap_allocated", "heap_resident". All worker processes together: "workers".
    pub process_bytes: Family<KindLabels, LevelGauge>,
    /// Cores that the control group's quota allows, or 0 without a limit.
    pub cpu_limit_cores: Gauge<f64, AtomicU64>,
    /// Time for which that quota stopped the control group's threads, summed over cores.
    pub cpu_throttled_seconds: SecondsGauge,
    /// 1 for the state each version is in.
    pub model_state: Family<StateLabels, LevelGauge>,
    /// 1 for a version that failed, or 0 once a newer version of its model serves.
    pub failed_version: Family<VersionLabels, LevelGauge>,
    /// Versions published in place of another.
    pub swaps: Family<ModelLabels, Counter>,
    /// Loads that failed.
    pub load_failures: Family<ModelLabels, Counter>,
    /// Settings that ready versions applied without a load.
    pub settings_taken_over: Family<ModelLabels, Counter>,
    /// Time of the last complete scan of a directory of models, since the epoch.
    pub scan_time: Family<RootLabels, SecondsGauge>,
    /// Seconds of the last load, warm-up, drain and unload.
    pub swap_last_seconds: Family<SwapLabels, SecondsGauge>,
    /// Sums of the same durations.
    pub swap_seconds: Family<SwapLabels, Counter<f64, AtomicU64>>,
    /// Page faults that loaders took.
    pub loader_minor_faults: Family<ModelLabels, Counter>,
    /// Processor time of loads.
    pub loader_cpu_seconds: Family<ModelLabels, Counter<f64, AtomicU64>>,
    /// Loads that continued at ordinary priority, because they starved at idle priority.
    pub loads_escalated: Family<ModelLabels, Counter>,
    /// Loads whose threads were abandoned, because they did not end after they were stopped.
    pub loads_abandoned: Family<ModelLabels, Counter>,
    /// Parameter bytes read from storage.
    pub loader_read_bytes: Family<ModelLabels, Counter>,
    /// Parameter bytes shared with a live version.
    pub loader_shared_bytes: Family<ModelLabels, Counter>,
    /// Worker processes of isolated models that were started again after they had ended.
    pub worker_restarts: Family<ModelLabels, Counter>,
    /// Time from the last end of a model's worker process until the next one can answer requests.
    pub worker_restart_last_seconds: Family<ModelLabels, SecondsGauge>,
    /// Spare worker processes: "started" (the engine's library is open), "used" (in place of a
    /// process that ended), "failed" (ended unused, or could not be started).
    pub worker_spares: Family<KindLabels, Counter>,
    /// Changes of the configuration of models, by outcome: "ok" or "failed".
    pub config_reloads: Family<KindLabels, Counter>,
    /// Time of the last change by outcome, in seconds since the epoch.
    pub config_reload_time: Family<KindLabels, SecondsGauge>,
    /// Sampled requests for the request log: "written", "dropped" (its queue was full, or the
    /// record is larger than a file may be), "failed".
    pub request_log: Family<KindLabels, Counter>,
    /// Spans of traces: "exported", "dropped" (a queue was full), "failed" (the collector did not
    /// answer or refused them).
    pub trace_spans: Family<KindLabels, Counter>,
    /// Requests of all models that wait for a worker, and the default limit of one model.
    pub queue: Family<KindLabels, LevelGauge>,
    /// Memory of requests in flight: "max", "used", and the "peak" since the start.
    pub request_memory_bytes: Family<KindLabels, LevelGauge>,
    /// Work done on the decoder threads, by step: "unpack", "decode", "encode".
    pub decoded: Family<KindLabels, Counter>,
    /// Work that waits for a decoder thread ("waiting").
    pub decode_queue: Family<KindLabels, LevelGauge>,
    /// Open connections by listener.
    pub connections: Family<KindLabels, LevelGauge>,
    /// Connections ended for a flood of HTTP/2 control frames, by kind of frame, or for a limit of
    /// the crate h2 ("h2_limit").
    pub connections_ended: Family<KindLabels, Counter>,
    /// TLS handshakes by outcome: "ok", "failed", "timeout", "plaintext", or "tls_at_plain_port".
    pub tls_handshakes: Family<KindLabels, Counter>,
    /// Files of certificates and keys that were read again, by outcome: "ok" and "failed".
    pub access_reloads: Family<KindLabels, Counter>,
    /// File descriptors: "open" and "limit".
    pub descriptors: Family<KindLabels, LevelGauge>,
    /// Threads by kind.
    pub threads: Family<KindLabels, LevelGauge>,
    /// Metrics of the scheduler.
    pub scheduling: SchedulingMetrics,
    /// Metrics of rollouts.
    pub rollouts: RolloutMetrics,
    /// Metrics of new versions that wait for their turn in a fleet.
    pub updates: UpdateMetrics,
    /// Metrics of images and collections.
    pub images: ImageMetrics,
    /// Metrics of keys.
    pub keys: KeyMetrics,
    /// Metrics of audio recognition.
    pub recordings: AudioMetrics,
    /// Metrics under the names of Prometheus's client libraries, in a registry of their own.
    pub process: ProcessMetrics,
    /// Metrics of models in object stores.
    pub stores: StoreMetrics,
    /// Metrics of backups of collections.
    pub backups: BackupMetrics,
    /// Metrics of a node of a cluster.
    pub cluster: ClusterMetrics,
    /// Metrics under TensorFlow Serving's names, in a registry of their own.
    pub tfs: TfsMetrics,
}

/// Upper bounds of the latency buckets in seconds: 1-2-5 from 50 us to 10 s.
const LATENCY_BOUNDS: [f64; 17] = [
    50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0,
    5.0, 10.0,
];

fn latency_histogram() -> LatencyHistogram {
    LatencyHistogram::new(LATENCY_BOUNDS.into_iter())
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("millpond"),
            released: released::ReleasedVersions::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(
                latency_histogram as fn() -> LatencyHistogram,
            ),
            slow_requests: Family::default(),
            refused: Family::default(),
            stream_pauses: Family::default(),
            window_seconds: Family::default(),
            window_rate: Family::default(),
            parameter_bytes: Family::default(),
            pool_bytes: Family::default(),
            process_bytes: Family::default(),
            cpu_limit_cores: Gauge::default(),
            cpu_throttled_seconds: SecondsGauge::default(),
            model_state: Family::default(),
            failed_version: Family::default(),
            swaps: Family::default(),
            load_failures: Family::default(),
            settings_taken_over: Family::default(),
            scan_time: Family::default(),
            swap_last_seconds: Family::default(),
            swap_seconds: Family::default(),
            loader_minor_faults: Family::default(),
            loader_cpu_seconds: Family::default(),
            loads_escalated: Family::default(),
            loads_abandoned: Family::default(),
            loader_read_bytes: Family::default(),
            loader_shared_bytes: Family::default(),
            worker_restarts: Family::default(),
            worker_restart_last_seconds: Family::default(),
            worker_spares: Family::default(),
            config_reloads: Family::default(),
            config_reload_time: Family::default(),
            request_log: Family::default(),
            trace_spans: Family::default(),
            queue: Family::default(),
            request_memory_bytes: Family::default(),
            decoded: Family::default(),
            decode_queue: Family::default(),
            connections: Family::default(),
            connections_ended: Family::default(),
            tls_handshakes: Family::default(),
            access_reloads: Family::default(),
            descriptors: Family::default(),
            threads: Family::default(),
            scheduling: SchedulingMetrics::default(),
            rollouts: RolloutMetrics::default(),
            updates: UpdateMetrics::default(),
            images: ImageMetrics::default(),
            keys: KeyMetrics::default(),
            recordings: AudioMetrics::default(),
            process: ProcessMetrics::default(),
            stores: StoreMetrics::default(),
            backups: BackupMetrics::default(),
            cluster: ClusterMetrics::default(),
            tfs: TfsMetrics::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    /// Records one finished request.
    pub fn record_phases(&self, model: &Arc<str>, version: u64, phases: RequestPhases) {
        let RequestPhases { queue, compute, total, trace } = phases;
        // The time of an exemplar tells a recent one from one of a version's first hour.
        let time = trace.as_ref().map(|_| SystemTime::now());
        for (phase, value) in [("queue", queue), ("compute", compute), ("total", total)] {
            let labels = PhaseLabels { model: model.clone(), version, phase };
            let histogram = self.request_seconds.get_or_create(&labels);
            histogram.observe(value.as_secs_f64(), trace.clone(), time);
        }
    }

    /// Makes the counters of swaps and failed loads of a model. The dashboard shows their
    /// increases, and Prometheus sees no increase from a missing series.
    pub fn begin_model(&self, model: &Arc<str>) {
        let labels = ModelLabels { model: model.clone() };
        for counters in [&self.swaps, &self.load_failures] {
            drop(counters.get_or_create(&labels));
        }
    }

    /// Removes the series of a released version, so that swaps do not grow the exposition.
    fn forget_version(&self, model: &Arc<str>, version: u64) {
        // A family cannot list its series.
        for (protocol, status) in
            PROTOCOLS.iter().flat_map(|by| STATUSES.iter().map(move |how| (by, how)))
        {
            self.requests.remove(&RequestLabels {
                model: model.clone(),
                version,
                protocol,
                status,
            });
        }
        self.tfs.forget_version(model, version);
        for phase in ["queue", "compute", "total"] {
            self.request_seconds.remove(&PhaseLabels { model: model.clone(), version, phase });
        }
        for home in ["dram", "heap"] {
            self.parameter_bytes.remove(&BytesLabels { home, model: model.clone(), version });
        }
    }

    /// Removes the series of a removed model, except for gauges that the exporter rebuilds.
    /// `causes` are the causes of slow requests, `runtimes` the names of the engines.
    pub fn forget_model(
        &self,
        model: &Arc<str>,
        causes: &[&'static str],
        runtimes: &[&'static str],
    ) {
        self.forget_released(model);
        let labels = ModelLabels { model: model.clone() };
        for counters in [
            &self.swaps,
            &self.load_failures,
            &self.settings_taken_over,
            &self.loader_minor_faults,
            &self.loads_escalated,
            &self.loads_abandoned,
            &self.loader_read_bytes,
            &self.loader_shared_bytes,
            &self.worker_restarts,
            &self.updates.held_back,
            &self.updates.without_turn,
        ] {
            counters.remove(&labels);
        }
        self.loader_cpu_seconds.remove(&labels);
        self.worker_restart_last_seconds.remove(&labels);
        for step in ["load", "warm", "drain", "unload"] {
            let labels = SwapLabels { model: model.clone(), step };
            self.swap_last_seconds.remove(&labels);
            self.swap_seconds.remove(&labels);
        }
        for &cause in causes {
            self.slow_requests.remove(&CauseLabels { model: model.clone(), cause });
        }
        self.rollouts.forget_model(model);
        self.recordings.forget_model(model);
        self.tfs.forget_model(model, runtimes);
    }

    /// Encodes the exposition as OpenMetrics text, which Prometheus reads.
    pub fn encode(&self) -> String {
        let mut text = String::with_capacity(16 << 10);
        let written = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &self.process.registry))
            .and_then(|()| encode_eof(&mut text));
        if written.is_err() {
            // Writing to a string cannot fail; an encoder that does anyway must not take the server
            // down.
            let _ = writeln!(text, "# the exposition could not be written whole");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposition_has_the_names_people_alert_on() {
        let metrics = Metrics::default();
        let model: Arc<str> = "ctr".into();
        let labels =
            RequestLabels { model: model.clone(), version: 3, protocol: "oip-grpc", status: "ok" };
        metrics.requests.get_or_create(&labels).inc();
        let ms = Duration::from_millis;
        let trace = Some(TraceLabels { trace_id: "4bf9".into() });
        let phases = RequestPhases { queue: ms(1), compute: ms(2), total: ms(4), trace };
        metrics.record_phases(&model, 3, phases.clone());
        metrics.record_phases(&model, 3, RequestPhases { trace: None, ..phases });
        metrics.swaps.get_or_create(&ModelLabels { model: model.clone() }).inc();
        let text = metrics.encode();
        assert!(text.contains(
            "millpond_requests_total{model=\"ctr\",version=\"3\",protocol=\"oip-grpc\",status=\"ok\"} 1"
        ));
        let bucket = "millpond_request_seconds_bucket{le=\"0.005\",model=\"ctr\",version=\"3\",phase=\"total\"} 2";
        assert!(text.contains(&format!("{bucket} # {{trace_id=\"4bf9\"}} 0.004 ")), "{text}");
        assert!(text.contains("millpond_swaps_total{model=\"ctr\"} 1"));
        let other = RequestLabels { version: 4, ..labels };
        metrics.requests.get_or_create(&other).inc();
        metrics.forget_version(&model, 3);
        let text = metrics.encode();
        assert!(
            !text.contains("millpond_request_seconds_bucket") && !text.contains("version=\"3\""),
            "{text}"
        );
        assert!(text.contains("version=\"4\""));
    }

    #[test]
    fn counters_of_cluster_alerts_begin_with_zero() {
        let text = Metrics::default().encode();
        for series in [
            "cluster_requests_total{kind=\"partial\"}",
            "cluster_requests_total{kind=\"refused\"}",
            "cluster_snapshots_total{kind=\"failed\"}",
        ] {
            assert!(text.contains(&format!("millpond_{series} 0")), "{series}: {text}");
        }
    }

    #[test]
    fn a_removed_model_leaves_no_series() {
        let metrics = Metrics::default();
        let model: Arc<str> = "short-lived".into();
        let labels = ModelLabels { model: model.clone() };
        metrics.swaps.get_or_create(&labels).inc();
        metrics.loader_cpu_seconds.get_or_create(&labels).inc_by(0.5);
        metrics.worker_restart_last_seconds.get_or_create(&labels).set(0.5);
        metrics.updates.held_back.get_or_create(&labels).inc();
        let swap = SwapLabels { model: model.clone(), step: "warm" };
        metrics.swap_seconds.get_or_create(&swap).inc_by(1.5);
        let slow = CauseLabels { model: model.clone(), cause: "load" };
        metrics.slow_requests.get_or_create(&slow).inc();
        metrics.rollouts.promotions.get_or_create(&labels).inc();
        let withdrawn = ModelKindLabels { model: model.clone(), kind: "drift" };
        metrics.rollouts.rollbacks.get_or_create(&withdrawn).inc();
        let copied = ModelKindLabels { model: model.clone(), kind: "same" };
        metrics.rollouts.shadow_requests.get_or_create(&copied).inc();
        metrics.recordings.seconds.get_or_create(&labels).inc_by(2.5);
        for outcome in ["ok", "partial"] {
            let labels = AudioLabels { recogniser: model.clone(), outcome };
            metrics.recordings.ended.get_or_create(&labels).inc();
        }
        metrics.forget_model(&model, &["load"], &[]);
        let text = metrics.encode();
        assert!(!text.contains("short-lived"), "{text}");
    }
}
