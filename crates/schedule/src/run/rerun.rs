//! Requests whose run ended with the process of their model.
//!
//! One of them may have ended the process, and must not fail the others. So each of them runs again
//! once, alone, after the process has been started again. A thread waits for that, because a
//! waiting worker would hold up the requests of other models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base::{Error, RunRecord};
use engine::Servable;
use parking_lot::Mutex;

use super::{RunTimes, deliver, run_entry};
use crate::entry::Entry;

/// Maximum threads at the same time. The requests of a further batch fail.
const THREADS_MAX: usize = 4;
/// Longest time for which the requests of a batch wait for the process.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Time between two checks of the process.
const CHECK_PAUSE: Duration = Duration::from_millis(10);

/// Number of threads.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// The requests of a run that ended with the process.
pub(super) struct InterruptedBatch {
    pub(super) entries: Vec<Entry>,
    /// Reason for the end of the process.
    pub(super) error: Error,
    /// The run that ended.
    pub(super) record: RunRecord,
    /// Processor time of the run that ended. The requests share it by items.
    pub(super) processor: Duration,
    /// Threads of one run.
    pub(super) threads: u32,
}

/// Permit for one of [`THREADS_MAX`] threads, returned on drop.
struct ThreadPermit;

impl ThreadPermit {
    fn acquire() -> Option<ThreadPermit> {
        let one_more = |threads| (threads < THREADS_MAX).then_some(threads + 1);
        let acquired = THREADS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        acquired.ok().map(|_| ThreadPermit)
    }
}

impl Drop for ThreadPermit {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts a thread that runs the requests again. If no thread can be started, the requests fail.
pub(super) fn begin(batch: InterruptedBatch) {
    let Some(permit) = ThreadPermit::acquire() else { return batch.fail() };
    // A closure that cannot be started is dropped, and the requests must still be answered.
    let shared = Arc::new(Mutex::new(Some(batch)));
    let theirs = shared.clone();
    let body = move || {
        let _permit = permit;
        let batch = theirs.lock().take();
        batch.into_iter().for_each(InterruptedBatch::run);
    };
    if let Err(error) = os::thread::spawn("rerun", body) {
        tracing::warn!(%error, "requests are not run again");
        let batch = shared.lock().take();
        batch.into_iter().for_each(InterruptedBatch::fail);
    }
}

impl InterruptedBatch {
    /// Runs the requests one by one, once their version is available again.
    fn run(self) {
        let InterruptedBatch { entries, error, record, processor, threads } = self;
        let until = Instant::now() + WAIT_MAX;
        for entry in entries {
            // Only its entries hold the version, so the last callback is called after its release.
            let servable = entry.servable.clone();
            let is_available = wait_available(&servable, &entry, until);
            let started = Instant::now();
            let result = if is_available {
                run_entry(&servable, &entry, entry.batch_key.as_ref())
            } else {
                Err(entry.expiry(started).unwrap_or_else(|| error.clone()))
            };
            let ended = Instant::now();
            let items = entry.items;
            let share = processor.mul_f64(items as f64 / record.items.max(1) as f64);
            let record = RunRecord { requests: 1, items, started, ended, ..record.clone() };
            let own = (ended - started).saturating_mul(threads);
            let times = RunTimes { record: &record, processor: share + own };
            deliver(servable, vec![entry], vec![result], &times, None);
        }
    }

    fn fail(self) {
        let InterruptedBatch { entries, error, record, processor, .. } = self;
        let Some(servable) = entries.first().map(|entry| entry.servable.clone()) else { return };
        let answers = entries.iter().map(|_| Err(error.clone())).collect();
        let times = RunTimes { record: &record, processor };
        deliver(servable, entries, answers, &times, None);
    }
}

/// Waits until runs can succeed, at most until `until` or the end of the entry. Returns false if
/// they cannot.
fn wait_available(servable: &Servable, entry: &Entry, until: Instant) -> bool {
    while !servable.is_available() {
        let now = Instant::now();
        if now >= until || entry.expiry(now).is_some() {
            return false;
        }
        std::thread::sleep(CHECK_PAUSE);
    }
    true
}

#[cfg(test)]
#[cfg(not(millpond_loom))]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;

    use base::{DType, Dim, NamedTensor, Result, Signature, Tensor, TensorSpec, VersionId};
    use engine::Session;

    use super::*;
    use crate::choose::RequestBatch;
    use crate::run::{Meter, run};
    use crate::trial::lingering;
    use crate::{Completion, Job};

