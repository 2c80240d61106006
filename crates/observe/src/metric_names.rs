//! Metrics under the names of Triton and TensorFlow Serving, beside Millpond's own and from the
//! same counters. A figure that Millpond does not have exactly is left out.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use base::VersionId;
use engine::ScheduleMode;
use metrics::{Metrics, PROTOCOLS, RequestLabels, STATUSES};
use parking_lot::Mutex;
use schedule::{BATCH_SIZE_BOUNDS, FilledRuns, ModelSnapshot, SchedulerSnapshot};

use crate::parts::ObservedParts;

/// Servers whose names are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricNames {
    /// True to export Triton's `nv_inference_*`.
    pub triton: bool,
    /// True to export TensorFlow Serving's `:tensorflow:serving:*`.
    pub tfs: bool,
}

/// Returns the added metrics in the older text format.
pub(crate) fn exposition(
    names: MetricNames,
    parts: &ObservedParts,
    merged: &Mutex<MergedRuns>,
) -> String {
    let mut text = String::new();
    if names.triton {
        triton(parts, &mut text);
    }
    if names.tfs {
        text += &tfs(parts, merged);
    }
    text
}

/// Adds metrics in the older text format to an exposition in OpenMetrics. The added counters have
/// no type there, because counters of OpenMetrics end in `_total`.
pub(crate) fn append(openmetrics: &str, added: &str) -> String {
    const END: &str = "# EOF\n";
    let start = openmetrics.strip_suffix(END).unwrap_or(openmetrics);
    let mut text = String::with_capacity(start.len() + added.len() + END.len());
    text.push_str(start);
    for line in added.lines() {
        let counter = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter"));
        match counter {
            // Writing to a string cannot fail.
            Some(name) => drop(writeln!(text, "# TYPE {name} unknown")),
            None => drop(writeln!(text, "{line}")),
        }
    }
    text + END
}

/// Returns the metrics under TensorFlow Serving's names.
pub(crate) fn tfs(parts: &ObservedParts, merged: &Mutex<MergedRuns>) -> String {
    let mut text = parts.metrics.tfs.encode();
    let mut merged = merged.lock();
    // Read under the lock, so that an older reading does not follow a newer one.
    batching(merged.read(&parts.scheduler.snapshot()), &mut text);
    text
}

/// Counts of values by the bounds [`BATCH_SIZE_BOUNDS`].
type SizeCounts = [u64; BATCH_SIZE_BOUNDS.len() + 1];

/// Runs of all models that merge requests, since the start. They include those of models that were
/// removed. A smaller sum would look like a restart, after which all of it counts as new.
#[derive(Default)]
pub(crate) struct MergedRuns {
    /// Runs of each model at the last reading, of any mode.
    last: HashMap<Arc<str>, RunSums>,
    sums: RunSums,
}

/// Sums of runs.
#[derive(Default)]
struct RunSums {
    runs: u64,
    /// Items of the requests, and copies that the server added to fill a batch.
    items: u64,
    sizes: SizeCounts,
    filled: BTreeMap<usize, FilledRuns>,
}

impl MergedRuns {
    /// Adds the runs since the last reading. Returns the sums.
    fn read(&mut self, snapshot: &SchedulerSnapshot) -> &RunSums {
        let none = RunSums::default();
        let mut last = HashMap::with_capacity(snapshot.models.len());
        for model in &snapshot.models {
            let runs = RunSums::of(model);
            // A model with fewer runs than before was removed and added again.
            let before = self.last.get(&model.model).filter(|before| before.runs <= runs.runs);
            if model.mode == ScheduleMode::Async {
                self.sums.add_growth(before.unwrap_or(&none), &runs);
            }
            last.insert(model.model.clone(), runs);
        }
        self.last = last;
        &self.sums
    }
}

impl RunSums {
    fn of(model: &ModelSnapshot) -> RunSums {
        RunSums {
            runs: model.batches,
            items: model.items + model.added_items,
            sizes: model.run_sizes,
            filled: model.filled.clone(),
        }
    }

