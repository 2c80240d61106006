//! Recordings through models that are closures.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{CarriedInput, Error, ErrorKind, NamedTensor, Result, Tensor};
use millpond_audio::AudioModel;
use millpond_audio::decode::AudioInput;
use millpond_audio::pipeline::{PipelineEvent, PipelineOptions, embed, recognise};
use millpond_audio::recogniser::Recogniser;
use millpond_audio::speakers::Speakers;
use proptest::prelude::*;

use crate::fake::*;

fn hear_bursts(seconds: f64, recogniser: &Recogniser, model: Fake, runs: usize) -> Heard {
    let model: Arc<dyn AudioModel> = Arc::new(model);
    hear(sound(&bursts(seconds)), recogniser, &model, &in_flight(runs)).unwrap()
}

#[test]
fn bursts_are_found_at_their_times() {
    let heard = hear_bursts(17.0, &events(""), energy_detector(Answers::AtOnce), 4);
    assert_eq!(heard.labels.len(), 10);
    for (number, label) in heard.labels.iter().enumerate() {
        let start = 1.7 * number as f64 + 0.4;
        let end = start + 0.5 + 0.02 * number as f64;
        // A window and the padding.
        assert!(
            (label.start - start).abs() < 0.063 && (label.end - end).abs() < 0.063,
            "{label:?}"
        );
        assert_eq!(label.text, "0");
    }
    assert_eq!(heard.summary.seconds, 17.0);
    assert_eq!(heard.summary.windows, (17 * u64::from(RATE)).div_ceil(512));
    assert!(!heard.summary.partial);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn labels_do_not_depend_on_the_sizes_of_runs_and_pieces(
        most in 64usize..20_000,
        runs in 1usize..9,
        batch in 1usize..50,
        seconds in 0.1f64..8.0,
    ) {
        let expected = hear_bursts(seconds, &events("batch = 1"), energy_detector(Answers::AtOnce), 1);
        let model: Arc<dyn AudioModel> = Arc::new(energy_detector(Answers::OutOfOrder));
        let (input, _) = upload(&bursts(seconds), most, Duration::ZERO);
        let heard = hear(input, &events(&format!("batch = {batch}")), &model, &in_flight(runs)).unwrap();
        prop_assert_eq!(heard, expected);
    }
}

#[test]
fn memory_is_bounded_for_any_length() {
    let ahead = |seconds: f64| {
        let (input, read) = upload(&bursts(seconds), 4096, Duration::ZERO);
        let most = Arc::new(AtomicUsize::new(0));
        let mut fake = energy_detector(Answers::OutOfOrder);
        let (inner, counts, seen) = (fake.run.clone(), fake.counts.clone(), most.clone());
        let answered = counts.clone();
        fake.run = Arc::new(move |inputs: &[NamedTensor], number| {
            let answered = answered.windows_answered.load(Ordering::SeqCst) * 512;
            seen.fetch_max(
                (read.load(Ordering::SeqCst) / 4).saturating_sub(answered),
                Ordering::SeqCst,
            );
            inner(inputs, number)
        });
        let model: Arc<dyn AudioModel> = Arc::new(fake);
        hear(input, &events("batch = 4"), &model, &in_flight(3)).unwrap();
        assert!(counts.under_way_max.load(Ordering::SeqCst) <= 3);
        assert!(counts.windows_of_run_max.load(Ordering::SeqCst) <= 4);
        most.load(Ordering::SeqCst)
    };
    let (short, long) = (ahead(20.0), ahead(90.0));
    // The open batches, those in flight, and the decoder's read-ahead.
    let most = 8 * 4 * 512 + 65_536;
    assert!(long <= most, "{short} samples ahead in a short recording, {long} in a long one");
}

