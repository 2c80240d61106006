//! One run: joining its requests, calling the engine, and answering each request once.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, NamedTensor, Result};
use engine::Servable;

use crate::batch::{self, Misfit, Part};
use crate::batch_key::BatchKey;
use crate::choose::Batch;
use crate::entry::{Entry, ExpiredEntry, Finish};
use crate::model_queue::{Lesson, Ran};
use crate::{Completion, CompletionCallback};

/// What every request of a run has been given.
type Answers = Vec<Result<Vec<NamedTensor>>>;

struct RunTimes {
    started: Instant,
    /// Wall time in the engine.
    compute: Duration,
    items: usize,
}

/// Why there is no answer for each request of a joined run.
enum Failure {
    Engine(Error),
    Misfit(Misfit),
}

/// Runs a batch and answers its requests.
pub(crate) fn run(work: Batch, meter: &mut Meter) -> Ran {
    let Batch { entries, form, charge, cores, .. } = work;
    let Some(first) = entries.first() else { return Ran::default() };
    let servable = first.servable.clone();
    let started = Instant::now();
    let (answers, mut ran) = answer(&servable, &entries, form.as_ref());
    let compute = started.elapsed();
    let processor = meter.lap();
    // It does not count what others took of the core, but knows of this thread only.
    ran.time = if servable.threads_per_run == 1 { processor } else { compute };
    ran.charge = charge;
    ran.cores = cores;
    ran.instance = servable.instance();
    ran.weight = servable.schedule().weight;
    deliver(servable, entries, answers, RunTimes { started, compute, items: ran.items });
    ran
}

/// A worker's processor time: read once a run, as the kernel is asked for it. So the few
/// microseconds of giving out a run's answers are charged to the next.
pub(crate) struct Meter(Duration);

impl Meter {
    /// Of the calling thread, from now on.
    pub(crate) fn start() -> Meter {
        Meter(os::thread::cpu_time())
    }

    /// What was used since it was last asked.
    fn lap(&mut self) -> Duration {
        let before = std::mem::replace(&mut self.0, os::thread::cpu_time());
        self.0.saturating_sub(before)
    }
}

/// Each entry's answer, and what the run has shown.
fn answer(servable: &Servable, entries: &[Entry], form: Option<&BatchKey>) -> (Answers, Ran) {
    let items = entries.iter().map(|entry| entry.items).sum();
    let mut ran = Ran { requests: entries.len(), items, ..Ran::default() };
    let failure = match together(servable, entries, form) {
        Ok(answers) => {
            learn(&mut ran, servable, entries, form);
            return (answers.into_iter().map(Ok).collect(), ran);
        }
        Err(failure) => failure,
    };
    match failure {
        // The request's own fault: nobody else's answer is in question.
        Failure::Engine(error) if entries.len() == 1 => return (vec![Err(error)], ran),
        // One of them may be at fault; the others must not suffer.
        Failure::Engine(_) => ran.rerun = true,
        Failure::Misfit(Misfit(why)) => {
            tracing::warn!(version = %servable.id, why, "requests are not merged or padded any more");
            ran.rerun = true;
            ran.misfit = true;
        }
    }
    let form_of = |entry: &Entry| if ran.misfit { None } else { entry.form.clone() };
    let alone = |entry: &Entry| match together(
        servable,
        std::slice::from_ref(entry),
        form_of(entry).as_ref(),
    ) {
        Ok(mut answers) => answers.pop().ok_or_else(|| Error::internal("a run without an answer")),
        Err(Failure::Engine(error)) => Err(error),
        Err(Failure::Misfit(_)) => call(servable, &entry.inputs, &entry.outputs),
    };
    (entries.iter().map(alone).collect(), ran)
}

/// Runs all entries at once, each padded to `form`; one that needs nothing done to it runs as it
/// is.
fn together(
    servable: &Servable,
    entries: &[Entry],
    form: Option<&BatchKey>,
) -> std::result::Result<Vec<Vec<NamedTensor>>, Failure> {
    let plan = servable.plan();
    let (form, outputs) = match (entries, form) {
        ([only], None) => {
            let outputs = call(servable, &only.inputs, &only.outputs).map_err(Failure::Engine)?;
            return Ok(vec![outputs]);
        }
        ([only], Some(form)) if batch::fits(plan, form, &only.inputs) => {
            let outputs = call(servable, &only.inputs, &only.outputs).map_err(Failure::Engine)?;
            return Ok(vec![outputs]);
        }
        ([], _) | (_, None) => {
            return Err(Failure::Engine(Error::internal("requests without a form were joined")));
        }
        ([first, ..], Some(form)) => (form, &first.outputs),
    };
    let parts: Vec<Part<'_>> =
        entries.iter().map(|entry| Part { inputs: &entry.inputs, items: entry.items }).collect();
    let joined = guarded(servable, "joining", || batch::join(plan, form, &parts));
    let inputs = joined.map_err(Failure::Engine)?;
    let outputs = call(servable, &inputs, outputs).map_err(Failure::Engine)?;
    let answers = guarded(servable, "splitting", || Ok(batch::split(plan, form, &parts, outputs)));
    answers.map_err(Failure::Engine)?.map_err(Failure::Misfit)
}

