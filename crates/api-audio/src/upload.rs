//! An upload that is processed while it arrives: its permit, its thread and its errors.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use audio::AudioModel;
use audio::pipeline::{PipelineOptions, ReadMeter, RecordingEmbedding};
use audio::recogniser::{Recogniser, RecogniserKind};
use axum::body::Body;
use base::{Error, ErrorKind, Result};
use http::{HeaderMap, header};
use metrics::{AudioLabels, KindLabels, Metrics, ModelLabels};
use os::CpuAccount;
use tokio::sync::OwnedSemaphorePermit;
use transport::upload::{UploadFailure, UploadLimits, UploadPieces, UploadReader, upload_channel};
use transport::{HeaderTimeout, UploadPermit};

use super::body::BodyForm;
use super::config::AudioConfig;
use super::recognisers::find_recogniser;
use super::served_model::ServedModel;
use super::spool;
use super::state::AudioState;

/// Number of runs of one recording in flight per worker: one that runs and one in the queue.
const RUNS_PER_WORKER: usize = 2;
/// Retry advice to a refused client.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// A recording that has a permit, and whose upload has begun.
pub(crate) struct AudioUpload {
    pub(crate) recogniser: Recogniser,
    pub(crate) model: Arc<dyn AudioModel>,
    pub(crate) options: PipelineOptions,
    pub(crate) upload: UploadReader,
    pub(crate) failure: UploadFailure,
    pub(crate) hint: Option<String>,
    pub(crate) file_name: Option<String>,
    pub(crate) config: AudioConfig,
    pub(crate) progress: ProgressCounter,
    /// Permit of the upload. It is free once both threads have ended, because the thread that reads
    /// holds it through the upload.
    pub(crate) permit: Arc<UploadPermit>,
    _admitted: OwnedSemaphorePermit,
}

/// Counter of the processed seconds of a recording, for the metrics.
pub(crate) struct ProgressCounter {
    metrics: Arc<Metrics>,
    recogniser: Arc<str>,
    seconds: f64,
}

impl ProgressCounter {
    /// Records that the recording is processed up to `seconds`.
    pub(crate) fn advance(&mut self, seconds: f64) {
        let labels = ModelLabels { model: self.recogniser.clone() };
        let more = (seconds - self.seconds).max(0.0);
        self.metrics.recordings.seconds.get_or_create(&labels).inc_by(more);
        self.seconds += more;
    }

    pub(crate) fn count_outcome(&self, outcome: &'static str) {
        count_outcome(&self.metrics, self.recogniser.clone(), outcome);
    }
}

fn count_outcome(metrics: &Metrics, recogniser: Arc<str>, outcome: &'static str) {
    metrics.recordings.ended.get_or_create(&AudioLabels { recogniser, outcome }).inc();
}

/// Headers, body and connection of a request. If it is dropped before its body is read, a task
/// reads the body and drops it. So a client that sends everything first gets the answer.
pub(crate) struct AudioRequest {
    headers: HeaderMap,
    /// `None` once it is being read.
    body: Option<Body>,
    watch: HeaderTimeout,
    piece_timeout: Duration,
}

impl AudioRequest {
    pub(crate) fn new(
        state: &AudioState,
        headers: HeaderMap,
        body: Body,
        watch: HeaderTimeout,
    ) -> AudioRequest {
        let piece_timeout = state.requests.limits.client_timeout;
        AudioRequest { headers, body: Some(body), watch, piece_timeout }
    }
}

impl Drop for AudioRequest {
    fn drop(&mut self) {
        let Some(body) = self.body.take() else { return };
        // A client that expects "100 Continue" has not sent the body yet.
        if self.headers.contains_key(header::EXPECT) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // Until the body is complete, its bytes do not belong to a next request.
        let receiving = self.watch.complete();
        let pieces = UploadPieces::raw(body);
        let timeout = self.piece_timeout;
        runtime.spawn(async move {
            pieces.discard(timeout).await;
            drop(receiving);
        });
    }
}

impl AudioUpload {
    /// Finds the recogniser, acquires a permit and starts to receive the body. Refusals are
    /// counted.
    ///
    /// # Errors
    /// Returns the errors of [`find_recogniser`]; `ResourceExhausted` with retry advice if all
    /// permits are taken; the errors of the body.
    pub(crate) async fn begin(
        state: &AudioState,
        name: &str,
        request: AudioRequest,
    ) -> Result<AudioUpload> {
        let begun = AudioUpload::try_begin(state, name, request).await;
        begun.inspect_err(|error| {
            let known = state.catalog().ready(name).is_some();
            count_outcome(
                &state.requests.metrics,
                if known { name.into() } else { "".into() },
                error.kind().name(),
            );
        })
    }

