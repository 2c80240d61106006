//! The service that runs requests on models.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Moment, RequestClock, Result, RunRecord, TimelineSink, VersionId};
use engine::{ScheduleMode, ScheduleOptions, Servable};
use lifecycle::{ActivityMark, Catalog, Lifecycle, RequestKey, RolloutPart, Route};
use metrics::{
    KindLabels, Metrics, ModelLabels, RequestLabels, RequestPhases, TfsRequest, TraceLabels,
};
use os::{CpuAccount, CpuCharge};
use schedule::{Completion, Job, Scheduler};
use telemetry::RequestTrace;
use tokio::sync::oneshot;

use crate::observer::{ObservedRequest, RequestObserver};
use crate::pressure;
use crate::request::{InferenceRequest, InferenceResponse, blame_sizes, items, uneven};
use crate::runs::AnsweredRequest;
use crate::shadow::{ShadowRunner, TrackedRequest};
use crate::stats::InferenceStats;
use crate::ticket::{AnswerCount, RequestTicket};

/// Service that runs requests on the served models, and counts them.
pub struct InferenceService {
    lifecycle: Arc<Lifecycle>,
    scheduler: Arc<Scheduler>,
    metrics: Arc<Metrics>,
    stats: Arc<InferenceStats>,
    request_timeout: Duration,
    observer: Option<Arc<dyn RequestObserver>>,
    sink: Option<Arc<dyn TimelineSink>>,
    shadows: ShadowRunner,
}

/// Sets the flag on drop, which ends the work for a client that has disconnected.
pub struct CancelOnDrop(pub Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Guard that counts a request as cancelled if it is dropped before its outcome. Its client has
/// then disconnected.
struct UnansweredRequest<'a> {
    service: &'a InferenceService,
    ticket: &'a RequestTicket,
    servable: Arc<Servable>,
    is_answered: bool,
}

impl Drop for UnansweredRequest<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let status = ErrorKind::Cancelled.name();
        self.service.count_run(self.ticket, &self.servable, status);
        let stats = self.service.stats.version(&self.servable.id);
        let nothing = AnsweredRequest { items: 0, batch: 0, batch_max: 0, compute: Duration::ZERO };
        stats.record(status, Duration::ZERO, &nothing, self.ticket.started.elapsed());
    }
}

impl InferenceService {
    /// Creates the service. No request may take longer than `request_timeout`.
    pub fn new(
        lifecycle: Arc<Lifecycle>,
        scheduler: Arc<Scheduler>,
        metrics: Arc<Metrics>,
        stats: Arc<InferenceStats>,
        request_timeout: Duration,
    ) -> InferenceService {
        let shadows = ShadowRunner::new(scheduler.clone(), metrics.clone());
        InferenceService {
            lifecycle,
            scheduler,
            metrics,
            stats,
            request_timeout,
            observer: None,
            sink: None,
            shadows,
        }
    }

    /// Passes the timelines of all requests to `sink`.
    pub fn with_sink(self, sink: Option<Arc<dyn TimelineSink>>) -> InferenceService {
        InferenceService { sink, ..self }
    }

    /// Starts a request of `protocol`, which is a label of the metrics. The request ends, and its
    /// timeline is complete, once the ticket or its clock is dropped.
    pub fn start(&self, protocol: &'static str) -> RequestTicket {
        let clock = RequestClock::start(protocol, self.sink.clone());
        RequestTicket::new(protocol, clock, None)
    }

    /// Starts a request that is traced. Its timeline goes to `sink`, which passes it on.
    pub fn start_traced(
        &self,
        protocol: &'static str,
        trace: Arc<RequestTrace>,
        sink: Arc<dyn TimelineSink>,
    ) -> RequestTicket {
        let clock = RequestClock::start(protocol, Some(sink));
        RequestTicket::new(protocol, clock, Some(trace))
    }

    /// Returns the receiver of all timelines.
    pub fn sink(&self) -> Option<Arc<dyn TimelineSink>> {
        self.sink.clone()
    }

    /// Passes requests that have ended to `observer` too.
    pub fn with_observer(self, observer: Option<Arc<dyn RequestObserver>>) -> InferenceService {
        InferenceService { observer, ..self }
    }

    /// Returns the served versions.
    pub fn catalog(&self) -> &Catalog {
        self.lifecycle.catalog()
    }

    /// Returns the statistics of models and versions.
    pub fn stats(&self) -> &InferenceStats {
        &self.stats
    }

