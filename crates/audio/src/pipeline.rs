//! Runs a recording through a recogniser: decode, mix and resample, features, windows, runs of the
//! model, labels.
//!
//! A thread of its own reads, decodes and computes features (`feed`), a bounded distance ahead.
//! Everything else happens on the calling thread, except the model's runs, of which a bounded
//! number is in flight. So labels leave when their runs have ended, even while an upload stalls.
//! Outputs are put back in order, so labels depend neither on the speed of a run nor on how the
//! recording arrived. Memory does not grow with the recording. Windows wait only for the next runs.
//! Those of models with a state wait for the pieces that run side by side. Labels wait only until
//! no earlier one can follow.
//!
//! A local failure, such as a damaged frame or a failed run, is a fault of the summary and does not
//! end the work. Only several consecutive failed runs end it with the last error.

mod batch;
mod feed;
mod group;
mod order;
mod piece;
mod plan;
mod runs;
mod source;
mod values;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{Error, Result};

use crate::decode::{AudioFormat, AudioInput};
use crate::post::{Labeller, UnitMean, WindowScores, mean_of_units};
use crate::recogniser::{ModelBinding, Recogniser, RecogniserKind};
use crate::speakers::Speakers;
use crate::{AudioModel, Fault, Label};
use feed::AudioFeed;
use order::{EventOrder, EventTotals};
use piece::RunOutcome;
use runs::ModelRuns;
use source::{WindowInfo, WindowSource};

/// Maximum time between two reports of progress while windows arrive.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Maximum seconds of the recording between two reports.
const PROGRESS_SECONDS: f64 = 60.0;
/// Maximum faults of an embedded recording that are logged; all are counted. A recording can have
/// one for every second frame.
const FAULTS_LOGGED_MAX: u64 = 10;
/// Interval at which a wait checks for a stop.
const STOP_EVERY: Duration = Duration::from_millis(100);

/// Options of a run.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// Concurrent runs, at least one: the number of workers, and a few more so that no worker waits
    /// for this thread.
    pub in_flight: usize,
    /// True if labels carry their embeddings, for recognisers of voices.
    pub embeddings: bool,
    /// Speakers to match, for recognisers of voices.
    pub speakers: Option<Speakers>,
    /// Flag that stops the work. [`recognise`] then ends with `Cancelled` within a second, even
    /// while a read of the input blocks.
    pub stop: Arc<AtomicBool>,
    /// Name of the thread that reads and decodes. It has ended when [`recognise`] returns a
    /// summary. After an error it ends, and drops the input, as soon as its current read returns.
    pub reader: String,
    /// Meter for the work of the thread that reads and decodes, step by step.
    pub read_meter: Option<Arc<dyn ReadMeter>>,
}

/// Meter for the work of the thread that reads and decodes a recording.
pub trait ReadMeter: std::fmt::Debug + Send + Sync {
    /// Calls `work` once, on the current thread. The work may wait for an upload.
    fn measure(&self, work: &mut dyn FnMut());
}

impl Default for PipelineOptions {
    fn default() -> PipelineOptions {
        let reader = "audio-in".to_owned();
        PipelineOptions {
            in_flight: 4,
            embeddings: false,
            speakers: None,
            stop: Arc::default(),
            reader,
            read_meter: None,
        }
    }
}

/// Event of a recognition. Labels and faults are in the order of their start.
#[derive(Clone, Debug)]
pub enum PipelineEvent {
    /// The recording was opened. This is always the first event.
    Opened(AudioFormat),
    /// A stretch was recognised.
    Label(Label),
    /// Damage or a failed run.
    Fault(Fault),
    /// Progress of the work.
    Progress {
        /// Finished seconds of the recording.
        seconds: f64,
        /// Length in seconds, if the recording announces it.
        total: Option<f64>,
    },
}

/// Summary of a recognition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AudioSummary {
    /// Length in seconds.
    pub seconds: f64,
    /// Number of labels of the whole recording.
    pub labels: u64,
    /// Damaged parts and failed runs.
    pub faults: u64,
    /// True if anything is missing: a damaged part, an early end, a failed run.
    pub partial: bool,
    /// Number of windows of the whole recording.
    pub windows: u64,
}

