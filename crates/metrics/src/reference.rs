//! Keeps `docs/metrics.md` in step with the registries: `UPDATE_DOCS=1` writes it anew.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::*;

const HEAD: &str = "\
# Metrics

This page lists every metric of `/metrics` with the help text of the server. It is made by
`UPDATE_DOCS=1 cargo test -p millpond-metrics`; a test fails if it is stale. Counters have the suffix `_total`;
histograms have `_bucket`, `_sum` and `_count`. A metric appears with its first series. The series of a version
end 150 s after its release, so the number of series does not grow with each new version.

";

const TFS_HEAD: &str = "
## TensorFlow Serving's names

`/monitoring/prometheus/metrics` exports TensorFlow Serving's names, and then all metrics above. With `millpond tfs`,
this path exists only with `--monitoring_config_file`, beside the path that the file names. Only requests to
TensorFlow Serving's API count. `input_batch_size` has one value for each request, not one for each input. Three more
metrics describe the runs of models that merge requests, over all protocols:

- `:tensorflow:serving:batching_session:wrapped_run_count` (counter): runs.
- `:tensorflow:serving:batching_session:processed_batch_size` (histogram): items of a run, with added ones.
- `:tensorflow:serving:batching_session:padding_size` (histogram, label `execution_batch_size`): items added up to an
  allowed batch size, which the label names.

Millpond does not have two kinds of TensorFlow Serving's metrics:

- `:tensorflow:serving:mlmd_map`, because ids of ML Metadata are not read.
- The metrics of TensorFlow's own libraries (`:tensorflow:core:*`, `:tensorflow:cc:*`), because TensorFlow's C interface
  has no call that reads them.

";

