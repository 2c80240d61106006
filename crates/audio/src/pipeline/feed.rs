//! The thread that reads a recording, decodes it and computes its features.
//!
//! An upload may stall for any time, and its reader blocks. This thread reads up to
//! [`STEPS_WAITING_MAX`] steps ahead, so that only it blocks. Dropping an [`AudioFeed`] or stopping
//! the work ends the thread. It ends at once while it decodes or waits for space in the queue, and
//! otherwise when its current read returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use base::{Error, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::{PipelineOptions, ReadMeter, STOP_EVERY, check_stop};
use crate::Fault;
use crate::decode::{AudioFormat, AudioInput, Decoder};
use crate::features::FeatureExtractor;
use crate::recogniser::{Recogniser, RecogniserKind};
use crate::resample::{Channel, Mono};

/// Maximum decoded steps that wait.
const STEPS_WAITING_MAX: usize = 4;
/// Samples of a step from a file: half a second at most models' rates, so that passing steps on
/// costs almost nothing. Streamed sound is passed on as it is decoded.
const GATHERED_SAMPLES: u64 = 8192;

/// Next part of a recording.
#[derive(Debug, Default)]
pub(super) struct FeedStep {
    /// Rows of features.
    pub(super) rows: Vec<f32>,
    /// Samples, for recognisers that use the level.
    pub(super) samples: Vec<f32>,
    /// Number of samples at the recogniser's rate.
    pub(super) count: u64,
    /// Faults found.
    pub(super) faults: Vec<Fault>,
    /// True for the last step.
    pub(super) last: bool,
}

/// Receiver of the thread's steps.
pub(super) struct AudioFeed {
    format: AudioFormat,
    steps: Receiver<Result<FeedStep>>,
    thread: JoinHandle<()>,
    /// Ends the thread when it is dropped.
    _stop_on_drop: StopFlagOnDrop,
}

/// Flag that is set on drop. A failed send does not show the drop to the thread of a recording
/// without sound, because that thread sends nothing.
#[derive(Default)]
struct StopFlagOnDrop(Arc<AtomicBool>);

impl Drop for StopFlagOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl AudioFeed {
    /// Starts a thread that opens a recording, and waits until the recording is open.
    ///
    /// # Errors
    /// Returns the errors of [`Decoder::open`] and [`Mono::new`]; `Cancelled` after a stop;
    /// `ResourceExhausted` if no thread can be started.
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
        let stop_on_drop = StopFlagOnDrop::default();
        let flags = [options.stop.clone(), stop_on_drop.0.clone()];
        let stop = move || flags.iter().any(|flag| flag.load(Ordering::Relaxed));
        let meter = options.read_meter.clone();
        let work = move || {
            let meter = meter.as_deref();
            match measured(meter, || FeedReader::open(input, hint.as_deref(), plan)) {
                Err(error) => drop(opened.send(Err(error))),
                Ok((mut reading, format)) => {
                    reading.decoder.stop_when(stop);
                    if opened.send(Ok(format)).is_ok() {
                        reading.run(&out, meter);
                    }
                }
            }
        };
        let thread = Builder::new().name(options.reader.clone()).spawn(work).map_err(|error| {
            Error::exhausted("no thread to read the recording").caused_by(error)
        })?;
        Ok(AudioFeed {
            format: wait_opened(&format, &options.stop)?,
            steps,
            thread,
            _stop_on_drop: stop_on_drop,
        })
    }

    /// Returns the recording's format.
    pub(super) fn format(&self) -> &AudioFormat {
        &self.format
    }

    /// Returns the receiver of the steps. The last one is marked as such or is an error.
    pub(super) fn steps(&self) -> &Receiver<Result<FeedStep>> {
        &self.steps
    }

    /// Waits for the thread, which has sent its last step, so that the recording is closed
    /// afterwards.
    pub(super) fn close(self) {
        // A panic of the thread would have shown as a missing last step.
        let _ = self.thread.join();
    }
}

fn wait_opened(format: &Receiver<Result<AudioFormat>>, stop: &AtomicBool) -> Result<AudioFormat> {
    loop {
        match format.recv_timeout(STOP_EVERY) {
            Ok(format) => return format,
            Err(RecvTimeoutError::Timeout) => check_stop(stop)?,
            Err(RecvTimeoutError::Disconnected) => return Err(reader_ended_early()),
        }
    }
}

/// Returns the error of a thread that ended without a last step.
pub(super) fn reader_ended_early() -> Error {
    Error::internal("the thread that reads the recording has ended early")
}

/// Calls `work` and measures it, if there is a meter.
fn measured<T>(meter: Option<&dyn ReadMeter>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(meter) = meter else { return work() };
    let mut work = Some(work);
    let mut done = Err(reader_ended_early());
    meter.measure(&mut || {
        if let Some(work) = work.take() {
            done = work();
        }
    });
    done
}

/// Settings for processing the samples.
struct FeedSettings {
    features: FeatureExtractor,
    rate: u32,
    channel: Channel,
    /// True if samples are passed on beside the features.
    loudness: bool,
    /// Minimum samples of a step.
    gathered: u64,
}

/// Reader of a recording: decodes, mixes, resamples and computes features, on the thread.
struct FeedReader {
    decoder: Decoder,
    mono: Mono,
    plan: FeedSettings,
    samples: Vec<f32>,
}

impl FeedReader {
    fn open(
        input: AudioInput,
        hint: Option<&str>,
        plan: FeedSettings,
    ) -> Result<(FeedReader, AudioFormat)> {
        let decoder = Decoder::open(input, hint)?;
        let format = decoder.format().clone();
        let mono = Mono::new(format.rate, format.channels, plan.rate, plan.channel)?;
        Ok((FeedReader { decoder, mono, plan, samples: Vec::new() }, format))
    }

    /// Sends steps up to the last one, or until the receiver is dropped.
    fn run(&mut self, out: &Sender<Result<FeedStep>>, meter: Option<&dyn ReadMeter>) {
        loop {
            let step = measured(meter, || self.step());
            let more = step.as_ref().is_ok_and(|step| !step.last);
            if out.send(step).is_err() || !more {
                return;
            }
        }
    }

    /// Decodes at least one block, until there are enough samples.
    fn step(&mut self) -> Result<FeedStep> {
        let mut step = FeedStep::default();
        loop {
            self.add_block(&mut step)?;
            if step.last || step.count >= self.plan.gathered {
                return Ok(step);
            }
        }
    }

    /// Decodes the next block, and adds its features to `step`. Marks the step as the last if there
    /// is no block.
    fn add_block(&mut self, step: &mut FeedStep) -> Result<()> {
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