/// Recognises a whole recording and passes every event to `sink`, on the calling thread.
///
/// # Errors
/// `InvalidArgument` if the recording is not sound or lacks the channel, or the model does not fit
/// the recogniser. `DataLoss` if nothing of it can be decoded. The last run's error if too many
/// consecutive runs fail, or all of them. `Cancelled` after a stop. Any error of `sink`, at once.
/// Events passed before an error stay valid.
pub fn recognise(
    input: AudioInput,
    hint: Option<&str>,
    recogniser: &Recogniser,
    model: &Arc<dyn AudioModel>,
    options: &PipelineOptions,
    sink: &mut dyn FnMut(PipelineEvent) -> Result<()>,
) -> Result<AudioSummary> {
    let mut labels = OrderedLabelSink {
        post: Labeller::new(recogniser, options.embeddings, options.speakers.clone()),
        order: EventOrder::new(sink),
        found: Vec::new(),
        recogniser,
        total: None,
        reported_at: Instant::now(),
        reported_seconds: 0.0,
    };
    let ending = drive(input, hint, recogniser, model, options, &mut labels)?;
    labels.finish(&ending)
}

/// Embedding of a whole recording.
#[derive(Clone, Debug)]
pub struct RecordingEmbedding {
    /// The unit vector.
    pub vector: Vec<f32>,
    /// Length, windows and faults. There are no labels.
    pub summary: AudioSummary,
}

/// Returns one unit vector for a whole recording: the mean of its windows that are loud enough.
///
/// # Errors
/// As for [`recognise`]; `InvalidArgument` if the recogniser makes no embeddings, or if the
/// recording has no samples or only silent windows.
pub fn embed(
    input: AudioInput,
    hint: Option<&str>,
    recogniser: &Recogniser,
    model: &Arc<dyn AudioModel>,
    options: &PipelineOptions,
) -> Result<RecordingEmbedding> {
    if recogniser.kind != RecogniserKind::Embeddings {
        let name = &recogniser.name;
        return Err(Error::invalid(format!(
            "recogniser \"{name}\" gives labels and no embeddings"
        )));
    }
    let mut sink = MeanSink { mean: mean_of_units(recogniser), faults: 0 };
    let end = drive(input, hint, recogniser, model, options, &mut sink)?;
    let vector = sink.mean.value().ok_or_else(|| {
        if end.samples == 0 {
            return Error::invalid("the recording has a header and no samples");
        }
        let level = recogniser.embeddings.min_level;
        Error::invalid(format!("the recording has no sound above {level} dB of full scale"))
    })?;
    let summary = AudioSummary {
        seconds: end.samples as f64 / f64::from(end.rate),
        labels: 0,
        faults: sink.faults,
        partial: sink.faults > 0,
        windows: end.windows,
    };
    Ok(RecordingEmbedding { vector, summary })
}

/// Totals of a finished recording.
struct AudioEnd {
    /// Number of samples at the recogniser's rate.
    samples: u64,
    rate: u32,
    windows: u64,
}

/// Receiver of the results of a recording.
trait WindowSink {
    /// Takes the format of the recording, before any fault or window.
    fn opened(&mut self, format: &AudioFormat) -> Result<()>;
    /// Adds a damaged part of the recording, or windows that the model could not process.
    fn fault(&mut self, fault: Fault) -> Result<()>;
    /// Adds one window with the model's outputs, in time order.
    fn add_window(&mut self, frames: WindowScores<'_>) -> Result<()>;
}

/// Runs a recording through the model and passes the results to `sink`.
fn drive(
    input: AudioInput,
    hint: Option<&str>,
    recogniser: &Recogniser,
    model: &Arc<dyn AudioModel>,
    options: &PipelineOptions,
    sink: &mut dyn WindowSink,
) -> Result<AudioEnd> {
    let fit = ModelBinding::new(recogniser, model.signature())?;
    let at_hand = matches!(input, AudioInput::File(_));
    let feed = AudioFeed::open(input, hint, recogniser, options)?;
    let seconds = feed.format().seconds.filter(|_| at_hand);
    let mut runs = ModelRuns::new(recogniser, fit, model, options, seconds)?;
    let mut source = WindowSource::new(recogniser);
    sink.opened(feed.format())?;
    loop {
        let step =
            runs.wait_for(feed.steps(), &mut |outcome| deliver(recogniser, sink, outcome))?;
        let mut step = step.unwrap_or_else(|| Err(feed::reader_ended_early()))?;
        for fault in step.faults.drain(..) {
            sink.fault(fault)?;
        }
        source.cut(&step, &mut |window, facts| {
            runs.push(window, facts, &mut |outcome| deliver(recogniser, sink, outcome))
        })?;
        check_stop(&options.stop)?;
        if step.last {
            break;
        }
    }
    feed.close();
    runs.finish(&mut |outcome| deliver(recogniser, sink, outcome))?;
    Ok(AudioEnd { samples: source.samples(), rate: recogniser.rate, windows: source.windows() })
}

/// Fails after a stop.
///
/// # Errors
/// `Cancelled`.
fn check_stop(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) {
        Err(Error::cancelled("stopped before the end of the recording"))
    } else {
        Ok(())
    }
}