    /// Returns the version with a number or a label. Without either, returns the model's default.
    ///
    /// # Errors
    /// `NotFound` or `Unavailable`, from the catalog.
    pub fn find(
        &self,
        model: &str,
        version: Option<u64>,
        label: Option<&str>,
    ) -> Result<Arc<Servable>> {
        match label {
            Some(label) => self.catalog().by_label(model, label),
            None => self.catalog().get(model, version),
        }
    }

    /// Finds the version for a request to run a model. Without number and label, a running rollout
    /// chooses between two versions: by `key`, or in turn.
    ///
    /// # Errors
    /// Returns the errors of [`InferenceService::find`].
    pub fn route(
        &self,
        model: &str,
        version: Option<u64>,
        label: Option<&str>,
        key: Option<&RequestKey>,
    ) -> Result<Route> {
        match (version, label) {
            (None, None) => self.catalog().route(model, key),
            _ => {
                let servable = self.find(model, version, label)?;
                Ok(Route { servable, rollout: None })
            }
        }
    }

    /// Counts a request that failed before its version was found.
    pub fn reject(&self, ticket: &RequestTicket, error: &Error) {
        ticket.clock.record_outcome(None, error.kind().name());
        self.count(ticket, &"".into(), 0, error.kind().name());
    }

    /// Counts a request to `id` that could not be decoded.
    pub fn reject_version(&self, ticket: &RequestTicket, id: &VersionId, error: &Error) {
        ticket.clock.record_outcome(Some(id), error.kind().name());
        self.stats.version(id).reject(error.kind().name());
        self.count(ticket, &id.model, id.version, error.kind().name());
    }

    /// Counts the examples of a request to TensorFlow Serving's API. The caller holds a version of
    /// the model. Series that are counted after its release would stay forever.
    pub fn count_examples(&self, ticket: &RequestTicket, model: &Arc<str>, examples: usize) {
        self.metrics.tfs.count_examples(model, ticket.protocol, examples);
    }

    fn count(&self, ticket: &RequestTicket, model: &Arc<str>, version: u64, status: &'static str) {
        // A request of several tasks counts a run with outputs, although a later task fails.
        drop(ticket.counted().take());
        let labels =
            RequestLabels { model: model.clone(), version, protocol: ticket.protocol, status };
        self.metrics.requests.get_or_create(&labels).inc();
        self.metrics.tfs.count(model, ticket.protocol, status);
    }

    /// Counts a run that failed. One with outputs is counted by its ticket, once the answer is
    /// encoded or the ticket is dropped.
    fn count_run(&self, ticket: &RequestTicket, servable: &Arc<Servable>, status: &'static str) {
        let id = &servable.id;
        if status != "ok" {
            self.count(ticket, &id.model, id.version, status);
            ticket.clock.record_outcome(Some(id), status);
            return;
        }
        let labels = RequestLabels {
            model: id.model.clone(),
            version: id.version,
            protocol: ticket.protocol,
            status,
        };
        let metrics = self.metrics.clone();
        let servable = servable.clone();
        *ticket.counted() = Some(AnswerCount { labels, metrics, servable });
    }

