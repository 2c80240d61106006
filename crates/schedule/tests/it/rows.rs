//! A model whose items are rows, for tests of merging: it sums the elements that its mask leaves,
//! and adds neighbours in pairs.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use base::{DType, Dim, Error, NamedTensor, Result, Signature, Tensor, TensorSpec, VersionId};
use engine::{CutOptions, Merge, PadOptions, ScheduleMode, ScheduleOptions, Servable, Session};
use millpond_schedule::{Completion, Job, Scheduler, SchedulerConfig};

use crate::Gate;

/// A value of `x` that the model refuses.
pub(crate) const POISON: f32 = 666.0;

fn spec(name: &str, rank: usize) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        dtype: DType::F32,
        shape: Some(vec![Dim::Dynamic(None); rank]),
        optional: false,
    }
}

/// Computes `sum[n]` of `x[n, w]` where `mask[n, w]` is 1, and `pairs[n, w / 2]`, each the sum of
/// two neighbours. Without `masked` there is no mask and the sum reads everything. With `mixes` the
/// items are not kept apart: one sum in all.
pub(crate) struct Rows {
    pub(crate) gate: Arc<Gate>,
    /// Rows and columns of each run.
    pub(crate) runs: Mutex<Vec<(usize, usize)>>,
    masked: bool,
    mixes: bool,
    /// `sum` is multiplied by the scalar input `factor`.
    scaled: bool,
    signature: Signature,
    metadata: BTreeMap<String, String>,
}

/// Session of the servable. The test keeps the other reference.
struct Shared(Arc<Rows>);

impl std::ops::Deref for Shared {
    type Target = Rows;
    fn deref(&self) -> &Rows {
        &self.0
    }
}

impl Session for Shared {
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
    fn run(&self, inputs: &[NamedTensor], _: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        let find = |name: &str| {
            inputs.iter().find(|input| &*input.name == name).map(|input| &input.tensor)
        };
        let x = find("x").ok_or_else(|| Error::invalid("no x"))?;
        let (rows, columns) = (x.shape()[0], x.shape()[1]);
        self.runs.lock().unwrap().push((rows, columns));
        self.gate.pass();
        let values = x.to_vec::<f32>()?;
        if values.contains(&POISON) {
            return Err(Error::invalid("poisoned"));
        }
        let mask = match find("mask") {
            Some(mask) if self.masked => mask.to_vec::<f32>()?,
            _ => vec![1.0; values.len()],
        };
        assert_eq!(mask.len(), values.len(), "the mask has the shape of x");
        let row = |row: usize| row * columns..(row + 1) * columns;
        let sum =
            |r: usize| values[row(r)].iter().zip(&mask[row(r)]).map(|(x, m)| x * m).sum::<f32>();
        let sums: Vec<f32> = (0..rows).map(sum).collect();
        let pairs: Vec<f32> = (0..rows)
            .flat_map(|r| {
                values[row(r)].chunks_exact(2).map(|pair| pair[0] + pair[1]).collect::<Vec<_>>()
            })
            .collect();
        let factor = match find("factor") {
            Some(factor) if self.scaled => factor.to_vec::<f32>()?[0],
            _ => 1.0,
        };
        let sums: Vec<f32> = sums.into_iter().map(|sum| sum * factor).collect();
        let sums = if self.mixes {
            Tensor::from_vec([1usize].as_slice(), vec![sums.iter().sum::<f32>()])?
        } else {
            Tensor::from_vec([rows].as_slice(), sums)?
        };
        let pairs = Tensor::from_vec([rows, columns / 2].as_slice(), pairs)?;
        Ok(vec![NamedTensor::new("sum", sums), NamedTensor::new("pairs", pairs)])
    }
}

/// Returns options with batching, padding on x's axis 1 with a visible value, a mask, and the rule
/// for `pairs`.
pub(crate) fn padding() -> ScheduleOptions {
    let mut options = merging();
    let mask = Some("mask".into());
    let pad =
        PadOptions { axes: vec![1], value: 77.0, similarity: 0.0, mask, ..PadOptions::default() };
    options.inputs.insert("x".into(), pad);
    let cut = CutOptions {
        axis: 1,
        input: "x".into(),
        input_axis: 1,
        divisor: 2,
        round_up: false,
        offset: 0,
    };
    options.outputs.insert("pairs".into(), vec![cut]);
    options.merge = Merge::Pad;
    options
}

/// Returns options that merge equal shapes at any cost.
pub(crate) fn merging() -> ScheduleOptions {
    ScheduleOptions {
        mode: ScheduleMode::Async,
        always_merge: true,
        max_batch: 8,
        ..ScheduleOptions::default()
    }
}

/// Settings of a test's model.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kind {
    pub(crate) masked: bool,
    pub(crate) mixes: bool,
    /// Has a scalar input `factor`, which multiplies the sums.
    pub(crate) scaled: bool,
}

