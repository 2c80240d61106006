//! Warm-up: running a version before it takes requests.
//!
//! A recorded request must succeed, or the load fails, unless the model's settings say otherwise.
//! Without recorded requests, requests are generated from the signature. They may break rules that
//! the signature does not state, such as an index range or a required token. So a refusal is only
//! noted, unless the settings say otherwise. Pauses between the runs keep each thread of a warm-up
//! below half a core.

mod generated;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, NamedTensor, Result, Signature, TensorSpec};
use engine::Servable;
use parking_lot::Mutex;

use crate::{GoldenCase, WarmupConfig};

use generated::generate;

/// Minimum runs of all requests together, unless configured. If requests change the model's state,
/// each runs once.
const WARMUP_RUNS_MIN: usize = 10;
/// Time after which warm-up ends, if every request ran once.
const WARMUP_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum recorded requests that are used, as in TensorFlow Serving.
const WARMUP_REQUESTS_MAX: usize = 1000;
/// Shortest pause between two runs. A pause takes the time of the run before it, within
/// this and [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_micros(500);
/// Longest pause between two runs.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Recorded requests of a version.
#[derive(Debug, Default)]
pub struct WarmupSet {
    /// The requests in the order of their records. A record may stand for several.
    pub requests: Vec<RecordedRequest>,
    /// Remark for the version's status, such as the number of skipped records.
    pub note: Option<String>,
}

/// One request from a record.
#[derive(Debug)]
pub struct RecordedRequest {
    /// Number of the record, from 0. In a file, it is the position. In a folder, it continues from
    /// file to file. Requests of a log that had failed are not counted there.
    pub number: usize,
    /// The request, or the error of the record.
    pub call: Result<WarmupCall>,
}

/// A request that warms a version up.
#[derive(Clone, Debug, Default)]
pub struct WarmupCall {
    /// The signature. Empty for the default.
    pub signature: String,
    /// A full set of inputs.
    pub inputs: Vec<NamedTensor>,
    /// The requested outputs. Empty for all.
    pub outputs: Vec<Arc<str>>,
}

impl From<Vec<Vec<NamedTensor>>> for WarmupSet {
    /// Numbers requests of the default signature.
    fn from(requests: Vec<Vec<NamedTensor>>) -> WarmupSet {
        let call = |inputs| WarmupCall { inputs, ..WarmupCall::default() };
        let request = |(number, inputs)| RecordedRequest { number, call: Ok(call(inputs)) };
        WarmupSet { requests: requests.into_iter().enumerate().map(request).collect(), note: None }
    }
}

/// Source of recorded requests.
pub trait WarmupSource: Send + Sync {
    /// Adds to recorded `inputs` the inputs that the server fills in for its clients (masks, real
    /// sizes).
    ///
    /// # Errors
    /// If there is no source for these inputs.
    fn complete(&self, _servable: &Servable, _inputs: &mut Vec<NamedTensor>) -> Result<()> {
        Ok(())
    }

    /// Runs a request with a full set of inputs as the server runs it for a client, if no other
    /// request is joined with it.
    ///
    /// # Errors
    /// Returns the errors of [`Servable::run`].
    fn run(
        &self,
        servable: &Servable,
        inputs: &[NamedTensor],
        outputs: &[Arc<str>],
    ) -> Result<Vec<NamedTensor>> {
        servable.run(inputs, outputs)
    }

    /// Returns the recorded requests of the version in `version_dir`, which `servable` runs. If
    /// there are none, requests are generated from the signature.
    ///
    /// # Errors
    /// If recorded requests exist but cannot be read.
    fn requests(&self, version_dir: &Path, servable: &Servable) -> Result<WarmupSet>;

    /// Returns the golden requests in `file` for the version that `servable` runs.
    ///
    /// # Errors
    /// If the file cannot be read, or if a request of it is malformed or has no answer.
    fn golden(&self, file: &Path, _servable: &Servable) -> Result<Vec<GoldenCase>> {
        Err(Error::unimplemented(format!("{}: not read here", file.display())))
    }
}

/// The version that is warmed up.
pub(crate) struct WarmupVersion<'a> {
    pub(crate) servable: &'a Servable,
    /// The session's own signature, whose inputs generated requests fill.
    pub(crate) signature: &'a Signature,
    pub(crate) dir: &'a Path,
}

