//! Converts an audio file to a tensor: one channel of floats between -1 and 1.

use std::io::Cursor;

use audio::decode::{AudioInput, Decoder};
use audio::resample::{Channel, Mono, RATE_MAX, RATE_MIN};
use base::{DType, Error, Tensor};
use clap::Args;

use crate::exit::{CommandError, CommandResult};
use crate::infer::input::numbers;
use crate::infer::metadata::InputSpec;
use crate::values::TimeSpan;

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

/// Decodes an audio file and converts it to the tensor for `spec`.
///
/// # Errors
/// Returns an error if the file cannot be decoded or does not fit the model's shape.
pub(crate) fn tensor(
    spec: &InputSpec,
    file: &[u8],
    args: &AudioInputArgs,
) -> CommandResult<Tensor> {
    let (mut samples, rate) = decode(file, args.rate)?;
    if let Some(TimeSpan(start)) = args.start {
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
        CommandError::failed(format!(
            "{}; take a part with --start TIME and --samples N",
            failure.message()
        ))
    })?;
    numbers(spec.dtype, &shape, &samples)
}

/// Returns the mean of the channels at `rate`, or at the file's own rate without one, and the rate.
fn decode(file: &[u8], rate: Option<u32>) -> CommandResult<(Vec<f32>, u32)> {
    let unreadable =
        |error: Error| CommandError::failed(format!("cannot read the audio: {}", error.message()));
    let input = AudioInput::Stream(Box::new(Cursor::new(file.to_vec())));
    let mut decoder = Decoder::open(input, Some("wav")).map_err(unreadable)?;
    let own = decoder.format().rate;
    let channels = decoder.format().channels;
    let rate = rate.unwrap_or(own);
    let mut mono = Mono::new(own, channels, rate, Channel::Mix)?;
    let mut samples = Vec::new();
    while let Some(block) = decoder.next().map_err(unreadable)? {
        mono.push(&block.samples, &mut samples)?;
    }
    mono.finish(&mut samples)?;
    if let Some(fault) = decoder.take_faults().first() {
        return Err(CommandError::failed(format!(
            "cannot read the audio: {} at {} s",
            fault.what, fault.at
        )));
    }
    if samples.is_empty() {
        return Err(CommandError::failed("the audio is empty"));
    }
    Ok((samples, rate))
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use super::*;

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
            let (resampled, rate) = decode(&wav(1, from, &source), Some(to)).unwrap();
            assert_eq!((resampled.len(), rate), (to as usize / 2, to));
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
        let args = AudioInputArgs { rate: None, start: None, samples: Some(4) };
        let tensor = tensor(&spec, &file, &args).unwrap();
        assert_eq!(tensor.shape(), [1, 4]);
        assert_eq!(tensor.to_vec::<f32>().unwrap(), [-0.5, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn a_shape_that_does_not_fit_has_a_remedy() {
        let spec = InputSpec { name: "x".into(), dtype: DType::F32, shape: vec![1, 512] };
        let args = AudioInputArgs { rate: None, start: None, samples: None };
        let error = tensor(&spec, &wav(1, 8000, &[1, 2, 3]), &args).unwrap_err();
        assert!(error.message().contains("--samples"), "{}", error.message());
        assert!(tensor(&spec, &wav(1, 8000, &[]), &args).is_err());
    }
}
