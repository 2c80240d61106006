//! Labels against naive references, and events against those of Silero's package for the same
//! probabilities.

mod golden;
mod reference;

use proptest::prelude::*;
use reference::{Span, naive};

use super::*;
use crate::speakers::Speakers;

/// A recogniser of raw windows of 512 samples at 16 kHz.
fn recogniser(more: &str) -> Recogniser {
    Recogniser::parse("test", more).unwrap()
}

fn events(window: u64, rule: &str) -> Recogniser {
    recogniser(&format!("kind = \"events\"\nrate = 16000\nwindow = {window}\n[events]\n{rule}"))
}

/// Adds windows of one frame, in order, the last one partly padding; checks what settles on the
/// way.
fn labels(recogniser: &Recogniser, windows: &[Option<Vec<f32>>], samples: u64) -> Vec<Label> {
    labels_with(recogniser, windows, samples, None)
}

fn labels_with(
    recogniser: &Recogniser,
    windows: &[Option<Vec<f32>>],
    samples: u64,
    speakers: Option<Speakers>,
) -> Vec<Label> {
    let mut post = Labeller::new(recogniser, true, speakers);
    let (mut found, mut settled) = (Vec::new(), 0.0);
    let window_samples = recogniser.spec.window as u64;
    for (window, values) in windows.iter().enumerate() {
        let Some(values) = values else { continue };
        let window = window as u64;
        let left = samples - window * recogniser.spec.hop as u64;
        let (real, level) = (left.min(window_samples) as usize, -20.0);
        let (classes, before) = (values.len(), found.len());
        let frames = WindowScores { window, real, level, frames: 1, classes, values, onsets: None };
        post.add_window(frames, &mut found).unwrap();
        assert!(
            found[before..].iter().all(|label| label.start >= settled),
            "{found:?} before {settled}"
        );
        assert!(post.settled() >= settled);
        settled = post.settled();
    }
    let before = found.len();
    post.finish(samples, windows.len() as u64, &mut found);
    assert!(found[before..].iter().all(|label| label.start >= settled));
    let end = samples as f64 / f64::from(recogniser.rate);
    assert!(
        found.iter().all(|label| label.start < label.end && label.end <= end),
        "{found:?} past {end}"
    );
    found
}

fn spans(labels: &[Label], rate: f64) -> Vec<Span> {
    let sample = |seconds: f64| (seconds * rate).round() as u64;
    labels.iter().map(|label| (sample(label.start), sample(label.end))).collect()
}

#[test]
fn a_value_that_is_no_number_does_not_outlive_its_frame() {
    let mut smooth = super::smooth::MovingMean::new(3, 1);
    let mut found = Vec::new();
    let mut each = |_: u64, means: &[f32], _: Option<&[f32]>| found.push(means[0]);
    for (at, value) in [1.0, f32::NAN, 1.0, 1.0, 1.0, 1.0].into_iter().enumerate() {
        smooth.push(at as u64, &[value], None, &mut each);
    }
    smooth.finish(&mut each);
    assert!(found[3..].iter().all(|mean| (mean - 1.0).abs() < 1e-6), "{found:?}");
}

#[test]
fn an_event_ends_where_the_scores_are_no_numbers() {
    let recogniser = events(512, "min = \"0ms\"\ngap = \"64ms\"\npad = \"0ms\"\n");
    let values = [[0.9; 2].as_slice(), &[f32::NAN; 6], &[0.0; 4]].concat();
    let windows: Vec<_> = values.iter().map(|value| Some(vec![*value])).collect();
    let found = labels(&recogniser, &windows, 12 * 512);
    assert_eq!(spans(&found, 16000.0), [(0, 2 * 512)]);
    assert!((found[0].score - 0.9).abs() < 1e-6);
}

#[test]
fn events_are_those_of_the_package() {
    for case in golden::CASES {
        let off = case.off.map_or(String::new(), |off| format!("off = {off}\n"));
        let window = if case.rate == 16000 { 512 } else { 256 };
        let recogniser = recogniser(&format!(
            "kind = \"events\"\nrate = {}\nwindow = {window}\n[events]\non = {}\n{off}min = \"{}ms\"\ngap = \
             \"{}ms\"\npad = \"{}ms\"\n",
            case.rate, case.on, case.min, case.gap, case.pad
        ));
        let windows: Vec<_> =
            golden::probabilities(case.seed, 400).into_iter().map(|p| Some(vec![p])).collect();
        let found = labels(&recogniser, &windows, case.samples);
        assert_eq!(spans(&found, f64::from(case.rate)), case.spans, "seed {}", case.seed);
    }
}

