//! The job: walks the shards, compares page by page, and keeps its results in the store.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_images::{
    EmbeddingsPage, EmbeddingsRequest, NeighbourProbe, NeighboursRequest, RecordsAnswer,
    RecordsRequest, StoredRecord, VerifyRequest,
};
use base::{Error, Result};
use cluster_node::CollectionRecord;
use cluster_root::RootState;
use cluster_root::reads::{
    ReadBody, ReadPriority, ShardAnswers, ShardRead, catch_up, is_final, read_shards,
};
use cluster_root::split::raw;
use matching::Graph;
use os::{Pacer, Rate};
use search::duplicates::{DuplicateOptions, DuplicateState, NEIGHBOURS_MAX, PAIRS_MAX};
use serde::Serialize;
use transport::UploadPermit;

use super::super::merge::ResultTexts;
use super::super::running_duplicates::RegisteredJob;
use super::merge::{self, PointNeighbours, VerifiedPairs};
use super::pairs::{ShardPair, ShardPoint};
use super::steps::{JobStep, JobSteps, PairsPart, now_ms};

/// Maximum points of a page.
const PAGE_POINTS_MAX: usize = 256;
/// Maximum values of the embeddings of a page. Base64 takes 5.3 bytes a value.
const PAGE_VALUES_MAX: usize = 256 << 10;
/// Maximum neighbours that all shards return for one page. Each takes about 60 bytes of JSON.
const PAGE_NEIGHBOURS_MAX: usize = 1 << 20;
/// Maximum records that one request compares with others.
const PROBES_MAX: usize = 64;
/// Bytes of records after which another request begins.
const PROBES_BYTES: usize = 1 << 20;
/// Longest time in which the holders apply the changes that were acknowledged before the job.
const CATCH_UP_MAX: Duration = Duration::from_secs(60);
/// Longest time of one attempt to read shards.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time of all attempts of one read.
const READ_WAIT_MAX: Duration = Duration::from_secs(600);
/// Pause before the second attempt of a read. It doubles up to [`READ_PAUSE_MAX`].
const READ_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause before an attempt of a read.
const READ_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Longest time between two steps. The steps show other roots that the job runs.
const CHECKPOINT: Duration = Duration::from_secs(5);
/// Number of pairs of an object. A smaller number stays in the step.
const PART_PAIRS: usize = 4096;
/// Pause between two attempts to create a step.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// Longest time of all attempts to create a step.
const STORE_WAIT_MAX: Duration = Duration::from_secs(600);

/// Reason why a job ends before its last page.
enum JobStop {
    /// A client has cancelled the job.
    Cancelled,
    /// Another root continues the job, or has cancelled it.
    Lost,
    Failed(Error),
}

impl From<Error> for JobStop {
    fn from(error: Error) -> JobStop {
        JobStop::Failed(error)
    }
}

type JobResult<T> = std::result::Result<T, JobStop>;

pub(super) struct JobStart {
    /// Number of values of an embedding.
    pub(super) dims: usize,
    /// Number of the step that began or continued the job.
    pub(super) number: u64,
    pub(super) step: JobStep,
}

/// A job that runs on this node.
pub(super) struct ClusterJob {
    state: Arc<RootState>,
    record: Arc<CollectionRecord>,
    steps: JobSteps,
    /// Number of the newest step.
    number: u64,
    step: JobStep,
    /// Ids of the pairs found, the lower one first.
    known: HashSet<(u64, u64)>,
    /// Number of points of a page.
    page: usize,
    pacer: Pacer,
    /// Time of the newest step.
    written: Instant,
    registered: RegisteredJob,
    _permit: UploadPermit,
}

impl ClusterJob {
    pub(super) fn new(
        state: Arc<RootState>,
        record: Arc<CollectionRecord>,
        steps: JobSteps,
        start: JobStart,
        registered: RegisteredJob,
        permit: UploadPermit,
    ) -> ClusterJob {
        let JobStart { dims, number, step } = start;
        let options = step.progress.options;
        ClusterJob {
            page: page_points(&options, dims, record.shards),
            pacer: Pacer::new(Rate::per_second(options.points_per_second)),
            known: HashSet::new(),
            written: Instant::now(),
            state,
            record,
            steps,
            number,
            step,
            registered,
            _permit: permit,
        }
    }

    /// Runs the job on a task of its own.
    pub(super) fn spawn(mut self) {
        tokio::spawn(async move {
            let ended = Box::pin(self.run()).await;
            Box::pin(self.end(ended)).await;
        });
    }

