//! The request log, a sample of the requests of every protocol. It has a form that warm-up reads:
//! TFRecord of `PredictionLog`, or lines of JSON.
//!
//! A request is sampled at its end. A bounded queue takes it to the thread `request-log`, which
//! encodes and writes it. If the thread falls behind, or if a record is larger than a file may be,
//! the record is dropped and counted. No request waits.

mod file;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use base::units::{GIB, MIB};
use base::{Error, NamedTensor, Result, VersionId};
use crossbeam_channel::{Receiver, Sender, bounded};
use engine::Servable;
use inference::{ObservedRequest, RequestObserver};
use metrics::{KindLabels, Metrics};
use parking_lot::Mutex;
use protocol::oip::json::{InferRecord, encode_record};
use protocol::tfs::warmup::encode_log;
use telemetry::TraceId;

use self::file::LogFiles;

/// Maximum number of records that wait for the thread.
const QUEUE_MAX: usize = 256;
/// Maximum bytes of tensors that wait for the thread.
const QUEUE_BYTES_MAX: u64 = 64 * MIB;
/// Longest wait of a shutdown for room in the queue.
const STOP_WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest wait of a shutdown for the thread after that. A write to a disk that does not answer
/// cannot be stopped.
const END_WAIT_MAX: Duration = Duration::from_secs(10);
/// Default of [`RequestLogConfig::rate`].
const DEFAULT_RATE: f64 = 0.01;
/// Default of [`RequestLogConfig::bytes_max`].
const BYTES_MAX: u64 = GIB;
/// Minimum time between two log lines about failed writes.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Multiplier that spreads consecutive numbers evenly: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Format of the files of the request log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestLogFormat {
    /// TensorFlow Serving's `PredictionLog` as TFRecord. Holds answered requests only.
    #[default]
    TfRecord,
    /// One line of JSON a request, with its outcome. Holds failed requests too.
    Json,
}

impl RequestLogFormat {
    /// Returns the end of the files' names.
    fn extension(self) -> &'static str {
        match self {
            RequestLogFormat::TfRecord => ".tfrecord",
            RequestLogFormat::Json => ".jsonl",
        }
    }
}

/// The settings of the request log.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestLogConfig {
    /// Directory of the files.
    pub dir: PathBuf,
    /// Share of the requests that is logged, 0 to 1.
    pub rate: f64,
    /// Maximum bytes of all files. The oldest files are removed.
    pub bytes_max: u64,
    /// Format of new files.
    pub format: RequestLogFormat,
}

impl RequestLogConfig {
    /// Returns the default settings for a directory: 1 % of the requests, 1 GiB.
    pub fn new(dir: impl Into<PathBuf>) -> RequestLogConfig {
        let format = RequestLogFormat::default();
        RequestLogConfig { dir: dir.into(), rate: DEFAULT_RATE, bytes_max: BYTES_MAX, format }
    }
}

/// Log that samples requests and sends them to the thread that writes.
pub struct RequestLog {
    rate: f64,
    format: RequestLogFormat,
    /// Requests seen, which select the sampled ones.
    seen: AtomicU64,
    queue: Sender<LogMessage>,
    state: Arc<RequestLogState>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// Message to the thread that writes.
enum LogMessage {
    Request(Box<LoggedRequest>),
    Stop,
}

/// A request without its version, so that the version can be unloaded before the request is
/// written.
struct LoggedRequest {
    id: VersionId,
    protocol: &'static str,
    signature: String,
    inputs: Vec<NamedTensor>,
    requested: Vec<Arc<str>>,
    outcome: Result<Vec<NamedTensor>>,
    trace: Option<TraceId>,
    /// Time at which the request ended.
    ended: SystemTime,
    total: Duration,
    /// Bytes of the tensors.
    bytes: u64,
}

impl LoggedRequest {
    /// Encodes the request for a file. Returns `None` if the format cannot hold such a request.
    ///
    /// # Errors
    /// `InvalidArgument` if a tensor has no form in JSON.
    fn encode(&self, format: RequestLogFormat) -> Result<Option<Vec<u8>>> {
        match (format, &self.outcome) {
            (RequestLogFormat::Json, _) => self.encode_json().map(Some),
            (RequestLogFormat::TfRecord, Err(_)) => Ok(None),
            (RequestLogFormat::TfRecord, Ok(outputs)) => {
                let LoggedRequest { id, signature, inputs, requested, .. } = self;
                Ok(Some(encode_log(id, signature, inputs, requested, outputs.clone())))
            }
        }
    }

