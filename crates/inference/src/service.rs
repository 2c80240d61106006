//! What all doors share: finding the version, admitting the request, handing it to the workers,
//! counting it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::{Data, Dim, Error, ErrorKind, NamedTensor, Result, VersionId};
use engine::{ScheduleOptions, Servable};
use lifecycle::{Lifecycle, ParameterHome};
use metrics::{KindLabels, Metrics, RequestLabels};
use schedule::{Completion, Job, Scheduler};
use search::registry::Registry;
use tokio::sync::oneshot;
use transport::RequestResources;
use transport::access::AccessPolicy;

use crate::collections::Collections;
use crate::compose::Core;
use crate::config::Config;
use crate::images::Images;
use crate::pressure;
use crate::recordings::Recordings;
use crate::runs::Answered;
use crate::stats::Stats;

/// Inputs that a message about batch sizes lists.
const SIZES_SHOWN_MAX: usize = 8;

/// State that the handlers of all routes share.
pub(crate) type Shared = transport::Shared<App>;

/// The running server, as its handlers see it.
pub(crate) struct App {
    /// Limits and resources of all requests.
    pub(crate) requests: Arc<RequestResources>,
    /// Rules by which requests are accepted.
    pub(crate) access: Arc<AccessPolicy>,
    /// Encode answers of Predict over gRPC with `tensor_content`.
    pub(crate) tfs_tensor_content: bool,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) memory: Arc<memory::ParameterStore>,
    pub(crate) engine_version: String,
    /// Whether parameters live in the slot pool (otherwise in malloc).
    pub(crate) parameters_in_pool: bool,
    /// What listening to recordings needs.
    pub(crate) recordings: Recordings,
    /// What the routes of pictures share.
    pub(crate) images: Images,
    /// Collections and what they may take.
    pub(crate) collections: Arc<Collections>,
    /// Taken while gauges are rebuilt and written out, so that one scrape does not clear what
    /// another is about to show.
    pub(crate) scrape: Mutex<()>,
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
    /// Priority level, 1 first; 0 is the model's default.
    pub(crate) priority: usize,
}

