//! Every interleaving of workers and requests at the dispatch, by loom (`make loom`).

use std::sync::Arc;
use std::time::Instant;

use engine::{ScheduleOptions, Servable};
use loom::sync::mpsc::{Sender, channel};
use loom::thread;

use crate::SchedulerConfig;
use crate::dispatch::{Dispatch, DispatchedWork, EndedRun, WhenFull};
use crate::model_queue::RunFigures;
use crate::trial::{model, request};

/// Preemptions in one interleaving. Two find most faults of locks (Musuvathi and Qadeer, 2007).
const PREEMPTIONS_MAX: usize = 2;

/// Takes runs until the dispatch is closed, and reports each request.
fn work(dispatch: &Dispatch, worker: usize, done: &Sender<()>) {
    let mut ended = None;
    while let Some(work) = dispatch.next(worker, ended.take()) {
        let DispatchedWork::Run(batch) = work else { continue };
        batch.entries.iter().for_each(|_| done.send(()).unwrap());
        let cores = batch.cores;
        ended = Some(EndedRun {
            model: batch.model(),
            figures: RunFigures { cores, charge: batch.charge, ..RunFigures::default() },
            cores_taken: batch.taken,
        });
    }
}

fn push(dispatch: &Dispatch, servable: &Arc<Servable>) {
    let entries = request(servable, 1, Instant::now());
    assert!(dispatch.push(entries, WhenFull::GiveUp, &mut Vec::new()).is_ok());
}

#[test]
fn loom_each_request_runs_once_and_workers_end() {
    let servables = ["one", "two"].map(|name| model(name, ScheduleOptions::default()));
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(PREEMPTIONS_MAX);
    checker.check(move || {
        let config = SchedulerConfig { workers: 2, queue_max: 8, pin: false, count_threads: true };
        let dispatch = Arc::new(Dispatch::new(&config));
        let (done, finished) = channel();
        let workers = [0, 1].map(|worker| {
            let (dispatch, done) = (dispatch.clone(), done.clone());
            thread::spawn(move || work(&dispatch, worker, &done))
        });
        servables.iter().for_each(|servable| push(&dispatch, servable));
        // A request that no worker is woken for would block here for ever, which loom reports.
        servables.iter().for_each(|_| finished.recv().unwrap());
        assert_eq!(dispatch.queued(), 0);
        dispatch.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert!(finished.try_recv().is_err(), "a request ran twice");
    });
}
