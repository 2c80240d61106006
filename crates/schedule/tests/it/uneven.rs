//! Requests whose inputs differ in size on axis 0.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base::{DType, Dim, NamedTensor, Result, Signature, Tensor, TensorSpec, VersionId};
use engine::{ScheduleOptions, Servable, Session};

use crate::Gate;
use crate::rows::{self, Bench, merging, ok};

/// Multiplies each element of `q` by each of `d`: a row for each element of `q`. With `repeats`, it
/// multiplies pairs of elements, and repeats a single element.
struct PairProducts {
    gate: Gate,
    /// Elements of both inputs of each run.
    runs: Mutex<Vec<[usize; 2]>>,
    repeats: bool,
    signature: Signature,
    metadata: BTreeMap<String, String>,
}

/// Session of the servable. The test keeps the other reference.
struct SharedPairProducts(Arc<PairProducts>);

impl Session for SharedPairProducts {
    fn signature(&self) -> &Signature {
        &self.0.signature
    }
    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.0.metadata
    }
    fn run(&self, inputs: &[NamedTensor], _: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        let q = inputs[0].tensor.to_vec::<f32>()?;
        let d = inputs[1].tensor.to_vec::<f32>()?;
        self.0.runs.lock().unwrap().push([q.len(), d.len()]);
        self.0.gate.pass();
        let rows = if self.0.repeats { q.len().max(d.len()) } else { q.len() };
        let columns = if self.0.repeats { 1 } else { d.len() };
        let mut y = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            for column in 0..columns {
                let other = if self.0.repeats { row % d.len() } else { column };
                y.push(q[row % q.len()] * d[other]);
            }
        }
        Ok(vec![NamedTensor::new("y", Tensor::from_vec([rows, columns].as_slice(), y)?)])
    }
}

fn model(repeats: bool) -> (Arc<PairProducts>, Arc<Servable>) {
    model_with(repeats, merging())
}

fn model_with(repeats: bool, options: ScheduleOptions) -> (Arc<PairProducts>, Arc<Servable>) {
    let spec = |name: &str, columns: Dim| TensorSpec {
        name: name.into(),
        dtype: DType::F32,
        shape: Some(vec![Dim::Dynamic(None), columns]),
        optional: false,
    };
    let columns = if repeats { Dim::Fixed(1) } else { Dim::Dynamic(None) };
    let products = Arc::new(PairProducts {
        gate: Gate::default(),
        runs: Mutex::default(),
        repeats,
        signature: Signature {
            inputs: vec![spec("q", Dim::Fixed(1)), spec("d", Dim::Fixed(1))],
            outputs: vec![spec("y", columns)],
        },
        metadata: BTreeMap::new(),
    });
    let id = VersionId { model: "m".into(), version: 1 };
    let session = Box::new(SharedPairProducts(products.clone()));
    let servable = Servable::new(id, "test", session, options).unwrap();
    (products, Arc::new(servable))
}

fn request(q: &[f32], d: &[f32]) -> Vec<NamedTensor> {
    let input = |name: &str, values: &[f32]| {
        let tensor = Tensor::from_vec([values.len(), 1].as_slice(), values.to_vec());
        NamedTensor::new(name, tensor.unwrap())
    };
    vec![input("q", q), input("d", d)]
}

/// Sends a request with one `q` and three `d`, and two requests that wait meanwhile. Returns the
/// runs, after checking that every answer is the request's own.
fn runs_after_an_uneven_request(repeats: bool) -> Vec<[usize; 2]> {
    let (products, servable) = model(repeats);
    let bench = Bench::new(1, 100);
    bench.ask(0, &servable, request(&[2.0], &[1.0, 2.0, 3.0]));
    while products.runs.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
    bench.ask(1, &servable, request(&[2.0], &[5.0]));
    bench.ask(2, &servable, request(&[3.0], &[7.0]));
    products.gate.open();
    let mut answers = bench.answers(3);
    answers.sort_by_key(|answer| answer.0);
    let values = |tag: usize| ok(&answers[tag])[0].tensor.to_vec::<f32>().unwrap();
    assert_eq!((values(0), values(1), values(2)), (vec![2.0, 4.0, 6.0], vec![10.0], vec![21.0]));
    bench.scheduler.shutdown();
    products.runs.lock().unwrap().clone()
}

/// A joined run would score each query against the documents of both requests.
#[test]
fn a_model_that_crosses_its_inputs_is_not_merged() {
    assert_eq!(runs_after_an_uneven_request(false), [[1, 3], [1, 1], [1, 1]]);
}

