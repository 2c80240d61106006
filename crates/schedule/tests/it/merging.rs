//! Merging and padding never change an answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use base::{ErrorKind, NamedTensor, Tensor};
use engine::{PadOptions, ScheduleOptions};
use millpond_schedule::Job;
use proptest::prelude::*;

use crate::rows::{Bench, Kind, POISON, With, merging, model, ok, padding, tags, x};

const MASKED: Kind = Kind { masked: true, mixes: false, scaled: false };
const PLAIN: Kind = Kind { masked: false, mixes: false, scaled: false };
const SCALED: Kind = Kind { masked: false, mixes: false, scaled: true };

/// Returns the model's answer to each request alone, without a scheduler and without padding.
fn alone(
    options: &ScheduleOptions,
    kind: Kind,
    requests: &[Vec<NamedTensor>],
) -> Vec<Vec<NamedTensor>> {
    let (rows, servable) = model("alone", options.clone(), kind);
    rows.gate.open();
    let run = |inputs: &Vec<NamedTensor>| {
        let mut inputs = inputs.clone();
        if kind.masked {
            let shape = inputs[0].tensor.shape().to_vec();
            let ones = vec![1f32; shape.iter().product()];
            inputs
                .push(NamedTensor::new("mask", Tensor::from_vec(shape.as_slice(), ones).unwrap()));
        }
        servable.run(&inputs, &[]).unwrap()
    };
    requests.iter().map(run).collect()
}

/// Sends all requests while the workers are held, then releases the workers: every answer must be
/// the request's own.
fn check(
    options: ScheduleOptions,
    kind: Kind,
    workers: usize,
    requests: &[Vec<NamedTensor>],
) -> Vec<(usize, usize)> {
    let expected = alone(&options, kind, requests);
    let bench = Bench::new(workers, 1000);
    let (rows, servable) = model("m", options, kind);
    let plugs = requests.len();
    for plug in 0..workers {
        let plug_inputs = if kind.scaled { scaled(x(1, 2, 0.0), 1.0) } else { x(1, 2, 0.0) };
        bench.ask(plugs + plug, &servable, plug_inputs);
        rows.wait_running(plug + 1);
    }
    for (tag, inputs) in requests.iter().enumerate() {
        bench.ask(tag, &servable, inputs.clone());
    }
    rows.gate.open();
    let answers = bench.answers(plugs + workers);
    for answer in &answers {
        if let Some(expected) = expected.get(answer.0) {
            assert_eq!(ok(answer), expected.as_slice(), "request {}", answer.0);
        }
    }
    bench.scheduler.shutdown();
    assert!(bench.no_more(), "nothing is answered twice");
    rows.runs()
}