/// A model with a state inside: each stream records the windows that it sees, and outputs 1 once it
/// has seen `needs`.
fn counting(needs: usize, seen: Arc<Mutex<Vec<Vec<f32>>>>, answers: Answers) -> Fake {
    let stream = move |carried: Vec<CarriedInput>, _: usize| {
        assert!(carried.is_empty());
        let mut all = seen.lock().unwrap();
        let (stream, seen, busy) = (all.len(), seen.clone(), AtomicBool::new(false));
        all.push(Vec::new());
        let run = move |inputs: &[NamedTensor], _: usize| {
            assert!(!busy.swap(true, Ordering::SeqCst), "one run of a stream at a time");
            let mut all = seen.lock().unwrap();
            let each = windows(inputs).into_iter().map(|window| {
                all[stream].push(window[0]);
                if all[stream].len() > needs { 1.0 } else { 0.0 }
            });
            let answer = column(each.collect());
            busy.store(false, Ordering::SeqCst);
            answer
        };
        Ok(Arc::new(plain(answers, run)) as Arc<dyn AudioModel>)
    };
    Fake { stateful: true, stream: Some(Box::new(stream)), ..energy_detector(answers) }
}

/// Each window's samples encode its number.
fn numbered(windows: usize) -> Vec<f32> {
    (0..windows * 512).map(|n| (n / 512) as f32 / 1000.0).collect()
}

#[test]
fn pieces_with_a_state_start_early_and_join_without_a_seam() {
    // 50 windows a piece and 10 before it, in runs of 7.
    let text = "batch = 7\n[pieces]\nlength = \"1600ms\"\nlead-in = \"320ms\"\n[events]\nmin = \"0s\"\npad = \"0s\"";
    for (answers, runs) in
        [(Answers::AtOnce, 1), (Answers::OutOfOrder, 1), (Answers::OutOfOrder, 4)]
    {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let model: Arc<dyn AudioModel> = Arc::new(counting(10, seen.clone(), answers));
        let heard = hear(sound(&numbered(333)), &events(text), &model, &in_flight(runs)).unwrap();
        // Only the first windows have nothing before them.
        assert_eq!(heard.labels.len(), 1, "{:?}", heard.labels);
        assert_eq!((heard.labels[0].start, heard.labels[0].end), (10.0 * 0.032, 333.0 * 0.032));
        assert_eq!(heard.summary.windows, 333);
        let mut firsts = Vec::new();
        for stream in seen.lock().unwrap().iter() {
            let numbers: Vec<usize> =
                stream.iter().map(|first| (first * 1000.0).round() as usize).collect();
            let first = numbers[0];
            assert!(
                numbers.iter().copied().eq(first..first + numbers.len()),
                "in order: {numbers:?}"
            );
            firsts.push((first, first + numbers.len()));
        }
        firsts.sort_unstable();
        let expected: Vec<_> =
            (0..7usize).map(|p| ((p * 50).saturating_sub(10), (p * 50 + 50).min(333))).collect();
        assert_eq!(firsts, expected);
    }
}

#[test]
fn reading_is_not_far_ahead_of_runs() {
    // 400 windows per piece, one run at once: while a piece runs, another may be opened, but both
    // are never complete.
    let text = "batch = 8\n[pieces]\nlength = \"12800ms\"\nlead-in = \"320ms\"\n";
    let (input, read) = upload(&numbered(2000), 4096, Duration::ZERO);
    let most = Arc::new(AtomicUsize::new(0));
    let (seen, answered) = (most.clone(), Arc::new(AtomicUsize::new(0)));
    let stream = move |_: Vec<CarriedInput>, _: usize| {
        let (read, answered, seen) = (read.clone(), answered.clone(), seen.clone());
        let run = move |inputs: &[NamedTensor], _: usize| {
            let count = windows(inputs).len();
            let done = answered.fetch_add(count, Ordering::SeqCst) * 512;
            seen.fetch_max(
                (read.load(Ordering::SeqCst) / 4).saturating_sub(done),
                Ordering::SeqCst,
            );
            column(vec![0.0; count])
        };
        Ok(Arc::new(plain(Answers::OutOfOrder, run)) as Arc<dyn AudioModel>)
    };
    let fake = energy_detector(Answers::OutOfOrder);
    let model: Arc<dyn AudioModel> =
        Arc::new(Fake { stateful: true, stream: Some(Box::new(stream)), ..fake });
    hear(input, &events(text), &model, &in_flight(1)).unwrap();
    // A piece with its lead-in, a run, and the decoder's read-ahead.
    let (most, allowed) = (most.load(Ordering::SeqCst), (410 + 8) * 512 + 65_536);
    assert!(most <= allowed, "{most} samples ahead instead of {allowed}");
}

