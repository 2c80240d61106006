//! Order of requests: priorities, deadlines, fairness, and shapes that do not delay each other.

use std::time::Duration;

use base::ErrorKind;
use engine::{PriorityOptions, ScheduleMode, ScheduleOptions};
use millpond_schedule::SchedulerConfig;

use crate::Opens;
use crate::rows::{Bench, Kind, With, merging, model, ok, tags, wide_model, x};

const PLAIN: Kind = Kind { masked: false, mixes: false, scaled: false };

fn priority(priority: usize) -> With {
    With { priority, ..With::default() }
}

#[test]
fn higher_priorities_go_first_and_have_their_own_limit() {
    let level = |queue_max| PriorityOptions { queue_max, timeout: None };
    let options = ScheduleOptions {
        priorities: vec![level(None), level(Some(2))],
        default_priority: 2,
        ..ScheduleOptions::default()
    };
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", options, PLAIN);
    bench.ask(0, &servable, x(1, 2, 0.0));
    rows.wait_running(1);
    bench.ask(1, &servable, x(1, 2, 0.0));
    bench.send(2, &servable, x(1, 2, 0.0), priority(2)).unwrap();
    let refusal = bench.send(3, &servable, x(1, 2, 0.0), priority(7)).unwrap_err();
    assert_eq!(
        refusal.kind(),
        ErrorKind::ResourceExhausted,
        "a level beyond the last is the default"
    );
    bench.send(4, &servable, x(1, 2, 0.0), priority(1)).unwrap();
    assert_eq!(bench.scheduler.snapshot().models[0].queued_by_priority, [1, 2]);
    rows.gate.open();
    assert_eq!(tags(&bench.answers(4)), [0, 4, 1, 2]);
}

#[test]
fn a_full_queue_has_room_for_a_higher_priority() {
    let options = ScheduleOptions {
        priorities: vec![PriorityOptions::default(); 2],
        default_priority: 2,
        ..ScheduleOptions::default()
    };
    let bench = Bench::new(1, 2);
    let (rows, servable) = model("m", options, PLAIN);
    bench.ask(0, &servable, x(1, 2, 0.0));
    rows.wait_running(1);
    let send = |tag, level| bench.send(tag, &servable, x(1, 2, 0.0), priority(level));
    let refusal = |tag, level| send(tag, level).unwrap_err().kind();
    send(1, 2).unwrap();
    send(2, 2).unwrap();
    assert_eq!(refusal(3, 2), ErrorKind::ResourceExhausted);
    send(4, 1).unwrap();
    send(5, 1).unwrap();
    assert_eq!(refusal(6, 1), ErrorKind::ResourceExhausted);
    rows.gate.open();
    assert_eq!(tags(&bench.answers(5)), [0, 4, 5, 1, 2]);
}

/// A model with four times the weight gets four runs for each of the other's; both always have
/// requests waiting.
#[test]
fn models_share_the_workers_by_weight() {
    let bench = Bench::new(1, 100);
    let (light, heavy) =
        (ScheduleOptions::default(), ScheduleOptions { weight: 4, ..ScheduleOptions::default() });
    let (first, a) = model("a", light, PLAIN);
    let (second, b) = model("b", heavy, PLAIN);
    second.gate.open();
    bench.ask(0, &a, x(1, 2, 0.0));
    first.wait_running(1);
    for tag in 1..60 {
        bench.ask(tag, &a, x(1, 2, 0.0));
        bench.ask(100 + tag, &b, x(1, 2, 0.0));
    }
    // The first run of a is charged for this time. It exceeds the runs of b, also if one of them
    // loses its core for a while.
    std::thread::sleep(Duration::from_millis(500));
    first.gate.open();
    let order = tags(&bench.answers(119));
    let last_of_b = order.iter().rposition(|&tag| tag > 100).unwrap();
    let of_a = order[..last_of_b].iter().filter(|&&tag| tag < 100).count();
    assert!(of_a < 59, "a must not be done before b: {of_a}");
}

/// Shapes that cannot merge do not delay each other: while one lingers, a full batch of another
/// runs.
#[test]
fn a_lingering_shape_is_overtaken_by_a_full_one() {
    let options =
        ScheduleOptions { max_queue_delay: Duration::from_secs(10), max_batch: 2, ..merging() };
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", options, PLAIN);
    rows.gate.open();
    bench.ask(0, &servable, x(1, 10, 0.0));
    bench.ask(1, &servable, x(1, 6, 0.0));
    bench.ask(2, &servable, x(1, 6, 0.0));
    assert_eq!(tags(&bench.answers(2)), [1, 2]);
    assert!(bench.no_more());
    bench.ask(3, &servable, x(1, 10, 0.0));
    assert_eq!(tags(&bench.answers(2)), [0, 3]);
    assert_eq!(rows.runs(), [(2, 6), (2, 10)]);
}

