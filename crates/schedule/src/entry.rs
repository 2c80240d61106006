//! A request in the queue: whole, or one part of a request larger than a batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{Error, NamedTensor, QueueWait, Result, RunRecord};
use engine::{BatchPlan, Servable};
use parking_lot::Mutex;

use crate::batch_key::{self, BatchKey, same_outputs};
use crate::{Completion, CompletionCallback, Job, batch, bounds, fill};

/// A waiting request or part of one.
pub(crate) struct Entry {
    pub(crate) servable: Arc<Servable>,
    pub(crate) inputs: Vec<NamedTensor>,
    pub(crate) outputs: Vec<Arc<str>>,
    pub(crate) deadline: Instant,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) submitted: Instant,
    pub(crate) level: usize,
    /// Sizes that decide which requests it can be joined with, or `None` if it runs as it is.
    pub(crate) batch_key: Option<BatchKey>,
    /// Hash of the batch key, or 0 without one.
    pub(crate) key: u64,
    /// Number of items, or 1 without a batch key.
    pub(crate) items: usize,
    /// Size of the batch of this entry when it first lingered.
    pub(crate) lingered: Option<usize>,
    /// While the entry waits: the sums at its arrival. Afterwards: the runs that it waited for.
    pub(crate) wait: QueueWait,
    pub(crate) finish: Finish,
}

/// Fields of an [`Entry`] that differ between the parts of a request.
struct EntryPart {
    inputs: Vec<NamedTensor>,
    outputs: Vec<Arc<str>>,
    cancelled: Arc<AtomicBool>,
    batch_key: Option<BatchKey>,
    items: usize,
    finish: Finish,
}

/// An expired or cancelled entry, and the reason.
pub(crate) type ExpiredEntry = (Entry, Error);

/// Receiver of an entry's outcome.
pub(crate) enum Finish {
    Whole(CompletionCallback),
    /// The collector of a request's parts, and the index of the part.
    Part(Arc<Rejoin>, usize),
}

impl Entry {
    /// Builds the entries of a job. There are several if it has more items than a batch may have.
    ///
    /// # Errors
    /// `InvalidArgument` if there are too many items for the parts, or an input that the server
    /// fills in would be too large or has no source.
    pub(crate) fn from_job(mut job: Job, now: Instant) -> Result<Vec<Entry>> {
        let plan = job.servable.plan();
        let options = job.servable.schedule();
        let joinable = plan.batchable || plan.pads();
        if joinable && let Some(items) = batch_key::items(plan, &job.inputs) {
            bounds::check_items(plan, items, options.max_batch)?;
        }
        if plan.fills() {
            fill::fill(plan, &mut job.inputs)?;
        }
        let level = options.level(job.priority) - 1;
        let batch_key = if joinable { BatchKey::of(plan, &job.inputs) } else { None };
        let (batch_key, items) =
            batch_key.map_or((None, 1), |(batch_key, items)| (Some(batch_key), items));
        let max = options.max_batch;
        let key = batch_key.as_ref().map_or(0, BatchKey::key);
        let servable = job.servable.clone();
        let entry = move |part: EntryPart| Entry {
            servable: servable.clone(),
            inputs: part.inputs,
            outputs: part.outputs,
            deadline: job.deadline,
            cancelled: part.cancelled,
            submitted: now,
            level,
            batch_key: part.batch_key,
            key,
            items: part.items,
            lingered: None,
            wait: QueueWait::default(),
            finish: part.finish,
        };
        let whole = |job: Job, batch_key: Option<BatchKey>, items: usize| EntryPart {
            inputs: job.inputs,
            outputs: job.outputs,
            cancelled: job.cancelled,
            batch_key,
            items,
            finish: Finish::Whole(job.done),
        };
        if runs_whole(&job.servable, items) {
            return Ok(vec![entry(whole(job, batch_key, items))]);
        }
        let Ok(pieces) = pieces(job.servable.plan(), &job.inputs, items, max) else {
            // It cannot be split, so it runs whole.
            return Ok(vec![entry(whole(job, None, 1))]);
        };
        let counts = pieces.iter().map(|(_, count)| *count).collect();
        let rejoin = Arc::new(Rejoin::new(counts, job.inputs, job.outputs.clone(), job.done));
        let piece = |(index, (inputs, items))| {
            entry(EntryPart {
                inputs,
                outputs: job.outputs.clone(),
                cancelled: job.cancelled.clone(),
                batch_key: batch_key.clone(),
                items,
                finish: Finish::Part(rejoin.clone(), index),
            })
        };
        Ok(pieces.into_iter().enumerate().map(piece).collect())
    }

