//! Encodes traces as OTLP.

use bytes::Bytes;
use prost::Message;

use crate::generated as pb;
use crate::links::{BatchIndex, LoadLog, SpanLink, SpanLinks};
use crate::span::{Attribute, AttributeValue, ClockPair, Span, SpanKind, Trace};

/// Version of the semantic conventions whose names the attributes have.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.37.0";
/// Bits of the flags of a span: sampled, and the id is random.
const FLAGS: u32 = 0x03;
/// Code of a failed span.
const STATUS_ERROR: i32 = 2;

/// Spans of other traces that spans are linked to.
pub(crate) struct LinkSources<'a> {
    pub(crate) batches: &'a BatchIndex,
    pub(crate) loads: &'a LoadLog,
}

/// Returns the body of an export.
pub(crate) fn export_request<'a>(
    traces: impl Iterator<Item = &'a Trace>,
    resource: &[(String, String)],
    links: &LinkSources<'_>,
) -> Bytes {
    let clock = ClockPair::now();
    let attribute = |(key, value): &(String, String)| pb::KeyValue {
        key: key.clone(),
        value: text(value.clone()),
    };
    let scope = pb::InstrumentationScope {
        name: "millpond".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let spans = traces.flat_map(|trace| trace_spans(trace, &clock, links)).collect();
    let spans = pb::ScopeSpans { scope: Some(scope), spans };
    let resource = pb::Resource { attributes: resource.iter().map(attribute).collect() };
    let request = pb::ExportTraceServiceRequest {
        resource_spans: vec![pb::ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![spans],
            schema_url: SCHEMA_URL.to_owned(),
        }],
    };
    request.encode_to_vec().into()
}

/// Returns the spans of a trace, with their links.
fn trace_spans(trace: &Trace, clock: &ClockPair, links: &LinkSources<'_>) -> Vec<pb::OtlpSpan> {
    let encode = |(position, span): (usize, &Span)| {
        let batch = trace.batch.filter(|batch| batch.span == position);
        let found = match batch {
            Some(batch) => links.batches.others(batch.batch, span.id),
            None if position == 0 => links.loads.during(span.start, span.end, span.id),
            None => SpanLinks::default(),
        };
        otlp_span(trace, span, clock, found)
    };
    trace.spans.iter().enumerate().map(encode).collect()
}

fn otlp_span(trace: &Trace, span: &Span, clock: &ClockPair, links: SpanLinks) -> pb::OtlpSpan {
    let status = span
        .error
        .as_ref()
        .map(|message| pb::Status { message: message.clone().into_owned(), code: STATUS_ERROR });
    pb::OtlpSpan {
        trace_id: Bytes::copy_from_slice(&trace.id.0),
        span_id: Bytes::copy_from_slice(&span.id.0),
        trace_state: trace.state.as_deref().unwrap_or_default().to_owned(),
        parent_span_id: span.parent.map_or(Bytes::new(), |id| Bytes::copy_from_slice(&id.0)),
        name: span.name.clone().into_owned(),
        kind: match span.kind {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
        },
        start_time_unix_nano: clock.nanos(span.start),
        end_time_unix_nano: clock.nanos(span.end.max(span.start)),
        attributes: span.attributes.iter().map(key_value).collect(),
        links: links.links.iter().map(otlp_link).collect(),
        dropped_links_count: links.dropped,
        status,
        flags: FLAGS,
    }
}

fn otlp_link(link: &SpanLink) -> pb::Link {
    let relation =
        pb::KeyValue { key: "millpond.link".to_owned(), value: text(link.relation.to_owned()) };
    pb::Link {
        trace_id: Bytes::copy_from_slice(&link.trace.0),
        span_id: Bytes::copy_from_slice(&link.span.0),
        attributes: vec![relation],
    }
}

fn key_value(attribute: &Attribute) -> pb::KeyValue {
    use pb::any_value::Value;
    let value = match &attribute.value {
        AttributeValue::Name(name) => Value::StringValue((*name).to_owned()),
        AttributeValue::Text(text) => Value::StringValue(text.to_string()),
        AttributeValue::Whole(number) => Value::IntValue(*number),
        AttributeValue::Number(number) => Value::DoubleValue(*number),
        AttributeValue::Flag(flag) => Value::BoolValue(*flag),
    };
    let value = Some(pb::AnyValue { value: Some(value) });
    pb::KeyValue { key: attribute.key.to_owned(), value }
}

fn text(text: String) -> Option<pb::AnyValue> {
    Some(pb::AnyValue { value: Some(pb::any_value::Value::StringValue(text)) })
}
