//! Serves `/metrics`: copies the state of the components into gauges, then encodes all metrics.

use std::sync::Arc;
use std::time::Instant;

use base::{Error, Result};
use inference::InferenceStats;
use lifecycle::{LifecycleState, UpdateStatus, VersionStatus};
use metrics::prometheus_client::metrics::counter::Counter;
use metrics::prometheus_client::metrics::family::Family;
use metrics::{
    BytesLabels, ImageMetrics, KeyMetrics, KeyOutcomeLabels, KindLabels, Metrics, ModelKindLabels,
    ModelLabels, Percentiles, PriorityLabels, ProcessMetrics, QuantileLabels, SchedulingMetrics,
    StateLabels, VersionLabels,
};
use os::CpuQuota;
use parking_lot::Mutex;
use schedule::{BATCH_SIZE_BOUNDS, SchedulerSnapshot};
use tokio::sync::Semaphore;
use transport::RequestResources;
use transport::access::KeyRing;

use crate::classic_format::{CLASSIC_TYPE, classic, wants_classic};
use crate::metric_names::{self, MergedRuns, MetricNames};
use crate::parts::{EndpointLoad, ObservedParts, RegistryReader};
use crate::threads;

/// Content type of OpenMetrics.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writer of all metrics.
pub struct Exporter {
    parts: ObservedParts,
    requests: Arc<RequestResources>,
    registry: RegistryReader,
    keys: Option<Arc<KeyRing>>,
    endpoints: Box<dyn Fn() -> EndpointLoad + Send + Sync>,
    merged: Mutex<MergedRuns>,
    /// Held while gauges are rebuilt and encoded, so that scrapes do not clear each other's series.
    scrape: Mutex<()>,
    /// Turns of [`Exporter::in_turn`].
    turns: Arc<Semaphore>,
}

/// Metrics in one of the two formats.
pub struct Exposition {
    /// Content type of the format.
    pub content_type: &'static str,
    /// All metrics in the format.
    pub text: String,
}

impl Exporter {
    /// Creates an exporter. `endpoints` returns the work in progress of the other endpoints.
    pub fn new(
        parts: ObservedParts,
        requests: Arc<RequestResources>,
        registry: RegistryReader,
        keys: Option<Arc<KeyRing>>,
        endpoints: impl Fn() -> EndpointLoad + Send + Sync + 'static,
    ) -> Exporter {
        let endpoints = Box::new(endpoints);
        let merged = Mutex::default();
        let scrape = Mutex::new(());
        let turns = Arc::new(Semaphore::new(1));
        Exporter { parts, requests, registry, keys, endpoints, merged, scrape, turns }
    }