/// Probabilities as models produce them: stretches high, low and in between.
fn probabilities() -> impl Strategy<Value = Vec<f32>> {
    let stretch =
        (prop_oneof![0f32..0.3, 0.3f32..0.6, 0.6f32..1.0, Just(0.5), Just(0.35)], 1usize..12);
    let wobble = prop::collection::vec(-0.15f32..0.15, 12);
    prop::collection::vec((stretch, wobble), 1..40).prop_map(|stretches| {
        let each = |((level, length), wobble): ((f32, usize), Vec<f32>)| {
            wobble.into_iter().take(length).map(move |w| (level + w).clamp(0.0, 1.0))
        };
        stretches.into_iter().flat_map(each).collect()
    })
}

proptest! {
    #[test]
    fn events_are_those_of_the_naive_rule(
        values in probabilities(),
        (on, off) in (0.3f64..0.8, 0.0f64..0.3),
        (min, gap, pad) in (0u64..400, 0u64..400, 0u64..300),
        (window, tail) in (500u64..=512).prop_flat_map(|window| (Just(window), 1..=window)),
    ) {
        let off = on - off;
        let rule = format!("on = {on}\noff = {off}\nmin = \"{min}ms\"\ngap = \"{gap}ms\"\npad = \"{pad}ms\"\n");
        let recogniser = events(window, &rule);
        let samples = (values.len() as u64 - 1) * window + tail;
        let windows: Vec<_> = values.iter().map(|value| Some(vec![*value])).collect();
        let found = labels(&recogniser, &windows, samples);
        prop_assert_eq!(spans(&found, 16000.0), naive(&values, &recogniser.events, window, samples));
    }

    #[test]
    fn each_class_is_followed_by_itself(
        columns in prop::collection::vec(probabilities(), 1..6),
        holes in prop::collection::vec(0usize..200, 0..5),
    ) {
        let recogniser = events(512, "min = \"60ms\"\npad = \"40ms\"\n");
        let length = columns.iter().map(Vec::len).min().unwrap();
        let samples = length as u64 * 512;
        let rows: Vec<_> = (0..length)
            .map(|t| (!holes.contains(&t)).then(|| columns.iter().map(|c| c[t]).collect::<Vec<f32>>()))
            .collect();
        // Silence replaces a missing window.
        let column = |class: usize| -> Vec<f32> {
            rows.iter().map(|row| row.as_ref().map_or(0.0, |row| row[class])).collect()
        };
        let found = labels(&recogniser, &rows, samples);
        if rows.iter().any(Option::is_some) {
            for class in 0..columns.len() {
                let name = class.to_string();
                let mine: Vec<Label> = found.iter().filter(|label| label.text == name).cloned().collect();
                prop_assert_eq!(spans(&mine, 16000.0), naive(&column(class), &recogniser.events, 512, samples));
            }
        }
    }

    #[test]
    fn the_moving_mean_is_the_mean(values in probabilities(), width in 1usize..20) {
        let mut smooth = super::smooth::MovingMean::new(width, 1);
        let mut found = Vec::new();
        let mut each = |at: u64, means: &[f32], _: Option<&[f32]>| found.push((at, means[0]));
        for (at, value) in values.iter().enumerate() {
            smooth.push(at as u64, &[*value], None, &mut each);
        }
        smooth.finish(&mut each);
        prop_assert_eq!(found.len(), values.len());
        for (index, (at, mean)) in found.into_iter().enumerate() {
            prop_assert_eq!(at, index as u64);
            let range = index.saturating_sub(width / 2)..(index + (width - 1) / 2 + 1).min(values.len());
            let naive = values[range.clone()].iter().sum::<f32>() / range.len() as f32;
            prop_assert!((mean - naive).abs() < 1e-5, "{} at {}: {} and {}", width, index, mean, naive);
        }
    }
}