    /// Adds the growth of a model's sums.
    fn add_growth(&mut self, before: &RunSums, after: &RunSums) {
        self.runs += after.runs.saturating_sub(before.runs);
        self.items += after.items.saturating_sub(before.items);
        add_growth(&mut self.sizes, &before.sizes, &after.sizes);
        let none = FilledRuns::default();
        for (rows, after) in &after.filled {
            let before = before.filled.get(rows).unwrap_or(&none);
            let sum = self.filled.entry(*rows).or_default();
            sum.added_items += after.added_items.saturating_sub(before.added_items);
            add_growth(&mut sum.runs, &before.runs, &after.runs);
        }
    }
}

fn add_growth(sums: &mut SizeCounts, before: &SizeCounts, after: &SizeCounts) {
    let growth = after.iter().zip(before).map(|(after, before)| after.saturating_sub(*before));
    sums.iter_mut().zip(growth).for_each(|(sum, more)| *sum += more);
}

/// Adds the metrics of merged runs under TensorFlow Serving's names.
fn batching(merged: &RunSums, text: &mut String) {
    let name = ":tensorflow:serving:batching_session:wrapped_run_count";
    text.push_str(&format!("# TYPE {name} counter\n{name}{{}} {}\n", merged.runs));
    let name = ":tensorflow:serving:batching_session:processed_batch_size";
    text.push_str(&format!("# TYPE {name} histogram\n"));
    histogram(text, name, "", merged.items, &merged.sizes);
    let name = ":tensorflow:serving:batching_session:padding_size";
    if !merged.filled.is_empty() {
        text.push_str(&format!("# TYPE {name} histogram\n"));
    }
    for (rows, runs) in &merged.filled {
        let labels = format!("execution_batch_size=\"{rows}\"");
        histogram(text, name, &labels, runs.added_items, &runs.runs);
    }
}

/// Adds the samples of a histogram with these `labels`, which may be empty.
fn histogram(text: &mut String, name: &str, labels: &str, sum: u64, counts: &SizeCounts) {
    let comma = if labels.is_empty() { "" } else { "," };
    // OpenMetrics requires the form of a float.
    let bounds = BATCH_SIZE_BOUNDS.iter().map(|bound| format!("{bound}.0"));
    let bounds = bounds.chain(["+Inf".to_owned()]);
    let mut total: u64 = 0;
    for (bound, count) in bounds.zip(counts) {
        total += count;
        text.push_str(&format!("{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {total}\n"));
    }
    text.push_str(&format!("{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {total}\n"));
}

/// A metric of Triton, and its figure of one version.
struct TritonMetric {
    name: &'static str,
    help: &'static str,
    figure: fn(&VersionFigures) -> u64,
}

/// Figures of a version that serves.
struct VersionFigures {
    requests: u64,
    items: u64,
    executions: u64,
    total_us: u64,
    queue_us: u64,
    compute_us: u64,
}

const TRITON: [TritonMetric; 6] = [
    TritonMetric {
        name: "nv_inference_request_success",
        help: "Number of successful inference requests, all batch sizes",
        figure: |figures| figures.requests,
    },
    TritonMetric {
        name: "nv_inference_count",
        help: "Number of inferences performed: a batch of n counts n",
        figure: |figures| figures.items,
    },
    TritonMetric {
        name: "nv_inference_exec_count",
        help: "Number of model executions performed",
        figure: |figures| figures.executions,
    },
    TritonMetric {
        name: "nv_inference_request_duration_us",
        help: "Cumulative inference request duration in microseconds",
        figure: |figures| figures.total_us,
    },
    TritonMetric {
        name: "nv_inference_queue_duration_us",
        help: "Cumulative inference queuing duration in microseconds",
        figure: |figures| figures.queue_us,
    },
    TritonMetric {
        name: "nv_inference_compute_infer_duration_us",
        help: "Cumulative compute inference duration in microseconds",
        figure: |figures| figures.compute_us,
    },
];