    /// Returns the result of `make`, which writes metrics. Runs it on a thread that serves no
    /// connections, because the metrics of thousands of models take long. One runs at a time.
    ///
    /// # Errors
    /// `Internal` if `make` panics.
    pub async fn in_turn<T: Send + 'static>(
        self: Arc<Self>,
        make: impl FnOnce(&Exporter) -> T + Send + 'static,
    ) -> Result<T> {
        let closed = |_| Error::unavailable("the server is shutting down");
        let turn = self.turns.clone().acquire_owned().await.map_err(closed)?;
        let made = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            make(&self)
        });
        made.await
            .map_err(|error| Error::internal("the metrics could not be written").with_source(error))
    }

    /// Returns the current metrics as OpenMetrics.
    pub fn exposition(&self) -> String {
        let parts = &self.parts;
        let _alone = self.scrape.lock();
        parts.metrics.expire_versions(Instant::now());
        windows(&parts.metrics, &parts.stats);
        memory(parts);
        versions(parts);
        let metrics = &parts.metrics;
        level(&metrics.queue, "length", parts.scheduler.queued() as u64);
        level(&metrics.queue, "max", parts.scheduler.queue_max() as u64);
        level(&metrics.request_memory_bytes, "max", self.requests.memory.max());
        level(&metrics.request_memory_bytes, "used", self.requests.memory.used());
        level(&metrics.request_memory_bytes, "peak", self.requests.memory.peak());
        level(&metrics.descriptors, "open", transport::descriptors::open());
        level(&metrics.descriptors, "limit", transport::descriptors::limit());
        level(&metrics.decode_queue, "waiting", self.requests.codec.waiting() as u64);
        for (kind, count) in threads::KINDS.into_iter().zip(threads::count()) {
            level(&metrics.threads, kind, count);
        }
        let endpoints = (self.endpoints)();
        metrics.recordings.active.set(endpoints.recordings as i64);
        level(&metrics.images.waiting, "interactive", endpoints.interactive_images as u64);
        level(&metrics.images.waiting, "bulk", endpoints.bulk_images as u64);
        collections(&metrics.images, &self.registry);
        if let Some(ring) = &self.keys {
            keys(&metrics.keys, ring);
        }
        let snapshot = parts.scheduler.snapshot();
        level(&metrics.scheduling.workers, "all", snapshot.workers as u64);
        level(&metrics.scheduling.workers, "busy", snapshot.busy as u64);
        scheduling(&metrics.scheduling, &snapshot);
        process(&metrics.process);
        metrics.encode()
    }

    /// Returns the current metrics and the metrics under the `names` of other servers. They have
    /// the format that a scraper with the header `accept` prefers, and come with its content type.
    pub fn preferred(&self, names: MetricNames, accept: &str) -> Exposition {
        let text = self.exposition();
        let added = metric_names::exposition(names, &self.parts, &self.merged);
        if wants_classic(accept) {
            Exposition { content_type: CLASSIC_TYPE, text: classic(&text) + &added }
        } else if added.is_empty() {
            Exposition { content_type: CONTENT_TYPE, text }
        } else {
            Exposition { content_type: CONTENT_TYPE, text: metric_names::append(&text, &added) }
        }
    }

    /// Returns the metrics under TensorFlow Serving's names, and then all others, in the older text
    /// format.
    pub fn tfs_exposition(&self) -> String {
        metric_names::tfs(&self.parts, &self.merged) + &classic(&self.exposition())
    }
}

fn level(family: &Family<KindLabels, metrics::LevelGauge>, kind: &'static str, value: u64) {
    family.get_or_create(&KindLabels { kind }).set(i64::try_from(value).unwrap_or(i64::MAX));
}

/// Sets the gauges of images, and of collections if they are open.
fn collections(images: &ImageMetrics, registry: &RegistryReader) {
    let gpu = coarse::device::counters();
    level(&images.gpu, "queries", gpu.queries);
    level(&images.gpu, "fallbacks", gpu.fallbacks);
    level(&images.gpu, "limited", gpu.limited);
    level(&images.gpu, "passes", gpu.passes);
    level(&images.gpu, "joined", gpu.joined);
    level(&images.gpu, "device_bytes", gpu.device_bytes);
    level(&images.gpu, "pinned_bytes", gpu.pinned_bytes);
    images.collection.clear();
    let Some(registry) = registry() else { return };
    let stats = registry.stats();
    let search::registry::CollectionCounts { opening, ready, broken } = stats.collections;
    for (state, count) in [("opening", opening), ("ready", ready), ("broken", broken)] {
        level(&images.collections, state, count as u64);
    }
    level(&images.memory_bytes, "used", stats.memory.used);
    level(&images.memory_bytes, "cached", stats.memory.cached);
    level(&images.memory_bytes, "max", stats.memory.limit);
    level(&images.queries, "waiting", stats.queued as u64);
    level(&images.queries, "max", stats.queue_max as u64);
    level(&images.queries, "done", stats.done);
    level(&images.queries, "refused", stats.refused);
    level(&images.queries, "helped", stats.helped);
    level(&images.writes, "waiting", stats.stalls.waiting as u64);
    level(&images.writes, "waited", stats.stalls.waited);
    level(&images.writes, "refused", stats.stalls.refused);
    level(&images.writes, "slowed", stats.stalls.slowed);
    level(&images.writes, "hurried", stats.stalls.escalated.into());
    level(&images.filters, "indexed", stats.filters.indexed);
    level(&images.filters, "verified", stats.filters.verified);
    level(&images.filters, "scanned", stats.filters.scanned);
    level(&images.filters, "paused", stats.filters.paused);
    level(&images.filters, "late", stats.filters.late);
    search_caches(&images.search_caches, &stats);
    images.media.clear();
    for listed in registry.list() {
        let search::registry::ListedState::Ready(named) = listed.state else { continue };
        let kind = search::registry::medium_name(named.collection().medium_kind());
        images.media.get_or_create(&KindLabels { kind }).inc();
        let status = named.collection().status();
        let set = |kind: &'static str, value: u64| {
            let labels = ModelKindLabels { model: listed.name.as_str().into(), kind };
            images.collection.get_or_create(&labels).set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        let codes = status.segments.iter().map(|segment| segment.codes_on_medium);
        set("codes_on_medium_bytes", codes.sum());
        set("points", status.points);
        set("segments", status.segments.len() as u64);
        set("seals", status.flushes);
        set("merges", status.merges);
        set("refused_disk_full", status.disk_refused);
    }
}