/// Passes the windows of one run to `sink`, or one fault for all of them if the run failed.
fn deliver(recogniser: &Recogniser, sink: &mut dyn WindowSink, outcome: RunOutcome) -> Result<()> {
    let answer = match outcome.answer {
        Ok(answer) => answer,
        Err(error) => {
            let count = outcome.facts.len();
            let what = format!("{count} windows could not be recognised: {}", error.message());
            // A window covers its middle hop, so a label before this fault may start after the
            // window does.
            let at = recogniser.middle_seconds(outcome.first);
            return sink.fault(Fault { at, what });
        }
    };
    for (index, WindowInfo { real, level }) in outcome.facts.into_iter().enumerate() {
        let frames = answer.window(index);
        sink.add_window(WindowScores {
            window: outcome.first + index as u64,
            real,
            level,
            ..frames
        })?;
    }
    Ok(())
}

/// Filter that sends labels in time order to a sink.
struct OrderedLabelSink<'a> {
    post: Labeller,
    order: EventOrder<'a>,
    /// Labels that go from `post` to `order`.
    found: Vec<Label>,
    recogniser: &'a Recogniser,
    /// Announced length in seconds.
    total: Option<f64>,
    /// Time of the last report of progress.
    reported_at: Instant,
    /// Seconds of the recording in the last report of progress.
    reported_seconds: f64,
}

impl OrderedLabelSink<'_> {
    fn pass_labels_on(&mut self) -> Result<()> {
        self.found.drain(..).try_for_each(|label| self.order.label(label))
    }

    fn finish(mut self, ending: &AudioEnd) -> Result<AudioSummary> {
        let seconds = ending.samples as f64 / f64::from(ending.rate);
        self.post.finish(ending.samples, ending.windows, &mut self.found);
        self.pass_labels_on()?;
        let EventTotals { labels, faults } =
            self.order.finish(PipelineEvent::Progress { seconds, total: self.total })?;
        Ok(AudioSummary { seconds, labels, faults, partial: faults > 0, windows: ending.windows })
    }
}

impl WindowSink for OrderedLabelSink<'_> {
    fn opened(&mut self, format: &AudioFormat) -> Result<()> {
        self.total = format.seconds;
        self.order.pass(PipelineEvent::Opened(format.clone()))
    }

    fn fault(&mut self, fault: Fault) -> Result<()> {
        self.order.fault(fault)
    }

    fn add_window(&mut self, frames: WindowScores<'_>) -> Result<()> {
        let seconds = self.recogniser.done_seconds(frames.window, frames.real);
        self.post.add_window(frames, &mut self.found)?;
        self.pass_labels_on()?;
        self.order.release(self.post.settled())?;
        if seconds - self.reported_seconds >= PROGRESS_SECONDS
            || self.reported_at.elapsed() >= PROGRESS_EVERY
        {
            self.reported_at = Instant::now();
            self.reported_seconds = seconds;
            self.order.pass(PipelineEvent::Progress { seconds, total: self.total })?;
        }
        Ok(())
    }
}

/// Receiver that makes one embedding of a recording and counts its faults.
struct MeanSink {
    mean: UnitMean,
    faults: u64,
}

impl MeanSink {
    /// Returns true if the last fault goes into the log.
    fn is_logged(&self) -> bool {
        self.faults <= FAULTS_LOGGED_MAX
    }
}

impl WindowSink for MeanSink {
    fn opened(&mut self, _: &AudioFormat) -> Result<()> {
        Ok(())
    }

    fn fault(&mut self, fault: Fault) -> Result<()> {
        self.faults += 1;
        if self.is_logged() {
            tracing::warn!(
                at = fault.at,
                what = fault.what,
                "part of a recording is missing from its embedding"
            );
        } else if self.faults == FAULTS_LOGGED_MAX + 1 {
            tracing::warn!(at = fault.at, "further faults of this recording are not logged");
        }
        Ok(())
    }

    fn add_window(&mut self, frames: WindowScores<'_>) -> Result<()> {
        self.mean.add_window(frames);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_faults_of_an_embedding_are_logged_and_all_counted() {
        let text = "kind = 'embeddings'\nrate = 1000\nwindow = 1000\n";
        let recogniser = Recogniser::parse("voices", text).unwrap();
        let mut sink = MeanSink { mean: mean_of_units(&recogniser), faults: 0 };
        let mut logged = 0;
        for at in 0..1000_u32 {
            sink.fault(Fault { at: at.into(), what: "a frame is damaged".to_owned() }).unwrap();
            logged += u64::from(sink.is_logged());
        }
        assert_eq!((logged, sink.faults), (FAULTS_LOGGED_MAX, 1000));
    }
}
