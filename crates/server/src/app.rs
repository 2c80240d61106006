//! What all doors share: finding the version, admitting the request, handing it to the workers, counting it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{Error, NamedTensor, Result, VersionId};
use engine::Servable;
use lifecycle::Lifecycle;
use metrics::{KindLabels, Metrics, RequestLabels};
use schedule::{Completion, Job, Scheduler};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::config::DoorConfig;
use crate::errors::label;
use crate::pressure;
use crate::stats::Stats;

/// The running server, as its doors see it.
pub(crate) struct App {
    pub(crate) doors: DoorConfig,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) memory: Arc<memory::ParameterStore>,
    pub(crate) engine_version: String,
    /// Whether parameters live in the slot pool (otherwise in malloc).
    pub(crate) parameters_in_pool: bool,
    admitted: Arc<Semaphore>,
    stopping: AtomicBool,
}

/// A door's request on its way; counted when it ends.
pub(crate) struct Ticket {
    protocol: &'static str,
    started: Instant,
}

/// An answer with the version that gave it.
pub(crate) struct Answer {
    pub(crate) id: VersionId,
    pub(crate) outputs: Vec<NamedTensor>,
}

/// A decoded request.
pub(crate) struct Call {
    pub(crate) servable: Arc<Servable>,
    pub(crate) inputs: Vec<NamedTensor>,
    pub(crate) outputs: Vec<Arc<str>>,
    /// The client's own deadline, if it has one.
    pub(crate) timeout: Option<Duration>,
}

/// Tells the workers that nobody waits any more, when the door's future is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl App {
    pub(crate) fn new(
        doors: DoorConfig,
        lifecycle: Arc<Lifecycle>,
        scheduler: Arc<Scheduler>,
        (metrics, stats): (Arc<Metrics>, Arc<Stats>),
        memory: Arc<memory::ParameterStore>,
        engine_version: String,
        parameters_in_pool: bool,
    ) -> App {
        let admitted = Arc::new(Semaphore::new(doors.requests_max));
        let stopping = AtomicBool::new(false);
        App {
            doors,
            lifecycle,
            scheduler,
            metrics,
            stats,
            memory,
            engine_version,
            parameters_in_pool,
            admitted,
            stopping,
        }
    }

    /// Whether every model that should serve does, and the server is not stopping.
    pub(crate) fn ready(&self) -> bool {
        !self.stopping.load(Ordering::Relaxed) && self.lifecycle.settled()
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Room for one more request, taken before its body is read.
    pub(crate) fn admit(&self) -> Result<OwnedSemaphorePermit> {
        self.admitted.clone().try_acquire_owned().map_err(|_| {
            self.metrics.refused.get_or_create(&KindLabels { kind: "requests_max" }).inc();
            Error::exhausted(format!(
                "{} requests are being answered already; try again later or raise --max-requests",
                self.doors.requests_max
            ))
            .with_retry_after(Duration::from_millis(100))
        })
    }

    pub(crate) fn begin(protocol: &'static str) -> Ticket {
        Ticket { protocol, started: Instant::now() }
    }

    /// The version a request asks for.
    ///
    /// # Errors
    /// `NotFound` or `Unavailable`, from the catalogue.
    pub(crate) fn find(
        &self,
        model: &str,
        version: Option<u64>,
        version_label: Option<&str>,
    ) -> Result<Arc<Servable>> {
        match version_label {
            Some(version_label) => self.lifecycle.catalog().by_label(model, version_label),
            None => self.lifecycle.catalog().get(model, version),
        }
    }

    /// Counts a request that ended before it reached a version.
    pub(crate) fn reject(&self, ticket: &Ticket, error: &Error) {
        self.count(ticket, &"".into(), 0, label(error.kind()));
    }

    /// Counts a request that its version never saw, because it could not be decoded.
    pub(crate) fn reject_version(&self, ticket: &Ticket, id: &VersionId, error: &Error) {
        self.count(ticket, &id.model, id.version, label(error.kind()));
    }

    fn count(&self, ticket: &Ticket, model: &Arc<str>, version: u64, status: &'static str) {
        let labels = RequestLabels { model: model.clone(), version, protocol: ticket.protocol, status };
        self.metrics.requests.get_or_create(&labels).inc();
    }

    /// Checks, queues and awaits one request, and counts it whatever becomes of it.
    ///
    /// # Errors
    /// Those of the signature check, the scheduler and the engine; `DeadlineExceeded` when the time is up.
    pub(crate) async fn answer(&self, ticket: &Ticket, call: Call) -> Result<Answer> {
        let id = call.servable.id.clone();
        let completion = match self.run(ticket, call).await {
            Ok(completion) => completion,
            Err(error) => {
                Completion { result: Err(error), queue: Duration::ZERO, compute: Duration::ZERO, batch: 0 }
            }
        };
        let now = Instant::now();
        let total = now - ticket.started;
        let status = completion.result.as_ref().map_or_else(|error| label(error.kind()), |_| "ok");
        self.count(ticket, &id.model, id.version, status);
        self.stats.version(&id).record(
            completion.result.is_ok(),
            completion.queue,
            completion.compute,
            total,
        );
        if completion.result.is_ok() {
            self.metrics.record_phases(&id.model, id.version, completion.queue, completion.compute, total);
            self.stats.window(&id.model).record(total, now);
        }
        Ok(Answer { id, outputs: completion.result? })
    }

    async fn run(&self, ticket: &Ticket, call: Call) -> Result<Completion> {
        let Call { servable, inputs, outputs, timeout } = call;
        servable.signature().check_inputs(&inputs)?;
        servable.signature().check_outputs(outputs.iter().map(|name| &**name))?;
        let limit = self.doors.request_timeout;
        let deadline = ticket.started + timeout.map_or(limit, |timeout| timeout.min(limit));
        let cancelled = Arc::new(AtomicBool::new(false));
        let _guard = CancelOnDrop(cancelled.clone());
        let (sender, receiver) = oneshot::channel();
        // A send fails only when the door has gone, and then nobody is left to tell.
        let done = Box::new(move |completion| drop(sender.send(completion)));
        let job = Job { servable, inputs, outputs, priority: 0, deadline, cancelled, done };
        self.scheduler.submit(job).map_err(|(_, error)| {
            self.metrics.refused.get_or_create(&KindLabels { kind: "queue_max" }).inc();
            error
        })?;
        pressure::adjust(self.scheduler.queued(), self.scheduler.workers());
        match tokio::time::timeout_at(deadline.into(), receiver).await {
            Ok(Ok(completion)) => Ok(completion),
            Ok(Err(_)) => Err(Error::internal("the worker went away without an answer")),
            Err(_) => Err(Error::deadline("the deadline passed before the answer was ready")),
        }
    }
}