pub(crate) fn model(
    name: &str,
    options: ScheduleOptions,
    kind: Kind,
) -> (Arc<Rows>, Arc<Servable>) {
    wide_model(name, options, 1, kind)
}

/// Does the same as [`model`] with `threads_per_run` threads.
pub(crate) fn wide_model(
    name: &str,
    options: ScheduleOptions,
    threads_per_run: usize,
    kind: Kind,
) -> (Arc<Rows>, Arc<Servable>) {
    let mut inputs = vec![spec("x", 2)];
    inputs.extend(kind.masked.then(|| spec("mask", 2)));
    // First, as some models have it.
    inputs.splice(0..0, kind.scaled.then(|| spec("factor", 0)));
    let rows = Arc::new(Rows {
        gate: Arc::new(Gate::default()),
        runs: Mutex::default(),
        masked: kind.masked,
        mixes: kind.mixes,
        scaled: kind.scaled,
        signature: Signature { inputs, outputs: vec![spec("sum", 1), spec("pairs", 2)] },
        metadata: BTreeMap::new(),
    });
    let id = VersionId { model: name.into(), version: 1 };
    let mut servable = Servable::new(id, "test", Box::new(Shared(rows.clone())), options).unwrap();
    servable.set_threads_per_run(threads_per_run);
    (rows, Arc::new(servable))
}

pub(crate) fn x(rows: usize, columns: usize, seed: f32) -> Vec<NamedTensor> {
    let values = (0..rows * columns).map(|i| seed + i as f32).collect::<Vec<_>>();
    vec![NamedTensor::new("x", Tensor::from_vec([rows, columns].as_slice(), values).unwrap())]
}

/// Number that a test gave a request, and its outcome.
pub(crate) type Tagged = (usize, Completion);

/// One scheduler, and answers in the order in which they came.
pub(crate) struct Bench {
    pub(crate) scheduler: Arc<Scheduler>,
    sender: mpsc::Sender<Tagged>,
    receiver: mpsc::Receiver<Tagged>,
}

/// Differences of a request from the default.
#[derive(Clone)]
pub(crate) struct With {
    /// Empty for all outputs.
    pub(crate) outputs: Vec<Arc<str>>,
    pub(crate) priority: usize,
    pub(crate) deadline: Duration,
    pub(crate) cancelled: bool,
}

impl Default for With {
    fn default() -> With {
        With {
            outputs: Vec::new(),
            priority: 0,
            deadline: Duration::from_secs(60),
            cancelled: false,
        }
    }
}

impl Bench {
    pub(crate) fn new(workers: usize, queue_max: usize) -> Bench {
        Bench::with(&SchedulerConfig { workers, queue_max, pin: false, count_threads: true })
    }

    pub(crate) fn with(config: &SchedulerConfig) -> Bench {
        let scheduler = Scheduler::start(config).unwrap();
        let (sender, receiver) = mpsc::channel();
        Bench { scheduler, sender, receiver }
    }

    pub(crate) fn send(
        &self,
        tag: usize,
        servable: &Arc<Servable>,
        inputs: Vec<NamedTensor>,
        with: With,
    ) -> Result<()> {
        let sender = self.sender.clone();
        self.scheduler.submit(Job {
            servable: servable.clone(),
            inputs,
            outputs: with.outputs,
            priority: with.priority,
            deadline: Instant::now() + with.deadline,
            cancelled: Arc::new(AtomicBool::new(with.cancelled)),
            done: Box::new(move |completion| sender.send((tag, completion)).unwrap()),
        })
    }

    pub(crate) fn ask(&self, tag: usize, servable: &Arc<Servable>, inputs: Vec<NamedTensor>) {
        self.send(tag, servable, inputs, With::default()).unwrap();
    }

    /// Returns the next `count` answers, tag first.
    pub(crate) fn answers(&self, count: usize) -> Vec<Tagged> {
        (0..count)
            .map(|_| self.receiver.recv_timeout(Duration::from_secs(60)).expect("an answer"))
            .collect()
    }

    pub(crate) fn no_more(&self) -> bool {
        self.receiver.try_recv().is_err()
    }
}

impl Rows {
    /// Waits until a run is held at the gate.
    pub(crate) fn wait_running(&self, count: usize) {
        while self.runs.lock().unwrap().len() < count {
            std::thread::yield_now();
        }
    }

    pub(crate) fn runs(&self) -> Vec<(usize, usize)> {
        self.runs.lock().unwrap().clone()
    }
}

/// Returns the tags, in the order of the answers.
pub(crate) fn tags(answers: &[Tagged]) -> Vec<usize> {
    answers.iter().map(|(tag, _)| *tag).collect()
}

pub(crate) fn ok(answer: &Tagged) -> &[NamedTensor] {
    answer.1.result.as_ref().unwrap()
}