/// Outcome of a warm-up.
#[derive(Debug, Default)]
pub(crate) struct WarmupOutcome {
    /// Note for the version's status, if there is one.
    pub(crate) note: Option<String>,
    /// Recorded requests that were used.
    pub(crate) records: u64,
}

/// Runs the recorded requests of the version, or generated requests if there are none.
///
/// # Errors
/// The error of a recorded request if `config.fail_on_recorded_error` is set, or of a generated one
/// if `config.fail_on_error` is set. `Cancelled` after `stop`.
pub(crate) fn warm(
    version: WarmupVersion<'_>,
    source: &dyn WarmupSource,
    config: &WarmupConfig,
    stop: &AtomicBool,
) -> Result<WarmupOutcome> {
    let WarmupVersion { servable, signature, dir } = version;
    if !config.enabled {
        return Ok(WarmupOutcome::default());
    }
    let mut notes = Vec::new();
    let warmup = Warmup { servable, source, config, stop };
    match source.requests(dir, servable) {
        Ok(recorded) => {
            notes.extend(recorded.note);
            if !recorded.requests.is_empty() {
                let records = count_records(&recorded.requests);
                notes.extend(warmup.run_recorded(recorded.requests)?);
                return Ok(WarmupOutcome { note: joined(notes), records });
            }
        }
        Err(error) => {
            let error = error.context("recorded warm-up requests");
            if config.fail_on_recorded_error {
                return Err(error);
            }
            notes.push(error.message().to_owned());
        }
    }
    if servable.changes_state() {
        notes.push("not warmed up: a generated request would change the model's state".to_owned());
        return Ok(WarmupOutcome { note: joined(notes), records: 0 });
    }
    notes.extend(unknown_dims(signature, config));
    let sizes = with_allowed_sizes(servable, config);
    if let Err(error) = warmup.generate_and_run(signature, &sizes) {
        if ends_warmup(&error) {
            return Err(error.context(
                "warm-up with generated requests; if the model cannot run them, set enabled = false in [warmup]",
            ));
        }
        if config.fail_on_error || stop.load(Ordering::Relaxed) {
            return Err(error.context("warm-up with generated requests"));
        }
        notes.push(format!(
            "not warmed up: a generated request was refused: {error}; put requests into the model's folder warmup, set \
             dims in [warmup], or name the types in [signature] if the model declares none (TorchScript)"
        ));
    }
    Ok(WarmupOutcome { note: joined(notes), records: 0 })
}

/// Returns a note if the settings have sizes of an input that the model does not have.
fn unknown_dims(signature: &Signature, config: &WarmupConfig) -> Option<String> {
    let unknown = config.dims.keys().find(|name| signature.input(name).is_none())?;
    Some(format!("dims in [warmup]: the model has no input \"{unknown}\""))
}

/// Returns the number of records that the warm-up uses. One record may give several requests.
fn count_records(requests: &[RecordedRequest]) -> u64 {
    let used = requests.iter().take(WARMUP_REQUESTS_MAX);
    used.map(|request| request.number).collect::<BTreeSet<_>>().len() as u64
}

/// Returns `config` with the model's allowed batch sizes up to that of a full batch, if it has some
/// and `config` has the default sizes. Each of them may be compiled at its first run.
fn with_allowed_sizes<'a>(servable: &Servable, config: &'a WarmupConfig) -> Cow<'a, WarmupConfig> {
    let options = servable.schedule();
    let allowed = &options.allowed_batch_sizes;
    let is_default = config.batch_sizes == WarmupConfig::default().batch_sizes;
    if is_default && servable.plan().batchable && !allowed.is_empty() {
        // A full batch is rounded up to the next size after these. No run is larger.
        let smaller = allowed.partition_point(|&size| size < options.max_batch);
        let batch_sizes = allowed.iter().copied().take(smaller + 1).collect();
        Cow::Owned(WarmupConfig { batch_sizes, ..config.clone() })
    } else {
        Cow::Borrowed(config)
    }
}

/// Returns true for an error that ends every warm-up, because the engine aborted or hung in its
/// worker process. Once published, requests would make it do so again.
fn ends_warmup(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded)
}

