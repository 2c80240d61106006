//! The ticket of a request: its protocol, its clock, and its count until the answer is encoded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use base::{Error, Moment, RequestClock};
use engine::Servable;
use metrics::{Metrics, RequestLabels};
use telemetry::{RequestTrace, TraceId};

/// Protocol and start of a request for its metrics, and its clock.
pub struct RequestTicket {
    pub(crate) protocol: &'static str,
    /// Method of TensorFlow Serving's API.
    pub(crate) api: &'static str,
    pub(crate) started: Instant,
    pub(crate) clock: RequestClock,
    trace: Option<Arc<RequestTrace>>,
    /// The count of the request, from the result of its model until the answer is encoded.
    counted: Mutex<Option<AnswerCount>>,
}

/// Guard that counts a request when it is dropped.
pub(crate) struct AnswerCount {
    pub(crate) labels: RequestLabels,
    pub(crate) metrics: Arc<Metrics>,
    /// Held until the request is counted. Series that are counted after a version was released
    /// would stay forever.
    pub(crate) servable: Arc<Servable>,
}

impl Drop for AnswerCount {
    fn drop(&mut self) {
        let RequestLabels { model, protocol, status, .. } = &self.labels;
        self.metrics.requests.get_or_create(&self.labels).inc();
        self.metrics.tfs.count(model, protocol, status);
    }
}

impl RequestTicket {
    pub(crate) fn new(
        protocol: &'static str,
        clock: RequestClock,
        trace: Option<Arc<RequestTrace>>,
    ) -> RequestTicket {
        RequestTicket {
            protocol,
            api: "Predict",
            started: Instant::now(),
            clock,
            trace,
            counted: Mutex::default(),
        }
    }

    /// Sets the method of TensorFlow Serving's API, if it is not Predict.
    #[must_use]
    pub fn for_method(self, api: &'static str) -> RequestTicket {
        RequestTicket { api, ..self }
    }

    /// Makes the metrics and the deadline count from now on. The clock continues.
    pub fn count_from_now(&mut self) {
        self.started = Instant::now();
    }

    /// Returns the trace of a request to `model`, if it is sampled.
    pub(crate) fn trace_id(&self, model: &str) -> Option<TraceId> {
        let trace = self.trace.as_ref().filter(|trace| trace.sampled(model));
        trace.map(|trace| trace.id)
    }

    /// Marks a moment of the request as now.
    pub fn mark(&self, moment: Moment) {
        self.clock.mark(moment);
    }

    /// Marks the response as encoded, and counts the request. Returns the clock, for the body of
    /// the response.
    pub fn into_encoded(self) -> RequestClock {
        self.clock.mark(Moment::Encoded);
        if let Some(count) = self.counted().take() {
            self.clock.record_outcome(Some(&count.servable.id), count.labels.status);
        }
        self.clock
    }

    /// Counts a request whose answer cannot be encoded. A request that was counted before stays as
    /// it is.
    pub fn fail(&self, error: &Error) {
        if let Some(mut count) = self.counted().take() {
            count.labels.status = error.kind().name();
            self.clock.record_outcome(Some(&count.servable.id), count.labels.status);
        }
    }

    pub(crate) fn counted(&self) -> MutexGuard<'_, Option<AnswerCount>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