/// One step of a model with a decaying state, which is an output and an input.
fn decay(inputs: &[NamedTensor]) -> Result<Vec<NamedTensor>> {
    let mut state =
        inputs.iter().find(|input| &*input.name == "h").unwrap().tensor.to_vec::<f32>()?[0];
    let step = |window: Vec<f32>| {
        state = 0.5 * state + energy(&window);
        (state / 2.0).min(1.0)
    };
    let mut outputs = column(windows(inputs).into_iter().map(step).collect())?;
    outputs.push(NamedTensor::new("hn", Tensor::from_vec([1usize, 1].as_slice(), vec![state])?));
    Ok(outputs)
}

/// Returns `decay` as a model that can be run as a stream.
fn decaying() -> Fake {
    let stream = |carried: Vec<CarriedInput>, _: usize| {
        let state = Mutex::new(carried[0].initial.clone());
        let run = move |inputs: &[NamedTensor], _: usize| {
            let mut state = state.lock().unwrap();
            let outputs = decay(&[inputs[0].clone(), NamedTensor::new("h", state.clone())])?;
            *state = outputs[1].tensor.clone();
            Ok(outputs)
        };
        Ok(Arc::new(plain(Answers::OutOfOrder, run)) as Arc<dyn AudioModel>)
    };
    let inputs = vec![spec("x", &[-1, -1]), spec("h", &[1, 1])];
    let outputs = vec![spec("y", &[-1, 1]), spec("hn", &[1, 1])];
    let whole = fake(inputs, outputs, Answers::OutOfOrder, |inputs, _| decay(inputs));
    Fake { stream: Some(Box::new(stream)), ..whole }
}

const STATE: &str = "[state]\nh = { output = \"hn\", shape = [1, 1] }\n";

#[test]
fn labels_with_a_state_are_equal_in_streams_and_sequences() {
    let pieces = |length: &str| format!("[pieces]\nlength = \"{length}\"\nlead-in = \"1s\"\n");
    let hear = |text: String| hear_bursts(20.0, &events(&text), decaying(), 3).labels;
    let whole = hear(format!("batch = 8\n{STATE}{}", pieces("60s")));
    assert!(whole.len() > 5);
    for length in ["3s", "7s", "60s"] {
        let pieces = pieces(length);
        assert_eq!(hear(format!("batch = 8\n{STATE}{pieces}")), whole, "streams");
        assert_eq!(
            hear(format!("sequence = true\nconstants = {{ h = 0 }}\n{pieces}")),
            whole,
            "one run a piece"
        );
        assert_eq!(
            hear(format!("sequence = true\nbatch = 8\n{STATE}{pieces}")),
            whole,
            "runs of a sequence"
        );
    }
}

/// Outputs 1 from a lane's 11th window on. A window's samples encode its number, and each lane must
/// see them in order.
fn counting_in_lanes(lanes_wanted: usize) -> Fake {
    let stream = move |_: Vec<CarriedInput>, lanes: usize| {
        assert_eq!(lanes, lanes_wanted);
        let seen: Mutex<Vec<Vec<usize>>> = Mutex::new(vec![Vec::new(); lanes]);
        let run = move |inputs: &[NamedTensor], _: usize| {
            let mut seen = seen.lock().unwrap();
            let windows = windows(inputs);
            assert_eq!(windows.len() % lanes, 0);
            let answers = windows.iter().enumerate().map(|(row, window)| {
                let (own, number) = (&mut seen[row % lanes], (window[0] * 1000.0).round() as usize);
                // Zeros after the end of a lane that is shorter.
                let next = own.last().is_none_or(|last| number == last + 1 || number == 0);
                assert!(next, "{number} after {own:?}");
                own.push(number);
                if own.len() > 10 { 1.0 } else { 0.0 }
            });
            column(answers.collect())
        };
        Ok(Arc::new(plain(Answers::OutOfOrder, run)) as Arc<dyn AudioModel>)
    };
    Fake { stateful: true, stream: Some(Box::new(stream)), ..energy_detector(Answers::OutOfOrder) }
}

