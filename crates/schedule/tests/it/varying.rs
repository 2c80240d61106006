//! Outputs whose sizes depend on the values of the whole run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base::{DType, Dim, NamedTensor, Result, Signature, Tensor, TensorSpec, VersionId};
use engine::{ScheduleOptions, Servable, Session};

use crate::Gate;
use crate::rows::{self, Bench, Kind, Tagged, merging, ok, padding};

/// Repeats each element of `x` as often as it says, with zeros up to the longest row of the run, as
/// a model does that splits texts into words.
struct Repeater {
    gate: Gate,
    /// Rows of each run.
    runs: Mutex<Vec<usize>>,
    signature: Signature,
    metadata: BTreeMap<String, String>,
}

/// Session of the servable. The test keeps the other reference.
struct SharedRepeater(Arc<Repeater>);

impl Session for SharedRepeater {
    fn signature(&self) -> &Signature {
        &self.0.signature
    }
    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.0.metadata
    }
    fn run(&self, inputs: &[NamedTensor], _: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        let x = inputs[0].tensor.to_vec::<f32>()?;
        self.0.runs.lock().unwrap().push(x.len());
        self.0.gate.pass();
        let columns = x.iter().map(|&value| value as usize).max().unwrap_or(0);
        let mut y = Vec::with_capacity(x.len() * columns);
        for &value in &x {
            y.extend((0..columns).map(|column| if column < value as usize { value } else { 0.0 }));
        }
        Ok(vec![NamedTensor::new("y", Tensor::from_vec([x.len(), columns].as_slice(), y)?)])
    }
}

fn model(options: ScheduleOptions) -> (Arc<Repeater>, Arc<Servable>) {
    let spec = |name: &str, columns: Dim| TensorSpec {
        name: name.into(),
        dtype: DType::F32,
        shape: Some(vec![Dim::Dynamic(None), columns]),
        optional: false,
    };
    let repeater = Arc::new(Repeater {
        gate: Gate::default(),
        runs: Mutex::default(),
        signature: Signature {
            inputs: vec![spec("x", Dim::Fixed(1))],
            outputs: vec![spec("y", Dim::Dynamic(None))],
        },
        metadata: BTreeMap::new(),
    });
    let id = VersionId { model: "m".into(), version: 1 };
    let session = Box::new(SharedRepeater(repeater.clone()));
    let servable = Servable::new(id, "test", session, options).unwrap();
    (repeater, Arc::new(servable))
}

fn x(value: f32) -> Vec<NamedTensor> {
    vec![NamedTensor::new("x", Tensor::from_vec([1usize, 1].as_slice(), vec![value]).unwrap())]
}

/// Holds the only worker with one request while two others queue. Returns the answers by tag.
fn ask_together(
    bench: &Bench,
    model: &(Arc<Repeater>, Arc<Servable>),
    values: [f32; 3],
) -> Vec<Tagged> {
    let (repeater, servable) = model;
    repeater.gate.close();
    let before = repeater.runs.lock().unwrap().len();
    bench.ask(0, servable, x(values[0]));
    while repeater.runs.lock().unwrap().len() == before {
        std::thread::yield_now();
    }
    bench.ask(1, servable, x(values[1]));
    bench.ask(2, servable, x(values[2]));
    repeater.gate.open();
    let mut answers = bench.answers(3);
    answers.sort_by_key(|answer| answer.0);
    answers
}

#[test]
fn a_joined_run_with_outputs_of_other_sizes_is_discarded() {
    let bench = Bench::new(1, 100);
    let model = model(merging());
    let answers = ask_together(&bench, &model, [1.0, 1.0, 3.0]);
    assert_eq!(ok(&answers[1])[0].tensor.shape(), [1, 1]);
    assert_eq!(ok(&answers[2])[0].tensor.to_vec::<f32>().unwrap(), [3.0, 3.0, 3.0]);
    bench.scheduler.shutdown();
    assert_eq!(*model.0.runs.lock().unwrap(), [1, 2, 1, 1]);
}

#[test]
fn runs_alone_show_that_sizes_depend_on_values() {
    let bench = Bench::new(1, 100);
    let model = model(merging());
    model.0.gate.open();
    for value in [1.0, 3.0] {
        bench.ask(0, &model.1, x(value));
        assert_eq!(ok(&bench.answers(1)[0])[0].tensor.shape(), [1, value as usize]);
    }
    ask_together(&bench, &model, [2.0, 2.0, 2.0]);
    bench.scheduler.shutdown();
    assert_eq!(*model.0.runs.lock().unwrap(), [1; 5]);
}

/// The owner of the model accepts the padding of a batch.
#[test]
fn accepted_sizes_leave_a_joined_run_as_it_is() {
    let bench = Bench::new(1, 100);
    let options = ScheduleOptions { data_dependent_shapes: true, ..merging() };
    let model = model(options);
    let answers = ask_together(&bench, &model, [2.0, 1.0, 3.0]);
    assert_eq!(ok(&answers[0])[0].tensor.shape(), [1, 2]);
    assert_eq!(ok(&answers[1])[0].tensor.to_vec::<f32>().unwrap(), [1.0, 0.0, 0.0]);
    assert_eq!(ok(&answers[2])[0].tensor.to_vec::<f32>().unwrap(), [3.0, 3.0, 3.0]);
    // Pieces of a request that is larger than a batch would have outputs of other sizes.
    let values = vec![1f32, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0];
    let large = Tensor::from_vec([9usize, 1].as_slice(), values).unwrap();
    bench.ask(3, &model.1, vec![NamedTensor::new("x", large)]);
    assert_eq!(ok(&bench.answers(1)[0])[0].tensor.shape(), [9, 2]);
    bench.scheduler.shutdown();
    assert_eq!(*model.0.runs.lock().unwrap(), [1, 2, 9]);
}

#[test]
fn accepted_sizes_of_padded_runs_need_no_rule() {
    let bench = Bench::new(1, 100);
    let mut options = ScheduleOptions { data_dependent_shapes: true, ..padding() };
    options.outputs.clear();
    let (model, servable) = rows::model("m", options, Kind { masked: true, ..Kind::default() });
    model.gate.close();
    bench.ask(0, &servable, rows::x(1, 4, 1.0));
    model.wait_running(1);
    bench.ask(1, &servable, rows::x(1, 2, 1.0));
    bench.ask(2, &servable, rows::x(1, 4, 1.0));
    model.gate.open();
    let mut answers = bench.answers(3);
    answers.sort_by_key(|answer| answer.0);
    bench.scheduler.shutdown();
    assert_eq!(model.runs(), [(1, 4), (2, 4)]);
    let outputs = ok(&answers[1]);
    let values = |index: usize| outputs[index].tensor.to_vec::<f32>().unwrap();
    assert_eq!(values(0), [3.0], "the mask leaves the request's own");
    assert_eq!(values(1), [3.0, 154.0], "the sum of the padding stays");
}