    /// Returns true for one entry of each request, so that a request in parts counts once.
    pub(crate) fn counts(&self) -> bool {
        matches!(self.finish, Finish::Whole(_) | Finish::Part(_, 0))
    }

    /// Returns the reason if the entry has expired or was cancelled, or if another part of its
    /// request has failed.
    pub(crate) fn expiry(&self, now: Instant) -> Option<Error> {
        // First, because callers stop waiting at the deadline too.
        if now >= self.deadline {
            let waited = now.saturating_duration_since(self.submitted);
            return Some(Error::deadline(format!(
                "the deadline passed after {} ms in the queue",
                waited.as_millis()
            )));
        }
        if self.cancelled.load(Ordering::Relaxed) {
            return Some(Error::cancelled("the client has gone"));
        }
        // The request gets the error of that part.
        let failed = matches!(&self.finish, Finish::Part(rejoin, _) if rejoin.has_failed());
        failed.then(|| Error::cancelled("another part of the request has failed"))
    }

    /// Returns true if it requests the same outputs of the same version as `other`, and both can be
    /// joined.
    pub(crate) fn same_outputs(&self, other: &Entry) -> bool {
        let joinable =
            self.batch_key.is_some() && other.batch_key.is_some() && self.servable.plan().batchable;
        joinable
            && same_outputs((&self.servable, &self.outputs), (&other.servable, &other.outputs))
            && batch_key::same_shared(self.servable.plan(), &self.inputs, &other.inputs)
    }

    /// Returns true if it can be joined with `other` without padding.
    pub(crate) fn same_batch_key(&self, other: &Entry) -> bool {
        self.key == other.key && self.same_outputs(other) && self.batch_key == other.batch_key
    }
}

/// Returns true if a request of `items` items is not split, for any inputs.
fn runs_whole(servable: &Servable, items: usize) -> bool {
    let options = servable.schedule();
    // Outputs of pieces could not be joined if their sizes depend on the values.
    let is_open = options.data_dependent_shapes && options.allowed_batch_sizes.is_empty();
    !servable.plan().batchable || items <= options.max_batch || servable.mixes_items() || is_open
}

/// Splits the inputs into pieces of at most `max` items, with their number of items. Every piece
/// has the inputs without a batch axis.
fn pieces(
    plan: &BatchPlan,
    inputs: &[NamedTensor],
    items: usize,
    max: usize,
) -> Result<Vec<(Vec<NamedTensor>, usize)>> {
    let piece = |first: usize| {
        let count = max.min(items - first);
        Ok((piece(plan, inputs, first, count)?, count))
    };
    (0..items).step_by(max).map(piece).collect()
}

/// Returns the inputs of items `first..first + count`, with the inputs without a batch axis.
///
/// # Errors
/// Returns the errors of [`batch::slice`].
pub(crate) fn piece(
    plan: &BatchPlan,
    inputs: &[NamedTensor],
    first: usize,
    count: usize,
) -> Result<Vec<NamedTensor>> {
    let cut = |input: &NamedTensor| {
        if plan.is_shared(&input.name) {
            return Ok(input.clone());
        }
        let tensor = batch::slice(&input.tensor, first, count)?;
        Ok(NamedTensor { name: Arc::clone(&input.name), tensor })
    };
    inputs.iter().map(cut).collect()
}

/// Outcomes of a request's parts.
pub(crate) struct Rejoin {
    /// Items of each part.
    items: Vec<usize>,
    inputs: Vec<NamedTensor>,
    outputs: Vec<Arc<str>>,
    state: Mutex<PartOutcomes>,
    /// True once a part has failed. Read for each waiting part at every scan of the queue.
    failed: AtomicBool,
}

/// Outcomes of the parts that have ended.
struct PartOutcomes {
    answers: Vec<Option<Vec<NamedTensor>>>,
    /// Number of parts that have not ended.
    missing: usize,
    failure: Option<Error>,
    queue: Duration,
    compute: Duration,
    processor: Duration,
    batch: usize,
    /// The run that ended last.
    run: Option<RunRecord>,
    done: Option<CompletionCallback>,
}

