//! Converts any number of channels at any rate to one channel at the model's rate.
//!
//! Rates are changed by a synchronous transform. Its filter leaves nothing above the lower of the
//! two Nyquist frequencies that could alias. The filter's delay is removed, so that sample `i` of
//! the result is the sound at `i / to` seconds.

use base::{Error, Result};
use rubato::{FftFixedInOut, Resampler};

/// Lowest rate that can be changed, in Hz.
pub const RATE_MIN: u32 = 1_000;
/// Highest rate that can be changed, in Hz.
pub const RATE_MAX: u32 = 768_000;
/// Minimum samples of one transform.
const CHUNK: usize = 4096;

/// Channel of a recording for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The mean of all channels.
    Mix,
    /// One channel, counted from zero.
    Only(usize),
}

/// Converter that mixes to one channel and changes the rate, block by block. Between two blocks it
/// holds less than two seconds, or less than 8,192 samples at low rates.
///
/// # Example: a second of stereo at 16 kHz as mono at 8 kHz
/// ```
/// use millpond_signal::resample::{Channel, Mono};
///
/// let mut mono = Mono::new(16_000, 2, 8_000, Channel::Mix)?;
/// let mut samples = Vec::new();
/// mono.push(&[0.25; 2 * 16_000], &mut samples)?;
/// mono.finish(&mut samples)?;
/// assert_eq!(samples.len(), 8_000);
/// # Ok::<(), base::Error>(())
/// ```
pub struct Mono {
    channels: usize,
    channel: Channel,
    change: Option<Box<ResampleState>>,
}

/// State of a change of rate.
struct ResampleState {
    /// Input rate in samples per second.
    from: u64,
    /// Output rate in samples per second.
    to: u64,
    /// In f64, as the spectra: the program then has one kind of transform. f32 takes 0.6 to 0.8 of
    /// the time (`cargo bench -p millpond-signal`).
    resampler: FftFixedInOut<f64>,
    /// Samples that do not fill a chunk yet.
    waiting: Vec<f64>,
    given: Vec<f64>,
    /// Remaining delay of the filter at the beginning of its output.
    delay: usize,
    /// Number of input samples.
    taken: u64,
    /// Number of output samples, without the delay of the filter.
    made: u64,
}

impl Mono {
    /// Converts `channels` interleaved channels at `from` samples per second to one at `to`.
    ///
    /// # Errors
    /// `InvalidArgument` if the recording has no such channel, or for rates outside [`RATE_MIN`] to
    /// [`RATE_MAX`].
    pub fn new(from: u32, channels: usize, to: u32, channel: Channel) -> Result<Mono> {
        match channel {
            _ if channels == 0 => return Err(Error::invalid("the recording has no channel")),
            Channel::Only(index) if index >= channels => {
                return Err(Error::invalid(format!(
                    "there is no channel {index}; the recording has {channels}, counted from 0"
                )));
            }
            Channel::Only(_) | Channel::Mix => {}
        }
        if from == to && from > 0 {
            return Ok(Mono { channels, channel, change: None });
        }
        for rate in [from, to] {
            if !(RATE_MIN..=RATE_MAX).contains(&rate) {
                return Err(Error::invalid(format!(
                    "a rate of {rate} Hz cannot be changed; it can be {RATE_MIN} to {RATE_MAX}"
                )));
            }
        }
        Ok(Mono { channels, channel, change: Some(Box::new(ResampleState::new(from, to)?)) })
    }

    /// Adds interleaved samples of whole frames and appends the finished part of the result.
    ///
    /// # Errors
    /// `Internal` if the resampler fails.
    pub fn push(&mut self, interleaved: &[f32], out: &mut Vec<f32>) -> Result<()> {
        let channels = self.channels;
        let channel = self.channel;
        let mono = interleaved.chunks_exact(channels).map(|frame| match channel {
            Channel::Only(index) => frame[index],
            Channel::Mix if channels == 1 => frame[0],
            Channel::Mix => frame.iter().sum::<f32>() / channels as f32,
        });
        match &mut self.change {
            None => out.extend(mono),
            Some(change) => {
                change.taken += (interleaved.len() / channels) as u64;
                change.waiting.extend(mono.map(f64::from));
                change.chunks(out)?;
            }
        }
        Ok(())
    }

    /// Appends the rest, so that `n` samples in become `round(n * to / from)` samples out.
    ///
    /// # Errors
    /// As for [`Mono::push`].
    pub fn finish(&mut self, out: &mut Vec<f32>) -> Result<()> {
        let Some(change) = &mut self.change else { return Ok(()) };
        let due = (change.taken * change.to * 2 + change.from) / (change.from * 2);
        while change.made < due {
            // Silence after the end pushes the last sound through the filter.
            change.waiting.resize(change.resampler.input_frames_next(), 0.0);
            change.chunks(out)?;
        }
        let over = usize::try_from(change.made - due).unwrap_or(0);
        out.truncate(out.len().saturating_sub(over));
        change.made = due;
        Ok(())
    }
}

/// Returns the greatest common divisor.
fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Returns the samples of one transform, at least [`CHUNK`].
fn chunk(from: u32, to: u32) -> usize {
    // A chunk is an even multiple of this many samples; otherwise the delay would have half a
    // sample.
    let unit = 2 * (from / divisor(from, to)) as usize;
    // A large prime factor makes a transform four times slower: 4098 samples have 683.
    let is_fast = |count: &usize| [2, 3, 5].into_iter().fold(*count, without) == 1;
    let least = CHUNK.div_ceil(unit);
    unit * (least..).find(is_fast).unwrap_or(least)
}

/// Divides `number`, which is not 0, by `factor` as often as that leaves no remainder.
fn without(number: usize, factor: usize) -> usize {
    if number.is_multiple_of(factor) { without(number / factor, factor) } else { number }
}

impl ResampleState {
    fn new(from: u32, to: u32) -> Result<ResampleState> {
        let resampler = FftFixedInOut::new(from as usize, to as usize, chunk(from, to), 1)
            .map_err(|error| {
                Error::internal(format!("no resampler from {from} to {to} Hz")).caused_by(error)
            })?;
        Ok(ResampleState {
            from: from.into(),
            to: to.into(),
            given: vec![0.0; resampler.output_frames_max()],
            delay: resampler.output_delay(),
            resampler,
            waiting: Vec::new(),
            taken: 0,
            made: 0,
        })
    }

    /// Resamples all full chunks.
    fn chunks(&mut self, out: &mut Vec<f32>) -> Result<()> {
        let size = self.resampler.input_frames_next();
        let mut used = 0;
        while self.waiting.len() - used >= size {
            let (_, given) = self
                .resampler
                .process_into_buffer(
                    &[&self.waiting[used..used + size]],
                    &mut [&mut self.given[..]],
                    None,
                )
                .map_err(|error| Error::internal("the resampler failed").caused_by(error))?;
            used += size;
            let late = self.delay.min(given);
            self.delay -= late;
            self.made += (given - late) as u64;
            out.extend(self.given[late..given].iter().map(|&sample| sample as f32));
        }
        self.waiting.drain(..used);
        Ok(())
    }
}