/// Sets the gauges of the caches of records and of segment files.
fn search_caches(
    caches: &Family<KindLabels, metrics::LevelGauge>,
    stats: &search::registry::RegistryStats,
) {
    let records = stats.record_cache.unwrap_or_default();
    level(caches, "record_lookups", records.lookups);
    level(caches, "record_hits", records.hits);
    level(caches, "records_in", records.inserted);
    level(caches, "records_out", records.evicted);
    let blocks = stats.record_blocks.unwrap_or_default();
    level(caches, "block_lookups", blocks.lookups);
    level(caches, "block_hits", blocks.hits);
    level(caches, "blocks_in", blocks.filled);
    level(caches, "blocks_out", blocks.evicted);
    level(caches, "blocks", blocks.blocks);
    level(caches, "blocks_max", blocks.blocks_max);
    let segments = &stats.segment_cache;
    for (names, reads) in [
        (["code_lookups", "code_hits", "code_reads", "code_read_bytes"], segments.codes),
        (
            ["index_lookups", "index_hits", "index_reads", "index_read_bytes"],
            segments.payload_index,
        ),
        (["vector_lookups", "vector_hits", "vector_reads", "vector_read_bytes"], segments.vectors),
        (
            ["payload_lookups", "payload_hits", "payload_reads", "payload_read_bytes"],
            segments.payloads,
        ),
    ] {
        let counts = [reads.lookups, reads.hits, reads.reads, reads.read_bytes];
        names.into_iter().zip(counts).for_each(|(name, count)| level(caches, name, count));
    }
    level(caches, "codes_out", segments.evicted);
    level(caches, "blocks_preloaded", segments.preloaded);
    level(caches, "codes_refused", segments.refused);
    level(caches, "code_bytes", segments.bytes);
}

/// Rebuilds the metrics of keys, so that a removed key leaves no series.
fn keys(metrics: &KeyMetrics, ring: &KeyRing) {
    metrics.clear();
    for usage in ring.usage() {
        let count = |outcome: &'static str, value: u64| {
            let labels = KeyOutcomeLabels { key: usage.name.clone(), outcome };
            SchedulingMetrics::count(&metrics.requests.get_or_create(&labels), value);
        };
        count("accepted", usage.accepted);
        count("refused_rate", usage.refused_requests);
        count("refused_cpu", usage.refused_cpu);
        metrics.set_cpu_seconds(&usage.name, usage.cpu.as_secs_f64());
    }
    metrics.sessions.set(ring.sessions() as i64);
}

/// Rebuilds the metrics of the scheduler, so that a removed model leaves no series.
fn scheduling(metrics: &SchedulingMetrics, snapshot: &SchedulerSnapshot) {
    metrics.clear();
    for model in &snapshot.models {
        let labels = ModelLabels { model: model.model.clone() };
        let bounds = BATCH_SIZE_BOUNDS.iter().map(|&bound| bound as f64).chain([f64::INFINITY]);
        let sizes = bounds.zip(model.batch_sizes).collect();
        metrics.batch_size.get_or_create(&labels).set(model.items as f64, sizes);
        SchedulingMetrics::count(&metrics.added_items.get_or_create(&labels), model.added_items);
        SchedulingMetrics::count(&metrics.reruns.get_or_create(&labels), model.reruns);
        let unjoined = metrics.unjoined_versions.get_or_create(&labels);
        SchedulingMetrics::count(&unjoined, model.unjoined_versions);
        metrics.running.get_or_create(&labels).set(model.running as i64);
        let count = |family: &Family<ModelKindLabels, Counter>, kind: &'static str, value: u64| {
            let labels = ModelKindLabels { model: model.model.clone(), kind };
            SchedulingMetrics::count(&family.get_or_create(&labels), value);
        };
        count(&metrics.input_elements, "real", model.real_elements);
        count(&metrics.input_elements, "padding", model.padding_elements);
        count(&metrics.requests, "run", model.requests);
        count(&metrics.requests, "refused", model.refused);
        count(&metrics.requests, "expired", model.expired);
        count(&metrics.requests, "cancelled", model.cancelled);
        for (priority, &queued) in (1..).zip(&model.queued_by_priority) {
            let labels = PriorityLabels { model: model.model.clone(), priority };
            metrics.queued.get_or_create(&labels).set(queued as i64);
        }
    }
}