#[test]
fn lingering_ends_with_the_delay() {
    let delay = Duration::from_secs(1);
    // Returns true if the requests run together. If this thread is paused between two of them for
    // longer than the delay, they do not.
    let run_together = || {
        let options = ScheduleOptions { max_queue_delay: delay, ..merging() };
        let bench = Bench::new(2, 100);
        let (rows, servable) = model("m", options, PLAIN);
        rows.gate.open();
        for tag in 0..3 {
            bench.ask(tag, &servable, x(1, 4, 0.0));
        }
        let answers = bench.answers(3);
        let together = rows.runs() == [(3, 4)];
        assert!(!together || tags(&answers) == [0, 1, 2]);
        together
    };
    assert!((0..10).any(|_| run_together()));
}

/// Lingering that never brings more requests stops, except for a try now and then.
#[test]
fn useless_lingering_stops() {
    // Much longer than a worker needs to wake up, which is part of the queueing time as well.
    let delay = Duration::from_millis(50);
    let options = ScheduleOptions { max_queue_delay: delay, ..merging() };
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", options, PLAIN);
    rows.gate.open();
    let waited = (0..100).filter(|&tag| {
        bench.ask(tag, &servable, x(1, 4, 0.0));
        bench.answers(1)[0].1.queue >= delay
    });
    // 0.9^n falls below 0.1 after 22 lingers; then one in 32 tries.
    assert!((22..60).contains(&waited.count()));
}

#[test]
fn a_preferred_size_does_not_linger() {
    let options = ScheduleOptions {
        max_queue_delay: Duration::from_secs(10),
        preferred_batch_sizes: vec![3],
        ..merging()
    };
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", options, PLAIN);
    rows.gate.open();
    for tag in 0..3 {
        bench.ask(tag, &servable, x(1, 4, 0.0));
    }
    assert_eq!(tags(&bench.answers(3)), [0, 1, 2]);
    assert_eq!(rows.runs(), [(3, 4)]);
}

#[test]
fn late_and_cancelled_requests_leave_the_batch() {
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", merging(), PLAIN);
    bench.ask(0, &servable, x(1, 2, 0.0));
    rows.wait_running(1);
    let late = With { deadline: Duration::ZERO, ..With::default() };
    bench.send(1, &servable, x(1, 4, 0.0), late).unwrap();
    bench.send(2, &servable, x(1, 4, 0.0), With { cancelled: true, ..With::default() }).unwrap();
    bench.ask(3, &servable, x(1, 4, 0.0));
    rows.gate.open();
    let answers = bench.answers(4);
    let kind = |tag: usize| {
        let answer = answers.iter().find(|answer| answer.0 == tag).unwrap();
        answer.1.result.as_ref().err().map(base::Error::kind)
    };
    assert_eq!(
        [1, 2, 3].map(kind),
        [Some(ErrorKind::DeadlineExceeded), Some(ErrorKind::Cancelled), None]
    );
    assert_eq!(rows.runs(), [(1, 2), (1, 4)]);
    bench.scheduler.shutdown();
    let model = &bench.scheduler.snapshot().models[0];
    assert_eq!((model.expired, model.cancelled), (1, 1));
}

/// A caller stops waiting at the deadline, often before a worker is free.
#[test]
fn a_request_abandoned_at_its_deadline_has_expired() {
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", merging(), PLAIN);
    bench.ask(0, &servable, x(1, 2, 0.0));
    rows.wait_running(1);
    let given_up = With { deadline: Duration::ZERO, cancelled: true, ..With::default() };
    bench.send(1, &servable, x(1, 4, 0.0), given_up).unwrap();
    rows.gate.open();
    let answers = bench.answers(2);
    assert_eq!(tags(&answers), [0, 1]);
    let error = answers[1].1.result.as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    bench.scheduler.shutdown();
    let model = &bench.scheduler.snapshot().models[0];
    assert_eq!((model.expired, model.cancelled), (1, 0));
}

