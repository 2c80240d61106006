//! The scheduler's promises: each job is answered exactly once, limits hold, and nothing runs for a
//! client that has left.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod bounds;
mod merging;
mod order;
mod rows;
mod settings;
mod uneven;
mod varying;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use base::{ErrorKind, NamedTensor, Result, Signature, VersionId};
use engine::{ScheduleOptions, Servable, Session};
use millpond_schedule::{Completion, Job, Scheduler, SchedulerConfig};

/// A gate that a run waits at until the test opens it.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
    fn close(&self) {
        *self.open.lock().unwrap() = false;
    }
    fn pass(&self) {
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.changed.wait(open).unwrap();
        }
    }
}

/// Opens a gate at the end of a test, also of one that fails: else the scheduler would wait for the
/// run at the gate.
struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

struct Gated {
    gate: Arc<Gate>,
    runs: Arc<AtomicUsize>,
    panics: bool,
    signature: Signature,
    metadata: BTreeMap<String, String>,
}

impl Session for Gated {
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
    fn run(&self, inputs: &[NamedTensor], _: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        self.gate.pass();
        assert!(!self.panics, "told to panic");
        Ok(inputs.to_vec())
    }
}

struct Rig {
    scheduler: Arc<Scheduler>,
    gate: Arc<Gate>,
    runs: Arc<AtomicUsize>,
    servable: Arc<Servable>,
    answers: (mpsc::Sender<Completion>, mpsc::Receiver<Completion>),
}

fn rig(workers: usize, queue_max: usize, panics: bool) -> Rig {
    let (gate, runs) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
    let session = Gated {
        gate: gate.clone(),
        runs: runs.clone(),
        panics,
        signature: Signature::default(),
        metadata: BTreeMap::new(),
    };
    let id = VersionId { model: "m".into(), version: 1 };
    let servable =
        Arc::new(Servable::new(id, "test", Box::new(session), ScheduleOptions::default()).unwrap());
    let scheduler =
        Scheduler::start(&SchedulerConfig { workers, queue_max, pin: false, count_threads: true })
            .unwrap();
    Rig { scheduler, gate, runs, servable, answers: mpsc::channel() }
}

impl Rig {
    fn job(&self, deadline: Duration) -> Job {
        let sender = self.answers.0.clone();
        Job {
            servable: self.servable.clone(),
            inputs: vec![],
            outputs: vec![],
            priority: 0,
            deadline: Instant::now() + deadline,
            cancelled: Arc::new(AtomicBool::new(false)),
            done: Box::new(move |completion| sender.send(completion).unwrap()),
        }
    }
    fn submit(&self) -> Result<()> {
        self.scheduler.submit(self.job(Duration::from_secs(60)))
    }
    fn answer(&self) -> Completion {
        self.answers.1.recv_timeout(Duration::from_secs(60)).expect("an answer")
    }
    fn wait_running(&self, count: usize) {
        while self.runs.load(Ordering::SeqCst) < count {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_full_queue_refuses_with_advice() {
    let rig = rig(1, 2, false);
    rig.submit().unwrap();
    rig.wait_running(1);
    rig.submit().unwrap();
    rig.submit().unwrap();
    assert_eq!(rig.scheduler.queued(), 2);
    let refusal = rig.submit().unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::ResourceExhausted);
    assert!(refusal.retry_after().is_some());
    rig.gate.open();
    for _ in 0..3 {
        assert!(rig.answer().result.is_ok());
    }
    rig.scheduler.shutdown();
    assert!(rig.answers.1.try_recv().is_err(), "nothing is answered twice");
}

#[test]
fn only_a_job_that_is_not_retried_counts_as_refused() {
    let rig = rig(1, 1, false);
    rig.submit().unwrap();
    rig.wait_running(1);
    rig.submit().unwrap();
    let refused = || rig.scheduler.snapshot().models[0].refused;
    let again = || rig.scheduler.try_submit(rig.job(Duration::from_secs(60)));
    for _ in 0..3 {
        assert_eq!(again().unwrap_err().kind(), ErrorKind::ResourceExhausted);
    }
    assert_eq!(refused(), 0);
    assert_eq!(rig.submit().unwrap_err().kind(), ErrorKind::ResourceExhausted);
    assert_eq!(refused(), 1);
    rig.gate.open();
    assert!(rig.answer().result.is_ok() && rig.answer().result.is_ok());
    again().unwrap();
    assert!(rig.answer().result.is_ok());
    assert_eq!(refused(), 1);
}

#[test]
fn late_and_abandoned_jobs_never_run() {
    let rig = rig(1, 8, false);
    rig.submit().unwrap();
    rig.wait_running(1);
    let abandoned = rig.job(Duration::from_secs(60));
    abandoned.cancelled.store(true, Ordering::SeqCst);
    rig.scheduler.submit(rig.job(Duration::ZERO)).unwrap();
    rig.scheduler.submit(abandoned).unwrap();
    rig.gate.open();
    assert!(rig.answer().result.is_ok());
    assert_eq!(rig.answer().result.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(rig.answer().result.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(rig.runs.load(Ordering::SeqCst), 1);
}

#[test]
fn a_panic_of_a_model_is_an_answer_and_ends_no_worker() {
    let rig = rig(1, 8, true);
    rig.gate.open();
    for _ in 0..3 {
        rig.submit().unwrap();
        assert_eq!(rig.answer().result.unwrap_err().kind(), ErrorKind::Internal);
    }
}

#[test]
fn shutdown_answers_queued_requests_and_refuses_others() {
    let rig = rig(2, 8, false);
    for _ in 0..5 {
        rig.submit().unwrap();
    }
    rig.gate.open();
    rig.scheduler.shutdown();
    assert_eq!(rig.answers.1.try_iter().count(), 5);
    assert_eq!(rig.submit().unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn the_servable_is_released_before_the_callback() {
    let rig = rig(1, 8, false);
    rig.gate.open();
    let (sender, receiver) = mpsc::channel();
    let servable = rig.servable.clone();
    let mut job = rig.job(Duration::from_secs(60));
    job.done = Box::new(move |_| sender.send(Arc::strong_count(&servable)).unwrap());
    rig.scheduler.submit(job).unwrap();
    assert_eq!(
        receiver.recv_timeout(Duration::from_secs(60)).unwrap(),
        2,
        "the rig's and the callback's own"
    );
}

#[test]
fn bad_sizes_are_refused() {
    for (workers, queue_max) in [(0, 1), (millpond_schedule::WORKERS_MAX + 1, 1), (1, 0)] {
        assert!(
            Scheduler::start(&SchedulerConfig {
                workers,
                queue_max,
                pin: false,
                count_threads: true
            })
            .is_err()
        );
    }
}
