//! Traces of requests and loads: the calls that begin one, and its spans.

mod calls;
mod loads;
mod spans;

use std::borrow::Cow;
use std::sync::Arc;

use base::{RequestTimeline, TimelineSink};
use http::{HeaderMap, header};
use inference::{InferenceService, RequestTicket};
use metrics::Metrics;
use telemetry::{RequestTrace, SamplingRates, TraceExportConfig, Tracer};

pub use calls::trace_call;
pub use loads::LoadTraces;

/// Settings of traces.
#[derive(Clone, Debug)]
pub struct TraceConfig {
    /// The collector.
    pub export: TraceExportConfig,
    /// Requests that are traced.
    pub rates: SamplingRates,
}

/// Starting point of requests. Decides if a request is traced.
#[derive(Clone)]
pub struct RequestStarter {
    inference: Arc<InferenceService>,
    tracer: Option<Arc<Tracer>>,
    /// Scheme of HTTP requests.
    scheme: &'static str,
}

/// A call, as its span shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TracedCall {
    /// A request over HTTP.
    Http {
        /// Route with names in place of values.
        route: &'static str,
        /// Path of the request.
        path: String,
    },
    /// A gRPC call.
    Grpc {
        /// Path of the method, `/package.Service/Method`.
        path: String,
    },
}

/// Starts the tracer, if a collector is configured.
///
/// # Errors
/// `InvalidArgument` for a malformed address, header or rate.
pub fn start_tracer(
    config: Option<&TraceConfig>,
    metrics: &Arc<Metrics>,
) -> base::Result<Option<Arc<Tracer>>> {
    let start = |config: &TraceConfig| {
        Tracer::start(config.export.clone(), config.rates.clone(), metrics.clone()).map(Arc::new)
    };
    config.map(start).transpose()
}

impl RequestStarter {
    /// Creates a starter. `tls` is true if the HTTP port is encrypted.
    pub fn new(
        inference: Arc<InferenceService>,
        tracer: Option<Arc<Tracer>>,
        tls: bool,
    ) -> RequestStarter {
        RequestStarter { inference, tracer, scheme: if tls { "https" } else { "http" } }
    }

    /// Starts a request of `protocol` with the given headers. Runs `call` only if the request may
    /// be traced.
    pub fn start(
        &self,
        protocol: &'static str,
        headers: &HeaderMap,
        call: impl FnOnce() -> TracedCall,
    ) -> RequestTicket {
        let Some(tracer) = &self.tracer else { return self.inference.start(protocol) };
        let text = |name: &'static str| header_text(headers, name);
        let Some(trace) = tracer.begin(text) else { return self.inference.start(protocol) };
        let sink = TracedRequest {
            next: self.inference.sink(),
            tracer: tracer.clone(),
            trace: trace.clone(),
            call: call().with_short_path(),
            scheme: self.scheme,
            user_agent: text(header::USER_AGENT.as_str()).map(shortened),
        };
        self.inference.start_traced(protocol, trace, Arc::new(sink))
    }
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Maximum bytes of a client's name in a span.
const USER_AGENT_BYTES_MAX: usize = 200;
/// Maximum bytes of a path in a span. Spans wait in memory while the collector does not answer.
const PATH_BYTES_MAX: usize = 2048;

fn shortened(text: &str) -> Arc<str> {
    cut(text, USER_AGENT_BYTES_MAX).into()
}

/// Returns the text, cut at a maximum.
fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// Receiver of the timeline of one traced request.
struct TracedRequest {
    next: Option<Arc<dyn TimelineSink>>,
    tracer: Arc<Tracer>,
    trace: Arc<RequestTrace>,
    call: TracedCall,
    scheme: &'static str,
    user_agent: Option<Arc<str>>,
}

impl TimelineSink for TracedRequest {
    fn ended(&self, timeline: &RequestTimeline) {
        if let Some(next) = &self.next {
            next.ended(timeline);
        }
        let model = timeline.version.as_ref().map_or("", |version| &version.model);
        if self.trace.sampled(model) {
            self.tracer.finish(spans::of_request(self, timeline));
        }
    }
}

impl TracedCall {
    /// Cuts the path at its maximum.
    fn with_short_path(mut self) -> TracedCall {
        let (TracedCall::Http { path, .. } | TracedCall::Grpc { path }) = &mut self;
        if path.len() > PATH_BYTES_MAX {
            *path = cut(path, PATH_BYTES_MAX).to_owned();
        }
        self
    }

    /// Returns the name of the span.
    fn name(&self) -> Cow<'static, str> {
        match self {
            TracedCall::Http { route, .. } => format!("POST {route}").into(),
            TracedCall::Grpc { path } => path.trim_start_matches('/').to_owned().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_cut_between_characters() {
        let long = |start: &str| format!("{start}{}", "é".repeat(PATH_BYTES_MAX));
        let grpc = TracedCall::Grpc { path: long("/") }.with_short_path();
        let TracedCall::Grpc { path } = grpc else { panic!("it stays a gRPC call") };
        assert_eq!(path.len(), PATH_BYTES_MAX - 1);
        assert!(path.capacity() <= 2 * PATH_BYTES_MAX, "the long path is freed");
        let route = "/v2/models/{model}/infer";
        let short = TracedCall::Http { route, path: "/v2/models/m/infer".to_owned() };
        assert_eq!(short.clone().with_short_path(), short);
        assert_eq!(shortened(&long("")).len(), USER_AGENT_BYTES_MAX);
    }
}
