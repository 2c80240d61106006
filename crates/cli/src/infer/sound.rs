//! A sound file as a tensor: one channel of floats between -1 and 1.

use std::f64::consts::PI;
use std::io::Cursor;

use base::{DType, Tensor};
use clap::Args;
use hound::{SampleFormat, WavReader};

use crate::exit::{Failure, Outcome};
use crate::infer::input::numbers;
use crate::infer::metadata::Spec;
use crate::values::Span;

/// Highest sample rate that is resampled to.
const RATE_MAX: i64 = 768_000;
/// Zero crossings of the resampling filter on each side: enough for less than 1 % error in the pass band.
const FILTER_CROSSINGS: f64 = 16.0;

/// How a sound becomes numbers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sound")]
pub(crate) struct SoundArgs {
    /// Resample to this many samples a second [default: the file's]
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=RATE_MAX))]
    rate: Option<u32>,
    /// Start this far into the file
    #[arg(long, value_name = "TIME")]
    start: Option<Span>,
    /// Take this many samples; silence follows where the file is shorter [default: all]
    #[arg(long, value_name = "N")]
    samples: Option<usize>,
}

/// Decodes and prepares a sound for `spec`.
///
/// # Errors
/// A failure when it cannot be decoded or does not fit the model's shape.
pub(crate) fn tensor(spec: &Spec, file: &[u8], args: &SoundArgs) -> Outcome<Tensor> {
    let (mono, own_rate) = decode(file)?;
    let rate = args.rate.unwrap_or(own_rate);
    let mut samples = if rate == own_rate { mono } else { resample(&mono, own_rate, rate) };
    if let Some(Span(start)) = args.start {
        let skipped = (start.as_secs_f64() * f64::from(rate)) as usize;
        samples.drain(..skipped.min(samples.len()));
    }
    if let Some(count) = args.samples {
        samples.resize(count, 0.0);
    }
    if spec.dtype == DType::I16 {
        samples.iter_mut().for_each(|sample| *sample *= f32::from(i16::MAX));
    }
    let shape = spec.fit(samples.len()).map_err(|failure| {
        Failure::failed(format!("{}; take a part with --start TIME and --samples N", failure.message()))
    })?;
    numbers(spec.dtype, &shape, &samples)
}

/// The mean of the channels, and the sample rate.
fn decode(file: &[u8]) -> Outcome<(Vec<f32>, u32)> {
    let unreadable = |error: hound::Error| Failure::failed(format!("cannot read the sound: {error}"));
    let mut reader = WavReader::new(Cursor::new(file)).map_err(unreadable)?;
    let format = reader.spec();
    let interleaved: Vec<f32> = match format.sample_format {
        SampleFormat::Float => reader.samples::<f32>().collect::<Result<_, _>>().map_err(unreadable)?,
        SampleFormat::Int => {
            let full = 1.0 / (1i64 << (format.bits_per_sample - 1)) as f32;
            let samples = reader.samples::<i32>().map(|sample| sample.map(|sample| sample as f32 * full));
            samples.collect::<Result<_, _>>().map_err(unreadable)?
        }
    };
    let channels = usize::from(format.channels);
    if channels == 0 || interleaved.is_empty() {
        return Err(Failure::failed("the sound is empty"));
    }
    let mono = interleaved.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() / channels as f32);
    Ok((mono.collect(), format.sample_rate))
}

/// Resamples with a windowed sinc. Written for a few seconds of speech, not for speed.
fn resample(input: &[f32], from: u32, to: u32) -> Vec<f32> {
    let step = f64::from(from) / f64::from(to);
    // Below the lower of both rates' half, so that nothing folds back.
    let cutoff = (1.0 / step).min(1.0);
    let reach = FILTER_CROSSINGS / cutoff;
    let length = (input.len() as f64 / step).floor() as usize;
    let at = |index: usize| {
        let centre = index as f64 * step;
        let first = (centre - reach).ceil().max(0.0) as usize;
        let last = ((centre + reach).floor() as usize).min(input.len().saturating_sub(1));
        let sum: f64 = (first..=last)
            .map(|place| {
                let distance = place as f64 - centre;
                let window = 0.5 + 0.5 * (PI * distance / reach).cos();
                f64::from(input[place]) * cutoff * sinc(cutoff * distance) * window
            })
            .sum();
        sum as f32
    };
    (0..length).map(at).collect()
}

fn sinc(x: f64) -> f64 {
    if x.abs() < 1e-9 { 1.0 } else { (PI * x).sin() / (PI * x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(rate: u32, hertz: f64, samples: usize) -> Vec<f32> {
        (0..samples).map(|i| (2.0 * PI * hertz * i as f64 / f64::from(rate)).sin() as f32).collect()
    }

    fn wav(channels: u16, samples: &[i16]) -> Vec<u8> {
        let spec = hound::WavSpec {
            channels,
            sample_rate: 8000,
            bits_per_sample: 16,
            sample_format: SampleFormat::Int,
        };
        let mut file = Cursor::new(Vec::new());
        let mut writer = hound::WavWriter::new(&mut file, spec).unwrap();
        samples.iter().for_each(|&sample| writer.write_sample(sample).unwrap());
        writer.finalize().unwrap();
        file.into_inner()
    }

    #[test]
    fn a_tone_stays_a_tone() {
        for (from, to) in [(8000, 16000), (44100, 16000), (16000, 8000)] {
            let resampled = resample(&tone(from, 440.0, from as usize / 2), from, to);
            let wanted = tone(to, 440.0, resampled.len());
            let inner = 200..resampled.len() - 200;
            let worst = inner.map(|i| (resampled[i] - wanted[i]).abs()).fold(0f32, f32::max);
            assert!(worst < 0.02, "{from} to {to}: {worst}");
        }
    }

    #[test]
    fn channels_are_mixed_and_cut() {
        let file = wav(2, &[i16::MIN, 0, 16384, 16384, 0, 0]);
        let spec = Spec { name: "x".into(), dtype: DType::F32, shape: vec![-1, -1] };
        let args = SoundArgs { rate: None, start: None, samples: Some(4) };
        let tensor = tensor(&spec, &file, &args).unwrap();
        assert_eq!(tensor.shape(), [1, 4]);
        assert_eq!(tensor.to_vec::<f32>().unwrap(), [-0.5, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn a_shape_that_does_not_fit_says_what_to_do() {
        let spec = Spec { name: "x".into(), dtype: DType::F32, shape: vec![1, 512] };
        let args = SoundArgs { rate: None, start: None, samples: None };
        let error = tensor(&spec, &wav(1, &[1, 2, 3]), &args).unwrap_err();
        assert!(error.message().contains("--samples"), "{}", error.message());
    }
}
