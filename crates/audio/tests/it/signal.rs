//! Features against the package that defines them, and resampling against audible properties.

use millpond_audio::features::{FeatureExtractor, FeatureFile};
use millpond_audio::resample::{Channel, Mono};
use proptest::prelude::*;

/// Relative tolerance for powers; compared with the greatest value of the row for values near zero.
const POWER_TOLERANCE: f64 = 1e-4;
/// Absolute tolerance for decibels, natural logarithms and cepstra.
const LOG_TOLERANCE: f64 = 1e-4;

/// The signal of `make_golden.py`.
fn signal(count: usize) -> Vec<f32> {
    let mut state = 12345_u64;
    let mut samples = Vec::new();
    for index in 0..count {
        state = (state * 1_103_515_245 + 12_345) % (1 << 31);
        let noise = state as f64 / f64::from(1 << 30) - 1.0;
        let time = index as f64 / 16000.0;
        let phase = std::f64::consts::TAU
            * (100.0 * time + 0.5 * 6900.0 * time * time / (count as f64 / 16000.0));
        samples.push((0.5 * phase.sin() + 0.1 * noise) as f32);
    }
    samples
}

fn rows(file: &FeatureFile, samples: &[f32], cuts: &[usize]) -> (usize, Vec<f32>) {
    let mut features = FeatureExtractor::new(file, 16000).unwrap();
    let (mut rows, mut rest) = (Vec::new(), samples);
    for cut in cuts {
        let (now, later) = rest.split_at((*cut).min(rest.len()));
        features.push(now, &mut rows);
        rest = later;
    }
    features.push(rest, &mut rows);
    features.finish(&mut rows);
    (features.width(), rows)
}

#[test]
fn features_equal_those_of_training() {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../data/features.json")).unwrap();
    let samples = signal(golden["count"].as_u64().unwrap() as usize);
    for case in golden["cases"].as_array().unwrap() {
        let file: FeatureFile = serde_json::from_value(case["settings"].clone()).unwrap();
        let (width, rows) = rows(&file, &samples, &[]);
        assert_eq!(
            rows.len() / width,
            case["count"].as_u64().unwrap() as usize,
            "rows of {file:?}"
        );
        for expected in case["rows"].as_array().unwrap() {
            let row = expected["row"].as_u64().unwrap() as usize;
            let expected: Vec<f64> = serde_json::from_value(expected["values"].clone()).unwrap();
            let got = &rows[row * width..][..width];
            assert_eq!(expected.len(), width);
            for (band, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let tolerance = match file {
                    FeatureFile::Mel(_) => POWER_TOLERANCE * expected.abs(),
                    _ => LOG_TOLERANCE,
                };
                let off = (f64::from(*got) - expected).abs();
                assert!(off <= tolerance, "row {row} band {band}: {got}, not {expected}: {file:?}");
            }
        }
    }
}

fn parse(text: &str) -> Result<FeatureFile, toml::de::Error> {
    toml::from_str(text)
}

