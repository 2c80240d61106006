//! The job that finds the duplicates of a collection. It walks through the points, compares them in
//! several threads, and stores the pairs that it finds.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use os::{Pacer, Rate};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::progress::{DuplicateProgress, DuplicateState};
use super::scan::{DuplicateScanner, ScanOutcome, ordered};
use super::store::{DuplicatePair, DuplicateStore, PairsFile};
use super::{DuplicateOptions, PAIRS_MAX};
use crate::collection::{WalkPosition, WalkStep, WalkedPoint};
use crate::registry::NamedCollection;

/// Points of a step for each thread.
const STEP_POINTS: usize = 512;
/// Longest time between two writes of the state.
const CHECKPOINT: Duration = Duration::from_secs(5);
/// Time between two checks while segments are being opened.
const OPENING_WAIT: Duration = Duration::from_millis(200);
/// Longest total wait for segments that are being opened.
const OPENING_WAIT_MAX: Duration = Duration::from_secs(600);

/// Progress and position, as the file of the state has them.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredJob {
    #[serde(flatten)]
    progress: DuplicateProgress,
    position: WalkPosition,
}

/// Connection between a running job and its callers.
#[derive(Debug, Default)]
pub struct DuplicateControl {
    /// Set to cancel the job. It ends within a step.
    pub stop: AtomicBool,
    progress: Mutex<Option<DuplicateProgress>>,
}

impl DuplicateControl {
    /// Returns the progress of the running job, or `None` before its first step.
    #[must_use]
    pub fn progress(&self) -> Option<DuplicateProgress> {
        self.progress.lock().clone()
    }
}

/// Finds the duplicates of a collection on the calling thread and `options.threads - 1` further
/// ones, all at low priority. Continues an earlier job of the same threshold and score that has not
/// ended. Otherwise starts a new one.
///
/// # Errors
/// `InvalidArgument` for options that cannot work. `ResourceExhausted` for more than [`PAIRS_MAX`]
/// pairs. `DataLoss` if the files of an earlier job are damaged. Otherwise the error of the medium.
/// The state in the file then is `failed`.
pub fn run(
    named: &NamedCollection,
    options: DuplicateOptions,
    control: &DuplicateControl,
) -> Result<DuplicateProgress> {
    let metric = named.settings().metric;
    options.check(metric)?;
    let store = DuplicateStore::of(named);
    let earlier: Option<StoredJob> = store.state()?;
    let earlier = earlier.filter(|earlier| earlier.progress.continues(&options));
    if earlier.is_none() {
        store.remove()?;
    }
    let StoredJob { mut progress, position } = earlier.unwrap_or_else(|| StoredJob {
        progress: DuplicateProgress::new(options),
        position: WalkPosition::default(),
    });
    progress.start(options, named.collection().count());
    let known = store.pairs(progress.pairs)?.iter().map(|pair| (pair.a, pair.b)).collect();
    let pairs = store.append(progress.pairs)?;
    let pacer = Pacer::new(Rate::per_second(options.points_per_second));
    let mut job = JobRun { named, store, progress, position, known, pairs, pacer, control };
    job.checkpoint()?;
    let ended = job.run();
    job.progress.state = match &ended {
        Ok(true) => DuplicateState::Done,
        Ok(false) => DuplicateState::Cancelled,
        Err(_) => DuplicateState::Failed,
    };
    if named.removed() {
        return Err(Error::not_found("the collection was removed"));
    }
    job.progress.error = ended.as_ref().err().map(|error| error.message().to_owned());
    job.checkpoint()?;
    ended.map(|_| job.progress)
}

/// State of a running job.
struct JobRun<'a> {
    named: &'a NamedCollection,
    store: DuplicateStore,
    progress: DuplicateProgress,
    position: WalkPosition,
    /// Ids of the pairs found, the lower one first.
    known: HashSet<(u64, u64)>,
    pairs: PairsFile,
    pacer: Pacer,
    control: &'a DuplicateControl,
}

