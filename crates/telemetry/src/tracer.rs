//! The tracer: begins traces of requests, and queues finished ones.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use base::{Error, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};
use metrics::Metrics;
use parking_lot::Mutex;

use crate::context::{IdSource, STATE_BYTES_MAX, SpanId, TraceContext, TraceId};
use crate::exporter::{ExportMessage, QUEUE_MAX, SpanCounts, SpanExporter, TraceExportConfig};
use crate::links::LoadLog;
use crate::post::HttpPost;
use crate::sampler::{RatesWithMax, SamplingRates, TraceCandidate};
use crate::span::Trace;

/// Longest wait of a shutdown for room in the queue, and then for the last exports.
const STOP_WAIT_MAX: Duration = Duration::from_secs(5);

/// Source of the traces of requests and loads.
pub struct Tracer {
    rates: ArcSwap<RatesWithMax>,
    ids: IdSource,
    queue: Sender<ExportMessage>,
    counts: SpanCounts,
    loads: Arc<LoadLog>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Disconnected once the thread has ended. No message is sent.
    ended: Receiver<()>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").field("rates", &*self.rates.load()).finish_non_exhaustive()
    }
}

/// A request that is traced, perhaps depending on its model.
#[derive(Debug)]
pub struct RequestTrace {
    /// Id of the client's trace, or a new one.
    pub id: TraceId,
    /// Span of the request, which contains all other spans of this server.
    pub span: SpanId,
    /// The client's span.
    pub parent: Option<SpanId>,
    /// The client's `tracestate`.
    pub state: Option<Box<str>>,
    candidate: TraceCandidate,
    rates: Arc<RatesWithMax>,
}

impl RequestTrace {
    /// Returns true if the request is traced, now that its model is known. A request without a
    /// model has an empty name.
    pub fn sampled(&self, model: &str) -> bool {
        match self.candidate {
            TraceCandidate::Yes => true,
            TraceCandidate::No => false,
            TraceCandidate::ByRate => self.id.fraction() < self.rates.rates.of_model(model),
        }
    }
}

impl Tracer {
    /// Starts the thread that exports.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed address, header or rate. `ResourceExhausted` if no thread
    /// can be started.
    pub fn start(
        config: TraceExportConfig,
        rates: SamplingRates,
        metrics: Arc<Metrics>,
    ) -> Result<Tracer> {
        rates.check()?;
        let post = HttpPost::new(&config)?;
        let counts = SpanCounts(metrics);
        let loads = Arc::new(LoadLog::default());
        let exporter = SpanExporter::new(post, config.resource, counts.clone(), loads.clone());
        let (queue, messages) = bounded(QUEUE_MAX);
        let (running, ended) = bounded(0);
        let thread = std::thread::Builder::new()
            .name("trace-export".into())
            .spawn(move || {
                exporter.run(&messages);
                drop(running);
            })
            .map_err(|e| Error::exhausted("the thread that exports traces").caused_by(e))?;
        Ok(Tracer {
            rates: ArcSwap::from_pointee(rates.with_max()),
            ids: IdSource::new(),
            queue,
            counts,
            loads,
            thread: Mutex::new(Some(thread)),
            ended,
        })
    }

    /// Returns the current sampling rates.
    pub fn rates(&self) -> SamplingRates {
        self.rates.load().rates.clone()
    }

    /// Replaces the rates by the result of `change`. Requests that have begun keep the old rates.
    ///
    /// # Errors
    /// `InvalidArgument` for a rate outside 0 to 1, or for too many models.
    pub fn change_rates(&self, change: impl Fn(SamplingRates) -> SamplingRates) -> Result<()> {
        let current = self.rates.load();
        change(current.rates.clone()).check()?;
        // The closure may run again if another change came between.
        self.rates.rcu(|current| change(current.rates.clone()).with_max());
        Ok(())
    }

    /// Begins the trace of a request, whose headers `header` returns by name. Returns `None` if it
    /// is not traced.
    pub fn begin<'a>(
        &self,
        header: impl Fn(&'static str) -> Option<&'a str>,
    ) -> Option<Arc<RequestTrace>> {
        let rates = self.rates.load();
        if rates.never() {
            return None;
        }
        let parent = header("traceparent").and_then(TraceContext::parse);
        if parent.is_none() && rates.never_without_parent() {
            return None;
        }
        let id = parent.map_or_else(|| self.ids.trace(), |parent| parent.trace_id);
        let candidate = rates.candidate(id, parent.as_ref());
        if candidate == TraceCandidate::No {
            return None;
        }
        let state = parent.and_then(|_| header("tracestate"));
        let state = state.filter(|state| !state.is_empty() && state.len() <= STATE_BYTES_MAX);
        Some(Arc::new(RequestTrace {
            id,
            span: self.ids.span(),
            parent: parent.map(|parent| parent.span_id),
            state: state.map(Into::into),
            candidate,
            rates: rates.clone(),
        }))
    }

