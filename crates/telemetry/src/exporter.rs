//! The thread `trace-export`. It holds finished traces until the other traces of their batches are
//! known, and sends them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use metrics::{KindLabels, Metrics};

use crate::encode::{LinkSources, export_request};
use crate::links::{BatchIndex, LoadLog};
use crate::post::{Post, PostOutcome};
use crate::span::Trace;

/// Maximum number of traces that wait for the thread.
pub(crate) const QUEUE_MAX: usize = 1024;
/// Maximum number of spans that the thread holds. Further ones are dropped.
const HELD_SPANS_MAX: usize = 16_384;
/// Maximum number of spans of one export.
const EXPORT_SPANS_MAX: usize = 2048;
/// Time for which a trace is held, so that the other requests of its batch end too.
const HOLD_TIME: Duration = Duration::from_secs(1);
/// Longest time between two checks of the queue.
const TICK: Duration = Duration::from_millis(200);
/// First pause before an export is tried again. Each further pause is twice the one before.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause before an export is tried again.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Maximum number of attempts of one export.
const ATTEMPTS_MAX: u32 = 5;
/// Minimum time between two log lines about failures.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Default of [`TraceExportConfig::timeout`].
const TIMEOUT: Duration = Duration::from_secs(10);

/// Address of the collector, and the facts about this server that it gets.
#[derive(Clone)]
pub struct TraceExportConfig {
    /// Full address, as in `http://localhost:4318/v1/traces`.
    pub url: String,
    /// Headers of each export. Their values may be secrets.
    pub headers: Vec<(String, String)>,
    /// Attributes of this server: its name and others.
    pub resource: Vec<(String, String)>,
    /// Time limit of one export.
    pub timeout: Duration,
}

impl TraceExportConfig {
    /// Returns the default settings for an address.
    pub fn new(url: impl Into<String>) -> TraceExportConfig {
        TraceExportConfig {
            url: url.into(),
            headers: Vec::new(),
            resource: Vec::new(),
            timeout: TIMEOUT,
        }
    }
}

impl std::fmt::Debug for TraceExportConfig {
    /// Leaves out the values of headers.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("TraceExportConfig")
            .field("url", &self.url)
            .field("headers", &headers)
            .field("resource", &self.resource)
            .field("timeout", &self.timeout)
            .finish()
    }
}

/// Message to the thread.
pub(crate) enum ExportMessage {
    Trace(Box<Trace>),
    Stop,
}

/// Counts of spans by their outcome.
#[derive(Clone)]
pub(crate) struct SpanCounts(pub(crate) Arc<Metrics>);

impl SpanCounts {
    pub(crate) fn add(&self, outcome: &'static str, spans: u64) {
        self.0.trace_spans.get_or_create(&KindLabels { kind: outcome }).inc_by(spans);
    }
}

/// An encoded export that has not been taken yet.
struct PendingExport {
    body: Bytes,
    spans: u64,
    attempts: u32,
    not_before: Instant,
}

/// State of the thread.
pub(crate) struct SpanExporter<P> {
    post: P,
    resource: Vec<(String, String)>,
    counts: SpanCounts,
    loads: Arc<LoadLog>,
    batches: BatchIndex,
    /// Traces by the time at which they arrived, oldest first.
    held: VecDeque<HeldTrace>,
    held_spans: usize,
    pending: Option<PendingExport>,
    /// Time of the last line about a failure.
    reported: Option<Instant>,
}

/// A trace that waits for the other traces of its batches.
struct HeldTrace {
    arrived: Instant,
    trace: Box<Trace>,
}

impl<P: Post> SpanExporter<P> {
    pub(crate) fn new(
        post: P,
        resource: Vec<(String, String)>,
        counts: SpanCounts,
        loads: Arc<LoadLog>,
    ) -> SpanExporter<P> {
        SpanExporter {
            post,
            resource,
            counts,
            loads,
            batches: BatchIndex::default(),
            held: VecDeque::new(),
            held_spans: 0,
            pending: None,
            reported: None,
        }
    }