    /// Writes the outcome into the last step. A job that another root has taken writes nothing.
    async fn end(&mut self, ended: JobResult<()>) {
        let collection = self.record.name.clone();
        let progress = &mut self.step.progress;
        match ended {
            Ok(()) => progress.state = DuplicateState::Done,
            Err(JobStop::Cancelled) => progress.state = DuplicateState::Cancelled,
            Err(JobStop::Lost) => {
                tracing::info!(collection, "another root has taken a search for duplicates");
                return;
            }
            Err(JobStop::Failed(error)) => {
                tracing::error!(collection, %error, "a search for duplicates has failed");
                progress.state = DuplicateState::Failed;
                progress.error = Some(error.message().to_owned());
            }
        }
        if self.is_removed() {
            return;
        }
        if let Err(JobStop::Failed(error)) = self.checkpoint().await {
            tracing::error!(collection, %error, "the end of a search for duplicates is not stored");
        }
    }

    /// Returns true if the collection was removed.
    fn is_removed(&self) -> bool {
        self.state.view.current().by_id(&self.record.id).is_none()
    }

    /// Compares all points with all others, page by page, and writes checkpoints. Continues after
    /// the last checkpoint.
    async fn run(&mut self) -> JobResult<()> {
        self.catch_up().await?;
        self.read_known().await?;
        let mut counted = Instant::now();
        while self.step.position.shard < self.record.shards {
            if self.registered.control.is_stopped() {
                return Err(JobStop::Cancelled);
            }
            if self.is_removed() {
                return Err(Error::not_found("the collection was removed").into());
            }
            let page = self.read_page().await?;
            self.wait_turn(page.ids.len() as u64).await?;
            self.compare(&page).await?;
            self.step.position.pass(page.next);
            let progress = &mut self.step.progress;
            progress.done += page.ids.len() as u64;
            progress.unreadable += page.unreadable;
            progress.seconds += counted.elapsed().as_secs_f64();
            counted = Instant::now();
            self.registered.control.publish(&self.step.progress);
            self.checkpoint_if_due().await?;
        }
        Ok(())
    }

    /// Waits until all holders have the points that were acknowledged before the job. The reads of
    /// neighbours are not strong, so a pair would be lost if no holder that is asked has the other
    /// point yet. A holder that does not catch up in time does not stop the job.
    async fn catch_up(&mut self) -> JobResult<()> {
        let give_up = Instant::now() + CATCH_UP_MAX;
        let mut pause = READ_PAUSE;
        loop {
            let control = self.registered.control.clone();
            let deadline = give_up.min(Instant::now() + READ_TIMEOUT);
            let caught_up = tokio::select! {
                caught_up = catch_up(&self.state, &self.record, deadline) => caught_up,
                () = control.stopped() => return Err(JobStop::Cancelled),
            };
            let Err(error) = caught_up else { return Ok(()) };
            if Instant::now() + pause >= give_up {
                tracing::warn!(
                    collection = self.record.name,
                    %error,
                    "a search for duplicates may miss new points: a holder is behind its log"
                );
                return Ok(());
            }
            self.pause_until(Instant::now() + pause).await?;
            // Each attempt reads the log of each copy in the store.
            pause = (pause * 2).min(READ_PAUSE_MAX);
        }
    }

    /// Reads the pairs of an earlier run.
    async fn read_known(&mut self) -> JobResult<()> {
        self.known.extend(self.step.pending.iter().map(ShardPair::ids));
        for part in self.step.parts.clone() {
            let pairs = self.steps.pairs(&part).await?;
            self.known.extend(pairs.iter().map(ShardPair::ids));
            self.checkpoint_if_due().await?;
        }
        Ok(())
    }

    async fn read_page(&mut self) -> JobResult<EmbeddingsPage> {
        let position = self.step.position;
        let request = EmbeddingsRequest { from: position.next, max: self.page };
        let mut read =
            self.request("images/duplicates/embeddings", [position.shard].into(), &request)?;
        // A point that was acknowledged before is visited, although a holder lags.
        read.strong = true;
        let page: EmbeddingsPage = self.read_one(&mut read).await?;
        Ok(page)
    }

    /// Waits until `points` more may be compared.
    async fn wait_turn(&mut self, points: u64) -> JobResult<()> {
        let turn = self.pacer.reserve(points);
        self.pause_until(turn).await
    }

    /// Waits until `until`, and creates a step whenever one is due.
    ///
    /// # Errors
    /// `Cancelled` if the job was stopped, and the errors of a step.
    async fn pause_until(&mut self, until: Instant) -> JobResult<()> {
        while Instant::now() < until {
            let wake = until.min(self.written + CHECKPOINT);
            let control = self.registered.control.clone();
            tokio::select! {
                () = tokio::time::sleep_until(wake.into()) => {}
                () = control.stopped() => return Err(JobStop::Cancelled),
            }
            self.checkpoint_if_due().await?;
        }
        Ok(())
    }