/// Tells the workers that nobody waits any more, when the door's future is dropped.
pub(crate) struct CancelOnDrop(pub(crate) Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl App {
    pub(crate) fn new(config: &Config, core: Core) -> App {
        crate::exporter::started();
        App {
            recordings: Recordings::new(config.audio.clone()),
            images: Images::new(config.search.clone(), core.metrics.clone()),
            collections: Arc::new(Collections::new(config.search.clone())),
            scrape: Mutex::new(()),
            stopping: AtomicBool::new(false),
            parameters_in_pool: config.memory.home == ParameterHome::Pool,
            requests: Arc::new(RequestResources::new(
                config.listeners.request_limits(),
                config.listeners.request_memory(),
                core.metrics.clone(),
            )),
            access: Arc::new(config.access_policy()),
            tfs_tensor_content: config.listeners.tfs_tensor_content,
            lifecycle: core.lifecycle,
            scheduler: core.scheduler,
            metrics: core.metrics,
            stats: core.stats,
            memory: core.memory,
            engine_version: core.engine_version,
        }
    }

    /// Checks that every model that should serve does, and that the server is not stopping. A model
    /// whose old version serves while a new one failed counts as serving.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(crate) fn ready(&self) -> Result<()> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(Error::unavailable("the server is shutting down"));
        }
        if !self.lifecycle.settled() {
            return Err(Error::unavailable("the first load is not finished"));
        }
        match self.lifecycle.catalog().failure() {
            Some((model, reason)) => {
                Err(Error::unavailable(format!("model \"{model}\" does not serve: {reason}")))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// The collections.
    ///
    /// # Errors
    /// `FailedPrecondition`, with the remedy, where this server has none.
    pub(crate) fn registry(&self) -> Result<Arc<Registry>> {
        self.collections.registry()
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
        self.count(ticket, &"".into(), 0, error.kind().name());
    }

    /// Counts a request that its version never saw, because it could not be decoded.
    pub(crate) fn reject_version(&self, ticket: &Ticket, id: &VersionId, error: &Error) {
        self.count(ticket, &id.model, id.version, error.kind().name());
    }

    fn count(&self, ticket: &Ticket, model: &Arc<str>, version: u64, status: &'static str) {
        let labels =
            RequestLabels { model: model.clone(), version, protocol: ticket.protocol, status };
        self.metrics.requests.get_or_create(&labels).inc();
    }

    /// Checks, queues and awaits one request, and counts it whatever becomes of it.
    ///
    /// # Errors
    /// Those of the signature check, the scheduler and the engine; `DeadlineExceeded` when the time
    /// is up.
    pub(crate) async fn answer(&self, ticket: &Ticket, call: Call) -> Result<Answer> {
        // Held until all is counted: what is counted of a version that was released meanwhile would
        // stay for ever.
        let servable = call.servable.clone();
        let id = servable.id.clone();
        let (items, batch_max) = (items(&call), call.servable.schedule().max_batch);
        let uneven = uneven(&call);
        let completion = match (self.run(ticket, call).await, uneven) {
            (Ok(completion), Some(sizes)) => Completion {
                result: completion.result.map_err(|error| blame_sizes(error, &sizes)),
                ..completion
            },
            (Ok(completion), None) => completion,
            (Err(error), _) => Completion {
                result: Err(error),
                queue: Duration::ZERO,
                compute: Duration::ZERO,
                batch: 0,
            },
        };
        let now = Instant::now();
        let total = now - ticket.started;
        let status = completion.result.as_ref().map_or_else(|error| error.kind().name(), |_| "ok");
        self.count(ticket, &id.model, id.version, status);
        let Completion { queue, compute, batch, .. } = completion;
        tracing::debug!(
            version = %id, protocol = ticket.protocol, status, items, batch, ?queue, ?compute, ?total, "request"
        );
        let answered = Answered { items, batch, batch_max, compute };
        self.stats
            .version(&id)
            .record(completion.result.is_ok().then_some((queue, &answered)), total);
        if completion.result.is_ok() {
            self.metrics.record_phases(&id.model, id.version, queue, compute, total);
            self.stats.window(&id.model).record(total, now);
        }
        Ok(Answer { id, outputs: completion.result? })
    }

    async fn run(&self, ticket: &Ticket, call: Call) -> Result<Completion> {
        let Call { servable, inputs, outputs, timeout, priority } = call;
        let signature = servable.signature();
        signature
            .check_inputs(&inputs)
            .and_then(|()| signature.check_outputs(outputs.iter().map(|name| &**name)))
            .map_err(|error| error.context(&servable.id))?;
        let timeout = timeout.or_else(|| default_timeout(servable.schedule(), priority));
        let limit = self.requests.limits.request_timeout;
        let deadline = ticket.started + timeout.map_or(limit, |timeout| timeout.min(limit));
        let cancelled = Arc::new(AtomicBool::new(false));
        let _guard = CancelOnDrop(cancelled.clone());
        let (sender, receiver) = oneshot::channel();
        // A send fails only when the door has gone, and then nobody is left to tell.
        let done = Box::new(move |completion| drop(sender.send(completion)));
        let job = Job { servable, inputs, outputs, priority, deadline, cancelled, done };
        self.scheduler.submit(job).inspect_err(|error| {
            if error.kind() == ErrorKind::ResourceExhausted {
                self.metrics.refused.get_or_create(&KindLabels { kind: "queue_max" }).inc();
            }
        })?;
        pressure::adjust(self.scheduler.queued(), self.scheduler.workers());
        match tokio::time::timeout_at(deadline.into(), receiver).await {
            Ok(Ok(completion)) => Ok(completion),
            Ok(Err(_)) => Err(Error::internal("the worker went away without an answer")),
            Err(_) => Err(Error::deadline("the deadline passed before the answer was ready")),
        }
    }
}

/// Deadline of a request that brings none: its priority level's, else the model's, else (`None`)
/// the server's.
fn default_timeout(options: &ScheduleOptions, priority: usize) -> Option<Duration> {
    let level =
        if priority == 0 { options.default_priority } else { priority.min(options.levels()) };
    let level = options.priorities.get(level.saturating_sub(1));
    level.and_then(|level| level.timeout).or(options.timeout)
}

/// Returns the bytes that `tensors` take in memory.
pub(crate) fn tensor_bytes(tensors: &[NamedTensor]) -> u64 {
    let bytes = |tensor: &NamedTensor| match tensor.tensor.data() {
        Data::Bytes(bytes) => bytes.len(),
        Data::Strings(strings) => strings.iter().map(|text| size_of_val(text) + text.len()).sum(),
    };
    tensors.iter().map(bytes).sum::<usize>() as u64
}

/// Items of a request: the size of axis 0 of the inputs that have the batch there.
fn items(call: &Call) -> usize {
    let plan = call.servable.plan();
    let batched = |input: &&NamedTensor| !plan.is_shared(&input.name);
    let batch =
        call.inputs.iter().find(batched).and_then(|input| input.tensor.shape().first().copied());
    batch.filter(|_| plan.batchable).unwrap_or(1)
}

/// Returns the sizes of axis 0 of the inputs whose size there is free, for a message, if those
/// sizes differ. A model may take that (queries against documents), so the request is run.
fn uneven(call: &Call) -> Option<String> {
    let specs = &call.servable.signature().inputs;
    let free = |input: &&NamedTensor| {
        let spec = specs.iter().find(|spec| *spec.name == *input.name);
        let dims = spec.and_then(|spec| spec.shape.as_ref());
        dims.is_some_and(|dims| matches!(dims.first(), Some(Dim::Dynamic(_))))
    };
    let first = call.inputs.iter().find(free)?.tensor.shape().first()?;
    let sizes = || {
        let free = call.inputs.iter().filter(free);
        free.filter_map(|input| Some((&input.name, input.tensor.shape().first()?)))
    };
    if sizes().all(|(_, size)| size == first) {
        return None;
    }
    let shown = sizes().take(SIZES_SHOWN_MAX).map(|(name, size)| format!("\"{name}\" {size}"));
    Some(shown.collect::<Vec<_>>().join(", "))
}

/// Turns a failure of the engine into the client's mistake: its inputs differ in batch size, and
/// the model did not take that. Other errors stay.
fn blame_sizes(error: Error, sizes: &str) -> Error {
    match error.kind() {
        ErrorKind::Internal | ErrorKind::InvalidArgument => {
            Error::invalid(format!("{}; the inputs differ in batch size: {sizes}", error.message()))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use engine::PriorityOptions;

    use super::*;

    #[test]
    fn a_request_without_a_deadline_gets_its_levels() {
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
            [ms(500), ms(50), ms(500), ms(900), ms(900)],
            "a level too many is the last"
        );
    }
}
