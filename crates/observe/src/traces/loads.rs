//! The trace of each load of a version: its states from the start of the load until it serves or
//! has failed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use base::VersionId;
use lifecycle::{LifecycleEvent, LifecycleState, StateChange};
use parking_lot::Mutex;
use telemetry::{Attribute, LoadTraceIds, Span, SpanKind, Trace, Tracer};

/// Maximum number of loads that are traced at the same time.
const LOADS_MAX: usize = 256;

/// The traces of loads in progress. Called on the lifecycle's thread only.
pub struct LoadTraces {
    tracer: Arc<Tracer>,
    loads: Mutex<HashMap<VersionId, LoadTrace>>,
}

/// Trace of a load that has not ended.
struct LoadTrace {
    ids: LoadTraceIds,
    start: Instant,
    /// Stages that were begun, in order.
    stages: Vec<LoadStage>,
    attributes: Vec<Attribute>,
}

/// A stage of a load, which lasts until the next one begins.
struct LoadStage {
    name: &'static str,
    start: Instant,
}

impl LoadTraces {
    /// Creates a list without loads.
    pub fn new(tracer: Arc<Tracer>) -> LoadTraces {
        LoadTraces { tracer, loads: Mutex::default() }
    }

    /// Takes an event of the lifecycle.
    pub fn event(&self, event: &LifecycleEvent) {
        match event {
            LifecycleEvent::StateChanged(change) => self.changed(change),
            LifecycleEvent::Loaded { model, version, cost } => {
                let id = VersionId { model: model.clone(), version: *version };
                let attributes = vec![
                    Attribute::new("millpond.load.read_bytes", cost.bytes_read),
                    Attribute::new("millpond.load.shared_bytes", cost.bytes_shared),
                    Attribute::new("millpond.load.cpu_seconds", cost.loader_cpu_seconds),
                    Attribute::new("millpond.load.escalated", cost.escalated),
                ];
                self.finish(&id, attributes, None);
            }
            // Before the version is discovered again, which looks like a load that was stopped.
            LifecycleEvent::LoadRetried { model, version, reason } => {
                let id = VersionId { model: model.clone(), version: *version };
                // A try can fail before its load begins, for example without room in the pool.
                self.begin(&id, Instant::now());
                self.finish(&id, Vec::new(), Some(reason.clone()));
            }
            _ => {}
        }
    }

    /// Begins, continues or ends the trace of a load with the new state of its version.
    fn changed(&self, change: &StateChange) {
        let id = VersionId { model: change.model.clone(), version: change.version };
        let now = Instant::now();
        match change.to {
            LifecycleState::Loading | LifecycleState::Warming => {
                let name = if change.to == LifecycleState::Loading { "load" } else { "warm up" };
                self.begin(&id, now);
                if let Some(load) = self.loads.lock().get_mut(&id) {
                    load.stages.push(LoadStage { name, start: now });
                }
            }
            // A withdrawn version falls to the last arm, which ends a load that was stopped.
            LifecycleState::Failed if !change.withdrawn => {
                let reason = change.reason.clone().unwrap_or_else(|| "the load failed".to_owned());
                // A version can fail before its load begins, as files of an unknown kind do.
                self.begin(&id, now);
                self.finish(&id, Vec::new(), Some(reason));
            }
            // A load that was stopped or deferred. `Loaded` follows `Ready`.
            LifecycleState::Ready => {}
            _ => self.finish(&id, vec![Attribute::new("millpond.load.stopped", true)], None),
        }
    }

    /// Begins the trace of a load, if it has not begun and there are not too many.
    fn begin(&self, id: &VersionId, now: Instant) {
        let mut loads = self.loads.lock();
        if loads.len() < LOADS_MAX && !loads.contains_key(id) {
            let ids = self.tracer.begin_load(now);
            let load = LoadTrace { ids, start: now, stages: Vec::new(), attributes: Vec::new() };
            loads.insert(id.clone(), load);
        }
    }

    fn finish(&self, id: &VersionId, attributes: Vec<Attribute>, error: Option<String>) {
        let Some(load) = self.loads.lock().remove(id) else { return };
        let end = Instant::now();
        self.tracer.end_load(load.ids.span, end);
        self.tracer.finish(self.trace(id, LoadTrace { attributes, ..load }, end, error));
    }

    /// Builds the trace of a load. It has one span for the load and one for each stage.
    fn trace(&self, id: &VersionId, load: LoadTrace, end: Instant, error: Option<String>) -> Trace {
        let LoadTrace { ids, start, stages, mut attributes } = load;
        attributes.push(Attribute::new("millpond.model.name", id.model.clone()));
        attributes.push(Attribute::new("millpond.model.version", id.version));
        let root = Span {
            name: "load version".into(),
            id: ids.span,
            parent: None,
            kind: SpanKind::Internal,
            start,
            end,
            attributes,
            error: error.map(Into::into),
        };
        let ends = stages.iter().skip(1).map(|stage| stage.start).chain([end]).collect::<Vec<_>>();
        let stage = |(stage, end): (&LoadStage, Instant)| Span {
            name: stage.name.into(),
            id: self.tracer.span_id(),
            parent: Some(ids.span),
            kind: SpanKind::Internal,
            start: stage.start,
            end,
            attributes: Vec::new(),
            error: None,
        };
        let stages: Vec<Span> = stages.iter().zip(ends).map(stage).collect();
        let spans = std::iter::once(root).chain(stages).collect();
        Trace { id: ids.trace, state: None, spans, batch: None }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use metrics::{KindLabels, Metrics};
    use telemetry::{SamplingRates, TraceExportConfig};

    use super::*;

    #[test]
    fn each_failed_try_has_a_trace() {
        let metrics = Arc::new(Metrics::default());
        // No collector listens, so all spans count as failed.
        let config = TraceExportConfig::new("http://127.0.0.1:1/v1/traces");
        let started = Tracer::start(config, SamplingRates::default(), metrics.clone());
        let tracer = Arc::new(started.unwrap());
        let loads = LoadTraces::new(tracer.clone());
        let state = |to| {
            LifecycleEvent::StateChanged(StateChange {
                model: "m".into(),
                version: 1,
                from: None,
                to,
                reason: None,
                withdrawn: false,
                at: SystemTime::now(),
            })
        };
        let retried =
            LifecycleEvent::LoadRetried { model: "m".into(), version: 1, reason: "no".to_owned() };
        // Fails before its load begins: one span. The next try has a span of its stage too.
        for event in [&retried, &state(LifecycleState::Discovered)] {
            loads.event(event);
        }
        for event in [&state(LifecycleState::Loading), &retried, &state(LifecycleState::Discovered)]
        {
            loads.event(event);
        }
        tracer.shutdown();
        let failed =
            metrics.trace_spans.get(&KindLabels { kind: "failed" }).map(|spans| spans.get());
        assert_eq!(failed, Some(3));
    }
}