/// Joins notes to one. Returns `None` if there are none.
fn joined(notes: Vec<String>) -> Option<String> {
    notes.into_iter().reduce(|all, next| format!("{all}; {next}"))
}

/// The warm-up of one version.
struct Warmup<'a> {
    servable: &'a Servable,
    source: &'a dyn WarmupSource,
    config: &'a WarmupConfig,
    stop: &'a AtomicBool,
}

/// A request that can run.
struct ReadyCall<'a> {
    /// Number of the record, or of the generated request, from 0.
    number: usize,
    servable: &'a Servable,
    call: WarmupCall,
}

impl Warmup<'_> {
    /// Runs recorded requests. Returns a note about the requests that were left out.
    ///
    /// # Errors
    /// The first error if `fail_on_recorded_error` is set, or an error that ends every warm-up.
    fn run_recorded(&self, mut requests: Vec<RecordedRequest>) -> Result<Option<String>> {
        requests.truncate(WARMUP_REQUESTS_MAX);
        let mut failures = Vec::new();
        let mut ready = Vec::new();
        for RecordedRequest { number, call } in requests {
            match call.and_then(|call| self.prepare(number, call)) {
                Ok(call) => ready.push(call),
                Err(error) => failures.push(WarmupFailure { number, error }),
            }
            if self.config.fail_on_recorded_error
                && let Some(failure) = failures.pop()
            {
                return Err(failure.into_error());
            }
        }
        let ran = self.run_all(&ready, self.config.fail_on_recorded_error);
        failures.extend(ran.map_err(WarmupFailure::into_error)?);
        let count = failures.len();
        let first = failures.into_iter().min_by_key(|failure| failure.number);
        Ok(first.map(|first| match count {
            1 => format!("left out: {}", first.into_error().message()),
            _ => {
                format!("{count} warm-up requests were left out: {}", first.into_error().message())
            }
        }))
    }

    /// Checks a request against its signature, and adds the inputs that the server fills in.
    ///
    /// # Errors
    /// `InvalidArgument` for inputs or outputs that do not match, and for an unknown signature.
    /// Also the errors of [`WarmupSource::complete`].
    fn prepare(&self, number: usize, mut call: WarmupCall) -> Result<ReadyCall<'_>> {
        let servable = match call.signature.as_str() {
            "" => self.servable,
            name => self.servable.signature_servable(name)?,
        };
        let signature = servable.signature();
        signature.check_inputs(&call.inputs)?;
        signature.check_outputs(call.outputs.iter().map(|name| &**name))?;
        self.source.complete(servable, &mut call.inputs)?;
        Ok(ReadyCall { number, servable, call })
    }

    /// Generates requests and runs them. If they are refused, inputs of unknown rank are scalars in
    /// a second try, because ONNX Runtime describes both in the same way.
    ///
    /// # Errors
    /// The errors of [`generate`]. The first error of a request of the first try, or an error of
    /// the second try that ends every warm-up.
    fn generate_and_run(&self, signature: &Signature, config: &WarmupConfig) -> Result<()> {
        let run = |unknown_rank| {
            generate(signature, config, unknown_rank)
                .and_then(|requests| self.run_generated(&requests))
        };
        let Err(refused) = run(1) else { return Ok(()) };
        let is_unknown = |spec: &TensorSpec| {
            !spec.optional && spec.shape.is_none() && !config.dims.contains_key(&spec.name)
        };
        let is_final = |error: &Error| ends_warmup(error) || self.stop.load(Ordering::Relaxed);
        if is_final(&refused) || !signature.inputs.iter().any(is_unknown) {
            return Err(refused);
        }
        match run(0) {
            Err(again) if is_final(&again) => Err(again),
            Err(again) => {
                tracing::debug!(error = %again, "a generated request with scalars was refused too");
                Err(refused)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Runs generated requests.
    ///
    /// # Errors
    /// The first error of a request.
    fn run_generated(&self, requests: &[Vec<NamedTensor>]) -> Result<()> {
        let ready = |(number, inputs): (usize, &Vec<NamedTensor>)| {
            let call = WarmupCall { inputs: inputs.clone(), ..WarmupCall::default() };
            ReadyCall { number, servable: self.servable, call }
        };
        let ready: Vec<_> = requests.iter().enumerate().map(ready).collect();
        match self.run_all(&ready, true) {
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.error),
        }
    }

    /// Runs all requests several times. Returns the requests that failed.
    ///
    /// # Errors
    /// The first failure if `strict` is set, or a failure that ends every warm-up.
    fn run_all(
        &self,
        calls: &[ReadyCall<'_>],
        strict: bool,
    ) -> Result<Vec<WarmupFailure>, WarmupFailure> {
        let rounds = match self.config.iterations {
            Some(iterations) => iterations as usize,
            // Each further run would change the state again.
            None if self.servable.changes_state() => 1,
            None => WARMUP_RUNS_MIN.div_ceil(calls.len().max(1)),
        };
        let queue = CallQueue {
            source: self.source,
            calls,
            runs: rounds.saturating_mul(calls.len()),
            strict,
            started: Instant::now(),
            next: AtomicUsize::new(0),
            failed: calls.iter().map(|_| AtomicBool::new(false)).collect(),
            failures: Mutex::default(),
            fatal: Mutex::default(),
        };
        std::thread::scope(|scope| {
            for _ in 1..self.config.threads {
                scope.spawn(|| {
                    os::jemalloc::use_background_arena();
                    queue.work(self.stop);
                });
            }
            queue.work(self.stop);
        });
        match queue.fatal.into_inner() {
            Some(failure) => Err(failure),
            None => Ok(queue.failures.into_inner()),
        }
    }
}

/// A request that failed, and why.
struct WarmupFailure {
    number: usize,
    error: Error,
}

impl WarmupFailure {
    /// Returns the error with the number of the request.
    fn into_error(self) -> Error {
        self.error.context(format_args!("recorded warm-up request {}", self.number))
    }
}

/// Runs that the threads of a warm-up take in turn.
struct CallQueue<'a> {
    source: &'a dyn WarmupSource,
    calls: &'a [ReadyCall<'a>],
    /// Number of runs. The calls run in order, again and again.
    runs: usize,
    /// True if the first failure ends the warm-up.
    strict: bool,
    started: Instant,
    /// Number of the next run, from 0.
    next: AtomicUsize,
    /// True for each call that failed and runs no more.
    failed: Vec<AtomicBool>,
    failures: Mutex<Vec<WarmupFailure>>,
    /// Failure that ends the warm-up.
    fatal: Mutex<Option<WarmupFailure>>,
}