    /// Exports until it is stopped or all senders are dropped.
    pub(crate) fn run(mut self, queue: &Receiver<ExportMessage>) {
        loop {
            match queue.recv_timeout(TICK) {
                Ok(ExportMessage::Trace(trace)) => {
                    let now = Instant::now();
                    self.hold(trace, now);
                    // A full export need not wait for a pause between requests.
                    if self.held_spans >= EXPORT_SPANS_MAX {
                        self.step(now);
                    }
                    if !self.is_due(now) {
                        continue;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(ExportMessage::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
            self.step(Instant::now());
        }
        self.finish();
    }

    /// Returns true if the oldest trace was held for its time.
    fn is_due(&self, now: Instant) -> bool {
        self.held.front().is_some_and(|held| now.duration_since(held.arrived) >= HOLD_TIME)
    }

    /// Holds a trace until the other traces of its batches are known. Drops it if too many spans
    /// are held.
    fn hold(&mut self, trace: Box<Trace>, arrived: Instant) {
        let spans = trace.spans.len();
        if self.held_spans + spans > HELD_SPANS_MAX {
            self.counts.add("dropped", spans as u64);
            return;
        }
        if let Some(batch) = trace.batch
            && let Some(span) = trace.spans.get(batch.span)
        {
            self.batches.add(batch.batch, trace.id, span.id);
        }
        self.held_spans += spans;
        self.held.push_back(HeldTrace { arrived, trace });
    }

    /// Sends an export if one is due.
    fn step(&mut self, now: Instant) {
        if self.pending.is_none() && (self.is_due(now) || self.held_spans >= EXPORT_SPANS_MAX) {
            let full = self.held_spans >= EXPORT_SPANS_MAX;
            self.pending = self.take(now, full);
        }
        if self.pending.as_ref().is_some_and(|pending| pending.not_before <= now) {
            self.attempt(now);
        }
    }

    /// Encodes the oldest traces that were held for [`HOLD_TIME`]. If `all` is true, also younger
    /// ones. Returns `None` if there are none.
    fn take(&mut self, now: Instant, all: bool) -> Option<PendingExport> {
        let mut taken = Vec::new();
        let mut spans = 0;
        while let Some(held) = self.held.front() {
            let due = all || now.duration_since(held.arrived) >= HOLD_TIME;
            let size = held.trace.spans.len();
            if !due || (spans > 0 && spans + size > EXPORT_SPANS_MAX) {
                break;
            }
            spans += size;
            taken.extend(self.held.pop_front());
        }
        self.held_spans -= spans;
        let links = LinkSources { batches: &self.batches, loads: &self.loads };
        let traces = taken.iter().map(|held| &*held.trace);
        let body = export_request(traces, &self.resource, &links);
        let pending = PendingExport { body, spans: spans as u64, attempts: 0, not_before: now };
        (spans > 0).then_some(pending)
    }

    /// Posts the pending export.
    fn attempt(&mut self, now: Instant) {
        let Some(mut pending) = self.pending.take() else { return };
        pending.attempts += 1;
        match self.post.post(&pending.body) {
            PostOutcome::Accepted { rejected, message } => {
                let rejected = rejected.min(pending.spans);
                self.counts.add("exported", pending.spans - rejected);
                if rejected > 0 {
                    self.counts.add("failed", rejected);
                    self.report(
                        now,
                        &format!("the collector rejected {rejected} spans: {message}"),
                    );
                }
            }
            PostOutcome::Retry { after, reason } if pending.attempts < ATTEMPTS_MAX => {
                let pause = RETRY_PAUSE_MIN * 2u32.pow(pending.attempts - 1);
                let pause = after.unwrap_or(pause.min(RETRY_PAUSE_MAX));
                self.report(now, &reason);
                let not_before = now + pause;
                self.pending = Some(PendingExport { not_before, ..pending });
            }
            PostOutcome::Retry { reason, .. } | PostOutcome::Refused(reason) => {
                self.counts.add("failed", pending.spans);
                self.report(now, &reason);
            }
        }
    }

    /// Sends the remaining spans, with one attempt for each export.
    fn finish(&mut self) {
        loop {
            let now = Instant::now();
            if self.pending.is_none() {
                self.pending = self.take(now, true);
            }
            match &mut self.pending {
                None => return,
                Some(pending) => pending.attempts = ATTEMPTS_MAX - 1,
            }
            let spans = self.pending.as_ref().map_or(0, |pending| pending.spans);
            let before = self.exported();
            self.attempt(now);
            if spans > 0 && self.exported() == before {
                // The collector does not answer, so further attempts would delay the end of the
                // server.
                self.counts.add("failed", self.held_spans as u64);
                return;
            }
        }
    }

    fn exported(&self) -> u64 {
        self.counts.0.trace_spans.get_or_create(&KindLabels { kind: "exported" }).get()
    }

    /// Logs a failure, at most one a minute.
    fn report(&mut self, now: Instant, reason: &str) {
        if self.reported.is_none_or(|at| now.duration_since(at) >= REPORT_INTERVAL) {
            self.reported = Some(now);
            tracing::warn!(
                reason,
                "traces cannot be exported; millpond_trace_spans_total counts the spans"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prost::Message;

    use super::*;
    use crate::context::{IdSource, SpanId};
    use crate::generated::{ExportTraceServiceRequest, OtlpSpan};
    use crate::span::{BatchSpan, Span, SpanKind};

    /// Answers each export by the next outcome. The last one stays.
    struct Script {
        outcomes: Vec<PostOutcome>,
        received: Arc<parking_lot::Mutex<Vec<Vec<u8>>>>,
    }

    impl Post for Script {
        fn post(&mut self, body: &[u8]) -> PostOutcome {
            self.received.lock().push(body.to_vec());
            match self.outcomes.len() {
                1 => self.outcomes[0].clone(),
                _ => self.outcomes.remove(0),
            }
        }
    }

    struct Fixture {
        exporter: SpanExporter<Script>,
        metrics: Arc<Metrics>,
        received: Arc<parking_lot::Mutex<Vec<Vec<u8>>>>,
        ids: IdSource,
        start: Instant,
    }

    fn accepted() -> PostOutcome {
        PostOutcome::Accepted { rejected: 0, message: String::new() }
    }

    fn away() -> PostOutcome {
        PostOutcome::Retry { after: None, reason: "away".into() }
    }

    impl Fixture {
        fn new(outcomes: Vec<PostOutcome>) -> Fixture {
            let metrics = Arc::new(Metrics::default());
            let received = Arc::default();
            let script = Script { outcomes, received: Arc::clone(&received) };
            let counts = SpanCounts(metrics.clone());
            let resource = vec![("service.name".to_owned(), "test".to_owned())];
            let exporter = SpanExporter::new(script, resource, counts, Arc::default());
            Fixture { exporter, metrics, received, ids: IdSource::new(), start: Instant::now() }
        }

        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        fn span(&self, parent: Option<SpanId>) -> Span {
            Span {
                name: "request".into(),
                id: self.ids.span(),
                parent,
                kind: SpanKind::Server,
                start: self.start,
                end: self.at(1),
                attributes: Vec::new(),
                error: None,
            }
        }

        /// Holds a trace of a request and its run in `batch`.
        fn hold(&mut self, batch: u64, ms: u64) {
            let request = self.span(None);
            let run = self.span(Some(request.id));
            let trace = Trace {
                id: self.ids.trace(),
                state: None,
                spans: vec![request, run],
                batch: Some(BatchSpan { batch, span: 1 }),
            };
            let at = self.at(ms);
            self.exporter.hold(Box::new(trace), at);
        }

        fn count(&self, kind: &'static str) -> u64 {
            self.metrics.trace_spans.get_or_create(&KindLabels { kind }).get()
        }

        fn received(&self) -> Vec<Vec<OtlpSpan>> {
            let decode = |body: &Vec<u8>| {
                let mut request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
                request.resource_spans.remove(0).scope_spans.remove(0).spans
            };
            self.received.lock().iter().map(decode).collect()
        }
    }

    #[test]
    fn batch_mates_are_linked_both_ways() {
        let mut fixture = Fixture::new(vec![accepted()]);
        fixture.hold(1, 0);
        fixture.hold(1, 900);
        fixture.hold(2, 900);
        fixture.exporter.step(fixture.at(1000));
        fixture.exporter.step(fixture.at(1900));
        let exports = fixture.received();
        assert_eq!(exports.iter().map(Vec::len).collect::<Vec<_>>(), [2, 4]);
        let (first, second, other) = (&exports[0][1], &exports[1][1], &exports[1][3]);
        assert_eq!(first.links[0].span_id, second.span_id);
        assert_eq!(second.links[0].span_id, first.span_id);
        assert!(other.links.is_empty());
        assert_eq!(first.parent_span_id, exports[0][0].span_id);
        assert_eq!(fixture.count("exported"), 6);
    }

    #[test]
    fn a_failed_export_is_tried_again_with_pauses() {
        let mut fixture = Fixture::new(vec![away(), away(), accepted()]);
        fixture.hold(1, 0);
        for (ms, attempts) in [(999, 0), (1000, 1), (1999, 1), (2000, 2), (3999, 2), (4000, 3)] {
            fixture.exporter.step(fixture.at(ms));
            assert_eq!(fixture.received.lock().len(), attempts, "{ms}");
        }
        assert_eq!((fixture.count("exported"), fixture.count("failed")), (2, 0));
    }

    #[test]
    fn attempts_are_bounded() {
        let mut fixture = Fixture::new(vec![away()]);
        fixture.hold(1, 0);
        (1..200).for_each(|second| fixture.exporter.step(fixture.at(1000 * second)));
        assert_eq!(fixture.received.lock().len(), ATTEMPTS_MAX as usize);
        assert_eq!((fixture.count("exported"), fixture.count("failed")), (0, 2));
    }

    #[test]
    fn a_refusal_is_not_tried_again() {
        let mut fixture = Fixture::new(vec![PostOutcome::Refused("400".into()), accepted()]);
        fixture.hold(1, 0);
        fixture.exporter.step(fixture.at(1000));
        fixture.exporter.step(fixture.at(9000));
        assert_eq!((fixture.received.lock().len(), fixture.count("failed")), (1, 2));
        let rejected = PostOutcome::Accepted { rejected: 1, message: "old".into() };
        let mut fixture = Fixture::new(vec![rejected]);
        fixture.hold(1, 0);
        fixture.exporter.step(fixture.at(1000));
        assert_eq!((fixture.count("exported"), fixture.count("failed")), (1, 1));
    }

    #[test]
    fn held_spans_are_bounded() {
        let mut fixture = Fixture::new(vec![away()]);
        for number in 0..HELD_SPANS_MAX as u64 {
            fixture.hold(number, 0);
        }
        assert_eq!(fixture.exporter.held_spans, HELD_SPANS_MAX);
        assert_eq!(fixture.count("dropped"), HELD_SPANS_MAX as u64);
        fixture.exporter.step(fixture.at(10));
        let exports = fixture.received();
        assert_eq!(exports[0].len(), EXPORT_SPANS_MAX, "a full export does not wait");
    }

    #[test]
    fn the_end_sends_the_rest() {
        let mut fixture = Fixture::new(vec![accepted()]);
        (0..3000).for_each(|number| fixture.hold(number, 0));
        fixture.exporter.finish();
        assert_eq!(fixture.count("exported"), 6000);
        let mut fixture = Fixture::new(vec![away()]);
        (0..3000).for_each(|number| fixture.hold(number, 0));
        fixture.exporter.finish();
        assert_eq!((fixture.received.lock().len(), fixture.count("failed")), (1, 6000));
    }
}