impl PartOutcomes {
    /// Runs the whole request, and adds the time to that of its parts.
    fn add_run(
        &mut self,
        run: impl FnOnce() -> Result<Vec<NamedTensor>>,
    ) -> Result<Vec<NamedTensor>> {
        let started = Instant::now();
        let result = run();
        let time = started.elapsed();
        self.compute += time;
        self.processor += time;
        result
    }
}

impl Rejoin {
    fn new(
        items: Vec<usize>,
        inputs: Vec<NamedTensor>,
        outputs: Vec<Arc<str>>,
        done: CompletionCallback,
    ) -> Rejoin {
        let state = PartOutcomes {
            answers: vec![None; items.len()],
            missing: items.len(),
            failure: None,
            queue: Duration::ZERO,
            compute: Duration::ZERO,
            processor: Duration::ZERO,
            batch: 0,
            run: None,
            done: Some(done),
        };
        Rejoin { items, inputs, outputs, state: Mutex::new(state), failed: AtomicBool::new(false) }
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns true if every output of every part has the part's items on axis 0. Otherwise the
    /// model mixes its items, and the parts' outputs are not parts of the answer.
    fn kept_apart(&self, runs: &[Vec<NamedTensor>]) -> bool {
        let kept = |(run, items): (&Vec<NamedTensor>, &usize)| {
            run.iter().all(|output| output.tensor.shape().first() == Some(items))
        };
        runs.len() == self.items.len() && runs.iter().zip(&self.items).all(kept)
    }

    /// Adds the outcome of the part `index`. Returns the outcome of the request after its last
    /// part. If the outputs of the parts do not fit together, `again` runs the whole request. The
    /// same holds if `mixes_items` is true. A run has then shown that the model mixes its items, so
    /// even outputs that fit are not parts of the answer. The time of this run counts for the
    /// request.
    pub(crate) fn add(
        &self,
        index: usize,
        completion: Completion,
        mixes_items: bool,
        again: impl FnOnce(&[NamedTensor], &[Arc<str>]) -> Result<Vec<NamedTensor>>,
    ) -> Option<(CompletionCallback, Completion)> {
        let mut state = self.state.lock();
        match completion.result {
            Ok(outputs) => state.answers[index] = Some(outputs),
            Err(error) => {
                state.failure.get_or_insert(error);
                self.failed.store(true, Ordering::Relaxed);
            }
        }
        state.queue = state.queue.max(completion.queue);
        state.compute += completion.compute;
        state.processor += completion.processor;
        state.batch = state.batch.max(completion.batch);
        state.run = completion.run.or(state.run.take());
        state.missing -= 1;
        if state.missing > 0 {
            return None;
        }
        let done = state.done.take()?;
        let answers = std::mem::take(&mut state.answers);
        let result = match state.failure.take() {
            Some(error) => Err(error),
            None => {
                let runs: Vec<Vec<NamedTensor>> = answers.into_iter().flatten().collect();
                let are_parts = !mixes_items && self.kept_apart(&runs);
                let joined = if are_parts { batch::concatenate(&runs).ok() } else { None };
                match joined {
                    Some(outputs) => Ok(outputs),
                    None => state.add_run(|| again(&self.inputs, &self.outputs)),
                }
            }
        };
        let completion = Completion {
            result,
            queue: state.queue,
            compute: state.compute,
            batch: state.batch,
            processor: state.processor,
            run: state.run.take(),
        };
        Some((done, completion))
    }
}

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use base::Tensor;

    use super::*;

    #[test]
    fn a_request_that_runs_again_is_charged_for_it() {
        let part = Duration::from_millis(1);
        let whole = Duration::from_millis(2);
        let done = Box::new(|_: Completion| {});
        let rejoin = Rejoin::new(vec![2, 1], vec![], vec![], done);
        let again = || {
            std::thread::sleep(whole);
            Ok(vec![])
        };
        // The model makes one item of all.
        let answer = || Completion {
            result: Tensor::from_vec([1usize].as_slice(), vec![1f32])
                .map(|y| vec![NamedTensor::new("y", y)]),
            queue: Duration::ZERO,
            compute: part,
            batch: 1,
            run: None,
            processor: part,
        };
        assert!(rejoin.add(0, answer(), false, |_, _| again()).is_none());
        let (_, completion) = rejoin.add(1, answer(), false, |_, _| again()).unwrap();
        assert_eq!(completion.result, Ok(vec![]));
        assert!(completion.compute >= part * 2 + whole && completion.processor >= part * 2 + whole);
    }
}