fn kinds<M: Clone + Default>(family: &Family<KindLabels, M>, kinds: &[&'static str]) {
    for &kind in kinds {
        drop(family.get_or_create(&KindLabels { kind }));
    }
}

fn model_kinds<M: Clone + Default>(family: &Family<ModelKindLabels, M>, kinds: &[&'static str]) {
    for &kind in kinds {
        drop(family.get_or_create(&ModelKindLabels { model: "NAME".into(), kind }));
    }
}

fn models<M: Clone + Default>(families: &[&Family<ModelLabels, M>]) {
    for family in families {
        drop(family.get_or_create(&ModelLabels { model: "NAME".into() }));
    }
}

/// Files that register metrics.
const SOURCES: [&str; 12] = [
    include_str!("register.rs"),
    include_str!("audio.rs"),
    include_str!("images.rs"),
    include_str!("keys.rs"),
    include_str!("process.rs"),
    include_str!("rollout.rs"),
    include_str!("scheduling.rs"),
    include_str!("stores.rs"),
    include_str!("backups.rs"),
    include_str!("cluster.rs"),
    include_str!("tfs.rs"),
    include_str!("updates.rs"),
];

/// Limits that refuse requests.
const REFUSALS: [&str; 24] = [
    "backup_queue",
    "connections_max",
    "descriptors",
    "image_additions_max",
    "image_removals_max",
    "images_bulk_max",
    "images_queue_max",
    "ingest_queue_max",
    "key_cpu",
    "key_failures",
    "key_rate",
    "originals_queue_max",
    "pages_max",
    "queue_max",
    "read_bytes_max",
    "receiving_max",
    "recordings_max",
    "request_memory",
    "requests_max",
    "search_queue",
    "slow_reader",
    "snapshots_max",
    "watchers_max",
    "write_queue",
];

/// Kinds of HTTP/2 frames that a client can flood with.
const FRAMES: [&str; 13] = [
    "continuation",
    "data_empty",
    "data_end",
    "goaway",
    "h2_limit",
    "ping",
    "ping_ack",
    "priority",
    "rst_stream",
    "settings",
    "settings_ack",
    "unknown",
    "window_update",
];

/// Kinds of threads.
const THREADS: [&str; 13] = [
    "connection",
    "decoder",
    "worker",
    "audio",
    "images",
    "ingest",
    "search",
    "load",
    "unload",
    "prefault",
    "lifecycle",
    "source",
    "other",
];

/// Causes of slow requests.
const CAUSES: [&str; 12] = [
    "cpu_contention",
    "stolen_time",
    "throttled",
    "page_faults",
    "load",
    "behind_batch",
    "own_queue",
    "batch_mates",
    "large_request",
    "client_slow_send",
    "client_slow_read",
    "unknown",
];

/// Makes a series for each value of each label.
fn fill(metrics: &Metrics) {
    let model: Arc<str> = "NAME".into();
    for cause in CAUSES {
        drop(metrics.slow_requests.get_or_create(&CauseLabels { model: model.clone(), cause }));
    }
    for protocol in PROTOCOLS {
        for status in STATUSES {
            let labels = RequestLabels { model: model.clone(), version: 1, protocol, status };
            drop(metrics.requests.get_or_create(&labels));
        }
    }
    for phase in ["queue", "compute", "total"] {
        drop(metrics.request_seconds.get_or_create(&PhaseLabels {
            model: model.clone(),
            version: 1,
            phase,
        }));
    }
    for quantile in ["0.5", "0.8", "0.9", "0.99", "0.999"] {
        let labels = QuantileLabels { model: model.clone(), quantile };
        drop(metrics.window_seconds.get_or_create(&labels));
    }
    for home in ["dram", "heap"] {
        let labels = BytesLabels { home, model: model.clone(), version: 1 };
        drop(metrics.parameter_bytes.get_or_create(&labels));
    }
    for state in
        ["discovered", "admitted", "loading", "warming", "ready", "draining", "released", "failed"]
    {
        let labels = StateLabels { model: model.clone(), version: 1, state };
        drop(metrics.model_state.get_or_create(&labels));
    }
    let failed = VersionLabels { model: model.clone(), version: 1 };
    drop(metrics.failed_version.get_or_create(&failed));
    for step in ["load", "warm", "drain", "unload"] {
        let labels = SwapLabels { model: model.clone(), step };
        drop(metrics.swap_last_seconds.get_or_create(&labels));
        drop(metrics.swap_seconds.get_or_create(&labels));
    }
    fill_models(metrics);
    fill_scheduling(&metrics.scheduling);
    fill_rollouts(&metrics.rollouts);
    models(&[&metrics.updates.waiting]);
    models(&[&metrics.updates.held_back, &metrics.updates.without_turn]);
    metrics.stores.add_to(&metrics.stores, &"URL".into());
    kinds(&metrics.stores.cache_bytes, &["used", "max"]);
    fill_backups(&metrics.backups);
    fill_cluster(&metrics.cluster);
    fill_images(&metrics.images);
    for outcome in ["accepted", "refused_rate", "refused_cpu"] {
        drop(
            metrics.keys.requests.get_or_create(&KeyOutcomeLabels { key: model.clone(), outcome }),
        );
    }
    metrics.keys.set_cpu_seconds(&model, 0.0);
    for outcome in STATUSES.into_iter().chain(["partial"]) {
        let labels = AudioLabels { recogniser: model.clone(), outcome };
        drop(metrics.recordings.ended.get_or_create(&labels));
    }
    models(&[&metrics.recordings.seconds]);
    fill_tfs(&metrics.tfs, &model);
}

fn fill_models(metrics: &Metrics) {
    models(&[&metrics.window_rate]);
    models(&[&metrics.loader_cpu_seconds]);
    models(&[
        &metrics.swaps,
        &metrics.load_failures,
        &metrics.settings_taken_over,
        &metrics.loader_minor_faults,
        &metrics.loads_escalated,
        &metrics.loads_abandoned,
    ]);
    models(&[&metrics.loader_read_bytes, &metrics.loader_shared_bytes, &metrics.worker_restarts]);
    models(&[&metrics.worker_restart_last_seconds]);
    drop(metrics.scan_time.get_or_create(&RootLabels { root: "ROOT".to_owned() }));
    kinds(&metrics.worker_spares, &["started", "used", "failed"]);
    kinds(&metrics.refused, &REFUSALS);
    kinds(
        &metrics.stream_pauses,
        &["requests_max", "request_memory", "request_timeout", "stream_requests_max"],
    );
    kinds(&metrics.pool_bytes, &["max", "backed", "used"]);
    kinds(
        &metrics.process_bytes,
        &["rss", "rss_peak", "workers", "heap_allocated", "heap_resident"],
    );
    kinds(&metrics.config_reloads, &["ok", "failed"]);
    kinds(&metrics.config_reload_time, &["ok", "failed"]);
    kinds(&metrics.request_log, &["written", "dropped", "failed"]);
    kinds(&metrics.trace_spans, &["exported", "dropped", "failed"]);
    kinds(&metrics.queue, &["length", "max"]);
    kinds(&metrics.request_memory_bytes, &["max", "used", "peak"]);
    kinds(&metrics.decoded, &["unpack", "decode", "encode"]);
    kinds(&metrics.decode_queue, &["waiting"]);
    kinds(&metrics.connections, &["http", "grpc", "admin", "http-unix", "grpc-unix"]);
    kinds(&metrics.connections_ended, &FRAMES);
    kinds(&metrics.tls_handshakes, &["ok", "failed", "timeout", "plaintext", "tls_at_plain_port"]);
    kinds(&metrics.access_reloads, &["ok", "failed"]);
    kinds(&metrics.descriptors, &["open", "limit"]);
    kinds(&metrics.threads, &THREADS);
}

fn fill_scheduling(scheduling: &SchedulingMetrics) {
    models(&[&scheduling.batch_size]);
    models(&[&scheduling.added_items, &scheduling.reruns, &scheduling.unjoined_versions]);
    models(&[&scheduling.running]);
    model_kinds(&scheduling.input_elements, &["real", "padding"]);
    model_kinds(&scheduling.requests, &["run", "refused", "expired", "cancelled"]);
    drop(scheduling.queued.get_or_create(&PriorityLabels { model: "NAME".into(), priority: 1 }));
    kinds(&scheduling.workers, &["all", "busy"]);
}

fn fill_rollouts(rollouts: &RolloutMetrics) {
    models(&[&rollouts.running]);
    models(&[&rollouts.promotions, &rollouts.overflows]);
    model_kinds(&rollouts.rollbacks, &RolloutMetrics::REASONS);
    model_kinds(&rollouts.shadow_requests, &RolloutMetrics::COPIES);
}

fn fill_images(images: &ImageMetrics) {
    kinds(&images.put, &[&["added", "present"][..], &STATUSES[1..]].concat());
    for kind in ["decode", "embed", "keypoints", "search", "views"] {
        drop(images.search_seconds.get_or_create(&KindLabels { kind }));
    }
    kinds(&images.waiting, &["interactive", "bulk"]);
    kinds(&images.removals, &["checked", "failed", "damaged", "unused"]);
    kinds(&images.collections, &["opening", "ready", "broken"]);
    model_kinds(
        &images.collection,
        &["points", "segments", "codes_on_medium_bytes", "seals", "merges", "refused_disk_full"],
    );
    kinds(&images.memory_bytes, &["used", "cached", "max"]);
    kinds(&images.media, &["nvme", "dram", "mmap", "dax"]);
    kinds(&images.queries, &["waiting", "max", "done", "refused", "helped"]);
    kinds(&images.filters, &["indexed", "verified", "scanned", "paused", "late"]);
    kinds(&images.writes, &["waiting", "waited", "refused", "slowed", "hurried"]);
    let records = ["record_lookups", "record_hits", "records_in", "records_out"];
    let blocks = ["block_lookups", "block_hits", "blocks_in", "blocks_out", "blocks", "blocks_max"];
    let codes = [
        "code_lookups",
        "code_hits",
        "code_reads",
        "code_read_bytes",
        "codes_out",
        "codes_refused",
        "blocks_preloaded",
        "code_bytes",
    ];
    let index = ["index_lookups", "index_hits", "index_reads", "index_read_bytes"];
    let vectors = ["vector_lookups", "vector_hits", "vector_reads", "vector_read_bytes"];
    let payloads = ["payload_lookups", "payload_hits", "payload_reads", "payload_read_bytes"];
    kinds(
        &images.search_caches,
        &[&records[..], &blocks, &codes, &index, &vectors, &payloads].concat(),
    );
    kinds(
        &images.gpu,
        &["queries", "fallbacks", "limited", "passes", "joined", "device_bytes", "pinned_bytes"],
    );
}

fn fill_tfs(tfs: &TfsMetrics, model: &Arc<str>) {
    for status in STATUSES {
        tfs.count(model, "tfs-http", status);
    }
    for api in tfs::APIS {
        for protocol in ["tfs-http", "tfs-grpc"] {
            let queue = Some(Duration::ZERO);
            let compute = Duration::ZERO;
            let total = Duration::ZERO;
            let runtime = "ENGINE";
            let items = 1;
            tfs.record(protocol, &TfsRequest { model, api, runtime, items, queue, compute, total });
        }
    }
    tfs.count_examples(model, "tfs-http", 1);
    tfs.count_logged(model, "tfs-http", false);
    tfs.count_logged(model, "tfs-http", true);
    tfs.warmed("NAME", 1, 0.1, 1);
}

/// A metric of an exposition.
#[derive(Default)]
struct DescribedMetric {
    name: String,
    help: String,
    kind: String,
    unit: String,
    /// Values of each label, in the order of the first series.
    labels: Vec<(String, Vec<String>)>,
}

impl DescribedMetric {
    fn add_series(&mut self, labels: &str) {
        for pair in labels.split("\",") {
            let (name, value) = pair.split_once("=\"").unwrap();
            if name == "le" {
                continue;
            }
            let value = value.trim_end_matches('"').to_owned();
            match self.labels.iter_mut().find(|(known, _)| known == name) {
                None => self.labels.push((name.to_owned(), vec![value])),
                Some((_, values)) if !values.contains(&value) => values.push(value),
                Some(_) => {}
            }
        }
    }

    /// Formats one metric as a row of the table.
    fn row(&mut self) -> String {
        let label = |(name, values): &mut (String, Vec<String>)| {
            values.sort();
            let open = [
                "model",
                "version",
                "priority",
                "recogniser",
                "model_name",
                "model_path",
                "store",
                "root",
                "key",
                "runtime",
            ];
            if open.contains(&name.as_str()) {
                format!("`{name}`")
            } else {
                format!("`{name}`: {}", values.join(", "))
            }
        };
        let labels: Vec<String> = self.labels.iter_mut().map(label).collect();
        let suffix =
            if self.kind == "counter" && !self.name.starts_with(':') { "_total" } else { "" };
        let DescribedMetric { name, help, kind, unit, .. } = self;
        format!("| `{name}{suffix}` | {kind} | {unit} | {} | {help} |\n", labels.join("; "))
    }
}

fn table(exposition: &str) -> String {
    let mut text = "| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n".to_owned();
    let mut metrics: Vec<DescribedMetric> = Vec::new();
    for line in exposition.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", "HELP", name, help] => metrics.push(DescribedMetric {
                name: (*name).to_owned(),
                help: help.trim_end_matches('.').to_owned(),
                ..DescribedMetric::default()
            }),
            ["#", "TYPE", _, kind] => metrics.last_mut().unwrap().kind = (*kind).to_owned(),
            ["#", "UNIT", _, unit] => metrics.last_mut().unwrap().unit = (*unit).to_owned(),
            ["#", ..] => {}
            _ => {
                if let Some((_, labels)) = line.split_once('{') {
                    let labels = labels.rsplit_once('}').unwrap().0;
                    metrics.last_mut().unwrap().add_series(labels);
                }
            }
        }
    }
    metrics.sort_by(|one, other| one.name.cmp(&other.name));
    for metric in &mut metrics {
        text.push_str(&metric.row());
    }
    text
}