    const POISON: f32 = 9.0;
    /// Time of a run with [`POISON`].
    const POISON_TIME: Duration = Duration::from_millis(30);
    /// Longest wait for an answer.
    const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);

    /// A model whose process ends if it gets [`POISON`].
    struct Fragile {
        signature: Signature,
        metadata: BTreeMap<String, String>,
        up: Arc<AtomicBool>,
        runs: Arc<AtomicUsize>,
    }

    impl Session for Fragile {
        fn signature(&self) -> &Signature {
            &self.signature
        }
        fn metadata(&self) -> &BTreeMap<String, String> {
            &self.metadata
        }
        fn runs_elsewhere(&self) -> bool {
            true
        }
        fn is_available(&self) -> bool {
            self.up.load(Ordering::SeqCst)
        }
        fn run(&self, inputs: &[NamedTensor], _: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
            self.runs.fetch_add(1, Ordering::SeqCst);
            if !self.up.load(Ordering::SeqCst) {
                return Err(Error::unavailable("no process runs"));
            }
            if inputs[0].tensor.to_vec::<f32>()?.contains(&POISON) {
                std::thread::sleep(POISON_TIME);
                self.up.store(false, Ordering::SeqCst);
                return Err(Error::unavailable("the process has ended"));
            }
            Ok(inputs.to_vec())
        }
    }

    /// A model of a test, and the requests of one of its runs.
    struct FragileModel {
        servable: Arc<Servable>,
        up: Arc<AtomicBool>,
        runs: Arc<AtomicUsize>,
        sender: mpsc::Sender<SeenAnswer>,
        answers: mpsc::Receiver<SeenAnswer>,
    }

    /// An answer as its callback sees it.
    struct SeenAnswer {
        value: f32,
        is_ok: bool,
        processor: Duration,
        /// References to the version.
        holders: usize,
    }

    impl FragileModel {
        fn new() -> FragileModel {
            let up = Arc::new(AtomicBool::new(true));
            let runs = Arc::new(AtomicUsize::new(0));
            let shape = Some(vec![Dim::Dynamic(None); 2]);
            let x = TensorSpec { name: "x".into(), dtype: DType::F32, shape, optional: false };
            let session = Box::new(Fragile {
                signature: Signature { inputs: vec![x.clone()], outputs: vec![x] },
                metadata: BTreeMap::new(),
                up: up.clone(),
                runs: runs.clone(),
            });
            let id = VersionId { model: "m".into(), version: 1 };
            let options = lingering(Duration::ZERO);
            let servable = Arc::new(Servable::new(id, "test", session, options).unwrap());
            let (sender, answers) = mpsc::channel();
            FragileModel { servable, up, runs, sender, answers }
        }

        fn entries(&self, value: f32) -> Vec<Entry> {
            let x = Tensor::from_vec([1usize, 3].as_slice(), vec![value; 3]).unwrap();
            let sender = self.sender.clone();
            let version = Arc::downgrade(&self.servable);
            let job = Job {
                servable: self.servable.clone(),
                inputs: vec![NamedTensor::new("x", x)],
                outputs: vec![],
                priority: 0,
                deadline: Instant::now() + Duration::from_secs(600),
                cancelled: Arc::new(AtomicBool::new(false)),
                done: Box::new(move |completion: Completion| {
                    let is_ok = completion.result.is_ok();
                    let processor = completion.processor;
                    let holders = version.strong_count();
                    sender.send(SeenAnswer { value, is_ok, processor, holders }).unwrap();
                }),
            };
            Entry::from_job(job, Instant::now()).unwrap()
        }
    }

    #[test]
    fn only_the_request_that_ends_the_process_fails() {
        let model = FragileModel::new();
        let values = [1.0, POISON, 3.0];
        let entries: Vec<Entry> =
            values.into_iter().flat_map(|value| model.entries(value)).collect();
        let batch_key = entries[0].batch_key.clone();
        let batch = RequestBatch { number: 1, entries, batch_key, cores: 1, taken: 1, charge: 0.0 };
        assert!(run(batch, &mut Meter::start()).rerun);
        let mut seen = Vec::new();
        let until = Instant::now() + ANSWER_WAIT_MAX;
        while seen.len() < values.len() {
            assert!(Instant::now() < until, "not within {ANSWER_WAIT_MAX:?}");
            // The process is started again, also after the poison has run alone.
            model.up.store(true, Ordering::SeqCst);
            seen.extend(model.answers.recv_timeout(Duration::from_millis(1)));
        }
        let outcomes: Vec<(f32, bool)> = seen.iter().map(|it| (it.value, it.is_ok)).collect();
        assert_eq!(outcomes, [(1.0, true), (POISON, false), (3.0, true)]);
        assert_eq!(model.runs.load(Ordering::SeqCst), 4, "once together, then each alone");
        // A third of the first run, less an error of rounding.
        assert!(seen.iter().all(|it| it.processor > POISON_TIME / 4), "it counts for each request");
        assert_eq!(seen[2].holders, 1, "only this test holds the version");
    }
}
