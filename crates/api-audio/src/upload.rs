//! One recording: its place, its thread, and what goes wrong with it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use audio::AudioModel;
use audio::pipeline::PipelineOptions;
use audio::recogniser::{Recogniser, RecogniserKind};
use axum::body::Body;
use base::{Error, ErrorKind, Result};
use http::{HeaderMap, header};
use metrics::{KindLabels, Metrics, ModelLabels, RecordingLabels};
use tokio::sync::OwnedSemaphorePermit;

use super::{ServedModel, find};
use super::{form, spool};
use crate::app::App;
use crate::config::AudioConfig;
use transport::HeaderTimeout;
use transport::UploadPermit;
use transport::upload::{UploadFailure, UploadLimits, UploadPieces, UploadReader, upload_channel};

/// Runs of one recording that wait or run at the same time, for each worker: one that runs and one
/// that is next.
const RUNS_PER_WORKER: usize = 2;
/// What a client that found no place is told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// A recording that has a place, and whose upload has begun.
pub(super) struct Listening {
    pub(super) recogniser: Recogniser,
    pub(super) model: Arc<dyn AudioModel>,
    pub(super) options: PipelineOptions,
    pub(super) upload: UploadReader,
    pub(super) failure: UploadFailure,
    pub(super) hint: Option<String>,
    pub(super) file_name: Option<String>,
    pub(super) config: AudioConfig,
    pub(super) count: Count,
    /// Free again when the thread that listens and the one that reads, which has the upload, have
    /// both ended.
    pub(super) permit: Arc<UploadPermit>,
    _admitted: OwnedSemaphorePermit,
}

/// What has been heard of a recording, for the metrics.
pub(super) struct Count {
    metrics: Arc<Metrics>,
    recogniser: Arc<str>,
    seconds: f64,
}

impl Count {
    /// All up to this second has been listened to.
    pub(super) fn heard(&mut self, seconds: f64) {
        let labels = ModelLabels { model: self.recogniser.clone() };
        let more = (seconds - self.seconds).max(0.0);
        self.metrics.recordings.seconds.get_or_create(&labels).inc_by(more);
        self.seconds += more;
    }

    /// It is over.
    pub(super) fn ended(&self, outcome: &'static str) {
        ended(&self.metrics, self.recogniser.clone(), outcome);
    }
}

fn ended(metrics: &Metrics, recogniser: Arc<str>, outcome: &'static str) {
    metrics.recordings.ended.get_or_create(&RecordingLabels { recogniser, outcome }).inc();
}

/// What comes with a request.
pub(super) struct Request {
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    pub(super) watch: HeaderTimeout,
}

impl Listening {
    /// Finds the recogniser, takes a place and starts to take the body in. What is refused is
    /// counted here.
    ///
    /// # Errors
    /// Those of [`find`], `ResourceExhausted` with retry advice when all places are taken, and
    /// those of the body.
    pub(super) async fn begin(app: &Arc<App>, name: &str, request: Request) -> Result<Listening> {
        let begun = Listening::try_begin(app, name, request).await;
        begun.inspect_err(|error| {
            let known = app.lifecycle.catalog().ready(name).is_some();
            ended(&app.metrics, if known { name.into() } else { "".into() }, error.kind().name());
        })
    }

    async fn try_begin(app: &Arc<App>, name: &str, request: Request) -> Result<Listening> {
        let Request { headers, body, watch } = request;
        let config = app.recordings.config.clone();
        let limits = UploadLimits {
            noun: "recording",
            bytes_max: config.bytes_max,
            piece_timeout: app.requests.limits.client_timeout,
        };
        // While the body comes, its bytes are not those of a next request.
        let receiving = watch.complete();
        let prepared = match prepare(app, name) {
            Ok(prepared) => prepared,
            Err(error) => {
                // A client that asked whether to send has not begun to.
                if !headers.contains_key(header::EXPECT) {
                    let pieces = UploadPieces::raw(body);
                    tokio::spawn(async move {
                        pieces.discard(limits.piece_timeout).await;
                        drop(receiving);
                    });
                }
                return Err(error);
            }
        };
        let sent = form::sent(&headers, body, limits).await?;
        let Prepared { admitted, permit, recogniser, model, options } = prepared;
        let permit = Arc::new(permit);
        let (sender, upload, failure) = upload_channel(Some(permit.clone()));
        tokio::spawn(async move {
            sender.feed(sent.pieces, limits).await;
            drop(receiving);
        });
        let count = Count { metrics: app.metrics.clone(), recogniser: name.into(), seconds: 0.0 };
        let (hint, file_name) = (sent.hint, sent.file_name);
        Ok(Listening {
            recogniser,
            model,
            options,
            upload,
            failure,
            hint,
            file_name,
            config,
            count,
            permit,
            _admitted: admitted,
        })
    }