    /// Checks and queues a request, waits for its outputs, and counts it, failed or not. If the
    /// future is dropped, the request is removed from its queue, and counts as cancelled.
    ///
    /// # Errors
    /// Errors of the signature check, the scheduler and the engine; `DeadlineExceeded` once the
    /// deadline has passed.
    pub async fn infer(
        &self,
        ticket: &RequestTicket,
        call: InferenceRequest,
    ) -> Result<InferenceResponse> {
        // Held until the request is counted: series that are counted after a version was released
        // would stay forever.
        let servable = call.servable.clone();
        let activity = self.lifecycle.activity().mark();
        let id = servable.id.clone();
        let items = items(&call);
        let batch_max = servable.schedule().max_batch;
        let uneven = uneven(&call);
        let observed = self.observed(ticket, &call);
        let tracked = TrackedRequest::of(&call);
        self.count_overflow(&call);
        let counted = servable.clone();
        let mut unanswered =
            UnansweredRequest { service: self, ticket, servable: counted, is_answered: false };
        let ran = self.run(ticket, call).await;
        unanswered.is_answered = true;
        let queued = ran.is_ok();
        let completion = match (ran, uneven) {
            (Ok(completion), Some(sizes)) => Completion {
                result: completion.result.map_err(|error| blame_sizes(error, &sizes)),
                ..completion
            },
            (Ok(completion), None) => completion,
            (Err(error), _) => not_run(error),
        };
        tracked.end(&completion, items, queued, &self.shadows);
        let now = Instant::now();
        let total = now - ticket.started;
        let status = completion.result.as_ref().map_or_else(|error| error.kind().name(), |_| "ok");
        self.count_run(ticket, &servable, status);
        let Completion { result, queue, compute, batch, run, .. } = completion;
        ticket.clock.mark_at(Moment::Answered, now);
        self.record_run(ticket, run, activity);
        tracing::debug!(
            version = %id, protocol = ticket.protocol, status, items, batch, ?queue, ?compute, ?total, "request"
        );
        let answered = AnsweredRequest { items, batch, batch_max, compute };
        self.stats.version(&id).record(status, queue, &answered, total);
        if result.is_ok() {
            let trace =
                ticket.trace_id(&id.model).map(|id| TraceLabels { trace_id: id.to_string() });
            let phases = RequestPhases { queue, compute, total, trace };
            self.metrics.record_phases(&id.model, id.version, phases);
            let merges = servable.schedule().mode == ScheduleMode::Async;
            let request = TfsRequest {
                model: &id.model,
                api: ticket.api,
                runtime: servable.engine,
                items,
                queue: merges.then_some(queue),
                compute,
                total,
            };
            self.metrics.tfs.record(ticket.protocol, &request);
            self.stats.window(&id.model).record(total, now);
        }
        if let Some((observer, request)) = observed {
            observer.ended(ObservedRequest { outcome: result.clone(), total, ..request });
        }
        result.map(|outputs| InferenceResponse { id, outputs })
    }

    /// Counts a request that the candidate of a rollout had no room for.
    fn count_overflow(&self, call: &InferenceRequest) {
        if call.rollout.as_ref().is_some_and(RolloutPart::overflowed) {
            let labels = ModelLabels { model: call.servable.id.model.clone() };
            self.metrics.rollouts.overflows.get_or_create(&labels).inc();
        }
    }

    /// Returns the record of a request for the observer, if the observer wants it.
    fn observed(
        &self,
        ticket: &RequestTicket,
        call: &InferenceRequest,
    ) -> Option<(&dyn RequestObserver, ObservedRequest)> {
        let observer = self.observer.as_deref()?;
        let servable = &call.servable;
        observer.wants(servable).then(|| {
            let request = ObservedRequest {
                servable: servable.clone(),
                protocol: ticket.protocol,
                inputs: call.inputs.clone(),
                requested: call.outputs.clone(),
                trace: ticket.trace_id(&servable.id.model),
                outcome: Ok(Vec::new()),
                total: Duration::ZERO,
            };
            (observer, request)
        })
    }

    /// Begins work that is charged to the current caller.
    ///
    /// # Errors
    /// `ResourceExhausted` with the time to wait, if the caller's work in flight uses up its quota.
    fn begin_charge(&self) -> Result<Option<CpuCharge>> {
        let begun = CpuAccount::current().map(|account| account.begin()).transpose();
        begun.map_err(|wait| {
            self.metrics.refused.get_or_create(&KindLabels { kind: "key_cpu" }).inc();
            Error::exhausted(
                "the key's requests in flight use up its CPU seconds per minute; try again later",
            )
            .with_retry_after(wait)
        })
    }

    /// Records in the clock the run, and a load of any version since `activity`.
    fn record_run(&self, ticket: &RequestTicket, run: Option<RunRecord>, activity: ActivityMark) {
        run.into_iter().for_each(|run| ticket.clock.record_run(run));
        if self.lifecycle.activity().busy_since(activity) {
            ticket.clock.record_loading();
        }
    }

