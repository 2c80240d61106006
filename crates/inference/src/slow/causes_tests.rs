use std::sync::{Arc, Mutex};
use std::time::Instant;

use base::{Moment, QueueWait, RequestClock, RunAhead, TimelineSink, VersionId};
use proptest::prelude::*;

use super::super::evidence::BacklogEvidence;
use super::*;

/// A request's phases in milliseconds, and its run.
#[derive(Clone, Debug)]
struct Request {
    receive: u64,
    queue: u64,
    run: u64,
    cpu: u64,
    send: u64,
    items: usize,
    requests: usize,
    major_faults: u64,
    wait: QueueWait,
    loading: bool,
}

const USUAL: Request = Request {
    receive: 1,
    queue: 1,
    run: 4,
    cpu: 4,
    send: 1,
    items: 1,
    requests: 1,
    major_faults: 0,
    wait: QueueWait {
        before: 0,
        idle_worker: false,
        busy_since: None,
        busy: Duration::ZERO,
        busy_own: Duration::ZERO,
        off_core: Duration::ZERO,
        ahead: None,
    },
    loading: false,
};

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Request {
    fn timeline(&self) -> RequestTimeline {
        // A clock starts by itself. If this thread loses its core before the first mark, the
        // timeline has a longer phase than the test sets.
        loop {
            let timeline = self.timeline_from_now();
            let received = timeline.offset(Moment::BodyComplete).unwrap();
            if received < millis(self.receive) + Duration::from_micros(100) {
                return timeline;
            }
        }
    }

    fn timeline_from_now(&self) -> RequestTimeline {
        #[derive(Default)]
        struct Kept(Mutex<Option<RequestTimeline>>);
        impl TimelineSink for Kept {
            fn ended(&self, timeline: &RequestTimeline) {
                *self.0.lock().unwrap() = Some(timeline.clone());
            }
        }
        let kept = Arc::new(Kept::default());
        let clock = RequestClock::start("oip-http", Some(kept.clone()));
        let start = Instant::now();
        let received = start + millis(self.receive);
        let started = received + millis(self.queue);
        let ended = started + millis(self.run);
        clock.mark_at(Moment::BodyComplete, received);
        clock.mark_at(Moment::Queued, received);
        clock.mark_at(Moment::Answered, ended);
        clock.mark_at(Moment::Encoded, ended);
        clock.record_outcome(Some(&VersionId { model: "m".into(), version: 1 }), "ok");
        clock.record_run(RunRecord {
            batch: 7,
            requests: self.requests,
            items: self.items,
            started,
            ended,
            cpu: Some(millis(self.cpu)),
            minor_faults: 0,
            major_faults: self.major_faults,
            wait: self.wait.clone(),
        });
        if self.loading {
            clock.record_loading();
        }
        clock.end_at(ended + millis(self.send));
        kept.0.lock().unwrap().take().unwrap()
    }
}

fn typical() -> Typical {
    let timeline = USUAL.timeline();
    let phases = PhaseTimes::of(&timeline);
    Typical { median: timeline.total(), phases, items: 1.0, minor_faults: 0.0 }
}

/// Returns evidence of a machine on which nothing competes.
fn quiet() -> SampleSums {
    SampleSums { length: 200.0, cores: 2, ..SampleSums::default() }
}

/// Returns evidence of threads that waited for a core for 100 ms, while others used both cores.
fn contended() -> SampleSums {
    SampleSums { others: 300.0, workers_waited: 100.0, connections_waited: 100.0, ..quiet() }
}

fn first(request: &Request, evidence: &SampleSums) -> &'static str {
    explain(&request.timeline(), &typical(), evidence)[0].cause
}

fn behind(model: &str, own: u64) -> QueueWait {
    QueueWait {
        before: 3,
        busy: millis(50),
        busy_own: millis(own),
        ahead: Some(RunAhead { batch: 6, model: model.into(), items: 64, time: millis(50) }),
        ..QueueWait::default()
    }
}

#[test]
fn each_phase_names_its_cause() {
    let off_core = Request { run: 44, ..USUAL };
    let compute = Request { run: 44, cpu: 44, ..USUAL };
    let queue = Request { queue: 41, ..USUAL };
    let throttled = SampleSums { throttled: 150.0, ..contended() };
    let stolen = SampleSums { stolen: 60.0, ..contended() };
    let loads = SampleSums { loads: 190.0, others: 10.0, workers_waited: 100.0, ..quiet() };
    for (request, evidence, wanted) in [
        (&Request { receive: 201, ..USUAL }, quiet(), "client_slow_send"),
        (&Request { send: 201, ..USUAL }, quiet(), "client_slow_read"),
        (&Request { receive: 301, ..USUAL }, contended(), "client_slow_send"),
        (&off_core, contended(), "cpu_contention"),
        (&off_core, throttled, "throttled"),
        (&off_core, stolen, "stolen_time"),
        (&off_core, loads.clone(), "load"),
        (&off_core, quiet(), "unknown"),
        (&Request { major_faults: 3, ..off_core.clone() }, quiet(), "page_faults"),
        (&compute, quiet(), "unknown"),
        (&compute, contended(), "cpu_contention"),
        (&Request { loading: true, ..compute.clone() }, loads, "load"),
        (&Request { items: 64, requests: 2, ..compute.clone() }, quiet(), "batch_mates"),
        (&Request { items: 64, ..compute.clone() }, quiet(), "large_request"),
        (&queue, contended(), "cpu_contention"),
        (&queue, quiet(), "unknown"),
        (&Request { wait: behind("other", 2), ..queue.clone() }, quiet(), "behind_batch"),
        (&Request { wait: behind("other", 2), ..queue.clone() }, contended(), "behind_batch"),
        (&Request { wait: behind("m", 50), ..queue.clone() }, quiet(), "own_queue"),
        (
            &Request {
                wait: QueueWait { off_core: millis(30), ..behind("m", 50) },
                ..queue.clone()
            },
            contended(),
            "cpu_contention",
        ),
    ] {
        assert_eq!(first(request, &evidence), wanted, "{request:?} {evidence:?}");
    }
}

