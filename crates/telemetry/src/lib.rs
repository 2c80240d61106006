//! Distributed traces: the context that a client sends, the decision to trace a request, spans, and
//! their export by OTLP over HTTP.
//!
//! The cost of a request is a branch if tracing is off, and one check of its trace id if it is not
//! sampled. A finished trace goes to a bounded queue. The thread `trace-export` links, encodes and
//! sends. Nothing waits for it.
//!
//! # Modules
//! * A trace: `context`, `sampler`, `tracer`, `span`, `links`.
//! * Export: `exporter`, `encode`, `generated`, `post`, `collector_lookup`.

mod collector_lookup;
mod context;
mod encode;
mod exporter;
mod generated;
mod links;
mod post;
mod sampler;
mod span;
mod tracer;

pub use context::{SpanId, TraceId};
pub use exporter::TraceExportConfig;
pub use sampler::SamplingRates;
pub use span::{Attribute, AttributeValue, BatchSpan, Span, SpanKind, Trace};
pub use tracer::{LoadTraceIds, RequestTrace, Tracer};
