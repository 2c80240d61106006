//! Converts an audio file to a tensor: one channel of floats between -1 and 1.

use audio::decode::{AudioInput, Decoder};
use audio::resample::{Channel, Mono, RATE_MAX, RATE_MIN};
use base::{DType, Error, Tensor};
use clap::Args;
use command_line::exit::{CommandError, CommandResult};
use command_line::values::TimeSpan;

use crate::infer::input::numbers;
use crate::infer::metadata::InputSpec;

/// Options of an audio file.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Audio")]
pub(crate) struct AudioInputArgs {
    /// Resample to this many samples per second [default: the file's rate]
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(i64::from(RATE_MIN)..=i64::from(RATE_MAX)))]
    rate: Option<u32>,
    /// Start at this time of the file
    #[arg(long, value_name = "TIME")]
    start: Option<TimeSpan>,
    /// Number of samples, padded with silence if the file is shorter [default: all]
    #[arg(long, value_name = "N")]
    samples: Option<usize>,
}

impl AudioInputArgs {
    /// Returns the names of the stated flags.
    pub(crate) fn stated(&self) -> Vec<&'static str> {
        let flags = [
            ("--rate", self.rate.is_some()),
            ("--start", self.start.is_some()),
            ("--samples", self.samples.is_some()),
        ];
        flags.into_iter().filter_map(|(name, is_stated)| is_stated.then_some(name)).collect()
    }
}

/// Maximum samples of a tensor: 1 GiB of 32-bit floats.
const SAMPLES_MAX: usize = 1 << 28;

/// Decodes a recording and converts it to the tensor for `spec`. `hint` is the file's extension.
///
/// # Errors
/// Returns an error if the recording cannot be decoded or does not fit the model's shape.
pub(crate) fn tensor(
    spec: &InputSpec,
    input: AudioInput,
    hint: Option<&str>,
    args: &AudioInputArgs,
) -> CommandResult<Tensor> {
    if args.samples.is_some_and(|count| count > SAMPLES_MAX) {
        return Err(CommandError::failed(format!("--samples is at most {SAMPLES_MAX}")));
    }
    let mut samples = decode(input, hint, args)?;
    if let Some(count) = args.samples {
        samples.resize(count, 0.0);
    }
    if spec.dtype == DType::I16 {
        samples.iter_mut().for_each(|sample| *sample *= f32::from(i16::MAX));
    }
    let shape = spec.fit(samples.len()).map_err(|failure| {
        CommandError::failed(format!(
            "{}; take a part with --start TIME and --samples N",
            failure.message()
        ))
    })?;
    numbers(spec.dtype, &shape, &samples)
}