    fn encode_json(&self) -> Result<Vec<u8>> {
        let error = self.outcome.as_ref().err();
        let record = encode_record(&InferRecord {
            time: self.ended.checked_sub(self.total).unwrap_or(self.ended),
            duration: self.total,
            id: &self.id,
            protocol: self.protocol,
            status: error.map_or("ok", |error| error.kind().name()),
            error: error.map(Error::message),
            trace_id: self.trace.map(|trace| trace.to_string()),
            signature: (self.signature != engine::DEFAULT_SIGNATURE).then_some(&*self.signature),
            inputs: &self.inputs,
            requested: &self.requested,
            outputs: self.outcome.as_deref().unwrap_or_default(),
        });
        record.map_err(|error| {
            error.context(format_args!("{} needs --request-log-format tfrecord", self.id))
        })
    }
}

/// State that the log shares with its thread.
struct RequestLogState {
    queued_bytes: AtomicU64,
    metrics: Arc<Metrics>,
}

impl RequestLogState {
    fn count(&self, outcome: &'static str) {
        self.metrics.request_log.get_or_create(&KindLabels { kind: outcome }).inc();
    }
}

impl RequestLog {
    /// Creates the directory, repairs the files of an earlier run, and starts the thread.
    ///
    /// # Errors
    /// `InvalidArgument` for a rate outside 0 to 1. Also errors of the directory.
    pub fn start(config: &RequestLogConfig, metrics: Arc<Metrics>) -> Result<RequestLog> {
        if !(0.0..=1.0).contains(&config.rate) {
            return Err(Error::invalid(format!(
                "--request-log-rate {}: it must be 0 to 1, the share of the requests",
                config.rate
            )));
        }
        let files = LogFiles::open(config)?;
        let state = Arc::new(RequestLogState { queued_bytes: AtomicU64::new(0), metrics });
        let (queue, messages) = bounded(QUEUE_MAX);
        let format = config.format;
        let writer = RequestLogWriter { files, format, state: state.clone(), reported: None };
        let writer = os::thread::spawn("request-log", move || writer.run(&messages))?;
        let writer = Mutex::new(Some(writer));
        let seen = AtomicU64::new(0);
        Ok(RequestLog { rate: config.rate, format, seen, queue, state, writer })
    }

    /// Waits until all sampled requests are written, for at most 15 s. Later ones are dropped.
    pub fn shutdown(&self) {
        self.end_writer(END_WAIT_MAX);
    }

    /// Ends the thread, and waits at most `wait` for it once the queue has room.
    fn end_writer(&self, wait: Duration) {
        // Fails if the disk has stalled, or if the thread has ended.
        if self.queue.send_timeout(LogMessage::Stop, STOP_WAIT_MAX).is_ok()
            && let Some(writer) = self.writer.lock().take()
        {
            os::thread::join_until(writer, Instant::now() + wait);
        }
    }
}

/// Returns true if request number `number` belongs to the share `rate`. The chosen ones are spread
/// evenly, without the rhythm of every nth request.
fn samples(number: u64, rate: f64) -> bool {
    rate >= 1.0 || (number.wrapping_mul(SPREAD) as f64) < rate * u64::MAX as f64
}

impl RequestObserver for RequestLog {
    fn wants(&self, servable: &Servable) -> bool {
        let rate = servable.request_log_rate().unwrap_or(self.rate);
        rate > 0.0 && samples(self.seen.fetch_add(1, Ordering::Relaxed), rate)
    }

    fn ended(&self, request: ObservedRequest) {
        if request.outcome.is_err() && self.format == RequestLogFormat::TfRecord {
            return;
        }
        let ObservedRequest { servable, protocol, inputs, requested, trace, outcome, total } =
            request;
        let tensors = inputs.iter().chain(outcome.iter().flatten());
        let bytes = tensors.map(|named| named.tensor.byte_len() as u64).sum();
        let queued = self.state.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let ended = SystemTime::now();
        let tfs = &self.state.metrics.tfs;
        let logged = LoggedRequest {
            id: servable.id.clone(),
            protocol,
            signature: servable.signature_name().to_owned(),
            inputs,
            requested,
            outcome,
            trace,
            ended,
            total,
            bytes,
        };
        let is_dropped = queued + bytes > QUEUE_BYTES_MAX
            || self.queue.try_send(LogMessage::Request(Box::new(logged))).is_err();
        // Counted here and not after the write, because the version is held until this call ends.
        tfs.count_logged(&servable.id.model, protocol, is_dropped);
        if is_dropped {
            self.state.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.state.count("dropped");
        }
    }
}

/// State of the thread that writes.
struct RequestLogWriter {
    files: LogFiles,
    format: RequestLogFormat,
    state: Arc<RequestLogState>,
    /// Time of the last line about a failure.
    reported: Option<Instant>,
}

impl RequestLogWriter {
    /// Writes requests until the log is stopped.
    fn run(mut self, messages: &Receiver<LogMessage>) {
        os::thread::enter_low_priority("logging requests");
        while let Ok(LogMessage::Request(request)) = messages.recv() {
            let written = self.write(&request);
            self.state.queued_bytes.fetch_sub(request.bytes, Ordering::Relaxed);
            match written {
                Ok(Some(outcome)) => self.state.count(outcome),
                Ok(None) => {}
                Err(error) => self.failed(&error),
            }
        }
    }