#[test]
fn pieces_in_lanes_equal_single_pieces() {
    for (windows, lanes, used) in [(333, 3, 3), (333, 8, 7), (1000, 8, 8), (40, 8, 1), (801, 4, 4)]
    {
        for runs in [1, 4] {
            let text = format!(
                "batch = 7\n[pieces]\nlength = \"1600ms\"\nlead-in = \"320ms\"\nlanes = {lanes}\n[events]\n\
                 min = \"0s\"\npad = \"0s\""
            );
            let model: Arc<dyn AudioModel> = Arc::new(counting_in_lanes(used));
            let heard =
                hear(recording(&numbered(windows)), &events(&text), &model, &in_flight(runs))
                    .unwrap();
            let spans: Vec<_> = heard.labels.iter().map(|label| (label.start, label.end)).collect();
            assert_eq!(
                spans,
                [(10.0 * 0.032, windows as f64 * 0.032)],
                "{windows} windows in {lanes} lanes"
            );
        }
    }
}

#[test]
fn an_arriving_recording_has_one_lane() {
    let text =
        "[pieces]\nlength = \"1600ms\"\nlead-in = \"320ms\"\nlanes = 8\n[events]\nmin = \"0s\"";
    let model: Arc<dyn AudioModel> = Arc::new(counting_in_lanes(1));
    assert_eq!(
        hear(sound(&numbered(333)), &events(text), &model, &in_flight(2)).unwrap().labels.len(),
        1
    );
}

