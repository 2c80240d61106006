//! Requests whose run ended with the process of their model.
//!
//! One of them may have ended the process, and must not fail the others. So each of them runs again
//! once, alone, after the process has been started again. A thread waits for that: a waiting worker
//! would hold up the requests of other models.

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
    pub(super) servable: Arc<Servable>,
    pub(super) entries: Vec<Entry>,
    /// Reason for the end of the process.
    pub(super) error: Error,
    /// The run that ended.
    pub(super) record: RunRecord,
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

/// Starts a thread that runs the requests again. If there is none, they fail.
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
    fn run(self) {
        let InterruptedBatch { servable, entries, error, record } = self;
        let until = Instant::now() + WAIT_MAX;
        for entry in entries {
            let is_available = wait_available(&servable, &entry, until);
            let started = Instant::now();
            let result = if is_available {
                run_entry(&servable, &entry, entry.batch_key.as_ref())
            } else {
                Err(entry.expiry(started).unwrap_or_else(|| error.clone()))
            };
            let ended = Instant::now();
            let items = entry.items;
            let record = RunRecord { requests: 1, items, started, ended, ..record.clone() };
            let times = RunTimes { record: &record, processor: ended - started };
            deliver(servable.clone(), vec![entry], vec![result], &times, None);
        }
    }

    fn fail(self) {
        let InterruptedBatch { servable, entries, error, record } = self;
        let answers = entries.iter().map(|_| Err(error.clone())).collect();
        let times = RunTimes { record: &record, processor: Duration::ZERO };
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

#[cfg(all(test, not(millpond_loom)))]
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
        fn is_available(&self) -> bool {
            self.up.load(Ordering::SeqCst)
        }
        fn run(&self, inputs: &[NamedTensor], _: &[Arc<str>]) -> Result<Vec<NamedTensor>> {
            self.runs.fetch_add(1, Ordering::SeqCst);
            if inputs[0].tensor.to_vec::<f32>()?.contains(&POISON) {
                self.up.store(false, Ordering::SeqCst);
                return Err(Error::unavailable("the process has ended"));
            }
            Ok(inputs.to_vec())
        }
    }

    fn job(servable: &Arc<Servable>, value: f32, done: mpsc::Sender<(f32, bool)>) -> Job {
        let x = Tensor::from_vec([1usize, 3].as_slice(), vec![value; 3]).unwrap();
        Job {
            servable: servable.clone(),
            inputs: vec![NamedTensor::new("x", x)],
            outputs: vec![],
            priority: 0,
            deadline: Instant::now() + Duration::from_secs(600),
            cancelled: Arc::new(AtomicBool::new(false)),
            done: Box::new(move |completion: Completion| {
                done.send((value, completion.result.is_ok())).unwrap();
            }),
        }
    }

    #[test]
    fn only_the_request_that_ends_the_process_fails() {
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
        let mut entries = Vec::new();
        for value in [1.0, POISON, 3.0] {
            let job = job(&servable, value, sender.clone());
            entries.extend(Entry::from_job(job, Instant::now()).unwrap());
        }
        let batch_key = entries[0].batch_key.clone();
        let batch = RequestBatch { number: 1, entries, batch_key, cores: 1, taken: 1, charge: 0.0 };
        assert!(run(batch, &mut Meter::start()).rerun);
        let mut outcomes = Vec::new();
        while outcomes.len() < 3 {
            // The process is started again, also after the poison has run alone.
            up.store(true, Ordering::SeqCst);
            outcomes.extend(answers.recv_timeout(Duration::from_millis(1)));
        }
        assert_eq!(outcomes, [(1.0, true), (POISON, false), (3.0, true)]);
        assert_eq!(runs.load(Ordering::SeqCst), 4, "once together, then each alone");
    }
}
