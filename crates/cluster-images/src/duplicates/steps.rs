//! Steps of a job in the object store.
//!
//! `data/ID/duplicates/steps/NUMBER` is JSON: options, progress, position, the newest pairs, and
//! the names of the objects `data/ID/duplicates/pairs/NAME` that have the others. The newest step
//! is complete, so its root removes the step before it.
//!
//! # Invariant
//! A step is created only if it is absent, and it is removed only after a later one was created.
//! So of two roots that work on one job, one cannot create its next step, or sees a later one after
//! it. It ends, and no step that counts refers to pairs that only it has found.

use std::time::{Duration, SystemTime};

use base::{Error, Result};
use model_store::{SmallObjects, StorePlace};
use object_store::path::Path as Key;
use search::duplicates::{DuplicateOptions, DuplicateProgress, DuplicateState};
use serde::{Deserialize, Serialize};
use tokio_stream::StreamExt;

use super::pairs::{ShardPair, decode_pairs, encode_pairs};

/// Longest time of one request to the store.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of a step or of an object of pairs.
const OBJECT_BYTES_MAX: u64 = 16 << 20;
/// Maximum attempts to read the newest step, which may be removed meanwhile.
const READS_MAX: u32 = 5;

/// Position of a walk through all points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShardPosition {
    /// Shard that is visited. The shards below it were.
    pub(super) shard: u32,
    /// Next internal id in the shard.
    pub(super) next: u64,
}

impl ShardPosition {
    /// Moves past a page of the shard. `next` is the first id after it, or `None` after the last
    /// page.
    pub(super) fn pass(&mut self, next: Option<u64>) {
        match next {
            Some(next) => self.next = next,
            None => *self = ShardPosition { shard: self.shard.saturating_add(1), next: 0 },
        }
    }
}

/// Object in the store that holds pairs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PairsPart {
    pub(super) name: String,
    /// Number of pairs.
    pub(super) pairs: u64,
}

/// State of a job at a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct JobStep {
    pub(super) progress: DuplicateProgress,
    pub(super) position: ShardPosition,
    /// Objects of pairs.
    pub(super) parts: Vec<PairsPart>,
    /// Pairs that are in no object.
    #[serde(with = "super::pairs")]
    pub(super) pending: Vec<ShardPair>,
    /// Name of the node that created the step.
    pub(super) node: String,
    /// Token of the run, which no other run has.
    pub(super) run: String,
    /// Time of the step in milliseconds since 1970.
    pub(super) written_ms: u64,
    /// True if the result was removed. The step stays, so that no older one counts.
    pub(super) removed: bool,
}

impl JobStep {
    /// Creates the first step of a job. No node has signed it.
    pub(super) fn new(options: DuplicateOptions) -> JobStep {
        JobStep {
            progress: DuplicateProgress::new(options),
            position: ShardPosition::default(),
            parts: Vec::new(),
            pending: Vec::new(),
            node: String::new(),
            run: String::new(),
            written_ms: 0,
            removed: false,
        }
    }

    /// Returns the step of a failed job that no options continue.
    fn unreadable(error: String) -> JobStep {
        let options = DuplicateOptions {
            threshold: 0.0,
            // No request has it, and JSON can keep it.
            accept: Some(-1.0),
            points_per_second: 0,
            threads: 1,
        };
        let mut step = JobStep::new(options);
        step.progress.state = DuplicateState::Failed;
        step.progress.error = Some(error);
        step
    }
}

/// A step that was read, and its number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoredStep {
    pub(super) number: u64,
    pub(super) step: JobStep,
}

/// Returns the milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = base::unix_time(SystemTime::now());
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Objects of the job of one collection.
#[derive(Clone, Debug)]
pub(super) struct JobSteps {
    objects: SmallObjects,
    /// Path below the directory of the cluster.
    path: String,
}

impl JobSteps {
    /// Returns the objects of a collection. Nothing is read.
    pub(super) fn new(place: StorePlace, collection: &str) -> JobSteps {
        let objects = SmallObjects::new(place.for_clients(), REQUEST_TIMEOUT);
        JobSteps { objects, path: format!("data/{collection}/duplicates") }
    }

    fn steps(&self) -> Key {
        self.objects.key(&format!("{}/steps", self.path))
    }

    fn step(&self, number: u64) -> Key {
        // Names sort as their numbers do.
        self.objects.key(&format!("{}/steps/{number:020}", self.path))
    }

    fn part(&self, name: &str) -> Key {
        self.objects.key(&format!("{}/pairs/{name}", self.path))
    }

