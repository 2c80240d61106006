//! Settings that change while requests wait.

use std::sync::Arc;
use std::time::Duration;

use engine::{ScheduleOptions, Servable, ServableSettings};

use crate::rows::{Bench, Kind, Rows, merging, model, ok, padding, x};

/// Returns the same session with other settings.
fn under(servable: &Servable, options: ScheduleOptions) -> Arc<Servable> {
    Arc::new(
        servable
            .with_settings(ServableSettings { schedule: options, ..Default::default() })
            .unwrap(),
    )
}

/// Lets one worker run `requests`, which wait together behind another request, and returns the
/// runs.
fn waited(bench: &Bench, rows: &Rows, requests: &[(&Arc<Servable>, usize)]) -> Vec<(usize, usize)> {
    let before = rows.runs().len();
    rows.gate.close();
    bench.ask(100, requests[0].0, x(1, 2, 0.0));
    rows.wait_running(before + 1);
    for (tag, (servable, columns)) in requests.iter().enumerate() {
        bench.ask(tag, servable, x(1, *columns, 1.0));
    }
    rows.gate.open();
    for answer in bench.answers(requests.len() + 1).iter().filter(|answer| answer.0 < 100) {
        let (servable, columns) = requests[answer.0];
        assert_eq!(ok(answer), servable_alone(servable, columns), "request {}", answer.0);
    }
    rows.runs()[before + 1..].iter().copied().filter(|&(_, columns)| columns > 2).collect()
}

fn servable_alone(servable: &Servable, columns: usize) -> Vec<base::NamedTensor> {
    let (rows, alone) = model("alone", servable.schedule().clone(), Kind::default());
    rows.gate.open();
    alone.run(&x(1, columns, 1.0), &[]).unwrap()
}

#[test]
fn requests_before_and_after_a_change_share_no_run() {
    let bench = Bench::new(1, 100);
    let (rows, before) = model("m", merging(), Kind::default());
    let after = under(&before, ScheduleOptions { max_batch: 4, ..merging() });
    let runs = waited(&bench, &rows, &[(&before, 6), (&after, 6), (&before, 6), (&after, 6)]);
    assert_eq!(runs, [(2, 6), (2, 6)]);
}

#[test]
fn a_corrected_rule_for_outputs_is_tried_again() {
    let mut wrong = padding();
    wrong.inputs.get_mut("x").unwrap().mask = None;
    let right = wrong.clone();
    wrong.outputs.get_mut("pairs").unwrap()[0].divisor = 3;
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", wrong, Kind::default());
    let both = [(&servable, 6), (&servable, 6)];
    // Detected: one run together, and then each request again alone.
    assert_eq!(waited(&bench, &rows, &both), [(2, 6), (1, 6), (1, 6)]);
    assert_eq!(waited(&bench, &rows, &both), [(1, 6), (1, 6)]);
    let mended = under(&servable, right);
    assert_eq!(waited(&bench, &rows, &[(&mended, 6), (&mended, 6)]), [(2, 6)]);
}

#[test]
fn a_changed_delay_starts_lingering_again() {
    let lingering =
        |ms| ScheduleOptions { max_queue_delay: Duration::from_millis(ms), ..merging() };
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", lingering(20), Kind::default());
    rows.gate.open();
    let waits = |servable: &Arc<Servable>, ms| {
        bench.ask(0, servable, x(1, 4, 0.0));
        bench.answers(1)[0].1.queue >= Duration::from_millis(ms)
    };
    assert!((0..40).any(|_| !waits(&servable, 20)), "lingering stops if no request comes");
    assert!(waits(&under(&servable, lingering(40)), 40));
}

/// Counts and measurements of a model stay while any of its versions exists, and for a time after
/// that, because a next version may come.
#[test]
fn counters_outlive_streams_and_versions() {
    let bench = Bench::new(1, 100);
    let (first, older) = model("m", ScheduleOptions::default(), Kind::default());
    let (second, newer) = model("m", ScheduleOptions::default(), Kind::default());
    first.gate.open();
    second.gate.open();
    let ask = |servable: &Arc<Servable>| {
        bench.ask(0, servable, x(1, 2, 0.0));
        assert_eq!(bench.answers(1)[0].1.batch, 1);
    };
    let requests = || {
        let snapshot = bench.scheduler.snapshot();
        snapshot
            .models
            .first()
            .map(|model| (model.requests + model.running as u64, snapshot.models.len()))
    };
    ask(&older);
    ask(&older.stream(vec![], 1).unwrap());
    assert_eq!(requests(), Some((2, 1)), "a stream is gone");
    ask(&newer);
    drop(newer);
    assert_eq!(requests(), Some((3, 1)), "the version asked last is gone");
    let stream = older.stream(vec![], 1).unwrap();
    ask(&stream);
    drop(older);
    assert_eq!(requests(), Some((4, 1)), "the version is held by its stream");
    drop(stream);
    bench.scheduler.shutdown();
    assert_eq!(requests(), Some((4, 1)), "no version is left");
}