    /// Writes a request. Returns its outcome for the metric, or `None` if the format cannot hold
    /// such a request.
    fn write(&mut self, request: &LoggedRequest) -> Result<Option<&'static str>> {
        let Some(record) = request.encode(self.format)? else { return Ok(None) };
        if self.files.append(&request.id.model, &record)? {
            return Ok(Some("written"));
        }
        if self.may_report() {
            tracing::warn!(
                model = %request.id.model,
                bytes = record.len(),
                "a request is not logged: it is larger than a file of the request log may be; \
                 millpond_request_log_total counts such requests"
            );
        }
        Ok(Some("dropped"))
    }

    fn failed(&mut self, error: &Error) {
        self.state.count("failed");
        if self.may_report() {
            tracing::warn!(%error, "requests cannot be logged; millpond_request_log_total counts them");
        }
    }

    /// Returns true if the last log line about a failure is old enough, and records the time of
    /// this one.
    fn may_report(&mut self) -> bool {
        let due = self.reported.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL);
        if due {
            self.reported = Some(Instant::now());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use base::{DType, Tensor};

    use super::*;

    #[test]
    fn a_tensor_without_a_form_in_json_names_the_other_format() {
        let bytes = vec![0u8; 8].into();
        let complex = Tensor::from_bytes(DType::Complex64, &[1usize][..], bytes).unwrap();
        let request = LoggedRequest {
            id: VersionId { model: "m".into(), version: 3 },
            protocol: "tfs-grpc",
            signature: String::new(),
            inputs: vec![NamedTensor::new("x", complex)],
            requested: Vec::new(),
            outcome: Ok(Vec::new()),
            trace: None,
            ended: SystemTime::now(),
            total: Duration::ZERO,
            bytes: 8,
        };
        let error = request.encode(RequestLogFormat::Json).unwrap_err();
        let wanted =
            "m/3 needs --request-log-format tfrecord: \"x\": complex64 has no form in JSON";
        assert!(error.message().starts_with(wanted), "{error}");
        assert!(request.encode(RequestLogFormat::TfRecord).unwrap().is_some());
    }

    #[test]
    fn a_stalled_disk_does_not_hold_up_the_end() {
        let (queue, messages) = bounded(QUEUE_MAX);
        let (resume, stalled) = bounded::<()>(0);
        let write = move || {
            // Ends once `resume` is dropped.
            let _ = stalled.recv();
            drop(messages);
        };
        let writer = Mutex::new(Some(os::thread::spawn("request-log", write).unwrap()));
        let state = RequestLogState { queued_bytes: AtomicU64::new(0), metrics: Arc::default() };
        let log = RequestLog {
            rate: 1.0,
            format: RequestLogFormat::Json,
            seen: AtomicU64::new(0),
            queue,
            state: Arc::new(state),
            writer,
        };
        log.end_writer(Duration::from_millis(1));
        assert!(log.writer.lock().is_none(), "its thread is left behind");
        drop(resume);
    }

    #[test]
    fn the_sample_has_the_rate() {
        for (rate, wanted) in [(0.0, 0), (0.01, 100), (0.25, 2500), (1.0, 10_000)] {
            let sampled = (0..10_000).filter(|&number| samples(number, rate)).count();
            assert!(sampled.abs_diff(wanted) <= 2, "{rate}: {sampled}");
        }
        // Every second request is of one kind: both kinds are sampled.
        let even = (0..10_000).step_by(2).filter(|&number| samples(number, 0.1)).count();
        assert!((400..=600).contains(&even), "{even}");
    }
}
