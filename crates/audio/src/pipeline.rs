//! A recording through a recogniser: decode, mix and resample, features, windows, runs of the model, labels.
//!
//! A thread of its own reads, decodes and computes features ([`feed`]), a bounded way ahead; everything else happens on the
//! calling thread but the model's runs, of which a bounded number is under way. So labels leave when their runs have ended,
//! even while an upload has fallen silent. Answers are put back in order, so labels depend neither on how fast a run is nor
//! on how the recording came in. Nothing here grows with the recording: windows wait only for the runs that are next (or,
//! for models with a state, for the pieces that run side by side), and labels only until none that starts earlier can come.
//!
//! What goes wrong at one place is a fault of the summary, not the end: a frame that cannot be decoded, a run that
//! fails. Only when several runs fail one after the other is the last error returned.

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
use order::EventOrder;
use piece::RunOutcome;
use runs::ModelRuns;
use source::{WindowInfo, WindowSource};

/// Progress is told at least so often while windows come in.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// And after so many seconds of the recording.
const PROGRESS_SECONDS: f64 = 60.0;
/// How often a wait looks whether to stop.
const STOP_EVERY: Duration = Duration::from_millis(100);

/// How to run.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// Runs at once, at least one: the number of workers, and a few more so that none waits for this thread.
    pub in_flight: usize,
    /// Whether labels carry their embeddings, where the recogniser gives some.
    pub embeddings: bool,
    /// Whom to look for, for recognisers of voices.
    pub speakers: Option<Speakers>,
    /// Set it to stop: [`recognise`] then ends with `Cancelled` within a second, even while a read of the input blocks.
    pub stop: Arc<AtomicBool>,
    /// What the thread is called that reads and decodes. It has ended when [`recognise`] returns a summary; after an error
    /// it ends, and drops the input, as soon as the read that it may be in returns.
    pub reader: String,
}

impl Default for PipelineOptions {
    fn default() -> PipelineOptions {
        let reader = "audio-in".to_owned();
        PipelineOptions { in_flight: 4, embeddings: false, speakers: None, stop: Arc::default(), reader }
    }
}

/// What happens while a recording is recognised. Labels and faults come in time order, by where they start.
#[derive(Clone, Debug)]
pub enum PipelineEvent {
    /// The recording has been opened; always the first.
    Opened(AudioFormat),
    /// Something was recognised.
    Label(Label),
    /// Something is wrong at one place.
    Fault(Fault),
    /// How far the work is.
    Progress {
        /// Seconds of the recording that are done.
        seconds: f64,
        /// Its length in seconds, where it announces one.
        total: Option<f64>,
    },
}

/// What came of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AudioSummary {
    /// Its length in seconds.
    pub seconds: f64,
    /// Labels given.
    pub labels: u64,
    /// Faults found.
    pub faults: u64,
    /// Whether anything is missing: a damaged part, an end that came early, a run that failed.
    pub partial: bool,
    /// Windows that the recording has.
    pub windows: u64,
}

/// Recognises a whole recording and hands what happens to `sink`, on the calling thread.
///
/// # Errors
/// `InvalidArgument` when the recording is no sound, has not the channel, or the model does not fit the recogniser;
/// `DataLoss` when nothing of it can be decoded; the last run's error when too many fail one after the other, or all
/// do; `Cancelled` after a stop; whatever `sink` returns, at once. What `sink` has been given stays right.
pub fn recognise(
    input: AudioInput,
    hint: Option<&str>,
    recogniser: &Recogniser,
    model: &Arc<dyn AudioModel>,
    options: &PipelineOptions,
    sink: &mut dyn FnMut(PipelineEvent) -> Result<()>,
) -> Result<AudioSummary> {
    let mut labels = LabelSink {
        post: Labeller::new(recogniser, options.embeddings, options.speakers.clone()),
        order: EventOrder::new(sink),
        found: Vec::new(),
        recogniser,
        total: None,
        told: (Instant::now(), 0.0),
    };
    let ending = drive(input, hint, recogniser, model, options, &mut labels)?;
    labels.finish(&ending)
}

/// One unit vector for a whole recording: the mean of those of its windows that are loud enough.
///
/// # Errors
/// As for [`recognise`]; `InvalidArgument` when the recogniser gives no embeddings or every window is silent.
pub fn embed(
    input: AudioInput,
    hint: Option<&str>,
    recogniser: &Recogniser,
    model: &Arc<dyn AudioModel>,
    options: &PipelineOptions,
) -> Result<Vec<f32>> {
    if recogniser.kind != RecogniserKind::Embeddings {
        let name = &recogniser.name;
        return Err(Error::invalid(format!("recogniser \"{name}\" gives labels and no embeddings")));
    }
    let mut mean = mean_of_units(recogniser);
    drive(input, hint, recogniser, model, options, &mut mean)?;
    mean.value().ok_or_else(|| {
        let level = recogniser.embeddings.min_level;
        Error::invalid(format!("the recording has no sound above {level} dB of full scale"))
    })
}

/// How a recording ended.
struct AudioEnd {
    /// Its samples at the recogniser's rate.
    samples: u64,
    rate: u32,
    windows: u64,
}