#[test]
fn an_event_has_the_mean_of_its_frames() {
    let recogniser = events(512, "min = \"0ms\"\ngap = \"64ms\"\npad = \"100ms\"\n");
    let values = [0.0, 0.8, 0.6, 0.4, 0.7, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1];
    let windows: Vec<_> = values.iter().map(|value| Some(vec![*value])).collect();
    let found = labels(&recogniser, &windows, 11 * 512);
    assert_eq!(found.len(), 1);
    assert!((found[0].score - 2.5 / 4.0).abs() < 1e-6, "{found:?}");
}

#[test]
fn a_rising_onset_starts_a_new_event() {
    let recogniser =
        events(512, "min = \"0ms\"\npad = \"0ms\"\nonset = { output = \"o\", on = 0.5 }\n");
    let mut post = Labeller::new(&recogniser, false, None);
    let mut found = Vec::new();
    for (window, onset) in [0.9, 0.1, 0.1, 0.7, 0.8, 0.1, 0.9].into_iter().enumerate() {
        let (values, onsets) = ([0.9f32], [onset]);
        let frames = WindowScores {
            window: window as u64,
            real: 512,
            level: 0.0,
            frames: 1,
            classes: 1,
            values: &values,
            onsets: Some(&onsets),
        };
        post.add_window(frames, &mut found).unwrap();
    }
    post.finish(7 * 512, 7, &mut found);
    assert_eq!(spans(&found, 16000.0), [(0, 3 * 512), (3 * 512, 6 * 512), (6 * 512, 7 * 512)]);
}

#[test]
fn frames_of_overlapping_windows_join() {
    // Ten frames a window, two of them dropped at each end; windows overlap by four frames.
    let text = "kind = \"events\"\nrate = 1000\nwindow = 100\nhop = 60\n[output]\ntrim = [2, 2]\n[events]\nmin = \
                \"0ms\"\ngap = \"0ms\"\npad = \"0ms\"\n";
    let recogniser = recogniser(text);
    let mut post = Labeller::new(&recogniser, false, None);
    let mut found = Vec::new();
    for window in 0..5u64 {
        let values = [1.0f32; 6];
        let frames = WindowScores {
            window,
            real: 100,
            level: 0.0,
            frames: 6,
            classes: 1,
            values: &values,
            onsets: None,
        };
        post.add_window(frames, &mut found).unwrap();
    }
    post.finish(340, 5, &mut found);
    assert_eq!(spans(&found, 1000.0), [(20, 340)]);
    // Without trimming they would not.
    let untrimmed = Recogniser::parse("t", &text.replace("[2, 2]", "[0, 0]")).unwrap();
    let values = [1.0f32; 10];
    let frames = WindowScores {
        window: 0,
        real: 100,
        level: 0.0,
        frames: 10,
        classes: 1,
        values: &values,
        onsets: None,
    };
    let error = Labeller::new(&untrimmed, false, None).add_window(frames, &mut found).unwrap_err();
    assert!(error.message().contains("trim"), "{error}");
}

fn said(labels: &[Label]) -> Vec<(&str, f64, f64)> {
    labels.iter().map(|label| (label.text.as_str(), label.start, label.end)).collect()
}

#[test]
fn scenes_are_likeliest_classes_with_neighbours_merged() {
    let text = "kind = \"scenes\"\nrate = 1000\nwindow = 1000\n[output]\nclasses = [\"a\", \"b\", \"c\"]\n[scenes]\n\
                threshold = 0.3\n";
    let rows =
        [[0.9, 0.5, 0.0], [0.7, 0.5, 0.0], [0.1, 0.6, 0.4], [0.1, 0.1, 0.1], [0.2, 0.3, 0.1]];
    let mut windows: Vec<_> = rows.iter().map(|row| Some(row.to_vec())).collect();
    let one = labels(&recogniser(text), &windows, 4300);
    assert_eq!(said(&one), [("a", 0.0, 2.0), ("b", 2.0, 3.0), ("b", 4.0, 4.3)]);
    assert!((one[0].score - 0.8).abs() < 1e-6);

    let two = labels(&recogniser(&text.replace("[scenes]", "[scenes]\ntop = 2")), &windows, 4300);
    let expected = [("a", 0.0, 2.0), ("b", 0.0, 3.0), ("c", 2.0, 3.0), ("b", 4.0, 4.3)];
    let mut sorted = said(&two);
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(b.0)));
    assert_eq!(sorted, expected);

    windows[1] = None;
    let gap = labels(&recogniser(text), &windows, 4300);
    assert_eq!(said(&gap), [("a", 0.0, 1.0), ("b", 2.0, 3.0), ("b", 4.0, 4.3)]);
}

