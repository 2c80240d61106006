//! A run of one or several requests on the engine. It joins its requests, calls the engine, and
//! answers each request once.

mod direct;
mod item_sizes;
mod rerun;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, NamedTensor, QueueWait, Result, RunAhead, RunRecord};
use engine::{InputPlan, Servable};
use os::thread::PageFaults;

pub(crate) use self::direct::{run_alone, run_joined};
use self::item_sizes::sizes_follow_items;
use self::rerun::InterruptedBatch;
use crate::batch::{self, Misfit, Part};
use crate::batch_key::{self, BatchKey};
use crate::choose::RequestBatch;
use crate::entry::{Entry, ExpiredEntry, Finish};
use crate::merge;
use crate::model_queue::{CostSample, RunFigures};
use crate::{Completion, CompletionCallback};

/// Outcome of each request of a run.
type Answers = Vec<Result<Vec<NamedTensor>>>;

/// Outcome of a run.
enum BatchOutcome {
    Answered(Answers),
    /// The process of the model has ended during the run, for this reason.
    Interrupted(Error),
}

/// A run and its cost.
struct RunTimes<'a> {
    record: &'a RunRecord,
    /// Processor time of all cores.
    processor: Duration,
}

/// Reason for the failure of a joined run.
enum RunFailure {
    Engine(Error),
    Misfit(Misfit),
}

/// Reason why requests to a model are not joined.
const VARYING: &str = "sizes of an output depend on the values or on the number of items";

/// Reason why a joined run is discarded.
const MIXED: &str = "another run has shown that the model mixes its items";

/// Runs a batch and answers its requests.
pub(crate) fn run(work: RequestBatch, meter: &mut Meter) -> RunFigures {
    let RequestBatch { number, entries, batch_key, charge, cores, .. } = work;
    let Some(first) = entries.first() else { return RunFigures::default() };
    let servable = first.servable.clone();
    let started = Instant::now();
    let (outcome, mut ran) = answer(&servable, &entries, batch_key.as_ref());
    // A run without a scheduler, such as a warm-up, may have shown it.
    ran.misfit |= servable.take_new_mixing();
    let ended = Instant::now();
    let used = meter.take_used();
    ran.wall = ended - started;
    // Processor time excludes the time for which other threads had the core, but covers this thread
    // only.
    let cpu = (!servable.runs_elsewhere()).then_some(used.cpu);
    ran.time = cpu.unwrap_or(ran.wall);
    ran.off_core = ran.wall.saturating_sub(ran.time);
    ran.charge = charge;
    ran.cores = cores;
    ran.instance = servable.instance();
    ran.weight = servable.schedule().weight;
    let record = RunRecord {
        batch: number,
        requests: ran.requests,
        items: ran.items,
        started,
        ended,
        cpu,
        minor_faults: used.faults.minor,
        major_faults: used.faults.major,
        wait: QueueWait::default(),
    };
    let ahead = LastRun {
        batch: number,
        model: servable.id.model.clone(),
        items: ran.items,
        started,
        ended,
    };
    let threads = u32::try_from(cores.max(1)).unwrap_or(u32::MAX);
    let times = RunTimes { record: &record, processor: ran.time.saturating_mul(threads) };
    let ran_again = match outcome {
        BatchOutcome::Answered(answers) => {
            deliver(servable, entries, answers, &times, meter.last.as_ref())
        }
        BatchOutcome::Interrupted(error) => {
            drop(servable);
            let processor = times.processor;
            let record = record.clone();
            rerun::begin(InterruptedBatch { entries, error, record, processor, threads });
            false
        }
    };
    meter.last = Some(ahead);
    if ran_again {
        // Otherwise the next run of this worker, perhaps of another model, would be charged for it.
        let used = meter.take_used().cpu;
        ran.again = if cpu.is_some() { used } else { ended.elapsed() };
    }
    ran
}

/// Processor time and page faults of a worker, read once a run, because each takes a system call.
/// The few microseconds of answering a run are charged to the next.
pub(crate) struct Meter {
    cpu: Duration,
    faults: PageFaults,
    last: Option<LastRun>,
}

/// A worker's last run.
struct LastRun {
    batch: u64,
    model: Arc<str>,
    items: usize,
    started: Instant,
    ended: Instant,
}

/// Resources that a thread used between two readings.
struct WorkerUsage {
    cpu: Duration,
    faults: PageFaults,
}

