//! Spans, as plain values.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use crate::context::{SpanId, TraceId};

/// A finished trace of one request or one load, as far as this server knows it.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Id of 16 bytes. It is that of the client's trace if the request has one.
    pub id: TraceId,
    /// The client's `tracestate`, which is passed on.
    pub state: Option<Box<str>>,
    /// Spans of the trace. The first one contains the others.
    pub spans: Vec<Span>,
    /// The run that the request shared with others.
    pub batch: Option<BatchSpan>,
}

/// The span of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSpan {
    /// Number of the batch in this process.
    pub batch: u64,
    /// Position of the span in [`Trace::spans`].
    pub span: usize,
}

/// Kinds of OpenTelemetry that this server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Work inside this server.
    Internal,
    /// The answer to a client's request.
    Server,
}

/// One timed operation of a trace.
#[derive(Clone, Debug)]
pub struct Span {
    /// Operation in few values, such as the name of a method or a phase.
    pub name: Cow<'static, str>,
    /// Id of 8 bytes.
    pub id: SpanId,
    /// The span that contains it.
    pub parent: Option<SpanId>,
    /// Work inside the server, or the answer to a client.
    pub kind: SpanKind,
    /// Moment at which the operation began.
    pub start: Instant,
    /// Moment at which the operation ended.
    pub end: Instant,
    /// Facts about the operation, such as the model and its version.
    pub attributes: Vec<Attribute>,
    /// Message of a failure.
    pub error: Option<Cow<'static, str>>,
}

/// A fact about a span: key and value.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// Key, such as `millpond.model.name`.
    pub key: &'static str,
    /// Text, number or truth value.
    pub value: AttributeValue,
}

/// Types of values that OTLP carries.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// Constant text.
    Name(&'static str),
    /// Other text.
    Text(Arc<str>),
    /// A signed number of 64 bits.
    Whole(i64),
    /// A floating-point number of 64 bits.
    Number(f64),
    /// True or false.
    Flag(bool),
}

impl From<&'static str> for AttributeValue {
    fn from(name: &'static str) -> AttributeValue {
        AttributeValue::Name(name)
    }
}

impl From<Arc<str>> for AttributeValue {
    fn from(text: Arc<str>) -> AttributeValue {
        AttributeValue::Text(text)
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> AttributeValue {
        AttributeValue::Text(text.into())
    }
}

impl From<u64> for AttributeValue {
    fn from(number: u64) -> AttributeValue {
        AttributeValue::Whole(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for AttributeValue {
    fn from(flag: bool) -> AttributeValue {
        AttributeValue::Flag(flag)
    }
}

impl From<f64> for AttributeValue {
    fn from(number: f64) -> AttributeValue {
        AttributeValue::Number(number)
    }
}

impl Attribute {
    /// Creates an attribute from a key and a value of any of its types.
    pub fn new(key: &'static str, value: impl Into<AttributeValue>) -> Attribute {
        Attribute { key, value: value.into() }
    }
}

/// Moment on both clocks, to convert moments of the monotonic clock to times. Both clocks are read
/// once, so that the spans of one export keep their distances.
pub(crate) struct ClockPair {
    moment: Instant,
    /// The same moment in nanoseconds since the epoch.
    nanos: u64,
}

impl ClockPair {
    pub(crate) fn now() -> ClockPair {
        let since = base::unix_time(SystemTime::now());
        ClockPair { moment: Instant::now(), nanos: since.as_nanos() as u64 }
    }

    /// Returns the time of `moment` in nanoseconds since the epoch.
    pub(crate) fn nanos(&self, moment: Instant) -> u64 {
        let before = self.moment.saturating_duration_since(moment).as_nanos() as u64;
        let after = moment.saturating_duration_since(self.moment).as_nanos() as u64;
        self.nanos.saturating_sub(before).saturating_add(after)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn distances_are_kept() {
        let clock = ClockPair::now();
        let moment = clock.moment + Duration::from_secs(5);
        for nanos in [0, 1, 999, 7_000_000_000u64] {
            let earlier = moment - Duration::from_nanos(nanos);
            assert_eq!(clock.nanos(moment) - clock.nanos(earlier), nanos);
        }
        assert_eq!(clock.nanos(clock.moment), clock.nanos);
    }
}