    /// Checks the model and takes a permit. Starts a task that passes the body to the reader of the
    /// recording.
    async fn try_begin(
        state: &AudioState,
        name: &str,
        mut request: AudioRequest,
    ) -> Result<AudioUpload> {
        let config = state.config.clone();
        let limits = UploadLimits {
            noun: "recording",
            bytes_max: config.bytes_max,
            piece_timeout: request.piece_timeout,
        };
        // Until the body is complete, its bytes do not belong to a next request.
        let receiving = request.watch.complete();
        let prepared = prepare(state, name).await?;
        let form = BodyForm::of(&request.headers, limits)?;
        let sent = form.read(request.body.take().unwrap_or_default(), limits).await?;
        let PreparedUpload { admitted, permit, recogniser, model, options } = prepared;
        let permit = Arc::new(permit);
        let (sender, upload, failure) = upload_channel(Some(permit.clone()));
        tokio::spawn(async move {
            sender.feed(sent.pieces, limits).await;
            drop(receiving);
        });
        let progress = ProgressCounter {
            metrics: state.requests.metrics.clone(),
            recogniser: name.into(),
            seconds: 0.0,
        };
        Ok(AudioUpload {
            recogniser,
            model,
            options,
            upload,
            failure,
            hint: sent.hint,
            file_name: sent.file_name,
            config,
            progress,
            permit,
            _admitted: admitted,
        })
    }

    /// Returns the flag that ends the work.
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        self.options.stop.clone()
    }

    /// Runs `work` on the recording's thread, for the current caller.
    ///
    /// # Errors
    /// `ResourceExhausted` if no thread can be started.
    pub(crate) fn on_thread(self, work: impl FnOnce(AudioUpload) + Send + 'static) -> Result<()> {
        let name = format!("audio-{}", self.permit.number);
        let account = CpuAccount::current();
        let run = move || match account {
            Some(account) => account.measure(|| work(self)),
            None => work(self),
        };
        os::thread::spawn(name, run).map(drop)
    }

    /// Returns one embedding of the whole recording, or of the part that can be decoded.
    ///
    /// # Errors
    /// The error that ended the upload, or else the errors of the pipeline.
    pub(crate) fn embed(mut self) -> Result<RecordingEmbedding> {
        let hint = self.hint.as_deref();
        let embedded = spool::input(self.upload, false, &self.config).and_then(|input| {
            audio::pipeline::embed(input, hint, &self.recogniser, &self.model, &self.options)
        });
        let embedded = blamed(&self.failure, embedded);
        if let Ok(embedding) = &embedded {
            self.progress.advance(embedding.summary.seconds);
        }
        self.progress.count_outcome(match &embedded {
            Ok(embedding) if embedding.summary.partial => "partial",
            Ok(_) => "ok",
            Err(error) => error.kind().name(),
        });
        embedded
    }
}

/// Returns the cause of a failure: the error that ended the upload, if there is one, and otherwise
/// the error of the pipeline. A damaged recording is an error of the client.
pub(crate) fn blamed<T>(failure: &UploadFailure, result: Result<T>) -> Result<T> {
    match failure.get() {
        Some(error) => Err(error),
        None => result.map_err(|error| match error.kind() {
            ErrorKind::DataLoss => error.with_kind(ErrorKind::InvalidArgument),
            _ => error,
        }),
    }
}

/// Charges the thread that reads a recording to the account of the caller.
#[derive(Debug)]
struct AccountMeter(Arc<CpuAccount>);

impl ReadMeter for AccountMeter {
    fn measure(&self, work: &mut dyn FnMut()) {
        self.0.measure(work);
    }
}

/// Resources of a recording besides its bytes.
struct PreparedUpload {
    admitted: OwnedSemaphorePermit,
    permit: UploadPermit,
    recogniser: Recogniser,
    model: Arc<dyn AudioModel>,
    options: PipelineOptions,
}

/// Reserves the resources of an upload for the recogniser `name`.
///
/// # Errors
/// `ResourceExhausted` if too many requests or recordings are in progress; the errors of
/// [`find_recogniser`] and of the file of speakers.
async fn prepare(state: &AudioState, name: &str) -> Result<PreparedUpload> {
    let admitted = state.requests.admit()?;
    let (recogniser, servable) = find_recogniser(state.catalog(), name)?;
    let permit = state.permits.acquire().await.ok_or_else(|| {
        state.requests.metrics.refused.get_or_create(&KindLabels { kind: "recordings_max" }).inc();
        let text = format!(
            "{} recordings are in progress already; try again later or raise --recordings",
            state.config.recordings_max
        );
        Error::exhausted(text).with_retry_after(RETRY_AFTER)
    })?;
    let stop = Arc::new(AtomicBool::new(false));
    // Speakers are optional: without a directory no speaker is known.
    let has_speakers =
        recogniser.kind == RecogniserKind::Embeddings && state.config.speakers_dir.is_some();
    let speakers = if has_speakers { Some(state.speakers.get(name).await?) } else { None };
    let in_flight = RUNS_PER_WORKER * state.scheduler.workers();
    let reader = format!("audio-{}-in", permit.number);
    let read_meter = CpuAccount::current()
        .map(|account| -> Arc<dyn ReadMeter> { Arc::new(AccountMeter(account)) });
    let options = PipelineOptions {
        in_flight,
        embeddings: false,
        speakers,
        stop: stop.clone(),
        reader,
        read_meter,
    };
    let model = Arc::new(ServedModel::new(state.scheduler.clone(), servable, stop));
    Ok(PreparedUpload { admitted, permit, recogniser, model, options })
}
