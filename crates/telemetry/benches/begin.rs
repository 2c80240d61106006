//! Cost of tracing on the path of a request: the decision, and a sampled request with its spans.

use std::sync::Arc;
use std::time::Instant;

use divan::{Bencher, black_box};
use millpond_telemetry::{
    Attribute, SamplingRates, Span, SpanKind, Trace, TraceExportConfig, Tracer,
};

fn main() {
    divan::main();
}

fn tracer(rate: f64) -> Tracer {
    let rates = SamplingRates { rate, parent_based: true, ..SamplingRates::default() };
    // No collector listens there, so exports fail and are dropped.
    let config = TraceExportConfig::new("http://127.0.0.1:9/v1/traces");
    Tracer::start(config, rates, Arc::default()).expect("a tracer")
}

/// Measures a request that is not sampled.
#[divan::bench]
fn unsampled(bencher: Bencher) {
    let tracer = tracer(1e-9);
    bencher.bench(|| black_box(tracer.begin(|_| None)));
}

/// Measures a sampled request with seven spans.
#[divan::bench]
fn sampled(bencher: Bencher) {
    let tracer = tracer(1.0);
    bencher.bench(|| {
        let Some(request) = tracer.begin(|_| None) else { return };
        let now = Instant::now();
        let span = |kind| Span {
            name: "run".into(),
            id: tracer.span_id(),
            parent: None,
            kind,
            start: now,
            end: now,
            attributes: vec![Attribute::new("millpond.model.version", 1u64); 4],
            error: None,
        };
        let spans = (0..7).map(|_| span(SpanKind::Internal)).collect();
        tracer.finish(Trace { id: request.id, state: None, spans, batch: None });
    });
}
