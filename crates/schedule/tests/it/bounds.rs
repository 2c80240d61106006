//! A request of few bytes causes little work, and no request fills a queue that others use.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{DType, Dim, ErrorKind, NamedTensor, Result, Signature, Tensor, TensorSpec, VersionId};
use engine::{PadOptions, ScheduleMode, ScheduleOptions, Servable, Session};

use crate::Opens;
use crate::rows::{Bench, Kind, With, merging, model, ok, padding, tags, x};

const PLAIN: Kind = Kind { masked: false, mixes: false, scaled: false };
/// A huge number of rows without columns, so no bytes.
const ROWS: usize = 1 << 60;

fn send(bench: &Bench, servable: &Arc<Servable>, inputs: Vec<NamedTensor>) -> Result<()> {
    bench.send(7, servable, inputs, With::default())
}

/// Checks that the worker still serves after a refused request.
fn serves(bench: &Bench, servable: &Arc<Servable>) {
    bench.ask(1, servable, x(2, 4, 1.0));
    let answers = bench.answers(1);
    assert_eq!(tags(&answers), [1]);
    assert_eq!(ok(&answers[0]).len(), 2);
}

#[test]
fn rows_without_bytes_are_not_cut_into_parts() {
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", merging(), PLAIN);
    rows.gate.open();
    let refusal = send(&bench, &servable, x(ROWS, 0, 0.0)).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::InvalidArgument);
    assert!(refusal.message().contains("smaller requests"), "{refusal}");
    serves(&bench, &servable);
}

/// A request of no bytes would be padded to more memory than there is: it fails, and the worker
/// continues.
#[test]
fn rows_without_bytes_are_not_padded() {
    for (mode, rows_sent) in
        [(ScheduleMode::Sync, 1 << 31), (ScheduleMode::Sync, ROWS), (ScheduleMode::Async, ROWS)]
    {
        let mut options = ScheduleOptions { mode, ..padding() };
        let pad = options.inputs.get_mut("x").unwrap();
        (pad.mask, pad.buckets) = (None, vec![64]);
        let bench = Bench::new(1, 100);
        let (rows, servable) = model("m", options, PLAIN);
        rows.gate.open();
        let refusal = send(&bench, &servable, x(rows_sent, 0, 0.0))
            .err()
            .unwrap_or_else(|| bench.answers(1).remove(0).1.result.unwrap_err());
        assert_eq!(refusal.kind(), ErrorKind::InvalidArgument, "{refusal}");
        serves(&bench, &servable);
        assert_eq!(rows.runs(), [(2, 64)]);
    }
}

/// x\[n, w\] and the widths l\[n\] -> l.
struct Widths {
    signature: Signature,
    metadata: BTreeMap<String, String>,
}

impl Session for Widths {
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
    fn run(&self, inputs: &[NamedTensor], _: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        Ok(inputs.iter().filter(|input| &*input.name == "l").cloned().collect())
    }
}

fn spec(name: &str, dtype: DType, rank: usize) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        dtype,
        shape: Some(vec![Dim::Dynamic(None); rank]),
        optional: false,
    }
}

#[test]
fn lengths_of_rows_without_bytes_are_not_made() {
    let inputs = vec![spec("x", DType::F32, 2), spec("l", DType::I64, 1)];
    let signature = Signature { inputs, outputs: vec![spec("l", DType::I64, 1)] };
    let mut options = ScheduleOptions::default();
    let length = Some("l".to_owned());
    options
        .inputs
        .insert("x".into(), PadOptions { axes: vec![1], length, ..PadOptions::default() });
    let id = VersionId { model: "m".into(), version: 1 };
    let session = Box::new(Widths { signature, metadata: BTreeMap::new() });
    let servable = Arc::new(Servable::new(id, "test", session, options).unwrap());
    let bench = Bench::new(1, 100);
    for rows in [1 << 30, ROWS] {
        let refusal = send(&bench, &servable, x(rows, 0, 0.0)).unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::InvalidArgument, "{refusal}");
    }
    bench.ask(0, &servable, x(3, 5, 0.0));
    let answers = bench.answers(1);
    assert_eq!(ok(&answers[0])[0].tensor.to_vec::<i64>().unwrap(), [5, 5, 5]);
}

/// Eight rows a part and four places: if less than half of the places is free, only a small request
/// fits.
#[test]
fn a_request_of_many_parts_waits_for_half_a_queue() {
    let bench = Bench::new(1, 4);
    let (rows, servable) = model("m", merging(), PLAIN);
    let _opens = Opens(rows.gate.clone());
    bench.ask(0, &servable, x(1, 2, 0.0));
    rows.wait_running(1);
    bench.ask(1, &servable, x(3 * 8, 2, 0.0));
    let refusal = send(&bench, &servable, x(4 * 8, 2, 0.0)).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::ResourceExhausted);
    assert!(
        refusal.retry_after().is_some() && refusal.message().contains("4 batches"),
        "{refusal}"
    );
    bench.ask(2, &servable, x(1, 2, 0.0));
    assert_eq!(bench.scheduler.queued(), 4);
    rows.gate.open();
    assert_eq!(bench.answers(3).len(), 3);
    bench.ask(3, &servable, x(10 * 8, 2, 0.0));
    let answers = bench.answers(1);
    assert_eq!(ok(&answers[0])[0].tensor.shape(), [80]);
    bench.scheduler.shutdown();
    let model = &bench.scheduler.snapshot().models[0];
    assert_eq!((model.requests, model.refused), (4, 1), "a request in parts counts once");
}

/// Runs of a stream are not checked against the signature, so the padded axis may be missing.
#[test]
fn an_undeclared_rank_causes_no_panic() {
    let row =
        || vec![NamedTensor::new("x", Tensor::from_vec([4].as_slice(), vec![1f32; 4]).unwrap())];
    let bench = Bench::new(1, 100);
    let (_, masked) = model("masked", padding(), Kind { masked: true, ..Kind::default() });
    assert_eq!(send(&bench, &masked, row()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let mut options = padding();
    let pad = options.inputs.get_mut("x").unwrap();
    (pad.mask, pad.buckets) = (None, vec![64]);
    let (rows, servable) = model("m", options, PLAIN);
    rows.gate.open();
    send(&bench, &servable, row()).unwrap();
    assert_eq!(bench.answers(1)[0].1.result.as_ref().unwrap_err().kind(), ErrorKind::Internal);
    serves(&bench, &servable);
}