impl Meter {
    /// Starts to measure the calling thread.
    pub(crate) fn start() -> Meter {
        Meter { cpu: os::thread::cpu_time(), faults: os::thread::page_faults(), last: None }
    }

    /// Returns the use since the last call.
    fn take_used(&mut self) -> WorkerUsage {
        let cpu = std::mem::replace(&mut self.cpu, os::thread::cpu_time());
        let faults = std::mem::replace(&mut self.faults, os::thread::page_faults());
        WorkerUsage {
            cpu: self.cpu.saturating_sub(cpu),
            faults: PageFaults {
                minor: self.faults.minor.saturating_sub(faults.minor),
                major: self.faults.major.saturating_sub(faults.major),
            },
        }
    }
}

impl LastRun {
    /// Returns the run if it ended after `submitted`.
    fn ahead_of(&self, submitted: Instant) -> Option<RunAhead> {
        (self.ended > submitted).then(|| RunAhead {
            batch: self.batch,
            model: self.model.clone(),
            items: self.items,
            time: self.ended - self.started,
        })
    }
}

/// Returns the outcome of the entries and of the run.
fn answer(
    servable: &Servable,
    entries: &[Entry],
    batch_key: Option<&BatchKey>,
) -> (BatchOutcome, RunFigures) {
    let items = entries.iter().map(|entry| entry.items).sum();
    let counted = entries.iter().filter(|entry| entry.counts()).count();
    let mut ran = RunFigures { requests: entries.len(), counted, items, ..RunFigures::default() };
    let was_available = servable.is_available();
    let failure = match run_together(servable, entries, batch_key) {
        // The other run has ended during this one.
        Ok(_) if entries.len() > 1 && servable.mixes_items() => {
            RunFailure::Misfit(Misfit(MIXED.to_owned()))
        }
        Ok(answers) if entries.len() > 1 && sizes_vary(servable, batch_key, &answers) => {
            servable.set_mixes_items();
            RunFailure::Misfit(Misfit(VARYING.to_owned()))
        }
        Ok(answers) if sizes_follow_items(servable, entries, batch_key, &answers) => {
            servable.set_mixes_items();
            RunFailure::Misfit(Misfit(VARYING.to_owned()))
        }
        Ok(answers) => {
            record_cost(&mut ran, servable, entries, batch_key);
            if let Some(why) = mixing_evidence(servable, entries, batch_key, &answers) {
                ran.misfit = true;
                set_mixes_items(servable, why);
            }
            return (BatchOutcome::Answered(answers.into_iter().map(Ok).collect()), ran);
        }
        Err(failure) => failure,
    };
    match failure {
        // The fault of the only request.
        RunFailure::Engine(error) if entries.len() == 1 => {
            return (BatchOutcome::Answered(vec![Err(error)]), ran);
        }
        // One of them may be at fault, and must not fail the others.
        RunFailure::Engine(error) => {
            ran.rerun = true;
            if was_available && !servable.is_available() {
                return (BatchOutcome::Interrupted(error), ran);
            }
        }
        RunFailure::Misfit(Misfit(why)) => {
            tracing::warn!(version = %servable.id, why, "requests are not merged or padded any more");
            ran.rerun = true;
            ran.misfit = true;
        }
    }
    let fits = !ran.misfit;
    let alone =
        |entry: &Entry| run_entry(servable, entry, entry.batch_key.as_ref().filter(|_| fits));
    (BatchOutcome::Answered(entries.iter().map(alone).collect()), ran)
}

/// Runs one entry again, after a run of several has failed.
fn run_entry(
    servable: &Servable,
    entry: &Entry,
    batch_key: Option<&BatchKey>,
) -> Result<Vec<NamedTensor>> {
    // Its client may have left during the run that failed, or the runs after that.
    if let Some(error) = entry.expiry(Instant::now()) {
        return Err(error);
    }
    match run_together(servable, std::slice::from_ref(entry), batch_key) {
        Ok(mut answers) => answers.pop().ok_or_else(|| Error::internal("a run without an answer")),
        Err(RunFailure::Engine(error)) => Err(error),
        Err(RunFailure::Misfit(_)) => call(servable, &entry.inputs, &entry.outputs),
    }
}

