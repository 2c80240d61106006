//! Records of the server's work, for operators: the request log, spans of requests and loads, the
//! journal of events, and the exposition of metrics.
//!
//! Recording is cheap and bounded. A request sends a copy to a bounded queue or adds to a counter.
//! It never waits for a disk, a collector or a reader. The [`Exporter`] gets handles of the parts
//! that it reads ([`ObservedParts`]). The crate starts, stops and changes none of them.
//!
//! # Modules
//! * Metrics: `exporter`, `classic_format`, `metric_names`, `observer`, `threads`; `parts` are the
//!   handles that they read.
//! * Events and requests: `journal`, `request_log`, `traces`.

mod classic_format;
mod exporter;
mod journal;
mod metric_names;
mod observer;
mod parts;
mod request_log;
pub mod threads;
mod traces;

pub use classic_format::CLASSIC_TYPE;
pub use exporter::{Exporter, Exposition};
pub use journal::{
    EVENTS_MAX, EventFilter, EventJournal, EventLevel, EventPage, NewEvent, ServerEvent,
};
pub use metric_names::MetricNames;
pub use observer::MetricsObserver;
pub use parts::{EndpointLoad, ObservedParts, RegistryReader};
pub use request_log::{RequestLog, RequestLogConfig, RequestLogFormat};
pub use traces::{LoadTraces, RequestStarter, TraceConfig, TracedCall, start_tracer, trace_call};
