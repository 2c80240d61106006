//! Streams: the state passes from item to item and from run to run, and never between streams.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};

use base::{
    CarriedInput, DType, Dim, ErrorKind, NamedTensor, Result, Signature, Tensor, TensorSpec,
    VersionId,
};
use engine::{ScheduleOptions, Servable, Session};
use proptest::prelude::*;

/// A model with `sum` = the items' numbers so far. The state is an input and an output, or inside.
struct Summing {
    signature: Signature,
    metadata: BTreeMap<String, String>,
    /// Inside: the sum so far.
    inside: Option<AtomicI64>,
}

fn spec(name: &str) -> TensorSpec {
    let shape = Some(vec![Dim::Dynamic(None)]);
    TensorSpec { name: name.into(), dtype: DType::I64, shape, optional: false }
}

impl Summing {
    fn new(inside: bool) -> Summing {
        let names = |all: &[&str]| all.iter().map(|name| spec(name)).collect();
        let (inputs, outputs) = if inside {
            (names(&["x"]), names(&["sum"]))
        } else {
            (names(&["x", "before"]), names(&["sum", "after"]))
        };
        let inside = inside.then(AtomicI64::default);
        Summing { signature: Signature { inputs, outputs }, metadata: BTreeMap::new(), inside }
    }
}

fn number(tensor: &Tensor) -> i64 {
    tensor.to_vec::<i64>().unwrap()[0]
}

fn named(name: &str, numbers: &[i64]) -> NamedTensor {
    NamedTensor::new(name, Tensor::from_vec([numbers.len()].as_slice(), numbers.to_vec()).unwrap())
}

impl Session for Summing {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    fn runs_elsewhere(&self) -> bool {
        true
    }

    fn stateful(&self) -> bool {
        self.inside.is_some()
    }

    fn fork(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(Summing::new(true)))
    }

    fn run(&self, inputs: &[NamedTensor], outputs: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        let value =
            |name: &str| inputs.iter().find(|i| &*i.name == name).map(|i| number(&i.tensor));
        let x = value("x").unwrap();
        let all = match &self.inside {
            Some(inside) => vec![named("sum", &[inside.fetch_add(x, Ordering::Relaxed) + x])],
            None => {
                let sum = value("before").unwrap() + x;
                vec![named("sum", &[sum]), named("after", &[sum])]
            }
        };
        let wanted = |output: &NamedTensor| outputs.is_empty() || outputs.contains(&output.name);
        Ok(all.into_iter().filter(wanted).collect())
    }
}

fn servable(inside: bool) -> Arc<Servable> {
    let id = VersionId { model: "m".into(), version: 1 };
    Arc::new(
        Servable::new(id, "test", Box::new(Summing::new(inside)), ScheduleOptions::default())
            .unwrap(),
    )
}

fn carried(first: i64) -> Vec<CarriedInput> {
    let initial = Tensor::from_vec([1].as_slice(), vec![first]).unwrap();
    vec![CarriedInput { input: "before".into(), output: "after".into(), initial }]
}

fn sums(stream: &Servable, numbers: &[i64]) -> Vec<i64> {
    let answer = stream.run(&[named("x", numbers)], &["sum".into()]).unwrap();
    assert_eq!(answer.len(), 1, "only what was asked for");
    answer[0].tensor.to_vec::<i64>().unwrap()
}

proptest! {
    #[test]
    fn a_stream_does_not_depend_on_the_sizes_of_runs(
        runs in prop::collection::vec(prop::collection::vec(-9i64..9, 1..5), 1..6),
        inside: bool,
    ) {
        let servable = servable(inside);
        let carry = || if inside { Vec::new() } else { carried(0) };
        let (stream, other) = (servable.stream(carry(), 1).unwrap(), servable.stream(carry(), 1).unwrap());
        let (mut so_far, mut expected) = (0, Vec::new());
        let mut got = Vec::new();
        for run in &runs {
            got.extend(sums(&stream, run));
            sums(&other, &[1000]);
            expected.extend(run.iter().map(|x| { so_far += x; so_far }));
        }
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn a_stream_keeps_its_start_and_version() {
    let servable = servable(false);
    let stream = servable.stream(carried(100), 1).unwrap();
    assert!(stream.stateful() && !stream.plan().batchable);
    let origin: Weak<Servable> = Arc::downgrade(&servable);
    drop(servable);
    assert_eq!(sums(&stream, &[1, 2]), [101, 103]);
    drop(stream);
    assert!(origin.upgrade().is_none());
}

/// Otherwise the processor time of the calling thread would count as the cost of a run.
#[test]
fn a_stream_runs_where_its_version_runs() {
    for inside in [false, true] {
        let servable = servable(inside);
        let carried = if inside { Vec::new() } else { carried(0) };
        let stream = servable.stream(carried, 1).unwrap();
        assert!(servable.runs_elsewhere() && stream.runs_elsewhere(), "{inside}");
    }
}

#[test]
fn unknown_inputs_of_a_stream_are_refused() {
    let mut wrong = carried(0);
    wrong[0].output = "elsewhere".into();
    let error = servable(false).stream(wrong, 1).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("elsewhere"), "{error}");
}

#[test]
fn inputs_of_another_length_go_to_every_item() {
    let stream = servable(false).stream(Vec::new(), 1).unwrap();
    let answer = stream.run(&[named("x", &[1, 2, 3]), named("before", &[10])], &[]).unwrap();
    assert_eq!(answer[0].tensor.to_vec::<i64>().unwrap(), [11, 12, 13]);
}

#[test]
fn lanes_have_states_of_their_own() {
    let mut two = carried(0);
    two[0].initial = Tensor::from_vec([1].as_slice(), vec![0i64]).unwrap();
    let stream = servable(false).stream(two, 2).unwrap();
    // The fake reads the first row of an item only: rows 0, 2 and 4.
    let answer = stream.run(&[named("x", &[1, 100, 2, 100, 3, 100])], &["sum".into()]).unwrap();
    assert_eq!(answer[0].tensor.to_vec::<i64>().unwrap(), [1, 3, 6]);
    let error = stream.run(&[named("x", &[1, 2, 3])], &[]).unwrap_err();
    assert!(error.message().contains("3 rows"), "{error}");
}
