//! The thread that reads a recording, decodes it and computes its features.
//!
//! An upload may fall silent for as long as its client likes, and who reads it waits. So that nobody else does, the reading
//! is done here, up to [`STEPS_WAITING_MAX`] steps ahead. Whoever drops a [`AudioFeed`] or stops the work ends its thread: at once
//! where that decodes or waits for room, and otherwise when the read that it is in returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use base::{Error, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::{PipelineOptions, STOP_EVERY, check_stop};
use crate::Fault;
use crate::decode::{AudioFormat, AudioInput, Decoder};
use crate::features::FeatureExtractor;
use crate::recogniser::{Recogniser, RecogniserKind};
use crate::resample::{Channel, Mono};

/// Steps that are decoded and wait.
const STEPS_WAITING_MAX: usize = 4;
/// Samples of a step where the recording is at hand: half a second at most models' rate, so that handing steps over costs
/// next to nothing. What still arrives is handed over as it is decoded.
const GATHERED_SAMPLES: u64 = 8192;

/// What follows in a recording.
#[derive(Debug, Default)]
pub(super) struct FeedStep {
    /// Rows of features.
    pub(super) rows: Vec<f32>,
    /// The samples, for those whose loudness counts.
    pub(super) samples: Vec<f32>,
    /// How many samples there are, at the recogniser's rate.
    pub(super) count: u64,
    /// What was found wrong.
    pub(super) faults: Vec<Fault>,
    /// Nothing follows.
    pub(super) last: bool,
}

/// The thread's other end.
pub(super) struct AudioFeed {
    format: AudioFormat,
    steps: Receiver<Result<FeedStep>>,
    thread: JoinHandle<()>,
    /// Dropped with the rest.
    _gone: StopOnDrop,
}

/// Set when its owner is dropped: a recording that brings no sound gives its thread nothing to hand over.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl AudioFeed {
    /// Starts a thread that opens a recording, and waits until it has.
    ///
    /// # Errors
    /// Those of [`Decoder::open`] and [`Mono::new`]; `Cancelled` after a stop; `ResourceExhausted` where there can be no
    /// more threads.
    pub(super) fn open(
        input: AudioInput,
        hint: Option<&str>,
        recogniser: &Recogniser,
        options: &PipelineOptions,
    ) -> Result<AudioFeed> {
        let (opened, format) = bounded(1);
        let (out, steps) = bounded(STEPS_WAITING_MAX);
        let plan = FeedSettings {
            features: FeatureExtractor::new(&recogniser.features, recogniser.rate)?,
            rate: recogniser.rate,
            channel: recogniser.channel,
            loudness: recogniser.kind == RecogniserKind::Embeddings,
            gathered: if matches!(input, AudioInput::File(_)) { GATHERED_SAMPLES } else { 0 },
        };
        let hint = hint.map(str::to_owned);
        let gone = StopOnDrop::default();
        let flags = [options.stop.clone(), gone.0.clone()];
        let stop = move || flags.iter().any(|flag| flag.load(Ordering::Relaxed));
        let work = move || match FeedReader::open(input, hint.as_deref(), plan) {
            Err(error) => drop(opened.send(Err(error))),
            Ok((mut reading, format)) => {
                reading.decoder.stop_when(stop);
                if opened.send(Ok(format)).is_ok() {
                    reading.run(&out);
                }
            }
        };
        let thread = Builder::new()
            .name(options.reader.clone())
            .spawn(work)
            .map_err(|error| Error::exhausted(format!("no thread to read the recording: {error}")))?;
        Ok(AudioFeed { format: wait_opened(&format, &options.stop)?, steps, thread, _gone: gone })
    }

    /// What the recording says about itself.
    pub(super) fn format(&self) -> &AudioFormat {
        &self.format
    }

    /// Where the steps come from, the last of which says so or is an error.
    pub(super) fn steps(&self) -> &Receiver<Result<FeedStep>> {
        &self.steps
    }

    /// Waits for the thread, which has said its last word, so that the recording is closed afterwards.
    pub(super) fn close(self) {
        // What a thread that panicked had to say would have come before its last step.
        let _ = self.thread.join();
    }
}

fn wait_opened(format: &Receiver<Result<AudioFormat>>, stop: &AtomicBool) -> Result<AudioFormat> {
    loop {
        match format.recv_timeout(STOP_EVERY) {
            Ok(format) => return format,
            Err(RecvTimeoutError::Timeout) => check_stop(stop)?,
            Err(RecvTimeoutError::Disconnected) => return Err(broken_off()),
        }
    }
}

/// The thread is gone without a last step.
pub(super) fn broken_off() -> Error {
    Error::internal("the thread that reads the recording has ended early")
}

/// What becomes of the samples.
struct FeedSettings {
    features: FeatureExtractor,
    rate: u32,
    channel: Channel,
    /// Whether samples are handed over beside the features.
    loudness: bool,
    /// Samples of a step.
    gathered: u64,
}

/// Decodes, mixes, resamples and computes features, on the thread.
struct FeedReader {
    decoder: Decoder,
    mono: Mono,
    plan: FeedSettings,
    samples: Vec<f32>,
}

impl FeedReader {
    fn open(input: AudioInput, hint: Option<&str>, plan: FeedSettings) -> Result<(FeedReader, AudioFormat)> {
        let decoder = Decoder::open(input, hint)?;
        let format = decoder.format().clone();
        let mono = Mono::new(format.rate, format.channels, plan.rate, plan.channel)?;
        Ok((FeedReader { decoder, mono, plan, samples: Vec::new() }, format))
    }

    /// Hands over steps to the last, or until nobody wants them.
    fn run(&mut self, out: &Sender<Result<FeedStep>>) {
        loop {
            let step = self.step();
            let more = step.as_ref().is_ok_and(|step| !step.last);
            if out.send(step).is_err() || !more {
                return;
            }
        }
    }

    /// Decodes blocks, at least one, until there are samples enough.
    fn step(&mut self) -> Result<FeedStep> {
        let mut step = FeedStep::default();
        loop {
            self.block(&mut step)?;
            if step.last || step.count >= self.plan.gathered {
                return Ok(step);
            }
        }
    }

    /// Adds one block.
    fn block(&mut self, step: &mut FeedStep) -> Result<()> {
        self.samples.clear();
        let block = self.decoder.next()?;
        let features = &mut self.plan.features;
        match &block {
            Some(block) => self.mono.push(&block.samples, &mut self.samples)?,
            None => self.mono.finish(&mut self.samples)?,
        }
        features.push(&self.samples, &mut step.rows);
        if block.is_none() {
            features.finish(&mut step.rows);
        }
        step.count += self.samples.len() as u64;
        if self.plan.loudness {
            step.samples.extend(&self.samples);
        }
        step.faults.append(&mut self.decoder.take_faults());
        step.last = block.is_none();
        Ok(())
    }
}