#[test]
fn settings_are_checked_and_named() {
    for (text, says) in [
        ("kind = \"raw\"\nfft = 512", "\"fft\""),
        ("kind = \"log-mel\"\ntop-db = 80.0", "top-db"),
        ("kind = \"log-mel\"\nreference = \"max\"", "whole recording"),
        ("kind = \"mel\"\ncolour = 1", "colour"),
        ("kind = \"mel\"\ncount = 13", "\"count\""),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text:?}: {error}");
    }
    for (text, says) in [
        ("kind = \"mel\"\nhop = 0", "hop is 0"),
        ("kind = \"mel\"\nfft = 1", "fft is 1"),
        ("kind = \"mel\"\nfft = 512\nwindow = 513", "window is 513"),
        ("kind = \"mel\"\nfmax = 9000.0", "fmax is 9000"),
        ("kind = \"mfcc\"\nmels = 20\ncount = 21", "count is 21"),
        ("kind = \"log-mel\"\nfloor = 0.0", "floor is 0"),
        ("kind = \"mel\"\nmels = 1000000", "mels is 1000000"),
    ] {
        let error = FeatureExtractor::new(&parse(text).unwrap(), 16000).err().unwrap();
        assert!(error.message().contains(says), "{text:?}: {error}");
    }
    let raw = parse("kind = \"raw\"").unwrap();
    assert_eq!(raw, FeatureFile::Raw { scale: 1.0 });
    let mut features = FeatureExtractor::new(&raw, 16000).unwrap();
    let mut rows = Vec::new();
    features.push(&[0.5, -0.25], &mut rows);
    assert_eq!((features.width(), features.step(), rows), (1, 1.0 / 16000.0, vec![0.5, -0.25]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn features_do_not_depend_on_how_samples_arrive(
        count in 0usize..700, center: bool, reflect: bool, fft in 2usize..130, window in 1usize..130,
        hop in 1usize..300, cuts in proptest::collection::vec(0usize..150, 0..10),
    ) {
        let text = format!(
            "kind = \"log-mel\"\nfft = {fft}\nwindow = {}\nhop = {hop}\nmels = 5\ncenter = {center}\npad = {:?}",
            window.min(fft), if reflect { "reflect" } else { "constant" },
        );
        let file = parse(&text).unwrap();
        let samples = signal(count);
        let whole = rows(&file, &samples, &[]);
        prop_assert!(rows(&file, &[], &cuts).1.is_empty());
        prop_assert_eq!(&rows(&file, &samples, &cuts), &whole);
        // The number of rows is that of the definition.
        let padded = if center { count + fft / 2 * 2 } else { count };
        let expected = if count == 0 || padded < fft { 0 } else { 1 + (padded - fft) / hop };
        prop_assert_eq!(whole.1.len() / whole.0, expected);
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn resampling_has_the_same_length_for_all_pieces(
        from in 1000u32..200_000, to in prop::sample::select(vec![8000u32, 16000, 22050, 48000]),
        count in 0usize..20_000, cuts in proptest::collection::vec(0usize..5000, 0..6),
    ) {
        let samples = signal(count);
        let whole = resampled(from, to, &samples, &[]);
        prop_assert_eq!(whole.len() as u64, (2 * count as u64 * u64::from(to) + u64::from(from)) / (2 * u64::from(from)));
        prop_assert!(resampled(from, to, &samples, &cuts) == whole);
    }
}

fn resampled(from: u32, to: u32, samples: &[f32], cuts: &[usize]) -> Vec<f32> {
    let mut mono = Mono::new(from, 1, to, Channel::Mix).unwrap();
    let (mut out, mut rest) = (Vec::new(), samples);
    for cut in cuts {
        let (now, later) = rest.split_at((*cut).min(rest.len()));
        mono.push(now, &mut out).unwrap();
        rest = later;
    }
    mono.push(rest, &mut out).unwrap();
    mono.finish(&mut out).unwrap();
    out
}

fn sine(rate: u32, hertz: f64, seconds: f64) -> Vec<f32> {
    let count = (f64::from(rate) * seconds) as usize;
    (0..count)
        .map(|index| (std::f64::consts::TAU * hertz * index as f64 / f64::from(rate)).sin() as f32)
        .collect()
}

fn decibels(samples: &[f32]) -> f64 {
    let power: f64 = samples.iter().map(|sample| f64::from(*sample).powi(2)).sum();
    10.0 * (power / samples.len() as f64).max(1e-30).log10()
}

/// All but the ends, where a sine begins and stops abruptly.
fn inside(samples: &[f32], rate: u32) -> &[f32] {
    let margin = rate as usize / 4;
    &samples[margin..samples.len() - margin]
}

#[test]
fn tones_keep_their_frequency_and_level() {
    for from in [8000, 11025, 22050, 32000, 44100, 48000, 96000, 192_000] {
        for hertz in [100.0, 1000.0, 3300.0, 7000.0] {
            if hertz > 0.44 * f64::from(from) {
                continue;
            }
            let got = resampled(from, 16000, &sine(from, hertz, 1.0), &[]);
            let expected = sine(16000, hertz, 1.0);
            let off: Vec<f32> =
                got.iter().zip(&expected).map(|(got, expected)| got - expected).collect();
            let error = decibels(inside(&off, 16000)) - decibels(&expected);
            assert!(error < -80.0, "{hertz} Hz from {from}: the difference is {error:.1} dB");
        }
    }
}

#[test]
fn resampling_adds_no_aliases() {
    for from in [22050, 44100, 48000, 96000, 192_000] {
        for step in 0..12 {
            let hertz = 8100.0 + f64::from(step) * (f64::from(from) / 2.0 - 8200.0) / 12.0;
            let got = resampled(from, 16000, &sine(from, hertz, 1.0), &[]);
            let level = decibels(inside(&got, 16000)) - decibels(&sine(from, hertz, 1.0));
            assert!(level < -80.0, "{hertz} Hz from {from}: {level:.1} dB are left");
        }
    }
}

#[test]
fn channels_are_mixed_or_chosen() {
    let frames: Vec<f32> = (0..8).map(|value| value as f32 / 8.0).collect();
    let make = |channel| {
        let mut mono = Mono::new(8000, 2, 8000, channel)?;
        let mut out = Vec::new();
        mono.push(&frames, &mut out)?;
        mono.finish(&mut out)?;
        Ok::<_, base::Error>(out)
    };
    assert_eq!(make(Channel::Mix).unwrap(), [0.0625, 0.3125, 0.5625, 0.8125]);
    assert_eq!(make(Channel::Only(1)).unwrap(), [0.125, 0.375, 0.625, 0.875]);
    assert!(make(Channel::Only(2)).unwrap_err().message().contains("there is no channel 2"));
    assert!(Mono::new(0, 1, 16000, Channel::Mix).is_err());
    assert!(Mono::new(900_000, 1, 16000, Channel::Mix).is_err());
}