#[test]
fn a_model_that_repeats_an_input_is_merged() {
    assert_eq!(runs_after_an_uneven_request(true), [[1, 3], [2, 2]]);
}

/// Each part would have as many columns as rows.
#[test]
fn a_request_to_a_model_that_crosses_its_inputs_is_not_split() {
    let (products, servable) = model(false);
    products.gate.open();
    let bench = Bench::new(1, 100);
    bench.ask(0, &servable, request(&[2.0, 3.0], &[1.0, 2.0, 3.0]));
    assert_eq!(ok(&bench.answers(1)[0])[0].tensor.shape(), [2, 3]);
    bench.ask(1, &servable, request(&[1.0; 16], &[1.0; 16]));
    assert_eq!(ok(&bench.answers(1)[0])[0].tensor.shape(), [16, 16]);
    assert_eq!(*products.runs.lock().unwrap(), [[2, 3], [16, 16]]);
}

/// The parts show that columns follow the items, and have as many rows as items all the same.
#[test]
fn a_request_whose_parts_show_that_they_cross_runs_whole() {
    let (products, servable) = model(false);
    products.gate.open();
    let bench = Bench::new(1, 100);
    bench.ask(0, &servable, request(&[2.0], &[3.0]));
    assert_eq!(ok(&bench.answers(1)[0])[0].tensor.shape(), [1, 1]);
    bench.ask(1, &servable, request(&[1.0; 16], &[1.0; 16]));
    assert_eq!(ok(&bench.answers(1)[0])[0].tensor.shape(), [16, 16]);
    assert_eq!(*products.runs.lock().unwrap(), [[1, 1], [8, 8], [8, 8], [16, 16]]);
}

/// The first run of the version has two requests: the columns of each are those of both.
#[test]
fn a_first_run_that_crosses_its_requests_is_discarded() {
    let bench = Bench::new(1, 100);
    let (held, other) = rows::model("other", merging(), rows::Kind::default());
    bench.ask(9, &other, rows::x(1, 2, 0.0));
    held.wait_running(1);
    let (products, servable) = model(false);
    products.gate.open();
    bench.ask(0, &servable, request(&[2.0], &[5.0]));
    bench.ask(1, &servable, request(&[3.0], &[7.0]));
    held.gate.open();
    let answers = bench.answers(3);
    for answer in answers.iter().filter(|answer| answer.0 < 9) {
        assert_eq!(ok(answer)[0].tensor.to_vec::<f32>().unwrap(), [[10.0], [21.0]][answer.0]);
    }
    bench.scheduler.shutdown();
    assert_eq!(*products.runs.lock().unwrap(), [[2, 2], [1, 1], [1, 1], [1, 1]]);
}

/// Also if the model has always run over a batch of the same size.
#[test]
fn columns_of_added_items_and_of_pieces_are_no_answer() {
    let allowed = ScheduleOptions { allowed_batch_sizes: vec![8], ..merging() };
    for (options, items) in [(allowed.clone(), 3), (merging(), 16), (allowed, 16)] {
        let (products, servable) = model_with(false, options);
        products.gate.open();
        let bench = Bench::new(1, 100);
        for _ in 0..2 {
            bench.ask(0, &servable, request(&vec![1.0; items], &vec![1.0; items]));
            assert_eq!(ok(&bench.answers(1)[0])[0].tensor.shape(), [items, items]);
        }
        bench.scheduler.shutdown();
        assert_eq!(bench.scheduler.snapshot().models[0].unjoined_versions, 1);
        let runs = products.runs.lock().unwrap();
        assert_eq!(runs.iter().filter(|run| **run == [1, 1]).count(), 1);
    }
}

#[test]
fn a_run_without_a_scheduler_has_no_columns_of_added_items() {
    let allowed = ScheduleOptions { allowed_batch_sizes: vec![8], ..merging() };
    let (products, servable) = model_with(false, allowed);
    products.gate.open();
    for _ in 0..2 {
        let inputs = request(&[1.0; 3], &[1.0; 3]);
        let answer = millpond_schedule::run_alone(&servable, &inputs, &[]).unwrap();
        assert_eq!(answer[0].tensor.shape(), [3, 3]);
    }
    assert_eq!(*products.runs.lock().unwrap(), [[8, 8], [1, 1], [3, 3], [3, 3]]);
}