fn call(
    servable: &Servable,
    inputs: &[NamedTensor],
    outputs: &[Arc<str>],
) -> Result<Vec<NamedTensor>> {
    guarded(servable, "the engine", || servable.run(inputs, outputs))
}

/// Turns a panic of `what` into an error: a worker outlives whatever a request does to it.
fn guarded<T>(servable: &Servable, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        tracing::error!(version = %servable.id, what, "a run panicked");
        Err(Error::internal(format!("{what} panicked; see the log")))
    })
}

/// What a run that went well teaches.
fn learn(ran: &mut Ran, servable: &Servable, entries: &[Entry], form: Option<&BatchKey>) {
    let (plan, Some(form)) = (servable.plan(), form) else { return };
    let elements = form.elements(plan);
    if plan.pads() {
        let real: f64 = entries.iter().map(|entry| real_elements(entry) * entry.items as f64).sum();
        let all = elements * ran.items as f64;
        ran.elements = (real as u64, (all - real).max(0.0) as u64);
    }
    let same = entries.iter().all(|entry| entry.form.as_ref() == Some(form));
    let shape = entries.first().filter(|_| same).map(|entry| entry.key);
    ran.lesson = Some(Lesson { shape, elements });
}

/// Elements an item of the padded inputs has by itself.
fn real_elements(entry: &Entry) -> f64 {
    let plan = entry.servable.plan();
    let padded = plan.inputs.iter().filter(|input| input.rule.is_some());
    let sizes = |input: &engine::InputPlan| {
        let given = entry.inputs.iter().find(|given| given.name == input.name)?;
        Some(given.tensor.shape().iter().skip(1).map(|&size| size as f64).product::<f64>())
    };
    padded.filter_map(sizes).sum()
}

/// Gives each entry its outcome. Every hold on the servable is let go before the first callback, so
/// that a waiting unload is not held up by a slow client.
fn deliver(servable: Arc<Servable>, entries: Vec<Entry>, answers: Answers, times: RunTimes) {
    let RunTimes { started, compute, items: batch } = times;
    let mut calls: Vec<(CompletionCallback, Completion)> = Vec::with_capacity(entries.len());
    for (entry, result) in entries.into_iter().zip(answers) {
        let queue = started.saturating_duration_since(entry.submitted);
        let completion = Completion { result, queue, compute, batch };
        calls.extend(finish(entry, completion));
    }
    drop(servable);
    calls.into_iter().for_each(|(done, completion)| done(completion));
}

/// The callback that an outcome is for, unless other parts of the request are still missing.
fn finish(entry: Entry, completion: Completion) -> Option<(CompletionCallback, Completion)> {
    let servable = entry.servable;
    match entry.finish {
        Finish::Whole(done) => Some((done, completion)),
        Finish::Part(rejoin, index) => {
            rejoin.add(index, completion, |inputs, outputs| call(&servable, inputs, outputs))
        }
    }
}

/// Answers requests that never ran.
pub(crate) fn expire(dead: Vec<ExpiredEntry>) {
    let now = Instant::now();
    for (entry, error) in dead {
        let queue = now.saturating_duration_since(entry.submitted);
        let completion =
            Completion { result: Err(error), queue, compute: Duration::ZERO, batch: 0 };
        if let Some((done, completion)) = finish(entry, completion) {
            done(completion);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;
    use crate::model_queue::ModelQueue;
    use crate::trial::{lingering, model, request};

    #[test]
    fn a_panic_beside_the_engine_is_an_error() {
        let servable = model("m", lingering(Duration::ZERO));
        let error = guarded::<()>(&servable, "joining", || panic!("told to")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
    }

    /// What a run is charged is the time of all its cores; what is learned from it is how long it
    /// took.
    #[test]
    fn a_run_is_charged_for_all_its_cores() {
        let servable = model("m", lingering(Duration::ZERO));
        let entries = request(&servable, 1, Instant::now());
        let form = entries[0].form.clone();
        let mut ran =
            run(Batch { entries, form, cores: 4, taken: 4, charge: 0.0 }, &mut Meter::start());
        assert_eq!(ran.cores, 4);
        ran.time = Duration::from_millis(1);
        let mut queue = ModelQueue::new(&servable.id.model);
        for round in 1..=2 {
            queue.running = 1;
            queue.finish(&ran);
            assert_eq!((queue.used, queue.charge), (f64::from(round) * 4000.0, 4000.0));
        }
    }
}
