//! Finds speech in a recording with the Silero detector, which keeps its state from window to
//! window.

use std::path::Path;

use base::{Error, NamedTensor, Result, Tensor};

use crate::caller::GrpcCaller;

/// Sampling rate of the model's input.
const RATE_HZ: u32 = 16_000;
/// Number of samples of one step.
const WINDOW: usize = 512;
/// Number of the previous step's samples that the model gets again.
const CONTEXT: usize = 64;
/// Shape of the model's state.
const STATE_SHAPE: [usize; 3] = [2, 1, 128];
/// Longest recording, in windows (about 30 s).
const WINDOWS_MAX: usize = 1000;

/// Returns the highest probability of speech in any window of `recording`.
///
/// # Errors
/// Returns an error if the recording is not 16 kHz mono, or the response does not fit the model's
/// signature.
pub(super) fn speech(caller: &mut GrpcCaller, model: &str, recording: &Path) -> Result<f32> {
    let samples = samples(recording)?;
    let mut state = vec![0f32; STATE_SHAPE.iter().product()];
    let mut context = [0f32; CONTEXT];
    let mut highest = 0f32;
    for window in samples.chunks_exact(WINDOW).take(WINDOWS_MAX) {
        let input: Vec<f32> = context.iter().chain(window).copied().collect();
        context.copy_from_slice(&window[WINDOW - CONTEXT..]);
        let answer = caller.call(
            model,
            vec![
                NamedTensor::new(
                    "input",
                    Tensor::from_vec([1, CONTEXT + WINDOW].as_slice(), input)?,
                ),
                NamedTensor::new("state", Tensor::from_vec(STATE_SHAPE.as_slice(), state)?),
                NamedTensor::new("sr", Tensor::from_vec([].as_slice(), vec![i64::from(RATE_HZ)])?),
            ],
        )?;
        let (_, probability) = answer.floats("output")?;
        highest = probability.first().copied().unwrap_or(0.0).max(highest);
        state = answer.floats("stateN")?.1;
    }
    Ok(highest)
}

fn samples(path: &Path) -> Result<Vec<f32>> {
    let wrong = |e: &dyn std::fmt::Display| Error::invalid(format!("{}: {e}", path.display()));
    let mut reader = hound::WavReader::open(path).map_err(|e| wrong(&e))?;
    let spec = reader.spec();
    if (spec.channels, spec.sample_rate, spec.bits_per_sample) != (1, RATE_HZ, 16) {
        return Err(wrong(&"wanted 16 kHz, mono, 16 bits"));
    }
    let samples: std::result::Result<Vec<i16>, _> = reader.samples::<i16>().collect();
    Ok(samples
        .map_err(|e| wrong(&e))?
        .into_iter()
        .map(|sample| f32::from(sample) / 32768.0)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_recordings_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, sample_rate| {
            let path = dir.path().join(name);
            let spec = hound::WavSpec {
                channels: 1,
                sample_rate,
                bits_per_sample: 16,
                sample_format: hound::SampleFormat::Int,
            };
            let mut writer = hound::WavWriter::create(&path, spec).unwrap();
            writer.write_sample(i16::MIN).unwrap();
            writer.finalize().unwrap();
            path
        };
        assert_eq!(samples(&write("right.wav", RATE_HZ)).unwrap(), [-1.0]);
        assert!(samples(&write("fast.wav", 44_100)).unwrap_err().message().contains("16 kHz"));
    }
}