#[test]
fn the_reference_is_up_to_date() {
    let metrics = Metrics::default();
    fill(&metrics);
    let mut text = HEAD.to_owned();
    let tables = [table(&metrics.encode()), table(&metrics.tfs.encode())];
    // A metric without a series is not encoded, so `fill` must know each.
    let registered: usize =
        SOURCES.iter().map(|source| source.matches(" r.register").count()).sum();
    let rows: usize = tables.iter().map(|table| table.lines().count() - 2).sum();
    assert_eq!(rows, registered, "give the new metric a series in `fill`");
    write!(text, "{}{TFS_HEAD}{}", tables[0], tables[1]).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == text,
        "docs/metrics.md is stale; run `UPDATE_DOCS=1 cargo test -p millpond-metrics` and commit it"
    );
}

fn fill_cluster(cluster: &ClusterMetrics) {
    let requests = [
        "first",
        "hedged",
        "hedge_won",
        "retried",
        "confirmed",
        "partial",
        "refused",
        "background",
    ];
    kinds(&cluster.requests, &requests);
    kinds(&cluster.operations, &["applied", "skipped"]);
    kinds(&cluster.snapshots, &["taken", "failed", "restored"]);
}

fn fill_backups(backups: &BackupMetrics) {
    let works = ["backup", "restore", "clone", "verify", "prune", "delete", "upload", "download"];
    for work in works {
        for outcome in ["ok", "failed"] {
            drop(backups.work.get_or_create(&BackupWorkLabels { work, outcome }));
        }
    }
    for kind in ["uploaded", "present", "restored", "verified"] {
        drop(backups.bytes.get_or_create(&KindLabels { kind }));
    }
    for kind in ["ok", "failed"] {
        drop(backups.time.get_or_create(&KindLabels { kind }));
    }
}