/// Returns true if an output has other sizes after axis 0 than in an earlier run over inputs of the
/// same sizes. They depend on the values or on the number of items, such as those of texts that are
/// padded to the longest one of the run.
fn sizes_vary(
    servable: &Servable,
    batch_key: Option<&BatchKey>,
    answers: &[Vec<NamedTensor>],
) -> bool {
    let plan = servable.plan();
    let (Some(batch_key), Some(outputs)) = (batch_key, answers.first()) else { return false };
    // The owner of the model may accept such sizes.
    let is_accepted = servable.schedule().data_dependent_shapes;
    if is_accepted || !plan.has_open_outputs(servable.signature()) {
        return false;
    }
    let mut question = DefaultHasher::new();
    let mut sizes = DefaultHasher::new();
    batch_key.hash(&mut question);
    for output in outputs {
        output.name.hash(&mut question);
        output.tensor.shape().get(1..).hash(&mut sizes);
    }
    servable.output_sizes_differ(question.finish(), sizes.finish())
}

/// Returns the reason if a request that ran alone shows that the model mixes its items. Such
/// outputs are the objects that it finds in all images, or scores of queries against documents. The
/// outputs of a joined run could then have as many rows as items, and a request would get those of
/// another one.
fn mixing_evidence(
    servable: &Servable,
    entries: &[Entry],
    batch_key: Option<&BatchKey>,
    answers: &[Vec<NamedTensor>],
) -> Option<&'static str> {
    let [only] = entries else { return None };
    let part = Part { inputs: &only.inputs, items: only.items };
    mixing_evidence_of(servable, part, batch_key, answers)
}

/// Returns the reason if the answer to one request that ran alone shows that the model mixes its
/// items.
fn mixing_evidence_of(
    servable: &Servable,
    only: Part<'_>,
    batch_key: Option<&BatchKey>,
    answers: &[Vec<NamedTensor>],
) -> Option<&'static str> {
    let [outputs] = answers else { return None };
    let plan = servable.plan();
    if !plan.batchable || servable.mixes_items() {
        return None;
    }
    let have_rows =
        |rows: usize| outputs.iter().all(|output| output.tensor.shape().first() == Some(&rows));
    if batch_key.is_some() {
        let why = "an output of a request that ran alone does not have its items on axis 0";
        let varies = || sizes_vary(servable, batch_key, answers).then_some(VARYING);
        return if have_rows(only.items) { varies() } else { Some(why) };
    }
    let sizes = batch_key::first_sizes(plan, only.inputs);
    let most = sizes.iter().copied().max()?;
    let differ = sizes.iter().any(|&size| size != most) && !sizes.contains(&0);
    // An example is one user for many products. The model repeats the user, and keeps its items
    // apart.
    let repeats = sizes.iter().all(|&size| size == 1 || size == most) && have_rows(most);
    (differ && !repeats).then_some("inputs of a request that ran differ in size on axis 0")
}

/// Records that the model mixes its items, and logs the reason at the first call.
fn set_mixes_items(servable: &Servable, why: &str) {
    if servable.set_mixes_items() {
        tracing::warn!(version = %servable.id, why, "requests are not merged or padded any more");
    }
}

/// Returns true if runs are filled up to allowed batch sizes.
fn is_filled(servable: &Servable) -> bool {
    servable.plan().batchable && !servable.schedule().allowed_batch_sizes.is_empty()
}

/// Returns the number of items of a run over `items` items, with added ones. It is the next allowed
/// size if the model's runs are filled up.
fn rows_of(servable: &Servable, items: usize) -> usize {
    if is_filled(servable) {
        merge::round_up(items, &servable.schedule().allowed_batch_sizes)
    } else {
        items
    }
}

/// Runs all entries at once, each padded to `batch_key`, with items added up to an allowed size. A
/// single entry of the right sizes runs as it is.
fn run_together(
    servable: &Servable,
    entries: &[Entry],
    batch_key: Option<&BatchKey>,
) -> std::result::Result<Vec<Vec<NamedTensor>>, RunFailure> {
    let plan = servable.plan();
    let rows = rows_of(servable, entries.iter().map(|entry| entry.items).sum());
    let has_run_sizes = |only: &Entry| {
        batch_key.is_none_or(|key| rows == only.items && batch::fits(plan, key, &only.inputs))
    };
    if let [only] = entries
        && has_run_sizes(only)
    {
        let outputs = call(servable, &only.inputs, &only.outputs).map_err(RunFailure::Engine)?;
        return Ok(vec![outputs]);
    }
    let ([first, ..], Some(batch_key)) = (entries, batch_key) else {
        return Err(RunFailure::Engine(Error::internal(
            "requests without a batch key were joined",
        )));
    };
    let parts: Vec<Part<'_>> =
        entries.iter().map(|entry| Part { inputs: &entry.inputs, items: entry.items }).collect();
    let joined = guarded(servable, "joining", || batch::join(plan, batch_key, &parts, rows));
    let inputs = joined.map_err(RunFailure::Engine)?;
    let outputs = call(servable, &inputs, &first.outputs).map_err(RunFailure::Engine)?;
    let answers =
        guarded(servable, "splitting", || Ok(batch::split(plan, batch_key, &parts, rows, outputs)));
    answers.map_err(RunFailure::Engine)?.map_err(RunFailure::Misfit)
}