    /// The flag that ends the work.
    pub(super) fn stop(&self) -> Arc<AtomicBool> {
        self.options.stop.clone()
    }

    /// Runs `work` on the place's thread.
    ///
    /// # Errors
    /// `ResourceExhausted` when there can be no more threads.
    pub(super) fn on_thread(self, work: impl FnOnce(Listening) + Send + 'static) -> Result<()> {
        let name = format!("audio-{}", self.permit.number);
        let spawned = std::thread::Builder::new().name(name).spawn(move || work(self));
        spawned
            .map(drop)
            .map_err(|error| Error::exhausted(format!("no thread for the recording: {error}")))
    }

    /// One vector for the whole recording.
    ///
    /// # Errors
    /// What ended the upload; else those of the pipeline.
    pub(super) fn embed(self) -> Result<Vec<f32>> {
        let hint = self.hint.as_deref();
        let vector = spool::input(self.upload, false, &self.config).and_then(|input| {
            audio::pipeline::embed(input, hint, &self.recogniser, &self.model, &self.options)
        });
        let vector = blamed(&self.failure, vector);
        self.count.ended(vector.as_ref().map_or_else(|error| error.kind().name(), |_| "ok"));
        vector
    }
}

/// The true reason: an upload that ended early is what is wrong, whatever the pipeline made of it,
/// and a recording that cannot be read is the client's.
pub(super) fn blamed<T>(failure: &UploadFailure, result: Result<T>) -> Result<T> {
    match failure.get() {
        Some(error) => Err(error),
        None => result.map_err(|error| match error.kind() {
            ErrorKind::DataLoss => Error::invalid(error.message()),
            _ => error,
        }),
    }
}

/// What a recording needs beside its bytes.
struct Prepared {
    admitted: OwnedSemaphorePermit,
    permit: UploadPermit,
    recogniser: Recogniser,
    model: Arc<dyn AudioModel>,
    options: PipelineOptions,
}

fn prepare(app: &App, name: &str) -> Result<Prepared> {
    let admitted = app.requests.admit()?;
    let (recogniser, servable) = find(app.lifecycle.catalog(), name)?;
    let recordings = &app.recordings;
    let permit = recordings.permits.try_acquire().ok_or_else(|| {
        app.metrics.refused.get_or_create(&KindLabels { kind: "recordings_max" }).inc();
        let text = format!(
            "{} recordings are being listened to already; try again later or raise --recordings",
            recordings.config.recordings_max
        );
        Error::exhausted(text).with_retry_after(RETRY_AFTER)
    })?;
    let stop = Arc::new(AtomicBool::new(false));
    // Speakers are an addition: where there is no directory for them, nobody is known.
    let speakers = (recogniser.kind == RecogniserKind::Embeddings
        && recordings.config.speakers_dir.is_some())
    .then(|| recordings.speakers(name))
    .transpose()?;
    let in_flight = RUNS_PER_WORKER * app.scheduler.workers();
    let reader = format!("audio-{}-in", permit.number);
    let options =
        PipelineOptions { in_flight, embeddings: false, speakers, stop: stop.clone(), reader };
    let model = Arc::new(ServedModel::new(app.scheduler.clone(), servable, stop));
    Ok(Prepared { admitted, permit, recogniser, model, options })
}