/// Triton's reasons of failures.
const REASONS: [&str; 4] = ["REJECTED", "CANCELED", "BACKEND", "OTHER"];

/// Returns Triton's reason for an outcome, one of [`STATUSES`], or `None` for a success.
fn reason(status: &str) -> Option<&'static str> {
    match status {
        "ok" => None,
        // Triton rejects requests that wait for too long; its own full queue is OTHER.
        "deadline_exceeded" => Some("REJECTED"),
        "cancelled" => Some("CANCELED"),
        "internal" | "data_loss" => Some("BACKEND"),
        _ => Some("OTHER"),
    }
}

fn labels(id: &VersionId) -> String {
    let model = id.model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("model=\"{model}\",version=\"{}\"", id.version)
}

fn header(text: &mut String, name: &str, help: &str, kind: &str) {
    text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
}

/// Appends the metrics of ready versions under Triton's names.
fn triton(parts: &ObservedParts, text: &mut String) {
    let catalog = parts.lifecycle.catalog();
    let mut versions = Vec::new();
    for model in catalog.names() {
        for version in catalog.ready(&model).unwrap_or_default() {
            let id = VersionId { model: model.clone(), version };
            versions.push((labels(&id), figures(parts, &id), id));
        }
    }
    for TritonMetric { name, help, figure } in TRITON {
        header(text, name, help, "counter");
        for (labels, figures, _) in &versions {
            text.push_str(&format!("{name}{{{labels}}} {}\n", figure(figures)));
        }
    }
    let name = "nv_inference_request_failure";
    header(text, name, "Number of failed inference requests, all batch sizes", "counter");
    for (labels, _, id) in &versions {
        for (reason, count) in REASONS.into_iter().zip(failures(&parts.metrics, id)) {
            text.push_str(&format!("{name}{{{labels},reason=\"{reason}\"}} {count}\n"));
        }
    }
    let name = "nv_inference_pending_request_count";
    header(text, name, "Instantaneous number of pending requests awaiting execution", "gauge");
    let queued = parts.scheduler.snapshot().models;
    for (labels, _, id) in &versions {
        // The versions of a model share one queue.
        let alone = versions.iter().filter(|(_, _, other)| other.model == id.model).count() == 1;
        if let Some(model) = queued.iter().find(|model| alone && model.model == id.model) {
            text.push_str(&format!("{name}{{{labels}}} {}\n", model.queued));
        }
    }
}

/// Returns the figures of a version, or zeros once it was released.
fn figures(parts: &ObservedParts, id: &VersionId) -> VersionFigures {
    // The version may have been released since it was listed.
    let stats = parts.stats.known(id).unwrap_or_default();
    let runs = stats.runs();
    VersionFigures {
        requests: stats.success.count(),
        items: runs.items,
        executions: runs.runs,
        total_us: stats.success.nanos() / 1000,
        queue_us: stats.queue.nanos() / 1000,
        compute_us: stats.compute.nanos() / 1000,
    }
}