/// Rebuilds the metrics of windows, so that a removed model leaves no series.
fn windows(metrics: &Metrics, stats: &InferenceStats) {
    metrics.window_seconds.clear();
    metrics.window_rate.clear();
    for (model, seen) in stats.percentiles(Instant::now()) {
        window(metrics, model, &seen);
    }
}

/// Sets the metrics of a model's window. Without a request there is a rate, which is 0, but no
/// latency.
fn window(metrics: &Metrics, model: Arc<str>, seen: &Percentiles) {
    let quantiles = [
        ("0.5", seen.p50),
        ("0.8", seen.p80),
        ("0.9", seen.p90),
        ("0.99", seen.p99),
        ("0.999", seen.p999),
    ];
    for (quantile, value) in quantiles.into_iter().filter(|_| seen.count > 0) {
        let labels = QuantileLabels { model: model.clone(), quantile };
        metrics.window_seconds.get_or_create(&labels).set(value.as_secs_f64());
    }
    metrics.window_rate.get_or_create(&ModelLabels { model }).set(seen.rate);
}

/// Sets the gauges of the slot pool and of the process's memory.
fn memory(parts: &ObservedParts) {
    let set = |kind, bytes| level(&parts.metrics.pool_bytes, kind, bytes);
    let pool = parts.memory.pool().stats();
    set("max", pool.bytes_max);
    set("backed", pool.backed);
    set("used", pool.used);
    let set = |kind, bytes| level(&parts.metrics.process_bytes, kind, bytes);
    if let Ok(process) = os::process::memory() {
        set("rss", process.rss);
        set("rss_peak", process.rss_peak);
    }
    set("workers", parts.isolation.resident_bytes());
    if let Some(heap) = os::jemalloc::stats() {
        set("heap_allocated", heap.allocated);
        set("heap_resident", heap.resident);
    }
    // Read each time, because the limit of a running container can change.
    let quota = CpuQuota::of_this_process();
    parts.metrics.cpu_limit_cores.set(quota.map_or(0.0, |quota| quota.cores));
    parts
        .metrics
        .cpu_throttled_seconds
        .set(quota.map_or(0.0, |quota| quota.throttled.as_secs_f64()));
}

/// Sets the figures of the process.
fn process(metrics: &ProcessMetrics) {
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    metrics.open_descriptors.set(gauge(transport::descriptors::open()));
    metrics.descriptors_max.set(gauge(transport::descriptors::limit()));
    // Without /proc the figures stay 0.
    let Ok(usage) = os::process::usage() else { return };
    metrics.set_cpu_seconds(usage.cpu_seconds);
    metrics.resident_bytes.set(gauge(usage.resident_bytes));
    metrics.virtual_bytes.set(gauge(usage.virtual_bytes));
    metrics.threads.set(gauge(usage.threads));
    metrics.start_time.set(usage.start_time);
}