#[test]
fn labels_come_while_an_upload_runs() {
    let samples = bursts(20.0);
    for (text, model) in [
        ("batch = 8\n".to_owned(), energy_detector(Answers::OutOfOrder)),
        (format!("batch = 4\n{STATE}"), decaying()),
    ] {
        let model: Arc<dyn AudioModel> = Arc::new(model);
        // Returns true if a label comes before half of the recording has arrived. The whole
        // recording is shorter than a piece. Half of the upload takes more than a second.
        let is_early = || {
            let (input, read) = upload(&samples, 4096, Duration::from_millis(8));
            let mut first = None;
            let mut done = 0.0f64;
            recognise(input, None, &events(&text), &model, &in_flight(2), &mut |event| {
                match event {
                    PipelineEvent::Label(_) => {
                        first.get_or_insert(read.load(Ordering::SeqCst));
                    }
                    PipelineEvent::Progress { seconds, .. } => done = done.max(seconds),
                    _ => {}
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(done, 20.0);
            first.unwrap() < samples.len() * 4 / 2
        };
        // A pipeline that loses its core for more than a second is behind the upload.
        assert!((0..5).any(|_| is_early()), "{text}");
    }
}

#[test]
fn failed_runs_are_faults_and_the_others_continue() {
    for answers in [Answers::AtOnce, Answers::OutOfOrder] {
        let mut fake = energy_detector(answers);
        let inner = fake.run.clone();
        fake.run = Arc::new(move |inputs: &[NamedTensor], number| match number % 7 {
            6 => Err(Error::internal("no luck")),
            _ => inner(inputs, number),
        });
        let heard = hear_bursts(30.0, &events("batch = 10"), fake, 3);
        assert_eq!(heard.summary.faults, heard.summary.windows.div_ceil(10) / 7);
        assert!(heard.summary.partial);
        let fault = &heard.faults[0];
        assert!((fault.at - 60.0 * 0.032).abs() < 1e-9, "{fault:?}");
        assert_eq!(fault.what, "10 windows could not be recognised: no luck");
        assert!(heard.labels.len() > 10);
        let lost = 60.0 * 0.032 + 0.031..70.0 * 0.032 - 0.031;
        assert!(
            heard.labels.iter().all(|label| label.end <= lost.start || label.start >= lost.end)
        );
    }
}

#[test]
fn faults_of_windows_that_overlap_are_in_order_too() {
    let every_other = |inputs: &[NamedTensor], number: usize| match number % 3 {
        2 => Err(Error::internal("no luck")),
        _ => column((0..windows(inputs).len()).map(|window| (window % 2) as f32).collect()),
    };
    let text = "hop = 64\nbatch = 7\n[events]\nmin = \"0s\"\npad = \"0s\"\ngap = \"0s\"";
    let heard = hear_bursts(10.0, &events(text), plain(Answers::AtOnce, every_other), 3);
    assert!(heard.labels.len() > 500 && heard.faults.len() > 50);
}

#[test]
fn a_stream_that_fails_is_replaced_by_a_fresh_one() {
    let streams = Arc::new(AtomicUsize::new(0));
    let made = streams.clone();
    let stream = move |_: Vec<CarriedInput>, _: usize| {
        let number = made.fetch_add(1, Ordering::SeqCst);
        let run = move |inputs: &[NamedTensor], run: usize| match (number, run) {
            (0, 2) => Err(Error::unavailable("this version has gone")),
            (0, later) if later > 2 => panic!("a stream that failed must not be used again"),
            _ => column(vec![1.0; windows(inputs).len()]),
        };
        Ok(Arc::new(plain(Answers::AtOnce, run)) as Arc<dyn AudioModel>)
    };
    let fake = energy_detector(Answers::AtOnce);
    let fake = Fake { stateful: true, stream: Some(Box::new(stream)), ..fake };
    let heard =
        hear_bursts(5.0, &events("batch = 10\n[events]\npad = \"0s\"\nmin = \"0s\""), fake, 2);
    assert_eq!(streams.load(Ordering::SeqCst), 2);
    assert_eq!(heard.faults.len(), 1);
    let spans: Vec<_> = heard.labels.iter().map(|label| (label.start, label.end)).collect();
    assert_eq!(spans, [(0.0, 20.0 * 0.032), (30.0 * 0.032, 5.0)]);
}

#[test]
fn a_model_that_always_fails_ends_the_work() {
    for seconds in [1.0, 60.0] {
        let fake = plain(Answers::OutOfOrder, |_, _| Err(Error::exhausted("no memory")));
        let counts = fake.counts.clone();
        let model: Arc<dyn AudioModel> = Arc::new(fake);
        let error = hear(sound(&bursts(seconds)), &events(""), &model, &in_flight(2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert!(counts.runs.load(Ordering::SeqCst) < 12);
    }
}

#[test]
fn a_stop_ends_a_wait_for_missing_outputs() {
    let model: Arc<dyn AudioModel> = Arc::new(energy_detector(Answers::Never));
    let options = PipelineOptions::default();
    let stop = options.stop.clone();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::SeqCst);
    });
    let error = hear(sound(&bursts(60.0)), &events(""), &model, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    stopper.join().unwrap();
}

#[test]
fn a_sink_that_fails_ends_the_work() {
    let model: Arc<dyn AudioModel> = Arc::new(energy_detector(Answers::AtOnce));
    let mut sink = |event: PipelineEvent| match event {
        PipelineEvent::Label(_) => Err(Error::cancelled("the client has gone")),
        _ => Ok(()),
    };
    let input = sound(&bursts(10.0));
    let error = recognise(input, None, &events(""), &model, &in_flight(2), &mut sink).unwrap_err();
    assert_eq!(error.message(), "the client has gone");
}

#[test]
fn a_misfit_model_is_an_error_and_no_fault() {
    let one_more = |inputs: &[NamedTensor], _: usize| column(vec![0.0; windows(inputs).len() + 1]);
    let model: Arc<dyn AudioModel> = Arc::new(plain(Answers::AtOnce, one_more));
    let error = hear(sound(&bursts(3.0)), &events(""), &model, &in_flight(2)).unwrap_err();
    assert!(error.message().contains("cannot be read as 32 windows"), "{error}");

    let text = "sequence = true\n";
    let model: Arc<dyn AudioModel> = Arc::new(counting(0, Arc::default(), Answers::AtOnce));
    let error = hear(sound(&bursts(3.0)), &events(text), &model, &in_flight(2)).unwrap_err();
    assert!(error.message().contains("sequence"), "{error}");

    let model: Arc<dyn AudioModel> = Arc::new(decaying());
    let error = hear(sound(&bursts(3.0)), &events(""), &model, &in_flight(2)).unwrap_err();
    assert!(error.message().contains("also takes \"h\""), "{error}");
}

#[test]
fn windows_are_laid_out_as_the_axes_say() {
    let text = "kind = \"scenes\"\nrate = 16000\nwindow = 4\naxes = \"n1ft\"\nbatch = 3\n[features]\nkind = \"mel\"\n\
                fft = 512\nhop = 160\nmels = 8\n";
    let seen = |text: &str, dims: &[i64]| {
        let all: Arc<Mutex<Vec<Vec<f32>>>> = Arc::default();
        let mine = all.clone();
        let run = move |inputs: &[NamedTensor], _: usize| {
            let each = windows(inputs);
            let count = each.len();
            mine.lock().unwrap().extend(each);
            column(vec![0.5; count])
        };
        let fake = fake(vec![spec("x", dims)], vec![spec("y", &[-1, 1])], Answers::AtOnce, run);
        let model: Arc<dyn AudioModel> = Arc::new(fake);
        let recogniser = Recogniser::parse("mel", text).unwrap();
        hear(sound(&bursts(1.0)), &recogniser, &model, &in_flight(1)).unwrap();
        let all = all.lock().unwrap();
        all.clone()
    };
    let (turned, straight) =
        (seen(text, &[-1, 1, 8, 4]), seen(&text.replace("n1ft", "ntf"), &[-1, 4, 8]));
    assert_eq!(turned.len(), straight.len());
    for (turned, straight) in turned.iter().zip(&straight) {
        for (t, f) in (0..4).flat_map(|t| (0..8).map(move |f| (t, f))) {
            assert_eq!(turned[f * 4 + t], straight[t * 8 + f]);
        }
    }
}

#[test]
fn a_model_of_fixed_batch_gets_full_batches() {
    let mut fixed = energy_detector(Answers::AtOnce);
    fixed.signature.inputs = vec![spec("x", &[5, 512])];
    let heard = hear_bursts(10.0, &events(""), fixed, 2);
    assert_eq!(heard, hear_bursts(10.0, &events(""), energy_detector(Answers::AtOnce), 2));
}

/// Gives the mean and the loudness of a window as its embedding.
fn voiceprint() -> Arc<dyn AudioModel> {
    let run = |inputs: &[NamedTensor], _: usize| {
        let each = windows(inputs);
        let vector = |w: &Vec<f32>| [w.iter().sum::<f32>() / w.len() as f32 + 1e-6, energy(w)];
        let values: Vec<f32> = each.iter().flat_map(vector).collect();
        Ok(vec![NamedTensor::new("y", Tensor::from_vec([each.len(), 2].as_slice(), values)?)])
    };
    Arc::new(plain(Answers::OutOfOrder, run))
}

#[test]
fn an_embedding_of_a_damaged_recording_is_partial() {
    let text = "kind = \"embeddings\"\nrate = 16000\nwindow = 1600\nhop = 800\n";
    let recogniser = Recogniser::parse("voice", text).unwrap();
    let mut bytes = wav(&vec![0.5; 32_000]);
    // One of two seconds, 4 bytes a sample.
    bytes.truncate(bytes.len() - 64_000);
    let input = AudioInput::Stream(Box::new(std::io::Cursor::new(bytes)));
    let summary = embed(input, None, &recogniser, &voiceprint(), &in_flight(2)).unwrap().summary;
    assert!(summary.partial && (summary.seconds - 1.0).abs() < 1e-6, "{summary:?}");
}

#[test]
fn trimmed_frames_at_the_end_are_covered() {
    let text = "kind = \"events\"\nrate = 16000\nwindow = 1600\nhop = 960\n[output]\ntrim = [2, 2]\n[events]\n\
                min = \"0ms\"\ngap = \"0ms\"\npad = \"0ms\"\n";
    let recogniser = Recogniser::parse("t", text).unwrap();
    let run = |inputs: &[NamedTensor], _: usize| {
        let all = windows(inputs);
        let loud = |window: &Vec<f32>| -> Vec<f32> {
            window.chunks(160).map(|frame| f32::from(u8::from(frame[0] > 0.4))).collect()
        };
        let values: Vec<f32> = all.iter().flat_map(loud).collect();
        Ok(vec![NamedTensor::new("y", Tensor::from_vec([all.len(), 10, 1].as_slice(), values)?)])
    };
    let inputs = vec![spec("x", &[-1, -1])];
    let model: Arc<dyn AudioModel> =
        Arc::new(fake(inputs, vec![spec("y", &[-1, 10, 1])], Answers::AtOnce, run));
    // One whole window, and an end that the frames of two further windows cover.
    for (quiet, loud, count) in [(1280, 320, 2), (2240, 260, 3)] {
        let samples = [vec![0.0; quiet], vec![0.5; loud]].concat();
        let heard = hear(sound(&samples), &recogniser, &model, &in_flight(1)).unwrap();
        assert_eq!((heard.labels.len(), heard.summary.windows), (1, count), "{heard:?}");
        let label = &heard.labels[0];
        assert!((label.start - quiet as f64 / 16_000.0).abs() < 1e-6, "{label:?}");
        assert_eq!(label.end, heard.summary.seconds);
    }
}

#[test]
fn one_embedding_for_a_recording_ignores_silence() {
    let text = "kind = \"embeddings\"\nrate = 16000\nwindow = 1600\nhop = 800\n";
    let recogniser = Recogniser::parse("voice", text).unwrap();
    let steady = |level: f32, seconds: usize| vec![level; seconds * 16_000];
    let samples = [steady(0.0, 3), steady(0.5, 4), steady(0.0, 2)].concat();
    let embedding =
        embed(sound(&samples), None, &recogniser, &voiceprint(), &in_flight(2)).unwrap();
    assert!(!embedding.summary.partial);
    let vector = embedding.vector;
    assert!((vector[0] * vector[0] + vector[1] * vector[1] - 1.0).abs() < 1e-6);
    // The loud windows only: 0.5, and three times 0.5 cut at 1.
    assert!((vector[1] / vector[0] - 2.0).abs() < 0.05, "{vector:?}");

    let error =
        embed(sound(&steady(0.0, 3)), None, &recogniser, &voiceprint(), &in_flight(2)).unwrap_err();
    assert!(error.message().contains("-50 dB"), "{error}");
    let error = embed(sound(&[]), None, &recogniser, &voiceprint(), &in_flight(2)).unwrap_err();
    assert!(error.message().contains("no samples"), "{error}");
    assert!(embed(sound(&samples), None, &events(""), &voiceprint(), &in_flight(2)).is_err());

    let speakers = Speakers::in_memory();
    speakers.enrol("steady", &vector).unwrap();
    let options = PipelineOptions { speakers: Some(speakers), embeddings: true, ..in_flight(2) };
    let heard = hear(sound(&samples), &recogniser, &voiceprint(), &options).unwrap();
    assert_eq!(heard.labels.len(), 1, "{:?}", heard.labels);
    let label = &heard.labels[0];
    assert_eq!(label.text, "steady");
    assert!((label.start - 3.0).abs() < 0.06 && (label.end - 7.0).abs() < 0.06, "{label:?}");
    assert!(label.score > 0.99 && label.embedding.is_some());
}