/// Returns the mean of the channels from `--start` on, at `--rate` or at the file's own rate. Reads
/// no further than `--samples` needs.
fn decode(input: AudioInput, hint: Option<&str>, args: &AudioInputArgs) -> CommandResult<Vec<f32>> {
    let unreadable =
        |error: Error| CommandError::failed(format!("cannot read the audio: {}", error.message()));
    let mut decoder = Decoder::open(input, hint).map_err(unreadable)?;
    let own = decoder.format().rate;
    let channels = decoder.format().channels;
    let rate = args.rate.unwrap_or(own);
    let mut mono = Mono::new(own, channels, rate, Channel::Mix)?;
    let mut to_skip =
        args.start.map_or(0, |TimeSpan(start)| (start.as_secs_f64() * f64::from(rate)) as usize);
    let mut samples: Vec<f32> = Vec::new();
    let mut is_read = false;
    while !is_read && args.samples.is_none_or(|count| samples.len() < count) {
        if let Some(block) = decoder.next().map_err(unreadable)? {
            mono.push(&block.samples, &mut samples)?;
        } else {
            mono.finish(&mut samples)?;
            is_read = true;
        }
        let skipped = to_skip.min(samples.len());
        samples.drain(..skipped);
        to_skip -= skipped;
        if args.samples.is_none() && samples.len() > SAMPLES_MAX {
            return Err(CommandError::failed(format!(
                "the audio has more than {SAMPLES_MAX} samples; take a part with --start TIME and \
                 --samples N"
            )));
        }
    }
    if let Some(fault) = decoder.take_faults().first() {
        return Err(CommandError::failed(format!(
            "cannot read the audio: {} at {} s",
            fault.what, fault.at
        )));
    }
    if samples.is_empty() && args.samples != Some(0) {
        let what = if args.start.is_some() { "ends before --start" } else { "is empty" };
        return Err(CommandError::failed(format!("the audio {what}")));
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;
    use std::io::Cursor;
    use std::time::Duration;

    use super::*;

    const WHOLE: AudioInputArgs = AudioInputArgs { rate: None, start: None, samples: None };

    fn stream(file: Vec<u8>) -> AudioInput {
        AudioInput::Stream(Box::new(Cursor::new(file)))
    }

    fn tone(rate: u32, hertz: f64, samples: usize) -> Vec<f32> {
        (0..samples).map(|i| (2.0 * PI * hertz * i as f64 / f64::from(rate)).sin() as f32).collect()
    }

    fn wav(channels: u16, rate: u32, samples: &[i16]) -> Vec<u8> {
        let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let bytes = data.len() as u32;
        let frame = channels * 2;
        let mut file = b"RIFF".to_vec();
        file.extend((36 + bytes).to_le_bytes());
        file.extend(b"WAVEfmt \x10\0\0\0\x01\0");
        file.extend(channels.to_le_bytes());
        file.extend(rate.to_le_bytes());
        file.extend((rate * u32::from(frame)).to_le_bytes());
        file.extend(frame.to_le_bytes());
        file.extend(b"\x10\0data");
        file.extend(bytes.to_le_bytes());
        file.extend(data);
        file
    }

    #[test]
    fn a_tone_stays_a_tone() {
        for (from, to) in [(8000, 16000), (44100, 16000), (16000, 8000)] {
            let source: Vec<i16> = tone(from, 440.0, from as usize / 2)
                .iter()
                .map(|sample| (sample * 32767.0) as i16)
                .collect();
            let args = AudioInputArgs { rate: Some(to), ..WHOLE };
            let resampled = decode(stream(wav(1, from, &source)), None, &args).unwrap();
            assert_eq!(resampled.len(), to as usize / 2);
            let wanted = tone(to, 440.0, resampled.len());
            let inner = 200..resampled.len() - 200;
            let worst = inner.map(|i| (resampled[i] - wanted[i]).abs()).fold(0f32, f32::max);
            assert!(worst < 0.02, "{from} to {to}: {worst}");
        }
    }

    #[test]
    fn channels_are_mixed_and_cut() {
        let file = wav(2, 8000, &[i16::MIN, 0, 16384, 16384, 0, 0]);
        let spec = InputSpec { name: "x".into(), dtype: DType::F32, shape: vec![-1, -1] };
        let args = AudioInputArgs { samples: Some(4), ..WHOLE };
        let tensor = tensor(&spec, stream(file), None, &args).unwrap();
        assert_eq!(tensor.shape(), [1, 4]);
        assert_eq!(tensor.to_vec::<f32>().unwrap(), [-0.5, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn a_shape_that_does_not_fit_has_a_remedy() {
        let spec = InputSpec { name: "x".into(), dtype: DType::F32, shape: vec![1, 512] };
        let error = tensor(&spec, stream(wav(1, 8000, &[1, 2, 3])), None, &WHOLE).unwrap_err();
        assert!(error.message().contains("--samples"), "{}", error.message());
        assert!(tensor(&spec, stream(wav(1, 8000, &[])), None, &WHOLE).is_err());
    }

    #[test]
    fn a_part_needs_only_the_bytes_up_to_it() {
        // Five seconds are announced; the file ends after one.
        let mut file = wav(1, 8000, &(0..100).cycle().take(40_000).collect::<Vec<i16>>());
        file.truncate(44 + 16_000);
        let part = |start_ms, samples| {
            let start = Some(TimeSpan(Duration::from_millis(start_ms)));
            decode(stream(file.clone()), None, &AudioInputArgs { rate: None, start, samples })
        };
        let samples = part(100, Some(10)).unwrap();
        let wanted: Vec<f32> = (0..10i16).map(|i| f32::from(i) / 32768.0).collect();
        assert_eq!(samples[..10], wanted[..]);
        assert!(part(100, None).unwrap_err().message().contains("cannot read the audio"));
    }

    #[test]
    fn a_start_after_the_end_is_refused() {
        let start = Some(TimeSpan(Duration::from_secs(1)));
        let args = AudioInputArgs { rate: None, start, samples: Some(4) };
        let error = decode(stream(wav(1, 8000, &[1, 2, 3])), None, &args).unwrap_err();
        assert_eq!(error.message(), "the audio ends before --start");
    }

    #[test]
    fn more_samples_than_fit_in_memory_are_refused() {
        let spec = InputSpec { name: "x".into(), dtype: DType::F32, shape: vec![-1] };
        let args = AudioInputArgs { samples: Some(usize::MAX), ..WHOLE };
        let error = tensor(&spec, stream(wav(1, 8000, &[1])), None, &args).unwrap_err();
        assert!(error.message().contains("--samples is at most"), "{}", error.message());
    }
}