    /// Returns a new id for a span.
    pub fn span_id(&self) -> SpanId {
        self.ids.span()
    }

    /// Queues a finished trace. If the queue is full, its spans are dropped and counted.
    pub fn finish(&self, trace: Trace) {
        let spans = trace.spans.len() as u64;
        if self.queue.try_send(ExportMessage::Trace(Box::new(trace))).is_err() {
            self.counts.add("dropped", spans);
        }
    }

    /// Begins the trace of a load, to which requests that run meanwhile are linked. Returns the ids
    /// of the trace and its first span.
    pub fn begin_load(&self, start: Instant) -> LoadTraceIds {
        let ids = LoadTraceIds { trace: self.ids.trace(), span: self.ids.span() };
        self.loads.begin(ids.trace, ids.span, start);
        ids
    }

    /// Ends the trace of a load. Requests that begin after `end` are not linked to it.
    pub fn end_load(&self, span: SpanId, end: Instant) {
        self.loads.end(span, end);
    }

    /// Exports all finished traces and ends the thread. Later traces are dropped. If the collector
    /// does not take the traces in time, the rest is lost.
    pub fn shutdown(&self) {
        if !self.stop_within(STOP_WAIT_MAX) {
            tracing::warn!("the last traces are lost: the collector does not take them in time");
        }
    }

    /// Ends the thread. Waits for up to `wait` for room in the queue, and then for up to `wait` for
    /// the last exports. Returns false if the thread is still busy then.
    fn stop_within(&self, wait: Duration) -> bool {
        let sent = self.queue.send_timeout(ExportMessage::Stop, wait);
        if matches!(sent, Err(SendTimeoutError::Timeout(_)))
            || self.ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout)
        {
            return false;
        }
        if let Some(thread) = self.thread.lock().take() {
            // An error is a panic, which is in the log.
            let _ = thread.join();
        }
        true
    }
}

/// Ids of the trace of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadTraceIds {
    /// Trace of the spans of the load.
    pub trace: TraceId,
    /// First span of the trace.
    pub span: SpanId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::{Span, SpanKind};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn tracer(rate: f64, parent_based: bool) -> Tracer {
        let rates = SamplingRates { rate, parent_based, ..SamplingRates::default() };
        let config = TraceExportConfig::new("http://127.0.0.1:1/v1/traces");
        Tracer::start(config, rates, Arc::default()).unwrap()
    }

    fn begin(tracer: &Tracer, parent: &'static str) -> Option<Arc<RequestTrace>> {
        tracer.begin(|name| match name {
            "traceparent" => Some(parent),
            _ => Some("vendor=1"),
        })
    }

    #[test]
    fn a_sampled_parent_is_followed() {
        let tracer = tracer(0.0, true);
        let trace = begin(&tracer, PARENT).unwrap();
        assert!(trace.sampled("any"));
        assert_eq!(trace.id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(trace.parent.unwrap().to_string(), "00f067aa0ba902b7");
        assert_eq!(trace.state.as_deref(), Some("vendor=1"));
        assert!(tracer.begin(|_| None).is_none());
        tracer.change_rates(|rates| SamplingRates { rate: 1.0, ..rates }).unwrap();
        let unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        assert!(begin(&tracer, unsampled).is_none());
        let own = begin(&tracer, "no context").unwrap();
        assert_eq!((own.parent, own.state.as_deref()), (None, None));
    }

    #[test]
    fn a_silent_collector_does_not_delay_the_end() {
        // The system accepts connections for it, and no thread reads them.
        let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/traces", collector.local_addr().unwrap());
        let timeout = Duration::from_secs(600);
        let config = TraceExportConfig { timeout, ..TraceExportConfig::new(url) };
        let busy = Tracer::start(config, SamplingRates::default(), Arc::default()).unwrap();
        let span = Span {
            name: "request".into(),
            id: busy.span_id(),
            parent: None,
            kind: SpanKind::Server,
            start: Instant::now(),
            end: Instant::now(),
            attributes: Vec::new(),
            error: None,
        };
        busy.finish(Trace { id: busy.ids.trace(), state: None, spans: vec![span], batch: None });
        assert!(!busy.stop_within(Duration::from_millis(50)));
        let idle = tracer(0.0, true);
        assert!(idle.stop_within(Duration::from_secs(600)));
    }

    #[test]
    fn rates_change_while_it_runs() {
        let tracer = tracer(0.0, false);
        assert!(begin(&tracer, PARENT).is_none());
        let models = [("hot".to_owned(), 1.0)].into();
        let rates = SamplingRates { models, ..SamplingRates::default() };
        tracer.change_rates(|_| rates.clone()).unwrap();
        let trace = tracer.begin(|_| None).unwrap();
        assert!(trace.sampled("hot") && !trace.sampled("cold"));
        let wrong = |rates| SamplingRates { rate: 2.0, ..rates };
        assert!(tracer.change_rates(wrong).is_err());
        assert_eq!(tracer.rates(), rates);
    }
}