/// Cancelled requests are removed before another request is refused.
#[test]
fn cancelled_requests_make_room_in_a_full_queue() {
    let bench = Bench::new(1, 2);
    let (rows, servable) = model("m", merging(), PLAIN);
    bench.ask(0, &servable, x(1, 2, 0.0));
    rows.wait_running(1);
    for tag in [1, 2] {
        bench
            .send(tag, &servable, x(1, 4, 0.0), With { cancelled: true, ..With::default() })
            .unwrap();
    }
    bench.ask(3, &servable, x(1, 4, 0.0));
    assert_eq!(tags(&bench.answers(2)), [1, 2]);
    rows.gate.open();
    assert!(bench.answers(2).iter().all(|answer| answer.1.result.is_ok()));
}

/// `threads` bounds the runs of a model at a time, and leaves the other workers to other models.
#[test]
fn a_model_with_one_thread_leaves_the_others_free() {
    let one = ScheduleOptions {
        threads: Some(1),
        mode: ScheduleMode::Sync,
        ..ScheduleOptions::default()
    };
    let bench = Bench::new(2, 100);
    let (slow, a) = model("a", one, PLAIN);
    let (quick, b) = model("b", ScheduleOptions::default(), PLAIN);
    quick.gate.open();
    bench.ask(0, &a, x(1, 2, 0.0));
    bench.ask(1, &a, x(1, 2, 0.0));
    slow.wait_running(1);
    bench.ask(2, &b, x(1, 2, 0.0));
    assert_eq!(tags(&bench.answers(1)), [2]);
    assert_eq!(slow.runs().len(), 1);
    slow.gate.open();
    assert!(bench.answers(2).iter().all(|answer| !ok(answer).is_empty()));
}

/// A model at its limit of runs delays no other model, however many cores its runs take.
#[test]
fn a_wide_model_at_its_limit_leaves_cores_to_others() {
    let one = ScheduleOptions { threads: Some(1), ..ScheduleOptions::default() };
    let bench = Bench::new(3, 100);
    let (slow, a) = wide_model("a", one, 2, PLAIN);
    let (quick, b) = model("b", ScheduleOptions::default(), PLAIN);
    let _opens = Opens(slow.gate.clone());
    quick.gate.open();
    // b has used more than a, so a is checked first.
    bench.ask(0, &b, x(1, 2, 0.0));
    assert_eq!(tags(&bench.answers(1)), [0]);
    while bench.scheduler.snapshot().models[0].requests == 0 {
        std::thread::yield_now();
    }
    bench.ask(1, &a, x(1, 2, 0.0));
    slow.wait_running(1);
    bench.ask(2, &a, x(1, 2, 0.0));
    bench.ask(3, &b, x(1, 2, 0.0));
    assert_eq!(tags(&bench.answers(1)), [3]);
    slow.gate.open();
    assert_eq!(bench.answers(2).len(), 2);
}

/// Threads inside runs that come on top of the workers delay no other run.
#[test]
fn wide_runs_with_extra_threads_are_concurrent() {
    let config = SchedulerConfig { workers: 2, queue_max: 100, pin: false, count_threads: false };
    let bench = Bench::with(&config);
    let (rows, servable) = wide_model("m", ScheduleOptions::default(), 4, PLAIN);
    let _opens = Opens(rows.gate.clone());
    for tag in 0..3 {
        bench.ask(tag, &servable, x(1, 2, 0.0));
    }
    rows.wait_running(2);
    rows.gate.open();
    assert_eq!(bench.answers(3).len(), 3);
}

#[test]
fn shutdown_does_not_linger() {
    let options = ScheduleOptions { max_queue_delay: Duration::from_secs(10), ..merging() };
    let bench = Bench::new(2, 100);
    let (rows, servable) = model("m", options, PLAIN);
    rows.gate.open();
    bench.ask(0, &servable, x(1, 4, 0.0));
    bench.scheduler.shutdown();
    assert_eq!(tags(&bench.answers(1)), [0]);
}

/// A linger longer than a request's deadline does not let it expire.
#[test]
fn lingering_leaves_time_before_the_deadline() {
    let options = ScheduleOptions { max_queue_delay: Duration::from_secs(10), ..merging() };
    let bench = Bench::new(1, 100);
    let (rows, servable) = model("m", options, PLAIN);
    rows.gate.open();
    bench.ask(0, &servable, x(1, 6, 0.0));
    // Lingering ends after half of this. The other half is the worker's time to wake up.
    let hurried = With { deadline: Duration::from_secs(6), ..With::default() };
    bench.send(1, &servable, x(1, 6, 0.0), hurried).unwrap();
    assert!(bench.answers(2).iter().all(|answer| answer.1.result.is_ok()));
    assert_eq!(rows.runs(), [(2, 6)]);
}