#[test]
fn names_are_checked_against_the_output() {
    let recogniser = recogniser(
        "kind = \"scenes\"\nrate = 1000\nwindow = 1000\n[output]\nclasses = [\"a\", \"b\"]\n",
    );
    let values = [0.1f32; 3];
    let frames = WindowScores {
        window: 0,
        real: 1000,
        level: 0.0,
        frames: 1,
        classes: 3,
        values: &values,
        onsets: None,
    };
    let error =
        Labeller::new(&recogniser, false, None).add_window(frames, &mut Vec::new()).unwrap_err();
    assert!(error.message().contains("3 classes"), "{error}");
    let keys = Recogniser::parse(
        "k",
        "kind = \"events\"\nrate = 1000\nwindow = 1\n[output]\nclasses = { midi = 21 }",
    );
    let keys = keys.unwrap().output.classes.names(88).unwrap();
    assert_eq!((keys[0].as_str(), keys[39].as_str(), keys[87].as_str()), ("A0", "C4", "C8"));
}

#[test]
fn voices_are_the_nearest_speakers() {
    let text = "kind = \"embeddings\"\nrate = 1000\nwindow = 1000\n[embeddings]\nthreshold = 0.9\n";
    let recogniser = recogniser(text);
    let (a, b, c) = (vec![2.0, 0.1], vec![0.0, 3.0], vec![-1.0, -1.0]);
    let windows: Vec<_> = [&a, &a, &b, &c, &b].into_iter().map(|v| Some(v.clone())).collect();
    let voices = labels(&recogniser, &windows, 5000);
    assert_eq!(said(&voices), [("voice", 0.0, 5.0)], "nobody is enrolled");

    let speakers = Speakers::in_memory();
    speakers.enrol("Ada", &[1.0, 0.0]).unwrap();
    speakers.enrol("Bob", &[0.0, 1.0]).unwrap();
    let voices = labels_with(&recogniser, &windows, 5000, Some(speakers.clone()));
    let expected = [("Ada", 0.0, 2.0), ("Bob", 2.0, 3.0), ("unknown", 3.0, 4.0), ("Bob", 4.0, 5.0)];
    assert_eq!(said(&voices), expected);
    let embedding = voices[0].embedding.as_ref().unwrap();
    assert!((embedding.iter().map(|v| v * v).sum::<f32>() - 1.0).abs() < 1e-6);

    // Too much of the last window is padding: the open label continues.
    let voices = labels_with(&recogniser, &windows, 4300, Some(speakers));
    assert_eq!(said(&voices).last(), Some(&("unknown", 3.0, 4.3)));
}

#[test]
fn silent_windows_have_no_speaker() {
    let recogniser = recogniser("kind = \"embeddings\"\nrate = 1000\nwindow = 1000\n");
    let mut post = Labeller::new(&recogniser, false, None);
    let mut mean = mean_of_units(&recogniser);
    let (mut found, mut give) = (Vec::new(), Vec::new());
    for (window, level) in [-20.0, -60.0, -20.0f32].into_iter().enumerate() {
        give.push((window as u64, level, [0.0, if level < -50.0 { -9.0 } else { 2.0 }]));
    }
    for (window, level, values) in &give {
        let (window, level) = (*window, *level);
        let frames =
            WindowScores { window, real: 1000, level, frames: 1, classes: 2, values, onsets: None };
        post.add_window(frames, &mut found).unwrap();
        mean.add_window(frames);
    }
    post.finish(3000, 3, &mut found);
    assert_eq!(said(&found), [("voice", 0.0, 1.0), ("voice", 2.0, 3.0)]);
    assert_eq!(mean.value(), Some(vec![0.0, 1.0]));
    assert_eq!(mean_of_units(&recogniser).value(), None);
}