/// Rebuilds the gauges of versions, so that a released version leaves no series.
fn versions(parts: &ObservedParts) {
    parts.metrics.model_state.clear();
    parts.metrics.failed_version.clear();
    parts.metrics.parameter_bytes.clear();
    parts.metrics.updates.waiting.clear();
    let home = if parts.parameters_in_pool { "dram" } else { "heap" };
    for model in parts.lifecycle.status() {
        let name: &Arc<str> = &model.name;
        let waits =
            |version: &&VersionStatus| matches!(version.update, Some(UpdateStatus::Waiting { .. }));
        let waiting = model.versions.iter().filter(waits).count();
        if waiting > 0 {
            let labels = ModelLabels { model: name.clone() };
            parts.metrics.updates.waiting.get_or_create(&labels).set(waiting as i64);
        }
        let is_ready = |version: &&VersionStatus| version.state == LifecycleState::Ready;
        let newest = model.versions.iter().filter(is_ready).map(|ready| ready.version).max();
        for version in model.versions {
            if version.state == LifecycleState::Failed {
                let labels = VersionLabels { model: name.clone(), version: version.version };
                let is_newest = newest.is_none_or(|ready| ready < version.version);
                parts.metrics.failed_version.get_or_create(&labels).set(i64::from(is_newest));
            }
            let labels = StateLabels {
                model: name.clone(),
                version: version.version,
                state: version.state.name(),
            };
            parts.metrics.model_state.get_or_create(&labels).set(1);
            if version.parameter_bytes > 0 {
                let labels = BytesLabels { home, model: name.clone(), version: version.version };
                parts
                    .metrics
                    .parameter_bytes
                    .get_or_create(&labels)
                    .set(version.parameter_bytes as i64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use schedule::ModelSnapshot;

    use super::*;

    #[test]
    fn counts_of_the_scheduler_end_with_the_model() {
        let metrics = Metrics::default();
        let mut sizes = [0; BATCH_SIZE_BOUNDS.len() + 1];
        (sizes[0], sizes[3]) = (2, 1);
        let model = ModelSnapshot {
            model: "m".into(),
            queued_by_priority: vec![4, 5],
            running: 2,
            requests: 9,
            batches: 3,
            items: 10,
            added_items: 2,
            batch_sizes: sizes,
            real_elements: 30,
            padding_elements: 6,
            refused: 1,
            unjoined_versions: 1,
            ..ModelSnapshot::default()
        };
        scheduling(
            &metrics.scheduling,
            &SchedulerSnapshot { models: vec![model], ..SchedulerSnapshot::default() },
        );
        let text = metrics.encode();
        for line in [
            "millpond_batch_size_count{model=\"m\"} 3",
            "millpond_batch_size_sum{model=\"m\"} 10.0",
            "millpond_batch_size_bucket{le=\"4.0\",model=\"m\"} 2",
            "millpond_batch_size_bucket{le=\"8.0\",model=\"m\"} 3",
            "millpond_added_items_total{model=\"m\"} 2",
            "millpond_unjoined_versions_total{model=\"m\"} 1",
            "millpond_input_elements_total{model=\"m\",kind=\"padding\"} 6",
            "millpond_scheduled_requests_total{model=\"m\",kind=\"refused\"} 1",
            "millpond_queued_requests{model=\"m\",priority=\"2\"} 5",
            "millpond_running{model=\"m\"} 2",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
        scheduling(&metrics.scheduling, &SchedulerSnapshot::default());
        assert!(!metrics.encode().contains("\"m\""));
    }

    #[test]
    fn windows_end_with_the_model() {
        let metrics = Metrics::default();
        let labels = QuantileLabels { model: "m".into(), quantile: "0.5" };
        metrics.window_seconds.get_or_create(&labels).set(0.25);
        metrics.window_rate.get_or_create(&ModelLabels { model: "m".into() }).set(4.0);
        assert!(metrics.encode().contains("\"m\""));
        windows(&metrics, &InferenceStats::default());
        assert!(!metrics.encode().contains("\"m\""));
    }

    #[test]
    fn an_idle_model_has_a_rate_and_no_latency() {
        let metrics = Metrics::default();
        window(&metrics, "m".into(), &Percentiles::default());
        let text = metrics.encode();
        assert!(text.contains("millpond_window_requests_per_second{model=\"m\"} 0.0"), "{text}");
        assert!(!text.contains("millpond_window_latency_seconds{"), "{text}");
        let seen =
            Percentiles { count: 1, p99: Duration::from_millis(4), ..Percentiles::default() };
        window(&metrics, "m".into(), &seen);
        let p99 = "millpond_window_latency_seconds{model=\"m\",quantile=\"0.99\"} 0.004";
        assert!(metrics.encode().contains(p99));
    }
}
