//! Models made of closures, and sounds made by formula.

use std::io::{Cursor, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{CarriedInput, DType, Dim, Error, NamedTensor, Result, Signature, Tensor, TensorSpec};
use crossbeam_channel::Sender;
use millpond_audio::decode::AudioInput;
use millpond_audio::pipeline::{AudioSummary, PipelineEvent, PipelineOptions, recognise};
use millpond_audio::recogniser::Recogniser;
use millpond_audio::{AudioModel, Fault, Label, PendingRun};

/// Samples per second of the sounds here.
pub(crate) const RATE: u32 = 16_000;

/// Function of a run: the inputs, and the number of the run.
pub(crate) type Run = dyn Fn(&[NamedTensor], usize) -> Result<Vec<NamedTensor>> + Send + Sync;

/// Makes a stream of a model.
pub(crate) type MakeStream =
    dyn Fn(Vec<CarriedInput>, usize) -> Result<Arc<dyn AudioModel>> + Send + Sync;

/// Delivery of outputs.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Answers {
    /// Before the start returns.
    AtOnce,
    /// From separate threads, which overtake each other.
    OutOfOrder,
    /// Never.
    Never,
}

/// A model that is a closure.
pub(crate) struct Fake {
    pub(crate) signature: Signature,
    pub(crate) run: Arc<Run>,
    pub(crate) answers: Answers,
    pub(crate) stateful: bool,
    pub(crate) stream: Option<Box<MakeStream>>,
    pub(crate) counts: Arc<Counts>,
}

/// Record of a fake model's runs.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) runs: AtomicUsize,
    pub(crate) under_way: AtomicUsize,
    pub(crate) under_way_max: AtomicUsize,
    pub(crate) windows_answered: AtomicUsize,
    pub(crate) windows_of_run_max: AtomicUsize,
    /// Senders of outputs that are never sent.
    kept: Mutex<Vec<Sender<Result<Vec<NamedTensor>>>>>,
}

impl AudioModel for Fake {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn stateful(&self) -> bool {
        self.stateful
    }

    fn start(&self, inputs: Vec<NamedTensor>) -> Result<PendingRun> {
        self.signature.check_inputs(&inputs)?;
        let (sender, pending) = crossbeam_channel::bounded(1);
        let (run, counts, answers) = (self.run.clone(), self.counts.clone(), self.answers);
        let number = counts.runs.fetch_add(1, Ordering::SeqCst);
        let under_way = counts.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        counts.under_way_max.fetch_max(under_way, Ordering::SeqCst);
        let windows = inputs[0].tensor.shape()[0];
        counts.windows_of_run_max.fetch_max(windows, Ordering::SeqCst);
        if answers == Answers::Never {
            counts.kept.lock().unwrap().push(sender);
            return Ok(pending);
        }
        let answer = move || {
            let outputs = run(&inputs, number);
            counts.under_way.fetch_sub(1, Ordering::SeqCst);
            counts.windows_answered.fetch_add(windows, Ordering::SeqCst);
            sender.send(outputs).ok();
        };
        match answers {
            Answers::AtOnce => answer(),
            _ => drop(std::thread::spawn(move || {
                // The earlier of each five takes longer.
                std::thread::sleep(Duration::from_micros(300 * (5 - number as u64 % 5)));
                answer();
            })),
        }
        Ok(pending)
    }

    fn stream(&self, carried: Vec<CarriedInput>, lanes: usize) -> Result<Arc<dyn AudioModel>> {
        match &self.stream {
            Some(stream) => stream(carried, lanes),
            None => Err(Error::unimplemented("no streams")),
        }
    }
}

/// An input or output of floats; -1 is any size.
pub(crate) fn spec(name: &str, dims: &[i64]) -> TensorSpec {
    let dim = |&d: &i64| if d < 0 { Dim::Dynamic(None) } else { Dim::Fixed(d as usize) };
    let shape = Some(dims.iter().map(dim).collect());
    TensorSpec { name: name.into(), dtype: DType::F32, shape, optional: false }
}

/// A model of these inputs and outputs without a state.
pub(crate) fn fake(
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    answers: Answers,
    run: impl Fn(&[NamedTensor], usize) -> Result<Vec<NamedTensor>> + Send + Sync + 'static,
) -> Fake {
    let signature = Signature { inputs, outputs };
    Fake {
        signature,
        run: Arc::new(run),
        answers,
        stateful: false,
        stream: None,
        counts: Arc::default(),
    }
}

/// Windows of samples in, one probability a window out.
pub(crate) fn plain(
    answers: Answers,
    run: impl Fn(&[NamedTensor], usize) -> Result<Vec<NamedTensor>> + Send + Sync + 'static,
) -> Fake {
    fake(vec![spec("x", &[-1, -1])], vec![spec("y", &[-1, 1])], answers, run)
}

/// Creates a model that labels loud windows as speech.
pub(crate) fn energy_detector(answers: Answers) -> Fake {
    plain(answers, |inputs, _| {
        column(windows(inputs).iter().map(|window| energy(window)).collect())
    })
}