impl JobRun<'_> {
    /// Walks and scans. Returns false if the job was cancelled.
    fn run(&mut self) -> Result<bool> {
        let options = self.progress.options;
        let metric = self.named.settings().metric;
        let collection = self.named.collection();
        let mut scanners = (0..options.threads)
            .map(|_| DuplicateScanner::new(collection, metric, options))
            .collect::<Result<Vec<_>>>()?;
        let mut written = Instant::now();
        self.publish();
        while !self.control.stop.load(Ordering::Relaxed) {
            if self.named.removed() {
                return Err(Error::not_found("the collection was removed"));
            }
            let began = Instant::now();
            let position = self.position.clone();
            let progress = self.progress.clone();
            let step = self.step(step_points(&options))?;
            let Some(WalkStep { points, unreadable, ended }) = step else { return Ok(false) };
            self.pacer.wait(points.len() as u64);
            let compared = scan_all(&mut scanners, &points, &self.known)
                .and_then(|outcomes| outcomes.into_iter().try_for_each(|found| self.add(found)));
            if let Err(error) = compared {
                // A job that continues repeats the step. Pairs that were kept stay.
                self.position = position;
                self.progress = DuplicateProgress { pairs: self.progress.pairs, ..progress };
                return Err(error);
            }
            self.progress.done += points.len() as u64;
            self.progress.unreadable += unreadable;
            self.progress.seconds += began.elapsed().as_secs_f64();
            if written.elapsed() >= CHECKPOINT {
                self.checkpoint()?;
                written = Instant::now();
            }
            self.publish();
            if ended {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the walk's next step, or `None` if the job was stopped while segments were opened.
    fn step(&mut self, max: usize) -> Result<Option<WalkStep>> {
        let deadline = Instant::now() + OPENING_WAIT_MAX;
        loop {
            match self.named.collection().walk(&mut self.position, max) {
                Ok(step) => return Ok(Some(step)),
                Err(error)
                    if error.kind() == ErrorKind::Unavailable && Instant::now() < deadline =>
                {
                    if self.control.stop.load(Ordering::Relaxed) {
                        return Ok(None);
                    }
                    std::thread::sleep(OPENING_WAIT);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Adds the counts and the new pairs of a step.
    fn add(&mut self, outcome: ScanOutcome) -> Result<()> {
        self.progress.candidates += outcome.candidates;
        self.progress.refused += outcome.refused;
        self.progress.unreadable += outcome.unreadable;
        // Both points of a pair may have been in this step.
        let new: Vec<DuplicatePair> = outcome
            .pairs
            .into_iter()
            .filter(|pair| self.known.insert(ordered(pair.a, pair.b)))
            .collect();
        if self.known.len() > PAIRS_MAX {
            return Err(Error::exhausted(format!(
                "there are more than {PAIRS_MAX} pairs; raise the threshold"
            )));
        }
        self.pairs.append(&new)?;
        self.progress.pairs += new.len() as u64;
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        self.pairs.sync()?;
        let progress = self.progress.clone();
        let position = self.position.clone();
        self.store.put_state(&StoredJob { progress, position })
    }

    fn publish(&self) {
        *self.control.progress.lock() = Some(self.progress.clone());
    }
}

/// Returns the maximum points of a step. At a low rate these are the points of one second. A step
/// that waits for its turn does not notice that the job was cancelled.
fn step_points(options: &DuplicateOptions) -> usize {
    let most = STEP_POINTS * options.threads;
    match options.points_per_second {
        0 => most,
        rate => most.min(usize::try_from(rate).unwrap_or(most)),
    }
}

/// Scans the points with all scanners, each on its thread.
fn scan_all(
    scanners: &mut [DuplicateScanner<'_>],
    points: &[WalkedPoint],
    known: &HashSet<(u64, u64)>,
) -> Result<Vec<ScanOutcome>> {
    let share = points.len().div_ceil(scanners.len().max(1)).max(1);
    let mut work = scanners.iter_mut().zip(points.chunks(share));
    let first = work.next();
    std::thread::scope(|scope| {
        let others: Vec<_> = work
            .map(|(scanner, points)| {
                std::thread::Builder::new().name("duplicates".into()).spawn_scoped(
                    scope,
                    move || {
                        os::thread::enter_low_priority("finding duplicates");
                        scanner.scan(points, known)
                    },
                )
            })
            .collect();
        let mut outcomes = Vec::new();
        if let Some((scanner, points)) = first {
            outcomes.push(scanner.scan(points, known)?);
        }
        for other in others {
            let other = other.map_err(|error| Error::exhausted("no thread").caused_by(error))?;
            let ended = other.join();
            outcomes.push(ended.unwrap_or_else(|_| {
                Err(Error::internal("a thread of the search for duplicates panicked"))
            })?);
        }
        Ok(outcomes)
    })
}

#[cfg(test)]
mod tests {
    use coarse::Metric;

    use super::*;
    use crate::points::{NewPoint, PointId};
    use crate::registry::{CollectionSettings, Registry, RegistryOptions};

    #[test]
    fn a_failed_step_is_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(RegistryOptions::for_tests(dir.path())).unwrap();
        let named = registry.create("c", CollectionSettings::new(2, Metric::Cosine)).unwrap();
        for id in [1, 2] {
            let (id, payload) = (PointId::Number(id), &serde_json::Map::new());
            named.upsert(&[NewPoint { id, embedding: &[1.0, 0.5], record: &[], payload }]).unwrap();
        }
        let options =
            DuplicateOptions { threshold: 0.9, accept: None, points_per_second: 0, threads: 1 };
        let store = DuplicateStore::of(&named);
        drop(store.append(0).unwrap());
        let (pairs, control) = (store.unwritable(), DuplicateControl::default());
        let mut job = JobRun {
            named: &named,
            store,
            progress: DuplicateProgress::new(options),
            position: WalkPosition::default(),
            known: HashSet::new(),
            pairs,
            pacer: Pacer::new(Rate::per_second(0)),
            control: &control,
        };
        assert!(job.run().is_err());
        assert_eq!((job.position, job.progress.done), (WalkPosition::default(), 0));
    }

    #[test]
    fn a_slow_job_takes_short_steps() {
        let points = |points_per_second| {
            let options =
                DuplicateOptions { threshold: 0.9, accept: None, points_per_second, threads: 2 };
            step_points(&options)
        };
        assert_eq!([points(0), points(1), points(100), points(u64::MAX)], [1024, 1, 100, 1024]);
    }
}