fn requests() -> impl Strategy<Value = Vec<Vec<NamedTensor>>> {
    let one = (1usize..12, 1usize..9, -50f32..50.0)
        .prop_map(|(rows, columns, seed)| x(rows, columns, seed.round()));
    prop::collection::vec(one, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Masked and padded, exactly equal: whole numbers are summed.
    #[test]
    fn random_mixes_are_answered_as_if_alone(requests in requests(), workers in 1usize..4) {
        check(padding(), MASKED, workers, &requests);
    }

    /// The same with rounding up to buckets, alone or merged, and any bound on waste.
    #[test]
    fn buckets_and_bounds_do_not_change_an_answer(
        requests in requests(),
        buckets in prop::collection::btree_set(1usize..12, 0..4),
        similarity in 0f64..0.99,
        slack_bytes in 0usize..64,
    ) {
        let mut options = padding();
        if let Some(pad) = options.inputs.get_mut("x") {
            let buckets = buckets.into_iter().collect();
            *pad = PadOptions { buckets, similarity, slack_bytes, ..pad.clone() };
        }
        check(options, MASKED, 2, &requests);
    }

    /// Every run has an allowed size, also if requests were merged, split or padded.
    #[test]
    fn added_items_do_not_change_an_answer(
        requests in requests(),
        sizes in prop::collection::btree_set(1usize..8, 0..4),
        workers in 1usize..4,
    ) {
        let allowed_batch_sizes: Vec<usize> = sizes.into_iter().chain([8]).collect();
        let options =
            ScheduleOptions { allowed_batch_sizes: allowed_batch_sizes.clone(), ..padding() };
        let runs = check(options, MASKED, workers, &requests);
        let allowed = |run: &(usize, usize)| allowed_batch_sizes.contains(&run.0);
        prop_assert!(runs.iter().all(allowed), "{runs:?} with {allowed_batch_sizes:?}");
    }

    /// Equal shapes only, with the cost model deciding.
    #[test]
    fn the_cost_model_does_not_change_an_answer(requests in requests()) {
        check(ScheduleOptions { always_merge: false, ..merging() }, PLAIN, 2, &requests);
    }

    /// Requests share a run only if their scalars have the same bits.
    #[test]
    fn scalars_do_not_change_an_answer(
        requests in requests(),
        factors in prop::collection::vec(prop::sample::select(vec![1f32, -2.0, 0.0, -0.0]), 24),
        workers in 1usize..4,
    ) {
        let requests: Vec<_> = requests.into_iter().zip(factors).map(|(x, f)| scaled(x, f)).collect();
        check(merging(), SCALED, workers, &requests);
    }

    /// A model that mixes its items is detected, and every answer is still the request's own.
    #[test]
    fn a_model_that_mixes_its_items_is_not_merged(requests in requests()) {
        let one_row: Vec<_> = requests.iter().map(|r| {
            let columns = r[0].tensor.shape()[1];
            x(1, columns, columns as f32)
        }).collect();
        check(merging(), Kind { mixes: true, ..Kind::default() }, 1, &one_row);
    }
}

fn scaled(mut inputs: Vec<NamedTensor>, factor: f32) -> Vec<NamedTensor> {
    inputs.push(NamedTensor::new("factor", Tensor::from_vec([].as_slice(), vec![factor]).unwrap()));
    inputs
}

#[test]
fn equal_scalars_share_a_run_and_others_do_not() {
    let request = |factor| scaled(x(1, 10, 1.0), factor);
    let requests: Vec<_> = [2.0, 3.0, 2.0, 2.0, 3.0].map(request).into();
    let runs = check(merging(), SCALED, 1, &requests);
    assert_eq!(runs, [(1, 2), (3, 10), (2, 10)]);
    // 0 and -0 compare equal and are not the same bits.
    let requests: Vec<_> = [0.0, -0.0].map(request).into();
    assert_eq!(check(merging(), SCALED, 1, &requests), [(1, 2), (1, 10), (1, 10)]);
}

#[test]
fn a_request_larger_than_a_batch_has_its_scalar_in_every_part() {
    let runs = check(merging(), SCALED, 1, &[scaled(x(19, 4, 1.0), 3.0)]);
    assert_eq!(runs.iter().map(|(rows, _)| rows).sum::<usize>(), 1 + 19);
}

#[test]
fn equal_shapes_share_a_run_and_others_do_not() {
    let requests: Vec<_> = [4, 4, 6, 4, 6].iter().map(|&columns| x(1, columns, 1.0)).collect();
    let runs = check(merging(), PLAIN, 1, &requests);
    assert_eq!(runs, [(1, 2), (3, 4), (2, 6)]);
}

/// A run asks one version for the outputs of its first request.
#[test]
fn other_versions_and_other_outputs_do_not_share_a_run() {
    for (options, kind, narrow) in [(merging(), PLAIN, 6), (padding(), MASKED, 4)] {
        let wide = 6;
        let bench = Bench::new(1, 100);
        let (rows, old) = model("m", options.clone(), kind);
        let (new_rows, new) = model("m", options, kind);
        new_rows.gate.open();
        bench.ask(0, &old, x(1, 2, 0.0));
        rows.wait_running(1);
        let columns = |tag: usize| if [1, 2].contains(&(tag % 4)) { narrow } else { wide };
        for tag in 1..=8 {
            let version = if tag % 2 == 0 { &new } else { &old };
            let outputs = if tag > 4 { vec!["pairs".into()] } else { vec![] };
            let with = With { outputs, ..With::default() };
            bench.send(tag, version, x(1, columns(tag), tag as f32), with).unwrap();
        }
        rows.gate.open();
        for answer in &bench.answers(9)[1..] {
            let sums = ok(answer)[0].tensor.to_vec::<f32>().unwrap();
            let columns = columns(answer.0);
            let expected = columns * answer.0 + columns * (columns - 1) / 2;
            assert_eq!(sums, [expected as f32]);
        }
        assert_eq!(rows.runs(), [(1, 2), (2, wide), (2, wide)]);
        assert_eq!(new_rows.runs(), [(2, wide), (2, wide)]);
    }
}

#[test]
fn different_shapes_share_a_padded_run() {
    let requests: Vec<_> = [4, 5, 6, 4].iter().map(|&columns| x(1, columns, 1.0)).collect();
    let runs = check(padding(), MASKED, 1, &requests);
    assert_eq!(runs, [(1, 2), (4, 6)]);
}

#[test]
fn wasteful_padding_is_refused() {
    let mut options = padding();
    if let Some(pad) = options.inputs.get_mut("x") {
        (pad.similarity, pad.slack_bytes) = (0.5, 0);
    }
    let requests: Vec<_> = [10, 4, 8].iter().map(|&columns| x(1, columns, 1.0)).collect();
    let runs = check(options, MASKED, 1, &requests);
    assert_eq!(runs, [(1, 2), (2, 10), (1, 4)], "4 of 10 is too little");
}

#[test]
fn a_bucket_is_the_same_alone_and_merged() {
    let mut options = padding();
    options.merge = engine::Merge::Equal;
    if let Some(pad) = options.inputs.get_mut("x") {
        pad.buckets = vec![4, 8];
    }
    let requests: Vec<_> = [3, 4, 7, 9].iter().map(|&columns| x(1, columns, 1.0)).collect();
    let runs = check(options, MASKED, 1, &requests);
    assert_eq!(runs, [(1, 4), (2, 4), (1, 8), (1, 9)], "the plug of 2 columns is rounded as well");
}

fn allowed(sizes: &[usize]) -> ScheduleOptions {
    ScheduleOptions { allowed_batch_sizes: sizes.to_vec(), ..merging() }
}

#[test]
fn items_are_added_up_to_an_allowed_size() {
    let requests: Vec<_> = [1.0, 5.0, 9.0].iter().map(|&seed| x(1, 4, seed)).collect();
    let runs = check(allowed(&[2, 4, 8]), PLAIN, 1, &requests);
    assert_eq!(runs, [(2, 2), (4, 4)]);
    let runs = check(allowed(&[8]), SCALED, 1, &[scaled(x(10, 4, 1.0), 3.0)]);
    assert_eq!(runs, [(8, 2), (8, 4), (8, 4)], "a scalar is not repeated");
}

#[test]
fn added_items_are_counted() {
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", allowed(&[4, 8]), PLAIN);
    rows.gate.open();
    bench.ask(0, &servable, x(2, 4, 1.0));
    assert_eq!(bench.answers(1)[0].1.batch, 2, "items of requests");
    bench.scheduler.shutdown();
    let model = &bench.scheduler.snapshot().models[0];
    assert_eq!((model.batches, model.items, model.added_items), (1, 2, 2));
    assert_eq!((model.batch_sizes[1], model.run_sizes[2]), (1, 1), "up to 2, up to 4");
    assert_eq!((model.filled[&4].added_items, model.filled[&4].runs[1]), (2, 1));
}

#[test]
fn a_request_without_a_scheduler_has_an_allowed_size_too() {
    let (rows, servable) = model("m", allowed(&[4, 8]), PLAIN);
    rows.gate.open();
    let outputs = millpond_schedule::run_alone(&servable, &x(3, 4, 1.0), &[]).unwrap();
    assert_eq!(outputs[0].tensor.shape(), [3]);
    servable.set_mixes_items();
    let alone = millpond_schedule::run_alone(&servable, &x(3, 4, 1.0), &[]).unwrap();
    assert_eq!(alone, outputs);
    assert_eq!(rows.runs(), [(4, 4), (3, 4)], "as a worker runs it");
}

#[test]
fn requests_without_a_scheduler_share_a_run() {
    let requests = [x(1, 4, 1.0), x(3, 4, 2.0), x(2, 5, 3.0)];
    let expected = alone(&allowed(&[8]), PLAIN, &requests);
    let (rows, servable) = model("m", allowed(&[8]), PLAIN);
    rows.gate.open();
    let [a, b, c] = requests.each_ref().map(Vec::as_slice);
    let answers = millpond_schedule::run_joined(&servable, &[a, b], &[]).unwrap().unwrap();
    assert_eq!(answers, expected[..2]);
    assert_eq!(rows.runs(), [(8, 4)], "filled up to an allowed size");
    assert!(millpond_schedule::run_joined(&servable, &[a, c], &[]).is_none(), "another size");
    assert!(millpond_schedule::run_joined(&servable, &[b; 3], &[]).is_none(), "too many items");
}

/// One sum instead of two shows that the model mixes its items.
#[test]
fn requests_to_a_model_that_mixes_do_not_share_a_run() {
    let mixes = Kind { mixes: true, ..Kind::default() };
    let (rows, servable) = model("m", allowed(&[8]), mixes);
    rows.gate.open();
    let request = x(1, 4, 1.0);
    let joined = millpond_schedule::run_joined(&servable, &[&request, &request], &[]).unwrap();
    assert_eq!(joined.unwrap_err().kind(), ErrorKind::Internal);
}

/// One sum instead of two shows that the model mixes its items.
#[test]
fn no_item_is_added_if_a_model_mixes_its_items() {
    let mixes = Kind { mixes: true, ..Kind::default() };
    let runs = check(allowed(&[2, 8]), mixes, 1, &[x(1, 4, 1.0), x(2, 4, 1.0)]);
    assert_eq!(runs, [(2, 2), (1, 2), (1, 4), (2, 4)]);
}

/// A scalar has no items, which matters only if requests are joined.
#[test]
fn a_bucket_has_its_effect_beside_a_scalar() {
    let mut options = padding();
    options.mode = engine::ScheduleMode::Sync;
    if let Some(pad) = options.inputs.get_mut("x") {
        (pad.mask, pad.buckets) = (None, vec![4, 8]);
    }
    let (rows, servable) = model("m", options, SCALED);
    rows.gate.open();
    let bench = Bench::new(1, 100);
    bench.ask(0, &servable, scaled(x(2, 3, 1.0), 2.0));
    let answers = bench.answers(1);
    assert_eq!(ok(&answers[0])[1].tensor.shape(), [2, 1], "pairs of three columns");
    assert_eq!(rows.runs(), [(2, 4)]);
}

/// Without a mask, padding shows in the sums.
#[test]
fn a_request_without_a_scheduler_is_padded_too() {
    let mut options = padding();
    options.merge = engine::Merge::Equal;
    if let Some(pad) = options.inputs.get_mut("x") {
        (pad.mask, pad.buckets) = (None, vec![4, 8]);
    }
    let (rows, servable) = model("m", options, PLAIN);
    rows.gate.open();
    let outputs = millpond_schedule::run_alone(&servable, &x(2, 3, 1.0), &[]).unwrap();
    assert_eq!(outputs[1].tensor.shape(), [2, 1], "pairs of three columns");
    let bench = Bench::new(1, 100);
    bench.ask(0, &servable, x(2, 3, 1.0));
    assert_eq!(ok(&bench.answers(1)[0]), outputs.as_slice());
    assert_eq!(rows.runs(), [(2, 4), (2, 4)]);
}

#[test]
fn a_request_larger_than_a_batch_is_split_and_joined() {
    let runs = check(merging(), PLAIN, 1, &[x(20, 4, 0.0), x(3, 4, 5.0)]);
    assert_eq!(
        runs,
        [(1, 2), (8, 4), (8, 4), (7, 4)],
        "4 rows are left over and merge with the next request's 3"
    );
}

#[test]
fn a_request_that_fails_does_not_fail_its_batch_mates() {
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", merging(), PLAIN);
    bench.ask(9, &servable, x(1, 2, 0.0));
    rows.wait_running(1);
    for (tag, seed) in [(0, 1.0), (1, POISON), (2, 3.0)] {
        bench.ask(tag, &servable, x(1, 4, seed));
    }
    rows.gate.open();
    let answers = bench.answers(4);
    assert_eq!(tags(&answers), [9, 0, 1, 2]);
    assert_eq!(answers[2].1.result.as_ref().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(answers[1].1.result.is_ok() && answers[3].1.result.is_ok());
    assert_eq!(rows.runs(), [(1, 2), (3, 4), (1, 4), (1, 4), (1, 4)]);
    bench.scheduler.shutdown();
    assert_eq!(bench.scheduler.snapshot().models[0].reruns, 1);
}

#[test]
fn a_failed_part_ends_its_request() {
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", merging(), PLAIN);
    rows.gate.open();
    // Three parts, of which the first is refused.
    bench.ask(0, &servable, x(24, 2, POISON));
    let answers = bench.answers(1);
    assert_eq!(answers[0].1.result.as_ref().unwrap_err().kind(), ErrorKind::InvalidArgument);
    bench.scheduler.shutdown();
    assert_eq!(rows.runs(), [(8, 2)]);
    let counts = &bench.scheduler.snapshot().models[0];
    assert_eq!((counts.requests, counts.cancelled), (1, 0));
}

/// Another model holds the worker until all requests wait, so that they run together.
#[test]
fn a_request_without_a_client_is_not_run_again() {
    let bench = Bench::new(1, 100);
    let (other_rows, other) = model("other", merging(), PLAIN);
    let (rows, servable) = model("m", merging(), PLAIN);
    bench.ask(9, &other, x(1, 2, 0.0));
    other_rows.wait_running(1);
    bench.ask(0, &servable, x(1, 4, 1.0));
    bench.ask(1, &servable, x(1, 4, POISON));
    let cancelled = Arc::new(AtomicBool::new(false));
    let (sender, abandoned) = mpsc::channel();
    let job = Job {
        servable: servable.clone(),
        inputs: x(1, 4, 3.0),
        outputs: vec![],
        priority: 0,
        deadline: Instant::now() + Duration::from_secs(60),
        cancelled: cancelled.clone(),
        done: Box::new(move |completion| sender.send(completion).unwrap()),
    };
    bench.scheduler.submit(job).unwrap();
    other_rows.gate.open();
    rows.wait_running(1);
    cancelled.store(true, Ordering::SeqCst);
    rows.gate.open();
    assert_eq!(tags(&bench.answers(3)), [9, 0, 1]);
    let answer = abandoned.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(answer.result.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(rows.runs(), [(3, 4), (1, 4), (1, 4)]);
}

#[test]
fn merged_and_padded_requests_are_counted() {
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", padding(), MASKED);
    bench.ask(0, &servable, x(1, 2, 0.0));
    rows.wait_running(1);
    for (tag, columns) in [(1, 4), (2, 6), (3, 5)] {
        bench.ask(tag, &servable, x(1, columns, 1.0));
    }
    let waiting = bench.scheduler.snapshot();
    assert_eq!((waiting.queued, waiting.busy, waiting.models[0].queued), (3, 1, 3));
    rows.gate.open();
    let answers = bench.answers(4);
    assert_eq!(answers[3].1.batch, 3);
    bench.scheduler.shutdown();
    let model = &bench.scheduler.snapshot().models[0];
    assert_eq!((model.requests, model.batches, model.items), (4, 2, 4));
    assert_eq!((model.real_elements, model.padding_elements), (2 + 15, 3));
    assert_eq!(model.batch_sizes[..4], [1, 0, 1, 0]);
}

/// Two rows in a run could also be two sums that both belong to the first request.
#[test]
fn a_run_alone_shows_that_a_model_mixes_its_items() {
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", merging(), Kind { mixes: true, ..Kind::default() });
    bench.ask(0, &servable, x(2, 2, 0.0));
    rows.wait_running(1);
    for tag in [1, 2] {
        bench.ask(tag, &servable, x(1, 4, 1.0));
    }
    rows.gate.open();
    assert_eq!(tags(&bench.answers(3)), [0, 1, 2]);
    assert_eq!(rows.runs(), [(2, 2), (1, 4), (1, 4)], "the last two were not joined");
    bench.scheduler.shutdown();
    let model = &bench.scheduler.snapshot().models[0];
    assert_eq!((model.reruns, model.unjoined_versions), (0, 1));
}

/// Such a run is a warm-up.
#[test]
fn a_run_without_a_scheduler_shows_that_a_model_mixes() {
    let (rows, servable) = model("m", merging(), Kind { mixes: true, ..Kind::default() });
    rows.gate.open();
    millpond_schedule::run_alone(&servable, &x(2, 4, 1.0), &[]).unwrap();
    assert!(servable.mixes_items());
    let bench = Bench::new(1, 100);
    for tag in 0..2 {
        bench.ask(tag, &servable, x(1, 4, 1.0));
        assert!(bench.answers(1)[0].1.result.is_ok());
    }
    bench.scheduler.shutdown();
    assert_eq!(bench.scheduler.snapshot().models[0].unjoined_versions, 1);
    let (_, apart) = model("apart", merging(), PLAIN);
    assert!(!apart.take_new_mixing());
}

/// The run has added items.
#[test]
fn a_filled_run_without_a_scheduler_shows_that_a_model_mixes() {
    let mixes = Kind { mixes: true, ..Kind::default() };
    let (rows, servable) = model("m", allowed(&[8]), mixes);
    rows.gate.open();
    millpond_schedule::run_alone(&servable, &x(2, 4, 1.0), &[]).unwrap();
    assert!(servable.mixes_items());
    assert_eq!(rows.runs(), [(8, 4), (2, 4)]);
}

/// Parts of a large request that a model mixes cannot be joined: it runs whole.
#[test]
fn a_large_request_to_a_model_that_mixes_is_not_split() {
    let runs = check(merging(), Kind { mixes: true, ..Kind::default() }, 1, &[x(20, 4, 1.0)]);
    assert_eq!(runs.last(), Some(&(20, 4)));
}