/// Returns the failed requests of a version by [`REASONS`].
fn failures(metrics: &Metrics, id: &VersionId) -> [u64; REASONS.len()] {
    let mut counts = [0; REASONS.len()];
    for protocol in PROTOCOLS {
        for status in STATUSES {
            let model = id.model.clone();
            let version = id.version;
            let labels = RequestLabels { model, version, protocol, status };
            let at = reason(status).and_then(|reason| REASONS.iter().position(|r| *r == reason));
            if let (Some(at), Some(counter)) = (at, metrics.requests.get(&labels)) {
                counts[at] += counter.get();
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_tritons_reasons() {
        let metrics = Metrics::default();
        let id = VersionId { model: "m".into(), version: 2 };
        for (version, status) in
            [(2, "ok"), (2, "invalid_argument"), (2, "cancelled"), (2, "internal"), (1, "internal")]
        {
            let protocol = PROTOCOLS[version as usize];
            let labels = RequestLabels { model: "m".into(), version, protocol, status };
            metrics.requests.get_or_create(&labels).inc();
        }
        assert_eq!(failures(&metrics, &id), [0, 1, 1, 1]);
        let text = metrics.encode();
        assert!(!text.contains("deadline_exceeded"), "reading makes no series");
    }

    #[test]
    fn merged_runs_have_the_names_of_the_reference() {
        let mut model = ModelSnapshot {
            mode: ScheduleMode::Async,
            batches: 3,
            items: 6,
            added_items: 2,
            ..ModelSnapshot::default()
        };
        model.run_sizes[1] = 2;
        model.run_sizes[2] = 1;
        let mut filled = FilledRuns { added_items: 2, ..FilledRuns::default() };
        filled.runs[1] = 1;
        model.filled.insert(4, filled);
        let alone = ModelSnapshot { batches: 9, ..ModelSnapshot::default() };
        let models = vec![model.clone(), model, alone];
        let snapshot = SchedulerSnapshot { models, ..SchedulerSnapshot::default() };
        let mut text = String::new();
        batching(MergedRuns::default().read(&snapshot), &mut text);
        let prefix = ":tensorflow:serving:batching_session:";
        for line in [
            "wrapped_run_count{} 6",
            "processed_batch_size_bucket{le=\"2.0\"} 4",
            "processed_batch_size_bucket{le=\"+Inf\"} 6",
            "processed_batch_size_sum{} 16",
            "processed_batch_size_count{} 6",
            "padding_size_bucket{execution_batch_size=\"4\",le=\"1.0\"} 0",
            "padding_size_bucket{execution_batch_size=\"4\",le=\"2.0\"} 2",
            "padding_size_sum{execution_batch_size=\"4\"} 4",
            "padding_size_count{execution_batch_size=\"4\"} 2",
        ] {
            let wanted = format!("{prefix}{line}");
            assert!(text.lines().any(|line| line == wanted), "{wanted} not in\n{text}");
        }
    }

    #[test]
    fn sums_of_merged_runs_do_not_decrease() {
        let named = |name: &str, batches: u64| ModelSnapshot {
            model: name.into(),
            mode: ScheduleMode::Async,
            batches,
            items: 2 * batches,
            ..ModelSnapshot::default()
        };
        let mut merged = MergedRuns::default();
        let mut read = |models: Vec<ModelSnapshot>| {
            let sums = merged.read(&SchedulerSnapshot { models, ..SchedulerSnapshot::default() });
            (sums.runs, sums.items)
        };
        assert_eq!(read(vec![named("a", 5), named("b", 7)]), (12, 24));
        assert_eq!(read(vec![named("b", 8)]), (13, 26), "a was removed");
        assert_eq!(read(vec![named("a", 2), named("b", 8)]), (15, 30), "and was added again");
        let alone = ModelSnapshot { mode: ScheduleMode::Sync, ..named("b", 9) };
        assert_eq!(read(vec![alone]), (15, 30), "b merges no requests");
        assert_eq!(read(vec![named("b", 10)]), (16, 32), "and merges again");
    }

    #[test]
    fn counters_have_no_type_in_openmetrics() {
        let added = "# TYPE nv_a counter\nnv_a{model=\"m\"} 1\n# TYPE nv_b gauge\nnv_b 2\n";
        let text = append("# TYPE a counter\na_total 1\n# EOF\n", added);
        assert_eq!(
            text,
            "# TYPE a counter\na_total 1\n# TYPE nv_a unknown\nnv_a{model=\"m\"} 1\n# TYPE nv_b gauge\nnv_b 2\n# EOF\n"
        );
    }

    #[test]
    fn names_are_escaped() {
        let id = VersionId { model: "a\"b\\c".into(), version: 1 };
        assert_eq!(labels(&id), "model=\"a\\\"b\\\\c\",version=\"1\"");
    }
}