/// What is done with what a recording gives.
trait WindowSink {
    fn opened(&mut self, format: &AudioFormat) -> Result<()>;
    fn fault(&mut self, fault: Fault) -> Result<()>;
    /// One window that the model has seen, in time order.
    fn window(&mut self, frames: WindowScores<'_>) -> Result<()>;
}

/// Runs a recording through the model and hands what comes to `taker`.
fn drive(
    input: AudioInput,
    hint: Option<&str>,
    recogniser: &Recogniser,
    model: &Arc<dyn AudioModel>,
    options: &PipelineOptions,
    taker: &mut dyn WindowSink,
) -> Result<AudioEnd> {
    let fit = ModelBinding::new(recogniser, model.signature())?;
    let at_hand = matches!(input, AudioInput::File(_));
    let feed = AudioFeed::open(input, hint, recogniser, options)?;
    let seconds = feed.format().seconds.filter(|_| at_hand);
    let mut runs = ModelRuns::new(recogniser, fit, model, options, seconds)?;
    let mut source = WindowSource::new(recogniser);
    taker.opened(feed.format())?;
    loop {
        let step = runs.wait_for(feed.steps(), &mut |outcome| deliver(recogniser, taker, outcome))?;
        let mut step = step.unwrap_or_else(|| Err(feed::broken_off()))?;
        for fault in step.faults.drain(..) {
            taker.fault(fault)?;
        }
        source.cut(&step, &mut |window, facts| {
            runs.push(window, facts, &mut |outcome| deliver(recogniser, taker, outcome))
        })?;
        check_stop(&options.stop)?;
        if step.last {
            break;
        }
    }
    feed.close();
    runs.finish(&mut |outcome| deliver(recogniser, taker, outcome))?;
    Ok(AudioEnd { samples: source.samples(), rate: recogniser.rate, windows: source.windows() })
}

/// Fails once a stop is wanted.
///
/// # Errors
/// `Cancelled`.
fn check_stop(stop: &AtomicBool) -> Result<()> {
    match stop.load(Ordering::Relaxed) {
        true => Err(Error::cancelled("stopped before the end of the recording")),
        false => Ok(()),
    }
}

/// Hands the windows of one run on, or says what was lost with it.
fn deliver(recogniser: &Recogniser, taker: &mut dyn WindowSink, outcome: RunOutcome) -> Result<()> {
    let answer = match outcome.answer {
        Ok(answer) => answer,
        Err(error) => {
            let count = outcome.facts.len();
            let what = format!("{count} windows could not be recognised: {}", error.message());
            // A window stands for its middle, so a label before this fault may start after the window does.
            let at = recogniser.middle_seconds(outcome.first);
            return taker.fault(Fault { at, what });
        }
    };
    for (index, WindowInfo { real, level }) in outcome.facts.into_iter().enumerate() {
        let frames = answer.window(index);
        taker.window(WindowScores { window: outcome.first + index as u64, real, level, ..frames })?;
    }
    Ok(())
}

/// Labels in time order, for a sink.
struct LabelSink<'a> {
    post: Labeller,
    order: EventOrder<'a>,
    /// Labels on their way from `post` to `order`.
    found: Vec<Label>,
    recogniser: &'a Recogniser,
    /// As announced.
    total: Option<f64>,
    /// When progress was told last, and how much.
    told: (Instant, f64),
}

impl LabelSink<'_> {
    fn hand_over(&mut self) -> Result<()> {
        self.found.drain(..).try_for_each(|label| self.order.label(label))
    }

    fn finish(mut self, ending: &AudioEnd) -> Result<AudioSummary> {
        let seconds = ending.samples as f64 / f64::from(ending.rate);
        self.post.finish(ending.samples, ending.windows, &mut self.found);
        self.hand_over()?;
        let (labels, faults) = self.order.finish(PipelineEvent::Progress { seconds, total: self.total })?;
        Ok(AudioSummary { seconds, labels, faults, partial: faults > 0, windows: ending.windows })
    }
}

impl WindowSink for LabelSink<'_> {
    fn opened(&mut self, format: &AudioFormat) -> Result<()> {
        self.total = format.seconds;
        self.order.pass(PipelineEvent::Opened(format.clone()))
    }

    fn fault(&mut self, fault: Fault) -> Result<()> {
        self.order.fault(fault)
    }

    fn window(&mut self, frames: WindowScores<'_>) -> Result<()> {
        let seconds = self.recogniser.done_seconds(frames.window, frames.real);
        self.post.window(frames, &mut self.found)?;
        self.hand_over()?;
        self.order.release(self.post.settled())?;
        if seconds - self.told.1 >= PROGRESS_SECONDS || self.told.0.elapsed() >= PROGRESS_EVERY {
            self.told = (Instant::now(), seconds);
            self.order.pass(PipelineEvent::Progress { seconds, total: self.total })?;
        }
        Ok(())
    }
}

impl WindowSink for UnitMean {
    fn opened(&mut self, _: &AudioFormat) -> Result<()> {
        Ok(())
    }

    fn fault(&mut self, fault: Fault) -> Result<()> {
        tracing::warn!(at = fault.at, what = fault.what, "part of a recording is missing from its embedding");
        Ok(())
    }

    fn window(&mut self, frames: WindowScores<'_>) -> Result<()> {
        UnitMean::window(self, frames);
        Ok(())
    }
}