    /// Finds the pairs of a page.
    async fn compare(&mut self, page: &EmbeddingsPage) -> JobResult<()> {
        if page.ids.is_empty() {
            return Ok(());
        }
        let DuplicateOptions { threshold, accept, .. } = self.step.progress.options;
        let shard = self.step.position.shard;
        let request = NeighboursRequest { threshold, embeddings: page.embeddings.clone() };
        let all = (0..self.record.shards).collect();
        let mut read = self.request("images/duplicates/neighbours", all, &request)?;
        let results = self.read(&mut read).await?;
        let count = page.ids.len();
        let merged = blocking(move || merge::neighbours(&results, count)).await?;
        self.step.progress.unreadable += merged.unreadable;
        let points: Vec<ShardPoint> =
            page.ids.iter().map(|id| ShardPoint { id: *id, shard }).collect();
        let found = merge::new_neighbours(&points, merged.near, &self.known);
        let candidates: usize = found.iter().map(|point| point.near.len()).sum();
        self.step.progress.candidates += candidates as u64;
        match accept {
            Some(accept) => self.verify(found, accept).await,
            None => {
                let pairs = found.iter().flat_map(|point| {
                    point.near.iter().map(|near| point.pair(near, None)).collect::<Vec<_>>()
                });
                self.add(pairs.collect())
            }
        }
    }

    /// Adds the pairs that the keypoints confirm, and the pairs without keypoints to compare.
    async fn verify(&mut self, mut found: Vec<PointNeighbours>, accept: f32) -> JobResult<()> {
        while !found.is_empty() {
            let ids = found.iter().take(PROBES_MAX).map(|point| point.point.id).collect();
            let request = RecordsRequest { ids, bytes_max: PROBES_BYTES };
            let shard = self.step.position.shard;
            let mut read = self.request("images/duplicates/records", [shard].into(), &request)?;
            let answer: RecordsAnswer = self.read_one(&mut read).await?;
            if answer.records.is_empty() {
                return Err(
                    Error::internal(format!("shard {shard} has returned no records")).into()
                );
            }
            let batch: Vec<PointNeighbours> =
                found.drain(..answer.records.len().min(found.len())).collect();
            let verified = self.verify_batch(batch, answer.records, accept).await?;
            self.step.progress.refused += verified.refused;
            self.step.progress.unreadable += verified.unreadable;
            self.add(verified.pairs)?;
        }
        Ok(())
    }

    /// Compares the records of some points with the records of their neighbours.
    async fn verify_batch(
        &mut self,
        batch: Vec<PointNeighbours>,
        records: Vec<StoredRecord>,
        accept: f32,
    ) -> JobResult<VerifiedPairs> {
        let mut points = Vec::new();
        let mut probes = Vec::new();
        for (point, record) in batch.into_iter().zip(records) {
            match record {
                StoredRecord::Present(record)
                    if record.is_empty() || Graph::decode(&record).is_ok() =>
                {
                    let ids = point.near.iter().map(|near| near.point.id).collect();
                    probes.push(NeighbourProbe { record, ids });
                    points.push(point);
                }
                StoredRecord::Removed => {}
                StoredRecord::Present(_) | StoredRecord::Unreadable => {
                    self.step.progress.unreadable += 1;
                }
            }
        }
        let shards: BTreeSet<u32> =
            points.iter().flat_map(|point| &point.near).map(|near| near.point.shard).collect();
        if shards.is_empty() {
            return Ok(VerifiedPairs::default());
        }
        let request = VerifyRequest { accept, probes };
        let shards = shards.into_iter().collect();
        let mut read = self.request("images/duplicates/verify", shards, &request)?;
        let results = self.read(&mut read).await?;
        Ok(blocking(move || merge::verified(&results, &points)).await?)
    }

    /// Adds pairs that are not known yet.
    ///
    /// # Errors
    /// `ResourceExhausted` if there are more than [`PAIRS_MAX`] pairs.
    fn add(&mut self, pairs: Vec<ShardPair>) -> JobResult<()> {
        let new: Vec<ShardPair> =
            pairs.into_iter().filter(|pair| self.known.insert(pair.ids())).collect();
        if self.known.len() > PAIRS_MAX {
            let message = format!("there are more than {PAIRS_MAX} pairs; raise the threshold");
            return Err(Error::exhausted(message).into());
        }
        self.step.progress.pairs += new.len() as u64;
        self.step.pending.extend(new);
        Ok(())
    }

    /// Prepares a read of `shards` at background priority, with the same body for all.
    fn request(
        &self,
        path: &'static str,
        shards: Vec<u32>,
        request: &impl Serialize,
    ) -> Result<ShardRead> {
        Ok(ShardRead {
            record: self.record.clone(),
            shards,
            path,
            body: ReadBody::Same(raw(request)?),
            deadline: Instant::now(),
            strong: false,
            priority: ReadPriority::Background,
        })
    }