fn call(
    servable: &Servable,
    inputs: &[NamedTensor],
    outputs: &[Arc<str>],
) -> Result<Vec<NamedTensor>> {
    guarded(servable, "the engine", || servable.run(inputs, outputs))
}

/// Turns a panic of `what` into an error, so that the worker survives.
fn guarded<T>(servable: &Servable, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        tracing::error!(version = %servable.id, what, "a run panicked");
        Err(Error::internal(format!("{what} panicked; see the log")))
    })
}

/// Sets the figures of a successful run that the estimate of costs needs.
fn record_cost(
    ran: &mut RunFigures,
    servable: &Servable,
    entries: &[Entry],
    batch_key: Option<&BatchKey>,
) {
    let (plan, Some(batch_key)) = (servable.plan(), batch_key) else { return };
    let rows = rows_of(servable, ran.items);
    ran.rows = is_filled(servable).then_some(rows);
    let all = batch_key.elements(plan) * rows as f64;
    if plan.pads() {
        let real: f64 = entries.iter().map(|entry| real_elements(entry) * entry.items as f64).sum();
        ran.real_elements = real as u64;
        ran.padding_elements = (all - real).max(0.0) as u64;
    }
    let same = entries.iter().all(|entry| entry.batch_key.as_ref() == Some(batch_key));
    let shape = entries.first().filter(|_| same).map(|entry| entry.key);
    ran.cost_sample = Some(CostSample { shape, elements: all });
}

/// Returns the elements per item of the padded inputs, without padding.
fn real_elements(entry: &Entry) -> f64 {
    let plan = entry.servable.plan();
    let padded = plan.inputs.iter().filter(|input| input.rule.is_some());
    let sizes = |input: &InputPlan| {
        let sent = entry.inputs.iter().find(|sent| sent.name == input.name)?;
        Some(sent.tensor.shape().iter().skip(1).map(|&size| size as f64).product::<f64>())
    };
    padded.filter_map(sizes).sum()
}

/// Gives each entry its outcome. Drops all references to the servable before the first callback, so
/// that a slow client does not delay an unload. Returns true if a whole request ran again.
fn deliver(
    servable: Arc<Servable>,
    entries: Vec<Entry>,
    answers: Answers,
    times: &RunTimes<'_>,
    last: Option<&LastRun>,
) -> bool {
    let RunTimes { record, processor } = *times;
    let mut calls: Vec<(CompletionCallback, Completion)> = Vec::with_capacity(entries.len());
    let mut ran_again = false;
    for (mut entry, result) in entries.into_iter().zip(answers) {
        let mut wait = std::mem::take(&mut entry.wait);
        wait.ahead = last.and_then(|last| last.ahead_of(entry.submitted));
        let completion = Completion {
            result,
            queue: record.started.saturating_duration_since(entry.submitted),
            compute: record.ended - record.started,
            batch: record.items,
            processor: processor.mul_f64(entry.items as f64 / record.items.max(1) as f64),
            run: Some(RunRecord { wait, ..record.clone() }),
        };
        calls.extend(finish(entry, completion, &mut ran_again));
    }
    drop(servable);
    calls.into_iter().for_each(|(done, completion)| done(completion));
    ran_again
}

/// Returns the callback and its outcome, unless other parts of the request are missing. Sets
/// `ran_again` if the whole request ran again.
fn finish(
    entry: Entry,
    completion: Completion,
    ran_again: &mut bool,
) -> Option<(CompletionCallback, Completion)> {
    let servable = entry.servable;
    match entry.finish {
        Finish::Whole(done) => Some((done, completion)),
        Finish::Part(rejoin, index) => {
            rejoin.add(index, completion, servable.mixes_items(), |inputs, outputs| {
                *ran_again = true;
                call(&servable, inputs, outputs)
            })
        }
    }
}