/// The windows of the first input.
pub(crate) fn windows(inputs: &[NamedTensor]) -> Vec<Vec<f32>> {
    let each = inputs[0].tensor.shape()[1..].iter().product::<usize>();
    inputs[0].tensor.to_vec::<f32>().unwrap().chunks(each).map(<[f32]>::to_vec).collect()
}

/// One probability a window.
pub(crate) fn column(values: Vec<f32>) -> Result<Vec<NamedTensor>> {
    let shape = [values.len(), 1];
    Ok(vec![NamedTensor::new("y", Tensor::from_vec(shape.as_slice(), values)?)])
}

/// Returns the level of a window as a probability.
pub(crate) fn energy(window: &[f32]) -> f32 {
    let mean = window.iter().map(|s| s * s).sum::<f32>() / window.len() as f32;
    (3.0 * mean.sqrt()).min(1.0)
}

/// A recogniser of events over raw windows of 512 samples.
pub(crate) fn events(more: &str) -> Recogniser {
    let text = format!("kind = \"events\"\nrate = {RATE}\nwindow = 512\n{more}");
    Recogniser::parse("test", &text).unwrap()
}

/// Bursts of a tone, each a little longer than the one before, with silence between.
pub(crate) fn bursts(seconds: f64) -> Vec<f32> {
    let sample = |n: usize| {
        let t = n as f64 / f64::from(RATE);
        let (period, inside) = ((t / 1.7).floor(), t % 1.7);
        let on = inside > 0.4 && inside < 0.9 + 0.02 * (period % 10.0);
        if on { (0.5 * (t * 440.0 * std::f64::consts::TAU).sin()) as f32 } else { 0.0 }
    };
    (0..(seconds * f64::from(RATE)) as usize).map(sample).collect()
}

/// A wav file of one channel.
pub(crate) fn wav(samples: &[f32]) -> Vec<u8> {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: RATE,
        bits_per_sample: 32,
        sample_format: hound::SampleFormat::Float,
    };
    let mut bytes = Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut bytes, spec).unwrap();
    samples.iter().for_each(|sample| writer.write_sample(*sample).unwrap());
    writer.finalize().unwrap();
    bytes.into_inner()
}

/// An upload that arrives in pieces of at most `most` bytes, each after a delay, and counts the
/// bytes read.
struct Upload {
    bytes: Cursor<Vec<u8>>,
    most: usize,
    wait: Duration,
    read: Arc<AtomicUsize>,
}

impl Read for Upload {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        std::thread::sleep(self.wait);
        let most = buffer.len().min(self.most);
        let count = self.bytes.read(&mut buffer[..most])?;
        self.read.fetch_add(count, Ordering::SeqCst);
        Ok(count)
    }
}

/// Returns `samples` as an upload, and the counter of its bytes read.
pub(crate) fn upload(
    samples: &[f32],
    most: usize,
    wait: Duration,
) -> (AudioInput, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    let upload = Upload { bytes: Cursor::new(wav(samples)), most, wait, read: read.clone() };
    (AudioInput::Stream(Box::new(upload)), read)
}

/// `samples` as a file.
pub(crate) fn recording(samples: &[f32]) -> AudioInput {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &wav(samples)).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    AudioInput::File(file)
}

/// `samples` as an upload that does not wait.
pub(crate) fn sound(samples: &[f32]) -> AudioInput {
    upload(samples, 4096, Duration::ZERO).0
}

/// Results of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Heard {
    pub(crate) labels: Vec<Label>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) summary: AudioSummary,
}

/// Returns options with `in_flight` runs.
pub(crate) fn in_flight(in_flight: usize) -> PipelineOptions {
    PipelineOptions { in_flight, ..PipelineOptions::default() }
}

/// Recognises `input` and checks order and counts of the events.
pub(crate) fn hear(
    input: AudioInput,
    recogniser: &Recogniser,
    model: &Arc<dyn AudioModel>,
    options: &PipelineOptions,
) -> Result<Heard> {
    let mut heard = Heard::default();
    let (mut last, opened) = (f64::NEG_INFINITY, AtomicBool::new(false));
    heard.summary = recognise(input, Some("wav"), recogniser, model, options, &mut |event| {
        assert_eq!(opened.swap(true, Ordering::SeqCst), !matches!(event, PipelineEvent::Opened(_)));
        let at = match event {
            PipelineEvent::Label(label) => {
                heard.labels.push(label);
                heard.labels.last().unwrap().start
            }
            PipelineEvent::Fault(fault) => {
                heard.faults.push(fault);
                heard.faults.last().unwrap().at
            }
            PipelineEvent::Progress { .. } | PipelineEvent::Opened(_) => return Ok(()),
        };
        assert!(at >= last, "{at} after {last}");
        last = at;
        Ok(())
    })?;
    assert_eq!(heard.summary.labels, heard.labels.len() as u64);
    assert_eq!(heard.summary.faults, heard.faults.len() as u64);
    assert!(heard.labels.iter().all(|label| label.end <= heard.summary.seconds));
    Ok(heard)
}