    /// Reads one shard.
    async fn read_one<T>(&mut self, read: &mut ShardRead) -> JobResult<T>
    where
        T: serde::de::DeserializeOwned + Send + 'static,
    {
        let results = self.read(read).await?;
        let parse = move || {
            let result = results.into_values().next();
            let result = result.ok_or_else(|| Error::internal("a shard has no result"))?;
            merge::parsed(&result)
        };
        Ok(blocking(parse).await?)
    }

    /// Reads shards until all have answered, with pauses between the attempts.
    async fn read(&mut self, read: &mut ShardRead) -> JobResult<ResultTexts> {
        let give_up = Instant::now() + READ_WAIT_MAX;
        let mut pause = READ_PAUSE;
        loop {
            let control = self.registered.control.clone();
            let outcome = tokio::select! {
                outcome = read_all(&self.state, read) => outcome,
                () = control.stopped() => return Err(JobStop::Cancelled),
            };
            match outcome {
                Ok(results) => return Ok(results),
                Err(error) if is_final(&error) || Instant::now() >= give_up => {
                    return Err(error.into());
                }
                Err(error) => {
                    tracing::debug!(%error, "a search for duplicates waits for a shard");
                }
            }
            self.pause_until(Instant::now() + pause).await?;
            pause = (pause * 2).min(READ_PAUSE_MAX);
            if self.is_removed() {
                return Err(Error::not_found("the collection was removed").into());
            }
        }
    }

    async fn checkpoint_if_due(&mut self) -> JobResult<()> {
        if self.written.elapsed() >= CHECKPOINT { self.checkpoint().await } else { Ok(()) }
    }

    /// Creates the next step. Waits while the store does not answer.
    async fn checkpoint(&mut self) -> JobResult<()> {
        let give_up = Instant::now() + STORE_WAIT_MAX;
        loop {
            match self.write_step().await {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(JobStop::Lost),
                Err(error) if Instant::now() >= give_up => return Err(error.into()),
                Err(error) => {
                    tracing::debug!(%error, "a search for duplicates waits for the store");
                }
            }
            tokio::time::sleep(STORE_PAUSE).await;
        }
    }

    /// Creates the next step. Returns false if another root has created it.
    async fn write_step(&mut self) -> Result<bool> {
        while self.step.pending.len() >= PART_PAIRS {
            let name = format!("{}-{}", self.step.run, self.step.parts.len());
            self.steps.put_part(&name, &self.step.pending[..PART_PAIRS]).await?;
            self.step.parts.push(PairsPart { name, pairs: PART_PAIRS as u64 });
            self.step.pending.drain(..PART_PAIRS);
        }
        self.step.written_ms = now_ms();
        if !self.steps.append(self.number + 1, &self.step).await? {
            return Ok(false);
        }
        self.steps.remove_step(self.number).await;
        self.number += 1;
        self.written = Instant::now();
        Ok(true)
    }
}

/// Reads shards once.
///
/// # Errors
/// `Unavailable` if a shard has not answered within [`READ_TIMEOUT`]; as [`read_shards`].
pub(super) async fn read_all(state: &RootState, read: &mut ShardRead) -> Result<ResultTexts> {
    read.deadline = Instant::now() + READ_TIMEOUT;
    let answers: ShardAnswers = Box::pin(read_shards(state, read)).await?;
    answers.check(1.0)?;
    Ok(answers.results)
}

/// Runs `work` on a thread that may block, so that large answers delay no request.
///
/// # Errors
/// The error of `work`; `Internal` if it panicked.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::internal("a search for duplicates").caused_by(error)))
}

/// Returns the number of points of a page. At a low rate, these are the points of one second. It is
/// fewer if the embeddings are long or the shards many.
fn page_points(options: &DuplicateOptions, dims: usize, shards: u32) -> usize {
    let by_values = PAGE_VALUES_MAX / dims.max(1);
    let by_neighbours = PAGE_NEIGHBOURS_MAX / (NEIGHBOURS_MAX * (shards as usize).max(1));
    let most = PAGE_POINTS_MAX.min(by_values).min(by_neighbours).max(1);
    match options.points_per_second {
        0 => most,
        rate => most.min(usize::try_from(rate).unwrap_or(most)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_bounded_by_rate_values_and_shards() {
        let points = |points_per_second, dims, shards| {
            let options =
                DuplicateOptions { threshold: 0.9, accept: None, points_per_second, threads: 2 };
            page_points(&options, dims, shards)
        };
        assert_eq!([points(0, 512, 8), points(1, 512, 8), points(100, 512, 8)], [256, 1, 100]);
        assert_eq!([points(0, 4096, 8), points(0, 48, 1024), points(0, 1 << 20, 8)], [64, 32, 1]);
        assert_eq!(points(u64::MAX, 512, 8), PAGE_POINTS_MAX);
    }
}