    /// Checks a request, queues it, and waits for its outputs, at most until its deadline. Dropping
    /// the future cancels the request.
    ///
    /// # Errors
    /// `InvalidArgument` for inputs or outputs that the signature does not have,
    /// `ResourceExhausted` if the queue is full, `DeadlineExceeded`.
    async fn run(&self, ticket: &RequestTicket, call: InferenceRequest) -> Result<Completion> {
        let InferenceRequest { servable, inputs, outputs, timeout, priority, rollout } = call;
        let signature = servable.signature();
        signature
            .check_inputs(&inputs)
            .and_then(|()| signature.check_outputs(outputs.iter().map(|name| &**name)))
            .map_err(|error| error.context(&servable.id))?;
        let timeout = timeout.or_else(|| default_timeout(servable.schedule(), priority));
        let limit = self.request_timeout;
        let deadline = ticket.started + timeout.map_or(limit, |timeout| timeout.min(limit));
        let cancelled = Arc::new(AtomicBool::new(false));
        let _guard = CancelOnDrop(cancelled.clone());
        let (sender, receiver) = oneshot::channel();
        let charge = self.begin_charge()?;
        // Held until the run has ended, even if the client disconnects.
        let permit = rollout.and_then(RolloutPart::into_permit);
        // The send fails only if the caller has dropped its future, and needs no result.
        let done = Box::new(move |completion: Completion| {
            // Charged here, because the run of a client that disconnects is charged too.
            settle(charge, &completion);
            drop(permit);
            drop(sender.send(completion));
        });
        let job = Job { servable, inputs, outputs, priority, deadline, cancelled, done };
        ticket.mark(Moment::Queued);
        self.scheduler.submit(job).inspect_err(|error| {
            if error.kind() == ErrorKind::ResourceExhausted {
                self.metrics.refused.get_or_create(&KindLabels { kind: "queue_max" }).inc();
            }
        })?;
        pressure::adjust(self.scheduler.queued(), self.scheduler.workers());
        match tokio::time::timeout_at(deadline.into(), receiver).await {
            Ok(Ok(completion)) => Ok(completion),
            Ok(Err(_)) => Err(Error::internal("the worker ended without an answer")),
            Err(_) => Err(Error::deadline("the deadline passed before the answer was ready")),
        }
    }
}

/// Charges the caller for a run. A request that never ran says nothing about the average cost of
/// the caller's work, so its charge is dropped.
fn settle(charge: Option<CpuCharge>, completion: &Completion) {
    if let Some(charge) = charge.filter(|_| completion.run.is_some()) {
        charge.settle(completion.processor);
    }
}

/// Returns the completion of a request that did not run.
fn not_run(error: Error) -> Completion {
    Completion {
        result: Err(error),
        queue: Duration::ZERO,
        compute: Duration::ZERO,
        batch: 0,
        run: None,
        processor: Duration::ZERO,
    }
}

/// Returns the deadline of a request without one: its priority level's, or else the model's. `None`
/// stands for the server's.
pub fn default_timeout(options: &ScheduleOptions, priority: usize) -> Option<Duration> {
    let level = options.priorities.get(options.level(priority) - 1);
    level.and_then(|level| level.timeout).or(options.timeout)
}

#[cfg(test)]
mod tests {
    use base::QueueWait;
    use engine::PriorityOptions;

    use super::*;

    /// Otherwise a caller could send requests that expire in the queue, and then exceed its quota
    /// by many requests at once.
    #[test]
    fn requests_that_never_ran_do_not_lower_the_average_cost() {
        // One second of refill each second, and five at the start.
        let account = CpuAccount::new(Some(60.0));
        let now = Instant::now();
        let run = RunRecord {
            batch: 1,
            requests: 1,
            items: 1,
            started: now,
            ended: now,
            cpu: None,
            minor_faults: 0,
            major_faults: 0,
            wait: QueueWait::default(),
        };
        let processor = Duration::from_millis(4900);
        let ran = Completion { run: Some(run), processor, ..not_run(Error::internal("failed")) };
        settle(account.begin().ok(), &ran);
        assert_eq!(account.usage().used, processor);
        for _ in 0..60 {
            settle(account.begin().ok(), &not_run(Error::deadline("it waited too long")));
        }
        let _running = account.begin().unwrap();
        assert!(account.begin().is_err(), "the first one may cost more than is left");
        assert_eq!(account.usage().used, processor);
    }

    #[test]
    fn the_default_deadline_is_that_of_the_priority_level() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let mut options = ScheduleOptions::default();
        assert_eq!(default_timeout(&options, 0), None);
        options.timeout = ms(500);
        assert_eq!(
            (default_timeout(&options, 0), default_timeout(&options, 7)),
            (ms(500), ms(500))
        );
        let level = |timeout| PriorityOptions { timeout, ..PriorityOptions::default() };
        options.priorities = vec![level(ms(50)), level(None), level(ms(900))];
        options.default_priority = 2;
        let timeouts = [0, 1, 2, 3, 4].map(|priority| default_timeout(&options, priority));
        assert_eq!(
            timeouts,
            [ms(500), ms(50), ms(500), ms(900), ms(500)],
            "a level above the last is the default"
        );
    }
}