    /// Reads the newest step; `None` if there was no job. A step that this program cannot read
    /// counts as the step of a failed job.
    ///
    /// # Errors
    /// The store's error.
    pub(super) async fn newest(&self) -> Result<Option<StoredStep>> {
        for _ in 0..READS_MAX {
            let Some(number) = self.numbers().await?.into_iter().max() else { return Ok(None) };
            if let Some(bytes) = self.objects.read(&self.step(number), OBJECT_BYTES_MAX).await? {
                let step = serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                    JobStep::unreadable(format!("step {number} cannot be read: {error}"))
                });
                return Ok(Some(StoredStep { number, step }));
            }
        }
        Err(Error::unavailable("the steps of the search for duplicates change; try again"))
    }

    /// Returns the numbers of the steps that are there.
    async fn numbers(&self) -> Result<Vec<u64>> {
        let prefix = self.steps();
        let place = self.objects.place();
        let mut listing = place.objects().list(Some(&prefix));
        let mut numbers = Vec::new();
        while let Some(object) = self.objects.within(listing.next()).await? {
            let object = object.map_err(|error| place.failed(error))?;
            let name = object.location.filename().unwrap_or_default();
            numbers.extend(name.parse::<u64>().ok());
        }
        Ok(numbers)
    }

    /// Creates a step. Returns false if there is another one of this number, or a later one.
    ///
    /// # Errors
    /// The store's error, after which it may have been created.
    pub(super) async fn append(&self, number: u64, step: &JobStep) -> Result<bool> {
        let bytes = serde_json::to_vec(step).map_err(|error| {
            Error::internal("a step of a search for duplicates").caused_by(error)
        })?;
        let key = self.step(number);
        if !self.objects.create(&key, bytes).await? {
            // An attempt whose answer was lost may have created it.
            let Some(found) = self.objects.read(&key, OBJECT_BYTES_MAX).await? else {
                return Ok(false);
            };
            let found: Option<JobStep> = serde_json::from_slice(&found).ok();
            if found.is_none_or(|found| found.run != step.run) {
                return Ok(false);
            }
        }
        // If this process was paused, the step of another root may be removed already.
        if self.numbers().await?.into_iter().any(|other| other > number) {
            self.remove_step(number).await;
            return Ok(false);
        }
        Ok(true)
    }

    /// Creates an object of pairs.
    ///
    /// # Errors
    /// The store's error.
    pub(super) async fn put_part(&self, name: &str, pairs: &[ShardPair]) -> Result<()> {
        // No other run uses the name, and another attempt writes the same pairs.
        self.objects.create(&self.part(name), encode_pairs(pairs)).await.map(drop)
    }

    /// Reads the pairs of an object.
    ///
    /// # Errors
    /// `DataLoss` if it is damaged or missing; the store's error.
    pub(super) async fn pairs(&self, part: &PairsPart) -> Result<Vec<ShardPair>> {
        let name = &part.name;
        let bytes = self.objects.read(&self.part(name), OBJECT_BYTES_MAX).await?;
        let pairs = bytes.map(|bytes| decode_pairs(&bytes)).transpose()?.unwrap_or_default();
        if pairs.len() as u64 != part.pairs {
            let message = format!(
                "pairs {name} of the search for duplicates: {} instead of {}; start it again with \"restart\": true",
                pairs.len(),
                part.pairs
            );
            return Err(Error::data_loss(message));
        }
        Ok(pairs)
    }

    /// Removes the steps below `number`. Steps that cannot be removed only take space.
    pub(super) async fn remove_before(&self, number: u64) {
        match self.numbers().await {
            Ok(numbers) => {
                for old in numbers.into_iter().filter(|old| *old < number) {
                    self.remove(&self.step(old)).await;
                }
            }
            Err(error) => tracing::debug!(%error, "old steps of a search for duplicates stay"),
        }
    }

    /// Removes one step. A step that cannot be removed only takes space.
    pub(super) async fn remove_step(&self, number: u64) {
        self.remove(&self.step(number)).await;
    }

    /// Removes objects of pairs to which no step refers. Objects that cannot be removed only take
    /// space.
    pub(super) async fn remove_parts(&self, parts: Vec<PairsPart>) {
        for part in parts {
            self.remove(&self.part(&part.name)).await;
        }
    }

    async fn remove(&self, key: &Key) {
        if let Err(error) = self.objects.remove(key).await {
            tracing::debug!(%key, %error, "an object of a search for duplicates stays");
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use base::ErrorKind;
    use object_store::memory::InMemory;
    use search::Metric;

    use super::super::pairs::ShardPoint;
    use super::super::pairs::tests::pair;
    use super::*;

    pub(in super::super) fn step(node: &str, run: &str) -> JobStep {
        let options = DuplicateOptions {
            threshold: 0.75,
            accept: Some(100.0),
            points_per_second: 0,
            threads: 1,
        };
        JobStep {
            position: ShardPosition { shard: 2, next: u64::MAX },
            pending: vec![pair(ShardPoint { id: 1, shard: 0 }, ShardPoint { id: 2, shard: 3 })],
            node: node.to_owned(),
            run: run.to_owned(),
            written_ms: 7,
            ..JobStep::new(options)
        }
    }

    fn steps() -> JobSteps {
        JobSteps::new(StorePlace::new(Arc::new(InMemory::new()), "cluster", "memory"), "c-1")
    }

    /// `millpond images duplicates` takes a conflict for a job that runs already.
    #[test]
    fn refused_credentials_are_no_conflict() {
        let refused =
            object_store::Error::PermissionDenied { path: "a".to_owned(), source: "403".into() };
        let error = steps().objects.place().failed(refused);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }

    #[test]
    fn positions_pass_pages_and_shards() {
        let mut position = ShardPosition::default();
        position.pass(Some(17));
        assert_eq!(position, ShardPosition { shard: 0, next: 17 });
        position.pass(None);
        assert_eq!(position, ShardPosition { shard: 1, next: 0 });
    }

    #[tokio::test]
    async fn the_newest_step_is_read() {
        let steps = steps();
        assert_eq!(steps.newest().await.unwrap(), None);
        for number in [9, 10, 11] {
            let mut step = step("a", "1");
            step.written_ms = number;
            assert!(steps.append(number, &step).await.unwrap());
        }
        let newest = steps.newest().await.unwrap().unwrap();
        assert_eq!((newest.number, newest.step.written_ms), (11, 11));
        assert_eq!(newest.step.pending, step("a", "1").pending);
        steps.remove_before(11).await;
        assert_eq!(steps.numbers().await.unwrap(), [11]);
        steps.remove_step(11).await;
        assert_eq!(steps.newest().await.unwrap(), None);
    }

    #[tokio::test]
    async fn one_of_two_roots_creates_a_step() {
        let steps = steps();
        assert!(steps.append(1, &step("a", "run-a")).await.unwrap());
        assert!(!steps.append(1, &step("b", "run-b")).await.unwrap());
        // A repeated attempt of the same run.
        assert!(steps.append(1, &step("a", "run-a")).await.unwrap());
        // The first root was paused, and the second one has removed the step after the first.
        assert!(steps.append(3, &step("b", "run-b")).await.unwrap());
        steps.remove_before(3).await;
        assert!(!steps.append(2, &step("a", "run-a")).await.unwrap());
        assert_eq!(steps.numbers().await.unwrap(), [3]);
        assert!(!steps.append(3, &step("a", "run-a")).await.unwrap());
        assert_eq!(steps.newest().await.unwrap().unwrap().step.run, "run-b");
    }

    #[tokio::test]
    async fn an_unreadable_step_is_a_failed_job() {
        let steps = steps();
        steps.objects.create(&steps.step(4), b"{}".to_vec()).await.unwrap();
        let StoredStep { number, step: found } = steps.newest().await.unwrap().unwrap();
        assert_eq!((number, found.progress.state), (4, DuplicateState::Failed));
        assert!(found.progress.error.as_ref().unwrap().contains("step 4"));
        assert!(found.progress.options.check(Metric::Cosine).is_err(), "no request continues it");
        let removed = JobStep { removed: true, ..found };
        assert!(steps.append(5, &removed).await.unwrap());
        assert_eq!(steps.newest().await.unwrap().unwrap().step, removed);
        assert!(steps.append(6, &step("a", "1")).await.unwrap());
    }

    #[tokio::test]
    async fn missing_pairs_are_named() {
        let steps = steps();
        let pairs = step("a", "1").pending;
        steps.put_part("1-0", &pairs).await.unwrap();
        let part = PairsPart { name: "1-0".to_owned(), pairs: 1 };
        assert_eq!(steps.pairs(&part).await.unwrap(), pairs);
        steps.remove_parts(vec![part.clone()]).await;
        let error = steps.pairs(&part).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DataLoss);
        assert!(error.message().contains("1-0") && error.message().contains("restart"), "{error}");
    }
}
