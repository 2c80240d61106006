//! Traces of HTTP calls that are not requests to a model: audio, images and collections. Each has
//! one span, from the arrival of the request's head to the end of the response.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http::{Method, StatusCode, header};
use hyper::body::{Frame, SizeHint};
use telemetry::{Attribute, RequestTrace, Span, SpanKind, Trace, Tracer};

use super::spans::DISCONNECTED;
use super::{PATH_BYTES_MAX, RequestStarter, cut, header_text, shortened};

/// Traces a call, if it is sampled.
pub async fn trace_call(
    State(starter): State<RequestStarter>,
    request: Request,
    next: Next,
) -> Response {
    let Some(mut call) = starter.begin_call(&request) else { return next.run(request).await };
    let response = next.run(request).await;
    call.status = Some(response.status());
    response.map(|body| Body::new(TracedBody { body, _call: call }))
}

/// A traced call. Its trace is finished when it is dropped.
struct CallTrace {
    tracer: Arc<Tracer>,
    trace: Arc<RequestTrace>,
    start: Instant,
    method: Method,
    route: Arc<str>,
    path: String,
    scheme: &'static str,
    user_agent: Option<Arc<str>>,
    /// `None` if the client disconnected before the answer.
    status: Option<StatusCode>,
}

impl RequestStarter {
    /// Begins the trace of a call, or returns `None` if the call is not traced.
    fn begin_call(&self, request: &Request) -> Option<CallTrace> {
        let tracer = self.tracer.as_ref()?;
        let text = |name: &'static str| header_text(request.headers(), name);
        let trace = tracer.begin(text).filter(|trace| trace.sampled(""))?;
        let route = request.extensions().get::<MatchedPath>();
        Some(CallTrace {
            tracer: tracer.clone(),
            trace,
            start: Instant::now(),
            method: request.method().clone(),
            route: route.map_or("", |route| route.as_str()).into(),
            path: cut(request.uri().path(), PATH_BYTES_MAX).to_owned(),
            scheme: self.scheme,
            user_agent: text(header::USER_AGENT.as_str()).map(shortened),
            status: None,
        })
    }
}

impl CallTrace {
    /// Returns the span of the call, which ends now. A call without a status was dropped by its
    /// client.
    fn span(&self) -> Span {
        // A client can send a method of any length.
        let method = cut(self.method.as_str(), PATH_BYTES_MAX);
        let mut attributes = vec![
            Attribute::new("http.request.method", method.to_owned()),
            Attribute::new("http.route", self.route.clone()),
            Attribute::new("url.path", self.path.clone()),
            Attribute::new("url.scheme", self.scheme),
        ];
        if let Some(status) = self.status {
            let code = u64::from(status.as_u16());
            attributes.push(Attribute::new("http.response.status_code", code));
        }
        if let Some(name) = &self.user_agent {
            attributes.push(Attribute::new("user_agent.original", name.clone()));
        }
        Span {
            name: format!("{method} {}", self.route).into(),
            id: self.trace.span,
            parent: self.trace.parent,
            kind: SpanKind::Server,
            start: self.start,
            end: Instant::now(),
            attributes,
            error: match self.status {
                None => Some(Cow::Borrowed(DISCONNECTED)),
                Some(status) if status.is_server_error() => Some(status.as_str().to_owned().into()),
                Some(_) => None,
            },
        }
    }
}

impl Drop for CallTrace {
    fn drop(&mut self) {
        self.tracer.finish(Trace {
            id: self.trace.id,
            state: self.trace.state.clone(),
            spans: vec![self.span()],
            batch: None,
        });
    }
}

/// The body of a response, which ends its trace.
struct TracedBody {
    body: Body,
    _call: CallTrace,
}

impl hyper::body::Body for TracedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
