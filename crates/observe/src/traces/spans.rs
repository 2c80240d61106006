//! Turns the timeline of a request into spans. Names of attributes are those of OpenTelemetry's
//! semantic conventions, or begin with `millpond`.

use std::borrow::Cow;
use std::time::Instant;

use base::{ErrorKind, Moment, RequestTimeline, RunRecord};
use telemetry::{Attribute, BatchSpan, Span, SpanKind, Trace};

use super::{TracedCall, TracedRequest};

/// Status of a request whose client disconnected before its answer.
pub(super) const DISCONNECTED: &str = "cancelled";
/// gRPC codes that are failures of the server: unknown, deadline exceeded, unimplemented, internal,
/// unavailable, data loss.
const GRPC_SERVER_ERRORS: [i32; 6] = [2, 4, 12, 13, 14, 15];

/// Returns the trace of a request that has ended.
pub(super) fn of_request(request: &TracedRequest, timeline: &RequestTimeline) -> Trace {
    let end = timeline.first_byte + timeline.total();
    let mut spans = Spans { request, spans: Vec::with_capacity(7) };
    spans.spans.push(server_span(request, timeline, end));
    let at = |moment| timeline.at(moment);
    let run = timeline.run.as_ref();
    spans.add("receive", Some(timeline.first_byte), at(Moment::BodyComplete), Vec::new());
    spans.add("decode", at(Moment::BodyComplete), at(Moment::Decoded), Vec::new());
    let waited = run.map(|run| run.started).or(at(Moment::Answered)).or(Some(end));
    spans.add("queue", at(Moment::Queued), waited, run.map(wait_attributes).unwrap_or_default());
    let mut batch = None;
    if let Some(run) = run {
        spans.add("run", Some(run.started), Some(run.ended), run_attributes(run));
        batch = Some(BatchSpan { batch: run.batch, span: spans.spans.len() - 1 });
    }
    spans.add("encode", at(Moment::Answered), at(Moment::Encoded), Vec::new());
    spans.add("send", at(Moment::Encoded), Some(end), Vec::new());
    let trace = &request.trace;
    Trace { id: trace.id, state: trace.state.clone(), spans: spans.spans, batch }
}

/// Spans of one request.
struct Spans<'a> {
    request: &'a TracedRequest,
    spans: Vec<Span>,
}

impl Spans<'_> {
    /// Adds a stage, if the request reached its start and its end.
    fn add(
        &mut self,
        name: &'static str,
        start: Option<Instant>,
        end: Option<Instant>,
        attributes: Vec<Attribute>,
    ) {
        let (Some(start), Some(end)) = (start, end) else { return };
        self.spans.push(Span {
            name: name.into(),
            id: self.request.tracer.span_id(),
            parent: Some(self.request.trace.span),
            kind: SpanKind::Internal,
            start,
            end,
            attributes,
            error: None,
        });
    }
}

/// Builds the span of a request at this server, with its attributes and its outcome.
fn server_span(request: &TracedRequest, timeline: &RequestTimeline, end: Instant) -> Span {
    let status = if timeline.status.is_empty() { DISCONNECTED } else { timeline.status };
    let kind = ErrorKind::ALL.into_iter().find(|kind| kind.name() == status);
    let mut attributes = vec![Attribute::new("millpond.protocol", timeline.protocol)];
    if let Some(id) = &timeline.version {
        attributes.push(Attribute::new("millpond.model.name", id.model.clone()));
        attributes.push(Attribute::new("millpond.model.version", id.version));
    }
    let failed = match &request.call {
        TracedCall::Http { route, path } => {
            let code = kind.map_or(200, |kind| http_code(kind, timeline.protocol));
            attributes.extend([
                Attribute::new("http.request.method", "POST"),
                Attribute::new("http.route", *route),
                Attribute::new("url.path", path.clone()),
                Attribute::new("url.scheme", request.scheme),
                Attribute::new("http.response.status_code", u64::from(code)),
            ]);
            code >= 500
        }
        TracedCall::Grpc { path } => {
            let code = kind.map_or(0, ErrorKind::grpc_code);
            let (service, method) =
                path.trim_start_matches('/').split_once('/').unwrap_or_default();
            attributes.extend([
                Attribute::new("rpc.system", "grpc"),
                Attribute::new("rpc.service", service.to_owned()),
                Attribute::new("rpc.method", method.to_owned()),
                Attribute::new("rpc.grpc.status_code", code as u64),
            ]);
            GRPC_SERVER_ERRORS.contains(&code)
        }
    };
    if let Some(kind) = kind {
        attributes.push(Attribute::new("error.type", kind.name()));
    }
    if timeline.loading {
        attributes.push(Attribute::new("millpond.load_in_progress", true));
    }
    if let Some(name) = &request.user_agent {
        attributes.push(Attribute::new("user_agent.original", name.clone()));
    }
    Span {
        name: request.call.name(),
        id: request.trace.span,
        parent: request.trace.parent,
        kind: SpanKind::Server,
        start: timeline.first_byte,
        end,
        attributes,
        error: failed.then_some(Cow::Borrowed(status)),
    }
}

/// Returns the status of the answer. TensorFlow Serving answers 400 if the state of a model forbids
/// a request.
fn http_code(kind: ErrorKind, protocol: &str) -> u16 {
    match kind {
        ErrorKind::FailedPrecondition if protocol == "tfs-http" => 400,
        kind => kind.http_status(),
    }
}

fn wait_attributes(run: &RunRecord) -> Vec<Attribute> {
    let wait = &run.wait;
    let mut attributes = vec![Attribute::new("millpond.queue.before", wait.before as u64)];
    if let Some(ahead) = &wait.ahead {
        attributes.push(Attribute::new("millpond.queue.ahead.model", ahead.model.clone()));
        attributes.push(Attribute::new("millpond.queue.ahead.batch", ahead.batch));
    }
    attributes
}

/// Returns the attributes of the span of a run.
fn run_attributes(run: &RunRecord) -> Vec<Attribute> {
    let mut attributes = vec![
        Attribute::new("millpond.batch.id", run.batch),
        Attribute::new("millpond.batch.requests", run.requests as u64),
        Attribute::new("millpond.batch.items", run.items as u64),
        Attribute::new("millpond.run.page_faults", run.minor_faults + run.major_faults),
    ];
    if let Some(cpu) = run.cpu {
        attributes.push(Attribute::new("millpond.run.cpu_seconds", cpu.as_secs_f64()));
    }
    attributes
}
