//! `/metrics`: mirrors the state of the components into gauges, then encodes.

use std::sync::Arc;
use std::time::Instant;

use metrics::{BytesLabels, KindLabels, ModelLabels, QuantileLabels, StateLabels};

use crate::app::App;

/// The content type of the exposition.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The exposition, as of now.
pub(crate) fn exposition(app: &App) -> String {
    windows(app);
    memory(app);
    versions(app);
    let level = |family: &metrics::prometheus_client::metrics::family::Family<KindLabels, metrics::Level>,
                 kind: &'static str,
                 value: u64| {
        family.get_or_create(&KindLabels { kind }).set(i64::try_from(value).unwrap_or(i64::MAX));
    };
    let metrics = &app.metrics;
    level(&metrics.queue, "length", app.scheduler.queued() as u64);
    level(&metrics.queue, "max", app.scheduler.queue_max() as u64);
    level(&metrics.threads, "worker", app.scheduler.workers() as u64);
    level(&metrics.threads, "door", app.doors.threads as u64);
    metrics.encode()
}

fn windows(app: &App) {
    for (model, seen) in app.stats.percentiles(Instant::now()) {
        let quantiles = [
            ("0.5", seen.p50),
            ("0.8", seen.p80),
            ("0.9", seen.p90),
            ("0.99", seen.p99),
            ("0.999", seen.p999),
        ];
        for (quantile, value) in quantiles {
            let labels = QuantileLabels { model: model.clone(), quantile };
            app.metrics.window_seconds.get_or_create(&labels).set(value.as_secs_f64());
        }
        app.metrics.window_rate.get_or_create(&ModelLabels { model }).set(seen.rate);
    }
}

fn memory(app: &App) {
    let set = |kind: &'static str, bytes: u64| {
        app.metrics.pool_bytes.get_or_create(&KindLabels { kind }).set(bytes as i64);
    };
    let pool = app.memory.pool().stats();
    set("max", pool.bytes_max);
    set("backed", pool.backed);
    set("used", pool.used);
    let set = |kind: &'static str, bytes: u64| {
        app.metrics.process_bytes.get_or_create(&KindLabels { kind }).set(bytes as i64);
    };
    if let Ok(process) = memory::process::memory() {
        set("rss", process.rss);
        set("rss_peak", process.rss_peak);
    }
    if let Some(heap) = memory::jemalloc::stats() {
        set("heap_allocated", heap.allocated);
        set("heap_resident", heap.resident);
    }
}

/// States and bytes are rebuilt whole, so that a version that is gone leaves no series behind.
fn versions(app: &App) {
    app.metrics.model_state.clear();
    app.metrics.parameter_bytes.clear();
    let home = if app.parameters_in_pool { "dram" } else { "heap" };
    for model in app.lifecycle.status() {
        let name: &Arc<str> = &model.name;
        for version in model.versions {
            let labels =
                StateLabels { model: name.clone(), version: version.version, state: version.state.name() };
            app.metrics.model_state.get_or_create(&labels).set(1);
            if version.parameter_bytes > 0 {
                let labels = BytesLabels { home, model: name.clone(), version: version.version };
                app.metrics.parameter_bytes.get_or_create(&labels).set(version.parameter_bytes as i64);
            }
        }
    }
}