impl CallQueue<'_> {
    /// Takes runs until all are taken, the time is up, or the warm-up ends early.
    fn work(&self, stop: &AtomicBool) {
        loop {
            let run = self.next.fetch_add(1, Ordering::Relaxed);
            if run >= self.runs {
                return;
            }
            let position = run % self.calls.len();
            let call = &self.calls[position];
            if stop.load(Ordering::Relaxed) {
                self.end(WarmupFailure {
                    number: call.number,
                    error: Error::cancelled("the load was stopped"),
                });
                return;
            }
            let repeated = run >= self.calls.len();
            if repeated && self.started.elapsed() > WARMUP_TIME_MAX {
                return;
            }
            if self.failed[position].load(Ordering::Relaxed) {
                continue;
            }
            let began = Instant::now();
            let WarmupCall { inputs, outputs, .. } = &call.call;
            if let Err(error) = self.source.run(call.servable, inputs, outputs) {
                // The stop may have ended the worker process of the run.
                let stopped = stop.load(Ordering::Relaxed);
                let error = if stopped { Error::cancelled("the load was stopped") } else { error };
                let fatal = stopped || self.strict || ends_warmup(&error);
                let failure = WarmupFailure { number: call.number, error };
                if fatal {
                    self.end(failure);
                    return;
                }
                self.failed[position].store(true, Ordering::Relaxed);
                self.failures.lock().push(failure);
            }
            std::thread::sleep(began.elapsed().clamp(PAUSE_MIN, PAUSE_MAX));
        }
    }

    /// Ends the warm-up for all threads. Only the first failure is kept.
    fn end(&self, failure: WarmupFailure) {
        self.next.store(self.runs, Ordering::Relaxed);
        self.fatal.lock().get_or_insert(failure);
    }
}