#[test]
fn a_stop_before_the_arrival_explains_the_queue_that_it_left() {
    let queue = Request { queue: 41, wait: behind("m", 50), ..USUAL };
    let with = |backlog| SampleSums { backlog, ..quiet() };
    let none = BacklogEvidence::default();
    let throttled = with(BacklogEvidence { throttled: 300.0, ..none });
    for (evidence, wanted) in [
        (throttled.clone(), "throttled"),
        (with(BacklogEvidence { stolen: 30.0, ..none }), "stolen_time"),
        (with(BacklogEvidence { contended: 30.0, ..none }), "cpu_contention"),
        (with(BacklogEvidence { loads: 30.0, ..none }), "load"),
        (with(BacklogEvidence { throttled: 10.0, ..none }), "own_queue"),
        (SampleSums { throttled: 60.0, ..quiet() }, "throttled"),
    ] {
        assert_eq!(first(&queue, &evidence), wanted, "{evidence:?}");
    }
    let behind_others = Request { wait: behind("other", 2), ..queue };
    assert_eq!(first(&behind_others, &throttled), "behind_batch");
}

#[test]
fn crowded_cores_explain_what_nothing_else_does() {
    let late = Request { queue: 41, ..USUAL };
    let others = |others| SampleSums { others, ..quiet() };
    assert_eq!(first(&late, &others(390.0)), "cpu_contention");
    assert_eq!(first(&late, &others(190.0)), "unknown");
}

#[test]
fn a_run_in_front_is_described() {
    let request = Request { queue: 41, wait: behind("other", 0), ..USUAL };
    let causes = explain(&request.timeline(), &typical(), &quiet());
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert!((causes[0].ms - 40.0).abs() < 0.5, "{causes:?}");
    assert_eq!(
        causes[0].detail,
        "it waited behind a run of model other with 64 items, which took 50.0 ms"
    );
}

fn times() -> impl Strategy<Value = Request> {
    let phases = (0u64..300, 0u64..300, 0u64..300, 0u64..300, 0u64..300);
    (phases, 1usize..80, 1usize..5, any::<bool>(), any::<bool>()).prop_map(
        |((receive, queue, run, cpu, send), items, requests, loading, waited)| Request {
            receive,
            queue,
            run,
            cpu,
            send,
            items,
            requests,
            major_faults: 0,
            wait: if waited { behind("other", 20) } else { QueueWait::default() },
            loading,
        },
    )
}

fn samples() -> impl Strategy<Value = SampleSums> {
    let times = (0f64..400.0, 0f64..400.0, 0f64..100.0, 0f64..100.0, 0f64..100.0, 0f64..100.0);
    times.prop_map(|(others, loads, stolen, throttled, workers_waited, connections_waited)| {
        SampleSums {
            others,
            loads,
            stolen,
            throttled,
            workers_waited,
            connections_waited,
            ..quiet()
        }
    })
}

proptest! {
    #[test]
    fn causes_are_sorted_and_add_up(request in times(), evidence in samples()) {
        let (timeline, typical) = (request.timeline(), typical());
        let causes = explain(&timeline, &typical, &evidence);
        let excess = ms(timeline.total().saturating_sub(typical.median));
        let sum: f64 = causes.iter().map(|cause| cause.ms).sum();
        prop_assert!(!causes.is_empty() && causes.len() <= CAUSES_SHOWN_MAX);
        prop_assert!(causes.windows(2).all(|pair| pair[0].ms >= pair[1].ms));
        prop_assert!(sum <= excess + 1e-6, "{} {}", sum, excess);
        // At most seven causes are left out, each smaller than the smallest that is shown.
        let least = causes.last().map_or(0.0, |cause| cause.ms).max(SHARE_MIN * excess);
        prop_assert!(sum + 7.0 * least >= excess - 1e-6, "{} {}", sum, excess);
        // The machine is never blamed for more than was measured.
        let blamed = |name| causes.iter().find(|cause| cause.cause == name).map_or(0.0, |c| c.ms);
        prop_assert!(blamed("throttled") <= evidence.throttled + 1e-6);
        prop_assert!(blamed("stolen_time") <= evidence.stolen + 1e-6);
    }
}