/// Finishes requests that do not run, with their errors.
pub(crate) fn expire(expired: Vec<ExpiredEntry>) {
    let now = Instant::now();
    for (entry, error) in expired {
        let queue = now.saturating_duration_since(entry.submitted);
        let completion = Completion {
            result: Err(error),
            queue,
            compute: Duration::ZERO,
            batch: 0,
            processor: Duration::ZERO,
            run: None,
        };
        // A request with an expired part has failed, and does not run again.
        if let Some((done, completion)) = finish(entry, completion, &mut false) {
            done(completion);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{DType, ErrorKind, Tensor};
    use engine::ScheduleOptions;

    use super::*;
    use crate::model_queue::ModelQueue;
    use crate::trial::{lingering, mixing_model, model, model_of, request};

    #[test]
    fn a_panic_beside_the_engine_is_an_error() {
        let servable = model("m", lingering(Duration::ZERO));
        let error = guarded::<()>(&servable, "joining", || panic!("told to")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
    }

    #[test]
    fn no_item_is_added_to_packed_elements() {
        let sized = |dtype| {
            let allowed =
                ScheduleOptions { allowed_batch_sizes: vec![8], ..lingering(Duration::ZERO) };
            model_of("m", allowed, dtype)
        };
        assert_eq!(rows_of(&sized(DType::I8), 2), 8);
        let packed = sized(DType::I4);
        let x = Tensor::from_bytes(DType::I4, [2usize, 3].as_slice(), vec![7u8; 3].into()).unwrap();
        let inputs = [NamedTensor::new("x", x)];
        assert_eq!(run_alone(&packed, &inputs, &[]).unwrap(), inputs);
    }

    /// A run is charged for the time of all its cores. Its measurement is the wall time.
    #[test]
    fn a_run_is_charged_for_all_its_cores() {
        let servable = model("m", lingering(Duration::ZERO));
        let entries = request(&servable, 1, Instant::now());
        let batch_key = entries[0].batch_key.clone();
        let mut ran = run(
            RequestBatch { number: 1, entries, batch_key, cores: 4, taken: 4, charge: 0.0 },
            &mut Meter::start(),
        );
        assert_eq!(ran.cores, 4);
        ran.time = Duration::from_millis(1);
        let mut queue = ModelQueue::new(&servable.id.model);
        for round in 1..=2 {
            queue.running = 1;
            queue.finish(&ran);
            assert_eq!((queue.used, queue.charge), (f64::from(round) * 4000.0, 4000.0));
        }
    }

    /// Another worker has found it out while they ran.
    #[test]
    fn requests_joined_to_a_model_that_mixes_run_again() {
        let servable = model("m", lingering(Duration::ZERO));
        let mut entries = request(&servable, 1, Instant::now());
        entries.extend(request(&servable, 1, Instant::now()));
        let batch_key = entries[0].batch_key.clone();
        servable.set_mixes_items();
        let batch = RequestBatch { number: 1, entries, batch_key, cores: 1, taken: 1, charge: 0.0 };
        let ran = run(batch, &mut Meter::start());
        assert_eq!((ran.requests, ran.rerun, ran.misfit), (2, true, true));
    }

    /// The parts of a request to a model that mixes its items do not fit together.
    #[test]
    fn a_model_is_charged_for_requests_that_run_again() {
        let servable = mixing_model("m", lingering(Duration::ZERO));
        let mut meter = Meter::start();
        let mut again = Vec::new();
        for entry in request(&servable, 9, Instant::now()) {
            let batch_key = entry.batch_key.clone();
            let entries = vec![entry];
            let batch =
                RequestBatch { number: 1, entries, batch_key, cores: 1, taken: 1, charge: 0.0 };
            again.push(run(batch, &mut meter).again);
        }
        assert!(again.len() == 2 && again[0].is_zero() && !again[1].is_zero(), "{again:?}");
        let mut queue = ModelQueue::new(&servable.id.model);
        queue.running = 1;
        let ms = Duration::from_millis(1);
        queue.finish(&RunFigures { time: ms, again: ms * 2, cores: 2, ..RunFigures::default() });
        assert_eq!((queue.used, queue.charge), (6000.0, 2000.0));
    }
}
